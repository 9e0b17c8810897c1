"""`python -m trainer tune --study STUDY.yaml --config FILE`: a study on this machine. Adopters: leave.

keras-tuner and TensorFlow are imported after everything that can be wrong with the files was said.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer import environment, flags, logs, process, storage
from trainer.config import Config
from trainer.environment import join
from trainer.errors import UserError, nearest
from trainer.flags import CONFIG, Option
from trainer.tuning import fitting, spec, study_file
from trainer.tuning.record import Record
from trainer.tuning.spec import ALGORITHMS, Study

log = logging.getLogger("trainer")

OPTIONS = {
    **CONFIG,
    "study": Option("Study file: studySpec and counts, as the service takes it.", "FILE"),
    "max_trial_count": Option("Trials in all; default: the file's maxTrialCount.", "COUNT"),
    "parallel_trial_count": Option("Trials at once, each a process; default: the file's.", "COUNT"),
    "max_failed_trial_count": Option("Failed trials that end the study; default: the file's.", "COUNT"),
    "algorithm": Option(f"{', '.join(ALGORITHMS)}; default: the file's.", "NAME"),
    "stopping": Option("median ends bad trials early, none does not; default: the file's.", "NAME"),
    "best": Option("The best model afterwards: copy (default), retrain or none.", "WHAT"),
    "fresh": Option("Move an earlier study in the output folder aside and start over."),
}
_OWN = ("output_dir",)


@dataclass(frozen=True)
class Plan:
    """A study that is ready to run.

    Attributes:
        study: the study.
        config: the config that its trials share.
        base: flags of every trial.
        folder: the study's output folder.
        best: copy, retrain or none.
        fresh: move an earlier study aside.
    """

    study: Study
    config: Config
    base: tuple[str, ...]
    folder: str
    best: str = "copy"
    fresh: bool = False

    def record(self) -> Record:
        """Returns what is known of the study, from its folder.

        Raises:
            UserError: the folder holds another study, a run, or more trials than there are to be.
        """
        if self.fresh:
            return Record(self.folder, self.study, self.shared_config, self.config.seed, empty=True)
        record = Record(self.folder, self.study, self.shared_config, self.config.seed)
        count, most = len(record.trials), self.study.limits.max_trials
        if count > most:
            raise UserError(
                f"{self.folder}: the study has {count} trials already, got {most} as the trials in all: "
                f"expected --max_trial_count={count} or more, or --fresh to start over"
            )
        if not count and storage.exists(join(self.folder, "config.yaml")):
            raise UserError(
                f"{self.folder}: holds a run and no study; choose another --output_dir, or --fresh to move it"
                " aside"
            )
        return record

    @property
    def shared_config(self) -> dict[str, Any]:
        """The resolved config that all trials share, as plain values."""
        return {**self.config.model_dump(mode="json"), "output_dir": ""}


def main(argv: Sequence[str]) -> int:
    """Runs a study as the command line says."""
    plan = prepare(argv)
    if plan is None:
        return 0
    from trainer.tuning import distributed  # it needs this module

    me = distributed.service()
    if me is not None:
        logs.setup(on_service=me.on_service, label=me.label, debug="--debug" in argv)
        distributed.run(plan, me)
        return 0
    plan.record()  # a mistake in the folder is told before the imports, which take seconds
    with process.quiet_import("--debug" in argv):
        from trainer.tuning import session
    session.run(plan)
    return 0


def prepare(argv: Sequence[str]) -> Plan | None:
    """Reads a command line and checks everything that it names; None when it only prints.

    Raises:
        UserError: any mistake in flags, study or config.
        SystemExit: after `--help`.
    """
    given = flags.parse(argv, OPTIONS, "tune")
    if "study" not in given.options:
        raise UserError("--study is missing: name a study file, such as --study configs/jobs/hp_tuning.yaml")
    if given.print_config:
        from trainer import outputs

        print(outputs.resolved_yaml(given.config), end="")
        return None
    study, job = study_file.load(
        str(given.options["study"]), stopping=_choice(given, "stopping", ("median", "none"))
    )
    files, shared = split(argv)
    for name, value in flags.pairs(shared):
        tried = next((d.id for d in study.dimensions if _key(d.id) and _key(d.id) == _key(name)), "")
        if tried:
            raise UserError(
                f"--{name}={value}: the study tries values of {tried}; leave the flag out, or the parameter"
            )
    made = plan(
        study,
        files,
        shared,
        max_trials=_count(given, "max_trial_count"),
        parallel=_count(given, "parallel_trial_count"),
        max_failed=_count(given, "max_failed_trial_count"),
        algorithm=_choice(given, "algorithm", ALGORITHMS),
        best=_choice(given, "best", ("copy", "retrain", "none")) or "copy",
        fresh=given.fresh,
    )
    if job.pools and job.pools[0].args:
        log.info("trials take --config and the flags given here; the file's own args are for the service")
    return made


def plan(
    study: Study,
    files: Sequence[str],
    shared: Sequence[str],
    *,
    max_trials: int | None = None,
    parallel: int | None = None,
    max_failed: int | None = None,
    algorithm: str | None = None,
    best: str = "copy",
    fresh: bool = False,
) -> Plan:
    """Returns a study that is ready to run, once its parameters fit the config.

    Args:
        study: the study of the file.
        files: config files of the trials.
        shared: flags of every trial.
        max_trials, parallel, max_failed, algorithm: in place of the file's; None leaves it.
        best: copy, retrain or none.
        fresh: move an earlier study aside.

    Raises:
        UserError: a mistake in the config, the metric or a parameter.
    """
    most = max_trials or study.limits.max_trials
    for name, count in (("parallel_trial_count", parallel), ("max_failed_trial_count", max_failed)):
        if count is not None and count > most:
            raise UserError(f"Invalid --{name}: got {count}, expected at most {most}, the trials in all")
    study = spec.override(
        study, max_trials=max_trials, parallel=parallel, max_failed=max_failed, algorithm=algorithm
    )
    if study.algorithm == "grid" and any(d.kind == "double" for d in study.dimensions):
        name = next(d.id for d in study.dimensions if d.kind == "double")
        raise UserError(f"{study.file}: {name}: a grid search can't take a double, which has no steps")
    shared = [*shared]
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise UserError(f"Invalid --algorithm: got {algorithm!r}, expected {', '.join(ALGORITHMS)}")
    own = [name for name, _ in flags.pairs(shared) if _key(name) == "training.objective"]
    if not own:
        shared.append(f"--training.objective={study.metric}")
    config = fitting.check_against(study, files, shared)
    fitting.check_epochs(study, config.training.epochs)
    if (config.training.objective or "") != study.metric:
        raise UserError(
            f"--training.objective={config.training.objective}: the study's metricId is {study.metric}; "
            "give the same name, or leave the flag out"
        )
    if config.strategy.name == "multi_worker_mirrored":
        raise UserError(
            "strategy.name: multi_worker_mirrored: a trial of tune is one process (one_device, mirrored and "
            "tpu work); trials over several machines are run by the service, and by local on the study file"
        )
    folder = config.output_dir.rstrip("/") or f"runs/{study.name}"
    cluster = environment.service().workers > 1
    if cluster and not config.output_dir:  # the job's base output folder
        folder = environment.paths(config).output
    if storage.is_remote(folder) and not cluster:
        raise UserError(f"output_dir: got {folder}, expected a local folder: a study's processes share it")
    base = [*(f"--config={file}" for file in files), *shared, f"--output_dir={folder}"]
    return Plan(study, config, tuple(base), folder, best, fresh)


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns (config files, flags of every trial) of a command line."""
    files: list[str] = []
    shared: list[str] = []
    for name, value in flags.pairs(argv):
        normal = name.replace("-", "_")
        if normal == "config":
            files.append(value or "")
        elif normal not in OPTIONS:
            shared.append(f"--{name}" if value is None else f"--{name}={value}")
    return files, shared


def _key(name: str) -> str:
    try:
        return flags.find(name).path
    except UserError:
        return ""


def _count(given: flags.Arguments, name: str) -> int | None:
    text = given.options.get(name)
    if text is None:
        return None
    if not str(text).isdigit() or int(str(text)) < 1:
        raise UserError(f"Invalid --{name}: got {str(text)!r}, expected a whole number from 1")
    return int(str(text))


def _choice(given: flags.Arguments, name: str, choices: Sequence[str]) -> str | None:
    text = given.options.get(name)
    if text is not None and text not in choices:
        raise UserError(
            f"Invalid --{name}: got {str(text)!r}, expected {', '.join(choices)}{nearest(str(text), choices)}"
        )
    return None if text is None else str(text)


def trial_folder(plan: Plan, number: int) -> str:
    """Returns the folder of a trial."""
    return join(plan.folder, str(number))
