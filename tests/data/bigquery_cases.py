"""A table with all that is awkward, a config that reads it, and sources on a local BigQuery server."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.servers.bigquery import BigQueryServer
from trainer.config import Config
from trainer.data.bigquery import BigQuerySource
from trainer.data.source import Splits, open_splits

UTC = datetime.timezone.utc
NAME = "p.d.t"
SOURCE = f"bigquery://{NAME}"


def sample(rows: int = 1000, seed: int = 5) -> pa.Table:
    """Rows with nulls, lists, records and a rare label that is missing."""
    generator = np.random.default_rng(seed)
    missing = generator.random((6, rows)) < 0.1
    start = datetime.datetime(2024, 1, 1, tzinfo=UTC)
    words = generator.choice(["red", "green", "blue", "é"], rows)
    return pa.table(
        {
            "row_id": [f"r{i:05d}" for i in range(rows)],
            "at": pa.array(
                [start + datetime.timedelta(hours=i) for i in range(rows)], pa.timestamp("us", tz="UTC")
            ),
            "x": pa.array(generator.normal(0, 3, rows), mask=missing[0]),
            "count": pa.array(generator.integers(0, 50, rows), mask=missing[1]),
            "word": pa.array(list(words), mask=missing[2]),
            "flag": pa.array(generator.random(rows) < 0.5, mask=missing[3]),
            "tags": pa.array([list(generator.choice(["a", "b", "c"], i % 4)) for i in range(rows)]),
            "geo": pa.array(
                [None if gone else {"lat": float(i % 90), "lon": -1.0} for i, gone in enumerate(missing[4])],
                pa.struct([("lat", pa.float64()), ("lon", pa.float64())]),
            ),
            "price": pa.array(
                [
                    None if gone else decimal.Decimal(i % 100) / 8
                    for i, gone in zip(range(rows), missing[5], strict=True)
                ],
                pa.decimal128(20, 4),
            ),
            "part": pa.array([("training", "training", "validation", "test")[i % 4] for i in range(rows)]),
            "y": pa.array([None if i % 97 == 0 else bool(i % 3 == 0) for i in range(rows)]),
        }
    )


FEATURES = [
    {"name": "x", "kind": "numeric"},
    {"name": "count", "kind": "categorical"},
    {"name": "word", "kind": "categorical"},
    {"name": "flag", "kind": "boolean"},
    {"name": "tags", "kind": "bag", "max_length": 4},
    {"name": "lat", "column": "geo.lat", "kind": "numeric"},
    {"name": "price", "kind": "numeric"},
    {"name": "at", "kind": "datetime", "parts": ["hour"]},
]
TIME_SPLIT = {"by": "time", "column": "at", "validation_from": "2024-01-25", "test_from": "2024-02-05T06:00Z"}


def make_config(source: Any = SOURCE, *, features: Any = None, task: str = "binary", **data: Any) -> Config:
    """Returns a config for `sample`."""
    data = {"source": source, "split": TIME_SPLIT, "key": "row_id", "retry_seconds": 30, **data}
    return Config(
        name="t",
        task=task,
        data=data,
        label={"column": "y"},
        features=FEATURES if features is None else features,
    )


def write_parquet(table: pa.Table, folder: Path, row_group: int = 250) -> str:
    """Writes a table to a Parquet file and returns its path."""
    path = folder / "t.parquet"
    pq.write_table(table, path, row_group_size=row_group)
    return str(path)


def rows_of(source: Any, columns: list[str] | None = None) -> list[tuple[Any, ...]]:
    """Returns all rows of a source, in order."""
    rows: list[tuple[Any, ...]] = []
    for batch in source.batches(columns):
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows


def keys_of(source: Any) -> list[str]:
    """Returns the keys of all rows of a source, in order."""
    return [row[0] for row in rows_of(source, ["row_id"])]


def quick(splits: Splits) -> list[float]:
    """Makes the waits of sources take no time; returns the list of the waits that were asked for."""
    waits: list[float] = []
    for source in splits.sources:
        assert isinstance(source, BigQuerySource)
        source._files.connection.patience.sleep = waits.append
    return waits


def opened(server: BigQueryServer, memory: Path | None = None, **data: Any) -> tuple[Splits, list[float]]:
    """Opens the splits of a table on a server; the second result is the list of waits."""
    splits = open_splits(make_config(**data), None if memory is None else str(memory))
    return splits, quick(splits)
