"""The report's exact figures against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

from trainer import figures

RANDOM = np.random.default_rng(0)
ROWS = 400
LABELS = RANDOM.integers(0, 2, ROWS).astype(np.float32)
SCORES = np.round(RANDOM.normal(size=ROWS) + LABELS, 1)  # with ties
WEIGHTS = RANDOM.choice([0.0, 1.0, 2.5], ROWS)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_curves(weights: np.ndarray | None) -> None:
    assert figures.rank_auc(LABELS, SCORES, weights) == pytest.approx(
        sk.roc_auc_score(LABELS, SCORES, sample_weight=weights), abs=1e-12
    )
    false, true, threshold = figures.roc_curve(LABELS, SCORES, weights)
    expected = sk.roc_curve(LABELS, SCORES, sample_weight=weights, drop_intermediate=False)
    kept = np.isin(expected[2], threshold)  # scikit-learn has points of rows of weight 0 too
    np.testing.assert_allclose(np.stack([false, true]), np.stack(expected[:2])[:, kept], atol=1e-12)
    recall, precision, threshold = figures.precision_recall_curve(LABELS, SCORES, weights)
    p, r, t = sk.precision_recall_curve(LABELS, SCORES, sample_weight=weights)
    order = np.searchsorted(t, threshold)
    np.testing.assert_allclose(recall, r[order], atol=1e-12)
    np.testing.assert_allclose(precision, p[order], atol=1e-12)


def test_long_curves_are_thinned_but_keep_their_ends() -> None:
    labels = RANDOM.integers(0, 2, 50_000)
    scores = RANDOM.normal(size=50_000) + labels
    false, true, _ = figures.roc_curve(labels, scores)
    assert len(false) <= 512
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    area = np.sum(np.diff(false) * (true[1:] + true[:-1]) / 2)
    assert area == pytest.approx(figures.rank_auc(labels, scores), abs=1e-3)


def test_calibration() -> None:
    scores = RANDOM.uniform(size=20_000)
    labels = (RANDOM.uniform(size=20_000) < scores).astype(float)
    predicted, observed, weight = figures.calibration_bins(labels, scores, bins=10)
    assert len(predicted) == 10
    assert weight.sum() == 20_000
    np.testing.assert_allclose(weight, 2000, rtol=0.01)
    np.testing.assert_allclose(observed, predicted, atol=0.04)
    np.testing.assert_allclose(predicted, np.arange(0.05, 1, 0.1), atol=0.02)


def test_calibration_with_weights_and_equal_predictions() -> None:
    scores = np.array([0.2, 0.2, 0.2, 0.9, 0.9])
    predicted, observed, weight = figures.calibration_bins(
        np.array([0, 1, 0, 1, 0]), scores, np.array([1, 2, 1, 3, 0]), bins=5
    )
    np.testing.assert_allclose(predicted, [0.2, 0.9])
    np.testing.assert_allclose(observed, [0.5, 1.0])
    np.testing.assert_allclose(weight, [4, 3])


def test_confusion_matrix() -> None:
    labels, guess = RANDOM.integers(0, 4, ROWS), RANDOM.integers(0, 3, ROWS)
    got = figures.confusion_matrix(labels, guess, 4, WEIGHTS)
    np.testing.assert_allclose(
        got, sk.confusion_matrix(labels, guess, labels=range(4), sample_weight=WEIGHTS)
    )
    plain = figures.confusion_matrix(LABELS, SCORES > 0, 2)
    np.testing.assert_array_equal(plain, sk.confusion_matrix(LABELS, SCORES > 0))
