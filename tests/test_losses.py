"""Losses of rows against NumPy and Keras, class weights, predictions."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from model_parts import config

from trainer.errors import UserError
from trainer.losses import class_weights, loss_function, predictions

RANDOM = np.random.default_rng(0)
COLUMN = RANDOM.normal(size=(20, 1)).astype(np.float32) * 3
MATRIX = RANDOM.normal(size=(20, 3)).astype(np.float32) * 3


def features(*classes: str) -> SimpleNamespace:
    return SimpleNamespace(label=SimpleNamespace(classes=classes))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_binary(smoothing: float) -> None:
    labels = RANDOM.integers(0, 2, 20).astype(np.float32)
    loss = loss_function(config(training__label_smoothing=smoothing), features("a", "b"))(labels, COLUMN)
    keras_loss = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=smoothing, reduction=None)
    np.testing.assert_allclose(loss, keras_loss(labels[:, None], COLUMN), rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_multiclass(smoothing: float) -> None:
    labels = RANDOM.integers(0, 3, 20).astype(np.int32)
    run = config("multiclass", training__label_smoothing=smoothing)
    loss = loss_function(run, features("a", "b", "c"))(labels, MATRIX)
    keras_loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=smoothing, reduction=None
    )
    np.testing.assert_allclose(loss, keras_loss(np.eye(3)[labels], MATRIX), rtol=1e-5)


def test_regression() -> None:
    labels = RANDOM.normal(size=20).astype(np.float32)
    loss = loss_function(config("regression"), features())(labels, COLUMN)
    np.testing.assert_allclose(loss, (labels - COLUMN[:, 0]) ** 2, rtol=1e-5)
    with pytest.raises(UserError, match=r"label_smoothing: got 0\.1"):
        loss_function(config("regression", training__label_smoothing=0.1), features())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_multilabel(smoothing: float) -> None:
    labels = RANDOM.integers(0, 2, (20, 3)).astype(np.float32)
    run = config("multilabel", training__label_smoothing=smoothing)
    loss = loss_function(run, features("a", "b", "c"))(labels, MATRIX)
    keras_loss = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=smoothing, reduction=None)
    np.testing.assert_allclose(loss, keras_loss(labels, MATRIX), rtol=1e-5)


@pytest.mark.parametrize(
    ("task", "labels", "logits"),
    [
        ("binary", np.float32([0, 1, 1]), [[1e4], [-1e4], [0]]),
        ("multiclass", np.int32([0, 1, 1]), [[1e4, -1e4], [1e4, -1e4], [0, 0]]),
        ("multilabel", np.float32([[0, 1], [1, 0], [1, 1]]), [[1e4, -1e4], [1e4, -1e4], [0, 0]]),
    ],
)
def test_large_logits_and_half_precision_stay_finite(task: str, labels: np.ndarray, logits: list) -> None:
    loss = loss_function(config(task), features("a", "b"))(labels, tf.constant(logits, tf.float16))
    assert loss.dtype == tf.float32
    assert loss.shape == (3,)
    assert np.isfinite(loss).all()


def test_class_weights_go_by_name() -> None:
    run = config("multiclass", training__class_weights={"cat": 9.0, "dog": 0.5})
    weight = class_weights(run, features("ant", "cat", "dog"))
    np.testing.assert_array_equal(weight(tf.constant([2, 1, 0, 1])), [0.5, 9, 1, 9])
    binary = class_weights(config(training__class_weights={"1": 9.0}), features("0", "1"))
    np.testing.assert_array_equal(binary(tf.constant([0.0, 1.0])), [1, 9])
    np.testing.assert_array_equal(class_weights(config(), features("0", "1"))(tf.zeros([3])), [1, 1, 1])


def test_class_weights_scale_the_loss_exactly() -> None:
    labels = np.float32([0] * 9 + [1])
    loss = loss_function(config(), features("0", "1"))(labels, COLUMN[:10]).numpy()
    weight = class_weights(config(training__class_weights={"0": 1, "1": 9}), features("0", "1"))(
        labels
    ).numpy()
    np.testing.assert_allclose(loss * weight, [*loss[:9], 9 * loss[9]], rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"dgo": 2.0}, "no class 'dgo'.*did you mean 'dog'"), ({"dog": -1.0}, r"class_weights.dog: got -1")],
)
def test_wrong_class_weights(given: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        class_weights(config("multiclass", training__class_weights=given), features("ant", "dog"))


def test_predictions() -> None:
    sigmoid = 1 / (1 + np.exp(-MATRIX))
    np.testing.assert_allclose(predictions("binary", MATRIX[:, :1]), sigmoid[:, 0], rtol=1e-5)
    np.testing.assert_allclose(predictions("multilabel", MATRIX), sigmoid, rtol=1e-5)
    np.testing.assert_array_equal(predictions("regression", MATRIX[:, :1]), MATRIX[:, 0])
    soft = np.exp(MATRIX) / np.exp(MATRIX).sum(1, keepdims=True)
    np.testing.assert_allclose(predictions("multiclass", MATRIX), soft, rtol=1e-5)
    half = predictions("multiclass", tf.constant(MATRIX, tf.float16))
    assert half.dtype == tf.float32
    np.testing.assert_allclose(tf.reduce_sum(half, 1), 1, rtol=1e-6)
