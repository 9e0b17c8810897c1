"""Bad records, weights, labels and leaks."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from trainer.data import checks
from trainer.errors import UserError


def test_bad_records_fail_or_are_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    strict = checks.BadRecords(skip=False, limit=10)
    with pytest.raises(UserError, match="row 3 is odd"):
        strict.add("a", 3, lambda: "row 3 is odd")
    loose = checks.BadRecords(skip=True, limit=7)
    with caplog.at_level(logging.WARNING, "trainer"):
        for _ in range(2):
            for row in range(7):
                loose.add("a", row, lambda row=row: f"row {row} is odd")  # type: ignore[misc]
    assert loose.count == 7
    assert len(caplog.records) == 5  # the first few; the count is told at the end
    with pytest.raises(UserError, match=r"more than 7 records can't be read .* the last one: b is odd"):
        loose.add("b", 0, lambda: "b is odd")


def test_missing_column() -> None:
    error = checks.missing_column("a.csv", "agee", ["age", "state"], like="b.csv")
    assert str(error) == "a.csv: no column 'agee' that b.csv has; did you mean 'age'?"
    assert str(checks.missing_column("a.csv", "zzz", ["age"])) == "a.csv: no column 'zzz'; it has age"


def test_weights() -> None:
    checks.check_weights(np.array([0.0, 2.0]), "w", "train")
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(UserError, match=r"train: weight column 'w' has 1 value\(s\).*in row 2"):
            checks.check_weights(np.array([1.0, wrong]), "w", "train")


def test_auc_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    for ties in (3, 1000):
        scores = rng.integers(0, ties, 2000).astype(float)
        positive = rng.random(2000) < 0.3 + 0.4 * scores / ties
        assert checks.rank_auc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
    assert np.isnan(checks.rank_auc(np.array([1.0, 2.0]), np.array([True, True])))


def test_telling_columns(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(1)
    label = rng.integers(0, 2, 3000)
    table = pa.table(
        {
            "noise": rng.normal(size=3000),
            "outcome": label * 10 + rng.normal(size=3000),
            "reverse": -label.astype(float),
            "text": pa.array(np.array(["paid", "open"])[label]).dictionary_encode(),
            "unique": [f"name {i}" for i in range(3000)],  # tells every row apart, and says nothing
            "city": [f"c{i}" for i in rng.integers(0, 20, 3000)],
            "missing": pa.array(np.where(label == 1, 1.0, np.nan), from_pandas=True),
            "tags": [["a"]] * 3000,
        }
    )
    found = checks.warn_telling_columns(table, label, table.column_names)
    assert set(found) == {"outcome", "reverse", "text", "missing"}
    assert "column 'reverse' alone tells the label (AUC 1.000 in a sample of 3000 train rows)" in caplog.text
    three = rng.integers(0, 3, 3000)
    table = pa.table({"class": [f"k{i}" for i in three], "noise": rng.normal(size=3000)})
    assert set(checks.telling_columns(table, three, table.column_names)) == {"class"}


def test_overlap() -> None:
    keys = checks.Overlap()
    keys.add("train", pa.record_batch({"id": pa.array([1, 2, 2, 3])}))
    keys.add("train", pa.record_batch({"id": pa.array([4])}))
    keys.add("validation", pa.record_batch({"id": pa.array([5])}))
    keys.add("test", pa.record_batch({"id": pa.array(["2", "4", "9", "9"]).dictionary_encode()}))
    assert keys.found() == {("train", "test"): 2}


def test_row_hashes_tell_columns_apart() -> None:
    a = checks.row_hashes(pa.record_batch({"x": ["1", "2"], "y": ["2", "1"]}))
    b = checks.row_hashes(pa.record_batch({"x": [1, 2], "y": [2.0, 1.0]}))
    assert a[0] != a[1]
    np.testing.assert_array_equal(a, b)
    lists = checks.row_hashes(pa.record_batch({"x": [["a"], ["a"], ["a", "b"], None]}))
    assert [int((lists == one).sum()) for one in lists] == [2, 2, 1, 1]
