"""Log lines in their three forms, progress, figures and the last table."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer import logs

log = logging.getLogger("trainer")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    """Takes what `setup` did back."""
    root = logging.getLogger()
    kept = (root.level, log.level, warnings.showwarning, sys.excepthook, threading.excepthook)
    yield
    if logs._handler is not None:
        root.removeHandler(logs._handler)
    logs._handler = None
    root.setLevel(kept[0])
    log.setLevel(kept[1])
    warnings.showwarning, sys.excepthook, threading.excepthook = kept[2:]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def set_up_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], _Terminal]:
    """Returns what sets logs up on a terminal of 120 columns (pytest owns sys.stdout until the test runs)."""

    def set_up() -> _Terminal:
        stream = _Terminal()
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setenv("NO_COLOR", "1")
        logs.setup()
        return stream

    return set_up


def _entries(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# --- lines ------------------------------------------------------------------------------------------


def test_json_lines_on_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(on_service=True)
    log.info("a %d", 1)
    log.warning("b\nc")
    log.debug("hidden")
    logging.getLogger("trainer.data.files").error("d é")
    logging.getLogger("elsewhere").info("hidden")
    logging.getLogger("elsewhere").warning("w")
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("it failed")
    warnings.warn("old", UserWarning, stacklevel=1)
    out, err = capsys.readouterr()
    assert err == ""
    entries = _entries(out)
    assert [entry["severity"] for entry in entries] == [
        "INFO",
        "WARNING",
        "ERROR",
        "WARNING",
        "ERROR",
        "WARNING",
    ]
    assert [entry["message"] for entry in entries[:4]] == ["a 1", "b\nc", "d é", "w"]
    assert entries[4]["message"].startswith("it failed\nTraceback (most recent call last):\n")
    assert entries[4]["message"].endswith("ValueError: boom")
    assert entries[5]["message"].startswith("UserWarning: old (")
    assert set(entries[0]) == {"severity", "message"}


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(on_service=True, label="worker 1")
    log.info("x", extra={"fields": {"loss": float("nan"), "deep": {"a": float("inf")}, "n": 3}})
    entry = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert entry == {
        "severity": "INFO",
        "message": "x",
        "replica": "worker 1",
        "loss": "nan",
        "deep": {"a": "inf"},
        "n": 3,
    }


def test_plain_lines_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(label="chief")
    log.info("a")
    log.warning("b")
    log.error("c")
    assert capsys.readouterr() == ("[chief] a\n", "[chief] warning: b\n[chief] error: c\n")


def test_debug_shows_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(debug=True)
    log.debug("a")
    logging.getLogger("elsewhere").info("b")
    assert capsys.readouterr().out == "a\nb\n"


def test_setup_again_replaces_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup()
    logs.setup(on_service=True)
    log.info("once")
    assert len(_entries(capsys.readouterr().out)) == 1


def test_threads_that_fail_are_one_entry(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(on_service=True)
    thread = threading.Thread(target=lambda: 1 / 0, name="reader")
    thread.start()
    thread.join()
    (entry,) = _entries(capsys.readouterr().out)
    assert entry["severity"] == "ERROR"
    assert entry["message"].startswith("uncaught in reader\nTraceback")
    assert "ZeroDivisionError" in entry["message"]


def test_a_terminal_gets_text_as_it_is(
    set_up_terminal: Callable[[], _Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = set_up_terminal()
    log.info("x" * 200 + " [red]not markup[/red]")
    log.warning("w")
    log.error("to the error stream")
    assert terminal.getvalue() == "x" * 200 + " [red]not markup[/red]\nwarning: w\n"
    assert capsys.readouterr().err == "error: to the error stream\n"


def test_an_uncaught_exception_and_tensorflows_records_are_json_lines(tmp_path: Path) -> None:
    program = """\
        import os, warnings
        from trainer import logs, process
        process.prepare()
        logs.setup(on_service=True)
        with process.quiet_import():
            import tensorflow as tf
            import absl.logging
        tf.get_logger().warning("from tensorflow")
        absl.logging.warning("from absl")
        absl.logging.info("hidden")
        warnings.warn("from python")
        tf.function(lambda x: x + 1)(tf.constant(1))
        raise RuntimeError("the end")
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env={
            "PYTHONPATH": str(Path(logs.__file__).parent.parent),
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
        },
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == ""  # all that TensorFlow's native code says at its import, for one
    entries = _entries(done.stdout)
    assert [entry["severity"] for entry in entries] == ["WARNING", "WARNING", "WARNING", "CRITICAL"]
    assert [entry["message"] for entry in entries[:2]] == ["from tensorflow", "from absl"]
    assert entries[2]["message"].startswith("UserWarning: from python")
    assert entries[3]["message"].startswith("uncaught RuntimeError\nTraceback")


# --- figures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (12.5, "12.5"),
        (1234567, "1,234,567"),
        (12345.6, "12,346"),
        (1.5e-7, "1.500e-07"),
        (1e9, "1.000e+09"),
        (0.0, "0"),
        (float("nan"), "nan"),
        (True, "True"),
        ("x", "x"),
        (None, "None"),
    ],
)
def test_figure(value: object, text: str) -> None:
    assert logs.figure(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (130, "2 min 10 s"),
        (11100, "3 h 5 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert logs.duration(seconds) == text


# --- progress ---------------------------------------------------------------------------------------


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_of_progress_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup()
    clock = _Clock()
    progress = logs.LineProgress(every_seconds=30, clock=clock)
    progress.start(10_000, step=1_000, epochs=10)
    for step in range(1_001, 1_101):
        clock.now += 0.5
        progress.update(
            step, loss=0.43215, metrics={"auc": 0.8}, examples_per_second=51234.0, input_share=0.034
        )
    progress.epoch(2, {"loss": 0.4, "val_auc": 0.81})
    clock.now += 29
    progress.update(1_200)
    progress.close()
    assert capsys.readouterr().out.splitlines() == [
        "step 1,060/10,000: loss 0.4321, auc 0.8, 51,234 examples/s, 3% waiting for input, 1 h 14 min left",
        "epoch 2/10: loss 0.4, val_auc 0.81",
    ]


def test_progress_on_the_service_has_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(on_service=True)
    progress = logs.progress()
    assert type(progress) is logs.LineProgress
    progress = logs.LineProgress(every_seconds=0)
    progress.start(10)
    progress.update(5, loss=0.5, metrics={"auc": 0.75}, eta=7.0)
    progress.epoch(1, {"val_auc": 0.5})
    progress.close()
    first, second = _entries(capsys.readouterr().out)
    assert first == {
        "severity": "INFO",
        "message": "step 5/10: loss 0.5, auc 0.75, 7 s left",
        "step": 5,
        "loss": 0.5,
        "auc": 0.75,
    }
    assert second == {"severity": "INFO", "message": "epoch 1: val_auc 0.5", "epoch": 1, "val_auc": 0.5}


def test_the_bar_shows_the_figures_and_goes(set_up_terminal: Callable[[], _Terminal]) -> None:
    terminal = set_up_terminal()
    progress = logs.progress()
    assert isinstance(progress, logs.TerminalProgress)
    progress.start(100, step=10, epochs=2)
    progress.update(
        50, loss=0.25, metrics={"auc": 0.9}, examples_per_second=1000.0, input_share=0.5, eta=61.0
    )
    progress._bar.refresh()
    assert "step 50/100  loss 0.25, auc 0.9, 1,000 examples/s, 50% waiting for input, 1 min 1 s left" in (
        terminal.getvalue()
    )
    log.error("shown above the bar")
    progress.epoch(1, {"loss": 0.2})
    assert "error: shown above the bar" in terminal.getvalue()
    assert "epoch 1/2: loss 0.2" in terminal.getvalue()
    progress.close()
    progress.close()
    progress.update(60)
    assert terminal.getvalue().endswith("\x1b[1A\x1b[2K")  # the bar's line is wiped
    assert logs._handler is not None
    assert logs._handler.live == 0  # type: ignore[attr-defined]


def test_a_dumb_terminal_gets_lines(
    set_up_terminal: Callable[[], _Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up_terminal()
    monkeypatch.setenv("TERM", "dumb")
    logs.setup()
    assert type(logs.progress()) is logs.LineProgress


def test_only_the_chief_tells(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup()
    progress = logs.progress(is_chief=False)
    progress.start(3, step=0, epochs=1)
    progress.update(1, loss=0.1)
    progress.epoch(1, {"loss": 0.1})
    progress.close()
    assert capsys.readouterr() == ("", "")


# --- the last table ---------------------------------------------------------------------------------

ROWS = [{"split": "train", "rows": 1000, "auc": 0.91234}, {"split": "test", "rows": 99, "loss": 0.5}]


def test_the_table_in_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup()
    logs.summary(ROWS, "Figures")
    assert capsys.readouterr().out == (
        "Figures\nsplit   rows     auc  loss\ntrain  1,000  0.9123      \ntest      99           0.5\n"
    )


def test_the_table_is_one_entry_on_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(on_service=True)
    logs.summary(ROWS)
    (entry,) = _entries(capsys.readouterr().out)
    assert entry["figures"] == ROWS
    assert entry["message"].splitlines()[1] == "train  1,000  0.9123      "


def test_the_table_on_a_terminal(set_up_terminal: Callable[[], _Terminal]) -> None:
    terminal = set_up_terminal()
    logs.summary(ROWS, "Figures")
    text = re.sub(r"\x1b\[\d*m", "", terminal.getvalue())  # bold and italics
    for word in ("Figures", "split", "1,000", "0.9123", "0.5"):
        assert word in text
    assert len({len(line) for line in text.splitlines()[1:]}) == 1  # a box: all lines are equally wide
