"""A study over a worker pool with trials that train nothing: machines that are lost, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import synthetic
from synthetic import Ended, Launcher

from trainer import environment
from trainer.errors import TrainingError
from trainer.interruption import Interrupted, Interruption
from trainer.jobs import processes
from trainer.tuning import command, distributed, results
from trainer.tuning.command import Plan
from trainer.tuning.trial import Trial

CONFIG = f"{synthetic.CONFIG}training: {{epochs: 3}}\n"


def score(values: dict[str, Any]) -> list[float]:
    return [0.1, 0.5 + values["learning_rate"], 0.2]


class Pool:
    """One chief and one worker, as threads of this process; each may be started several times."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
        self.folder = folder / "out"
        (folder / "small.yaml").write_text(CONFIG)
        path = synthetic.write(folder, maxTrialCount="4")
        flags = [f"--study={path}", f"--config={folder / 'small.yaml'}", f"--output_dir={self.folder}"]
        plan = command.prepare([*flags, "--algorithm=random", "--best=none", *more])
        assert plan is not None
        self.plan: Plan = plan
        cluster = {"chief": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223"]}
        config = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
        self.me = environment.service({"TF_CONFIG": json.dumps(config)})
        values = ("tuner0", "127.0.0.1", str(processes.free_port()))
        for name, value in zip(distributed.VARIABLES, values, strict=True):
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(distributed, "_LINGER_SECONDS", 1.0)
        monkeypatch.setattr(results, "write", lambda study, record, advice: None)  # its charts take seconds
        self.launch = Launcher(score)
        monkeypatch.setattr(distributed, "Processes", lambda base: self.launch)
        self._threads = ThreadPoolExecutor(8)

    def chief(self, stop: Interruption | None = None) -> Future[None]:
        made = distributed._Chief(self.plan, self.me, stop or Interruption())
        return self._threads.submit(made.serve)

    def worker(self, stop: Interruption | None = None) -> Future[None]:
        return self._threads.submit(distributed._work, self.plan, stop or Interruption())

    @property
    def trials(self) -> list[dict[str, Any]]:
        return list(json.loads((self.folder / "study.json").read_text())["trials"])


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pool]:
    return lambda *more: Pool(tmp_path, monkeypatch, *more)


def in_trial(pool: Pool, number: int, do: Callable[[], None], looks: int = 1) -> None:
    """Does something once while a trial runs."""
    done: list[int] = []
    pool.launch.looks = lambda trial: looks if trial.id == number and not done else 1
    real = type(pool.launch).__call__

    class Watched(Launcher):
        def __call__(self, trial: Trial, folder: str) -> Ended:
            ended = real(self, trial, folder)
            if trial.id == number and not done:
                done.append(1)
                do()
            return ended

    pool.launch.__class__ = Watched


def test_a_pool_runs_a_study(pool: Callable[..., Pool]) -> None:
    made = pool()
    chief, worker = made.chief(), made.worker()
    worker.result(300)
    chief.result(300)
    assert made.launch.started == [1, 2, 3, 4]
    for trial in made.trials:
        assert (trial["state"], trial["starts"]) == ("completed", 1)
        assert trial["value"] == pytest.approx(0.5 + trial["values"]["learning_rate"])


def test_a_trial_whose_machine_is_taken_away_goes_on(pool: Callable[..., Pool]) -> None:
    made, stop = pool(), Interruption()
    in_trial(made, 2, lambda: setattr(stop, "requested", True), looks=10**5)
    chief = made.chief()
    with pytest.raises(Interrupted, match="in the middle of a trial"):
        made.worker(stop).result(300)
    made.worker().result(300)  # started again
    chief.result(300)
    assert made.launch.started == [1, 2, 2, 3, 4]
    assert [(trial["state"], trial["starts"]) for trial in made.trials] == [
        ("completed", 1), ("completed", 2), ("completed", 1), ("completed", 1),
    ]  # fmt: skip
    assert made.trials[1]["ended"] > made.trials[1]["started"] > made.trials[0]["started"]


def test_a_chief_that_is_lost_in_a_trial_goes_on(pool: Callable[..., Pool]) -> None:
    made, stop = pool(), Interruption()
    again: list[Future[None]] = []

    def lose() -> None:
        stop.requested = True
        with pytest.raises(Interrupted):
            chief.result(300)
        again.append(made.chief())

    in_trial(made, 2, lose)
    chief = made.chief(stop)
    made.worker().result(300)
    again[0].result(300)
    assert made.launch.started == [1, 2, 3, 4]
    assert [trial["state"] for trial in made.trials] == ["completed"] * 4


@pytest.mark.parametrize("more", [(), ("--algorithm=hyperband", "--max_trial_count=100")])
def test_a_chief_that_is_started_again_at_the_end_waits_for_nobody(
    pool: Callable[..., Pool], more: tuple[str, ...]
) -> None:
    made = pool(*more)
    chief, worker = made.chief(), made.worker()
    worker.result(300)
    chief.result(300)
    before = made.trials
    made.chief().result(300)  # as it was while the best trial was trained again; the workers have left
    assert made.trials == before


def test_failed_trials_end_it(pool: Callable[..., Pool]) -> None:
    made = pool("--max_failed_trial_count=2")
    made.launch.objective = lambda values: 1
    chief, worker = made.chief(), made.worker()
    with pytest.raises(TrainingError, match="2 trials failed, and maxFailedTrialCount is 2"):
        chief.result(300)
    worker.result(300)
    assert [trial["state"] for trial in made.trials] == ["failed", "failed"]
