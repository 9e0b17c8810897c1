"""Step time against the size of the embedding table: row-by-row updates beside plain Keras Adam.

    python benchmarks/table.py [--json PATH] [--rounds 7] [--steps 20]

Model: `dnn` (256, 128), 13 numbers, 26 categories of equal size in one table 16 wide; batches of 1,024 with
ids drawn uniformly, the hardest case: nearly every id of a batch is another row. Times are medians over
rounds in which all variants take turns, so a slow minute of the machine hits all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import tensorflow as tf

from trainer.config import Config
from trainer.features import Layout, Slot
from trainer.losses import loss_function
from trainer.models.tabular import build
from trainer.optimizer import Optimizer

ROWS = (10_000, 100_000, 1_000_000)
BATCH, NUMBERS, CATEGORIES = 1024, 13, 26
GOAL = 1.2


def make_config() -> Config:
    """Returns the config of the model; the data section is never read."""
    return Config.model_validate(
        {
            "name": "table",
            "task": "binary",
            "data": {"source": ["unused"], "split": {"by": "hash", "column": "key"}},
            "label": {"column": "label"},
            "features": [{"kind": "numeric", "name": "number"}],
            "model": {"name": "dnn", "hidden_units": [256, 128], "embedding_dim": 16},
            "training": {"batch_size": BATCH},
        }
    )


def make_layout(rows: int) -> Layout:
    """Returns a layout of 26 categories that share a table of `rows` rows."""
    each = rows // CATEGORIES
    slots = tuple(Slot(f"c{i}", i, 1, i * each, each, -1) for i in range(CATEGORIES))
    return Layout(tuple(f"n{i}" for i in range(NUMBERS)), NUMBERS, slots, each * CATEGORIES)


def batches(rows: int, count: int) -> tf.data.Dataset:
    """Returns `count` batches in memory, repeated for ever."""
    random = np.random.default_rng(rows)
    each = rows // CATEGORIES
    ids = random.integers(0, each, (count, BATCH, CATEGORIES)) + np.arange(CATEGORIES) * each
    data = {
        "numeric": random.normal(size=(count, BATCH, NUMBERS)).astype(np.float32),
        "categorical": ids.astype(np.int32),
        "label": random.integers(0, 2, (count, BATCH)).astype(np.float32),
    }
    return tf.data.Dataset.from_tensor_slices(data).cache().repeat()


def step_function(rows: int, keras_adam: bool) -> Callable[[int], None]:
    """Returns a function that trains the given number of steps."""
    config = make_config()
    keras.utils.set_random_seed(1)
    model = build(config, make_layout(rows), 1)
    loss_of_rows = loss_function(config, None)
    variables = [variable.value for variable in model.trainable_variables]
    if keras_adam:
        plain = keras.optimizers.Adam(config.training.learning_rate)
        plain.build(model.trainable_variables)

        def update(gradients: list) -> None:
            plain.apply(gradients, model.trainable_variables)
    else:
        own = Optimizer(config.training, 1_000_000)
        own.build(model.trainable_variables)
        update = own.apply
    iterator = iter(batches(rows, 50))

    @tf.function
    def many(iterator: tf.data.Iterator, steps: tf.Tensor) -> None:
        for _ in tf.range(steps):
            batch = next(iterator)
            with tf.GradientTape() as tape:
                logits = model({k: batch[k] for k in ("numeric", "categorical")}, training=True)
                loss = tf.reduce_mean(loss_of_rows(batch["label"], logits))
            update(tape.gradient(loss, variables))

    return lambda steps: many(iterator, tf.constant(steps))


def measure(rounds: int, steps: int) -> dict[tuple[str, int], float]:
    """Returns milliseconds a step (median over rounds) by optimizer and rows of the table."""
    variants = {
        (name, rows): step_function(rows, name == "keras Adam")
        for name in ("by row", "keras Adam")
        for rows in ROWS
    }
    for run in variants.values():
        run(3)  # builds the graph and touches the memory
    times: dict[tuple[str, int], list[float]] = {key: [] for key in variants}
    for _ in range(rounds):
        for key, run in variants.items():
            start = time.perf_counter()
            run(steps)
            times[key].append((time.perf_counter() - start) / steps * 1000)
    return {key: statistics.median(values) for key, values in times.items()}


def main() -> int:
    """Prints the table; returns 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    times = measure(options.rounds, options.steps)
    print(f"{'rows of table':>14} {'by row':>12} {'keras Adam':>12}   ms a step, batch {BATCH}")
    for rows in ROWS:
        print(f"{rows:>14,} {times['by row', rows]:>12.2f} {times['keras Adam', rows]:>12.2f}")
    small, large = ROWS[0], ROWS[-1]
    ratio = {name: times[name, large] / times[name, small] for name in ("by row", "keras Adam")}
    print(f"{'1M / 10k':>14} {ratio['by row']:>12.2f} {ratio['keras Adam']:>12.2f}   goal <= {GOAL} by row")

    holds = ratio["by row"] <= GOAL
    if options.json:
        detail = ", ".join(f"{name} {rows:,} rows: {ms:.2f} ms" for (name, rows), ms in times.items())
        figures = [
            {
                "name": "table: step time with 1M rows over 10k rows",
                "value": round(ratio["by row"], 3),
                "goal": f"<= {GOAL}",
                "holds": holds,
                "detail": detail,
            },
            {
                "name": "table: keras Adam's step time over ours, 1M rows",
                "value": round(times["keras Adam", large] / times["by row", large], 2),
                "goal": ">= 2",
                "holds": times["keras Adam", large] >= 2 * times["by row", large],
                "detail": detail,
            },
        ]
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
