"""Small parts that the tests of the loop share: a config, a model, and a pipeline over arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import strategy as strategies
from trainer.config import Config
from trainer.features import Layout, Slot
from trainer.loop import Loop
from trainer.models.tabular import build
from trainer.optimizer import Optimizer

NUMERIC, VALUES = 4, (7, 11)


def config(**changes: Any) -> Config:
    """A small run; keys are dotted with two underscores: training__epochs=3."""
    plain: dict[str, Any] = {
        "name": "t",
        "task": "binary",
        "data": {"source": ["x.parquet"], "split": {"by": "hash", "column": "id"}},
        "label": {"column": "y"},
        "features": [{"name": "a", "kind": "numeric"}],
        "model": {"name": "dnn", "hidden_units": [8], "embedding_dim": 3},
        "training": {"batch_size": 32, "epochs": 2, "learning_rate": 0.01},
    }
    for key, value in changes.items():
        *path, leaf = key.split("__")
        place = plain
        for part in path:
            place = place.setdefault(part, {})
        place[leaf] = value
    return Config.model_validate(plain)


def features(classes: tuple[str, ...] = ("no", "yes")) -> Any:
    slots, offset = [], 0
    for i, rows in enumerate(VALUES):
        slots.append(Slot(f"c{i}", i, 1, offset, rows, -1))
        offset += rows
    layout = Layout(tuple(f"n{i}" for i in range(NUMERIC)), NUMERIC, tuple(slots), offset)
    return SimpleNamespace(layout=layout, label=SimpleNamespace(classes=classes), fingerprint="f1")


def arrays(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows whose label depends on all columns."""
    random = np.random.default_rng(seed)
    numeric = random.normal(size=(rows, NUMERIC)).astype(np.float32)
    categorical = np.stack([random.integers(0, n, rows) for n in VALUES], 1)
    score = numeric.sum(1) + categorical[:, 0] / 3 - 1
    label = (score + random.normal(size=rows) > 0).astype(np.float32)
    offsets = np.array([0, VALUES[0]])
    return {
        "numeric": numeric,
        "categorical": (categorical + offsets).astype(np.int32),
        "label": label,
        "weight": random.uniform(0.5, 2.0, rows).astype(np.float32),
    }


class ArrayPipeline:
    """What `trainer.data.pipeline.Pipeline` offers the loop, over arrays in memory."""

    def __init__(self, data: dict[str, np.ndarray], batch_size: int, *, shuffle: bool = True) -> None:
        self._data, self.batch_size, self._shuffle = data, batch_size, shuffle
        self.rows = len(data["label"])
        self.steps_per_epoch = -(-self.rows // batch_size)
        self._evaluation: Any = None

    def _batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        short = self.batch_size - len(rows)
        batch = {
            name: np.concatenate([values[rows], np.zeros((short, *values.shape[1:]), values.dtype)])
            for name, values in self._data.items()
        }
        batch["valid"] = np.concatenate([np.ones(len(rows)), np.zeros(short)]).astype(np.float32)
        return batch

    def training_numpy(self, start_step: int = 0) -> Iterator[dict[str, np.ndarray]]:
        step = start_step
        while True:
            epoch, place = divmod(step, self.steps_per_epoch)
            order = np.arange(self.rows)
            if self._shuffle:
                np.random.default_rng(epoch).shuffle(order)
            yield self._batch(order[place * self.batch_size : (place + 1) * self.batch_size])
            step += 1

    def training(self, start_step: int = 0) -> tf.data.Dataset:
        return self._dataset(lambda: self.training_numpy(start_step))

    def evaluation(self) -> tf.data.Dataset:
        if self._evaluation is None:
            starts = range(0, self.rows, self.batch_size)
            every = np.arange(self.rows)
            batches = lambda: (self._batch(every[i : i + self.batch_size]) for i in starts)  # noqa: E731
            self._evaluation = self._dataset(batches)
        return self._evaluation

    def _dataset(self, generate: Any) -> tf.data.Dataset:
        example = self._batch(np.arange(0))
        signature = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in example.items()}
        dataset = tf.data.Dataset.from_generator(generate, output_signature=signature).prefetch(2)
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.with_options(options)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        yield


def mirrored() -> tf.distribute.Strategy:
    return strategies.mirrored(("CPU:0", "CPU:1"))


def one_device() -> tf.distribute.Strategy:
    return tf.distribute.OneDeviceStrategy("/CPU:0")


def make_loop(
    settings: Config,
    strategy: tf.distribute.Strategy,
    *,
    rows: int = 200,
    classes: tuple[str, ...] = ("no", "yes"),
    wrap: Any = None,
    **options: Any,
) -> Loop:
    """A loop with the trainer's own model and optimizer; `wrap` may turn the model into another."""
    import keras

    keras.utils.set_random_seed(settings.seed)
    fitted = features(classes)
    with strategy.scope():
        outputs = 1 if settings.task in ("binary", "regression") else len(classes)
        model = build(settings, fitted.layout, outputs)
        model = wrap(model) if wrap else model
        steps = settings.training.steps_per_epoch or -(-rows // settings.training.batch_size)
        optimizer = Optimizer(settings.training, strategies.total_steps(settings, steps))
        optimizer.build(model.trainable_variables)
    return Loop(settings, model, fitted, strategy, optimizer, **options)


def weights(loop: Loop) -> list[np.ndarray]:
    return [np.asarray(value) for value in loop.model.get_weights()]
