"""Examples a second of this trainer's loop against keras.Model.fit. Adopters: leave.

    python benchmarks/loop.py [--json PATH] [--rounds 5] [--seconds 2] [--values 10000]

The data is made up: 13 numbers and 26 categories a row, as in the Criteo data, in memory and already encoded,
so that only the training step is compared. Three ways of training the same network (embeddings of width 16,
hidden layers 256 and 128, Adam) read the same batches in one process:

(a) fit as people write it: one Embedding layer a column, Keras's Adam, default settings.
(b) fit at its best: this trainer's model (one fused table), Keras's Adam, steps_per_execution=20.
(c) this trainer: the same fused model, its own loop and row-wise optimizer.

(a) and (b) update every row of the tables at every step; (c) updates the rows of the batch alone, with the
moments of a row moving only when it is used ("lazy" Adam), so it gains more the larger the tables are. With
10,000 values a column (the default) that counts at every batch size; with --values 1000 and batches of 4,096
nearly all of a step is the network's matrix products, and (b) and (c) are equally fast.

The same with the shape of the flights example (27 numbers and 5 categories of 32 values each).

Then what a checkpoint of 500 MB and a second worker cost; see `workers.py`.

The samples are interleaved; a ratio is the median over the rounds of the two rates of one round, so that a
slow minute of the machine hits both. The first sample of each, which traces, is dropped. The allocator is
set alike for all, as the trainer does at its start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainer import process

process.prepare()

with process.quiet_import():
    import keras
    import numpy as np
    import tensorflow as tf

from benchmarks import workers  # noqa: E402
from trainer import strategy as strategies  # noqa: E402
from trainer.config import Config  # noqa: E402
from trainer.features import Layout, Slot  # noqa: E402
from trainer.loop import Loop  # noqa: E402
from trainer.models import tabular  # noqa: E402
from trainer.optimizer import Optimizer  # noqa: E402

NUMBERS, CATEGORIES, DIM, HIDDEN = 13, 26, 16, (256, 128)
FLIGHTS = (32, 27, 5)  # values of a category, numbers with their 0/1 columns, categories of configs/flights
BATCHES = 32  # different batches in memory, read again and again
GOALS = {"a": 1.4, "b": 1.0}
BATCH_SIZES = (256, 4096)


class Data:
    """Batches in memory, as this trainer's pipeline gives them and as fit wants them."""

    def __init__(
        self,
        batch_size: int,
        values: int,
        numbers: int = NUMBERS,
        categories: int = CATEGORIES,
        seed: int = 1,
    ) -> None:
        random = np.random.default_rng(seed)
        rows = BATCHES * batch_size
        self.batch_size, self.rows, self.steps_per_epoch = batch_size, rows, BATCHES
        self.values, self.numbers, self.categories = values, numbers, categories
        ids = np.minimum(random.zipf(1.2, (rows, categories)) - 1, values - 1).astype(np.int32)
        label = (random.random(rows) < 0.25).astype(np.float32)
        columns = {
            "numeric": random.normal(size=(rows, numbers)).astype(np.float32),
            "categorical": ids + (np.arange(categories) * values).astype(np.int32),
            "label": label,
            "weight": np.ones(rows, np.float32),
            "valid": np.ones(rows, np.float32),
        }
        self._batches = {k: v.reshape(BATCHES, batch_size, *v.shape[1:]) for k, v in columns.items()}

    def training(self, start_step: int = 0) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(self._batches).repeat().prefetch(2)
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.with_options(options)

    def pairs(self, single_columns: bool) -> tf.data.Dataset:
        def pair(batch: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            if not single_columns:
                return {name: batch[name] for name in ("numeric", "categorical")}, batch["label"]
            ids = batch["categorical"] - tf.range(self.categories) * self.values
            inputs = {f"c{i}": ids[:, i] for i in range(self.categories)}
            return {"numeric": batch["numeric"], **inputs}, batch["label"]

        # The columns are taken apart before training, so that (a) doesn't pay for it at every step.
        ready = self.training().take(BATCHES).map(pair).cache()
        return ready.repeat().prefetch(2)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        yield


class Timer(keras.callbacks.Callback):
    """Seconds of the epochs of one call of fit, without what comes before and after."""

    seconds = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds += time.perf_counter() - self._began


def as_people_write_it(data: Data) -> keras.Model:
    inputs: dict[str, Any] = {"numeric": keras.Input((data.numbers,), name="numeric")}
    parts = [inputs["numeric"]]
    for i in range(data.categories):
        inputs[f"c{i}"] = keras.Input((), dtype="int32", name=f"c{i}")
        parts.append(keras.layers.Embedding(data.values, DIM)(inputs[f"c{i}"]))
    x = keras.layers.Concatenate()(parts)
    for width in HIDDEN:
        x = keras.layers.Dense(width, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def config(batch_size: int, steps: int) -> Config:
    return Config.model_validate(
        {
            "name": "benchmark",
            "task": "binary",
            "data": {"source": ["none"], "split": {"by": "hash", "column": "id"}},
            "label": {"column": "label"},
            "features": [{"name": "a", "kind": "numeric"}],
            "model": {"name": "dnn", "hidden_units": HIDDEN, "embedding_dim": DIM},
            "training": {"batch_size": batch_size, "epochs": 1, "steps_per_epoch": steps},
        }
    )


def layout_of(data: Data) -> Layout:
    return Layout(
        numeric=tuple(f"n{i}" for i in range(data.numbers)),
        dense=data.numbers,
        slots=tuple(Slot(f"c{i}", i, 1, i * data.values, data.values, -1) for i in range(data.categories)),
        table_rows=data.categories * data.values,
    )


def our_loop(data: Data, strategy: tf.distribute.Strategy, batch_size: int) -> Callable[[int], float]:
    """Returns a function that trains some steps with this trainer's loop and returns the seconds they took.

    Args:
        data: this process's part of each batch.
        strategy: the strategy.
        batch_size: rows of the global batch.
    """
    layout = layout_of(data)
    features = SimpleNamespace(layout=layout, label=SimpleNamespace(classes=("0", "1")))
    with strategy.scope():
        fused = tabular.build(config(batch_size, 1), layout, 1)
        optimizer = Optimizer(config(batch_size, 1).training, 10**6)
        optimizer.build(fused.trainable_variables)
    loop = Loop(config(batch_size, 1), fused, features, strategy, optimizer)

    def ours(steps: int) -> float:
        timer = Timer()
        loop.config = config(batch_size, steps)
        loop.fit(data, callbacks=[timer])
        return timer.seconds

    return ours


def contestants(data: Data) -> dict[str, Callable[[int], float]]:
    """Returns functions that train some steps and return the seconds they took."""
    layout = layout_of(data)
    strategy = strategies.create(config(data.batch_size, 1))
    loss = lambda: keras.losses.BinaryCrossentropy(from_logits=True)  # noqa: E731
    ours = our_loop(data, strategy, data.batch_size)

    def fit(model: keras.Model, dataset: tf.data.Dataset) -> Callable[[int], float]:
        def run(steps: int) -> float:
            timer = Timer()
            model.fit(dataset, epochs=1, steps_per_epoch=steps, callbacks=[timer], verbose=0, shuffle=False)
            return timer.seconds

        return run

    plain = as_people_write_it(data)
    plain.compile(keras.optimizers.Adam(1e-3), loss())
    tuned = tabular.build(config(data.batch_size, 1), layout, 1)
    tuned.compile(keras.optimizers.Adam(1e-3), loss(), steps_per_execution=20)
    return {"a": fit(plain, data.pairs(True)), "b": fit(tuned, data.pairs(False)), "c": ours}


def compare(model: str, batch_size: int, rounds: int, seconds: float, values: int) -> list[dict[str, Any]]:
    data = Data(batch_size, values) if model == "criteo" else Data(batch_size, *FLIGHTS)
    runs = contestants(data)
    steps = {}
    for name, run in runs.items():
        run(20)  # traces
        # Whole executions of 20 steps: a shorter last one would trace again in (b).
        steps[name] = max(20, int(seconds / (run(20) / 20)) // 20 * 20)
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            rates[name].append(steps[name] * batch_size / run(steps[name]))
    ratios = {
        name: statistics.median(ours / its for ours, its in zip(rates["c"], found, strict=True))
        for name, found in rates.items()
    }
    medians = {name: statistics.median(found) for name, found in rates.items()}
    labels = {"a": "fit, one table a column", "b": "fit, fused, 20 steps a call", "c": "this loop"}
    for name, label in labels.items():
        low, high = min(rates[name]), max(rates[name])
        print(
            f"{batch_size:>6,}  {label:<28} {medians[name]:>11,.0f}  {low:>11,.0f}  {high:>11,.0f}"
            f"  {ratios[name]:>6.2f}x"
        )
    results = []
    for name, text in (("a", "fit as people write it"), ("b", "fit on the fused model, 20 steps a call")):
        ratio = ratios[name]
        detail = (
            f"{medians['c']:,.0f} against {medians[name]:,.0f} examples/s, medians of {rounds}; "
            f"{data.numbers}+{data.categories} columns, {data.categories * data.values:,} rows of table"
        )
        results.append(
            {
                "name": f"loop: {model}, against {text}, batch {batch_size}",
                "value": round(ratio, 3),
                "goal": f">= {GOALS[name]}",
                "holds": ratio >= GOALS[name],
                "detail": detail,
            }
        )
    return results


def main() -> int:
    """Prints the table; returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each contestant")
    parser.add_argument("--seconds", type=float, default=2.0, help="least length of a sample")
    parser.add_argument("--values", type=int, default=10_000, help="values of each categorical column")
    arguments = parser.parse_args()
    print(f"TensorFlow {tf.__version__}, Keras {keras.__version__}; examples/s, higher is better")
    print(f"{'batch':>6}  {'':<28} {'median':>11}  {'lowest':>11}  {'highest':>11}  {'this/it':>7}")
    options = (arguments.rounds, arguments.seconds, arguments.values)
    results = []
    for model in ("criteo", "flights"):
        print(model)
        results += [result for size in BATCH_SIZES for result in compare(model, size, *options)]
    results += workers.checkpoint() + workers.exchange()
    for result in results:
        verdict = {True: ", holds", False: ", MISSED", None: ""}[result["holds"]]
        print(
            f"{result['name']}: {result['value']:.2f}x (goal {result['goal']}{verdict}): {result['detail']}"
        )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if any(result["holds"] is False for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
