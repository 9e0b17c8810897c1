"""docs/data.md: every block of YAML on the page works as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent / "data"))

from format_writers import sample, write

from trainer import features as feature_tools
from trainer.config import Config
from trainer.data.encode import Encoder
from trainer.data.source import open_splits

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
BLOCKS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]
FILES = {"csv": "csv", "jsonl": "jsonl", "avro": "avro", "arrow": "arrow", "tfrecord": "tfrecord"}
ALL = [block for block in BLOCKS if "features" in block]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("rows")
    table = sample()
    parts = np.random.default_rng(1).choice(["fit", "check", "prove"], table.num_rows, p=[0.8, 0.1, 0.1])
    table = table.append_column("part", pa.array(parts.tolist()))
    write(table, made / "rows.parquet", "parquet")
    write(table.slice(0, 100), made / "later.parquet", "parquet")
    for suffix, kind in FILES.items():
        write(table, made / f"rows.{suffix}", kind)
    return made


def merged(block: dict[str, Any], folder: Path) -> Config:
    data = {"source": "rows.parquet", "split": {"by": "hash", "column": "id"}, **block.get("data", {})}
    for place, key in ((data, "source"), (data["split"], "validation_source")):
        if key in place:
            place[key] = str(folder / place[key])
    return Config.model_validate(
        {
            "name": "page",
            "task": "binary",
            "data": data,
            "label": {"column": "label"},
            "features": block.get("features", [{"name": "amount", "kind": "numeric"}]),
        }
    )


def test_the_page_has_blocks_of_every_kind() -> None:
    kinds = {feature["kind"] for block in ALL for feature in block["features"]}
    assert kinds == {
        "numeric", "categorical", "hashed", "integer", "boolean", "datetime", "bag", "vector", "cross",
    }  # fmt: skip
    text = yaml.safe_dump(BLOCKS)
    assert all(f"rows.{suffix}" in text or f"rows*.{suffix}" in text for suffix in (*FILES, "parquet"))
    assert all(f"by: {by}" in text for by in ("time", "hash", "column", "paths"))


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_is_read_learned_encoded_and_served(number: int, folder: Path) -> None:
    import tensorflow as tf

    from trainer.preprocess import Preprocess

    config = merged(BLOCKS[number], folder)
    splits = open_splits(config)
    features = feature_tools.fit(config, splits.train.batches())
    assert features.rows == splits.train.counts().rows > 500
    encoder = Encoder(features)
    assert splits.validation is not None
    table = pa.Table.from_batches(splits.validation.batches(list(encoder.columns))).unify_dictionaries()
    assert table.num_rows > 20
    blocks = encoder(table)
    assert np.isfinite(blocks.numeric).all()
    raw = {item.name: _tensor(table.column(item.name), item) for item in features.raw_inputs}
    served = Preprocess(features)({name: tf.constant(value) for name, value in raw.items()})
    np.testing.assert_allclose(served["numeric"].numpy(), blocks.numeric, atol=1e-6)
    np.testing.assert_array_equal(served["categorical"].numpy(), blocks.categorical)


def _tensor(column: pa.ChunkedArray, item: feature_tools.RawInput) -> np.ndarray:
    """The column as a request would hold it."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    values = column.to_pylist()
    if item.shape == ():
        if pa.types.is_timestamp(column.type):
            values = [None if v is None else v.isoformat() for v in values]
        filled = [item.default if value is None else value for value in values]
        return np.array(filled, object if item.dtype == "string" else item.dtype)
    width = item.shape[0] or max(len(value or []) for value in values)
    rows = [list(value or []) + [item.default] * (width - len(value or [])) for value in values]
    return np.array(rows, object if item.dtype == "string" else item.dtype)


def test_equal_blocks_from_every_format(folder: Path) -> None:
    """The promise under the list of formats, on the features of the whole page."""
    names: set[str] = set()
    features = []
    for feature in (feature for block in ALL for feature in block["features"]):
        if feature["name"] not in names:
            names.add(feature["name"])
            features.append(feature)
    made = []
    for suffix in ("parquet", *FILES):
        config = merged({"data": {"source": f"rows.{suffix}"}, "features": features}, folder)
        splits = open_splits(config)
        fitted = feature_tools.fit(config, splits.train.batches())
        encoder = Encoder(fitted)
        made.append([encoder(batch) for batch in splits.train.batches(list(encoder.columns))])
    first = [
        np.concatenate([getattr(b, part) for b in made[0]]) for part in ("numeric", "categorical", "label")
    ]
    for other in made[1:]:
        for expected, part in zip(first, ("numeric", "categorical", "label"), strict=True):
            np.testing.assert_array_equal(np.concatenate([getattr(b, part) for b in other]), expected)
