"""Ends what this process has started when this process itself is ended without a word. Adopters: leave.

A process that is killed with -9 can't tidy up. So a second, tiny one reads a pipe from it: when the pipe
ends, whatever the reason, it kills every process group that the pipe named and didn't take back.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading

_PROGRAM = """\
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    group = int(line[1:])
    groups.add(group) if line[0] == "+" else groups.discard(group)
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class Keeper:
    """Watches over process groups; use it as a context manager. Several threads may share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Keeper:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C reaches this process alone
        )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.wait()
        self._process = None

    def watch(self, group: int) -> None:
        """Kills this process group if the calling process vanishes."""
        self._tell(f"+{group}\n")

    def release(self, group: int) -> None:
        """Leaves a process group alone, which has ended."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with self._lock, contextlib.suppress(OSError):  # the keeper was killed: nothing else depends on it
            process.stdin.write(line)
            process.stdin.flush()
