"""Classes from the train split, and labels as numbers."""

from __future__ import annotations

from typing import Any

import feature_tables as tables
import numpy as np
import pyarrow as pa
import pytest

from trainer.data.labels import LabelEncoder
from trainer.errors import UserError
from trainer.features import LabelSpec, fit


def spec(task: str, values: Any, **label: Any) -> LabelSpec:
    columns = values if isinstance(values, dict) else {"y": values}
    config = tables.config({"kind": "numeric", "name": "x"}, task=task, **{"column": tuple(columns), **label})
    if len(columns) == 1:
        config = tables.config({"kind": "numeric", "name": "x"}, task=task, **label)
    rows = len(next(iter(columns.values())))
    return fit(config, [pa.record_batch({"x": np.arange(rows, dtype=float), **columns})]).label


def encode(label: LabelSpec, values: Any) -> np.ndarray:
    return LabelEncoder(label)(pa.record_batch(values if isinstance(values, dict) else {"y": values}))


@pytest.mark.parametrize(
    ("values", "classes", "positive"),
    [
        ([True, False, True], ("false", "true"), True),
        ([1, 0, 1], ("0", "1"), 1),
        ([1.0, 0.0, 1.0], ("0", "1"), 1),
        (["yes", "no", "yes"], ("no", "yes"), "yes"),
        ([" >50K", "<=50K", ">50K "], ("<=50K", ">50K"), ">50K"),
        ([10, 9, 10], ("9", "10"), 10),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ("a", "b"), "b"),
    ],
)
def test_binary_labels(values: Any, classes: tuple[str, ...], positive: Any) -> None:
    label = spec("binary", values)
    assert label.classes == classes
    assert label.counts == {classes[0]: 1, classes[1]: 2}
    assert label.outputs == 1
    found = encode(label, values)
    assert found.dtype == np.float32
    assert found.tolist() == [1, 0, 1]
    assert encode(label, [positive]).tolist() == [1]


def test_one_file_with_true_and_false_and_another_with_1_and_0() -> None:
    assert encode(spec("binary", [True, False]), [1, 0, 1]).tolist() == [1, 0, 1]
    assert encode(spec("binary", [True, False]), ["True", "FALSE"]).tolist() == [1, 0]
    assert encode(spec("binary", [1, 0]), [True, False]).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([3, 1, 2, 10], ("1", "2", "3", "10")),
        (["3", "1", "2", "10"], ("1", "2", "3", "10")),
        (["c", "a", "10", "9"], ("10", "9", "a", "c")),
    ],
)
def test_multiclass_labels(values: Any, classes: tuple[str, ...]) -> None:
    label = spec("multiclass", values)
    assert (label.classes, label.outputs) == (classes, 4)
    found = encode(label, values)
    assert found.dtype == np.int32
    assert found.tolist() == [classes.index(str(value)) for value in values]


def test_classes_of_the_config_set_the_order() -> None:
    label = spec("multiclass", ["low", "high", "low"], classes=("low", "mid", "high"))
    assert label.classes == ("low", "mid", "high")
    assert label.counts == {"low": 2, "mid": 0, "high": 1}
    assert encode(label, ["mid", "low"]).tolist() == [1, 0]


def test_a_train_value_that_is_no_class_of_the_config_is_counted() -> None:
    with pytest.raises(
        UserError, match=r"3 values of 4 in the train split that are no known class: 'Low' \(2\), 'x' \(1\)"
    ):
        spec("multiclass", ["Low", "Low", "high", "x"], classes=("low", "high"))


def test_a_label_that_only_later_rows_have_is_counted_and_named_with_the_nearest() -> None:
    label = spec("binary", ["<=50K", ">50K"])
    later = [">50K.", "<=50K.", ">50K.", "<=50K"]
    with pytest.raises(
        UserError,
        match=r"column 'y' has 3 values of 4 in these rows that are no known class: '>50K\.' \(2\), "
        r"'<=50K\.' \(1\), expected one of '<=50K', '>50K'; did you mean '>50K'",
    ):
        encode(label, later)


def test_a_label_that_only_later_rows_have_is_found_behind_known_ones() -> None:
    encoder = LabelEncoder(spec("binary", ["a", "b"]))
    dictionary = pa.array(["a", "b", "c"])
    make = lambda ids: pa.record_batch({"y": pa.DictionaryArray.from_arrays(pa.array(ids), dictionary)})  # noqa: E731
    assert encoder(make([0, 1, 1])).tolist() == [0, 1, 1]
    with pytest.raises(UserError, match=r"1 values of 2 .*'c' \(1\)"):
        encoder(make([0, 2]))


@pytest.mark.parametrize(
    ("task", "values", "message"),
    [
        (
            "binary",
            ["a", "a"],
            r"column 'y' is 'a' in every row of the train split: task binary needs two classes",
        ),
        ("multiclass", [1, 1], "needs two classes"),
        (
            "binary",
            [1, 2, 3],
            r"needs 2 classes, column 'y' has 3 \('1', '2', '3'\); did you mean 'task: multiclass'",
        ),
        ("regression", [2.0, 2.0], r"is 2.0 in every row of the train split"),
        ("regression", [2.0, float("inf")], r"has 1 infinite values"),
        (
            "regression",
            ["a", "b"],
            r"label: column 'y' of type string has 2 values such as 'a', expected a number",
        ),
        ("binary", [None, None], r"has no value in the 2 rows"),
        ("binary", ["", " "], r"has no value in the 2 rows|is '' in every row"),
    ],
)
def test_labels_that_do_not_fit_the_task_are_refused(task: str, values: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec(task, values)


def test_classes_of_the_config_must_make_sense() -> None:
    with pytest.raises(UserError, match="blanks around it"):
        spec("binary", ["a", "b"], classes=("a", "b "))


def test_regression_labels_and_their_summary() -> None:
    label = spec("regression", [1.0, 2.0, 4.0, None])
    assert (label.classes, label.outputs, label.missing) == ((), 1, 1)
    assert label.summary["mean"] == pytest.approx(7 / 3)
    assert (label.summary["count"], label.summary["p50"]) == (3, 2.0)
    assert encode(label, [5, 6]).tolist() == [5, 6]


def test_multilabel_labels() -> None:
    label = spec("multilabel", {"a": [1, 0, 1], "b": [False, True, False]})
    assert (label.classes, label.outputs, label.counts) == (("a", "b"), 2, {"a": 2, "b": 1})
    found = encode(label, {"b": [True, False], "a": [0, 1]})
    assert found.dtype == np.float32
    assert found.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("task", "values", "later"),
    [
        ("binary", ["a", "b"], ["a", None, ""]),
        ("regression", [1.0, 2.0], [1.0, None, float("nan")]),
        ("multilabel", {"a": [1, 0], "b": [0, 1]}, {"a": [1, None, 1], "b": [0, 1, None]}),
    ],
)
def test_a_missing_label_is_never_a_class(task: str, values: Any, later: Any) -> None:
    with pytest.raises(UserError, match="2 rows have no value"):
        encode(spec(task, values), later)


def test_missing_labels_fail_where_the_config_says_so() -> None:
    assert spec("binary", ["a", "b", None]).missing == 1
    with pytest.raises(UserError, match=r"1 rows of the train split have none \(label.missing is 'fail'\)"):
        spec("binary", ["a", "b", None], missing="fail")
