"""Slices and permutation importance, against values worked out by hand or with scikit-learn."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from trainer import analysis


def rows(count: int = 2000) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    useful, useless = generator.normal(size=count), generator.normal(size=count)
    place = generator.choice(["a", "b", "c", "d"], count, p=[0.5, 0.3, 0.15, 0.05])
    labels = (generator.random(count) < 1 / (1 + np.exp(-2 * useful))).astype(np.float32)
    table = pa.table(
        {"useful": useful, "useless": useless, "place": pa.array(list(place)).dictionary_encode()}
    )
    return table, labels, 1 / (1 + np.exp(-2 * useful))


def test_slices_hold_the_figures_of_their_rows_alone() -> None:
    table, labels, predictions = rows()
    weights = np.ones(len(labels), np.float32)
    made = analysis.slices("binary", table["place"], labels, predictions, weights, most=2)
    assert [row["value"] for row in made] == ["a", "b", "(2 others)"]
    assert sum(row["rows"] for row in made) == len(labels)
    mask = np.array(table["place"].to_pylist()) == "b"
    assert made[1]["auc"] == pytest.approx(roc_auc_score(labels[mask], predictions[mask]), abs=1e-9)
    assert made[1]["loss"] == pytest.approx(log_loss(labels[mask], predictions[mask]), abs=1e-6)
    assert made[1]["label_mean"] == pytest.approx(labels[mask].mean(), abs=1e-6)


def test_slices_count_missing_values_and_leave_out_rows_without_weight() -> None:
    column = pa.chunked_array([pa.array(["x", None, "x", "y"])])
    labels, predictions = np.array([1, 0, 0, 1], np.float32), np.array([0.9, 0.1, 0.2, 0.5])
    made = analysis.slices("binary", column, labels, predictions, np.array([1, 1, 1, 0], np.float32), most=9)
    assert [(row["value"], row["rows"]) for row in made] == [("x", 2), ("(missing)", 1)]
    assert made[1]["auc"] is None  # one class only


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us", "UTC"), pa.bool_(), pa.float64()])
def test_slices_of_any_type(kind: pa.DataType) -> None:
    column = pa.chunked_array([pa.array([0, 1, 1], pa.int64()).cast(kind)])
    made = analysis.slices("regression", column, np.ones(3), np.array([1, 2, 1.0]), np.ones(3), most=5)
    assert sum(row["rows"] for row in made) == 3
    assert sum(row["rows"] * row["loss"] for row in made) == pytest.approx(1)


def test_importance_finds_the_column_that_matters() -> None:
    table, labels, _ = rows()

    def predict(table: pa.Table) -> np.ndarray:
        return 1 / (1 + np.exp(-2 * table["useful"].to_numpy()))

    name, falls = analysis.importance(
        "binary", table, [["useful"], ["useless"]], labels, np.ones(len(labels)), predict, seed=1
    )
    assert name == "auc"
    assert falls["useful"][0] > 0.2
    assert falls["useless"] == (0.0, 0.0)


def test_importance_of_a_regression_is_the_rise_of_its_loss() -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=500)
    name, falls = analysis.importance(
        "regression", pa.table({"x": x}), [["x"]], x, np.ones(500), lambda t: t["x"].to_numpy(), seed=1
    )
    assert name == "loss"
    assert falls["x"][0] == pytest.approx(2, abs=0.5)  # two independent draws of variance 1


def test_row_losses_by_task() -> None:
    multi = analysis.row_losses(
        "multiclass", np.array([0, 2]), np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    )
    np.testing.assert_allclose(multi, -np.log([0.5, 0.8]))
    labels, p = np.array([[1.0, 0.0]]), np.array([[0.8, 0.4]])
    np.testing.assert_allclose(
        analysis.row_losses("multilabel", labels, p), [-(np.log(0.8) + np.log(0.6)) / 2], rtol=1e-6
    )
    assert np.isfinite(analysis.row_losses("binary", np.array([1.0]), np.array([0.0]))).all()
