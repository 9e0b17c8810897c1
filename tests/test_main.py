"""The entry points: verbs, exit codes, what is printed where, and what can only be set early."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import trainer
from trainer import __main__, logs, process, task
from trainer.errors import EXIT_INTERRUPTED, TrainingError, UserError
from trainer.interruption import Interrupted

YAML = """\
name: demo
task: binary
data: {source: rows.csv, split: {by: hash, column: id}}
label: {column: y}
features: [{name: age, kind: numeric}]
"""


@pytest.fixture(autouse=True)
def _restore(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Works in a folder with a config, and takes back what the entry points did to the process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(YAML)
    root, log = logging.getLogger(), logging.getLogger("trainer")
    kept = (
        root.level,
        log.level,
        warnings.showwarning,
        sys.excepthook,
        threading.excepthook,
        dict(os.environ),
    )
    yield
    if logs._handler is not None:
        root.removeHandler(logs._handler)
    logs._handler = None
    root.setLevel(kept[0])
    log.setLevel(kept[1])
    warnings.showwarning, sys.excepthook, threading.excepthook = kept[2:5]
    os.environ.clear()
    os.environ.update(kept[5])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, bool, bool]]:
    """Puts a recorder in the place of the training run."""
    calls: list[tuple[Any, bool, bool]] = []

    def train(config: Any, *, fresh: bool, debug: bool) -> None:
        calls.append((config, fresh, debug))

    fake = types.ModuleType("trainer.run")
    fake.train = train  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trainer.run", fake)
    monkeypatch.setattr(trainer, "run", fake, raising=False)
    return calls


def _raiser(error: BaseException) -> Callable[[Sequence[str]], int | None]:
    def command(argv: Sequence[str]) -> int | None:
        raise error

    return command


def test_a_config_and_flags_become_a_run(runs: list[tuple[Any, bool, bool]]) -> None:
    assert task.main(["--config=x.yaml", "--fresh", "--seed", "7.0"]) == 0
    ((config, fresh, debug),) = runs
    assert (config.name, config.seed, fresh, debug) == ("demo", 7, True, False)


@pytest.mark.parametrize(
    ("argv", "environ", "text"),
    [
        (["--config=x.yaml", "--seed=x"], {}, "error: Invalid seed: got 'x', expected a whole number"),
        (["--config=y.yaml"], {}, "error: --config: no such file: y.yaml; did you mean 'x.yaml'?"),
        (["--config=x.yaml"], {"TF_CONFIG": "{cluster:"}, "error: TF_CONFIG is not JSON: "),
        (
            ["--config=x.yaml"],
            {"TF_CONFIG": '{"cluster":{"worker":["h:1"]},"task":{"type":"worker"}}'},
            "error: TF_CONFIG: task.index is missing",
        ),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(
    argv: list[str],
    environ: dict[str, str],
    text: str,
    runs: list[tuple[Any, bool, bool]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert task.main(argv) == 2
    out, err = capsys.readouterr()
    assert err.startswith(text)
    assert "Traceback" not in err
    assert (out, runs) == ("", [])


@pytest.mark.parametrize(
    "tf_config", ["", "{}", '{"cluster":{"chief":["h:1"]},"task":{"type":"chief","index":"0"}}']
)
def test_a_lone_process_trains_without_tf_config(
    tf_config: str, runs: list[tuple[Any, bool, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config)
    assert task.main(["--config=x.yaml"]) == 0
    assert len(runs) == 1
    assert "TF_CONFIG" not in os.environ


@pytest.mark.parametrize(
    ("error", "code", "severity"),
    [
        (UserError("a sentence"), 2, "ERROR"),
        (TrainingError("a sentence"), 1, "ERROR"),
        (KeyboardInterrupt(), 130, "ERROR"),
        (RuntimeError("boom"), 1, "CRITICAL"),
    ],
)
def test_how_a_command_ends(
    error: BaseException,
    code: int,
    severity: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOUD_ML_JOB", "{}")
    assert task.guard(_raiser(error), []) == code
    out, err = capsys.readouterr()
    (entry,) = [json.loads(line) for line in out.splitlines()]
    assert entry["severity"] == severity
    assert ("Traceback" in entry["message"]) == (severity == "CRITICAL")
    assert err == ""


def test_a_run_that_was_asked_to_stop_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert task.guard(_raiser(Interrupted("stopped")), []) == EXIT_INTERRUPTED == 143
    assert capsys.readouterr().err == "warning: stopped\n"


def test_debug_shows_where_a_mistake_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert task.guard(_raiser(UserError("a sentence")), ["--debug"]) == 2
    out, err = capsys.readouterr()
    assert err == "error: a sentence\n"
    assert "Traceback" in out


def test_files_that_would_be_lost_are_warned_of(
    runs: list[tuple[Any, bool, bool]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_ML_JOB", "{}")
    task.main(["--config=x.yaml"])
    (entry,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert entry["severity"] == "WARNING"
    assert "goes when the job ends" in entry["message"]


# --- verbs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_without_a_verb_the_verbs_are_listed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.run(argv) == 0
    out = capsys.readouterr().out
    for name, verb in __main__.VERBS.items():
        assert f"  {name} " in out
        assert verb.description in out


@pytest.mark.parametrize(
    ("name", "hint"), [("trian", "; did you mean 'train'?"), ("x", "; expected one of train, evaluate")]
)
def test_an_unknown_verb(name: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        __main__.run([name])
    assert str(caught.value).startswith(f"unknown verb {name!r}{hint}")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["check", "--help"], ["cost", "--help"]]
)
@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_reader_that_leaves_is_no_error(arguments: list[str], buffered: str) -> None:
    """As `python -m trainer --help | head -1` is, only that here the reader is gone from the start."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "trainer", *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(trainer.__file__).parent.parent),
            "PYTHONUNBUFFERED": buffered,
        },
        timeout=120,
        check=False,
    )
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode in (0, task.EXIT_PIPE)


def test_another_broken_pipe_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert task.guard(_raiser(BrokenPipeError("a connection")), []) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_train_verb_is_the_task(runs: list[tuple[Any, bool, bool]]) -> None:
    assert __main__.run(["train", "--config=x.yaml", "--seed=9"]) == 0
    assert runs[0][0].seed == 9


def test_verbs_point_to_modules() -> None:
    root = Path(trainer.__file__).parent.parent
    for verb in __main__.VERBS.values():
        text = root.joinpath(*verb.module.split(".")).with_suffix(".py").read_text()
        assert f"def {verb.function}(" in text, verb


# --- what can only be set early ---------------------------------------------------------------------


def test_native_logs_are_quiet_unless_told_otherwise() -> None:
    environ = {"MALLOC_ARENA_MAX": "2"}
    process.prepare(environ)
    assert environ["TF_CPP_MIN_LOG_LEVEL"] == "3"
    assert environ["MIMALLOC_PURGE_DELAY"] == "10000"
    kept = {"TF_CPP_MIN_LOG_LEVEL": "1", "MALLOC_ARENA_MAX": "2"}
    process.prepare(kept)
    assert kept["TF_CPP_MIN_LOG_LEVEL"] == "1"
    loud = {"MALLOC_ARENA_MAX": "2"}
    process.prepare(loud, debug=True)
    assert "TF_CPP_MIN_LOG_LEVEL" not in loud


def test_the_allocator_keeps_what_is_freed() -> None:
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        pytest.skip("glibc only")
    program = """\
import resource, sys
from trainer import process
print(process.tune_allocator({} if sys.argv[1] == "tuned" else {"MALLOC_TOP_PAD_": "1"}))
def work():
    for _ in range(200):
        kept = [bytearray(1_300_000) for _ in range(3)]
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    root = str(Path(trainer.__file__).parent.parent)
    faults = {}
    for kind in ("tuned", "stock"):
        done = subprocess.run(
            [sys.executable, "-c", program, kind],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": root},
            check=True,
        )
        taken, count = done.stdout.split()
        assert taken == str(kind == "tuned")
        faults[kind] = int(count)
    assert faults["tuned"] < 1000 < faults["stock"]


def test_noise_of_an_import_is_dropped_and_the_rest_is_kept(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    with contextlib.suppress(ImportError), process.quiet_import():
        os.write(
            2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        )
        os.write(2, b"I0000 00:00:1.2   1 port.cc:153] oneDNN custom operations are on.\n")
        os.write(2, b"2026-11-30 08:34:39.74: I tensorflow/core/util/port.cc:153] oneDNN is on.\n")
        os.write(2, b"E0000 00:00:1.2   1 x.cc:1] an error\n")
        print("from Python", file=sys.stderr)
        raise ImportError
    assert sorted(capfd.readouterr().err.splitlines()) == [
        "E0000 00:00:1.2   1 x.cc:1] an error",
        "from Python",
    ]
    with process.quiet_import(debug=True):
        os.write(2, b"I0000 info\n")
    assert capfd.readouterr().err == "I0000 info\n"
