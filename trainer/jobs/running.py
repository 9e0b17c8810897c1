"""One replica as a process of this machine: start it, hear it, end it. Adopters: leave.

Each has a process group of its own, so that whatever it starts ends with it, as in a container.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from trainer.jobs.cluster import Replica
from trainer.jobs.keeper import Keeper
from trainer.jobs.restarts import exit_code

_DRAIN_SECONDS = 10.0  # for the last lines; a program that left its group may hold the pipe open for ever


class Running:
    """A replica's process.

    Attributes:
        replica: which one.
        code: its exit code once it has ended, else None.
        lost: how its machine was lost: "preempted", "killed", or "".
        deadline: moment (time.monotonic) at which it is killed if it still runs, or None.
    """

    def __init__(
        self,
        replica: Replica,
        argv: Sequence[str],
        environ: Mapping[str, str],
        *,
        folder: str,
        log: IO[bytes],
        keeper: Keeper,
        heard: Callable[[Replica, str], None],
        ended: Callable[[Running], None],
    ) -> None:
        """Starts it.

        Args:
            replica: which one.
            argv: its command line.
            environ: its whole environment.
            folder: its working folder.
            log: takes what it writes, byte for byte; stays open.
            keeper: kills it when this process vanishes.
            heard: called with each line that it writes, from another thread.
            ended: called once, from another thread, when it has ended and all it wrote was heard.

        Raises:
            OSError: the program can't be started.
        """
        self.replica = replica
        self.code: int | None = None
        self.lost = ""
        self.deadline: float | None = None
        self._process = subprocess.Popen(
            list(argv),
            env=dict(environ),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        keeper.watch(self._process.pid)
        self._keeper = keeper
        self._reader = threading.Thread(target=self._read, args=(log, heard), daemon=True)
        self._waiter = threading.Thread(target=self._wait, args=(ended,), daemon=True)
        self._reader.start()
        self._waiter.start()

    @property
    def pid(self) -> int:
        """Its process id, which is that of its group too."""
        return self._process.pid

    def end(self, grace: float) -> None:
        """Asks it to end (SIGTERM); after `grace` seconds `expire` kills it."""
        if self.code is None and self.deadline is None:
            self.deadline = time.monotonic() + grace
            self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Kills it and all that it has started."""
        if self.code is None:
            with contextlib.suppress(OSError):  # it ended just now
                os.killpg(self.pid, signal.SIGKILL)

    def expire(self) -> None:
        """Kills it if it was asked to end and its grace is over."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.kill()

    def _send(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self._process.send_signal(number)

    def _read(self, log: IO[bytes], heard: Callable[[Replica, str], None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            log.write(line)
            log.flush()
            heard(self.replica, line.decode("utf-8", "replace").rstrip("\r\n"))
        self._process.stdout.close()

    def _wait(self, ended: Callable[[Running], None]) -> None:
        # The rest of its group goes before its id is given back, lest the id name another group by then.
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13
            self._process.wait()
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        self._keeper.release(self.pid)
        self._reader.join(_DRAIN_SECONDS)
        self.code = exit_code(code)
        ended(self)
