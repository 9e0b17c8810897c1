"""Shared by the feature tests: configs, nasty random tables, and the same rows as a serving request."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainer.config import Config
from trainer.features import Features

INT64_MIN = -(2**63)
FLOATS = [0.0, -0.0, 1.0, -1.5, 0.1, float("nan"), float("inf"), 17.25, None]
EXTREMES = [3.4e38, -3.4e38, 1e39, 1e-30, 1e-45, float("-inf"), 1e9, 16_777_217.0]
TEXTS = [
    "a",
    "b",
    "ü",
    "日本語",
    "a b",
    "",
    None,
    "unseen?",
    "x" * 8,
    "x" * 9,
    "y" * 40,
    "7",
    "7.0",
    "nan",
    "\x1f",
]
INTEGERS = [0, 1, 2, 3, 7, -1, 2**40, -(2**62), 2**63 - 1, INT64_MIN, None]


def config(*features: dict[str, Any], task: str = "binary", **label: Any) -> Config:
    """Returns a config with some features; the label column is `y`."""
    return Config.model_validate(
        {
            "name": "t",
            "task": task,
            "data": {"source": ["x"], "split": {"by": "hash", "column": "k"}},
            "label": {"column": "y", **label},
            "features": list(features),
        }
    )


ALL_KINDS: tuple[dict[str, Any], ...] = (
    *(
        {"kind": "numeric", "name": f"x_{normalize}", "column": "x", "normalize": normalize, "impute": impute}
        for normalize, impute in (("none", "zero"), ("standard", "mean"), ("minmax", -2.5), ("log", "median"))
    ),
    {"kind": "numeric", "name": "x_bare", "column": "x", "indicator": False},
    {"kind": "numeric", "name": "x_cut", "column": "x", "normalize": "quantile", "buckets": 5},
    {"kind": "numeric", "name": "x_cut_bare", "column": "x", "normalize": "quantile", "indicator": False},
    {"kind": "numeric", "name": "whole", "column": "n"},
    {"kind": "categorical", "name": "word"},
    {"kind": "categorical", "name": "word_few", "column": "word", "max_size": 2, "oov_buckets": 5},
    {
        "kind": "categorical",
        "name": "word_oov",
        "column": "word",
        "min_count": 3,
        "missing": "oov",
        "oov_buckets": 3,
    },
    {"kind": "categorical", "name": "number_word", "column": "n"},
    {"kind": "hashed", "name": "word_hash", "column": "word", "buckets": 11},
    {"kind": "hashed", "name": "number_hash", "column": "n", "buckets": 7},
    {"kind": "integer", "name": "id", "column": "n", "size": 4},
    {"kind": "boolean", "name": "flag"},
    {
        "kind": "datetime",
        "name": "at",
        "parts": ["hour", "weekday", "day", "month", "dayofyear"],
        "age": True,
    },
    {"kind": "datetime", "name": "at_bare", "column": "at", "indicator": False},
    {"kind": "bag", "name": "tags", "max_length": 3, "oov_buckets": 4, "weights": "tag_weights"},
    {"kind": "bag", "name": "tags_plain", "column": "tags", "max_length": 5, "max_size": 2},
    {"kind": "vector", "name": "v", "length": 3},
    {"kind": "vector", "name": "v_scaled", "column": "v", "length": 3, "normalize": "standard"},
    {"kind": "cross", "name": "crossed", "of": ["word", "id", "flag"], "buckets": 50},
    {"kind": "cross", "name": "crossed_numbers", "of": ["number_word", "word_hash"], "buckets": 13},
)


def table(rows: int, seed: int, nasty: bool = True) -> pa.Table:
    """Returns random rows for `ALL_KINDS`; nasty: with extremes that a train split had better not hold."""
    rng = np.random.default_rng(seed)
    floats = FLOATS + (EXTREMES if nasty else [])

    def pick(values: list[Any]) -> list[Any]:
        return [values[place] for place in rng.integers(0, len(values), rows)]

    lengths = rng.integers(0, 6, rows)
    tags = [
        None if rng.random() < 0.1 else [TEXTS[place] for place in rng.integers(0, len(TEXTS), n)]
        for n in lengths
    ]
    weights = [0.0, 0.5, 2.0, None, float("nan"), 1e-42, *([-1.0, float("inf")] if nasty else [])]
    tag_weights = [
        None
        if row is None or rng.random() < 0.1
        else [weights[place] for place in rng.integers(0, len(weights), len(row))]
        for row in tags
    ]
    moments = rng.integers(-(10**15), 3 * 10**15, rows)
    vectors = [
        None if rng.random() < 0.2 else [floats[place] for place in rng.integers(0, len(floats), 3)]
        for _ in range(rows)
    ]
    return pa.table(
        {
            "x": pa.array(
                [value if rng.random() < 0.4 else float(rng.normal(5, 3)) for value in pick(floats)],
                pa.float64(),
            ),
            "n": pa.array(pick(INTEGERS), pa.int64()),
            "word": pa.array(pick(TEXTS), pa.string()),
            "flag": pa.array(pick([True, False, None]), pa.bool_()),
            "at": pa.array(moments, pa.timestamp("us", tz="UTC"), mask=rng.random(rows) < 0.1),
            "tags": pa.array(tags, pa.list_(pa.string())),
            "tag_weights": pa.array(tag_weights, pa.list_(pa.float32())),
            "v": pa.array(vectors, pa.list_(pa.float32())),
            "y": pa.array(rng.integers(0, 2, rows)),
        }
    )


def request(features: Features, rows: pa.Table) -> dict[str, np.ndarray]:
    """Returns rows as arrays of the types and shapes that `features.raw_inputs` asks for, row by row."""
    arrays = {}
    for raw in features.raw_inputs:
        dtype = {"string": object, "float32": np.float32, "int64": np.int64, "bool": np.bool_}[raw.dtype]
        values = rows[raw.name].to_pylist()
        if raw.shape == ():
            flat = [
                raw.default if value is None else _text(value, place) for place, value in enumerate(values)
            ]
            with np.errstate(over="ignore"):
                arrays[raw.name] = np.array(flat, dtype)
            continue
        width = raw.shape[0] or max((len(value or ()) for value in values), default=0) + 1
        block = np.full((len(values), width), raw.default, dtype)
        for place, value in enumerate(values):
            filled = [raw.default if entry is None else entry for entry in value or ()]
            with np.errstate(over="ignore"):
                block[place, : len(filled)] = np.array(filled, dtype)
        arrays[raw.name] = block
    return arrays


def _text(value: Any, place: int) -> Any:
    """Writes a moment in one of the forms that a request may use."""
    if not isinstance(value, datetime.datetime):
        return value
    naive = value.replace(tzinfo=None)
    if place % 4 == 0:
        return naive.isoformat(sep="T") + "Z"
    if place % 4 == 1:
        return naive.isoformat(sep=" ") + " UTC"
    if place % 4 == 2:
        return naive.isoformat(sep=" ")
    return value.astimezone(datetime.timezone(datetime.timedelta(hours=-5, minutes=-30))).isoformat()


def same(one: Any, other: Any, rounding: float = 1e-12) -> None:
    """Asserts that two documents are equal, numbers with a point but for rounding."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            if name != "fingerprint":  # of all the rest, to the bit
                same(one[name], other[name], rounding)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            same(mine, theirs, rounding)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=rounding, abs=rounding, nan_ok=True)
    else:
        assert one == other
