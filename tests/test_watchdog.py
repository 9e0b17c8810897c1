"""The watchdog barks when nothing moves while it is armed, and only then."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from trainer.errors import EXIT_LOST, UserError
from trainer.watchdog import Watchdog

pytestmark = pytest.mark.faults


def test_a_standstill_is_ended_and_told(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[UserError] = []
    barked = threading.Event()

    def end(error: UserError) -> None:
        ended.append(error)
        barked.set()

    with caplog.at_level("ERROR"), Watchdog(0.3, end).armed("training"):
        assert barked.wait(30)
    assert "training: no step finished in" in str(ended[0])
    assert "strategy.stall_seconds" in str(ended[0])
    assert ended[0].exit_code == EXIT_LOST
    assert "test_a_standstill_is_ended_and_told" in caplog.text, "where the threads are"


def test_progress_keeps_it_quiet_and_so_does_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looked = [0.0], threading.Semaphore(0)
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: (looked.release(), time.sleep(0.001))
    )
    monkeypatch.setattr("trainer.watchdog.time", clock)
    ended: list[UserError] = []
    watch = Watchdog(1.0, ended.append)

    def later(seconds: float) -> None:
        """Lets it look at the clock twice, once surely after the clock was put on."""
        now[0] += seconds
        while looked.acquire(blocking=False):
            pass
        for _ in range(2):
            assert looked.acquire(timeout=30)

    with watch.armed("training"):
        (thread,) = (one for one in threading.enumerate() if one.name == "watchdog")
        for _ in range(8):
            later(0.9)
            watch.feed()
        with watch.armed("evaluation"):
            later(0.9)
        later(0.9)
    now[0] += 100
    thread.join(30)
    assert not thread.is_alive()
    assert ended == []


def test_zero_never_barks() -> None:
    before = threading.active_count()
    with Watchdog(0, lambda error: None).armed("training"), Watchdog().armed("training"):
        assert threading.active_count() == before
