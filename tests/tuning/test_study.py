"""The study's loop with trials that train nothing: limits, failures, kills, and what is left behind."""

from __future__ import annotations

import csv
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import synthetic
from synthetic import Ended, Launcher

from trainer import storage
from trainer.errors import TrainingError, UserError
from trainer.interruption import Interrupted, Interruption
from trainer.tuning import oracle as oracles
from trainer.tuning import results, spec, study_file
from trainer.tuning import trial as trials
from trainer.tuning.record import Record
from trainer.tuning.spec import Study
from trainer.tuning.study import Search
from trainer.tuning.trial import Trial


def score(values: dict[str, Any]) -> list[float]:
    """A curve whose best is at learning_rate 0.01 and batch_size 128, and not at its end."""
    best = (
        0.9 - 0.1 * (math.log10(values["learning_rate"]) + 2) ** 2 - 0.0005 * abs(values["batch_size"] - 128)
    )
    return [best - 0.1, best, best - 0.05]


def search(folder: Path, launch: Launcher, study: Study | None = None, seed: int = 1, **more: Any) -> Search:
    study = study or synthetic.study(folder)
    record = Record(str(folder / "out"), study, {"name": "small"}, seed)
    return Search(study, record, oracles.make(study, seed=seed, epochs=9), launch, poll=0.0, **more)


@pytest.mark.parametrize("algorithm", ["random", "bayesian", "hyperband"])
def test_a_study_runs_to_its_end(tmp_path: Path, algorithm: str) -> None:
    study = spec.override(synthetic.study(tmp_path, parallelTrialCount="2"), algorithm=algorithm)
    launch = Launcher(score)
    made = search(tmp_path, launch, study)
    made.run()
    record = made.record
    assert launch.started == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [trial.id for trial in record.trials] == launch.started
    for trial in record.trials:
        assert trial.state == "completed"
        assert trial.value == pytest.approx(max(score(trial.values)))  # BEST_MEASUREMENT
        assert trial.step == 2
        assert ("momentum" in trial.values) == (trial.values["optimizer"] == "sgd")
        assert 1e-4 <= trial.values["learning_rate"] <= 1e-1
    best = record.best()
    assert best is not None
    assert best.value == max(trial.value or 0 for trial in record.trials)
    assert len({json.dumps(trial.values) + str(trial.epochs) for trial in record.trials}) == 8  # none twice
    assert [trial.seen for trial in record.trials[:2]] == [0, 0]  # two at once


def test_grid_tries_every_combination_once_and_ends(tmp_path: Path) -> None:
    text = synthetic.STUDY.replace("doubleValueSpec: {minValue: 1.0e-4, maxValue: 1.0e-1}",
                                   "discreteValueSpec: {values: [0.001, 0.01]}")  # fmt: skip
    text = text.replace(
        "doubleValueSpec: {minValue: 0.0, maxValue: 0.95}", "discreteValueSpec: {values: [0.5, 0.9]}"
    )
    text = text.replace("    scaleType: UNIT_LOG_SCALE\n", "").replace(
        "  metrics:", "  algorithm: GRID_SEARCH\n  metrics:"
    )
    study = study_file.load(
        str(synthetic.write(tmp_path, text, maxTrialCount="100", parallelTrialCount="3"))
    )[0]
    made = search(tmp_path, Launcher(score), study)
    made.run()
    found = [json.dumps(trial.values, sort_keys=True) for trial in made.record.trials]
    assert len(found) == len(set(found)) == 2 * 3 * 4 * (1 + 2)
    assert made.record.outcome == "every combination was tried"


def test_last_measurement(tmp_path: Path) -> None:
    text = synthetic.STUDY.replace("BEST_MEASUREMENT", "LAST_MEASUREMENT")
    study = study_file.load(str(synthetic.write(tmp_path, text)))[0]
    made = search(tmp_path, Launcher(score), study)
    made.run()
    for trial in made.record.trials:
        assert trial.value == pytest.approx(score(trial.values)[-1])
        assert made.oracle.trials[trial.key].score == pytest.approx(trial.value)


@pytest.mark.parametrize("reported", [[], [math.nan], [math.inf, math.nan]])
def test_a_trial_without_a_finite_value_has_failed(tmp_path: Path, reported: list[float]) -> None:
    launch = Launcher(lambda values: reported if values["batch_size"] == 64 else score(values))
    study = synthetic.study(tmp_path, maxFailedTrialCount="8")
    made = search(tmp_path, launch, study, seed=3)
    made.run()
    failed = made.record.failed
    assert failed
    assert {trial.values["batch_size"] for trial in failed} == {64}
    assert "ended without having reported 'val_auc'" in failed[0].error
    assert ("nan" in failed[0].error) == any(map(math.isnan, reported))
    best = made.record.best()
    assert best is not None
    assert best.values["batch_size"] != 64


def test_another_name_than_the_studys_is_told(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"without having reported 'val_auc'; it reported 'auc'"):
        search(tmp_path, Launcher(score, metric="auc")).run()


def test_the_model_leaves_the_neighbourhood_of_failed_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metric rises towards a corner where every trial fails."""
    monkeypatch.setattr(oracles, "_CANDIDATES", 150)  # ten times as fast

    def rising(values: dict[str, Any]) -> list[float] | int:
        if values["batch_size"] == 64 and values["cross_layers"] == 4:
            return 1
        rate = math.log10(values["learning_rate"])
        return [0.7 - 0.02 * (rate + 2) ** 2 - 2e-5 * values["batch_size"] + 3e-3 * values["cross_layers"]]

    text = synthetic.write(tmp_path, maxTrialCount="15", maxFailedTrialCount="15")
    made = search(tmp_path, Launcher(rising), study_file.load(str(text))[0])
    made.run()
    assert len(made.record.trials) == 15
    assert len(made.record.failed) <= 4  # trials 9 to 15, while failed ones were left out of the model


def test_failed_trials_end_the_study_at_the_files_limit(tmp_path: Path) -> None:
    launch = Launcher(lambda values: 1)
    with pytest.raises(TrainingError, match=r"^3 trials failed, and maxFailedTrialCount is 3; the last, trial"
                       r" 3: exit code 1 was asked for"):  # fmt: skip
        search(tmp_path, launch).run()
    assert launch.started == [1, 2, 3]


def test_without_a_limit_the_first_failed_trial_ends_it(tmp_path: Path) -> None:
    launch = Launcher(lambda values: 2)
    with pytest.raises(TrainingError, match=r"the first trial \(1\) failed, which ends a study without"):
        search(tmp_path, launch, synthetic.study(tmp_path, maxFailedTrialCount="0")).run()
    assert launch.started == [1]


def test_all_trials_failed_is_no_success(tmp_path: Path) -> None:
    study = spec.override(synthetic.study(tmp_path), max_trials=2)  # of a file that bears three failures
    with pytest.raises(
        TrainingError, match=r"no trial finished with a finite val_auc: trial 1: .*; trial 2: "
    ):
        search(tmp_path, Launcher(lambda values: 1), study).run()


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the study runs after it."""


def kill_at(made: Search, moment: int) -> list[str]:
    """Runs a search that dies at its n-th save, and returns what it had started."""
    seen: list[int] = []
    real = made._save

    def save() -> None:
        real()
        seen.append(1)
        if len(seen) == moment:
            raise Killed

    made._save = save  # type: ignore[method-assign]
    made._leave = lambda patience: None  # type: ignore[method-assign]
    with pytest.raises(Killed):
        made.run()
    return []


@pytest.mark.parametrize("algorithm", ["random", "grid", "hyperband", "bayesian"])
def test_killed_at_any_moment_it_loses_and_repeats_nothing(tmp_path: Path, algorithm: str) -> None:
    text = synthetic.STUDY
    if algorithm == "grid":
        scale = "    scaleType: UNIT_LOG_SCALE\n"
        text = text.replace(scale + "    doubleValueSpec: {minValue: 1.0e-4, maxValue: 1.0e-1}",
                            "    discreteValueSpec: {values: [0.001, 0.01]}")  # fmt: skip
        text = text.replace(
            "doubleValueSpec: {minValue: 0.0, maxValue: 0.95}", "discreteValueSpec: {values: [0.5]}"
        )
    study = study_file.load(str(synthetic.write(tmp_path, text, parallelTrialCount="2")))[0]
    study = spec.override(study, algorithm=algorithm)
    (tmp_path / "whole").mkdir()
    whole = search(tmp_path / "whole", Launcher(score), study)
    whole.run()
    for moment in (3, 10) if algorithm == "bayesian" else (1, 2, 3, 5, 7, 12):
        folder = tmp_path / f"killed-{moment}"
        folder.mkdir()
        launch = Launcher(score)
        kill_at(search(folder, launch, study), moment)
        # What the dead study's trials had left is as if they died with it: nothing, unless they were done.
        again = search(folder, launch, study)
        done = {trial.id for trial in again.record.ended}
        before = list(launch.started)
        again.run()
        record = again.record
        assert [trial.id for trial in record.trials] == list(range(1, 9))
        assert all(trial.state == "completed" for trial in record.trials)
        assert not done & set(launch.started[len(before) :])  # a finished trial never starts again
        keys = [json.dumps([trial.values, trial.epochs]) for trial in record.trials]
        assert len(set(keys)) == 8
        if algorithm in ("random", "grid"):
            assert [t.values for t in record.trials] == [t.values for t in whole.record.trials]


def test_a_trial_that_was_done_when_the_study_died_is_read_not_run(tmp_path: Path) -> None:
    launch = Launcher(score)
    kill_at(search(tmp_path, launch), 2)  # trial 1 was started and written down
    assert launch.started == [1]
    search(tmp_path, launch).run()
    assert launch.started == list(range(1, 9))


def test_a_lost_process_is_started_again_and_in_the_end_failed(tmp_path: Path) -> None:
    class Lossy(Launcher):
        def __call__(self, trial: Trial, folder: str) -> Ended:
            super().__call__(trial, folder)
            if trial.id == 2 and trial.starts < 3:
                storage.write_json(f"{folder}/status.json", {"state": "running"})
                return Ended(-9)
            if trial.id == 3:
                storage.write_json(f"{folder}/status.json", {"state": "running"})
                return Ended(143)
            return Ended(0)

    launch = Lossy(score)
    made = search(tmp_path, launch)
    made.run()
    assert [made.record.trials[1].state, made.record.trials[1].starts] == ["completed", 3]
    assert made.record.trials[2].state == "failed"
    assert launch.started.count(3) == 3


def test_what_the_rules_of_a_trials_job_gave_up_is_not_started_again(tmp_path: Path) -> None:
    why = "worker1 ended with exit code 137 (out of memory, or killed from outside): not worth a retry"

    class OfJobs(Launcher):
        def verdict(self, trial: Trial) -> str:
            return why if trial.id == 2 else ""

        def __call__(self, trial: Trial, folder: str) -> Ended:
            super().__call__(trial, folder)
            if trial.id == 2:
                storage.write_json(f"{folder}/status.json", {"state": "running"})
            return Ended(137 if trial.id == 2 else 0)

    launch = OfJobs(score)
    made = search(tmp_path, launch)
    made.run()
    assert launch.started == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [(trial.state, trial.error) for trial in made.record.failed] == [("failed", why)]


def test_sigterm_asks_the_trials_to_leave_and_the_next_start_goes_on(tmp_path: Path) -> None:
    stop = Interruption()
    launch = Launcher(score)

    class Slow(Launcher):
        def __call__(self, trial: Trial, folder: str) -> Ended:
            super().__call__(trial, folder)
            if trial.id < 4:
                return Ended(0)
            storage.write_json(f"{folder}/status.json", {"state": "running"})
            stop.requested = True
            return Ended(0, looks=10**6)

    with pytest.raises(Interrupted, match="with 1 trials running; run the same command again"):
        search(tmp_path, Slow(score), stop=stop).run()
    made = search(tmp_path, launch)
    assert [trial.state for trial in made.record.trials] == ["completed"] * 3 + ["running"]
    made.run()
    assert launch.started == [4, 5, 6, 7, 8]
    assert made.record.trials[3].starts == 2


def test_another_study_is_not_taken_for_this_one(tmp_path: Path) -> None:
    search(tmp_path, Launcher(score)).run()
    other = study_file.load(str(synthetic.write(tmp_path, synthetic.STUDY.replace("128, 256", "128, 512"))))[
        0
    ]
    other = spec.override(other, algorithm="random")
    with pytest.raises(UserError, match=r"holds another study \(parameters.batch_size: .*--fresh"):
        search(tmp_path, Launcher(score), other)
    with pytest.raises(UserError, match=r"seed: 1 -> 2"):
        search(tmp_path, Launcher(score), seed=2)


def test_more_trials_later(tmp_path: Path) -> None:
    launch = Launcher(score)
    search(tmp_path, launch, synthetic.study(tmp_path, maxTrialCount="4")).run()
    search(tmp_path, launch, synthetic.study(tmp_path, maxTrialCount="6")).run()
    assert launch.started == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("config", "outcome", "count"),
    [
        (
            "{maxNumTrialsNoProgress: 2}",
            "maxNumTrialsNoProgress: 2 trials brought nothing better than trial 1",
            3,
        ),
        ("{maxNumTrials: 5}", "5 trials", 5),
        ("{maxNumTrialsNoProgress: 2, minNumTrials: 6}", "maxNumTrialsNoProgress: 5 trials", 6),
        ("{maximumRuntimeConstraint: {maxDuration: 0s}}", "maximumRuntimeConstraint: 0 s have passed", 0),
    ],
)
def test_what_ends_a_study(tmp_path: Path, config: str, outcome: str, count: int) -> None:
    text = synthetic.STUDY.replace("  metrics:", f"  studyStoppingConfig: {config}\n  metrics:")
    study = study_file.load(str(synthetic.write(tmp_path, text)))[0]
    falling = iter(range(100))
    made = search(tmp_path, Launcher(lambda values: [0.9 - 0.01 * next(falling)]), study)
    if count:
        made.run()
    else:
        with pytest.raises(TrainingError, match="no trial finished"):
            made.run()
    assert made.record.outcome.startswith(outcome)
    assert len(made.record.trials) == count


def test_a_promoted_trial_of_hyperband_starts_from_the_checkpoints_of_its_past(tmp_path: Path) -> None:
    class Saving(Launcher):
        def __call__(self, trial: Trial, folder: str) -> Ended:
            place = Path(folder) / "checkpoints"
            if trial.parent:
                assert (place / "step").read_text() == str(trial.parent)
            place.mkdir(parents=True, exist_ok=True)
            (place / "step").write_text(str(trial.id))
            return super().__call__(trial, folder)

    study = spec.override(synthetic.study(tmp_path, maxTrialCount="40"), algorithm="hyperband")
    made = search(tmp_path, Saving(score), study)
    made.run()
    promoted = [trial for trial in made.record.trials if trial.parent]
    assert promoted
    for trial in promoted:
        past = made.record.trials[trial.parent - 1]
        assert past.values == trial.values
        assert trial.epochs == 3 * past.epochs
        assert trial.arguments[-1] == f"--training.epochs={trial.epochs}"
    assert made.record.outcome == "Hyperband is done"


def test_hyperband_needs_epochs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"hyperband: training.epochs is 2, expected 3 or more"):
        oracles.make(spec.override(synthetic.study(tmp_path), algorithm="hyperband"), seed=1, epochs=2)


def test_the_table(tmp_path: Path) -> None:
    made = search(tmp_path, Launcher(lambda v: 1 if v["batch_size"] == 64 else score(v)), seed=3,
                  study=synthetic.study(tmp_path, maxFailedTrialCount="8"))  # fmt: skip
    made.run()
    rows = list(csv.DictReader(results.table(made.study, made.record).splitlines()))
    assert [int(row["trial"]) for row in rows] == list(range(1, 9))
    for row, trial in zip(rows, made.record.trials, strict=True):
        assert row["batch_size"] in ("64.0", "128.0", "256.0")
        assert (row["momentum"] == "") == ("momentum" not in trial.values)
        assert row["val_auc"] == ("" if trial.value is None else str(trial.value))
        assert (row["error"] != "") == (trial.state == "failed")


def test_leftover_processes_are_found_and_ended(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "300"])
    trial = Trial(1, "0", {}, pid=process.pid, pid_started=trials.started_at(process.pid))
    if not trial.pid_started:
        process.kill()
        pytest.skip("this system doesn't tell when a process started")
    other = Trial(2, "1", {}, pid=process.pid, pid_started="1")  # the id was given to somebody else since
    assert not trials.end_leftover(other)
    assert process.poll() is None
    # A zombie of ours counts as gone, so the wait below ends though we have not reaped it.
    assert trials.end_leftover(trial)
    assert process.wait(10) == -15
