"""What a run remembers of its BigQuery sessions, in a file that its workers share. Adopters: leave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from trainer import storage
from trainer.errors import UserError

_WAIT_SECONDS = 600.0  # how long other workers wait for the chief to open a session
_POLL_SECONDS = 1.0


class Ledger:
    """What a run has to remember of its sessions: a small JSON file, or memory alone.

    The chief's process writes the file; the other workers of a run wait for what they need to appear in it,
    so that all read the same streams. Safe to use from threads, and several of one file may be open.
    """

    _lock = threading.RLock()  # of all ledgers: some write to the same file

    def __init__(self, path: str | None = None, *, writes: bool = True) -> None:
        """Opens the ledger.

        Args:
            path: the file, local or gs://; None keeps it in memory.
            writes: whether this process is the one that writes.
        """
        self.path = path
        self.writes = writes or path is None
        self._pages: dict[str, dict[str, Any]] = self._read()

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = storage.read_json(self.path) if self.path else None
        except ValueError:  # not JSON: nothing in it can be trusted
            found = None
        pages = found.get("pages") if isinstance(found, dict) else None
        return pages if isinstance(pages, dict) else {}

    def get(self, page: str, key: str) -> Any:
        """Returns an entry, or None; one that the chief's process has written meanwhile is seen."""
        with self._lock:
            if key not in self._pages.get(page, {}) and self.path and not self.writes:
                self._pages = self._read()
            return self._pages.get(page, {}).get(key)

    def put(self, page: str, key: str, value: Any) -> None:
        """Sets an entry and writes the file."""
        with self._lock:
            if self.path and self.writes:
                self._pages = self._read()
            self._pages.setdefault(page, {})[key] = value
            if self.path and self.writes:
                storage.write_json(self.path, {"version": 1, "pages": self._pages})

    def shared(self, page: str, key: str, usable: Callable[[Any], bool], make: Callable[[], Any]) -> Any:
        """Returns an entry that all workers share: a usable one, or what the chief makes.

        Args:
            page: part of the ledger.
            key: name of the entry.
            usable: whether an entry that is there can be used.
            make: makes a new one.

        Raises:
            UserError: the chief made none within ten minutes.
        """
        with self._lock:
            found = self.get(page, key)
            if found is not None and usable(found):
                return found
            if self.writes:
                self.put(page, key, make())
                return self.get(page, key)
        until = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < until:
            with self._lock:
                self._pages = self._read()
                found = self._pages.get(page, {}).get(key)
            if found is not None and usable(found):
                return found
            time.sleep(_POLL_SECONDS)
        raise UserError(
            f"{self.path}: the chief has opened no read session within {_WAIT_SECONDS:g} s; all workers need "
            "the same output folder, and its log may tell why"
        )
