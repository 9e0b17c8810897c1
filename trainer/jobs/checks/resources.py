"""Accounts, secrets, networks, regions, names, and what the organisation asks for. Adopters: leave."""

from __future__ import annotations

import re

from trainer.jobs import hardware, tables
from trainer.jobs.context import Context, resources
from trainer.jobs.spec import Pool

_NETWORK = re.compile(r"^projects/(\d+)/global/networks/[a-z][\w-]*$")
_LABEL = re.compile(r"^[a-z0-9_-]{0,64}$")
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_REGION_IN_NAME = re.compile(
    r"(?:us|europe|asia|northamerica|southamerica|australia|me|africa)-[a-z]+\d{1,2}"
)
_WIDE_ACCOUNTS = re.compile(r"^(\d+-compute@developer|[^@]+@appspot)\.gserviceaccount\.com$")
_SECRET_NAME = re.compile(r"(password|passwd|secret|token|api_?key|private_?key|credential)", re.I)
_SECRET_VALUE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAIza[\w-]{30,}|\bya29\.[\w-]+|\bAKIA[A-Z0-9]{12,}|\bghp_\w{20,}"
    r'|"private_key"|\bhf_[A-Za-z]{20,}|://[^/\s:@]+:[^/\s:@]+@'
)
_KEY_FILE = re.compile(r"(key|credential|service[-_]?account)[\w.-]*\.(json|pem|p12)$", re.I)
_SET_BY_SERVICE = re.compile(r"^(AIP_\w+|CLOUD_ML_\w+|CLUSTER_SPEC|TF_CONFIG|TPU_CONFIG|TPU_NODE_NAME)$")
_MOST_ENV = 100
_MOST_LABELS = 64


def check(context: Context) -> None:
    """Notes what is wrong with accounts, networks, regions, names, and against the policy."""
    _names(context)
    _accounts(context)
    _networks(context)
    _regions(context)
    for pool in context.job.active_pools:
        _env(context, pool)
        _secrets(context, pool)
    _policy(context)


def _names(context: Context) -> None:
    root = context.job.root
    name = root.of("displayName", default="")
    if len(name) > 128:
        context.add(
            "display-name", root.nearest("displayName"), f"{len(name)} characters", "write 128 at most"
        )
    labels = root.get("labels")
    if labels is not None and len(labels.data) > _MOST_LABELS:
        context.add("label", labels, f"{len(labels.data)} labels", f"keep to {_MOST_LABELS}")
    for key, item in (labels.data if labels is not None else {}).items():
        if not _LABEL.match(key) or not key or not _LABEL.match(str(item.data)):
            context.add(
                "label",
                item,
                f"{key}: {item.text} has more than lower case letters, digits, _ and -, or is too long",
                f"write {re.sub(r'[^a-z0-9_-]', '-', key.lower())[:64]}: "
                f"{re.sub(r'[^a-z0-9_-]', '-', item.text.lower())[:64]}",
            )


def _accounts(context: Context) -> None:
    job = context.job
    account = job.service_account
    wants = next((key for key in ("tensorboard", "experiment") if job.spec.get(key) is not None), None)
    if not account and wants:
        context.add_in(
            "tensorboard-account",
            job.spec,
            ("serviceAccount",),
            f"{wants} is written to in the name of the job's service account, and there is none",
            "write an account with roles/aiplatform.user and write access to the bucket",
        )
    elif not account:
        context.add_in(
            "default-account",
            job.spec,
            ("serviceAccount",),
            "the job runs as the service's own agent, which reads every bucket of the project and "
            "can't be told apart from other jobs",
            "write an account of its own, such as trainer@PROJECT.iam.gserviceaccount.com",
        )
    elif _WIDE_ACCOUNTS.match(account):
        context.add_in(
            "compute-account",
            job.spec,
            ("serviceAccount",),
            f"{account} may edit the whole project unless someone took that away",
            "write an account of its own with the roles that the job needs",
        )
    if job.tensorboard and not job.base_output:
        context.add_in(
            "tensorboard-output",
            job.spec,
            ("baseOutputDirectory",),
            "TensorBoard shows what is below it (AIP_TENSORBOARD_LOG_DIR)",
            "write {outputUriPrefix: gs://BUCKET/FOLDER}",
        )


def _networks(context: Context) -> None:
    job = context.job
    if job.network and not _NETWORK.match(job.network):
        context.add_in(
            "network-project",
            job.spec,
            ("network",),
            f"got {job.network}",
            "write projects/PROJECT_NUMBER/global/networks/NAME, with the number and not the id",
        )
    if job.network and job.network_attachment:
        context.add_in(
            "network-both",
            job.spec,
            ("network",),
            "a job has VPC peering or a PSC interface",
            "keep one: the PSC interface needs no address range",
        )
    for pool in job.active_pools:
        if job.network and hardware.gpus().get(pool.accelerator_type, {}).get("no_peering"):
            context.add_in(
                "network-accelerator",
                job.spec,
                ("network",),
                f"VPC peering doesn't work with {pool.accelerator_type}",
                "write pscInterfaceConfig in its place",
            )
            break
    domains = job.spec.get("pscInterfaceConfig", "dnsPeeringConfigs")
    for item in domains.items() if domains else ():
        domain = item.of("domain", default="")
        if not domain.endswith("."):
            context.add(
                "dns-domain", item.nearest("domain"), f"got {domain!r}", f"write {domain}. with its dot"
            )
    for pool in job.active_pools:
        for key, servers in (("nfsMounts", "NFS"), ("lustreMounts", "Lustre")):
            if pool.value.get(key) is not None and not (job.network or job.network_attachment):
                context.add_pool(
                    "nfs-network",
                    pool,
                    (key,),
                    f"{servers} servers have private addresses only",
                    "write network (VPC peering) or pscInterfaceConfig",
                )


def _regions(context: Context) -> None:
    job, region = context.job, context.region
    for value, other in resources(job):
        if other != region:
            context.add(
                "other-region", value, f"it is in {other} and the job in {region}", f"use one in {region}"
            )
    for folder in (
        job.spec.get("baseOutputDirectory", "outputUriPrefix"),
        job.root.get("inputDataConfig", "gcsDestination", "outputUriPrefix"),
    ):
        if folder is None or not str(folder.data).startswith("gs://"):
            continue
        bucket = str(folder.data)[5:].partition("/")[0]
        found = _REGION_IN_NAME.search(bucket)
        if found and found[0] in hardware.regions() and found[0] != region:
            context.add(
                "bucket-region",
                folder,
                f"the bucket's name says {found[0]} and the job runs in {region}: buckets must be of "
                "the job's one region",
                f"use a bucket in {region}",
            )


def _env(context: Context, pool: Pool) -> None:
    env = pool.value.get(pool.container, "env")
    items = list(env.items()) if env else []
    seen: set[str] = set()
    if len(items) > _MOST_ENV:
        context.add("env-name", items[_MOST_ENV], f"{len(items)} variables", f"keep to {_MOST_ENV}")
    for item in items:
        name = item.of("name", default="")
        at = item.nearest("name")
        if item.get("value") is None and item.get("name") is not None:
            context.add("env-name", at, f"{name} has no value", "write value, '' for an empty one")
        elif not _NAME.match(name) or name in seen:
            why = "it is set twice" if name in seen else f"{name!r} is no name of a variable"
            context.add("env-name", at, why, "write letters, digits and _, each name once")
        elif _SET_BY_SERVICE.match(name):
            context.add(
                "env-reserved",
                at,
                f"the service sets {name} itself",
                "leave it out, and set baseOutputDirectory",
            )
        elif (name == "TF_USE_LEGACY_KERAS" and item.of("value", default="").lower() in ("1", "true")) or (
            name == "KERAS_BACKEND" and item.of("value", default="tensorflow") != "tensorflow"
        ):
            context.add(
                "env-keras", at, "the trainer needs Keras 3 on TensorFlow and would stop", "leave it out"
            )
        seen.add(name)


def _secrets(context: Context, pool: Pool) -> None:
    instead = "leave it out: the job's service account is its login; other secrets belong in Secret Manager"
    env = pool.value.get(pool.container, "env")
    for item in env.items() if env else ():
        name, text = item.of("name", default=""), item.of("value", default="")
        plain = _SECRET_NAME.search(name) and text and not text.startswith(("$(", "projects/", "sm://"))
        if name == "GOOGLE_APPLICATION_CREDENTIALS" or plain or _SECRET_VALUE.search(text):
            context.add(
                "secret", item.nearest("value"), f"{name} can be read by all who see the job", instead
            )
    for key in ("args", "command"):
        words = pool.value.get(pool.container, key)
        for item in words.items() if words else ():
            name, equals, text = item.text.partition("=")
            plain = bool(equals and text and _SECRET_NAME.search(name))
            if plain or _SECRET_VALUE.search(item.text) or _KEY_FILE.search(item.text):
                context.add("secret", item, "it can be read by all who see the job", instead)


def _policy(context: Context) -> None:
    job, policy = context.job, context.policy
    if policy.cmek and not job.kms_key:
        top = job.root
        instead = "write encryptionSpec: {kmsKeyName: projects/P/locations/REGION/keyRings/R/cryptoKeys/K}"
        if job.gcloud and job.root is job.spec:
            instead = "move the file's content below jobSpec and " + instead
        context.add_in(
            "policy-cmek", top, ("encryptionSpec", "kmsKeyName"), f"{policy.file} asks for a key", instead
        )
    if policy.perimeter and not (job.network or job.network_attachment):
        context.add_in(
            "policy-perimeter",
            job.spec,
            ("network",),
            f"{policy.file} says that the data is in a perimeter, and the job has a public network",
            "write network: projects/NUMBER/global/networks/NAME, or pscInterfaceConfig",
        )
    if policy.regions and context.region not in policy.regions:
        context.add(
            "policy-region",
            job.root,
            f"{policy.file} allows {', '.join(policy.regions)}, and the job runs in {context.region}",
            f"run it in {policy.regions[0]}",
            "",
        )


def quotas(context: Context) -> list[str]:
    """Returns the quota names that a job needs and how much of each, over all trials at once."""
    at_once = (context.job.study.parallel_trials or 1) if context.job.study else 1
    preemptible = context.job.scheduling.strategy in ("SPOT", "FLEX_START")
    wanted: dict[str, int] = {}
    table = tables.load("accelerators")
    for pool in context.job.active_pools:
        row = table["gpus"].get(pool.accelerator_type) or table["tpus"].get(hardware.tpu_of(pool)) or {}
        name = row.get("quota", "custom_model_training_cpus" if not pool.accelerator_type else "")
        machine = hardware.machines().get(pool.machine_type)
        each = hardware.gpu_count(pool) or hardware.tpu_chips(pool) or (machine.vcpus if machine else 0)
        if preemptible and name:
            name = name.replace("custom_model_training_", "custom_model_training_preemptible_")
        if name and each:
            wanted[name] = wanted.get(name, 0) + each * pool.replicas * at_once
    return [f"{name} {count}" for name, count in wanted.items()]
