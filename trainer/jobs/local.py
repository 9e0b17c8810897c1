"""`python -m trainer local JOB.yaml`: the job file on this machine, a process a replica. Adopters: leave.

Variables, arguments, exit codes and restarts are the service's; buckets, accelerators and the container are
replaced, which is said. TensorFlow is imported by the replicas alone.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TextIO

from trainer import storage
from trainer.errors import UserError
from trainer.flags import Option
from trainer.jobs import check, cluster, command, loading, processes
from trainer.jobs import here as placing
from trainer.jobs.cluster import Identity
from trainer.jobs.here import Here
from trainer.jobs.processes import Loss, Outcome, Show, Stop
from trainer.jobs.spec import PIPELINE, TUNING_JOB, Job, Parameter

OPTIONS = {
    "map": Option(
        "A folder in the place of a bucket or of a part of it, such as gs://my-bucket/flights=data/flights.",
        "PREFIX=FOLDER",
    ),
    "output": Option("Work folder, with logs and output; default: runs/local/NAME.", "FOLDER"),
    "fresh": Option("Move an earlier run in the work folder aside; without it the job goes on there."),
    "preempt": Option(
        "Take a machine away (SIGTERM, then -9) after a time, or at a text in any log: chief@30s.",
        "REPLICA@WHEN",
    ),
    "kill": Option("Lose a machine at once (-9) after a time or at a text: worker1@30s.", "REPLICA@WHEN"),
    "grace": Option("Seconds between SIGTERM and -9; default 30.", "SECONDS"),
    "cores": Option("Cores that the replicas share; default: all.", "CORES"),
    "dataset": Option(
        "A pipeline's managed dataset: bq://PROJECT.DATASET, or a folder with training-*, validation-* and "
        "test-* files.",
        "PLACE",
    ),
    "max_trial_count": Option("A study's trials; default: the file's.", "COUNT"),
    "parallel_trial_count": Option("A study's trials at once; default: the file's.", "COUNT"),
    "algorithm": Option("A study's search: bayesian, random, grid or hyperband.", "NAME"),
    "stopping": Option("median ends a study's bad trials early, none does not; default: the file's.", "NAME"),
    "best": Option("A study's best model: copy (default), retrain or none.", "WHAT"),
    "dry_run": Option("Print the command and the variables of each replica as JSON, and start nothing."),
    **command.ASSIGN,
}
_ABOUT = (
    "Runs a job file on this machine, one process a replica, as the service would. What follows -- is put "
    "after the arguments of every replica."
)
_EXAMPLE = "configs/jobs/custom_job.yaml --map gs://my-bucket/flights=data/flights -- --training.epochs=1"
_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def main(argv: Sequence[str]) -> int:
    """Runs a job file here; returns 0 when it has succeeded, else the exit code that ended it."""
    own, extra = _cut(argv)
    given = command.parse(own, OPTIONS, "local", _ABOUT, _EXAMPLE)
    if len(given.files) != 1:
        raise UserError(f"local runs one job file, got {len(given.files)}: {', '.join(given.files)}")
    job = loading.load(given.files[0], given.all("set"))
    if not any(placing.runs_here(replica) for replica in cluster.replicas(job)):
        raise UserError(f"{job.file}: no pool of it runs a program")
    folder = given.get("output") or os.path.join("runs", "local", _folder_name(job.display_name))
    cores = given.number("cores")
    here = Here(
        folder=folder,
        maps=placing.maps(given.all("map")),
        extra=tuple(extra),
        cores=max(1, int(cores)) if cores else placing.cores(),
        grace=given.number("grace") or 30.0,
        dataset=dataset(given.get("dataset") or ""),
    )
    losses = [loss(text, "preempted") for text in given.all("preempt")]
    losses += [loss(text, "killed") for text in given.all("kill")]
    trial, tuned = ("1", middle(job)) if job.study else ("", ())
    if given.switch("dry_run"):
        print(json.dumps(plan(job, here, trial, tuned), indent=1))
        return 0
    if strangers := placing.placeholders(job, here):
        place = strangers[0].rpartition("=")[2].rpartition("/")[0]
        raise UserError(
            f"{job.file}: {strangers[0]} is left to be filled in: give --map {place}=FOLDER for a folder of "
            "this machine in its place (data/flights, which `make data` makes), or put in your own"
        )
    if given.switch("fresh"):
        _set_aside(job, here)
    if job.study and job.kind == TUNING_JOB:
        return _study(job, here, given, losses)
    screen = Screen([replica.name for replica in cluster.replicas(job)])
    for line in _about(job, here, given.all("set")):
        screen.show("local", line)
    with interruptible() as stop:
        screen.broken = stop.set
        outcome = processes.run(
            job, here, trial=trial, tuned=tuned, losses=losses, stop=stop, show=screen.show
        )
    return _end(job, outcome, screen.show)


def _study(job: Job, here: Here, given: command.Command, losses: Sequence[Loss]) -> int:
    """Runs a study as the service does: every trial is a job of its own."""
    from trainer import process
    from trainer.tuning import jobs as studies

    screen = Screen([f"trial 00 {replica.name}" for replica in cluster.replicas(job)])
    for line in placing.notes(job, here):
        screen.show("local", line)
    names = ("max_trial_count", "parallel_trial_count", "algorithm", "stopping", "best")
    for name, choices in (("stopping", ("median", "none")), ("best", ("copy", "retrain", "none"))):
        if given.get(name) is not None:
            given.choice(name, choices)
    options = {name: given.get(name) for name in names}
    ready = studies.prepare(job, here, options, screen.show, losses=losses)
    ready.plan.record()  # a mistake in the folder is told before the imports, which take seconds
    with process.quiet_import():
        from trainer.tuning import session
    session.run(ready.plan, ready.launch)
    return 0


def _cut(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns what stands before and after `--`."""
    words = list(argv)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def _folder_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "job"


def _set_aside(job: Job, here: Here) -> None:
    base = here.base(job)
    for folder in [here.folder, *([base] if base and not storage.is_remote(base) else [])]:
        storage.move_aside(folder)


def _about(job: Job, here: Here, assignments: Sequence[str]) -> list[str]:
    running = [replica.name for replica in cluster.replicas(job) if placing.runs_here(replica)]
    threads = placing.threads(here.cores, len(running))["TF_NUM_INTRAOP_THREADS"]
    lines = [
        f"{cluster.describe(job)}; here {', '.join(running)} on {here.cores} cores, threads each: {threads}",
        *placing.notes(job, here),
    ]
    found, _ = check.check(job.file, assignments=assignments)
    errors = [finding for finding in found if finding.severity == "error"]
    lines += [f"check: {finding}" for finding in errors]
    if job.study:  # of a pipeline
        trials = job.study.max_trials or 1
        lines.append(f"one trial of the study's {trials}: {' '.join(middle(job))}")
    return lines


def _end(job: Job, outcome: Outcome, show: Show) -> int:
    starts = {name: count for name, count in outcome.starts.items() if count > 1}
    more = ", ".join(f"{name} {count} starts" for name, count in starts.items())
    show(
        "local",
        f"{outcome.state} after {outcome.seconds:.1f} s: {outcome.reason}{f' ({more})' if more else ''}",
    )
    if outcome.base:
        show("local", f"output {outcome.base}")
    show("local", f"logs {outcome.logs}")
    if outcome.state == "SUCCEEDED" and job.kind == PIPELINE and job.root.get("modelToUpload"):
        model = os.path.join(outcome.base, "model", "saved_model.pb") if outcome.base else ""
        if not os.path.isfile(model):
            raise UserError(
                f"{job.file}: modelToUpload: the service would have nothing to upload: the job "
                + (f"left no {model}" if model else "has no baseOutputDirectory")
            )
        show("local", f"the service would upload {os.path.dirname(model)} now")
    return outcome.exit_code


# --- what the options mean ----------------------------------------------------------------------------


def loss(text: str, how: str) -> Loss:
    """Reads `REPLICA@WHEN`: WHEN is a time such as 30s or 2m, or a text to wait for in the logs.

    Args:
        text: the option's value.
        how: "preempted" or "killed".

    Raises:
        UserError: another form.
    """
    flag = "preempt" if how == "preempted" else "kill"
    name, at, when = text.partition("@")
    if not name or not at or not when:
        raise UserError(
            f"Invalid --{flag}: got {text!r}, expected REPLICA@WHEN: a time, as in worker1@30s, or a text to "
            "wait for in the logs, as in worker1@'epoch 2'"
        )
    if place := re.fullmatch(r"workerpool(\d)-(\d+)", name):  # as the service's console has it
        role = ("chief", "worker", "ps", "evaluator")[min(int(place[1]), 3)]
        name = role if role == "chief" else f"{role}{int(place[2]) + (role == 'worker')}"
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|min|h)?", when):
        return Loss(name, how, after=float(match[1]) * _UNITS[match[2] or "s"])
    return Loss(name, how, text=when)


def dataset(place: str) -> tuple[str, str, str, str] | None:
    """Returns (format, URIs of training, validation and test) of a managed dataset; None for "".

    Raises:
        UserError: a folder that doesn't hold the three splits in one format.
    """
    if not place:
        return None
    splits = ("training", "validation", "test")
    if place.startswith("bq://"):
        return ("bigquery", *(f"{place.rstrip('.')}.{split}" for split in splits))  # type: ignore[return-value]
    for form in ("csv", "jsonl"):
        wildcards = [os.path.join(os.path.abspath(place), f"{split}-*.{form}") for split in splits]
        if all(glob.glob(wildcard) for wildcard in wildcards):
            return (form, *wildcards)  # type: ignore[return-value]
    raise UserError(
        f"Invalid --dataset: got {place!r}, expected bq://PROJECT.DATASET or a folder with training-*, "
        "validation-* and test-* files, all .csv or all .jsonl"
    )


def middle(job: Job) -> tuple[str, ...]:
    """Returns a trial's flags with each parameter in the middle of its range, as the service writes them."""
    assert job.study is not None
    return tuple(f"--{parameter.id}={_middle(parameter)}" for parameter in job.study.parameters)


def _middle(parameter: Parameter) -> str:
    if parameter.values:
        return str(parameter.values[(len(parameter.values) - 1) // 2])
    low, high = parameter.low or 0.0, parameter.high or 0.0
    value = (low * high) ** 0.5 if "LOG" in parameter.scale and low > 0 else (low + high) / 2
    return str(round(value)) if parameter.kind == "integer" else f"{value:.6g}"


def plan(job: Job, here: Here, trial: str = "", tuned: Sequence[str] = ()) -> dict[str, object]:
    """Returns what each replica would be started with: its command and the service's variables.

    Addresses are those of a service: no port of this machine is taken for a plan.
    """
    hosts: dict[int, list[str]] = {}
    for replica in cluster.replicas(job):
        addresses = hosts.setdefault(replica.pool.index, [])
        addresses.append(f"{replica.pool.name}-{replica.index}:2222")
    who = Identity(
        base=here.base(job),
        project=cluster.project_number(job),
        trial=trial,
        dataset=here.dataset if cluster.reads_dataset(job) else None,
    )
    found = {
        replica.name: {
            "command": shlex.join(placing.command(job, replica, here, tuned)),
            "variables": cluster.environment(job, replica, hosts, who),
        }
        for replica in cluster.replicas(job)
        if placing.runs_here(replica)
    }
    return {"job": cluster.describe(job), "notes": placing.notes(job, here), "replicas": found}


# --- the screen -----------------------------------------------------------------------------------------


class Screen:
    """Writes the lines of all replicas, each with its name in front; in colour on a terminal.

    Attributes:
        broken: called when nobody reads what is written any more.
    """

    def __init__(self, names: Sequence[str], stream: TextIO | None = None) -> None:
        """Makes one.

        Args:
            names: the replicas, in order.
            stream: where to; standard output by default.
        """
        self._stream = stream or sys.stdout
        self._width = max(map(len, [*names, "local"]))
        colour = (
            self._stream.isatty() and os.environ.get("TERM", "") != "dumb" and not os.environ.get("NO_COLOR")
        )
        self._colours = (
            {"local": 1, **{name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}}
            if colour
            else {}
        )
        self.broken = lambda: None

    def show(self, name: str, line: str) -> None:
        """Writes a line of a replica's; of a JSON line, as the service takes it, the message."""
        text, severity = _message(line)
        prefix = f"{name:<{self._width}} |"
        if self._colours:
            prefix = f"\033[{self._colours.get(name, 0)}m{prefix}\033[0m"
            if severity in ("WARNING", "ERROR", "CRITICAL"):
                text = "\n".join(
                    f"\033[{33 if severity == 'WARNING' else 31}m{part}\033[0m" for part in text.split("\n")
                )
        try:
            self._stream.write("".join(f"{prefix} {part}\n" for part in text.split("\n")))
            self._stream.flush()
        except BrokenPipeError:
            self.broken()


def _message(line: str) -> tuple[str, str]:
    """Returns (text, severity) of a line; a JSON line of the service's form gives its message."""
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and isinstance(entry.get("message"), str):
                severity = str(entry.get("severity", ""))
                kind = f"{severity.lower()}: " if severity in ("WARNING", "ERROR", "CRITICAL") else ""
                return f"{kind}{entry['message']}", severity
    return line, ""


@contextlib.contextmanager
def interruptible() -> Iterator[Stop]:
    """Yields what Ctrl-C, SIGTERM and a closed terminal set: the first asks to end, the second kills."""
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.now = stop.is_set()
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
