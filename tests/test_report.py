"""The page: every task renders, says what it is given, and needs nothing from outside."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from trainer import charts, report
from trainer.config import Config

TASKS = ("binary", "multiclass", "regression", "multilabel")


def config(task: str, name: str = "x") -> Config:
    label: Any = ["y1", "y2"] if task == "multilabel" else "y"
    return Config.model_validate(
        {
            "name": name,
            "task": task,
            "data": {"source": "rows.csv", "split": {"by": "hash", "column": "id"}},
            "label": {"column": label},
            "features": [{"name": "a", "kind": "numeric"}],
        }
    )


def outcome(task: str, rows: int = 200, **more: Any) -> report.Outcome:
    generator = np.random.default_rng(0)
    classes: tuple[str, ...] = {
        "binary": ("no", "<yes>"),
        "multiclass": ("a", "b", "c"),
        "regression": (),
        "multilabel": ("y1", "y2"),
    }[task]
    if task == "binary":
        labels, predictions = generator.integers(0, 2, rows).astype(np.float32), generator.random(rows)
    elif task == "multiclass":
        labels, predictions = generator.integers(0, 3, rows), generator.dirichlet([1, 1, 1], rows)
    elif task == "regression":
        labels, predictions = generator.normal(size=rows), generator.normal(size=rows)
    else:
        labels = generator.integers(0, 2, (rows, 2)).astype(np.float32)
        predictions = generator.random((rows, 2))
    head = {"binary": "auc", "multiclass": "accuracy", "regression": "rmse", "multilabel": "auc"}[task]
    metrics = {
        "train": {"loss": 0.4, head: 0.91, "examples": 1000},
        "test": {"loss": 0.51234, head: 0.87654, "examples": rows},
        "steps": 12, "examples_per_second": 54321.0, "seconds": {"train": 3.0, "total": 5.0},
    }  # fmt: skip
    values: dict[str, Any] = {
        "metrics": metrics,
        "history": [{"loss": 0.6, "val_loss": 0.7, f"val_{head}": 0.8, "learning_rate": 0.1}] * 3,
        "best_epoch": 2,
        "splits": {"train": {"rows": 1000, "dropped": 3}, "test": {"rows": rows, "dropped": 0}},
        "classes": classes,
        "split": "test",
        "labels": labels,
        "predictions": predictions,
        "weights": np.ones(rows, np.float32),
        "slices": {"state": [{"value": "<b>CA</b>", "rows": 5, "loss": 0.25, "auc": None}]},
        "importance": {"age": (0.2, 0.01), "income": (0.1, 0.02)},
        "importance_metric": "auc",
        "parity": {"passed": True, "rows": 50, "max_abs_difference": 1e-8},
    }
    return report.Outcome(**{**values, **more})


@pytest.mark.parametrize("task", TASKS)
def test_page_of_each_task(task: str) -> None:
    page = report.render(config(task), outcome(task), "name: x\n")
    assert "0.5123" in page
    assert "0.8765" in page
    assert "54,321" in page
    assert not re.search(r'(?:src|href)="(?!#|data:)[^"]', page)
    for svg in re.findall(r"<svg.*?</svg>", page, re.S):
        ElementTree.fromstring(svg)  # well-formed, or a browser would show half of it
    assert page.count("<svg") >= 4


def test_names_from_the_data_are_text_and_never_markup() -> None:
    page = report.render(config("binary"), outcome("binary"), "a: <script>alert(1)</script>")
    assert "<b>CA</b>" not in page
    assert "&lt;b&gt;CA&lt;/b&gt;" in page
    assert "<script>alert" not in page


def test_ids_of_two_charts_never_meet() -> None:
    page = report.render(config("binary"), outcome("binary"), "")
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_one_class_only_and_failed_gate_are_said() -> None:
    made = outcome("binary", labels=np.zeros(200, np.float32), parity={"passed": False})
    page = report.render(config("binary"), made, "")
    assert "one class only" in page
    assert "FAILED" in page


def test_a_page_without_optional_parts() -> None:
    made = outcome("regression", slices={}, importance={}, parity=None, history=[])
    page = report.render(config("regression"), made, "")
    for heading in ("Slices", "Permutation importance", "Parity gate"):
        assert f"<h2>{heading}" not in page


def test_the_same_figures_give_the_same_bytes() -> None:
    assert report.render(config("binary"), outcome("binary"), "") == report.render(
        config("binary"), outcome("binary"), ""
    )


def test_confusion_of_many_classes_has_no_numbers_in_its_cells() -> None:
    svg = charts.confusion(np.eye(20).tolist(), [f"class {i}" for i in range(20)], "n")
    ElementTree.fromstring(svg)
