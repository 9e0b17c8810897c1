"""Streaming metrics against scikit-learn, with weights, padding and odd distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics as sk

from trainer import metrics

RANDOM = np.random.default_rng(0)


def figures(
    task: str, classes: tuple[str, ...], labels: np.ndarray, guess: np.ndarray, weight: np.ndarray
) -> dict:
    """Feeds three batches and one of padding whose values are not even numbers."""
    made = metrics.make(task, classes)
    assert tuple(made) == metrics.names(task, len(classes))
    nonsense = np.full_like(guess[:5], np.nan)
    for metric in made.values():
        for part in np.array_split(np.arange(len(labels)), 3):
            metric.update_state(labels[part], guess[part], weight[part])
        metric.update_state(labels[:5], nonsense, np.zeros(5, np.float32))
    return {name: float(metric.result()) for name, metric in made.items()}


SCORES = {
    "spread": lambda z: 1 / (1 + np.exp(-z)),
    "rare": lambda z: 1 / (1 + np.exp(-(z - 7))),  # all below 0.02
    "sure": lambda z: 1 / (1 + np.exp(-(z + 7))),
    "nearly equal": lambda z: 1 / (1 + np.exp(-0.05 * z)),
    "extreme": lambda z: 1 / (1 + np.exp(-6 * z)),
    "few values": lambda z: np.round(1 / (1 + np.exp(-z)), 1),
}


@pytest.mark.parametrize("shape", SCORES)
def test_binary(shape: str) -> None:
    rows = 20_000
    labels = (RANDOM.uniform(size=rows) < 0.3).astype(np.float32)
    guess = SCORES[shape](RANDOM.normal(size=rows) + labels).astype(np.float32)
    weight = RANDOM.choice([0.0, 1.0, 2.5], rows).astype(np.float32)
    got = figures("binary", ("no", "yes"), labels, guess, weight)
    positive = guess > 0.5
    expected = {
        "auc": sk.roc_auc_score(labels, guess, sample_weight=weight),
        "pr_auc": sk.average_precision_score(labels, guess, sample_weight=weight),
        "accuracy": sk.accuracy_score(labels, positive, sample_weight=weight),
        "precision": sk.precision_score(labels, positive, sample_weight=weight, zero_division=0),
        "recall": sk.recall_score(labels, positive, sample_weight=weight),
        "brier": np.average((labels - guess) ** 2, weights=weight),
    }
    if shape == "nearly equal":
        assert got.pop("pr_auc") == pytest.approx(expected.pop("pr_auc"), abs=2e-3)
    assert got == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("classes", [3, 6])
def test_multiclass(classes: int) -> None:
    rows = 3000
    labels = RANDOM.integers(0, classes - 1, rows).astype(np.int32)  # the last class does not occur
    guess = RANDOM.dirichlet(np.ones(classes), rows).astype(np.float32)
    guess[np.arange(rows), labels] += 0.3
    weight = RANDOM.choice([0.0, 1.0, 2.0], rows).astype(np.float32)
    got = figures("multiclass", tuple("abcdef"[:classes]), labels, guess, weight)
    best = guess.argmax(1)
    expected = {
        "accuracy": sk.accuracy_score(labels, best, sample_weight=weight),
        "macro_f1": sk.f1_score(
            labels, best, sample_weight=weight, average="macro", labels=range(classes - 1), zero_division=0
        ),
    }
    if classes > 3:
        expected["top_3_accuracy"] = sk.top_k_accuracy_score(
            labels, guess, k=3, sample_weight=weight, labels=range(classes)
        )
    assert got == pytest.approx(expected, abs=1e-5)


def test_equal_scores_are_no_hit_for_every_class() -> None:
    made = metrics.make("multiclass", tuple("abcdef"))
    labels = np.arange(6, dtype=np.int32)
    for metric in made.values():
        metric.update_state(labels, np.full((6, 6), 1 / 6, np.float32), np.ones(6, np.float32))
    assert float(made["accuracy"].result()) == pytest.approx(1 / 6)
    assert float(made["top_3_accuracy"].result()) == pytest.approx(3 / 6)


@pytest.mark.parametrize("mean", [0.0, 10_000.0])
def test_regression(mean: float) -> None:
    labels = (RANDOM.normal(size=3000) + mean).astype(np.float32)
    guess = (labels + RANDOM.normal(size=3000) * 0.5).astype(np.float32)
    weight = RANDOM.choice([0.0, 1.0, 2.0], 3000).astype(np.float32)
    got = figures("regression", (), labels, guess, weight)
    expected = {
        "rmse": math.sqrt(sk.mean_squared_error(labels, guess, sample_weight=weight)),
        "mae": sk.mean_absolute_error(labels, guess, sample_weight=weight),
        "r2": sk.r2_score(labels.astype(float), guess.astype(float), sample_weight=weight),
    }
    assert got == pytest.approx(expected, rel=1e-4)


def test_multilabel() -> None:
    labels = (RANDOM.uniform(size=(3000, 4)) < [0.5, 0.1, 0.9, 0.0]).astype(
        np.float32
    )  # the last never occurs
    guess = (1 / (1 + np.exp(-(RANDOM.normal(size=(3000, 4)) + labels)))).astype(np.float32)
    weight = RANDOM.choice([0.0, 1.0, 2.0], 3000).astype(np.float32)
    got = figures("multilabel", tuple("abcd"), labels, guess, weight)
    areas = [sk.roc_auc_score(labels[:, k], guess[:, k], sample_weight=weight) for k in range(3)]
    right = ((guess > 0.5) == labels).mean(1)
    assert got == pytest.approx(
        {"auc": np.mean(areas), "accuracy": np.average(right, weights=weight)}, abs=1e-4
    )


def test_reset_forgets_and_no_rows_is_no_number() -> None:
    for task, classes in (("binary", "ab"), ("multiclass", "abcd"), ("regression", ""), ("multilabel", "ab")):
        for name, metric in metrics.make(task, tuple(classes)).items():
            empty = float(metric.result())
            assert math.isnan(empty) or (empty == 0 and name in ("precision", "recall"))
            labels = {"multiclass": np.int32([0, 1]), "multilabel": np.float32([[0, 1], [1, 0]])}
            guess = {
                "multiclass": np.eye(4, dtype=np.float32)[:2],
                "multilabel": np.float32([[0, 1], [1, 0]]),
            }
            default = np.float32([0.0, 1.0])
            metric.update_state(labels.get(task, default), guess.get(task, default), np.float32([1, 1]))
            assert math.isfinite(float(metric.result()))
            metric.reset_state()
            again = float(metric.result())
            assert math.isnan(again) == math.isnan(empty)


def test_names_stay_the_same_in_one_process() -> None:
    for _ in range(2):
        assert [m.name for m in metrics.make("binary", ("a", "b")).values()] == list(
            metrics.names("binary", 2)
        )


def test_every_metric_has_a_direction() -> None:
    for task in ("binary", "multiclass", "regression", "multilabel"):
        for name in metrics.names(task, 9):
            expected = "min" if name in ("brier", "rmse", "mae") else "max"
            assert metrics.direction(name) == metrics.direction(f"val_{name}") == expected
    assert metrics.direction("val_loss") == metrics.direction("loss") == "min"
    assert metrics.direction("val_f1") is None
