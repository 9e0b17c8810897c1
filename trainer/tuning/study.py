"""The study's loop: choose values, run trials side by side, read what they measured. Adopters: leave."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from trainer import storage
from trainer.environment import join
from trainer.errors import TrainingError
from trainer.interruption import Interruption
from trainer.tuning import measurements, stopping
from trainer.tuning import trial as trials
from trainer.tuning.record import Record
from trainer.tuning.spec import Study
from trainer.tuning.trial import Launcher, Running, Trial

log = logging.getLogger("trainer")

POLL_SECONDS = 0.5
MOST_CRASHES = 3  # a trial whose process is lost so often counts as failed
IN_A_ROW = 3  # failed trials that end a study whose file doesn't say how many


class Search:
    """Runs the trials of a study until one of its limits is met.

    Args:
        study: the study.
        record: what earlier starts of it left, and where this one writes.
        oracle: chooses values; from `oracle.make`.
        launch: starts a trial.
        stop: turns true when the process is asked to end.
        poll: seconds between two looks at the running trials.
    """

    def __init__(
        self,
        study: Study,
        record: Record,
        oracle: Any,
        launch: Launcher,
        *,
        stop: Interruption | None = None,
        poll: float = POLL_SECONDS,
    ) -> None:
        self.study, self.record, self.oracle, self.launch = study, record, oracle, launch
        self._stop, self._poll = stop or Interruption(), poll
        self._running: dict[str, tuple[Trial, Running]] = {}  # by keras-tuner's name of the place
        self._began = time.time() - record.seconds
        self._exhausted = False
        if record.oracle is not None:
            oracle.restore(record.oracle)

    # --- the loop -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs the study to its end.

        Raises:
            TrainingError: too many trials failed, or none has a value.
            Interrupted: SIGTERM came; the trials have saved what they had.
        """
        try:
            self._resume()
            while True:
                self._collect()
                self._check_failures()
                why = self._ended()
                if why and self.study.limits.stop_running and self._running:
                    self._leave(trials.GRACE_SECONDS)
                    self._drop_unfinished()
                if not why:
                    self._fill()
                if not self._running:
                    break
                self._stop.check(f"with {len(self._running)} trials running")
                time.sleep(self._poll)
        except BaseException:
            self._leave(trials.GRACE_SECONDS)
            raise
        self.record.outcome = why or self._ended() or "there is nothing left to try"
        self._save()
        log.info("the study has ended: %s", self.record.outcome)
        if not self.record.counted:
            raise TrainingError(
                f"no trial finished with a finite {self.study.metric}: "
                + "; ".join(f"trial {trial.id}: {trial.error}" for trial in self.record.failed[-2:])
            )

    def _ended(self) -> str:
        """Returns why no further trial is to start, or ""."""
        limits, record = self.study.limits, self.record
        done = len(record.ended)
        if len(record.trials) >= limits.max_trials:
            return f"{limits.max_trials} trials"
        if self._exhausted:
            return (
                "every combination was tried" if self.study.algorithm != "hyperband" else "Hyperband is done"
            )
        if self._seconds() >= limits.max_seconds:
            return f"maximumRuntimeConstraint: {limits.max_seconds:g} s have passed"
        if done < limits.min_trials:
            return ""
        best = record.best()
        if best is None:
            return ""
        since = [trial for trial in record.ended if trial.ended > best.ended]
        if limits.no_progress_trials and len(since) >= limits.no_progress_trials:
            return f"maxNumTrialsNoProgress: {len(since)} trials brought nothing better than trial {best.id}"
        if time.time() - best.ended >= limits.no_progress_seconds:
            waited = f"{limits.no_progress_seconds:g} s"
            return f"maxDurationNoProgress: nothing better than trial {best.id} for {waited}"
        return ""

    def _seconds(self) -> float:
        return time.time() - self._began

    def _save(self) -> None:
        self.record.save(self.oracle.snapshot(), self._seconds())

    # --- starting -----------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Takes up the trials that were running when an earlier start was ended: once each."""
        for place, theirs in list(self.oracle.ongoing_trials.items()):
            trial = next((t for t in self.record.trials if t.key == theirs.trial_id), None)
            if trial is None:  # chosen, and never written down: can't be, as both are in one file
                continue
            if trials.end_leftover(trial):
                log.info("trial %d: its process was still there, and was asked to leave", trial.id)
            if trials.finished(self.record.folder_of(trial)):
                self._end(place, trial, 0)
            else:
                log.info("trial %d: going on where it was", trial.id)
                self._start(place, trial)

    def _fill(self) -> None:
        """Starts trials in the places that are free."""
        limits = self.study.limits
        for number in range(limits.parallel):
            place = f"tuner{number}"
            if place in self._running or len(self.record.trials) >= limits.max_trials:
                continue
            chosen = self.oracle.create_trial(place)
            if chosen.status == "STOPPED":
                self._exhausted = True
                return
            if chosen.status == "IDLE":  # waits for a running trial
                return
            self._start(place, self._new(chosen))

    def _new(self, chosen: Any) -> Trial:
        values = dict(chosen.hyperparameters.values)
        own = {name: values[name] for name in values if not name.startswith("tuner/")}
        trial = Trial(
            id=len(self.record.trials) + 1,
            key=chosen.trial_id,
            values=own,
            arguments=self.study.arguments(own),
            seen=len(self.record.ended),
            started=time.time(),
        )
        if "tuner/epochs" in values:
            trial.epochs = int(values["tuner/epochs"])
            trial.arguments.append(f"--training.epochs={trial.epochs}")
            if key := values.get("tuner/trial_id"):
                trial.parent = next(t.id for t in self.record.trials if t.key == key)
        self.record.trials.append(trial)
        self._save()
        return trial

    def _start(self, place: str, trial: Trial) -> None:
        folder = self.record.folder_of(trial)
        trial.starts += 1
        if trial.parent and trial.starts == 1:
            trials.inherit(self.record.folder_of(trial.parent), folder)
        if self.study.stopping:
            curves = [other.curve for other in self.record.trials if other.state == "completed"]
            content = stopping.content(
                self.study.metric, self.study.goal, self.study.stopping_by_time, trial.started, curves
            )
            storage.write_json(join(folder, trials.OTHERS), content)
        running = self.launch(trial, folder)
        trial.pid, trial.pid_started = running.pid, trials.started_at(running.pid)
        self._running[place] = (trial, running)
        self._save()
        text = " ".join(trial.arguments)
        log.info("trial %d of %d: %s", trial.id, self.study.limits.max_trials, text)

    # --- ending -------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Reads the results of the trials whose process has ended."""
        for place, (trial, running) in list(self._running.items()):
            code = running.poll()
            if code is None:
                continue
            del self._running[place]
            lost = trials.is_lost(code) and not self.launch.verdict(trial)
            if lost and not trials.finished(self.record.folder_of(trial)):
                trial.crashes += 1
                if trial.crashes < MOST_CRASHES and not self._stop.requested:
                    log.warning(
                        "trial %d: its process was lost (exit code %d); starting it again", trial.id, code
                    )
                    self._start(place, trial)
                    continue
                if self._stop.requested:
                    continue  # it has saved and left, as it was asked to
            self._end(place, trial, code)

    def _end(self, place: str, trial: Trial, code: int, *, ended: bool = False) -> None:
        """Notes what a trial measured; `ended`: a limit of the study ended it while it ran."""
        folder = self.record.folder_of(trial)
        found, others = measurements.read(
            self.launch.metrics(trial, folder), self.study.metric, trial.started
        )
        chosen = measurements.select(found, self.study.selection, self.study.goal)
        trial.measurements = [measurement.plain() for measurement in found]
        trial.ended, trial.pid, trial.pid_started = time.time(), 0, ""
        theirs = self.oracle.trials[trial.key]
        if code == 0 and chosen is not None:
            early = ended or storage.exists(join(folder, trials.STOPPED))
            trial.state, trial.value, trial.step = (
                "stopped" if early else "completed",
                chosen.value,
                chosen.step,
            )
            for one in measurements.by_step(found, self.study.selection, self.study.goal):
                self.oracle.update_trial(trial.key, {self.study.metric: one.value}, step=one.step)
            theirs.status = "COMPLETED"
        else:
            trial.state = "failed"
            if code:
                log_file, why = self.launch.log(trial, folder), self.launch.verdict(trial)
                trial.error = trials.failure(folder, code, log_file, why)
            else:
                instead = f"; it reported {', '.join(others)}" if others else ""
                trial.error = f"it ended without having reported {self.study.metric!r}{instead}"
            theirs.status, theirs.message = "FAILED", trial.error
        self.oracle.end_trial(theirs)
        self._save()
        self._tell(trial)

    def _tell(self, trial: Trial) -> None:
        seconds = trial.ended - trial.started
        best = self.record.best()
        left = self.study.limits.max_trials - len(self.record.ended)
        took = [t.ended - t.started for t in self.record.ended]
        rounds = math.ceil(left / self.study.limits.parallel)
        most = "at most " if self.study.algorithm in ("grid", "hyperband") else ""  # they may end before
        eta = f"; {most}{left} to go, about {_duration(rounds * sum(took) / len(took))}" if left > 0 else ""
        if trial.state == "failed":
            log.warning("trial %d failed after %s: %s%s", trial.id, _duration(seconds), trial.error, eta)
            return
        early = ", stopped early" if trial.state == "stopped" else ""
        assert best is not None
        log.info(
            "trial %d: %s %.6g%s (best %.6g of trial %d), %s%s",
            *(trial.id, self.study.metric, trial.value, early, best.value, best.id, _duration(seconds), eta),
        )

    def _check_failures(self) -> None:
        failed, most = self.record.failed, self.study.limits.max_failed
        if most and len(failed) >= most:
            raise TrainingError(
                f"{len(failed)} trials failed, and maxFailedTrialCount is {most}; the last, trial "
                f"{failed[-1].id}: {failed[-1].error}"
            )
        if most:
            return
        ended = self.record.ended
        first = bool(ended) and ended[0].state == "failed"
        row = len(ended) >= IN_A_ROW and all(trial.state == "failed" for trial in ended[-IN_A_ROW:])
        if first or row:
            which = f"the last {IN_A_ROW} trials" if row else f"the first trial ({ended[0].id})"
            raise TrainingError(
                f"{which} failed, which ends a study without maxFailedTrialCount; trial {ended[-1].id}: "
                f"{ended[-1].error}"
            )

    # --- leaving ------------------------------------------------------------------------------------

    def _leave(self, patience: float) -> None:
        """Asks the running trials to save and leave, and waits for them."""
        for _, running in self._running.values():
            running.terminate()
        end = time.monotonic() + patience
        while self._running:
            for place, (trial, running) in list(self._running.items()):
                code = running.poll()
                if code is None and time.monotonic() > end:
                    running.kill()
                if code is None:
                    continue
                del self._running[place]
                if trials.finished(self.record.folder_of(trial)) and code == 0:
                    self._end(place, trial, code)
            time.sleep(min(0.1, self._poll))

    def _drop_unfinished(self) -> None:
        """Counts trials that a limit ended while they ran as stopped, by what they had reported."""
        for place, theirs in list(self.oracle.ongoing_trials.items()):
            trial = next(t for t in self.record.trials if t.key == theirs.trial_id)
            found, _ = measurements.read(
                self.launch.metrics(trial, self.record.folder_of(trial)), self.study.metric, trial.started
            )
            self._end(place, trial, 0 if found else 1, ended=True)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
