"""`local` on a study: each trial is the job that the file asks for, as on the service. Adopters: leave."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trainer import environment, flags, storage
from trainer.environment import join
from trainer.errors import EXIT_INTERRUPTED, UserError
from trainer.jobs import here as placing
from trainer.jobs import processes
from trainer.jobs.here import Here
from trainer.jobs.processes import Loss, Stop
from trainer.jobs.spec import Job
from trainer.tuning import study_file
from trainer.tuning.command import Plan, plan
from trainer.tuning.stopping import CURVES
from trainer.tuning.trial import OTHERS, Running, Trial

log = logging.getLogger("trainer")

Show = Callable[[str, str], None]


class JobTrials:
    """Launches trials by the process layer of `local`: one process, or one a machine of the job.

    Args:
        job: the study's job.
        here: how it runs on this machine.
        show: takes (replica, line) of what the trials print; the trial's number is put in front.
        losses: machines to lose, each in the first trial that comes to its moment.
    """

    def __init__(self, job: Job, here: Here, show: Show | None = None, losses: Sequence[Loss] = ()) -> None:
        self._job, self._here, self._show, self._losses = job, here, show, list(losses)

    def metrics(self, trial: Trial, folder: str) -> str:
        """Returns the file in which the trial's chief reports."""
        return self._log_of(trial, "metrics", "chief", "output.metrics")

    def log(self, trial: Trial, folder: str) -> str:
        """Returns the log of the trial's chief."""
        return self._log_of(trial, "chief.log")

    def verdict(self, trial: Trial) -> str:
        """Returns why the job's rules of restart gave a trial up, or "" while they didn't."""
        ended = storage.read_json(self._log_of(trial, "outcome.json")) or {}
        return str(ended["reason"]) if ended.get("state") in ("FAILED", "TIMEOUT") else ""

    def _log_of(self, trial: Trial, *names: str) -> str:
        return os.path.join(os.path.abspath(self._here.folder), "replicas", str(trial.id), *names)

    def __call__(self, trial: Trial, folder: str) -> Running:
        """Starts a trial in a thread that waits for its processes."""
        environ = {**self._here.environ, CURVES: os.path.abspath(join(folder, OTHERS))}
        show = self._show
        named = None if show is None else lambda who, line: show(f"trial {trial.id} {who}", line)
        waiting = [loss for loss in self._losses if not loss.done]
        return _Thread(self._job, replace(self._here, environ=environ), trial, named, waiting)


class _Thread:
    """A running trial: the thread that waits for it."""

    pid = 0  # the process layer ends its processes with this one

    def __init__(self, job: Job, here: Here, trial: Trial, show: Show | None, losses: Sequence[Loss]) -> None:
        self._stop = Stop()
        self._code: int | None = None
        self._error: BaseException | None = None
        arguments = (job, here, str(trial.id), tuple(trial.arguments), show, losses)
        self._thread = threading.Thread(
            target=self._run, args=arguments, name=f"trial-{trial.id}", daemon=True
        )
        self._thread.start()

    def _run(
        self, job: Job, here: Here, trial: str, tuned: tuple[str, ...], show: Show | None,
        losses: Sequence[Loss],
    ) -> None:  # fmt: skip
        try:
            outcome = processes.run(
                job, here, trial=trial, tuned=tuned, losses=losses, stop=self._stop, show=show
            )
            self._code = EXIT_INTERRUPTED if outcome.state == "CANCELLED" else outcome.exit_code
        except BaseException as error:
            self._error = error

    def poll(self) -> int | None:
        """Returns the exit code that ended the trial, or None while it runs."""
        if self._thread.is_alive():
            return None
        if self._error is not None:
            raise self._error
        return self._code

    def terminate(self) -> None:
        """Asks its processes to save and leave."""
        self._stop.set()

    def kill(self) -> None:
        """Ends its processes at once."""
        self._stop.now = True
        self._stop.set()


@dataclass(frozen=True)
class LocalStudy:
    """What `local` needs to run a study.

    Attributes:
        plan: the study.
        launch: starts its trials.
    """

    plan: Plan
    launch: JobTrials


def prepare(
    job: Job,
    here: Here,
    options: Mapping[str, str | None],
    show: Show | None = None,
    fresh: bool = False,
    losses: Sequence[Loss] = (),
) -> LocalStudy:
    """Returns a study that `local` can run, checked against the config that its job names.

    Args:
        job: the tuning job.
        here: how it runs on this machine.
        options: max_trial_count, parallel_trial_count, algorithm, stopping and best, where they were given.
        show: takes what the trials print.
        fresh: move an earlier study aside.
        losses: machines to lose, each in the first trial that comes to its moment.

    Raises:
        UserError: a mistake in the study, its arguments or the options.
    """
    processes.check_losses(job, losses)
    study, _ = study_file.of_job(job, options.get("stopping"))
    if study.stopping_by_time and job.workers > 1:
        raise UserError(
            f"{job.file}: useElapsedDuration: the workers of a trial would not stop at the same epoch; leave "
            "it out"
        )
    chief = job.pools[0] if job.pools else None
    if chief is None or not chief.runs_trainer:
        raise UserError(f"{job.file}: trialJobSpec: pool 0 must run the trainer, to try a study here")
    given = [*placing.arguments(job, chief, here), *here.extra]
    files = [value or "" for name, value in flags.pairs(given) if name == "config"]
    shared = [
        f"--{name}" if value is None else f"--{name}={value}"
        for name, value in flags.pairs(given)
        if name.replace("-", "_") not in flags.TRAIN
    ]
    if not files:
        raise UserError(f"{job.file}: trialJobSpec: the trainer's args name no --config")
    made = plan(
        study,
        files,
        shared,
        max_trials=_count(options, "max_trial_count"),
        parallel=_count(options, "parallel_trial_count"),
        algorithm=options.get("algorithm"),
        best=options.get("best") or "copy",
        fresh=fresh,
    )
    config = flags.load(files, shared)
    told = (config.training.objective or config.training.monitor, study.metric)
    if told[0] != told[1]:
        raise UserError(
            f"{job.file}: a trial reports {told[0]!r} (training.objective, else training.monitor), and the "
            f"study waits for {told[1]!r}: add --training.objective={told[1]} to the args"
        )
    base = here.base(job)
    variables = {"CLOUD_ML_TRIAL_ID": "1"}
    if base:
        variables["AIP_MODEL_DIR"] = f"{base}/1/model/"
    folder = environment.paths(config, variables).output.rpartition("/")[0]
    shares = max(1, here.cores // max(1, made.study.limits.parallel))
    launch = JobTrials(job, replace(here, cores=shares), show, losses)
    return LocalStudy(replace(made, folder=folder), launch)


def _count(options: Mapping[str, str | None], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"Invalid --{name}: got {text!r}, expected a whole number from 1")
    return int(text)
