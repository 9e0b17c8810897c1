"""One job at a time in an output folder: a lock file with a heartbeat. Adopters: leave.

A job that was killed leaves its lock behind, and on the service its successor may have the same host name and
even the same process id. So a lock counts only while its holder is alive: on the same machine the process
table tells, otherwise the heartbeat does: a stranger watches the file for a while, and takes it over if it
doesn't change (no two clocks are compared). In a mounted bucket it watches for longer: there, what another
machine has written may be seen a minute late, or can't be read at all for a while.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

from trainer import storage
from trainer.errors import UserError

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10.0
WATCH_SECONDS = 35.0  # three missed heartbeats
MOUNT_WATCH_SECONDS = 100.0  # in a mounted bucket, which keeps what it knows of a file for 60 s

_UNREADABLE: dict[str, Any] = {}  # a lock file that is there, and can't be read just now


class FolderLock:
    """Holds a folder for this process; use it as a context manager.

    Args:
        folder: The output folder, local or gs://.
        heartbeat: Seconds between two signs of life.
        watch: Seconds for which a lock of unknown state must not change before it is taken over; None: as
            long as the kind of folder asks for.
    """

    def __init__(
        self, folder: str, *, heartbeat: float = HEARTBEAT_SECONDS, watch: float | None = None
    ) -> None:
        if watch is None:
            watch = MOUNT_WATCH_SECONDS if storage.is_bucket_mount(folder) else WATCH_SECONDS
        self.path = f"{folder.rstrip('/')}/lock.json"
        self._folder = folder
        self._heartbeat = heartbeat
        self._watch = watch
        self._id = uuid.uuid4().hex
        self._beats = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            UserError: A living job holds it; names its process, host and the way out.
        """
        holder = self._read()
        if holder is not None and self._is_held(holder):
            holder = self._read() or holder
            raise UserError(
                f"the folder {self._folder} is in use by process {holder.get('pid')} on host "
                f"{holder.get('host')}: wait for it, stop it, or give this run another output_dir"
            )
        if holder:
            log.info("taking over the lock of process %s, which is gone", holder.get("pid"))
        self._beat()
        written = self._read()
        if written is None or written.get("id") != self._id:  # two jobs started at the same moment
            raise UserError(f"the folder {self._folder} was taken by another job just now: try again later")
        self._thread = threading.Thread(target=self._keep_alive, name="folder-lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Gives the lock back; does nothing if another job has taken it meanwhile."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        holder = self._read()
        if holder and holder.get("id") == self._id:
            _remove(self.path)

    def _read(self) -> dict[str, Any] | None:
        try:
            value = storage.read_json(self.path)
        except ValueError:  # half-written by a job that died
            return None
        except OSError:
            return _UNREADABLE
        return value if isinstance(value, dict) else None

    def _is_held(self, holder: dict[str, Any]) -> bool:
        if holder.get("host") == socket.gethostname() and holder.get("boot") == _boot_id():
            return _started(holder.get("pid")) == holder.get("started")
        log.info("the lock %s may be of a job that is gone: watching it for %.0f s", self.path, self._watch)
        end = time.monotonic() + self._watch
        while time.monotonic() < end:
            time.sleep(min(1.0, self._watch / 5))
            now = self._read()
            if now is None:
                return False
            if now is _UNREADABLE:
                continue
            if holder is _UNREADABLE:
                holder = now
            elif (now.get("id"), now.get("beat")) != (holder.get("id"), holder.get("beat")):
                return True
        return False

    def _beat(self) -> None:
        self._beats += 1
        storage.write_text(
            self.path,
            json.dumps(
                {
                    "pid": os.getpid(),
                    "host": socket.gethostname(),
                    "boot": _boot_id(),
                    "started": _started(os.getpid()),
                    "id": self._id,
                    "beat": self._beats,
                    "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                }
            ),
        )

    def _keep_alive(self) -> None:
        while not self._stop.wait(self._heartbeat):
            try:
                self._beat()
            except Exception as error:  # a hiccup of the store must not end the training
                log.warning("the lock %s could not be renewed: %s", self.path, error)


def _remove(path: str) -> None:
    if storage.is_remote(path):
        import tensorflow as tf

        tf.io.gfile.remove(path)
    else:
        Path(path).unlink(missing_ok=True)


def _boot_id() -> str:
    """Names this start of this machine; containers on one host share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return ""


def _started(pid: Any) -> str | None:
    """Returns when a process started (clock ticks since boot), or None if there is none.

    The pid alone would not do: in a container every job is process 1.
    """
    if not isinstance(pid, int):
        return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        fields = text.rpartition(")")[2].split()  # from field 3 on; the name before it may hold blanks
        return None if fields[0] in "ZX" else fields[19]  # a zombie is dead
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:  # no /proc: ask for the process, which sends no signal
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return "alive"
    return "alive"
