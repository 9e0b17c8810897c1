"""Ends a process in which nothing moves any more. Adopters: leave."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainer.errors import LostError, UserError

log = logging.getLogger("trainer")


class Watchdog:
    """Watches that steps finish while it is armed.

    A step that never ends (a read that hangs, an exchange that nobody answers) holds the main thread inside
    TensorFlow, where no exception reaches it; a job would be paid for until its time is over.

    Args:
        seconds: longest time between two signs of progress; 0 never barks.
        end: ends the process with an error; see `Peers.end_now`.
    """

    def __init__(self, seconds: float = 0.0, end: Callable[[UserError], None] | None = None) -> None:
        self._seconds, self._end = seconds, end
        self._fed = time.monotonic()
        self._what = ""
        self._armed = 0

    def feed(self) -> None:
        """Tells that something was done."""
        self._fed = time.monotonic()

    @contextmanager
    def armed(self, what: str) -> Iterator[None]:
        """Watches inside the block; `what` is what should get on, for the message."""
        if not self._seconds or self._end is None:
            yield
            return
        before, self._what = self._what, what
        self._armed += 1
        self.feed()
        if self._armed == 1:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        try:
            yield
        finally:
            self._armed -= 1
            self._what = before
            self.feed()

    def _watch(self) -> None:
        while self._armed:
            time.sleep(min(1.0, self._seconds / 10))
            still = time.monotonic() - self._fed
            if self._armed and still > self._seconds:
                log.error("where the threads are:\n%s", _stacks())
                assert self._end is not None
                self._end(
                    LostError(
                        f"{self._what}: no step finished in {still:,.0f} s (strategy.stall_seconds); the "
                        "same command goes on from the last checkpoint"
                    )
                )
                return


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame)[-6:])
        for ident, frame in sys._current_frames().items()
    )
