"""How an evaluator waits for a run, and its table; a whole one is in integration/test_workers_run.py."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from loop_parts import config

from trainer import environment, storage
from trainer.errors import LostError
from trainer.evaluator import _Table, _Watch
from trainer.interruption import Interrupted, Interruption

pytestmark = pytest.mark.faults


def watch(folder: Path, stop: Interruption | None = None, **settings: float) -> _Watch:
    changes = {f"strategy__{name}": value for name, value in settings.items()}
    run = config(output_dir=str(folder), **changes)
    return _Watch(environment.paths(run, {}), run, stop or Interruption(), 0.02)


def state(folder: Path, word: str, attempt: int = 1) -> None:
    storage.write_json(f"{folder}/status.json", {"state": word, "attempt": attempt})


def test_what_is_ready_is_seen_even_when_the_run_has_just_ended(tmp_path: Path) -> None:
    state(tmp_path, "running")
    found = watch(tmp_path)
    state(tmp_path, "succeeded")
    assert found.wait_for(lambda: True)
    assert not found.wait_for(lambda: False)


def test_the_end_of_an_earlier_start_is_not_the_end(tmp_path: Path) -> None:
    state(tmp_path, "failed")
    found = watch(tmp_path, join_seconds=60)
    ready: list[int] = []
    threading.Timer(0.3, ready.append, [1]).start()
    assert found.wait_for(lambda: bool(ready))
    state(tmp_path, "failed", attempt=2)
    assert not found.wait_for(lambda: False)


def test_the_end_of_a_run_that_nobody_goes_on_with_is_the_end(tmp_path: Path) -> None:
    state(tmp_path, "succeeded")
    assert not watch(tmp_path, join_seconds=0.1).wait_for(lambda: False)


def test_a_run_that_is_gone_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    state(tmp_path, "running")
    with pytest.raises(LostError, match=r"no new checkpoint and no end of the run in \d+ s"):
        watch(tmp_path, join_seconds=0.2, stall_seconds=0.2).wait_for(lambda: False)


def test_sigterm_ends_the_wait(tmp_path: Path) -> None:
    stop = Interruption()
    stop.requested = True
    with pytest.raises(Interrupted):
        watch(tmp_path, stop).wait_for(lambda: False)


def test_the_table_is_gone_on_with(tmp_path: Path) -> None:
    path = str(tmp_path / "t.csv")
    _Table(path).add({"step": 7, "epoch": 0, "loss": 0.5})
    again = _Table(path)
    assert again.rows == [{"step": 7.0, "epoch": 0.0, "loss": 0.5}]
    again.add({"step": 14, "epoch": 1, "loss": 0.25})
    assert [row["step"] for row in _Table(path).rows] == [7, 14]
