"""Exact figures from predictions, in NumPy: curves, calibration, confusion. Adopters: leave.

All take weights; a row of weight 0 counts nothing. Streaming metrics for training are in `metrics.py`.
"""

from __future__ import annotations

import numpy as np

_MOST_POINTS = 512  # a curve of more points looks the same


def _sorted_sums(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (thresholds, true positive weight, false positive weight) by distinct score, falling."""
    weights = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
    kept = weights > 0
    labels, scores, weights = np.asarray(labels, np.float64)[kept], np.asarray(scores)[kept], weights[kept]
    order = np.argsort(-scores, kind="stable")
    scores, labels, weights = scores[order], labels[order], weights[order]
    last = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))
    return scores[last], np.cumsum(labels * weights)[last], np.cumsum((1 - labels) * weights)[last]


def _thin(*columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Keeps the ends and evenly spaced points between."""
    if len(columns[0]) <= _MOST_POINTS:
        return columns
    places = np.unique(np.linspace(0, len(columns[0]) - 1, _MOST_POINTS).astype(np.int64))
    return tuple(column[places] for column in columns)


def roc_curve(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (false positive rate, true positive rate, threshold), from (0, 0) to (1, 1).

    Args:
        labels: 0/1 [rows], both present.
        scores: [rows], higher for the positive class.
        weights: [rows]; None counts each row once.
    """
    thresholds, hits, alarms = _sorted_sums(labels, scores, weights)
    x, y = np.append(0.0, alarms / alarms[-1]), np.append(0.0, hits / hits[-1])
    return _thin(x, y, np.append(np.inf, thresholds))  # type: ignore[return-value]


def precision_recall_curve(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (recall, precision, threshold), recall rising; arguments as for `roc_curve`."""
    thresholds, hits, alarms = _sorted_sums(labels, scores, weights)
    return _thin(hits / hits[-1], hits / (hits + alarms), thresholds)  # type: ignore[return-value]


def rank_auc(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Returns the exact area under the ROC curve, ties counted half (the trapezoid rule on all points)."""
    _, hits, alarms = _sorted_sums(labels, scores, weights)
    x, y = np.append(0.0, alarms / alarms[-1]), np.append(0.0, hits / hits[-1])
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2))


def calibration_bins(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None, bins: int = 10
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (mean prediction, observed share, weight) of bins with about as many rows each.

    Args:
        labels: 0/1 [rows].
        scores: probabilities [rows].
        weights: [rows]; None counts each row once.
        bins: most bins; equal predictions are never parted.
    """
    weights = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
    scores = np.asarray(scores, np.float64)
    edges = np.unique(np.quantile(scores[weights > 0], np.linspace(0, 1, bins + 1)[1:-1]))
    places = np.searchsorted(edges, scores, side="right")
    total = np.bincount(places, weights, len(edges) + 1)
    used = total > 0
    predicted = np.bincount(places, weights * scores, len(edges) + 1)[used] / total[used]
    observed = (
        np.bincount(places, weights * np.asarray(labels, np.float64), len(edges) + 1)[used] / total[used]
    )
    return predicted, observed, total[used]


def confusion_matrix(
    labels: np.ndarray, predicted: np.ndarray, classes: int, weights: np.ndarray | None = None
) -> np.ndarray:
    """Returns the weight of rows by true class (rows) and predicted class (columns), float64 [K, K].

    Args:
        labels: class numbers [rows].
        predicted: class numbers or bool [rows].
        classes: K.
        weights: [rows]; None counts each row once.
    """
    places = np.asarray(labels).astype(np.int64) * classes + np.asarray(predicted).astype(np.int64)
    return np.bincount(places, weights, classes * classes).reshape(classes, classes).astype(np.float64)
