"""Conversion of stored columns, value by value."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainer.data import cast
from trainer.data.times import parse_time

UTC = datetime.timezone.utc


def values(array: pa.Array, wanted: pa.DataType, **options: Any) -> list[Any]:
    done = cast.convert(array, wanted, **options)
    assert done.bad is None
    assert done.values.type == wanted
    return done.values.to_pylist()


def bad(array: pa.Array, wanted: pa.DataType, **options: Any) -> list[bool]:
    done = cast.convert(array, wanted, **options)
    assert done.bad is not None
    assert all(v is None for v, wrong in zip(done.values.to_pylist(), done.bad, strict=True) if wrong)
    return done.bad.tolist()


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (pa.array([1, None, 2**53], pa.int64()), [1.0, None, 2.0**53]),
        (pa.array([1, 255], pa.uint8()), [1.0, 255.0]),
        (pa.array([0.5, None], pa.float32()), [0.5, None]),
        (pa.array([True, False, None]), [1.0, 0.0, None]),
        (pa.array([decimal.Decimal("1.25"), None]), [1.25, None]),
        (
            pa.array([" 42 ", "42", "-1e3", "", "  ", None, "+7"]),
            [42.0, 42.0, -1000.0, None, None, None, 7.0],
        ),
        (pa.array(["1", "2", "1"]).dictionary_encode(), [1.0, 2.0, 1.0]),
        (pa.array([b"1.5"]), [1.5]),
        (pa.array(["1"], pa.large_string()), [1.0]),
        (pa.nulls(2), [None, None]),
        (pa.array([], pa.string()), []),
    ],
)
def test_numbers(stored: pa.Array, expected: list[Any]) -> None:
    assert values(stored, cast.NUMBER) == expected


def test_numbers_that_are_none() -> None:
    assert bad(pa.array(["1", "1,234", None, "x", "1_0", "0x1"]), cast.NUMBER) == [
        False,
        True,
        False,
        True,
        True,
        True,
    ]
    assert np.isnan(values(pa.array(["nan"]), cast.NUMBER)[0])
    assert values(pa.array(["NA", " NA ", "N/A", "1"]), cast.NUMBER, missing=("NA", "N/A")) == [
        None,
        None,
        None,
        1.0,
    ]
    assert bad(pa.array(["NA", "-"]), cast.NUMBER, missing=("NA",)) == [False, True]
    with pytest.raises(cast.WrongTypeError, match=r"timestamp.* where a number is wanted"):
        cast.convert(pa.array([datetime.datetime(2024, 1, 1)]), cast.NUMBER)
    with pytest.raises(cast.WrongTypeError, match=r"list.* where a number is wanted"):
        cast.convert(pa.array([[1.0]]), cast.NUMBER)


def test_a_bad_entry_of_a_dictionary_counts_only_where_a_row_has_it() -> None:
    stored = pa.DictionaryArray.from_arrays(pa.array([0, None, 0]), pa.array(["1", "x"]))
    assert values(stored, cast.NUMBER) == [1.0, None, 1.0]
    stored = pa.DictionaryArray.from_arrays(pa.array([0, None, 1]), pa.array(["1", "x"]))
    assert bad(stored, cast.NUMBER) == [False, False, True]


def test_integers_are_never_rounded() -> None:
    large = 2**53 + 1
    assert values(pa.array([large, None]), cast.INTEGER) == [large, None]
    assert values(pa.array([f" {large}", "7.0", ""]), cast.INTEGER) == [large, 7, None]
    assert values(pa.array([7.0, float("nan"), None]), cast.INTEGER) == [7, None, None]
    assert bad(pa.array([7.5, 1e30, 2.0]), cast.INTEGER) == [True, True, False]
    assert bad(pa.array([2**64 - 1, 5], pa.uint64()), cast.INTEGER) == [True, False]
    assert bad(pa.array(["7.5", "9" * 30, "x"]), cast.INTEGER) == [True, True, True]
    assert values(pa.array([decimal.Decimal("7.00")]), cast.INTEGER) == [7]
    assert values(pa.array([True]), cast.INTEGER) == [1]


def test_text_form_is_the_same_for_all_types() -> None:
    for stored in (
        pa.array([7]),
        pa.array([7.0]),
        pa.array(["7"]),
        pa.array([decimal.Decimal("7.0")]),
        pa.array([b"7"]),
    ):
        assert values(stored, cast.TEXT) == ["7"]
    assert values(pa.array([2**53 + 1, None]), cast.TEXT) == [str(2**53 + 1), None]
    assert values(pa.array([1.5, float("nan"), 123456789012.0, None]), cast.TEXT) == [
        "1.5",
        None,
        "123456789012",
        None,
    ]
    assert values(pa.array([True, False]), cast.TEXT) == ["true", "false"]
    assert values(pa.array([datetime.date(2024, 2, 3)]), cast.TEXT) == ["2024-02-03"]
    assert values(pa.array([datetime.datetime(2024, 2, 3, 4)]), cast.TEXT) == ["2024-02-03 04:00:00"]
    assert values(pa.array([decimal.Decimal("100")]), cast.TEXT) == ["100"]
    assert values(pa.array([" x ", "", "NA"]), cast.TEXT) == [" x ", "", "NA"]
    assert values(pa.array([" x ", "", " NA"]), cast.TEXT, missing=("", "NA")) == [" x ", None, None]
    assert bad(pa.array([b"\xff", b"ok"]), cast.TEXT) == [True, False]
    with pytest.raises(cast.WrongTypeError):
        cast.convert(pa.array([{"a": 1}]), cast.TEXT)


def test_dictionaries_are_kept() -> None:
    stored = pa.array(["a", "b", "a"]).dictionary_encode()
    assert cast.convert(stored, cast.TEXT).values.dictionary is not None
    small = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array([5, 6]))
    assert values(small, cast.TEXT) == ["5", "6"]


def test_booleans() -> None:
    assert values(pa.array(["true", "F", " yes ", "0", "", None]), cast.BOOLEAN) == [
        True,
        False,
        True,
        False,
        None,
        None,
    ]
    assert values(pa.array([1, 0, None]), cast.BOOLEAN) == [True, False, None]
    assert values(pa.array([1.0, float("nan")]), cast.BOOLEAN) == [True, None]
    assert bad(pa.array([2, 1]), cast.BOOLEAN) == [True, False]
    assert bad(pa.array(["maybe"]), cast.BOOLEAN) == [True]


@pytest.mark.parametrize(
    "text",
    [
        "2024-02-03 04:05:06",
        "2024-02-03T04:05:06Z",
        "2024-02-03T04:05:06.000000Z",
        "2024-02-03 04:05:06 UTC",
        "2024-02-03 04:05:06.000 UTC",
        "2024-02-03T05:05:06+01:00",
        "2024-02-03T05:05:06+01",
        "2024-02-03T05:05:06+0100",
        " 2024-02-03T04:05:06 ",
        "2024-02-03T04:05:06.000000999",
    ],
)
def test_times_in_text(text: str) -> None:
    moment = datetime.datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert parse_time(text) == moment
    assert values(pa.array([text, None, ""]), cast.TIME) == [moment, None, None]


def test_times() -> None:
    day = datetime.datetime(2024, 2, 3, tzinfo=UTC)
    assert values(pa.array([datetime.date(2024, 2, 3), None]), cast.TIME) == [day, None]
    assert values(pa.array([day], pa.timestamp("ns", tz="Europe/Berlin")), cast.TIME) == [day]
    assert values(pa.array([datetime.datetime(2024, 2, 3)], pa.timestamp("s")), cast.TIME) == [day]
    assert values(pa.array(["2024-02-03", "2024-02-03T01:00:00+01:00"]), cast.TIME) == [day, day]
    assert parse_time("20240203") == day
    assert parse_time("2024-02") == datetime.datetime(2024, 2, 1, tzinfo=UTC)
    assert bad(pa.array(["2024-13-01", "2024-02-03"]), cast.TIME) == [True, False]
    with pytest.raises(cast.WrongTypeError, match="int64 where a date or time"):
        cast.convert(pa.array([1]), cast.TIME)


def test_lists() -> None:
    assert values(pa.array([["a", None], [], None, ["b"]]), cast.TEXT_LIST) == [
        ["a", None],
        None,
        None,
        ["b"],
    ]
    assert values(pa.array([[1, 2], [3]]), cast.TEXT_LIST) == [["1", "2"], ["3"]]
    assert values(pa.array([[1.5, 2.0]], pa.list_(pa.float64(), 2)), cast.NUMBER_LIST) == [[1.5, 2.0]]
    assert values(pa.array(['["a", 1, null]', "", "[]", None]), cast.TEXT_LIST) == [
        ["a", "1", None],
        None,
        None,
        None,
    ]
    assert values(pa.array(["[1, 2.5]"]), cast.NUMBER_LIST) == [[1.0, 2.5]]
    assert bad(pa.array(["a|b", "[[1]]", "[1"]), cast.TEXT_LIST) == [True, True, True]
    assert bad(pa.array([["1"], ["x", "2"], None]), cast.NUMBER_LIST) == [False, True, False]
    sliced = pa.array([["a"], ["b", "c"], ["d"]]).slice(1, 1)
    assert values(sliced, cast.TEXT_LIST) == [["b", "c"]]
    with pytest.raises(cast.WrongTypeError, match="int64 where a list of texts"):
        cast.convert(pa.array([1]), cast.TEXT_LIST)
