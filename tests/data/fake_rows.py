"""Rows whose every part tells which row it is, for tests of pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.data.pipeline import Pipeline
from trainer.errors import UserError

CACHES = ["memory", "disk", "none"]
UNITS = (7, 0, 23, 5, 1, 30, 11, 2, 40, 13)  # 132 rows


@dataclass(frozen=True)
class FakeUnit:
    index: int
    rows: int | None
    first: int
    size: int
    name: str = "unit"


class FakeSource:
    """Rows with a number each, in units; counts what is read."""

    name = "train"
    schema = pa.schema([("id", pa.int64())])

    def __init__(self, sizes: tuple[int, ...] = UNITS, batch: int = 4, counted: bool = True) -> None:
        firsts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        self._units = [
            FakeUnit(i, size if counted else None, firsts[i], size, f"unit {i}")
            for i, size in enumerate(sizes)
        ]
        self._batch = batch
        self.read_units: list[int] = []
        self.fail_in: int | None = None

    def no_rows(self) -> UserError:
        return UserError(f"the {self.name} split has no rows")

    def units(self) -> list[FakeUnit]:
        return list(self._units)

    def count(self) -> int:
        self._units = [replace(unit, rows=unit.size) for unit in self._units]
        return sum(unit.size for unit in self._units)

    def read(self, unit: FakeUnit, columns: Any = None) -> Iterator[pa.RecordBatch]:
        self.read_units.append(unit.index)
        for start in range(0, unit.size, self._batch):
            if self.fail_in == unit.index and start:
                raise UserError(f"{unit.name}: row {start} is broken")
            ids = np.arange(unit.first + start, unit.first + min(start + self._batch, unit.size))
            yield pa.record_batch({"id": pa.array(ids, pa.int64())})


def encode(batch: Any, label: str = "binary") -> SimpleNamespace:
    """Encodes a row's number so that every part of a batch tells which row it is."""
    ids = batch.column("id").to_numpy() if len(batch) else np.zeros(0, np.int64)
    labels = {
        "binary": (ids % 2).astype(np.float32),
        "multiclass": (ids % 7).astype(np.int32),
        "multilabel": np.stack([ids % 2, ids % 3 == 0, ids % 5 == 0], 1).astype(np.float32),
        "none": None,
    }
    return SimpleNamespace(
        numeric=np.stack([ids + 0.25, -ids], 1).astype(np.float32),
        categorical=np.stack([ids, ids + 1, ids * 2], 1).astype(np.int32),
        label=labels[label],
        weight=(ids % 4 + 1).astype(np.float32),
        key=np.array([f"row {i}" for i in ids], object),
    )


def make(tmp_path: Path, cache: str, source: FakeSource | None = None, **settings: Any) -> Pipeline:
    settings = {"batch_size": 8, "seed": 3, "shuffle_rows": 32, "chunk_rows": 16} | settings
    return Pipeline(
        source or FakeSource(), encode, cache=cache, cache_dir=str(tmp_path), fingerprint="f", **settings
    )


def ids_of(batches: Any) -> np.ndarray:
    """Returns the row numbers of batches, -1 for padding; checks that the parts of a row belong together."""
    found = []
    for batch in batches:
        part = {name: np.asarray(value) for name, value in batch.items()}
        ids = part["categorical"][:, 0].astype(np.int64)
        valid = part["valid"] == 1
        assert np.isin(part["valid"], (0, 1)).all()
        np.testing.assert_array_equal(part["categorical"], np.stack([ids, ids + 1, ids * 2], 1))
        np.testing.assert_array_equal(part["numeric"], np.stack([ids + 0.25, -ids], 1))
        np.testing.assert_array_equal(part["label"], ids % 2)
        np.testing.assert_array_equal(part["weight"], np.where(valid, ids % 4 + 1, 0))
        if valid.any():  # padding repeats rows of its batch; a shard may hold padding alone
            assert np.isin(ids[~valid], ids[valid]).all()
        found.append(np.where(valid, ids, -1))
    return np.concatenate(found)
