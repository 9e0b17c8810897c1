"""The vocabulary's hash table against a Python dict."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from trainer.data.lookup import Vocabulary, fingerprints


def check(vocabulary: list[str], texts: pa.Array) -> None:
    places = {text: place for place, text in enumerate(vocabulary)}
    expected = [places.get(text or "", -1) for text in texts.to_pylist()]
    assert Vocabulary(tuple(vocabulary))(texts).tolist() == expected


@pytest.mark.parametrize("seed", range(60))
def test_any_texts_are_found_as_in_a_dict(seed: int) -> None:
    rng = np.random.default_rng(seed)
    alphabet = np.array(list("ab\0\x1f é日😀"))
    texts = ["".join(rng.choice(alphabet, rng.integers(0, 20))) for _ in range(60)]
    check(list(dict.fromkeys(texts[:30])), pa.array(texts, pa.string()))


def test_a_large_vocabulary_with_texts_of_all_lengths() -> None:
    rng = np.random.default_rng(0)
    texts = [f"{value:0{value % 40 + 1}x}" for value in rng.permutation(100_000)]
    check(texts[:60_000], pa.array(texts))


def test_texts_that_differ_in_one_bit_or_in_length_alone() -> None:
    texts = ["\0" * size for size in range(1, 30)] + ["a" * size for size in range(30)]
    texts += ["x" * 15 + chr(place) for place in range(1, 128)]
    check(texts[::2], pa.array(texts))


def test_slices_and_nulls() -> None:
    texts = pa.array(["a", None, "bb", "", "c" * 9, "d"])
    check(["bb", "c" * 9, "a"], texts[1:5])
    check(["bb"], texts[:0])
    check([], texts)
    check(["a"], pa.array(["", ""]))


def test_fingerprints_are_never_zero_and_do_not_collide() -> None:
    hashes = fingerprints(pa.array([str(value) for value in range(300_000)]))
    assert len(np.unique(hashes)) == 300_000
    assert (hashes != 0).all()


def test_a_value_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="two values"):
        Vocabulary(("a", "b", "a"))
