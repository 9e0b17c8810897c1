"""What the training service told this process, and where a run's files go. Adopters: leave.

The service speaks through environment variables: AIP_* (folders), CLUSTER_SPEC and TF_CONFIG (who trains
together, which trial this is), CLOUD_ML_* (the job). On a laptop none of them is set. They are read
leniently where the service's own values differ between jobs, and strictly where a mistake would hang.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainer import storage
from trainer.config import Config
from trainer.errors import UserError

_CHIEFS = ("chief", "master")
_ROLES = ("chief", "master", "worker", "ps", "evaluator")


# --- folders ----------------------------------------------------------------------------------------


def join(folder: str, *names: str) -> str:
    """Returns names below a folder with one slash between them, for local paths and gs:// alike."""
    path = folder
    for name in names:
        path = f"{path.rstrip('/')}/{name.strip('/')}"
    return path


def _trimmed(folder: str) -> str:
    """Takes trailing slashes off, but leaves the root and `gs://` whole."""
    trimmed = folder.strip().rstrip("/")
    return folder.strip() if not trimmed or trimmed.endswith(":") else trimmed


@dataclass(frozen=True)
class Paths:
    """The folders of one run, without trailing slashes.

    Attributes:
        output: folder of config.yaml, metrics.json, report.html and the like.
        model: folder of the SavedModel.
        checkpoints: folder of the checkpoints.
        logs: folder of the TensorBoard logs.
        origins: what each of these came from (a variable or a key), for messages.
    """

    output: str
    model: str
    checkpoints: str
    logs: str
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    def file(self, name: str) -> str:
        """Returns the path of a file below the output folder."""
        return join(self.output, name)


def paths(config: Config, environ: Mapping[str, str] = os.environ) -> Paths:
    """Returns the folders of a run.

    AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and AIP_TENSORBOARD_LOG_DIR win for their parts; a trial's AIP_*
    hold its id already. The output folder is `output_dir`; else the folder that the AIP_* folders share;
    else runs/<name>. The last and `output_dir` are the same for all trials of a study, so a trial works
    in a folder below, named by its id.
    """
    given = {
        part: (_trimmed(environ[name]), name)
        for part, name in (
            ("model", "AIP_MODEL_DIR"),
            ("checkpoints", "AIP_CHECKPOINT_DIR"),
            ("logs", "AIP_TENSORBOARD_LOG_DIR"),
        )
        if environ.get(name, "").strip()
    }
    shared = [(folder, name) for part, (folder, name) in given.items() if folder.endswith(f"/{part}")]
    if not config.output_dir and shared:
        folder, origin = shared[0]
        output = _trimmed(folder.rpartition("/")[0])
    else:
        origin = "output_dir"
        output = _trimmed(config.output_dir) or f"runs/{config.name}"
        if trial := trial_id(environ):
            output = join(output, trial)
    places = {
        part: given.get(part, (join(output, part), origin)) for part in ("model", "checkpoints", "logs")
    }
    return Paths(
        output=output,
        **{part: folder for part, (folder, _) in places.items()},
        origins={"output": origin, **{part: name for part, (_, name) in places.items()}},
    )


def check_writable(folder: str, origin: str) -> None:
    """Makes a folder if need be, and writes and deletes a small file in it.

    Better now than after hours of training.

    Args:
        folder: local path or gs://.
        origin: the variable or key that named it, for the message.

    Raises:
        UserError: the folder can't be written, with the reason.
    """
    probe = join(folder, f".write-probe-{socket.gethostname()}-{os.getpid()}")
    remote_errors: tuple[type[Exception], ...] = ()
    if storage.is_remote(folder):
        import tensorflow as tf

        remote_errors = (tf.errors.OpError,)
    try:
        storage.write_text(probe, "")
        if storage.is_remote(folder):
            tf.io.gfile.remove(probe)
        else:
            os.unlink(probe)
    except OSError as error:
        raise UserError(f"{origin}: can't write to {folder}: {error.strerror or error}") from error
    except remote_errors as error:
        raise UserError(f"{origin}: can't write to {folder}: {error}") from error


def check_paths(folders: Paths) -> None:
    """Tests every folder of a run for write access; see `check_writable`."""
    for part in ("output", "model", "checkpoints", "logs"):
        check_writable(getattr(folders, part), folders.origins.get(part, "output_dir"))


def lost_with_machine(folders: Paths, service: Service) -> str | None:
    """Returns a warning when the run's files would vanish together with the service's machine, else None."""
    if not service.on_service:
        return None
    for part in ("model", "checkpoints", "output"):
        folder = getattr(folders, part)
        if folders.origins.get(part, "").startswith("AIP_"):  # the service's own choice, or a stand-in for it
            continue
        if not storage.is_remote(folder) and not folder.startswith(("/gcs/", "/mnt/")):
            return (
                f"{part} folder {folder!r} is on the machine's own disk and goes when the job ends: set the "
                "job's baseOutputDirectory, or output_dir to gs://BUCKET/FOLDER"
            )
    return None


# --- the service ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Service:
    """Who this process is among those that train together.

    Attributes:
        on_service: whether this is a job of the training service.
        job_id: the job's id, or None.
        trial_id: the trial's id in a tuning study, or None.
        role: "chief", "worker", "ps" or "evaluator"; a lone process is "chief".
        worker_index: global rank: the chief is 0, worker i is i + 1 (i in a cluster without chief);
            -1 for a process that doesn't train.
        is_chief: whether this process reports and writes for all.
        workers: processes that train together, the chief among them.
        hosts: their addresses, by rank.
    """

    on_service: bool = False
    job_id: str | None = None
    trial_id: str | None = None
    role: str = "chief"
    worker_index: int = 0
    is_chief: bool = True
    workers: int = 1
    hosts: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name of this process in log lines; empty for a lone one."""
        if self.role == "evaluator":
            return "evaluator"
        if self.workers == 1:
            return ""
        return "chief" if self.is_chief else f"{self.role} {self.worker_index}"


def _object(text: str, name: str) -> dict[str, Any]:
    """Reads a JSON object from a variable; nothing, blanks and null are an empty one."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{name} is not JSON: {error.msg} at character {error.pos} of {_short(text)}"
        ) from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{name}: expected a JSON object, got {_short(text)}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."


def _lenient(environ: Mapping[str, str], name: str) -> dict[str, Any]:
    """Reads a variable's JSON object; anything else is an empty one."""
    try:
        return _object(environ.get(name, ""), name)
    except UserError:
        return {}


def on_service(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether this process is part of a job of the training service."""
    if any(environ.get(name) for name in ("CLOUD_ML_JOB_ID", "CLOUD_ML_PROJECT_ID", "CLOUD_ML_JOB")):
        return True
    return any(
        _lenient(environ, name).get("environment") == "cloud" for name in ("CLUSTER_SPEC", "TF_CONFIG")
    )


def trial_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the id of this trial in a tuning study, or None outside of one."""
    if trial := environ.get("CLOUD_ML_TRIAL_ID", "").strip():
        return trial
    for name in ("CLUSTER_SPEC", "TF_CONFIG"):
        task = _lenient(environ, name).get("task")
        trial = str(task.get("trial") or "").strip() if isinstance(task, dict) else ""
        if trial:
            return trial
    return None


def _cluster(spec: dict[str, Any], name: str) -> dict[str, list[str]]:
    """Returns the addresses of each kind of task; pools and kinds without any are left out."""
    cluster = spec.get("cluster") or {}
    if not isinstance(cluster, dict):
        raise UserError(f"{name}: cluster: expected an object of address lists, got {_short(cluster)}")
    result: dict[str, list[str]] = {}
    for kind, hosts in cluster.items():
        if isinstance(hosts, dict):  # TensorFlow also takes {"0": address, ...}
            hosts = list(hosts.values())
        if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
            raise UserError(
                f"{name}: cluster.{kind}: expected a list of host:port texts, got {_short(hosts)}"
            )
        if hosts:
            result[kind] = hosts
    return result


def _training_cluster(environ: Mapping[str, str]) -> tuple[dict[str, list[str]], dict[str, Any], str]:
    """Returns (cluster, task, variable): TF_CONFIG's, else what CLUSTER_SPEC's pools mean.

    Pool 0 is the chief and pool 1 the workers; pool 2 (reduction servers) and pool 3 train nothing.
    """
    config = _object(environ.get("TF_CONFIG", ""), "TF_CONFIG")
    cluster = _cluster(config, "TF_CONFIG")
    if cluster:
        return cluster, config.get("task") or {}, "TF_CONFIG"
    spec = _lenient(environ, "CLUSTER_SPEC")
    pools = _cluster(spec, "CLUSTER_SPEC")
    if not pools.get("workerpool1"):
        return {}, {}, "CLUSTER_SPEC"
    roles = {"workerpool0": "chief", "workerpool1": "worker", "workerpool2": "ps", "workerpool3": "evaluator"}
    task = spec.get("task") or {}
    if isinstance(task, dict):
        task = {**task, "type": roles.get(str(task.get("type")), task.get("type"))}
    return {roles.get(pool, pool): hosts for pool, hosts in pools.items()}, task, "CLUSTER_SPEC"


def service(environ: Mapping[str, str] = os.environ) -> Service:
    """Returns who this process is, from CLUSTER_SPEC, TF_CONFIG and CLOUD_ML_*.

    Absent, empty, `{}` and a cluster of a single process all mean a lone process.

    Raises:
        UserError: TF_CONFIG is broken or contradicts itself, naming the wrong part.
    """
    cluster, task, name = _training_cluster(environ)
    lone = Service(
        on_service=on_service(environ),
        job_id=environ.get("CLOUD_ML_JOB_ID") or None,
        trial_id=trial_id(environ),
    )
    if not cluster:
        return lone
    chiefs = [kind for kind in _CHIEFS if kind in cluster]
    chief_hosts = [host for kind in chiefs for host in cluster[kind]]
    if len(chief_hosts) > 1:
        raise UserError(
            f"{name}: cluster: expected one chief, got {len(chief_hosts)} ({', '.join(chief_hosts)})"
        )
    workers = cluster.get("worker", [])
    role, index = _task(task, cluster, name)
    offset = len(chief_hosts)
    rank = {"chief": 0, "worker": offset + index}.get(role, -1)
    return replace(
        lone,
        role=role,
        worker_index=rank,
        is_chief=rank == 0,
        workers=max(1, offset + len(workers)),
        hosts=(*chief_hosts, *workers),
    )


def _task(task: object, cluster: dict[str, list[str]], name: str) -> tuple[str, int]:
    """Returns this process's role and its place among those of the role."""
    if not isinstance(task, dict):
        raise UserError(f"{name}: task: expected an object with type and index, got {_short(task)}")
    kind = task.get("type")
    if not kind:
        raise UserError(f"{name}: task.type is missing; expected one of {', '.join(cluster)}")
    if kind != "evaluator" and (kind not in cluster or kind not in _ROLES):
        raise UserError(f"{name}: task.type: got {kind!r}, expected one of {', '.join(cluster)}")
    given = task.get("index")
    if given is None and kind in _CHIEFS:  # there is only one
        given = 0
    if given is None:
        raise UserError(f"{name}: task.index is missing; it says which of the cluster's {kind} tasks this is")
    try:
        index = int(given)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: task.index: got {given!r}, expected a whole number") from error
    count = len(cluster.get(kind, [])) or 1
    if not 0 <= index < count and kind != "evaluator":
        raise UserError(
            f"{name}: task.index: got {index}, expected 0 to {count - 1}: cluster.{kind} has {count}"
        )
    return ("chief" if kind == "master" else kind), index


def clean_tf_config(environ: MutableMapping[str, str] = os.environ) -> None:
    """Rewrites TF_CONFIG so that TensorFlow can take it as it is; call it before TensorFlow is imported.

    TensorFlow stops at an empty TF_CONFIG, waits for ever for a `ps` (a reduction server speaks another
    protocol), and lets MirroredStrategy look for another machine's devices when a lone process has one. So
    only the chief and the workers stay, and a process alone, or one that evaluates, keeps no TF_CONFIG.

    Raises:
        UserError: TF_CONFIG is broken, or this process is a parameter server.
    """
    me = service(environ)
    if me.role == "ps":
        raise UserError(
            "this process is a 'ps' of the cluster (parameter server), and this trainer needs none, because "
            "every worker keeps all weights: take pool 2 out of the job, or give it the image of the "
            "reduction server, which makes the exchange between GPU workers faster"
        )
    cluster, _, _ = _training_cluster(environ)
    if me.trial_id:  # it may stand in TF_CONFIG alone
        environ["CLOUD_ML_TRIAL_ID"] = me.trial_id
    if me.workers == 1 or me.role == "evaluator":
        was_service = me.on_service
        environ.pop("TF_CONFIG", None)
        if was_service and not on_service(environ):
            environ["CLOUD_ML_JOB"] = "{}"
        return
    has_chief = bool(set(_CHIEFS) & set(cluster))
    training = (
        {"chief": [me.hosts[0]], "worker": list(me.hosts[1:])} if has_chief else {"worker": list(me.hosts)}
    )
    index = me.worker_index - 1 if has_chief and me.role == "worker" else me.worker_index
    environ["TF_CONFIG"] = json.dumps(
        {
            **_object(environ.get("TF_CONFIG", ""), "TF_CONFIG"),
            "cluster": {kind: hosts for kind, hosts in training.items() if hosts},
            "task": {"type": me.role, "index": index},
        }
    )
