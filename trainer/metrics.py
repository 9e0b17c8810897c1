"""The metrics of each task, by fixed names, summed over rows and replicas. Adopters: add metrics here.

Every metric keeps weighted sums over rows, so rows of weight 0 (padding) count nothing and the number of
replicas, of workers or the size of the batches is no setting. The sums are kept in variables that TensorFlow
itself adds up over replicas and workers when `result` reads them; with several workers all of them must
therefore call `result`. To add a metric, add a line to `make` and its name to `metric_names.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.metric_names import direction, names

__all__ = ["direction", "make", "names"]

_BINS = 65_536
_LOGITS = (-30.0, 18.0)  # float32 has no probability between 1 and the one with the logit 16.6
_EMPTY = float("nan")


def make(task: str, classes: Sequence[str] = ()) -> dict[str, keras.metrics.Metric]:
    """Makes the metrics of a task. Call it in the strategy's scope.

    Binary: auc, pr_auc (average precision), accuracy, precision and recall at probability 0.5, brier.
    Multiclass: accuracy, macro_f1 (mean over the classes that occur), top_3_accuracy if classes are more than
    3. Regression: rmse, mae, r2. Multilabel: auc (macro: mean over the labels that have both values),
    accuracy (share of single labels that are right).

    Args:
        task: binary, multiclass, regression or multilabel.
        classes: Names of the classes, or of the labels of a multilabel task; only their number counts.

    Returns:
        Metrics by name; `update_state(labels, predictions, weight)` takes labels as in the batches, what
        `losses.predictions` returns, and float32 weights [B]. A figure of no rows is NaN.
    """
    made: list[keras.metrics.Metric]
    if task == "binary":
        made = [
            AUC("auc"),
            AUC("pr_auc", curve="pr"),
            Ratio("accuracy", _right),
            Ratio("precision", lambda y, p: (y * _positive(p), _positive(p)), empty=0.0),
            Ratio("recall", lambda y, p: (y * _positive(p), y), empty=0.0),
            Ratio("brier", lambda y, p: (tf.math.squared_difference(y, p), tf.ones_like(y))),
        ]
    elif task == "multiclass":
        made = [Ratio("accuracy", lambda y, p: _among_first(y, p, 1)), MacroF1("macro_f1", len(classes))]
        if len(classes) > 3:
            made.append(Ratio("top_3_accuracy", lambda y, p: _among_first(y, p, 3)))
    elif task == "regression":
        made = [
            Ratio("rmse", lambda y, p: (tf.math.squared_difference(y, p), tf.ones_like(y)), finish=tf.sqrt),
            Ratio("mae", lambda y, p: (tf.abs(y - p), tf.ones_like(y))),
            R2("r2"),
        ]
    elif task == "multilabel":
        made = [AUC("auc", labels=len(classes)), Ratio("accuracy", _labels_right)]
    else:
        raise ValueError(f"unknown task {task!r}")
    return {metric.name: metric for metric in made}


# --- the metrics ------------------------------------------------------------------------------------


class Streaming(keras.metrics.Metric):
    """A metric whose state is sums, made with `sums`, over all rows and replicas."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self._sums: list[tf.Variable] = []

    def sums(self, name: str, shape: Sequence[int] = (), dtype: tf.DType = tf.float32) -> tf.Variable:
        """Makes a variable that each replica adds to by itself and that reads as the sum over replicas."""
        # Not Keras's own add_variable: before Keras 3.12 its variables read as one replica's part alone.
        variable = tf.Variable(
            lambda: tf.zeros(shape, dtype),
            trainable=False,
            name=f"{self.name}_{name}",
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        self._sums.append(variable)
        return variable

    def reset_state(self) -> None:
        """Forgets all rows."""
        for variable in self._sums:
            variable.assign(tf.zeros(variable.shape, variable.dtype))


class Ratio(Streaming):
    """sum(weight * a) / sum(weight * b), with a and b [B] given by a function of labels and predictions.

    Args:
        name: Name of the metric.
        parts: Returns (a, b), float32 [B] each.
        finish: What is done to the ratio at last, such as a square root.
        empty: The result when sum(weight * b) is 0.
    """

    def __init__(
        self,
        name: str,
        parts: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
        *,
        finish: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
        empty: float = _EMPTY,
    ) -> None:
        super().__init__(name)
        self._parts, self._finish, self._empty = parts, finish, empty
        self._above = self.sums("above")
        self._below = self.sums("below")

    def update_state(self, labels: Any, predictions: Any, weight: Any = None) -> None:
        """Adds rows: labels and predictions as in `make`, weights [B] (default 1)."""
        above, below = self._parts(tf.convert_to_tensor(labels), tf.convert_to_tensor(predictions))
        self._above.assign_add(tf.reduce_sum(_weighted(above, weight)))
        self._below.assign_add(tf.reduce_sum(_weighted(below, weight)))

    def result(self) -> tf.Tensor:
        """Returns the figure so far, a float32 scalar."""
        above, below = tf.convert_to_tensor(self._above), tf.convert_to_tensor(self._below)
        return tf.where(below > 0, self._finish(tf.math.divide_no_nan(above, below)), self._empty)


class AUC(Streaming):
    """Area under the ROC curve, or average precision, from a fine histogram of the scores.

    The bins are equally wide in the *logit* of the probability: they stay fine where a rare class puts all of
    its scores (near 0), where equal steps of the probability would put all rows into a few bins. Rows in one
    bin count as ties, whose order the area takes as half right (the rank-sum formula of Mann and Whitney);
    with 65,536 bins of 0.0007 the area agrees with the exact one to about 1e-6, average precision to 1e-4 (it
    comes out 1e-3 low where a model gives nearly the same probability to all rows).

    Args:
        name: Name of the metric.
        curve: "roc", or "pr" for average precision: the mean of the precision at each positive row.
        labels: Number of labels of a multilabel task (the result is the mean over them); 0 for binary.
    """

    def __init__(self, name: str, curve: str = "roc", labels: int = 0) -> None:
        super().__init__(name)
        self._curve = curve
        self._labels = max(labels, 1)
        # Many labels share the memory that a histogram may take; 1,024 bins still agree to about 1e-4.
        self._bins = max(1024, min(_BINS, 2**22 // self._labels))
        self._positives = self.sums("positives", [self._labels, self._bins])
        self._negatives = self.sums("negatives", [self._labels, self._bins])

    def update_state(self, labels: Any, predictions: Any, weight: Any = None) -> None:
        """Adds rows: labels and probabilities, both [B] or [B, labels], weights [B] (default 1)."""
        scores = tf.reshape(tf.cast(predictions, tf.float32), [-1, self._labels])
        truth = tf.reshape(tf.cast(labels, tf.float32), [-1, self._labels])
        logit = tf.math.log(tf.maximum(scores, 1e-30)) - tf.math.log(tf.maximum(1.0 - scores, 2.0**-25))
        place = (logit - _LOGITS[0]) * (self._bins / (_LOGITS[1] - _LOGITS[0]))
        place = tf.cast(tf.clip_by_value(place, 0.0, self._bins - 1.0), tf.int32)
        place += tf.range(self._labels) * self._bins
        for variable, values in ((self._positives, truth), (self._negatives, 1.0 - truth)):
            counts = tf.math.unsorted_segment_sum(
                tf.reshape(_weighted(values, weight), [-1]),
                tf.reshape(place, [-1]),
                self._labels * self._bins,
            )
            variable.assign_add(tf.reshape(counts, [self._labels, self._bins]))

    def result(self) -> tf.Tensor:
        """Returns the area so far, a float32 scalar; NaN while there are no positives or no negatives."""
        # From the highest score down; float64, as sums of many rows do not fit the 24 bits of a float32.
        positives = tf.cast(tf.reverse(tf.convert_to_tensor(self._positives), [1]), tf.float64)
        negatives = tf.cast(tf.reverse(tf.convert_to_tensor(self._negatives), [1]), tf.float64)
        true, false = tf.cumsum(positives, 1), tf.cumsum(negatives, 1)
        if self._curve == "pr":
            area = tf.reduce_sum(positives * tf.math.divide_no_nan(true, true + false), 1) / true[:, -1]
            known = true[:, -1] > 0
        else:
            pairs = tf.reduce_sum(negatives * (true - 0.5 * positives), 1)
            area = pairs / (true[:, -1] * false[:, -1])
            known = (true[:, -1] > 0) & (false[:, -1] > 0)
        total = tf.reduce_sum(tf.where(known, area, tf.zeros_like(area)))
        return tf.cast(total / tf.reduce_sum(tf.cast(known, tf.float64)), tf.float32)


class MacroF1(Streaming):
    """Mean over the classes that occur of 2 * hits / (rows of the class + rows predicted as it)."""

    def __init__(self, name: str, classes: int) -> None:
        super().__init__(name)
        self._classes = classes
        self._hits = self.sums("hits", [classes])
        self._actual = self.sums("actual", [classes])
        self._predicted = self.sums("predicted", [classes])

    def update_state(self, labels: Any, predictions: Any, weight: Any = None) -> None:
        """Adds rows: labels int32 [B], probabilities [B, classes], weights [B] (default 1)."""
        labels = tf.cast(labels, tf.int32)
        guess = tf.argmax(predictions, -1, output_type=tf.int32)
        ones = _weighted(tf.ones(tf.shape(labels), tf.float32), weight)
        hit = ones * tf.cast(labels == guess, tf.float32)
        self._hits.assign_add(tf.math.unsorted_segment_sum(hit, labels, self._classes))
        self._actual.assign_add(tf.math.unsorted_segment_sum(ones, labels, self._classes))
        self._predicted.assign_add(tf.math.unsorted_segment_sum(ones, guess, self._classes))

    def result(self) -> tf.Tensor:
        """Returns the figure so far, a float32 scalar."""
        hits, actual, predicted = (
            tf.convert_to_tensor(v) for v in (self._hits, self._actual, self._predicted)
        )
        score = tf.math.divide_no_nan(2.0 * hits, actual + predicted)
        occurs = tf.cast(actual > 0, tf.float32)
        return tf.reduce_sum(score * occurs) / tf.reduce_sum(occurs)


class R2(Streaming):
    """1 - sum(weight * error^2) / sum(weight * (label - mean label)^2)."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        # float64: the spread of labels around a large mean is a small difference of large sums.
        self._moments = self.sums("moments", [4], tf.float64)

    def update_state(self, labels: Any, predictions: Any, weight: Any = None) -> None:
        """Adds rows: labels and predictions [B], weights [B] (default 1)."""
        labels, predictions = tf.cast(labels, tf.float64), tf.cast(predictions, tf.float64)
        parts = [tf.ones_like(labels), labels, labels**2, tf.math.squared_difference(labels, predictions)]
        self._moments.assign_add(tf.stack([tf.reduce_sum(_weighted(part, weight)) for part in parts]))

    def result(self) -> tf.Tensor:
        """Returns the figure so far, a float32 scalar; NaN while all labels are the same."""
        rows, total, squares, errors = tf.unstack(tf.convert_to_tensor(self._moments))
        spread = squares - total**2 / rows
        return tf.cast(tf.where(spread > 0, 1.0 - errors / spread, _EMPTY), tf.float32)


# --- pieces -----------------------------------------------------------------------------------------


def _weighted(values: tf.Tensor, weight: Any) -> tf.Tensor:
    """`values` [B] or [B, K] times weights [B]; a weight of 0 wins over a value that is not finite."""
    if weight is None:
        return values
    weight = tf.cast(weight, values.dtype)
    weight = tf.reshape(weight, [-1] + [1] * (len(values.shape) - 1))
    return tf.math.multiply_no_nan(values, tf.broadcast_to(weight, tf.shape(values)))


def _positive(probability: tf.Tensor) -> tf.Tensor:
    return tf.cast(probability > 0.5, tf.float32)


def _right(labels: tf.Tensor, probability: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(labels == _positive(probability), tf.float32), tf.ones_like(labels)


def _labels_right(labels: tf.Tensor, probability: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    right = tf.reduce_mean(tf.cast(labels == _positive(probability), tf.float32), -1)
    return right, tf.ones_like(right)


def _among_first(labels: tf.Tensor, scores: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Whether fewer than k classes have a higher score than the row's own, or the same score before it."""
    labels = tf.cast(labels, tf.int32)[:, tf.newaxis]
    own = tf.gather(scores, labels, axis=1, batch_dims=1)
    ahead = (scores > own) | ((scores == own) & (tf.range(scores.shape[-1])[tf.newaxis] < labels))
    hit = tf.cast(tf.reduce_sum(tf.cast(ahead, tf.int32), -1) < k, tf.float32)
    return hit, tf.ones_like(hit)
