"""Step time against the size of the embedding table: row-by-row updates beside plain Keras Adam.

    python benchmarks/table.py [--json PATH] [--rounds 7] [--steps 10]

13 numbers, 26 categories of equal size in one table 16 wide, batches of 1,024, CPU. The ids are drawn
uniformly, the hardest case: a batch has 9,300 different rows of the table of 10 thousand and 26,300 of the
table of a million, so the larger table has nearly three times the rows to update, all of them far apart in
memory. Two models: `dcn`, the default of the config, and `dnn` (256, 128), whose step is so short that memory
is a large part of it. Times are medians over rounds in which all variants take turns, so that a slow minute
of the machine hits all of them alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainer import process

process.prepare()  # the allocator settings of a training run, for both sides

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from trainer.config import Config  # noqa: E402
from trainer.features import Layout, Slot  # noqa: E402
from trainer.losses import loss_function  # noqa: E402
from trainer.models.tabular import build  # noqa: E402
from trainer.optimizer import Optimizer  # noqa: E402

ROWS = (10_000, 100_000, 1_000_000)
MODELS = ("dcn", "dnn")
BATCH, NUMBERS, CATEGORIES = 1024, 13, 26
GOAL, KERAS_GOAL = 1.2, 2.0
OURS, KERAS = "by row", "keras Adam"


def make_config(model: str) -> Config:
    """Returns the config of a model; its data section is never read."""
    return Config.model_validate(
        {
            "name": "table",
            "task": "binary",
            "data": {"source": ["unused"], "split": {"by": "hash", "column": "key"}},
            "label": {"column": "label"},
            "features": [{"kind": "numeric", "name": "number"}],
            "model": {"name": model},
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


def step_function(model_name: str, rows: int, optimizer: str) -> Callable[[int], None]:
    """Returns a function that trains the given number of steps."""
    config = make_config(model_name)
    keras.utils.set_random_seed(1)
    model = build(config, make_layout(rows), 1)
    loss_of_rows = loss_function(config, None)
    variables = [variable.value for variable in model.trainable_variables]
    if optimizer == KERAS:
        plain = keras.optimizers.Adam(config.training.learning_rate)
        plain.build(model.trainable_variables)

        def update(gradients: list) -> None:
            plain.apply(gradients, model.trainable_variables)
    else:
        own = Optimizer(config.training, 1_000_000)
        own.build(model.trainable_variables)
        update = own.apply
    iterator = iter(batches(rows, 50))

    def step(done: tf.Tensor) -> tf.Tensor:
        batch = next(iterator)
        with tf.GradientTape() as tape:
            logits = model({k: batch[k] for k in ("numeric", "categorical")}, training=True)
            loss = tf.reduce_mean(loss_of_rows(batch["label"], logits))
        update(tape.gradient(loss, variables))
        return done + 1

    @tf.function(autograph=False)
    def many(steps: tf.Tensor) -> None:
        tf.while_loop(lambda done: done < steps, step, [0], parallel_iterations=1)

    return lambda steps: many(tf.constant(steps))


def measure(rounds: int, steps: int) -> dict[tuple[str, str, int], float]:
    """Returns milliseconds a step (median over rounds) by model, optimizer and rows of the table."""
    variants = {
        (model, optimizer, rows): step_function(model, rows, optimizer)
        for model in MODELS
        for optimizer in (OURS, KERAS)
        for rows in ROWS
    }
    for run in variants.values():
        run(3)  # builds the graph and touches the memory
    times: dict[tuple[str, str, int], list[float]] = {key: [] for key in variants}
    for _ in range(rounds):
        for key, run in variants.items():
            start = time.perf_counter()
            run(steps)
            times[key].append((time.perf_counter() - start) / steps * 1000)
    return {key: statistics.median(values) for key, values in times.items()}


def main() -> int:
    """Prints the table; returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    times = measure(options.rounds, options.steps)
    small, large = ROWS[0], ROWS[-1]
    figures = []
    for model in MODELS:
        print(f"{model}: ms a step, batch {BATCH}")
        print(f"{'rows of table':>14} {OURS:>12} {KERAS:>12}")
        for rows in ROWS:
            print(f"{rows:>14,} {times[model, OURS, rows]:>12.2f} {times[model, KERAS, rows]:>12.2f}")
        growth = {name: times[model, name, large] / times[model, name, small] for name in (OURS, KERAS)}
        print(f"{'1M / 10k':>14} {growth[OURS]:>12.2f} {growth[KERAS]:>12.2f}   goal {OURS} <= {GOAL}\n")
        ratio = times[model, KERAS, large] / times[model, OURS, large]
        detail = "; ".join(
            f"{name} " + " / ".join(f"{times[model, name, rows]:.1f}" for rows in ROWS)
            for name in (OURS, KERAS)
        )
        detail += " ms a step with 10k / 100k / 1M rows"
        figures += [
            {
                "name": f"table: {model}, step with 1M rows over 10k",
                "value": round(growth[OURS], 3),
                "goal": f"<= {GOAL}",
                "holds": growth[OURS] <= GOAL,
                "detail": detail,
            },
            {
                "name": f"table: {model}, Keras Adam's step over ours, 1M",
                "value": round(ratio, 2),
                "goal": f">= {KERAS_GOAL:g}",
                "holds": ratio >= KERAS_GOAL,
                "detail": detail,
            },
        ]
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(figure["holds"] for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
