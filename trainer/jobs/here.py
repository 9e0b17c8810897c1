"""How a job's replicas run on this machine: paths, programs and devices that stand in. Adopters: leave.

The job file's own arguments are kept, in their order. Only what can't be here is replaced: buckets by
folders, accelerators by the CPU, the container by this working tree.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainer import storage
from trainer.errors import UserError
from trainer.jobs import cluster, hardware, runconfig
from trainer.jobs.cluster import Hosts, Identity, Replica
from trainer.jobs.command import PLACEHOLDER
from trainer.jobs.spec import Job, Pool

SERVICE_VARIABLES = ("AIP_", "CLOUD_ML_", "TF_CONFIG", "CLUSTER_SPEC", "TPU_NODE_NAME", "TPU_CONFIG")
ENTRYPOINT = ("python", "-m", "trainer.task")  # of the trainer's own images
# Logical CPUs in the place of one machine's accelerators: the step is traced once for each, and eight of them
# took 250 s to start on two cores, four 45 s.
MOST_CPU_REPLICAS = 4
_PYTHON = re.compile(r"python(3(\.\d+)?)?$")
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@dataclass(frozen=True)
class Maps:
    """Folders of this machine in the place of buckets and mounts.

    Attributes:
        pairs: (prefix, folder), the longest prefix first.
    """

    pairs: tuple[tuple[str, str], ...] = ()

    def apply(self, text: str) -> str:
        """Returns a text with every mapped `gs://BUCKET/...` or `/gcs/BUCKET/...` in it put here."""
        for prefix, folder in self.pairs:
            text = re.sub(re.escape(prefix) + r"(?=$|[/,;\"'\s\]}])", folder.replace("\\", r"\\"), text)
        return text


def maps(texts: Sequence[str]) -> Maps:
    """Reads `gs://BUCKET[/FOLDER]=FOLDER` and `/mnt/...=FOLDER` texts.

    Raises:
        UserError: another form, or a folder that isn't there.
    """
    pairs: list[tuple[str, str]] = []
    for text in texts:
        prefix, equals, folder = text.partition("=")
        prefix = prefix.rstrip("/")
        bucket = re.fullmatch(r"(?:gs://|/gcs/)([\w.-]+(?:/.+)?)", prefix)
        if not equals or not folder or not (bucket or prefix.startswith("/mnt/")):
            raise UserError(
                f"Invalid --map: got {text!r}, expected gs://BUCKET=FOLDER, gs://BUCKET/FOLDER=FOLDER or "
                "/mnt/MOUNT=FOLDER"
            )
        if not os.path.isdir(folder):
            raise UserError(f"Invalid --map: {folder} is no folder here; make it, or name another")
        here = os.path.abspath(folder)
        pairs += [(f"gs://{bucket[1]}", here), (f"/gcs/{bucket[1]}", here)] if bucket else [(prefix, here)]
    return Maps(tuple(sorted(pairs, key=lambda pair: -len(pair[0]))))


@dataclass(frozen=True)
class Here:
    """This machine in the place of the service's.

    Attributes:
        folder: work folder: logs of the replicas and, unless a map says otherwise, the job's output.
        maps: folders in the place of buckets.
        extra: arguments put after those of every replica.
        cores: cores that the replicas share.
        grace: seconds between SIGTERM and the kill.
        dataset: (format, URIs of the three splits) of a managed dataset, or None.
        environ: what the processes inherit; the service's variables of it are left out.
    """

    folder: str
    maps: Maps = field(default_factory=Maps)
    extra: tuple[str, ...] = ()
    cores: int = field(default_factory=lambda: cores())
    grace: float = 30.0
    dataset: tuple[str, str, str, str] | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def base(self, job: Job) -> str:
        """Returns the folder that is the job's baseOutputDirectory here; "" where the job has none."""
        if not job.base_output:
            return ""
        mapped = self.maps.apply(job.base_output)
        if not storage.is_remote(mapped):
            return mapped
        return os.path.join(os.path.abspath(self.folder), "output")


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def runs_here(replica: Replica) -> bool:
    """Returns whether a replica gets a process: a reduction server doesn't."""
    return not replica.pool.is_reducer


def cpu_arguments(job: Job, pool: Pool) -> tuple[str, ...]:
    """Returns the flags that put CPUs in the place of a pool's accelerators; empty where there are none.

    One machine keeps its number of replicas, as logical CPUs, so that its batch divides as on the service;
    of several machines each has one.
    """
    count = hardware.tpu_chips(pool) if pool.is_tpu else hardware.gpu_count(pool)
    if not count or not pool.runs_trainer:
        return ()
    flags = [] if pool.is_tpu else ["--strategy.expect_gpus=0"]
    most = min(count, MOST_CPU_REPLICAS)
    logical = next(number for number in range(most, 0, -1) if count % number == 0)
    if pool.is_tpu:
        flags.append(f"--strategy.name={'mirrored' if logical > 1 else 'one_device'}")
    if logical > 1 and job.workers == 1:
        flags.append(f"--strategy.cpu_replicas={logical}")
    return tuple(flags)


def arguments(job: Job, pool: Pool, here: Here) -> list[str]:
    """Returns a pool's arguments as they are given here, without those of `here.extra`."""
    found = [here.maps.apply(text) for text in pool.args]
    if pool.runs_trainer:
        for place, text in enumerate(found):
            name, equals, value = text.partition("=")
            if name == "--config" and equals:
                found[place] = f"--config={_config(value, job, here)}"
            elif text == "--config" and place + 1 < len(found):
                found[place + 1] = _config(found[place + 1], job, here)
    return [*found, *cpu_arguments(job, pool)]


def _config(path: str, job: Job, here: Here) -> str:
    """Returns the local copy of a run config; if it names a mapped bucket, a copy with the folder instead."""
    local = path if os.path.isfile(path) else runconfig.local_twin(path, job.file)
    if local is None:
        if storage.is_remote(path):
            return path
        raise UserError(
            f"{job.file}: --config={path} is not here: run from the folder that holds it, or give --map"
        )
    with open(local, encoding="utf-8") as file:
        text = file.read()
    mapped = here.maps.apply(text)
    if mapped == text:
        return local
    copy = os.path.join(os.path.abspath(here.folder), "configs", os.path.basename(local))
    storage.write_text(copy, mapped)
    return copy


def command(job: Job, replica: Replica, here: Here, tuned: Sequence[str] = ()) -> list[str]:
    """Returns the command line of a replica.

    The service runs `python3 -m MODULE ARGS` in a prebuilt container, and ENTRYPOINT or `command` with `args`
    in another; the entry point of the trainer's images stands for that of any image.

    Args:
        job: the job.
        replica: which of its machines.
        here: this machine.
        tuned: the flags of a trial, which the service puts after the file's own.
    """
    pool = replica.pool
    if pool.is_package:
        program: tuple[str, ...] = ("python", "-m", pool.python_module)
    else:
        program = tuple(here.maps.apply(word) for word in pool.command) or ENTRYPOINT
    if _PYTHON.fullmatch(program[0]):
        program = (sys.executable, *program[1:])
    return [*program, *arguments(job, pool, here), *tuned, *here.extra]


def environ(
    job: Job, replica: Replica, hosts: Hosts, who: Identity, here: Here, processes: int
) -> dict[str, str]:
    """Returns the whole environment of a replica.

    Args:
        job: the job.
        replica: which of its machines.
        hosts: where each listens.
        who: what the job is told about itself.
        here: this machine.
        processes: how many share its cores.
    """
    found = {name: value for name, value in here.environ.items() if not name.startswith(SERVICE_VARIABLES)}
    found["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), found.get("PATH", os.defpath)])
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, found.get("PYTHONPATH", "")]))
    found["PYTHONUNBUFFERED"] = "1"
    found["CUDA_VISIBLE_DEVICES"] = ""
    for name, value in threads(here.cores, processes).items():
        found.setdefault(name, value)
    given = cluster.environment(job, replica, hosts, who)
    own = {
        name: here.maps.apply(value) if name in replica.pool.env else value for name, value in given.items()
    }
    return {**found, **own}


def threads(cores: int, processes: int) -> dict[str, str]:
    """Returns the variables by which processes share the cores of this machine.

    Without them each starts as many threads as the machine has cores. Twice the even share, since the chief
    works alone while features are fitted and the export is proven: two workers on two cores trained in 4.7 s
    with two threads each and in 6.4 s with one. TF_NUM_INTEROP_THREADS stays as it is: an exchange between
    workers waits in one of those threads.
    """
    share = str(min(cores, max(1, math.ceil(2 * cores / max(1, processes)))))
    return {"OMP_NUM_THREADS": share, "TF_NUM_INTRAOP_THREADS": share}


def notes(job: Job, here: Here) -> list[str]:
    """Returns what is otherwise here than on the service, in words."""
    said: list[str] = []
    programs: dict[str, str] = {}  # pools by what stands in for their containers
    for pool in job.active_pools:
        where = f"pool {pool.index} ({pool.role})"
        if pool.is_reducer:
            said.append(
                f"{where}: {pool.replicas} reduction servers are not run: they serve NCCL, which CPUs lack"
            )
            continue
        if what := cluster.accelerators(pool):
            flags = " ".join(cpu_arguments(job, pool))
            said.append(f"{where}: the CPU in the place of {what}" + (f": {flags}" if flags else ""))
        packages = ", ".join(pool.package_uris)
        program = f"this working tree in the place of {packages}" if packages else ""
        program = program or f"this environment's Python in the place of {pool.image or 'an image'}"
        programs[program] = f"{programs[program]}, {pool.role}" if program in programs else pool.role
    said += [f"{roles}: {program}" for program, roles in programs.items()]
    if job.base_output and storage.is_remote(here.maps.apply(job.base_output)):
        said.append(f"{here.base(job)} in the place of {job.base_output} (--map says otherwise)")
    said += [
        f"{bucket} is not mapped: it is read and written where it is (--map {bucket}=FOLDER says otherwise)"
        for bucket in unmapped(job, here)
    ]
    if cluster.reads_dataset(job):
        said.append(
            f"managed dataset: {here.dataset[1]} and the other two splits"
            if here.dataset
            else "no managed dataset here: the config's own data.source stands in (--dataset gives one)"
        )
    return said


def unmapped(job: Job, here: Here) -> list[str]:
    """Returns the buckets in the arguments that no map replaces."""
    texts = [text for pool in job.active_pools for text in (*arguments(job, pool, here), *here.extra)]
    return sorted({f"gs://{bucket}" for text in texts for bucket in re.findall(r"gs://([\w.-]+)", text)})


def placeholders(job: Job, here: Here) -> list[str]:
    """Returns the flags that would read or write where the shipped files leave a name to be filled in.

    Of a flag that is given again only the last counts, as in the trainer.
    """
    found: list[str] = []
    for pool in job.active_pools:
        last: dict[str, list[str]] = {}
        name = ""
        for text in (*arguments(job, pool, here), *here.extra):
            if text.startswith("--"):
                name = text.partition("=")[0].replace("-", "_")
                last[name] = []
            last.setdefault(name, []).append(text)
        texts = [text for texts in last.values() for text in texts]
        found += [text for text in texts if "://" in text and PLACEHOLDER.search(text)]
    return found
