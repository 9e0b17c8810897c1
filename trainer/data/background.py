"""Work in threads that never keep a process from ending. Adopters: leave."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_EXIT_SECONDS = 30.0  # a chunk that is being made when the process ends takes below a second


def start(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
    """Runs a function in a daemon thread of its own; the future has its result or error."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # it belongs to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, name="background", daemon=True).start()
    return future


class _Gate:
    """Counts calls from TensorFlow's threads into Python, and lets none begin once the process ends.

    A thread that wants Python while the interpreter shuts down is stopped for good; the iterator that waits
    for it would then never be destroyed, and the process never end.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._used = False
        self._closed = False
        atexit.register(self._close)

    @contextmanager
    def call(self) -> Iterator[bool]:
        """A call into Python; gives False if the process is ending, and nothing must be begun."""
        with self._changed:
            self._used = True
            self._inside += 1
            opened = not self._closed
        try:
            yield opened
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._inside == 0, _EXIT_SECONDS)
        if self._used:
            time.sleep(0.05)  # for calls that were on their way to the gate: they turn back at once


GATE = _Gate()
