"""Waits for a job on the service: its state, its logs, how it ended. Adopters: leave."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

from trainer.errors import EXIT_FAILED
from trainer.jobs import links
from trainer.jobs.calls import Call
from trainer.jobs.cloudlogs import CloudLogs, LogsError
from trainer.jobs.service import Status

log = logging.getLogger("trainer")

EXIT_KEYBOARD = 130
_STILL_SECONDS = 600.0  # how often a file is told that nothing has changed
_LEVELS = {"WARNING": logging.WARNING, "ERROR": logging.ERROR, "CRITICAL": logging.ERROR}
_STOPS = {
    "CustomJob": "custom-jobs",
    "HyperparameterTuningJob": "hp-tuning-jobs",
}


class Asks(Protocol):
    """What is asked how a job is doing."""

    def status(self, name: str) -> Status:
        """Returns how a job is doing."""
        ...


class _Line:
    """The line at the bottom of a terminal that is written over; nothing anywhere else."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._shown = False

    def show(self, text: str) -> None:
        if self.live:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


def wait(
    service: Asks,
    call: Call,
    name: str,
    logs: CloudLogs | None,
    *,
    poll: float = 15.0,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> int:
    """Waits until a job has ended, telling its states and printing its logs, and returns the exit code.

    Args:
        service: is asked for the state.
        call: the call that made the job.
        name: its resource name.
        logs: is asked for log entries; None leaves them out.
        poll: seconds between two looks.
        pause: waits.
        clock: seconds, for the time that has passed.

    Returns:
        0 when it succeeded, 1 when it did not, 130 after Ctrl-C, which leaves the job running.

    Raises:
        UserError: the service doesn't tell any more.
    """
    line, began = _Line(), clock()
    told = ""
    told_at = began
    shells: set[str] = set()
    try:
        while True:
            status = service.status(name)
            now = clock()
            still = not line.live and now - told_at >= _STILL_SECONDS
            if (status.state != told or still) and not status.is_done:
                line.clear()
                log.info("%s", progress(status, now - began))
                told, told_at = status.state, now
            logs = _print_logs(logs, status, line)
            for replica, address in status.web_access.items():
                if replica not in shells:
                    line.clear()
                    log.info("shell of %s: %s", replica, address)
                    shells.add(replica)
            if status.is_done:
                break
            line.show(progress(status, now - began))
            pause(poll)
        line.clear()
        if status.trials:
            log.info("%s", progress(status, clock() - began))
        return _ended(status, call, name)
    except KeyboardInterrupt:
        line.clear()
        log.warning("stopped waiting; the job goes on. To end it: %s", cancel_command(call, name))
        return EXIT_KEYBOARD


def _print_logs(logs: CloudLogs | None, status: Status, line: _Line) -> CloudLogs | None:
    """Prints new log entries; gives up on logs that can't be read."""
    if logs is None:
        return None
    try:
        for entry in logs.new(status.log_jobs):
            line.clear()
            log.log(_LEVELS.get(entry.severity, logging.INFO), "%s | %s", entry.replica, entry.message)
    except LogsError as error:
        line.clear()
        log.warning("%s; waiting without them", error)
        return None
    return logs


def progress(status: Status, seconds: float) -> str:
    """Returns how a job is doing in one line, such as `RUNNING 00:12:30 · 3 of 5 trials done`."""
    whole = int(seconds)
    parts = [f"{status.state} {whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"]
    if status.trials:
        done = sum(count for state, count in status.trials.items() if state not in ("ACTIVE", "REQUESTED"))
        states = ", ".join(f"{count} {state.lower()}" for state, count in sorted(status.trials.items()))
        parts.append(f"{done} of {sum(status.trials.values())} trials done ({states})")
    if status.best:
        metric, value, trial = status.best
        parts.append(f"best {metric} {value:.6g} (trial {trial})")
    return " · ".join(parts)


def _ended(status: Status, call: Call, name: str) -> int:
    took = ""
    if status.started is not None and status.ended is not None:
        took = f" after {(status.ended - status.started) / 60:.1f} minutes"
    if status.succeeded:
        log.info("%s%s: %s", status.state, took, name)
        if status.model:
            log.info("model %s · %s", status.model, links.model(call, status.model))
        return 0
    why = f": {status.error}" if status.error else ""
    log.error(
        "%s%s%s; logs: %s",
        status.state,
        took,
        why,
        links.logs(call, (status.log_jobs or (name.rpartition("/")[2],))[0]),
    )
    return EXIT_FAILED


def cancel_command(call: Call, name: str) -> str:
    """Returns the command that ends a job."""
    job = name.rpartition("/")[2]
    if call.kind in _STOPS:
        where = f"--region={call.target.region} --project={call.target.project}"
        return f"gcloud ai {_STOPS[call.kind]} cancel {job} {where}"
    return links.console(call, name)
