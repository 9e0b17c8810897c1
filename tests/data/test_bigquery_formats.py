"""BigQuery = Parquet = CSV = JSON lines = Avro = Arrow = TFRecord: the same encoded blocks of each split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from format_writers import FORMATS, make_config, sample, write

from tests.servers.bigquery import BigQueryServer
from trainer.data import bigquery_client
from trainer.data.encode import Encoder
from trainer.data.source import open_splits
from trainer.features import Features, fit

TABLE = sample(1500)
SPLITS = (
    {"by": "time", "column": "day", "validation_from": "2024-01-07", "test_from": "2024-01-11"},
    {"by": "hash", "column": "id", "validation_fraction": 0.2, "test_fraction": 0.2},
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    place = TABLE.column_names.index("vector")  # BigQuery has no FLOAT32
    stored = TABLE.set_column(place, "vector", TABLE["vector"].cast(pa.list_(pa.float64())))
    with BigQueryServer({"p.d.t": stored}, message_rows=100, block_rows=400) as server:
        yield server.address


def encoded(source: str | Path, split: dict[str, Any], features: Features | None = None) -> Any:
    """Returns the blocks of each split, and the features that were fitted where none were given."""
    config = make_config(source, split, key="id")
    splits = open_splits(config)
    features = features or fit(config, splits.train.batches())
    encoder = Encoder(features, key_column="id")
    found = []
    for one in splits.sources:
        parts = [encoder(batch) for batch in one.batches(encoder.columns)]
        names = ("numeric", "categorical", "label", "weight", "key")
        found.append({name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
    return found, features


@pytest.mark.parametrize("split", SPLITS, ids=["time", "hash"])
def test_encoded_blocks_are_those_of_every_format(
    split: dict[str, Any], address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(bigquery_client.EMULATOR, address)
    table, features = encoded("bigquery://p.d.t", split)
    assert len(table[0]["label"]) > 500
    for kind in FORMATS:
        files, _ = encoded(write(TABLE, tmp_path / f"rows.{kind}", kind), split, features)
        for mine, theirs in zip(table, files, strict=True):
            # Keys in their text form: text files don't tell integers.
            mine["key"], theirs["key"] = mine["key"].astype(str), theirs["key"].astype(str)
            for name in mine:
                np.testing.assert_array_equal(mine[name], theirs[name], err_msg=f"{kind}: {name}")
