"""The loss of each row, the weights of classes, and predictions from logits. Adopters: change.

The training loop multiplies the loss of each row with the row's weight and its class's weight and divides the
sum by the rows of the global batch, so nothing here takes a mean over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainer.errors import UserError, nearest

if TYPE_CHECKING:
    from trainer.config import Config

RowFunction = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def loss_function(config: Config, features: Any) -> RowFunction:
    """Returns the loss of the config's task.

    Binary: cross-entropy with the sigmoid of the logit. Multiclass: cross-entropy with the softmax of the
    logits. Regression: squared error. Multilabel: mean over the labels of their binary cross-entropy. Label
    smoothing s (Szegedy et al. 2016) moves a binary target y to y(1-s) + s/2 and a one-hot one to
    y(1-s) + s/classes.

    Args:
        config: The run config.
        features: The fitted features; `features.label.classes` gives the number of classes.

    Returns:
        A function of labels (float32 [B], int32 [B] for multiclass, float32 [B, K] for multilabel) and logits
        [B, outputs] that returns float32 [B]. Class weights are not in it: see `class_weights`.

    Raises:
        UserError: `training.label_smoothing` with task regression.
    """
    smoothing = config.training.label_smoothing
    if config.task == "binary":

        def binary(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
            target = labels * (1.0 - smoothing) + 0.5 * smoothing
            return tf.nn.sigmoid_cross_entropy_with_logits(target, _column(logits))

        return binary
    if config.task == "multiclass":
        classes = len(features.label.classes)

        def multiclass(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
            logits = tf.cast(logits, tf.float32)
            if not smoothing:
                return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            target = tf.one_hot(labels, classes) * (1.0 - smoothing) + smoothing / classes
            return tf.nn.softmax_cross_entropy_with_logits(target, logits)

        return multiclass
    if config.task == "multilabel":

        def multilabel(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
            target = labels * (1.0 - smoothing) + 0.5 * smoothing
            each = tf.nn.sigmoid_cross_entropy_with_logits(target, tf.cast(logits, tf.float32))
            return tf.reduce_mean(each, -1)

        return multilabel
    if smoothing:
        raise UserError(
            f"training.label_smoothing: got {smoothing:g}, but task regression has no classes to smooth"
        )
    return lambda labels, logits: tf.math.squared_difference(labels, _column(logits))


def class_weights(config: Config, features: Any) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the function from labels [B] to the weight of each row's class, float32 [B].

    Classes that `training.class_weights` does not name weigh 1. For the training loss alone: evaluation
    counts every row with its own weight.

    Raises:
        UserError: A class name that the label does not have.
    """
    given = config.training.class_weights
    if not given:
        return lambda labels: tf.ones(tf.shape(labels)[:1], tf.float32)
    table = tf.constant(weight_vector(given, features.label.classes), tf.float32)
    return lambda labels: tf.gather(table, tf.cast(labels, tf.int32))


def weight_vector(given: dict[str, float], classes: Sequence[str]) -> list[float]:
    """Returns one weight a class, in the order of `classes`; 1 for those that `given` does not name."""
    names = [str(name) for name in classes]
    for name, weight in given.items():
        if name not in names:
            raise UserError(
                f"training.class_weights: the label has no class {name!r}, expected one of "
                f"{', '.join(names[:10])}{', ...' if len(names) > 10 else ''}{nearest(name, names)}"
            )
        if not 0 <= weight < float("inf"):
            raise UserError(
                f"training.class_weights.{name}: got {weight:g}, expected a finite number from 0 up"
            )
    return [float(given.get(name, 1.0)) for name in names]


def predictions(task: str, logits: tf.Tensor) -> tf.Tensor:
    """Turns logits [B, outputs] into what is reported and served, float32.

    Returns:
        Binary: [B], the probability of `classes[1]`. Multiclass: [B, K] probabilities that sum to 1.
        Regression: [B] values. Multilabel: [B, K] probabilities, each by itself.
    """
    logits = tf.cast(logits, tf.float32)
    if task == "binary":
        return tf.sigmoid(_column(logits))
    if task == "multiclass":
        return tf.nn.softmax(logits)
    if task == "multilabel":
        return tf.sigmoid(logits)
    return _column(logits)


def _column(logits: tf.Tensor) -> tf.Tensor:
    """[B, 1] -> [B], in float32 (cross-entropy in half precision loses the small probabilities)."""
    return tf.cast(tf.squeeze(logits, -1), tf.float32)
