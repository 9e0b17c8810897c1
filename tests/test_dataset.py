"""A managed dataset takes the place of the config's rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.servers.bigquery import BigQueryServer
from trainer import dataset
from trainer.config import Config
from trainer.data.source import open_splits
from trainer.errors import UserError

BASE = {
    "name": "t",
    "task": "binary",
    "data": {"source": "mine.parquet", "split": {"by": "hash", "column": "id"}},
    "label": {"column": "y"},
    "features": [{"name": "x", "kind": "numeric"}],
}
CONFIG = Config(**BASE)
NAMES = (dataset.FORMAT, *dataset.URIS)


def given(*values: str) -> dict[str, str]:
    return {name: value for name, value in zip(NAMES, values, strict=True) if value}


def counts(config: Config) -> list[int]:
    return [source.count() for source in open_splits(config).sources]


def test_without_the_variables_nothing_changes() -> None:
    assert dataset.apply(CONFIG, {}) is CONFIG
    assert dataset.apply(CONFIG, given("", "", "", "")) is CONFIG


@pytest.mark.parametrize("ending", [".csv", ""])
def test_wildcards_over_files(ending: str, tmp_path: Path) -> None:
    folder = tmp_path / "dataset-1-classification-2024-01-01T00:00:00.000Z"
    folder.mkdir()
    for part, rows in (("training", 4), ("validation", 2), ("test", 1)):
        for shard in range(2):
            lines = [f"{shard}{i},{i},{i % 2}" for i in range(rows)]
            (folder / f"{part}-0000{shard}-of-00002{ending}").write_text("\n".join(["id,x,y", *lines]) + "\n")
    uris = [f"{folder}/{part}-*{ending}" for part in ("training", "validation", "test")]
    assert counts(dataset.apply(CONFIG, given("csv", *uris))) == [8, 4, 2]
    assert counts(dataset.apply(CONFIG, given("csv", uris[0], uris[1], ""))) == [8, 4]
    own = dataset.apply(CONFIG, given("csv", uris[0], "", ""))  # the config's own split of these rows
    assert own.data.split == CONFIG.data.split
    assert own.data.source == (uris[0],)


def test_json_lines(tmp_path: Path) -> None:
    for part in ("training", "validation", "test"):
        (tmp_path / f"{part}-1").write_text(json.dumps({"x": 1.5, "y": 1}) + "\n")
    uris = [f"{tmp_path}/{part}-*" for part in ("training", "validation", "test")]
    assert counts(dataset.apply(CONFIG, given("jsonl", *uris))) == [1, 1, 1]


def test_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "p.dataset_1_tables_2024_01_01T00_00_00_000Z"
    parts = {"training": 7, "validation": 3, "test": 2}
    tables = {f"{name}.{part}": pa.table({"x": [1.0] * n, "y": [n % 2] * n}) for part, n in parts.items()}
    with BigQueryServer(tables) as server:
        monkeypatch.setenv("BIGQUERY_STORAGE_EMULATOR_HOST", server.address)
        config = dataset.apply(CONFIG, given("bigquery", *(f"bq://{name}.{part}" for part in parts)))
        assert counts(config) == [7, 3, 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("csv", "", "", ""), "AIP_DATA_FORMAT=csv is set, but AIP_TRAINING_DATA_URI"),
        (
            ("", "", "gs://b/validation-*", ""),
            "AIP_VALIDATION_DATA_URI=gs://b/validation-.* is set, but",
        ),
        (("cvs", "gs://b/training-*", "", ""), "AIP_DATA_FORMAT: got 'cvs', expected bigquery, csv, jsonl"),
        (("bigquery", "gs://b/t-*", "", ""), "AIP_TRAINING_DATA_URI=gs://b/t-.*expected bq://project"),
        (
            ("csv", "gs://b/t-*", "bq://p.d.t", ""),
            "AIP_VALIDATION_DATA_URI=bq://p.d.t: AIP_DATA",
        ),
        (
            ("csv", "gs://b/t-*", "", "gs://b/test-*"),
            "AIP_TEST_DATA_URI=gs://b/test-.* is set, but",
        ),
    ],
)
def test_contradictions_are_told(values: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataset.apply(CONFIG, given(*values))


def test_the_trainer_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(BASE))
    for name, value in given("csv", "gs://b/training-*", "gs://b/validation-*", "gs://b/test-*").items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, "-m", "trainer", "train", "--config", str(path), "--print_config"],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True,
    )  # fmt: skip
    for text in (
        "- gs://b/training-*",
        "format: csv",
        "by: paths",
        "- gs://b/validation-*",
        "- gs://b/test-*",
    ):
        assert text in done.stdout
