"""Trains small models of every kind as one of some processes; a program that test_equality.py starts.

    python tests/equality.py REPLICAS FOLDER

Rows are read, encoded, sharded and trained on by the trainer's own parts, as in a run. What this process ends
with goes to FOLDER/<rank>.npz: weights and figures of each case, and the ids of the rows it was given.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, BATCH = 1001, 48
SCALE = 8192  # ids are a feature, so that rows can be told apart: small numbers that float32 holds exactly
FILES = (1, 400, 600)  # rows of the train files: fewer files than workers, and of very different sizes
LABELS = {"binary": "late", "multiclass": "kind", "regression": "delay", "multilabel": ["late", "other"]}
CASES: dict[str, dict[str, Any]] = {
    "linear": {"model": {"name": "linear"}, "task": "regression", "data": {"cache": "none"}},
    "dnn": {"model": {"name": "dnn", "batch_norm": True}, "task": "multiclass"},
    "wide_deep": {"model": {"name": "wide_deep", "embedding_l2": 0.01}, "training": {"clip_norm": 0.5}},
    "dcn": {"model": {"name": "dcn", "l2": 0.001}, "training": {"accumulate": 2}, "data": {"cache": "disk"}},
    "multilabel": {"model": {"name": "dnn"}, "task": "multilabel", "training": {"optimizer": "adagrad"}},
}
ROUNDED = {  # of two workers alone: what crosses between them
    name: {"model": {"name": "dnn"}, "strategy": {"exchange_in": name}} for name in ("bfloat16", "float16")
}
SHARES = {"model": {"name": "dcn"}, "data": {"sharding": "rows", "cache": "none"}}


def table(rows: int, seed: int, first: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    state = random.choice(["CA", "NY", "TX", "WA"], rows)
    x = random.normal(size=rows)
    score = x + (state == "CA") + random.normal(size=rows)
    return pa.table(
        {
            "id": np.arange(first, first + rows) / SCALE,
            "key": [f"r{i}" for i in range(first, first + rows)],
            "part": ["validation" if seed else "training"] * rows,
            "x": x,
            "state": state,
            "weight": random.uniform(0.5, 2, rows),
            "late": pa.array((score > 0).astype(np.float64)),
            "other": pa.array((x > 0.3).astype(np.float64)),
            "kind": np.array(["a", "b", "c", "d"])[np.clip((score + 1.5).astype(int), 0, 3)],
            "delay": score,
        }
    )


def write(folder: Path) -> None:
    """Writes three train files, and a validation split of so few rows that shards of it are empty."""
    first = 0
    for number, rows in enumerate(FILES):
        pq.write_table(table(rows, 0, first).slice(0, rows), folder / f"{number}.parquet", row_group_size=97)
        first += rows
    pq.write_table(table(BATCH + 2, 1, 5000), folder / "z.parquet")


def config(folder: Path, case: dict[str, Any]) -> Any:
    from trainer.config import Config

    task = case.get("task", "binary")
    return Config.model_validate(
        {
            "name": "t",
            "task": task,
            "data": {
                "source": str(folder / "*.parquet"),
                "weight": "weight",
                "split": {"by": "column", "column": "part"},
                **case.get("data", {}),
            },
            "label": {"column": LABELS[task]},
            "features": [
                {"name": "id", "kind": "numeric", "normalize": "none", "impute": "zero", "indicator": False},
                {"name": "x", "kind": "numeric"},
                {"name": "state", "kind": "categorical"},
            ],
            "model": {"hidden_units": [8], "embedding_dim": 3, **case["model"]},
            "training": {"batch_size": BATCH, "epochs": 1, "learning_rate": 0.01, **case.get("training", {})},
            "strategy": case.get("strategy", {}),
        }
    )


def known_weights(model: Any) -> None:
    """Gives the model weights that are the same bits everywhere."""
    random = np.random.default_rng(3)
    made = []
    for old in model.get_weights():
        new = random.normal(scale=0.3, size=old.shape) if old.ndim > 1 else random.uniform(0.1, 1, old.shape)
        made.append(new.astype(old.dtype) if old.dtype.kind == "f" else old)
    model.set_weights(made)


def ids(pipeline: Any, batches: Any) -> np.ndarray:
    return np.concatenate([batch["numeric"][batch["valid"] > 0, 0] for batch in batches]) * SCALE


def main(replicas: int, folder: Path) -> None:
    from itertools import islice

    from trainer import environment, inputs, rendezvous
    from trainer import strategy as strategies
    from trainer.data.source import open_splits
    from trainer.loop import Loop
    from trainer.models import tabular
    from trainer.optimizer import Optimizer

    me = environment.service()
    settings = config(folder / "rows", CASES["dnn"])
    settings = settings.model_copy(
        update={"strategy": settings.strategy.model_copy(update={"cpu_replicas": replicas})}
    )
    peers = rendezvous.join(settings, me)
    strategy = strategies.create(settings)
    found: dict[str, Any] = {}
    rounded = ROUNDED if replicas == 1 and me.workers < 3 else {}
    for name, case in {**CASES, **rounded, "shares": SHARES}.items():
        print(name, flush=True)
        settings = config(folder / "rows", case)
        splits = open_splits(settings)
        # The folder of a run, for the chief: this is what inputs.py does with it.
        kept: dict[str, Any] = {}
        place = SimpleNamespace(
            state="new", read_text=kept.get, write_text=kept.__setitem__, write_json=kept.__setitem__
        )
        features = inputs.learn(settings, splits, place if me.is_chief else None, peers)
        paths = SimpleNamespace(output=str(folder / f"out-{name}"))
        pipelines = inputs.pipelines(
            settings, splits, features, paths, strategy, place if me.is_chief else None, me, peers
        )
        found[f"{name}/features"] = np.array(features.to_json())
        train, validation = pipelines["train"], pipelines["validation"]
        found[f"{name}/ids/train"] = ids(train, islice(train.training_numpy(), train.steps_per_epoch))
        found[f"{name}/ids/validation"] = ids(validation, validation.evaluation_numpy())
        import keras

        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = tabular.build(settings, features.layout, features.label.outputs, features.label)
            optimizer = Optimizer(
                settings.training, train.steps_per_epoch, exchange_in=settings.strategy.exchange_in
            )
            optimizer.build(model.trainable_variables)
        loop = Loop(settings, model, features, strategy, optimizer)
        state = loop.fit(train, validation)
        for key, values in state.history.items():
            found[f"{name}/trained/{key}"] = np.array(values)
        for i, weight in enumerate(model.get_weights()):
            found[f"{name}/weight/{i}"] = weight
        known_weights(model)
        for split, pipeline in pipelines.items():
            for key, value in loop.evaluate(pipeline).items():
                found[f"{name}/{split}/{key}"] = np.array(value)
    np.savez(folder / f"{me.worker_index}.npz", **found)
    peers.finish()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
