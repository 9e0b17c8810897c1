"""What reaches a TPU compiles with XLA: the train and eval step of every model, with static shapes.

No TPU is to be had here. XLA on the CPU refuses the same things (strings, shapes that depend on the batch,
calls into Python), so this finds what would fail to compile there, and nothing of how a TPU runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equality
import numpy as np
import pytest
import tensorflow as tf
from loop_parts import ArrayPipeline, arrays, config, features, mirrored, one_device

from trainer import metrics
from trainer.data.encode import Encoder
from trainer.data.pipeline import Pipeline
from trainer.data.source import open_splits
from trainer.features import fit
from trainer.models.tabular import build
from trainer.optimizer import Optimizer
from trainer.steps import Steps

STEPS = 3
CASES: dict[str, dict[str, Any]] = {
    "linear": {"model__name": "linear", "training__optimizer": "sgd"},
    "dnn": {"model__name": "dnn", "model__batch_norm": True, "training__mixed_precision": "mixed_bfloat16"},
    "wide_deep": {"model__name": "wide_deep", "training__clip_norm": 0.3, "model__embedding_l2": 0.01},
    "dcn": {"model__name": "dcn", "training__accumulate": 2, "model__dropout": 0.2, "model__l2": 0.01},
    "adagrad": {"model__name": "dnn", "training__optimizer": "adagrad"},
    "smooth": {"model__name": "dnn", "training__optimizer": "adamw", "training__label_smoothing": 0.1},
}
TASKS = {
    "binary": ("no", "yes"),
    "multiclass": ("a", "b", "c", "d"),
    "regression": (),
    "multilabel": ("x", "y"),
}


def steps(settings: Any, classes: tuple[str, ...], static: bool = True, strategy: Any = None) -> Steps:
    tf.keras.utils.set_random_seed(1)
    fitted = features(classes)
    strategy = strategy or one_device()
    with strategy.scope():
        outputs = len(classes) if settings.task in ("multiclass", "multilabel") else 1
        model = build(settings, fitted.layout, outputs)
        optimizer = Optimizer(settings.training, STEPS, static_shapes=static)
        optimizer.build(model.trainable_variables)
        made = metrics.make(settings.task, classes)
    return Steps(settings, model, fitted, strategy, optimizer, None, made)


def batches(task: str) -> list[dict[str, tf.Tensor]]:
    """The last one is short, as the last of an epoch is."""
    rows = arrays(32 * STEPS - 5)
    random = np.random.default_rng(0)
    if task == "multiclass":
        rows["label"] = random.integers(0, 4, len(rows["label"])).astype(np.int32)
    elif task == "multilabel":
        rows["label"] = random.integers(0, 2, (len(rows["label"]), 2)).astype(np.float32)
    pipeline = ArrayPipeline(rows, 32, shuffle=False)
    return [
        {k: tf.constant(v) for k, v in next(pipeline.training_numpy(step)).items()} for step in range(STEPS)
    ]


def run(made: Steps, compile_with: Callable[[Any], Any], task: str) -> tuple[list[np.ndarray], list[float]]:
    train, evaluate = compile_with(made._train_replica), compile_with(made._evaluate_replica)
    for batch in batches(task):
        made._strategy.run(train, args=(batch,))
    for batch in batches(task):
        made._strategy.run(evaluate, args=(batch,))
    return made._model.get_weights(), [float(metric.result()) for metric in made._metrics.values()]


def xla(function: Any) -> Any:
    return tf.function(function, jit_compile=True, autograph=False)


def plain(function: Any) -> Any:
    return tf.function(function, autograph=False)


def check(settings: Any, classes: tuple[str, ...]) -> None:
    weights, figures = run(steps(settings, classes), xla, settings.task)
    assert np.isfinite(figures).all()
    if settings.model.dropout:  # XLA draws other masks
        return
    rough = settings.training.mixed_precision != "float32"
    expected, theirs = run(steps(settings, classes), plain, settings.task)
    for ours, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours, other, atol=0.02 if rough else 1e-5)
    np.testing.assert_allclose(figures, theirs, atol=0.1 if rough else 1e-5)


@pytest.mark.parametrize("case", CASES)
def test_every_model_and_optimizer_compiles(case: str) -> None:
    check(config(**CASES[case]), TASKS["binary"])


@pytest.mark.parametrize("task", [task for task in TASKS if task != "binary"])
def test_every_task_compiles(task: str) -> None:
    columns = ("y", "z") if task == "multilabel" else "y"
    check(config(task=task, label={"column": columns}, model__name="dnn"), TASKS[task])


def open_shapes(made: Steps, function: Any) -> list[str]:
    """The values in a step's graph whose shape is not known before it runs."""
    batch = batches("binary")[0]
    graph = plain(lambda part: made._strategy.run(function, args=(part,))).get_concrete_function(batch).graph
    return [
        value.name
        for operation in graph.get_operations()
        for value in operation.outputs
        if value.dtype not in (tf.resource, tf.variant) and not value.shape.is_fully_defined()
    ]


def test_every_shape_is_known_before_a_step_runs() -> None:
    made = steps(config(model__name="dcn", training__clip_norm=1.0), TASKS["binary"])
    assert open_shapes(made, made._train_replica) == []
    assert open_shapes(made, made._evaluate_replica) == []
    loose = steps(config(model__name="dcn"), TASKS["binary"], static=False)  # looks for the rows that differ
    assert open_shapes(loose, loose._train_replica), "the check finds what it looks for"


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adagrad"])
def test_no_replica_reads_a_table_as_a_whole(optimizer: str) -> None:
    """A step's time must not grow with the table, on several replicas either."""
    settings = config(training__optimizer=optimizer, model__embedding_l2=0.1)
    made = steps(settings, TASKS["binary"], static=False, strategy=mirrored())
    rows = features().layout.table_rows
    batch = batches("binary")[0]
    graph = plain(lambda part: made._strategy.run(made._train_replica, args=(part,)))
    whole = [
        value.op.type
        for operation in graph.get_concrete_function(batch).graph.get_operations()
        for value in operation.outputs
        if value.dtype == tf.float32 and value.shape.rank == 2 and value.shape[0] == rows
    ]
    assert whole == []


def test_the_compiler_here_refuses_text() -> None:
    with pytest.raises((tf.errors.OpError, ValueError), match=r"(?i)string"):
        xla(lambda ids: tf.strings.to_hash_bucket_fast(tf.strings.as_string(ids), 7))(tf.constant([1]))


def test_no_text_and_no_open_shape_is_in_a_batch(tmp_path: Path) -> None:
    equality.write(tmp_path)
    settings = equality.config(tmp_path, {"model": {"name": "dnn"}, "data": {"key": "key"}})
    source = open_splits(settings).train
    fitted = fit(settings, source.batches())
    encoder = Encoder(fitted, weight_column="weight")
    pipeline = Pipeline(source, encoder, batch_size=equality.BATCH, columns=encoder.columns)
    for dataset in (pipeline.training(), pipeline.evaluation()):
        for name, spec in dataset.element_spec.items():
            assert spec.dtype in (tf.float32, tf.int32), name
            assert spec.shape.is_fully_defined(), name
            assert spec.shape[0] == equality.BATCH
