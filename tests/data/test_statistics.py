"""What the pass over the train split counts, and what it refuses."""

from __future__ import annotations

from typing import Any

import feature_tables as tables
import numpy as np
import pyarrow as pa
import pytest

from trainer.data.fitting import build
from trainer.data.statistics import Statistics
from trainer.errors import UserError


def statistics(config: Any, *columns: dict[str, Any]) -> Statistics:
    made = Statistics(config)
    for part in columns:
        made.update(pa.record_batch(part))
    return made.finish()


def test_parts_that_are_merged_give_what_one_pass_gives() -> None:
    config = tables.config(*tables.ALL_KINDS)
    rows = tables.table(400, seed=1, nasty=False)
    parts = [Statistics(config) for _ in range(3)]
    for place, batch in enumerate(rows.to_batches(max_chunksize=37)):
        parts[place % 3].update(batch)
    parts[0].merge(parts[1])
    parts[0].merge(parts[2])
    whole = Statistics(config)
    whole.update(rows)
    merged, once = build(parts[0].finish()), build(whole.finish())
    assert merged.rows == 400
    for one, other in zip(merged.fitted, once.fitted, strict=True):
        assert one.vocabulary == other.vocabulary
        np.testing.assert_allclose(one.shift + one.factor, other.shift + other.factor, rtol=1e-12)
        assert (*one.impute, *one.boundaries, one.newest) == pytest.approx(
            (*other.impute, *other.boundaries, other.newest), rel=1e-12
        )
        assert one.summary["missing"] == other.summary["missing"] if one.summary else True
    assert merged.label == once.label


def test_null_nan_and_infinity_are_missing_but_zero_is_not() -> None:
    made = statistics(
        tables.config({"kind": "numeric", "name": "x"}),
        {"x": [30.0, None, 0.0, float("nan"), float("inf"), 1e300], "y": [0, 1, 0, 1, 0, 1]},
    )
    numbers = made.features["x"]
    assert (numbers.rows, numbers.missing, numbers.infinite) == (6, 4, 2)
    assert numbers.moments.mean[0] == 15


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint8(), pa.float32(), pa.decimal128(30, 2), pa.string()])
def test_numbers_of_every_arrow_type(kind: pa.DataType) -> None:
    values = pa.array([30, None, 0]).cast(kind)
    made = statistics(tables.config({"kind": "numeric", "name": "x"}), {"x": values, "y": [0, 1, 0]})
    assert (made.features["x"].missing, made.features["x"].moments.mean[0]) == (1, 15)


def test_null_and_empty_text_are_missing_and_7_is_one_value() -> None:
    made = Statistics(tables.config({"kind": "categorical", "name": "w"}))
    batches = [
        pa.array(["7", "", None, "a"]),
        pa.array(["7", "", None, "a"]).dictionary_encode(),
        pa.array([7, None]),
        pa.array([7.0, float("nan"), None]),
        pa.array(["a", "7"], pa.large_string()),
    ]
    for words in batches:
        made.update(pa.record_batch({"w": words, "y": np.zeros(len(words))}))
    words = made.finish().features["w"]
    assert words.counts.most_common() == [("7", 5), ("a", 3)]
    assert (words.rows, words.missing) == (15, 7)


def test_values_outside_the_range_of_an_integer_feature_are_counted_apart() -> None:
    made = statistics(
        tables.config({"kind": "integer", "name": "i", "size": 3}),
        {"i": [0, 2, 2, 3, -1, None, -(2**63)], "y": [0, 1] * 3 + [0]},
    )
    ids = made.features["i"]
    assert (ids.counts.tolist(), ids.outside, ids.missing) == ([1, 0, 2], 2, 2)


def test_bags_count_only_the_entries_that_are_kept() -> None:
    made = statistics(
        tables.config({"kind": "bag", "name": "t", "max_length": 2}),
        {"t": [["a", "b", "c"], [], None, ["", None], ["a", ""]], "y": [0, 1, 0, 1, 0]},
    )
    bags = made.features["t"]
    assert bags.words.counts.most_common() == [("a", 2), ("b", 1)]
    assert (bags.rows, bags.missing, bags.cut, bags.entries) == (5, 3, 1, 3)


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        ({"kind": "numeric"}, [None, float("nan"), float("inf")]),
        ({"kind": "categorical"}, [None, "", None]),
        ({"kind": "hashed"}, ["", "", ""]),
        ({"kind": "integer", "size": 2}, pa.array([None] * 3, pa.int64())),
        ({"kind": "boolean"}, pa.array([None] * 3, pa.bool_())),
        ({"kind": "datetime"}, pa.array([None] * 3, pa.timestamp("us"))),
        ({"kind": "bag"}, [[], None, [""]]),
        ({"kind": "vector", "length": 1}, [[None], None, [float("nan")]]),
        ({"kind": "numeric"}, pa.nulls(3)),
        ({"kind": "categorical"}, pa.nulls(3)),
        ({"kind": "bag"}, pa.nulls(3)),
    ],
)
def test_a_column_without_any_value_is_refused(feature: dict[str, Any], values: Any) -> None:
    with pytest.raises(
        UserError, match=r"feature 'f': column 'c' has no value in the 3 rows of the train split"
    ):
        statistics(tables.config({"name": "f", "column": "c", **feature}), {"c": values, "y": [0, 1, 0]})


@pytest.mark.parametrize(
    ("feature", "values", "message"),
    [
        (
            {"kind": "numeric"},
            ["a", "1"],
            r"column 'c' of type string has 1 values such as 'a', expected a number",
        ),
        ({"kind": "numeric"}, [[1], [2]], r"column 'c' has type list<item: int64>, expected a number"),
        ({"kind": "numeric"}, pa.array([1, 2], pa.timestamp("s")), r"type timestamp\[s\], expected a number"),
        ({"kind": "categorical"}, [["a"], ["b"]], r"type list<item: string>, expected text"),
        ({"kind": "integer", "size": 2}, [0.5, 1], r"has 1 values such as 0.5, expected an integer"),
        ({"kind": "boolean"}, [2, 1], r"has 1 values such as 2, expected true or false"),
        (
            {"kind": "datetime"},
            ["2024-01-01", "soon"],
            r"has 1 values such as 'soon', expected a date or time",
        ),
        ({"kind": "datetime"}, [1, 2], r"type int64, expected a date or time"),
        ({"kind": "bag"}, ["a", "b"], r"type string, expected a list of texts or integers"),
        (
            {"kind": "vector", "length": 2},
            [[1.0], [1.0, 2.0]],
            r"1 lists whose length is not 2, such as one of 1",
        ),
        (
            {"kind": "bag", "weights": "w"},
            [["a"], ["b", "c"]],
            r"1 rows have lists of different lengths in 'c' and 'w'",
        ),
    ],
)
def test_a_column_of_the_wrong_kind_is_named(feature: dict[str, Any], values: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"feature 'f': .*{message}"):
        statistics(
            tables.config({"name": "f", "column": "c", **feature}),
            {"c": values, "w": [[1.0], [1.0]], "y": [0, 1]},
        )


def test_weights_below_zero_are_refused() -> None:
    config = tables.config({"kind": "bag", "name": "t", "weights": "w"})
    with pytest.raises(UserError, match=r"column 'w' has 1 weights below 0, such as -0.5"):
        statistics(config, {"t": [["a", "b"]], "w": [[1.0, -0.5]], "y": [0]})


def test_an_absent_column_is_named_with_the_nearest() -> None:
    with pytest.raises(
        UserError, match=r"feature 'incom': there is no column 'incom' in the data; did you mean 'income'"
    ):
        statistics(tables.config({"kind": "numeric", "name": "incom"}), {"income": [1.0], "y": [0]})


def test_no_rows_at_all_are_refused() -> None:
    with pytest.raises(UserError, match="the train split has no rows"):
        Statistics(tables.config({"kind": "numeric", "name": "x"})).finish()
