"""SIGTERM as a flag: save at the end of the current call, then leave. Adopters: leave."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from trainer.errors import EXIT_INTERRUPTED, UserError

log = logging.getLogger(__name__)


class Interrupted(UserError):  # noqa: N818 - not an error, though it ends the process like one
    """The process was asked to end and did so in order: the same command goes on from here."""

    exit_code = EXIT_INTERRUPTED


class Interruption:
    """Turns SIGTERM into a flag while it is entered.

    Enter it *after* the strategy was made: MultiWorkerMirroredStrategy silently replaces a handler that was
    there before, and then swallows the signal. Outside the main thread, where Python can't set handlers, it
    does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None
        self._installed = False

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._handle)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            # None: the handler before ours wasn't set from Python, so Python can't put it back.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)
            self._installed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        log.warning("SIGTERM: saving and leaving at the end of the current call")

    def check(self, what: str) -> None:
        """Raises Interrupted if SIGTERM has come; `what` says what is left for the next start."""
        if self.requested:
            raise Interrupted(f"stopped by SIGTERM {what}; run the same command again to go on")
