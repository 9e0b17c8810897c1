"""Processes of tests that start in a tenth of a second, of one that has imported TensorFlow and forks.

A Python process spends five seconds of CPU on importing TensorFlow and Keras, more than most tests of several
processes spend on all else. `Process` is a process of its own all the same: it can be killed, stopped and
waited for, it reads its own environment, and TensorFlow's runtime starts in it, after the fork. What it does
not have is the start and the end of an interpreter, so tests of single runs start theirs by `subprocess`.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import runpy
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, reduction
from pathlib import Path
from typing import Any
from unittest import mock

_FORKS = multiprocessing.get_context("forkserver")


@functools.cache
def _warm_up() -> None:
    """Starts the process that is forked; it ends with this one."""
    tests = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join([tests, os.path.dirname(tests)])
    with mock.patch.dict(os.environ, PYTHONPATH=path):  # it inherits no other way to find its imports
        _FORKS.set_forkserver_preload(["warm_imports"])
        forkserver.ensure_running()


def _child(command: Sequence[str], cwd: str, environ: Mapping[str, str], outputs: Sequence[Any]) -> None:
    """Becomes what `python *command` is; `outputs` are its standard output and error."""
    for standard, output in zip((1, 2), outputs, strict=True):
        descriptor = output.detach()
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - of the whole process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    sys.path[:0] = [cwd, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    first, *rest = command
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


class Process:
    """`python *command` by fork, with the methods of subprocess.Popen that tests use.

    Args:
        command: what follows `python`: `-m` and a module, `-c` and code, or a file, and the arguments.
        env: its whole environment.
        cwd: folder in which it starts.
        apart: give errors by themselves; else they are among the output.
    """

    def __init__(
        self, command: Sequence[object], env: Mapping[str, str], cwd: Path | str = ".", apart: bool = False
    ) -> None:
        _warm_up()
        self.args = [str(part) for part in command]
        pipes = [os.pipe() for _ in range(1 + apart)]
        try:
            writing = [reduction.DupFd(pipe[1]) for pipe in (pipes[0], pipes[-1])]
            self._process = _FORKS.Process(
                target=_child, args=(self.args, os.path.abspath(cwd), dict(env), writing)
            )
            self._process.start()
        finally:
            for _, end in pipes:
                os.close(end)
        self.pid: int = self._process.pid or 0
        streams = [open(pipe[0]) for pipe in pipes]  # noqa: SIM115 - open as long as the process is looked at
        self.stdout = streams[0]
        self._read = {stream: b"" for stream in streams}

    @property
    def returncode(self) -> int | None:
        """Exit code, -N if signal N ended it, None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Reads to the end of its output and waits for it; what was read before a timeout is kept."""
        limit = time.monotonic() + (1e9 if timeout is None else timeout)
        with selectors.DefaultSelector() as selector:
            for stream in self._read:
                if not stream.closed:
                    selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(0.0, limit - time.monotonic()))
                if not ready:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    self._read[key.fileobj] += data  # type: ignore[index]
                    if not data:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
        self.wait(max(1.0, limit - time.monotonic()))
        texts = [data.decode(errors="replace") for data in self._read.values()]
        return texts[0], texts[1] if len(texts) > 1 else ""

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    command: Sequence[object], env: Mapping[str, str], cwd: Path | str = ".", timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Runs `python *command` by fork to its end, as subprocess.run does."""
    process = Process(command, env, cwd, apart=True)
    try:
        output, errors = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.wait(60), output, errors)
