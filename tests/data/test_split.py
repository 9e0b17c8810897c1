"""Which split a row is in."""

from __future__ import annotations

import datetime
import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainer.config import SplitConfig
from trainer.data.formats import Bounds
from trainer.data.split import NAMES, ColumnSplit, HashSplit, TimeSplit, hash_share, make_splitter
from trainer.errors import UserError


def time_split(**options: Any) -> TimeSplit:
    return TimeSplit(SplitConfig(by="time", column="t", **options))


def dealt(splitter: Any, values: pa.Array) -> list[str]:
    return [NAMES[code] for code in splitter.assign(values, "rows")]


@pytest.mark.parametrize(
    "stored",
    [
        pa.array([datetime.date(2024, 1, 1), datetime.date(2024, 2, 1), datetime.date(2024, 3, 1)]),
        pa.array(
            [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 2, 1), datetime.datetime(2024, 3, 2)]
        ),
        pa.array(["2024-01-31", "2024-02-01", "2024-03-01 00:00:00"]),
        pa.array(["2024-01-31", "2024-02-01T00:00:00Z", "2024-03-01"]).dictionary_encode(),
    ],
    ids=["date", "timestamp", "text", "dictionary"],
)
def test_time(stored: pa.Array) -> None:
    splitter = time_split(validation_from="2024-02-01", test_from="2024-03-01")
    assert dealt(splitter, stored) == ["train", "validation", "test"]
    assert splitter.has == (True, True, True)


def test_time_by_numbers() -> None:
    splitter = time_split(validation_from="2008")
    assert splitter.has == (True, True, False)
    assert dealt(splitter, pa.array([2007, 2008])) == ["train", "validation"]
    assert dealt(splitter, pa.array([2007.5, 2008.0])) == ["train", "validation"]
    assert dealt(splitter, pa.array(["2007", " 2008 "])) == ["train", "validation"]
    assert dealt(splitter, pa.array([datetime.date(2007, 12, 31), datetime.date(2008, 1, 1)])) == [
        "train",
        "validation",
    ]


def test_time_zone_of_the_cut() -> None:
    splitter = time_split(validation_from="2024-02-01T01:00:00+01:00")
    assert dealt(
        splitter, pa.array([datetime.datetime(2024, 1, 31, 23, 59), datetime.datetime(2024, 2, 1)])
    ) == [
        "train",
        "validation",
    ]


def test_time_errors() -> None:
    splitter = time_split(validation_from="2024-02-01")
    with pytest.raises(UserError, match="rows: 2 of 3 rows have no value in the split column 't'"):
        splitter.assign(pa.array(["2024-01-01", None, ""]), "rows")
    with pytest.raises(UserError, match="'t' holds 'soon', expected a time"):
        splitter.assign(pa.array(["2024-01-01", "soon"]), "rows")
    with pytest.raises(
        UserError, match=r"'t' holds numbers, but data.split.validation_from='2024-02-01' is a time"
    ):
        splitter.assign(pa.array([1]), "rows")
    with pytest.raises(UserError, match=r"holds times, but data.split.validation_from='5.5' is a number"):
        time_split(validation_from="5.5").assign(pa.array([datetime.date(2024, 1, 1)]), "rows")
    with pytest.raises(UserError, match="'next week' is no moment"):
        time_split(validation_from="next week")
    with pytest.raises(UserError, match="must be later than"):
        time_split(validation_from="2024-02-01", test_from="2024-01-01")
    with pytest.raises(UserError, match="must both be times or both be numbers"):
        time_split(validation_from="2024-02-01", test_from="7")


def test_time_bounds() -> None:
    splitter = time_split(validation_from="2024-02-01", test_from="2024-03-01")

    def at(month: int) -> datetime.date:
        return datetime.date(2024, month, 5)

    assert splitter.assign_bounds(Bounds(at(1), at(1), 0)) == range(0, 1)
    assert splitter.assign_bounds(Bounds(at(1), at(2), 0)) == range(0, 2)
    assert splitter.assign_bounds(Bounds(at(2), at(3), 0)) == range(1, 3)
    assert splitter.assign_bounds(Bounds(at(1), at(1), 1)) is None  # nulls must be found
    assert splitter.assign_bounds(Bounds("2024", "2025", 0)) is None
    assert splitter.assign_bounds(Bounds(1, 2, 0)) is None  # a number column: reading it is an error
    assert "from 2024-01-05 00:00:00" in splitter.seen()
    assert time_split(validation_from="10").assign_bounds(Bounds(1, 9, 0)) == range(0, 1)
    assert time_split(validation_from="10").assign_bounds(Bounds(1.0, 9.0, 0)) is None  # could hold NaN


def test_hash_is_the_same_for_all_time() -> None:
    share = hash_share([b"", b"1", b"CA"], "")
    np.testing.assert_array_equal(share, GOLDEN_SHARES)
    digest = hashlib.blake2b(b"\x1fCA", digest_size=8).digest()
    assert share[2] == (int.from_bytes(digest, "big") >> 11) / 2**53
    splitter = HashSplit(SplitConfig(by="hash", column="k", validation_fraction=0.1, test_fraction=0.2))
    codes = splitter.assign(pa.array(range(10_000)), "rows")
    assert np.bincount(codes).tolist() == GOLDEN_COUNTS
    salted = HashSplit(
        SplitConfig(by="hash", column="k", validation_fraction=0.1, test_fraction=0.2, salt="2")
    )
    assert np.bincount(salted.assign(pa.array(range(10_000)), "rows")).tolist() == GOLDEN_SALTED


# Worked out once; another value would deal other splits to everyone's data.
GOLDEN_SHARES = [0.9618044850102755, 0.838720455302658, 0.6826192666993641]
GOLDEN_COUNTS = [6901, 1029, 2070]
GOLDEN_SALTED = [6903, 1025, 2072]


def test_hash_goes_by_text_form() -> None:
    splitter = HashSplit(SplitConfig(by="hash", column="k"))
    integers = splitter.assign(pa.array(range(500)), "rows")
    for stored in (
        pa.array([str(i) for i in range(500)]),
        pa.array([float(i) for i in range(500)]),
        pa.array([str(i) for i in range(500)]).dictionary_encode(),
        pa.array([str(i).encode() for i in range(500)]),
        pa.array(range(500), pa.int32()),
    ):
        np.testing.assert_array_equal(splitter.assign(stored, "rows"), integers)
    one = splitter.assign(pa.array([None, "", None]), "rows")
    assert len(set(one.tolist())) == 1
    assert HashSplit(SplitConfig(by="hash", column="k", validation_fraction=0, test_fraction=0)).has == (
        True,
        False,
        False,
    )
    with pytest.raises(UserError, match="split column 'k' holds list"):
        splitter.assign(pa.array([[1]]), "rows")


def test_column() -> None:
    splitter = ColumnSplit(SplitConfig(by="column", column="part"))
    assert dealt(splitter, pa.array(["test", " training ", "validation"])) == ["test", "train", "validation"]
    with pytest.raises(
        UserError, match=r"holds 'tset', expected 'training', 'validation', 'test'; did you mean 'test'"
    ):
        splitter.assign(pa.array(["tset", "test"]), "rows")
    with pytest.raises(UserError, match="1 of 2 rows have no value"):
        splitter.assign(pa.array([None, "test"]), "rows")
    numbers = ColumnSplit(
        SplitConfig(by="column", column="p", train_value="0", validation_value="1", test_value="2")
    )
    assert dealt(numbers, pa.array([0, 1, 2])) == ["train", "validation", "test"]
    with pytest.raises(UserError, match="must differ"):
        ColumnSplit(SplitConfig(by="column", column="p", train_value="test"))


def test_column_bounds() -> None:
    splitter = ColumnSplit(SplitConfig(by="column", column="part"))
    assert splitter.assign_bounds(Bounds("test", "test", 0)) == range(2, 3)
    assert splitter.assign_bounds(Bounds("a", "a", 0)) is None  # an unknown value must be found
    assert splitter.assign_bounds(Bounds("test", "training", 0)) is None
    assert splitter.assign_bounds(Bounds("test", "test", 3)) is None


def test_paths_need_no_splitter() -> None:
    assert make_splitter(SplitConfig(by="paths", validation_source=("v",))) is None
