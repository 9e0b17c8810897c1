"""What one step computes: against NumPy, over replicas, parts and an adopter's own methods."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from loop_parts import NUMERIC, ArrayPipeline, arrays, config, make_loop, mirrored, one_device, weights

from trainer.errors import UserError
from trainer.steps import distribute, overrides

STRATEGIES = [one_device, mirrored]
MIRRORED_IS_SLOW = [one_device, pytest.param(mirrored, marks=pytest.mark.slow)]
LINEAR = {"model__name": "linear", "training__optimizer": "sgd", "training__epochs": 1}


def train(settings: Any, strategy: Any, data: dict[str, np.ndarray], **options: Any) -> tuple[Any, Any]:
    loop = make_loop(settings, strategy, rows=len(data["label"]), **options)
    state = loop.fit(ArrayPipeline(data, settings.training.batch_size))
    return loop, state


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    for x, y in zip(weights(a), weights(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance)


@pytest.mark.parametrize("make", STRATEGIES)
def test_the_loss_and_the_step_are_those_of_the_formula(make: Any) -> None:
    """Logistic regression on 5 rows in a batch of 8: sum(weight * loss) / 5, and one step of plain SGD."""
    data = arrays(5)
    settings = config(**LINEAR, training__batch_size=8, training__learning_rate=0.5)
    # The weights start at known values: zeros for the categories, and the kernel is read before the step.
    loop = make_loop(settings, make(), rows=5)
    kernel = next(v for v in loop.model.trainable_variables if v.shape == (NUMERIC, 1))
    before = kernel.numpy()[:, 0].astype(np.float64)
    state = loop.fit(ArrayPipeline(data, 8))
    y, w, x = (data[k].astype(np.float64) for k in ("label", "weight", "numeric"))
    p = 1 / (1 + np.exp(-x @ before))
    losses = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    np.testing.assert_allclose(state.history["loss"], [(w * losses).sum() / 5], rtol=1e-6)
    gradient = (x * (w * (p - y))[:, None]).sum(0) / 5
    np.testing.assert_allclose(kernel.numpy()[:, 0], before - 0.5 * gradient, rtol=1e-5, atol=1e-6)


def test_two_replicas_train_as_one() -> None:
    """1,001 rows, so the last batch of 32 has 9 rows: 9 on one replica and none on the other."""
    data = arrays(1001)
    settings = config(training__epochs=2, model__l2=0.01, training__clip_norm=0.5)
    results = [train(settings, make(), data) for make in STRATEGIES]
    close(results[0][0], results[1][0])
    np.testing.assert_allclose(results[0][1].history["loss"], results[1][1].history["loss"], rtol=1e-6)
    assert results[0][1].step == results[1][1].step == 64
    assert results[0][0].timing["examples"] == 2002


@pytest.mark.parametrize("make", MIRRORED_IS_SLOW)
def test_parts_of_a_batch_train_as_the_whole(make: Any) -> None:
    data = arrays(100)
    whole = train(config(training__epochs=2, model__l2=0.01), make(), data)
    parts = train(config(training__epochs=2, model__l2=0.01, training__accumulate=4), make(), data)
    close(whole[0], parts[0])
    np.testing.assert_allclose(whole[1].history["loss"], parts[1].history["loss"], rtol=1e-6)


@pytest.mark.parametrize("make", MIRRORED_IS_SLOW)
def test_class_weights_have_their_exact_effect(make: Any) -> None:
    data = arrays(10)
    data["label"] = np.array([0] * 9 + [1], np.float32)
    data["weight"] = np.ones(10, np.float32)
    plain = config(**LINEAR, training__batch_size=10)
    weighed = config(**LINEAR, training__batch_size=10, training__class_weights={"no": 1, "yes": 9})
    loops = [make_loop(settings, make(), rows=10) for settings in (plain, weighed)]
    kernel = next(v for v in loops[0].model.trainable_variables if v.shape == (NUMERIC, 1))
    p = 1 / (1 + np.exp(-data["numeric"] @ kernel.numpy()[:, 0].astype(np.float64)))
    losses = np.where(data["label"] > 0, -np.log(p), -np.log(1 - p))
    first = [loop.fit(ArrayPipeline(data, 10)).history["loss"][0] for loop in loops]
    np.testing.assert_allclose(first[0], losses.mean(), rtol=1e-6)
    np.testing.assert_allclose(first[1], (losses * np.where(data["label"] > 0, 9, 1)).mean(), rtol=1e-6)
    # Evaluation counts rows with their own weight alone.
    loops[1].model.set_weights(loops[0].model.get_weights())
    evaluated = [loop.evaluate(ArrayPipeline(data, 10))["loss"] for loop in loops]
    assert evaluated[0] == evaluated[1]


def test_an_unknown_class_is_refused() -> None:
    settings = config(**LINEAR, training__class_weights={"yess": 2})
    with pytest.raises(UserError, match=r"no class 'yess'.*did you mean 'yes'"):
        make_loop(settings, one_device())


@pytest.mark.parametrize("make", MIRRORED_IS_SLOW)
def test_a_row_of_weight_zero_counts_nothing(make: Any) -> None:
    data = arrays(16)
    data["weight"][:5] = 0
    other = {name: values.copy() for name, values in data.items()}
    other["label"][:5] = 1 - other["label"][:5]
    settings = config(**LINEAR, training__batch_size=16)
    a, b = train(settings, make(), data), train(settings, make(), other)
    close(a[0], b[0], 0)
    assert a[1].history == b[1].history


def test_xla_gives_the_same_weights() -> None:
    data = arrays(100)
    plain, compiled = (
        train(config(training__jit_compile=jit), one_device(), data)[0] for jit in ("false", "true")
    )
    close(plain, compiled)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_trains_nearly_the_same(precision: str) -> None:
    data = arrays(200)
    full = train(config(), one_device(), data)[1].history["loss"]
    half = train(config(training__mixed_precision=precision), one_device(), data)[1].history["loss"]
    np.testing.assert_allclose(half, full, rtol=0.02)


def test_replicas_agree_on_moving_averages() -> None:
    strategy = mirrored()
    loop, _ = train(config(model__batch_norm=True), strategy, arrays(96))
    moving = [v for v in loop.model.non_trainable_variables if "moving" in v.path]
    assert moving
    for variable in moving:
        first, second = (copy.numpy() for copy in strategy.experimental_local_results(variable.value))
        np.testing.assert_array_equal(first, second)
        assert np.abs(first).max() > 0


def test_the_cut_keeps_rows_in_order_and_shapes_static() -> None:
    dataset = tf.data.Dataset.from_tensors({"a": tf.range(8), "b": tf.zeros([8, 3])}).repeat(2)
    strategy = mirrored()
    spread = distribute(strategy, dataset)
    for batch in spread:
        left, right = (part.numpy().tolist() for part in strategy.experimental_local_results(batch["a"]))
        assert (left, right) == ([0, 1, 2, 3], [4, 5, 6, 7])
        assert strategy.experimental_local_results(batch["b"])[1].shape == (4, 3)


# --- an adopter's own methods -------------------------------------------------------------------------


class OwnLoss(keras.Model):
    """Mean absolute error of the probability, whatever the task."""

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
        error = tf.abs(y - tf.sigmoid(y_pred[:, 0]))
        return tf.reduce_mean(error * sample_weight)


class OwnStep(keras.Model):
    """An ordinary Keras train_step that notes what it was given."""

    def train_step(self, data: Any) -> Any:
        x, y, sample_weight = data
        self.seen = (set(x), y.shape, sample_weight.shape)
        with tf.GradientTape() as tape:
            rows = tf.nn.sigmoid_cross_entropy_with_logits(y, self(x, training=True)[:, 0])
            loss = tf.reduce_mean(rows * sample_weight)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def test_overrides_are_found() -> None:
    inputs = keras.Input((2,))
    plain = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    assert not overrides(plain, "train_step")
    assert not overrides(keras.Sequential([plain]), "compute_loss")
    assert overrides(OwnStep(inputs, plain(inputs)), "train_step")
    assert not overrides(OwnStep(inputs, plain(inputs)), "compute_loss")
    assert overrides(OwnLoss(inputs, plain(inputs)), "compute_loss")


@pytest.mark.parametrize("make", STRATEGIES)
def test_a_loss_of_the_model_is_used(make: Any) -> None:
    data = arrays(32)
    settings = config(**LINEAR)
    loop = make_loop(settings, make(), rows=32, wrap=lambda m: OwnLoss(m.inputs, m.outputs))
    logits = loop.predict(ArrayPipeline(data, 32))
    expected = (np.abs(data["label"] - logits) * data["weight"]).mean()
    state = loop.fit(ArrayPipeline(data, 32))
    np.testing.assert_allclose(state.history["loss"], [expected], rtol=1e-5)


@pytest.mark.parametrize("make", STRATEGIES)
def test_a_step_of_the_model_is_used(make: Any) -> None:
    def own(model: keras.Model) -> keras.Model:
        made = OwnStep(model.inputs, model.outputs)
        made.compile(optimizer=keras.optimizers.SGD(0.5))
        return made

    data = arrays(64)
    settings = config(**LINEAR, training__learning_rate=0.5)
    reference = train(settings, one_device(), data)
    loop = make_loop(settings, make(), rows=64, wrap=own)
    before = weights(loop)
    state = loop.fit(ArrayPipeline(data, 32))
    assert loop.model.seen[0] == {"numeric", "categorical"}
    assert int(loop.optimizer.iterations.numpy()) == state.step == 2
    assert max(np.abs(a - b).max() for a, b in zip(before, weights(loop), strict=True)) > 1e-3
    if make is one_device:
        close(reference[0], loop)


def test_a_step_of_the_model_has_conditions() -> None:
    own = lambda model: OwnStep(model.inputs, model.outputs)  # noqa: E731
    with pytest.raises(UserError, match=r"call model\.compile"):
        make_loop(config(**LINEAR), one_device(), wrap=own)
    with pytest.raises(UserError, match=r"training\.accumulate: got 2, expected 1"):
        make_loop(config(**LINEAR, training__accumulate=2), one_device(), wrap=own)
