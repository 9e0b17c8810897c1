"""Mergeable statistics: exact where they say so, within their stated error elsewhere."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from trainer.data.memo import Remembered, same_memory
from trainer.data.sketches import Moments, Quantiles, ValueCounts

SHARES = [0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0]


def test_moments_are_those_of_numpy_however_the_rows_are_cut() -> None:
    values = np.random.default_rng(0).normal(3, 2, 10_001)
    values[::7] = np.nan
    whole, left, right = Moments(), Moments(), Moments()
    whole.update(values)
    for place, part in enumerate(np.array_split(values, 9)):
        (left if place % 2 else right).update(part)
    left.merge(right)
    for made in (whole, left):
        assert made.count[0] == np.isfinite(values).sum()
        assert made.mean[0] == pytest.approx(np.nanmean(values), rel=1e-13)
        assert made.std[0] == pytest.approx(np.nanstd(values), rel=1e-13)
        assert (made.min[0], made.max[0]) == (np.nanmin(values), np.nanmax(values))


def test_moments_survive_a_large_common_offset() -> None:
    # Sums of squares, the obvious way, lose all digits of this variance: 1e9 squared is 1e18.
    values = 1e9 + np.random.default_rng(1).normal(0, 1, 100_000)
    made = Moments()
    for part in np.array_split(values, 100):
        made.update(part)
    assert made.std[0] == pytest.approx(values.std(), rel=1e-9)


def test_moments_of_vectors_are_those_of_each_place() -> None:
    block = np.random.default_rng(2).normal(size=(500, 3)) * [1, 10, 100]
    block[::3, 1] = np.nan
    block[:, 2] = np.nan
    made, empty = Moments(3), Moments(3)
    made.update(block)
    made.merge(empty)
    empty.merge(made)
    for moments in (made, empty):
        assert moments.count.tolist() == [500, np.isfinite(block[:, 1]).sum(), 0]
        np.testing.assert_allclose(moments.std[:2], np.nanstd(block[:, :2], axis=0))
        assert moments.std[2] == 0


def test_quantiles_are_exact_up_to_65536_distinct_values() -> None:
    rng = np.random.default_rng(3)
    many_rows = rng.integers(0, 60_000, 400_000).astype(np.float32)
    made = Quantiles()
    for part in np.array_split(many_rows, 31):
        made.update(part)
    assert made.rank_error == 0
    np.testing.assert_array_equal(made(SHARES), np.quantile(many_rows.astype(np.float64), SHARES))


def test_quantiles_of_few_rows_interpolate() -> None:
    made = Quantiles()
    made.update(np.array([1, 2, 4, 8], np.float32))
    assert made([0.5, 0.0, 1.0, 0.25]).tolist() == [3.0, 1.0, 8.0, 1.75]
    assert np.isnan(Quantiles()([0.5])).all()


@pytest.mark.parametrize("order", ["random", "ascending", "descending", "heavy_tail"])
def test_quantiles_stay_within_their_stated_error(order: str) -> None:
    rng = np.random.default_rng(4)
    rows = 2_000_000
    values = rng.normal(1e6, 1e5, rows).astype(np.float32)
    values += rng.random(rows).astype(np.float32)
    if order == "heavy_tail":
        values = np.exp(rng.normal(0, 5, rows)).astype(np.float32)
    elif order != "random":
        values = np.sort(values)[:: 1 if order == "ascending" else -1]
    parts = [Quantiles() for _ in range(3)]
    for place, part in enumerate(np.array_split(values, 61)):
        parts[place % 3].update(part)
    made = parts[0]
    made.merge(parts[1])
    made.merge(parts[2])
    stated = (1 + math.log2(rows / 65_536)) / 8_192
    assert 0 < made.rank_error <= stated
    ordered = np.sort(values)
    for share, answer in zip(SHARES, made(SHARES), strict=True):
        low, high = np.searchsorted(ordered, [answer, np.nextafter(answer, np.inf)])
        error = max(low / rows - share, share - high / rows, 0)
        assert error <= made.rank_error + 1 / rows, share


def test_counts_are_exact_and_ordered_however_the_rows_are_cut() -> None:
    rng = np.random.default_rng(5)
    texts = [f"w{value}" for value in (rng.random(20_000) ** 3 * 500).astype(int)] + ["", "ü", "z", "y"]
    parts = [ValueCounts(10_000), ValueCounts(10_000)]
    for place, part in enumerate(np.array_split(np.array(texts), 13)):
        encoded = pa.array(part).dictionary_encode()
        parts[place % 2].update(encoded.indices.to_numpy(), encoded.dictionary)
    parts[0].merge(parts[1])
    expected = Counter(text for text in texts if text)
    ordered = sorted(expected.items(), key=lambda item: (-item[1], item[0]))
    assert parts[0].most_common() == ordered
    assert parts[0].most_common(size=3) == ordered[:3]
    assert parts[0].most_common(min_count=30) == [item for item in ordered if item[1] >= 30]
    assert (parts[0].distinct, parts[0].error) == (len(expected), 0)


def test_counts_of_one_shared_dictionary_add_up_and_missing_is_left_out() -> None:
    dictionary = pa.array(["a", "", None, "b"])
    made = ValueCounts(100)
    for _ in range(3):
        made.update(np.array([0, 1, 2, 3, 3, -1], np.int32), dictionary)
    assert made.most_common() == [("b", 6), ("a", 3)]


def test_ties_at_the_end_of_the_most_common_are_settled_by_text() -> None:
    made = ValueCounts(100)
    made.update(np.array([0, 1, 2, 3], np.int32), pa.array(["d", "b", "c", "a"]))
    assert made.most_common(size=2) == [("a", 1), ("b", 1)]
    assert made.most_common(size=0) == []


def test_counts_beyond_the_limit_keep_the_frequent_and_state_their_error() -> None:
    rng = np.random.default_rng(6)
    made = ValueCounts(1_000)
    truth: Counter[str] = Counter()
    for _ in range(60):
        rare = [f"r{value}" for value in rng.integers(0, 10**9, 9_000)]
        often = [f"f{value}" for value in rng.integers(0, 20, 1_000)]
        truth.update(rare + often)
        encoded = pa.array(rare + often).dictionary_encode()
        made.update(encoded.indices.to_numpy(), encoded.dictionary)
    found = dict(made.most_common())
    assert len(found) <= 1_000
    assert made.error > 0
    assert {text for text, _ in made.most_common(size=20)} == {f"f{value}" for value in range(20)}
    for text, count in truth.items():
        assert count - made.error <= found.get(text, 0) <= count


def test_the_same_dictionary_is_not_mapped_twice_and_another_one_is() -> None:
    calls = []
    remembered = Remembered(lambda texts: calls.append(texts) or np.arange(len(texts)))
    rows = pa.table({"w": pa.array(["a", "b"] * 50).dictionary_encode()})
    first, second = (batch["w"].dictionary for batch in rows.to_batches(max_chunksize=50))
    assert same_memory(first, second)
    assert remembered(first) is remembered(second)
    other = pa.array(["a", "b"])
    assert not same_memory(first, other)
    assert same_memory(other[1:], other[1:])
    assert not same_memory(other, other[1:])
    assert not same_memory(other[:1], other[1:])
    assert not same_memory(other[:1], other)
    remembered(other)
    assert len(calls) == 2


def test_quantiles_are_monotonic() -> None:
    made = Quantiles()
    made.update(np.random.default_rng(7).normal(size=300_000).astype(np.float32))
    answers = made(np.linspace(0, 1, 101))
    assert all(before <= after for before, after in pairwise(answers))
