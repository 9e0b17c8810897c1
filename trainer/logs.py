"""Log lines, progress and figures: a live bar, plain lines or one-line JSON. Adopters: leave.

Three forms, by where the process runs. A terminal gets a live bar with log lines above it. A file or a pipe
gets plain lines: INFO on standard output, the rest on standard error. The training service reads one JSON
object a line from standard output, because it takes whatever comes on standard error for an error.

Anything may log to `logging.getLogger("trainer")` or a child of it; other libraries are heard from
WARNING up.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TextIO

log = logging.getLogger("trainer")

_handler: _Handler | None = None


class _Handler(logging.Handler):
    """Writes records as plain lines; the other two forms are its subclasses.

    Attributes:
        label: name of this process among several; empty for a lone one.
    """

    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label

    def text(self, record: logging.LogRecord) -> str:
        """Returns the message with its traceback: one entry, however many lines."""
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return text

    def line(self, record: logging.LogRecord) -> str:
        """Returns the text for people."""
        kind = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"{f'[{self.label}] ' if self.label else ''}{kind}{self.text(record)}"

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # Looked up at each record: whoever redirects sys.stdout gets the lines.
            self.write(record)
        except Exception:
            self.handleError(record)

    def write(self, record: logging.LogRecord) -> None:
        """Writes one record."""
        _put(sys.stderr if record.levelno >= logging.WARNING else sys.stdout, self.line(record))


def _put(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")  # in one piece, so that lines of threads don't mix
    stream.flush()


class _JsonHandler(_Handler):
    def write(self, record: logging.LogRecord) -> None:
        entry: dict[str, Any] = {"severity": record.levelname, "message": self.text(record)}
        if self.label:
            entry["replica"] = self.label
        entry.update(_finite_only(getattr(record, "fields", {})))
        _put(sys.stdout, json.dumps(entry, default=str))


class _TerminalHandler(_Handler):
    def __init__(self, label: str) -> None:
        super().__init__(label)
        from rich.console import Console

        self.console = Console(highlight=False, soft_wrap=True)
        self.live = 0  # bars on the screen

    def write(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and not self.live:
            _put(sys.stderr, self.line(record))
            return
        style = "yellow" if record.levelno >= logging.WARNING else None
        self.console.print(self.line(record), markup=False, style=style)


def _finite_only(value: Any) -> Any:
    """JSON has no NaN: turns floats that are not finite into texts."""
    if isinstance(value, Mapping):
        return {key: _finite_only(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _is_terminal() -> bool:
    import os

    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def setup(*, on_service: bool = False, label: str = "", debug: bool = False) -> None:
    """Sends the records of this process to the right place; called again, it starts anew.

    Python's warnings and exceptions that nobody caught become records too.

    Args:
        on_service: write JSON lines.
        label: name of this process among several, put before each line.
        debug: show the trainer's DEBUG and other libraries' INFO records too.
    """
    global _handler
    root = logging.getLogger()
    if _handler is not None:
        root.removeHandler(_handler)
    kind = _JsonHandler if on_service else _TerminalHandler if _is_terminal() else _Handler
    _handler = kind(label)
    root.addHandler(_handler)  # TensorFlow and absl add handlers of their own only where the root has none
    root.setLevel(logging.INFO if debug else logging.WARNING)
    log.setLevel(logging.DEBUG if debug else logging.INFO)
    warnings.showwarning = _show_warning
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    logging.getLogger("py.warnings").warning("%s: %s (%s:%d)", category.__name__, message, filename, lineno)


def _uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        log.error("interrupted from the keyboard")
    else:
        log.critical("uncaught %s", kind.__name__, exc_info=(kind, error, trace))


def _uncaught_in_thread(details: threading.ExceptHookArgs) -> None:
    if details.exc_value is None or issubclass(details.exc_type, SystemExit):
        return
    name = details.thread.name if details.thread else "a thread"
    log.error("uncaught in %s", name, exc_info=(details.exc_type, details.exc_value, details.exc_traceback))


# --- figures in words -------------------------------------------------------------------------------


def figure(value: object) -> str:
    """Returns a figure for reading: whole numbers with commas, others with four digits that count."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3e}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def figures(values: Mapping[str, object]) -> str:
    """Returns `name figure, name figure, ...`."""
    return ", ".join(f"{name} {figure(value)}" for name, value in values.items())


def duration(seconds: float) -> str:
    """Returns a time span for reading: `45 s`, `2 min 10 s`, `3 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


# --- progress ---------------------------------------------------------------------------------------


class Progress(Protocol):
    """How training gets on. The loop calls `start` once, the others as it goes, and `close` at the end."""

    def start(self, total_steps: int, *, step: int = 0, epochs: int | None = None) -> None:
        """Begins.

        Args:
            total_steps: steps of the whole run.
            step: steps done by an earlier start of the run.
            epochs: epochs of the whole run.
        """

    def update(
        self,
        step: int,
        *,
        loss: float | None = None,
        metrics: Mapping[str, float] | None = None,
        examples_per_second: float | None = None,
        input_share: float | None = None,
        eta: float | None = None,
    ) -> None:
        """Tells where training is; call it as often as you like.

        Args:
            step: steps done.
            loss: training loss lately.
            metrics: training metrics lately.
            examples_per_second: rows a second over all replicas.
            input_share: share of the time (0 to 1) spent waiting for input.
            eta: seconds left; worked out from the steps so far when not given.
        """

    def epoch(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Tells the figures of a finished epoch (1 is the first)."""

    def close(self) -> None:
        """Ends; more calls do nothing."""


class LineProgress:
    """Progress as log lines: one for each epoch, and one now and then between."""

    def __init__(self, every_seconds: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Makes one.

        Args:
            every_seconds: least time between two lines of an epoch.
            clock: returns seconds.
        """
        self._every, self._clock = every_seconds, clock
        self._total = self._first = 0
        self._epochs: int | None = None
        self._begun = self._last = clock()

    def start(self, total_steps: int, *, step: int = 0, epochs: int | None = None) -> None:
        """See `Progress`."""
        self._total, self._first, self._epochs = total_steps, step, epochs
        self._begun = self._last = self._clock()

    def seconds_left(self, step: int) -> float | None:
        """Returns the time left at the pace since `start`, or None before the first step."""
        done = step - self._first
        return (self._clock() - self._begun) / done * (self._total - step) if done > 0 else None

    def parts(
        self,
        step: int,
        loss: float | None,
        metrics: Mapping[str, float] | None,
        examples_per_second: float | None,
        input_share: float | None,
        eta: float | None,
    ) -> str:
        """Returns the figures of an update in words."""
        words = [figures({**({} if loss is None else {"loss": loss}), **(metrics or {})})]
        if examples_per_second is not None:
            words.append(f"{examples_per_second:,.0f} examples/s")
        if input_share is not None:
            words.append(f"{input_share:.0%} waiting for input")
        left = self.seconds_left(step) if eta is None else eta
        if left is not None:
            words.append(f"{duration(left)} left")
        return ", ".join(filter(None, words))

    def update(
        self,
        step: int,
        *,
        loss: float | None = None,
        metrics: Mapping[str, float] | None = None,
        examples_per_second: float | None = None,
        input_share: float | None = None,
        eta: float | None = None,
    ) -> None:
        """See `Progress`."""
        if self._clock() - self._last < self._every:
            return
        self._last = self._clock()
        text = self.parts(step, loss, metrics, examples_per_second, input_share, eta)
        values = {"loss": loss, "examples_per_second": examples_per_second, "input_share": input_share}
        fields = {"step": step, **{k: v for k, v in values.items() if v is not None}, **(metrics or {})}
        log.info("step %s/%s: %s", f"{step:,}", f"{self._total:,}", text, extra={"fields": fields})

    def epoch(self, epoch: int, logs: Mapping[str, float]) -> None:
        """See `Progress`."""
        self._last = self._clock()  # its line has just been written
        of = f"/{self._epochs}" if self._epochs else ""
        log.info("epoch %d%s: %s", epoch, of, figures(logs), extra={"fields": {"epoch": epoch, **logs}})

    def close(self) -> None:
        """See `Progress`."""


class TerminalProgress(LineProgress):
    """Progress as a live bar; a finished epoch leaves a line above it."""

    def __init__(self, handler: _TerminalHandler) -> None:
        """Makes one on the console that the log lines go to."""
        super().__init__()
        from rich import progress

        self._handler = handler
        self._bar = progress.Progress(
            progress.BarColumn(bar_width=24),
            progress.TextColumn(
                "step {task.completed:,.0f}/{task.total:,.0f}  {task.fields[text]}", markup=False
            ),
            console=handler.console,
            transient=True,  # the summary follows; a bar at 100 % would only stand in its way
        )
        self._task: progress.TaskID | None = None

    def start(self, total_steps: int, *, step: int = 0, epochs: int | None = None) -> None:
        """See `Progress`."""
        super().start(total_steps, step=step, epochs=epochs)
        self._task = self._bar.add_task("", total=total_steps, completed=step, text="")
        self._bar.start()
        self._handler.live += 1

    def update(
        self,
        step: int,
        *,
        loss: float | None = None,
        metrics: Mapping[str, float] | None = None,
        examples_per_second: float | None = None,
        input_share: float | None = None,
        eta: float | None = None,
    ) -> None:
        """See `Progress`."""
        if self._task is not None:
            text = self.parts(step, loss, metrics, examples_per_second, input_share, eta)
            self._bar.update(self._task, completed=step, text=text)

    def close(self) -> None:
        """See `Progress`."""
        if self._task is not None:
            self._task = None
            self._handler.live -= 1
            self._bar.stop()


class NoProgress:
    """Progress that says nothing, for replicas other than the chief."""

    def start(self, total_steps: int, *, step: int = 0, epochs: int | None = None) -> None:
        """See `Progress`."""

    def update(self, step: int, **_: Any) -> None:
        """See `Progress`."""

    def epoch(self, epoch: int, logs: Mapping[str, float]) -> None:
        """See `Progress`."""

    def close(self) -> None:
        """See `Progress`."""


def progress(is_chief: bool = True) -> Progress:
    """Returns the progress display for where this process runs; see `setup`.

    Args:
        is_chief: only the chief tells how training gets on, as the figures are those of all replicas.
    """
    if not is_chief:
        return NoProgress()
    return TerminalProgress(_handler) if isinstance(_handler, _TerminalHandler) else LineProgress()


# --- the last word ----------------------------------------------------------------------------------


def summary(rows: Sequence[Mapping[str, object]], title: str = "") -> None:
    """Shows a table of figures, such as the metrics of each split.

    Args:
        rows: one mapping a row, of column to value; a column that a row lacks stays empty there.
        title: line above the table.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[figure(row[name]) if name in row else "" for name in columns] for row in rows]
    if isinstance(_handler, _TerminalHandler):
        from rich.table import Table

        table = Table(title=title or None, title_justify="left")
        for index, name in enumerate(columns):
            table.add_column(name, justify="left" if index == 0 else "right")
        for line in cells:
            table.add_row(*line)
        _handler.console.print(table, soft_wrap=False)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in [columns, *cells]
    ]
    log.info(
        "\n".join(filter(None, [title, *lines])), extra={"fields": {"figures": [dict(row) for row in rows]}}
    )
