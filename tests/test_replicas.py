"""One device, two replicas and two workers give the same weights and metrics.

Each way of training runs in a process of its own (this file, as a program): two strategies in one process
share the names of their collective operations and can take each other's messages.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm
from worker_processes import end_well, free_addresses

pytestmark = pytest.mark.faults

STEPS, BATCH = 12, 32
CASES: dict[str, dict[str, Any]] = {
    "adam": {"training__clip_norm": 0.3, "model__embedding_l2": 0.01, "model__l2": 0.001},
    "norm": {"model__name": "dnn", "model__batch_norm": True, "training__optimizer": "adagrad"},
    "overflow": {"training__mixed_precision": "mixed_float16", "model__name": "dnn"},
    "sorted": {"training__clip_norm": 0.3, "model__name": "wide_deep"},
}


def train(strategy: Any, name: str) -> dict[str, np.ndarray]:
    """Trains a case; returns weights, optimizer state and metrics."""
    import tensorflow as tf
    from model_parts import LAYOUT, config, inputs, labels

    from trainer.losses import loss_function, predictions
    from trainer.metrics import make
    from trainer.models.tabular import build
    from trainer.optimizer import Optimizer

    run = config(**CASES[name])
    with strategy.scope():
        model = build(run, LAYOUT, 1)
        optimizer = Optimizer(run.training, STEPS, static_shapes=name == "sorted")
        optimizer.build(model.trainable_variables)
        metrics = make("binary", ("no", "yes"))
        if name == "overflow":
            optimizer.loss_scale.assign(1e30)  # nothing fits float16 for a start
    loss_of_rows = loss_function(run, None)
    replicas = strategy.num_replicas_in_sync
    data = inputs(LAYOUT, STEPS * BATCH)
    batch = {**data, "label": labels("binary", data), "weight": np.ones(STEPS * BATCH, np.float32)}
    batch["weight"][-5:] = 0  # padding

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        size = context.get_per_replica_batch_size(BATCH)
        rows = tf.data.Dataset.from_tensor_slices(batch).batch(size, drop_remainder=True)
        return rows.shard(context.num_input_pipelines, context.input_pipeline_id)

    def step(part: dict[str, tf.Tensor]) -> None:
        with tf.GradientTape() as tape:
            logits = model({key: part[key] for key in ("numeric", "categorical")}, training=True)
            loss = tf.reduce_sum(loss_of_rows(part["label"], logits) * part["weight"]) / BATCH
            if model.losses:
                loss += tf.add_n(model.losses) / replicas
            loss = optimizer.scaled_loss(loss)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        for metric in metrics.values():
            metric.update_state(part["label"], predictions("binary", logits), part["weight"])

    @functools.partial(tf.function, autograph=False)
    def many(iterator: Any, steps: tf.Tensor) -> None:
        def one_more(done: tf.Tensor) -> tf.Tensor:
            strategy.run(step, args=(next(iterator),))
            return done + 1

        tf.while_loop(lambda done: done < steps, one_more, [0], parallel_iterations=1)

    many(iter(strategy.distribute_datasets_from_function(dataset)), tf.constant(STEPS))
    values = {f"{name}/weight/{i}": variable.numpy() for i, variable in enumerate(model.weights)}
    values |= {f"{name}/state/{i}": variable.numpy() for i, variable in enumerate(optimizer.variables)}
    values |= {f"{name}/metric/{key}": np.asarray(metric.result()) for key, metric in metrics.items()}
    values |= {f"{name}/skipped": optimizer.skipped.numpy()}
    for i, variable in enumerate(model.weights):  # every copy, not the first alone
        copies = strategy.experimental_local_results(variable.value)
        for copy in copies[1:]:
            np.testing.assert_allclose(copy.numpy(), copies[0].numpy(), rtol=1e-6, atol=1e-7, err_msg=str(i))
    return values


def program(way: str, path: str) -> None:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = {
        "one": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
        "mirrored": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
        "workers": tf.distribute.MultiWorkerMirroredStrategy,
    }[way]()
    values: dict[str, np.ndarray] = {}
    for name in CASES:
        values.update(train(strategy, name))
    np.savez(path, **values)


def run_all(way: str, folder: Path, environments: list[dict[str, str]]) -> list[dict[str, np.ndarray]]:
    """Runs one process an environment and returns what each wrote."""
    here = Path(__file__).parent
    paths = [folder / f"{way}{i}.npz" for i in range(len(environments))]
    common = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    processes = [
        warm.Process([__file__, way, path], {**common, **environment})
        for path, environment in zip(paths, environments, strict=True)
    ]
    end_well(processes)
    return [dict(np.load(path)) for path in paths]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return run_all("one", tmp_path_factory.mktemp("one"), [{}])[0]


def compare(ours: dict[str, np.ndarray], one: dict[str, np.ndarray]) -> None:
    assert ours.keys() == one.keys()
    for key, value in one.items():
        # float16 rounds each half of a batch by itself.
        half = key.startswith("overflow")
        tolerance = (2e-2 if "/metric/" in key else 1e-3) if half else 1e-5
        np.testing.assert_allclose(ours[key], value, rtol=tolerance, atol=tolerance, err_msg=key)
    assert one["overflow/skipped"] == ours["overflow/skipped"] > 0


@pytest.mark.slow
def test_two_replicas(one: dict[str, np.ndarray], tmp_path: Path) -> None:
    compare(run_all("mirrored", tmp_path, [{}])[0], one)


@pytest.mark.slow
def test_two_workers(one: dict[str, np.ndarray], tmp_path: Path) -> None:
    addresses = free_addresses(2)
    cluster = {"worker": addresses}
    environments = [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})}
        for i in range(2)
    ]
    for ours in run_all("workers", tmp_path, environments):
        compare(ours, one)


if __name__ == "__main__":
    program(*sys.argv[1:])
