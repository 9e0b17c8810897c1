"""What a tuning study gets to read, byte for byte, with cloudml-hypertune and without it."""

from __future__ import annotations

import builtins
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from trainer import reporting
from trainer.environment import Service
from trainer.errors import TrainingError, UserError

TRIAL = Service(on_service=True, trial_id="7")


@pytest.fixture(autouse=True)
def metric_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives each test a process that has reported nothing yet, a clock that stands, and a file."""
    monkeypatch.setattr(reporting, "_writer", None)
    monkeypatch.setattr(time, "time", lambda: 1796020200.25)
    path = tmp_path / "hypertune" / "output.metrics"
    monkeypatch.setenv("CLOUD_ML_HP_METRIC_FILE", str(path))
    monkeypatch.setenv("CLOUD_ML_TRIAL_ID", "7")
    return path


@pytest.fixture(params=["package", "built-in"])
def each_writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test with cloudml-hypertune and as if it weren't installed."""
    if request.param == "package":
        pytest.importorskip("hypertune", reason="cloudml-hypertune is not installed")
    else:
        _uninstall(monkeypatch)
    return str(request.param)


def _uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def fake(name: str, *rest: Any, **more: Any) -> Any:
        if name == "hypertune":
            raise ModuleNotFoundError("No module named 'hypertune'", name="hypertune")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", fake)


def test_the_file_byte_for_byte(each_writer: str, metric_file: Path) -> None:
    reporter = reporting.Reporter("val_auc", TRIAL)
    assert reporter.report({"loss": 0.5, "val_auc": 0.75}, step=10) == 0.75
    reporter.report({"val_auc": 1}, step=0)
    rest = b'"timestamp": 1796020200.25, "trial": "7", "val_auc":'
    assert metric_file.read_bytes() == (
        b'{"checkpoint_path": "", "global_step": "10", ' + rest + b' "0.75"}\n'
        b'{"checkpoint_path": "", "global_step": "0", ' + rest + b' "1.0"}\n'
    )
    assert [path.name for path in metric_file.parent.iterdir()] == ["output.metrics"]


def test_many_epochs_keep_the_last_hundred_and_the_final_value(each_writer: str, metric_file: Path) -> None:
    reporter = reporting.Reporter("val_auc", TRIAL)
    for epoch in range(150):
        reporter.report({"val_auc": 0.9 if epoch == 3 else 0.5}, step=epoch)
    reporter.report({"val_auc": 0.9}, step=150)  # the exported model's
    lines = [json.loads(line) for line in metric_file.read_text().splitlines()]
    assert len(lines) == 100
    assert [line["global_step"] for line in lines] == [str(step) for step in range(51, 151)]
    assert max(float(line["val_auc"]) for line in lines) == 0.9


def test_one_writer_for_the_process(each_writer: str, metric_file: Path) -> None:
    reporting.Reporter("val_auc", TRIAL).report({"val_auc": 0.1}, step=1)
    reporting.Reporter("val_auc", TRIAL).report({"val_auc": 0.2}, step=2)
    assert len(metric_file.read_text().splitlines()) == 2


def test_the_trial_may_come_from_elsewhere(
    each_writer: str, metric_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLOUD_ML_TRIAL_ID")
    reporting.Reporter("auc", Service(trial_id="12")).report({"auc": 0.5}, step=1)
    assert json.loads(metric_file.read_text())["trial"] == "12"


def test_a_bare_file_name(each_writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUD_ML_HP_METRIC_FILE", "out.metrics")
    reporting.Reporter("auc", TRIAL).report({"auc": 0.5}, step=1)
    assert (tmp_path / "out.metrics").exists()


def test_a_file_that_cannot_be_made(
    each_writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLOUD_ML_HP_METRIC_FILE", str(tmp_path / "file" / "x" / "out.metrics"))
    with pytest.raises(UserError, match=r"^CLOUD_ML_HP_METRIC_FILE: .*can't be made: Not a directory"):
        reporting.Reporter("auc", TRIAL)


@pytest.mark.parametrize(
    "service",
    [
        Service(),
        Service(on_service=True),
        Service(trial_id="7", role="worker", worker_index=1, is_chief=False, workers=2),
    ],
)
def test_only_a_trials_chief_writes(service: Service, metric_file: Path) -> None:
    reporter = reporting.Reporter("auc", service)
    assert reporter.report({"auc": 0.5}, step=1) == 0.5
    assert not metric_file.exists()
    with pytest.raises(UserError):  # the checks are the same
        reporter.report({"loss": 0.5}, step=1)


def test_outside_a_study_the_package_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    _uninstall(monkeypatch)
    assert reporting.Reporter("auc", Service()).report({"auc": 0.5}, step=1) == 0.5


def test_without_the_package_a_debug_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _uninstall(monkeypatch)
    with caplog.at_level(logging.DEBUG, logger="trainer"):
        reporting.Reporter("auc", TRIAL)
    assert "cloudml-hypertune is not installed" in caplog.text


@pytest.mark.parametrize("tag", ["", "val auc", "auc\n", *reporting.RESERVED])
def test_names_that_would_be_lost(tag: str) -> None:
    with pytest.raises(UserError, match=r"^training\.objective: "):
        reporting.Reporter(tag, TRIAL)


def test_a_metric_that_is_not_there(metric_file: Path) -> None:
    with pytest.raises(UserError) as caught:
        reporting.Reporter("val_AUC", TRIAL).report({"loss": 1.0, "val_auc": 0.5}, step=1)
    assert (
        str(caught.value)
        == "objective 'val_AUC' is not among the figures [loss, val_auc]; did you mean 'val_auc'?"
    )
    assert not metric_file.exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_never_reported(value: float, metric_file: Path) -> None:
    with pytest.raises(TrainingError, match=r"objective 'auc' is -?(nan|inf) at step 3") as caught:
        reporting.Reporter("auc", TRIAL).report({"auc": value}, step=3)
    assert caught.value.exit_code == 1
    assert not metric_file.exists()


def test_the_metric_that_the_environment_names_is_reported_too(
    each_writer: str, metric_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(reporting.TAG, "val_loss")
    reporter = reporting.Reporter("val_auc", TRIAL)
    reporter.report({"val_auc": 0.75, "val_loss": 0.5}, step=10)
    lines = [json.loads(line) for line in metric_file.read_text().splitlines()]
    assert [line.get("val_auc") for line in lines] == ["0.75", None]
    assert [line.get("val_loss") for line in lines] == [None, "0.5"]
    assert {line["global_step"] for line in lines} == {"10"}


def test_a_name_that_the_run_does_not_produce_is_told_at_the_start(metric_file: Path) -> None:
    with pytest.raises(UserError) as caught:
        reporting.Reporter("val_AUC", TRIAL, known=("loss", "val_loss", "val_auc"))
    assert str(caught.value) == (
        "training.objective: this run has no figure 'val_AUC'; did you mean 'val_auc'?; it has loss, "
        "val_loss, val_auc"
    )
    assert not metric_file.exists()


@pytest.mark.parametrize(
    ("last", "mode", "reported"),
    [
        ("final", "max", ["0.5", "0.9", "0.7", "0.85"]),
        ("best", "max", ["0.5", "0.9", "0.7", "0.9"]),
        ("best", "min", ["0.5", "0.9", "0.7", "0.5"]),
        ("last", "max", ["0.5", "0.9", "0.7"]),
    ],
)
def test_the_last_value_is_the_final_the_best_or_the_last(
    metric_file: Path, last: str, mode: str, reported: list[str]
) -> None:
    reporter = reporting.Reporter("val_auc", TRIAL, mode=mode)
    for step, value in enumerate((0.5, 0.9, 0.7), 1):
        reporter.report({"val_auc": value}, step)
    reporter.close({"val_auc": 0.85, "loss": 1.0}, 3, last)
    lines = [json.loads(line) for line in metric_file.read_text().splitlines()]
    assert [line["val_auc"] for line in lines] == reported


def test_a_trial_that_ends_without_a_report_fails() -> None:
    with pytest.raises(TrainingError, match=r"ends without having reported its objective 'val_auc'"):
        reporting.Reporter("val_auc", TRIAL).close(None, 3)
    with pytest.raises(TrainingError, match="without having reported"):
        reporting.Reporter("val_auc", TRIAL).close({"val_auc": 0.5}, 3, "last")
    reporting.Reporter("val_auc", Service()).close(None, 3)  # no trial: nobody waits for it


def test_a_finished_trial_that_is_started_again_reports_once_more(metric_file: Path) -> None:
    told = {"metric": "val_auc", "reported": [[10, 0.5], [20, 0.75]]}
    reporting.report_again(told, Service())
    reporting.report_again(None, TRIAL)
    assert not metric_file.exists()
    reporting.report_again(told, TRIAL)
    lines = [json.loads(line) for line in metric_file.read_text().splitlines()]
    assert [(line["global_step"], line["val_auc"]) for line in lines] == [("10", "0.5"), ("20", "0.75")]
