"""A whole run by its command, on a small table: its folder, and what happens to it the second time."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from small_run import Small, trainer

pytestmark = pytest.mark.slow


def test_folder_holds_what_is_promised(finished: Path) -> None:
    for name in (
        "model/saved_model.pb",
        "model_examples/saved_model.pb",
        "config.yaml",
        "features.json",
        "report.html",
    ):
        assert (finished / name).is_file(), name
    assert not (finished / "lock.json").exists()
    status = json.loads((finished / "status.json").read_text())
    assert status["state"] == "succeeded"
    metrics = json.loads((finished / "metrics.json").read_text())
    assert {"train", "validation", "test", "steps", "examples_per_second", "seconds"} <= set(metrics)
    for split, rows in (("train", 2137), ("validation", 428), ("test", 405)):
        assert metrics[split]["examples"] == rows
        assert 0.6 < metrics[split]["auc"] < 1
        assert np.isfinite(metrics[split]["loss"])
    assert metrics["steps"] == 3 * 34  # 2,137 rows make 34 steps of 64: the last one is padded
    assert json.loads((finished / "parity.json").read_text())["passed"] is True


def test_dropped_rows_are_counted(finished: Path) -> None:
    data = json.loads((finished / "data.json").read_text())
    dropped = {name: split["dropped without a label"] for name, split in data.items()}
    assert sum(dropped.values()) == 31  # rows 0, 97, 194, ... of 3,001
    assert sum(split["rows"] for split in data.values()) == 3001 - 31


def test_report_shows_the_figures_of_metrics_json(finished: Path) -> None:
    page = (finished / "report.html").read_text()
    metrics = json.loads((finished / "metrics.json").read_text())
    embedded = json.loads(re.search(r'id="metrics">(.*?)</script>', page, re.S)[1].replace("<\\/", "</"))
    assert embedded == metrics
    assert f"{metrics['test']['auc']:.4f}" in page
    assert not re.search(r'(src|href)="(?!#|data:)[^"]', page), "the page must not need anything from outside"
    for heading in (
        "Figures",
        "Data",
        "Training",
        "Quality",
        "Slices",
        "Permutation importance",
        "Where the time went",
    ):
        assert f"<h2>{heading}" in page


def test_predictions_of_the_saved_model_give_the_figures_of_the_run(small: Small, finished: Path) -> None:
    output = small.folder / "predictions.csv"
    done = trainer(
        "predict", "--model", finished / "model", "--input", small.data, "--output", output, cwd=small.folder
    )
    assert done.returncode == 0, done.stderr
    predictions = pacsv.read_csv(output)
    assert predictions["row_id"].to_pylist() == small.table["row_id"].to_pylist()
    test = [
        (truth, probability)
        for at, truth, probability in zip(
            small.table["at"].to_pylist(),
            small.table["late"].to_pylist(),
            predictions["probability"].to_pylist(),
            strict=True,
        )
        if at.isoformat() >= "2024-01-19" and truth is not None
    ]
    from sklearn.metrics import log_loss, roc_auc_score

    truth, probability = (np.array(values) for values in zip(*test, strict=True))
    metrics = json.loads((finished / "metrics.json").read_text())["test"]
    assert len(truth) == metrics["examples"]
    assert roc_auc_score(truth, probability) == pytest.approx(metrics["auc"], abs=2e-4)
    assert log_loss(truth, probability) == pytest.approx(metrics["loss"], abs=1e-5)
    assert {str(label).lower() for label in predictions["label"].to_pylist()} <= {"true", "false"}


def test_a_finished_run_is_not_trained_again(small: Small, finished: Path) -> None:
    before = (finished / "model" / "saved_model.pb").stat().st_mtime_ns
    again = small.train("finished")
    assert again.returncode == 0
    assert "finished" in again.stdout
    assert (finished / "model" / "saved_model.pb").stat().st_mtime_ns == before


def test_a_folder_of_another_config_is_refused_by_key(small: Small, finished: Path) -> None:
    other = small.train("finished", "--training.learning_rate=0.5")
    assert other.returncode == 2
    assert "training.learning_rate: 0.01 -> 0.5" in other.stderr
    assert "Traceback" not in other.stderr + other.stdout
    assert len(other.stderr.strip().splitlines()) == 1, "one sentence, no noise"


def test_fresh_moves_the_old_run_aside(small: Small) -> None:
    first = small.train("again", "--max_steps=5")
    assert first.returncode == 0, first.stderr
    other = small.train("again", "--max_steps=6", "--fresh")
    assert other.returncode == 0, other.stderr
    aside = [path for path in small.folder.iterdir() if path.name.startswith("again.old-")]
    assert len(aside) == 1
    assert json.loads((aside[0] / "metrics.json").read_text())["steps"] == 5
    assert json.loads((small.folder / "again" / "metrics.json").read_text())["steps"] == 6


def test_service_folders_win_for_their_parts(small: Small) -> None:
    base = small.folder / "job-2024-01-01 10:11:12.345"
    done = small.train(
        "service", "--max_steps=3",
        AIP_MODEL_DIR=f"{base}/model/", AIP_CHECKPOINT_DIR=f"{base}/checkpoints/",
        AIP_TENSORBOARD_LOG_DIR=f"{base}/logs/", CLOUD_ML_JOB_ID="123",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (base / "model" / "saved_model.pb").is_file()
    assert any((base / "checkpoints").iterdir())
    assert any((base / "logs").rglob("events.*"))
    for line in done.stdout.splitlines():  # what the service reads: one JSON object a line
        entry = json.loads(line)
        assert entry["severity"]
        assert "message" in entry
    assert done.stderr == ""


def test_unwritable_folder_is_found_before_training(small: Small) -> None:
    (small.folder / "a-file").write_text("")
    done = small.train("a-file/run")
    assert done.returncode == 2
    assert "output_dir" in done.stderr
    assert "Traceback" not in done.stderr


def test_statistics_come_from_the_train_split_alone(small: Small, finished: Path, tmp_path: Path) -> None:
    """Other validation and test rows leave features.json as it is, byte for byte."""
    table = small.table
    later = pc.greater_equal(table["at"], pa.scalar(datetime(2024, 1, 16, tzinfo=timezone.utc)))
    for name, value in (("age", 1e6), ("income", 1e6), ("state", "only later")):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pc.if_else(later, value, table[name]))
    other = Small(tmp_path / "changed")
    pq.write_table(table, other.data, row_group_size=700)
    done = other.train("run", "--max_steps=2")
    assert done.returncode == 0, done.stderr
    assert (other.folder / "run" / "features.json").read_bytes() == (finished / "features.json").read_bytes()


def test_an_empty_split_is_an_error(small: Small) -> None:
    done = small.train("empty", "--data.split.test_from=2031-01-01")
    assert done.returncode == 2
    assert "test" in done.stderr
    assert "no row" in done.stderr
