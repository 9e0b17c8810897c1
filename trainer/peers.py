"""The processes of a job, seen from one of them: what they do together. Adopters: leave.

This is a process alone; `rendezvous.py` has the same of several, over connections.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from trainer.errors import UserError
from trainer.interruption import Interruption

log = logging.getLogger("trainer")


class Peers:
    """The processes of a job, seen from one of them; this class is a process alone.

    Attributes:
        rank, count: which of how many processes this is; 0 is the chief.
        stop: asked while waiting, so that SIGTERM ends a wait.
        last_words: called with the error, the last first, when the process is ended from a thread: they put
            its files in order.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self.stop = Interruption()
        self.last_words: list[Callable[[BaseException], None]] = []

    def hand(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns what `make` returns on the chief; the others wait for it. All must call it, in one order.

        Args:
            name: what the document is, for messages; may be used again and again.
            make: returns a JSON value; called on the chief alone.

        Raises:
            UserError: another process failed, or was lost, meanwhile.
            Interrupted: SIGTERM came.
        """
        return make()

    def gather(self, name: str, make: Callable[[], Any]) -> list[Any]:
        """Returns what `make` returns on each process, by rank, on the chief; [] elsewhere. All must call it.

        Args:
            name: what the documents are, for messages; may be used again and again.
            make: returns a JSON value; called everywhere.

        Raises:
            UserError: another process failed, or was lost, meanwhile.
            Interrupted: SIGTERM came.
        """
        return [make()]

    def explain(self, error: BaseException) -> BaseException:
        """Returns what an error comes from: TensorFlow only says that an exchange broke off."""
        return error

    def release(self) -> None:
        """On the chief: waits until the others are done training; what becomes of them is no matter then."""

    def finish(self) -> None:
        """Ends well: the chief says that all is written, the others wait until it has."""

    def failed(self, error: BaseException) -> None:
        """Tells the others why this process ends, and lets them go first if it is the chief."""

    def end_now(self, error: UserError) -> None:
        """Ends this process from any thread, whatever its main thread is stuck in."""
        log.error("%s", error)
        for words in reversed(self.last_words):
            try:
                words(error)
            except Exception:
                log.warning("the files of the run could not be put in order", exc_info=True)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code)
