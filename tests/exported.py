"""Small models with every kind of feature, exported once for all tests that need one."""

from __future__ import annotations

import atexit
import datetime
import functools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pyarrow as pa

from trainer import export, features, parity
from trainer.config import Config
from trainer.data.encode import Encoder
from trainer.models import tabular

ROWS = 60
LABELS = {"binary": "bought", "multiclass": "color", "regression": "amount", "multilabel": ("news", "offers")}


def table(rows: int = ROWS) -> pa.Table:
    """Returns raw rows with nulls in every feature column."""
    random = np.random.default_rng(7)

    def holes(values: list[Any]) -> list[Any]:
        return [None if random.random() < 0.1 else value for value in values]

    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    seconds = random.integers(0, 40_000_000, rows)
    return pa.table(
        {
            "row_id": pa.array(range(1000, 1000 + rows), pa.int64()),
            "State": pa.array(holes(random.choice(["CA", "NY", "WA", "ÎF"], rows).tolist()), pa.string()),
            "age": pa.array(holes(random.integers(18, 90, rows).tolist()), pa.int64()),
            "income": pa.array(holes((random.random(rows) * 9e4).tolist()), pa.float64()),
            "geo.lat": pa.array(holes((random.random(rows) * 90).tolist()), pa.float64()),
            "code": pa.array(holes(random.integers(0, 9, rows).tolist()), pa.int64()),
            "hour": pa.array(holes(random.integers(0, 24, rows).tolist()), pa.int64()),
            "member": pa.array(holes((random.random(rows) < 0.5).tolist()), pa.bool_()),
            "when": pa.array(
                holes([start + datetime.timedelta(seconds=int(s)) for s in seconds]),
                pa.timestamp("us", tz="UTC"),
            ),
            "tags": pa.array(
                holes([random.choice(["a", "b", "c"], random.integers(0, 6)).tolist() for _ in range(rows)]),
                pa.list_(pa.string()),
            ),
            "vector": pa.array(
                holes([random.normal(size=3).tolist() for _ in range(rows)]), pa.list_(pa.float32())
            ),
            "class": pa.array(holes(random.choice(["x", "y", "z"], rows).tolist()), pa.string()),
            "bought": random.choice(["no", "yes"], rows).tolist(),
            "color": random.choice(["red", "green", "blue"], rows).tolist(),
            "amount": random.normal(size=rows).tolist(),
            "news": random.integers(0, 2, rows).tolist(),
            "offers": random.integers(0, 2, rows).tolist(),
        }
    )


def config(task: str, **changes: Any) -> Config:
    """Returns a config over the columns of `table`."""
    given: dict[str, Any] = {
        "name": f"exported-{task}",
        "task": task,
        "label": {"column": LABELS[task]},
        "data": {"source": ["rows.parquet"], "key": "row_id", "split": {"by": "hash", "column": "row_id"}},
        "features": [
            {"kind": "categorical", "name": "State"},
            {"kind": "numeric", "name": "age"},
            {"kind": "numeric", "name": "income", "normalize": "log"},
            {
                "kind": "numeric",
                "name": "latitude",
                "column": "geo.lat",
                "normalize": "quantile",
                "buckets": 4,
            },
            {"kind": "categorical", "name": "code", "oov_buckets": 3},
            {"kind": "integer", "name": "hour", "size": 24},
            {"kind": "boolean", "name": "member"},
            {"kind": "datetime", "name": "when", "age": True},
            {"kind": "bag", "name": "tags", "max_length": 4},
            {"kind": "vector", "name": "vector", "length": 3, "normalize": "standard"},
            {"kind": "hashed", "name": "class", "buckets": 5},
            {"kind": "cross", "name": "state_member", "of": ["State", "member"]},
        ],
        "model": {"hidden_units": [8], "embedding_dim": 4},
    }
    return Config(**{**given, **changes})


@dataclass(frozen=True)
class Rig:
    """A model and all that an export of it needs."""

    config: Config
    features: features.Features
    model: keras.Model
    copy: keras.Model
    predict: Callable[[pa.Table], np.ndarray]


@functools.cache
def rig(task: str, precision: str = "float32") -> Rig:
    """Returns a model with random weights, large enough that a wrong id or number shows."""
    made = config(task, training={"mixed_precision": precision})
    fitted = features.fit(made, table().to_batches())
    model = tabular.build(made, fitted.layout, fitted.label.outputs)
    random = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(random.normal(scale=0.25, size=tuple(weight.shape)).astype(np.float32))
    copy = export.inference_copy(model, made, lambda c: tabular.build(c, fitted.layout, fitted.label.outputs))
    path = parity.training_path(Encoder(fitted, with_label=False), copy, task)
    return Rig(made, fitted, model, copy, path)


@functools.cache
def exported(task: str, precision: str = "float32") -> str:
    """Returns the folder of an exported model (with `<folder>_examples` beside it); read it only."""
    parent = tempfile.mkdtemp(prefix="exported-")
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    one = rig(task, precision)
    export.export(one.copy, one.features, f"{parent}/model/", one.config, key="int64", examples=table())
    return f"{parent}/model"
