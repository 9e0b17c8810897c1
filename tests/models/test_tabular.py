"""Every architecture: shapes, formulas, reproducible starts, and learning a toy problem of each task."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from model_parts import LAYOUT, NO_CATEGORIES, NO_NUMBERS, config, inputs, labels

from trainer.features import Layout
from trainer.losses import loss_function, predictions
from trainer.models import tabular
from trainer.models.tabular import MODELS, build
from trainer.optimizer import Optimizer

NAMES = sorted(MODELS)
OUTPUTS = {"binary": 1, "multiclass": 4, "regression": 1, "multilabel": 2}


def train(run: Any, layout: Layout, steps: int) -> tuple[keras.Model, float, float]:
    """Trains on one batch; returns the model and its first and last loss."""
    data = inputs(layout, 64)
    label = labels(run.task, data)
    model = build(run, layout, OUTPUTS[run.task])
    optimizer = Optimizer(run.training, steps)
    optimizer.build(model.trainable_variables)
    features = SimpleNamespace(label=SimpleNamespace(classes=tuple("abcd")[: max(2, OUTPUTS[run.task])]))
    loss_of_rows = loss_function(run, features)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_of_rows(label, model(data, training=True)))
            scaled = optimizer.scaled_loss(loss)
        optimizer.apply(tape.gradient(scaled, model.trainable_variables))
        return loss

    seen = [float(step()) for _ in range(steps)]
    return model, seen[0], seen[-1]


@pytest.mark.parametrize("name", NAMES)
def test_learns_a_binary_problem(name: str) -> None:
    model, first, last = train(config(model__name=name, training__learning_rate=0.1), LAYOUT, 80)
    assert last < 0.25 < 0.5 < first
    data = inputs(LAYOUT, 64)
    right = (predictions("binary", model(data)).numpy() > 0.5) == (labels("binary", data) > 0.5)
    assert right.mean() > 0.9


@pytest.mark.parametrize("task", ["multiclass", "regression", "multilabel"])
def test_learns_every_task(task: str) -> None:
    _, first, last = train(config(task), LAYOUT, 120)
    assert last < 0.35 * first


@pytest.mark.parametrize("layout", [NO_NUMBERS, NO_CATEGORIES], ids=["no numbers", "no categories"])
@pytest.mark.parametrize("name", NAMES)
def test_learns_from_one_kind_of_input_alone(name: str, layout: Layout) -> None:
    model, first, last = train(config(model__name=name, training__learning_rate=0.1), layout, 50)
    assert last < 0.7 * first
    assert model.output.dtype == "float32"


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("name", ["dcn", "wide_deep"])  # which hold the other two
def test_half_precision_keeps_logits_and_weights_in_float32(name: str, precision: str) -> None:
    run = config("multiclass", model__name=name, training__mixed_precision=precision)
    model, first, last = train(run, LAYOUT, 40)
    assert model(inputs(LAYOUT, 8)).dtype == tf.float32
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    assert last < 0.85 * first
    assert keras.config.dtype_policy().name == "float32"  # the policy of the process is left as it was
    inner = [layer.compute_dtype for layer in model.layers if layer.name.startswith("hidden")]
    assert set(inner) <= {precision.removeprefix("mixed_")}


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_start_whatever_was_built_before(name: str) -> None:
    first = build(config(model__name=name), LAYOUT, 1)
    keras.layers.Dense(3).build((None, 4))  # moves Keras's own counters and seeds
    second = build(config(model__name=name), LAYOUT, 1)
    third = build(config(model__name=name, seed=2), LAYOUT, 1)
    for a, b in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    random = [i for i, v in enumerate(first.weights) if v.numpy().std() > 0]
    assert all((first.weights[i].numpy() != third.weights[i].numpy()).any() for i in random)


def test_kernels_of_the_same_shape_start_apart() -> None:
    model = build(config(model__cross_layers=2), LAYOUT, 1)
    kernels = [model.get_layer(f"cross_{i}").dense.kernel.numpy() for i in range(2)]
    assert (kernels[0] != kernels[1]).any()


def test_cross_layer_is_its_formula() -> None:
    random = np.random.default_rng(0)
    start, x = random.normal(size=(2, 5, 3)).astype(np.float32)
    layer = tabular.Cross(keras.layers.Dense(3, bias_initializer="ones"))
    out = layer([start, x]).numpy()
    kernel, bias = (v.numpy() for v in layer.dense.weights)
    np.testing.assert_allclose(out, start * (x @ kernel + bias) + x, rtol=1e-5, atol=1e-6)


def test_linear_is_a_sum_of_weights() -> None:
    model = build(config(model__name="linear"), LAYOUT, 1)
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(random.normal(size=variable.shape))
    data = inputs(LAYOUT, 6)
    table = model.get_layer("wide_table").table.numpy()[:, 0]
    kernel, bias = (v.numpy() for v in model.get_layer("wide_numbers").weights)
    weights = data["numeric"][:, 2:]
    total = weights.sum(1, keepdims=True)
    share = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    plain = table[data["categorical"][:, [0, 1, 5]]].sum(1) + (
        table[data["categorical"][:, 2:5]] * share
    ).sum(1)
    expected = plain[:, None] + data["numeric"][:, :2] @ kernel + bias
    np.testing.assert_allclose(model(data).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_bag_weights_reach_no_dense_layer() -> None:
    model = build(config(), LAYOUT, 1)
    data = inputs(LAYOUT, 16)
    doubled = {**data, "numeric": data["numeric"] * [1, 1, 2, 2, 2]}
    np.testing.assert_allclose(model(data), model(doubled), rtol=1e-5, atol=1e-6)


def test_settings_arrive() -> None:
    run = config(model__name="dnn", model__dropout=0.5, model__batch_norm=True, model__l2=0.1)
    model = build(run, LAYOUT, 1)
    kinds = [type(layer).__name__ for layer in model.layers]
    assert kinds.count("Dropout") == kinds.count("BatchNormalization") == 2
    data = inputs(LAYOUT, 16)
    assert (model(data, training=True).numpy() != model(data, training=True).numpy()).any()
    np.testing.assert_array_equal(model(data).numpy(), model(data).numpy())
    kernels = [layer.kernel.numpy() for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    assert float(sum(model.losses)) == pytest.approx(0.1 * sum((k**2).sum() for k in kernels), rel=1e-4)


def test_the_example_of_the_docstring_works(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = tabular.__doc__.splitlines()
    begin = next(i for i, line in enumerate(lines) if "def factorization_machine" in line)
    end = next(i for i in range(begin, len(lines)) if lines[i].startswith("2."))
    space = dict(vars(tabular))
    exec("\n".join(line[7:] for line in lines[begin:end]), space)
    monkeypatch.setitem(MODELS, "dnn", space["factorization_machine"])
    _, first, last = train(config(model__name="dnn"), LAYOUT, 60)
    assert last < 0.7 * first
