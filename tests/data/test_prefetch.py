"""Iterators run ahead in threads and come out in order."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from trainer.data import prefetch


def counting(start: int, stop: int, delay: float = 0.0) -> Callable[[], Iterator[int]]:
    def run() -> Iterator[int]:
        for value in range(start, stop):
            time.sleep(delay)
            yield value

    return run


@pytest.mark.parametrize("threads", [1, 3, 20])
def test_order(threads: int) -> None:
    starts = [counting(10 * i, 10 * i + 10, 0.002 if i == 0 else 0) for i in range(8)]
    assert list(prefetch.ordered(starts, threads)) == list(range(80))
    assert list(prefetch.ordered([], threads)) == []


def test_an_error_comes_at_its_place() -> None:
    def broken() -> Iterator[int]:
        yield 10
        raise ValueError("broken")

    found = prefetch.ordered([counting(0, 3), broken, counting(20, 30)], 3)
    assert list(itertools.islice(found, 4)) == [0, 1, 2, 10]
    with pytest.raises(ValueError, match="broken"):
        next(found)
    assert alive() == 0


def test_runs_ahead_but_not_far() -> None:
    made: list[int] = []

    def endless() -> Iterator[int]:
        for value in itertools.count():
            made.append(value)
            yield value

    found = prefetch.ordered([endless, endless], 2, depth=2)
    assert [next(found) for _ in range(5)] == [0, 1, 2, 3, 4]
    time.sleep(0.2)
    assert len(made) <= 5 + 2 * (2 + 1) + 1
    found.close()  # type: ignore[attr-defined]
    assert alive() == 0


def test_stopping_early_closes_the_iterators() -> None:
    closed = threading.Event()

    def run() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            closed.set()

    found = prefetch.ordered([run], 1)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert closed.wait(2)


def alive() -> int:
    return sum(thread.name == "reader" for thread in threading.enumerate())
