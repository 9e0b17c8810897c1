"""One trial as a process, with the arguments and variables that the service gives it. Adopters: leave."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trainer import storage
from trainer.environment import join
from trainer.errors import EXIT_INTERRUPTED
from trainer.process import PARENT
from trainer.tuning.measurements import Measurement
from trainer.tuning.stopping import CURVES, STOPPED

METRICS = "hypertune/output.metrics"
OTHERS = "others.json"
LOG = "trial.log"
GRACE_SECONDS = 120.0  # after SIGTERM: time to save a checkpoint
_SERVICE = ("AIP_", "CLOUD_ML_", "CLUSTER_SPEC", "TF_CONFIG", "KERASTUNER_")

__all__ = ["STOPPED"]
State = str  # running, completed, stopped (early, by the median rule), failed


@dataclass
class Trial:
    """What is known of one trial; plain values only, as it is kept in study.json.

    Attributes:
        id: its number, from 1, as the service counts.
        key: keras-tuner's name for it.
        values: the values of its parameters, by id.
        arguments: its own flags.
        state: running, completed, stopped (by the median rule: its value counts) or failed.
        seen: finished trials that the search knew when it chose the values.
        starts: times that its process was started.
        crashes: times that its process was lost to the machine.
        started, ended: seconds of the epoch; `started` is that of the first start.
        value, step: the measurement that counts.
        measurements: all of them: step, value, seconds.
        error: why it failed.
        pid, pid_started: its process, while it runs.
        epochs: epochs that Hyperband gives it, else 0.
        parent: id of the trial that it goes on from (Hyperband), else 0.
    """

    id: int
    key: str
    values: dict[str, Any]
    arguments: list[str] = field(default_factory=list)
    state: State = "running"
    seen: int = 0
    starts: int = 0
    crashes: int = 0
    started: float = 0.0
    ended: float = 0.0
    value: float | None = None
    step: int | None = None
    measurements: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    pid: int = 0
    pid_started: str = ""
    epochs: int = 0
    parent: int = 0

    @property
    def counts(self) -> bool:
        """Whether it has a value."""
        return self.state in ("completed", "stopped")

    @property
    def curve(self) -> list[Measurement]:
        """Its measurements, typed."""
        return [Measurement(**entry) for entry in self.measurements]

    def plain(self) -> dict[str, Any]:
        """Returns it as plain values."""
        return asdict(self)


class Running(Protocol):
    """A started trial."""

    @property
    def pid(self) -> int:
        """Its process, or 0."""
        ...

    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs."""
        ...

    def terminate(self) -> None:
        """Asks it to save and leave."""
        ...

    def kill(self) -> None:
        """Ends it at once."""
        ...


class Launcher(Protocol):
    """Starts trials, and knows where they leave what they report and print."""

    def metrics(self, trial: Trial, folder: str) -> str:
        """Returns the file that hypertune writes."""
        ...

    def log(self, trial: Trial, folder: str) -> str:
        """Returns the file with what the trial printed."""
        ...

    def verdict(self, trial: Trial) -> str:
        """Returns why the rules of a job, which has restarts of its own, let an ended trial fail; else ""."""
        ...

    def __call__(self, trial: Trial, folder: str) -> Running:
        """Starts a trial whose files go below `folder`."""
        ...


def environment_of(trial: int, folder: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables of a trial's process.

    Args:
        trial: its number.
        folder: its own folder.
        environ: variables of this process; those of the service are left out, because they say who *this*
            process is.
    """
    return {
        **lone_environment(environ),
        "CLOUD_ML_TRIAL_ID": str(trial),
        "CLOUD_ML_HP_METRIC_FILE": metric_file(folder),
        CURVES: join(folder, OTHERS),
    }


def lone_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables of a process that belongs to no job, and ends with this one."""
    kept = {name: value for name, value in environ.items() if not name.startswith(_SERVICE)}
    return {**kept, PARENT: str(os.getpid())}


def metric_file(folder: str) -> str:
    """Returns the file that hypertune writes, by the trial's folder; of a remote folder, one in /tmp."""
    if storage.is_remote(folder):  # hypertune knows local files only
        return f"/tmp/hypertune/{os.getpid()}/{folder.rpartition('/')[2]}/output.metrics"
    return os.path.abspath(join(folder, METRICS))


class Processes:
    """Launches `python -m trainer.task` with the flags of a trial.

    Args:
        base: flags of every trial; the trial's own come last, as the service appends them.
        module: what is run.
    """

    def __init__(self, base: Sequence[str], module: Sequence[str] = ("trainer.task",)) -> None:
        self.base, self.module = list(base), list(module)

    def command(self, trial: Trial) -> list[str]:
        """Returns the command line of a trial."""
        return [sys.executable, "-m", *self.module, *self.base, *trial.arguments]

    def metrics(self, trial: Trial, folder: str) -> str:
        """Returns the file that hypertune writes."""
        return metric_file(folder)

    def log(self, trial: Trial, folder: str) -> str:
        """Returns the file with what the trial printed."""
        return join(folder, LOG)

    def verdict(self, trial: Trial) -> str:
        """Returns "": one process has no rules; whether it was lost is to be told from its exit code."""
        return ""

    def __call__(self, trial: Trial, folder: str) -> Running:
        """Starts a trial; what it prints goes to trial.log of its folder (of a remote folder: to ours)."""
        process: Any
        settings: dict[str, Any] = {
            "env": environment_of(trial.id, folder),
            "stdin": subprocess.DEVNULL,
            "start_new_session": True,  # a Ctrl-C in the terminal is for the study, which passes it on
        }
        if storage.is_remote(folder):
            process = subprocess.Popen(self.command(trial), **settings)
        else:
            os.makedirs(folder, exist_ok=True)
            with open(join(folder, LOG), "ab") as log:
                process = subprocess.Popen(
                    self.command(trial), stdout=log, stderr=subprocess.STDOUT, **settings
                )
        return process


def inherit(source: str, folder: str) -> None:
    """Gives a trial that Hyperband promotes the checkpoints of the one that it goes on from.

    On an object store it trains from the start instead, to the same weights.
    """
    source, target = join(source, "checkpoints"), join(folder, "checkpoints")
    if not storage.is_remote(source) and os.path.isdir(source):
        shutil.copytree(source, target, dirs_exist_ok=True)


def is_lost(code: int) -> bool:
    """Returns whether an exit code tells of a machine that went away, and not of a trial that failed."""
    return code in (EXIT_INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGHUP, 137)


def started_at(pid: int) -> str:
    """Returns when a process started, or "" when it is gone or this system doesn't tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        fields = text.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


def end_leftover(trial: Trial, patience: float = GRACE_SECONDS) -> bool:
    """Ends a trial's process that outlived its study, and returns whether there was one.

    A process id alone could be somebody else's by now, so the start time must agree.
    """
    alive = lambda: bool(trial.pid_started) and started_at(trial.pid) == trial.pid_started  # noqa: E731
    if not alive():
        return False
    for number, limit in ((signal.SIGTERM, patience), (signal.SIGKILL, 10.0)):
        os.kill(trial.pid, number)
        end = time.monotonic() + limit
        while alive():
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        else:
            return True
    return True


def failure(folder: str, code: int, log: str = "", why: str = "") -> str:
    """Returns why a run in a folder failed, in its own words where it left some there or in its log.

    Args:
        folder: the run's folder.
        code: its exit code.
        log: what it printed, if that is in a file.
        why: what is said in the place of the exit code.
    """
    status = storage.read_json(join(folder, "status.json")) or {}
    if status.get("state") == "failed" and status.get("error"):
        return str(status["error"])
    lines = storage.read_text(log).strip().splitlines() if log and storage.exists(log) else []
    said = next((line for line in reversed(lines) if "ERROR" in line or "rror:" in line), "")
    return (why or f"exit code {code}") + (f": {said.strip()}" if said else "")


def finished(folder: str) -> bool:
    """Returns whether the run in a trial's folder came to its end."""
    status = storage.read_json(join(folder, "status.json")) or {}
    return bool(status.get("state") == "succeeded")
