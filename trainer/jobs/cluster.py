"""Who is in a job, and the variables that the service sets for each of them. Adopters: leave.

Names and forms are the service's own: CLUSTER_SPEC for every replica, TF_CONFIG only where there are several,
AIP_* folders with a slash at the end and, in a study, below the trial's id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.jobs import hardware
from trainer.jobs.context import region_of
from trainer.jobs.spec import CUSTOM_JOB, PIPELINE, Job, Pool

Hosts = Mapping[int, Sequence[str]]  # host:port of each replica, by pool

PROJECT_NUMBER = "123456789012"  # where neither the file nor the caller tells one
_TASKS = ("chief", "worker", "ps", "evaluator")  # TF_CONFIG's names of pools 0 to 3
_OPEN_PORTS = [3333]


@dataclass(frozen=True)
class Replica:
    """One machine of a job.

    Attributes:
        pool: its worker pool.
        index: its place in the pool.
    """

    pool: Pool
    index: int

    @property
    def name(self) -> str:
        """Its name in logs and commands: chief, worker1 (the first of pool 1), reducer0, ps0, evaluator0."""
        if self.pool.index == 0:
            return "chief"
        return f"{self.pool.role}{self.index + (self.pool.index == 1)}"

    @property
    def task(self) -> str:
        """Its task type in TF_CONFIG."""
        return _TASKS[self.pool.index]


@dataclass(frozen=True)
class Identity:
    """What the service tells a job about itself.

    Attributes:
        base: base output folder without trailing slash; "" where the job has none.
        job_id: the custom job's id (of a trial: the trial's own custom job).
        project: project *number*.
        trial: id of the trial in a study, or "".
        metric_file: where a trial's reports go, or "" for the service's own place below /tmp.
        profiler_ports: of TensorFlow's profiler and of its handler, where the job has a TensorBoard.
        dataset: (format, URIs of the three splits) of a managed dataset, or None.
    """

    base: str = ""
    job_id: str = "1"
    project: str = PROJECT_NUMBER
    trial: str = ""
    metric_file: str = ""
    profiler_ports: tuple[int, int] = (6009, 6010)
    dataset: tuple[str, str, str, str] | None = None

    @property
    def folder(self) -> str:
        """The base folder of this job: of a trial, the one below that its id names."""
        return f"{self.base}/{self.trial}" if self.base and self.trial else self.base


def replicas(job: Job) -> list[Replica]:
    """Returns every machine of a job, pool by pool."""
    return [Replica(pool, index) for pool in job.active_pools for index in range(pool.replicas)]


def project_number(job: Job) -> str:
    """Returns the project number that a job's resources are named by, or a made-up one."""
    for name in (job.network, job.tensorboard):
        if match := re.match(r"projects/(\d+)/", name):
            return match[1]
    return PROJECT_NUMBER


def cluster_spec(job: Job, replica: Replica, hosts: Hosts, trial: str = "") -> str:
    """Returns CLUSTER_SPEC: every pool by name. `job` is a text in it, as in the service's own values."""
    task: dict[str, object] = {"type": replica.pool.name, "index": replica.index}
    if trial:
        task["trial"] = trial
    pool = replica.pool
    described = {
        "python_module": pool.python_module,
        "package_uris": list(pool.package_uris),
        "job_args": list(pool.args) if pool.is_package else [],
    }
    return json.dumps(
        {
            "cluster": {f"workerpool{index}": list(hosts[index]) for index in sorted(hosts)},
            "environment": "cloud",
            "task": task,
            "job": json.dumps(described, separators=(",", ":")),
            "open_ports": _OPEN_PORTS,
        }
    )


def tf_config(replica: Replica, hosts: Hosts, trial: str = "") -> str | None:
    """Returns TF_CONFIG, or None for a job of one machine, which has none.

    Whether reduction servers stand in it as `ps` is documented nowhere. They do here: that is the harder
    case, in which TensorFlow waits for ever unless the trainer takes them out.
    """
    if sum(map(len, hosts.values())) < 2:
        return None
    task: dict[str, object] = {"type": replica.task, "index": replica.index, "cloud": "local"}
    if trial:
        task["trial"] = trial
    cluster = {_TASKS[index]: list(hosts[index]) for index in sorted(hosts) if index < 3}
    return json.dumps({"cluster": cluster, "environment": "cloud", "job": {}, "task": task})


def variables(job: Job, replica: Replica, hosts: Hosts, who: Identity) -> dict[str, str]:
    """Returns the variables that the service sets for a replica, in the order of its documentation."""
    found: dict[str, str] = {}
    if who.base:
        for name, part in (
            ("AIP_MODEL_DIR", "model"),
            ("AIP_CHECKPOINT_DIR", "checkpoints"),
            ("AIP_TENSORBOARD_LOG_DIR", "logs"),
        ):
            found[name] = f"{who.folder}/{part}/"
    if who.dataset:
        names = ("AIP_DATA_FORMAT", "AIP_TRAINING_DATA_URI", "AIP_VALIDATION_DATA_URI", "AIP_TEST_DATA_URI")
        found.update(zip(names, who.dataset, strict=True))
    found["CLOUD_ML_PROJECT_ID"] = who.project
    found["CLOUD_ML_JOB_ID"] = who.job_id
    if who.trial:
        found["CLOUD_ML_TRIAL_ID"] = who.trial
        if who.metric_file:
            found["CLOUD_ML_HP_METRIC_FILE"] = who.metric_file
    found["CLUSTER_SPEC"] = cluster_spec(job, replica, hosts, who.trial)
    if config := tf_config(replica, hosts, who.trial):
        found["TF_CONFIG"] = config
    if job.tensorboard:
        found["AIP_TENSORBOARD_RESOURCE_NAME"] = job.tensorboard
        found["AIP_TENSORBOARD_API_URI"] = f"{region_of(job)}-aiplatform.googleapis.com"
        found["AIP_TF_PROFILER_PORT"], found["AIP_HTTP_HANDLER_PORT"] = map(str, who.profiler_ports)
    for field, name in (("experiment", "AIP_EXPERIMENT_NAME"), ("experimentRun", "AIP_EXPERIMENT_RUN_NAME")):
        if value := str(job.spec.of(field, default="")):
            found[name] = value
    if replica.pool.is_tpu:
        node = f"local-{replica.pool.name}-{replica.index}"
        found["TPU_NODE_NAME"] = node
        found["TPU_CONFIG"] = json.dumps(
            {"project": who.project, "zone": f"{region_of(job)}-a", "tpu_node_name": node}
        )
    return found


_REFERENCE = re.compile(r"\$\$\((\w+)\)|\$\((\w+)\)")


def expand(text: str, known: Mapping[str, str]) -> str:
    """Returns a value of the spec's `env` with `$(NAME)` put in; unknown names stay, `$$(NAME)` escapes."""

    def put_in(match: re.Match[str]) -> str:
        return f"$({match[1]})" if match[1] else known.get(match[2], match[0])

    return _REFERENCE.sub(put_in, text)


def environment(job: Job, replica: Replica, hosts: Hosts, who: Identity) -> dict[str, str]:
    """Returns the service's variables and those of the spec, whose `$(NAME)` refer to what stands before.

    A variable of the service's that the spec sets too is the service's: `check` refuses it.
    """
    found = variables(job, replica, hosts, who)
    own = {name: text for name, text in replica.pool.env.items() if name not in found}
    for name, text in own.items():
        found[name] = expand(text, found)
    return found


def reads_dataset(job: Job) -> bool:
    """Returns whether the service hands the rows of a managed dataset to the job."""
    return job.kind == PIPELINE and job.root.get("inputDataConfig") is not None


def accelerators(pool: Pool) -> str:
    """Returns the accelerators of one machine of a pool in words, or ""."""
    if pool.is_tpu:
        kind = hardware.tpu_of(pool)
        return f"{hardware.tpu_chips(pool)} {'cores' if kind in ('TPU_V2', 'TPU_V3') else 'chips'} of {kind}"
    return f"{pool.accelerator_count} {pool.accelerator_type}" if hardware.gpu_count(pool) else ""


def describe(job: Job) -> str:
    """Returns a job in one line: kind, name and pools."""
    pools = [f"{pool.replicas} {pool.role}" for pool in job.active_pools]
    kind = "job" if job.kind == CUSTOM_JOB else job.kind
    return f"{kind} {job.display_name!r}: {', '.join(pools)}"
