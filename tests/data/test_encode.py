"""Arrow batches to dense blocks: every id and number said in full for small tables."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import feature_tables as tables
import numpy as np
import pyarrow as pa
import pytest

from trainer.config import Config
from trainer.data.encode import Blocks, Encoder
from trainer.errors import UserError
from trainer.features import fit

NAN = float("nan")


def encode(feature: dict[str, Any], train: Any, rows: Any, **more: Any) -> Blocks:
    """Fits one feature named f on `train` and encodes `rows`."""
    config = tables.config({"name": "f", **feature})
    labels = np.arange(len(train)) % 2
    features = fit(config, [pa.record_batch({"f": train, "y": labels, **more})])
    return Encoder(features, with_label=False)(pa.record_batch({"f": rows, **more}))


def ids(feature: dict[str, Any], train: Any, rows: Any) -> list[int]:
    blocks = encode(feature, train, rows)
    assert blocks.categorical.dtype == np.int32
    assert blocks.categorical.flags.c_contiguous
    assert blocks.categorical.ctypes.data % 64 == 0
    return blocks.categorical[:, 0].tolist()


TRAIN = ["b", "a", "b", "c", "a", "b", "d", None]


@pytest.mark.parametrize(
    ("options", "expected"),
    # rows: b a c d missing "" unseen
    [
        ({}, [2, 3, 4, 5, 0, 0, 1]),
        ({"missing": "oov"}, [1, 2, 3, 4, 0, 0, 0]),
        ({"min_count": 2}, [2, 3, 1, 1, 0, 0, 1]),
        ({"max_size": 1}, [2, 1, 1, 1, 0, 0, 1]),
    ],
)
def test_categorical_ids(options: dict[str, Any], expected: list[int]) -> None:
    assert ids({"kind": "categorical", **options}, TRAIN, ["b", "a", "c", "d", None, "", "z"]) == expected


def test_unseen_values_are_spread_over_the_oov_rows_by_their_hash() -> None:
    unseen = [f"u{place}" for place in range(200)]
    found = ids({"kind": "categorical", "oov_buckets": 4}, TRAIN, ["b", *unseen, None])
    assert (found[0], found[-1]) == (5, 0)
    assert set(found[1:-1]) == {1, 2, 3, 4}
    assert found == ids({"kind": "categorical", "oov_buckets": 4}, TRAIN, ["b", *unseen, None])


@pytest.mark.parametrize(
    "rows",
    [
        pa.array(["7", None, "12", "x"]),
        pa.array(["7", None, "12", "x"], pa.large_string()),
        pa.array(["7", None, "12", "x"]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([1, 0, 2, 3], pa.uint8()), pa.array([None, "7", "12", "x"])),
        pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 2], pa.int64()), pa.array(["12", "7", "x"])),
        pa.array([7, None, 12, 99]),
        pa.array([7, None, 12, 99], pa.uint16()),
        pa.array([7.0, NAN, 12.0, 99.0]),
        pa.array([7, None, 12, 99]).dictionary_encode(),
        pa.array([None, "7", None, "12", "x", "y"])[1:5],
    ],
    ids=lambda rows: str(rows.type),
)
@pytest.mark.parametrize("train", [["7", "12", "7"], [7, 12, 7]])
def test_a_category_is_compared_by_its_text_form(train: list[Any], rows: pa.Array) -> None:
    assert ids({"kind": "categorical"}, train, rows) == [2, 0, 3, 1]


def test_hashed_ids_are_those_of_tensorflow() -> None:
    import tensorflow as tf

    texts = ["a", "ü", "7", "x" * 100]
    expected = (1 + tf.strings.to_hash_bucket_fast(texts, 1000).numpy()).tolist()
    assert ids({"kind": "hashed", "buckets": 1000}, ["a", "b"], [*texts, None, ""]) == [*expected, 0, 0]
    assert ids({"kind": "hashed", "buckets": 1000}, [1, 2], [7]) == [expected[2]]


def test_integer_ids() -> None:
    rows = [0, 2, 3, -1, None, tables.INT64_MIN]
    assert ids({"kind": "integer", "size": 3}, [0, 1, 2], rows) == [2, 4, 1, 1, 0, 0]


def test_quantile_buckets() -> None:
    feature = {"kind": "numeric", "normalize": "quantile", "buckets": 4}
    train = [0.0, 1.0, 2.0, 3.0, 4.0]  # cuts at 1, 2, 3: a value on a cut belongs above it
    rows = [-9.0, 0.99, 1.0, 2.5, 3.0, 99.0, None, NAN, float("inf")]
    assert ids(feature, train, rows) == [1, 1, 2, 3, 4, 4, 0, 0, 0]
    assert ids({**feature, "indicator": False}, train, rows) == [0, 0, 1, 2, 3, 3, 2, 2, 2]
    assert ids(feature, [5.0, 5.0], [1.0, 5.0, None]) == [1, 1, 0]
    assert ids(feature, [0.0] * 9 + [1.0], [0.0, 1.0, -1.0]) == [
        1,
        1,
        1,
    ]  # no cut: nine in ten are the minimum


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"normalize": "none"}, [[8, 0], [4, 1], [4, 1]]),
        ({"normalize": "none", "impute": "mean"}, [[8, 0], [5, 1], [5, 1]]),
        ({"normalize": "none", "impute": "zero"}, [[8, 0], [0, 1], [0, 1]]),
        ({"normalize": "none", "impute": -3.5}, [[8, 0], [-3.5, 1], [-3.5, 1]]),
        ({"normalize": "none", "indicator": False}, [[8], [4], [4]]),
        ({"normalize": "minmax"}, [[1, 0], [1 / 3, 1], [1 / 3, 1]]),
        ({"normalize": "standard"}, [[3 / 6**0.5, 0], [-1 / 6**0.5, 1], [-1 / 6**0.5, 1]]),
    ],
)
def test_numbers(options: dict[str, Any], expected: list[list[float]]) -> None:
    # mean 5, median 4, variance (1 + 1 + 9 + 9 + 4) / 4 = 6 with 2, 4, 4, 8 and so on
    train = [2.0, 4.0, 4.0, 8.0, 7.0, None]
    variance = np.var([2, 4, 4, 8, 7])
    if options["normalize"] == "standard":
        expected = [[value[0] * (6 / variance) ** 0.5, value[1]] for value in expected]
    found = encode({"kind": "numeric", **options}, train, [8.0, None, NAN]).numeric
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_log_keeps_the_sign_and_is_standardised() -> None:
    train = np.array([-100.0, 0.0, 1.0, 10.0, 1000.0])
    logs = np.sign(train) * np.log1p(np.abs(train))
    found = encode({"kind": "numeric", "normalize": "log", "indicator": False}, train, train).numeric[:, 0]
    np.testing.assert_allclose(found, (logs - logs.mean()) / logs.std(), rtol=1e-6)


def test_a_constant_column_does_no_harm() -> None:
    for normalize in ("standard", "minmax", "log"):
        found = encode(
            {"kind": "numeric", "normalize": normalize}, [5.0, 5.0, None], [5.0, 6.0, 0.0, None]
        ).numeric
        assert found[0, 0] == 0
        assert np.abs(found).max() <= 5


def test_scaled_numbers_stay_finite() -> None:
    found = encode({"kind": "numeric"}, [0.0, 1e-20, 2e-20], [3e38, -3e38, 1e39, float("-inf")]).numeric
    assert np.isfinite(found).all()
    assert found[:, 1].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("train", "impute", "expected"),
    [
        ([True, True, False, None], "mode", [1, 0, 1]),
        ([1, 0, 0, None], "mode", [1, 0, 0]),
        ([True, False], "mode", [1, 0, 0]),
        (["true", "true", "false"], "false", [1, 0, 0]),
        ([False, False], "true", [1, 0, 1]),
    ],
)
def test_booleans(train: list[Any], impute: str, expected: list[float]) -> None:
    found = encode({"kind": "boolean", "impute": impute}, train, [True, False, None]).numeric
    assert found[:, 0].tolist() == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_datetimes_of_every_unit_and_of_days(unit: str) -> None:
    feature = {"kind": "datetime", "parts": ["hour"], "age": True}
    train = pa.array([0, 86_400], pa.timestamp("s"))
    rows = pa.array([6 * 3_600, None, -6 * 3_600], pa.timestamp("s")).cast(
        pa.timestamp(unit, "Europe/Berlin")
    )
    found = encode(feature, train, rows).numeric
    # ages: 0.75 and 1.25 days, where the train split has mean 0.5 and deviation 0.5
    np.testing.assert_allclose(found, [[1, 0, 0.5, 0], [0, 0, 0, 1], [-1, 0, 1.5, 0]], atol=1e-6)
    days = pa.array([0, 1], pa.date32())
    np.testing.assert_allclose(encode(feature, train, days).numeric[:, 2], [1, -1])


def test_bags() -> None:
    feature = {"kind": "bag", "max_length": 2}
    train = [["a", "b", "ignored"], ["a"], None]
    blocks = encode(feature, train, [["b", "a", "a"], [], None, ["z"], ["", "a"], [None, ""]])
    assert blocks.categorical.tolist() == [[3, 2], [0, 0], [0, 0], [1, 0], [0, 2], [0, 0]]
    assert blocks.numeric.tolist() == [[1, 1], [1, 0], [1, 0], [1, 0], [0, 1], [1, 0]]


def test_bags_with_weights() -> None:
    config = tables.config({"kind": "bag", "name": "f", "max_length": 3, "weights": "w"})
    features = fit(
        config, [pa.record_batch({"f": [["a", "b"], ["a"]], "w": [[1.0, 2.0], None], "y": [0, 1]})]
    )
    rows = {
        "f": [["a", "b", "a"], ["a", "b"], ["a", "b"], ["a"], ["a", ""]],
        "w": [[0.5, 2.0, 0.0], None, [None, NAN], [0.0], [-1.0, 5.0]],
    }
    blocks = Encoder(features, with_label=False)(pa.record_batch(rows))
    assert features.layout.dense == 0
    assert features.layout.slots[0].weight_start == 0
    assert blocks.numeric.tolist() == [[0.5, 2, 0], [1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0]]
    assert blocks.categorical.tolist() == [[2, 3, 2], [2, 3, 0], [2, 3, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.int64(), 2)])
def test_bags_of_integers_and_of_every_list_type(kind: pa.DataType) -> None:
    rows = pa.array([[1, 2], None, [9, 1]], kind)
    blocks = encode({"kind": "bag", "max_length": 2}, [["1", "2"], ["1"]], rows)
    assert blocks.categorical.tolist() == [[2, 3], [0, 0], [1, 2]]


def test_vectors() -> None:
    train = [[1.0, 10.0], [3.0, None], None, [5.0, float("inf")]]
    rows = [[1.0, 11.0], [None, NAN], None, []]
    plain = encode({"kind": "vector", "length": 2}, train, rows).numeric
    assert plain.tolist() == [[1, 11], [0, 0], [0, 0], [0, 0]]
    scaled = encode({"kind": "vector", "length": 2, "normalize": "standard"}, train, rows).numeric
    np.testing.assert_allclose(scaled, [[-2 / (8 / 3) ** 0.5, 1], [0, 0], [0, 0], [0, 0]], rtol=1e-6)


def test_crosses_combine_text_forms() -> None:
    import tensorflow as tf

    config = tables.config(
        {"kind": "categorical", "name": "w"},
        {"kind": "integer", "name": "i", "size": 3},
        {"kind": "boolean", "name": "b", "impute": "true"},
        {"kind": "cross", "name": "c", "of": ["w", "i", "b"], "buckets": 1000},
        {"kind": "cross", "name": "d", "of": ["w", "i"], "buckets": 1000},
    )
    rows = pa.record_batch(
        {"w": ["a", None, "z", "a"], "i": [1, None, 7, 1], "b": [False, None, True, False], "y": [0, 1, 0, 1]}
    )
    features = fit(config, [rows])
    found = Encoder(features)(rows).categorical - [slot.offset for slot in features.layout.slots]
    hashed = lambda text: 1 + int(tf.strings.to_hash_bucket_fast([text], 1000)[0])  # noqa: E731
    assert found[:, 2].tolist() == [
        hashed(text) for text in ("a\x1f1\x1ffalse", "\x1f\x1ftrue", "z\x1f7\x1ftrue")
    ] + [hashed("a\x1f1\x1ffalse")]
    assert found[:, 3].tolist() == [hashed("a\x1f1"), 0, hashed("z\x1f7"), hashed("a\x1f1")]


def test_ids_are_rows_of_one_table() -> None:
    config = tables.config({"kind": "categorical", "name": "a"}, {"kind": "categorical", "name": "b"})
    rows = pa.record_batch({"a": ["x", "y", None], "b": ["x", "", "z"], "y": [0, 1, 0]})
    features = fit(config, [rows])
    assert Encoder(features)(rows).categorical.tolist() == [[2, 6], [3, 4], [0, 7]]
    assert features.layout.table_rows == 8


def all_kinds() -> Encoder:
    rows = tables.table(200, seed=1, nasty=False)
    return Encoder(fit(tables.config(*tables.ALL_KINDS), rows.to_batches()))


def same(left: Blocks, right: Blocks) -> None:
    np.testing.assert_array_equal(left.numeric, right.numeric)
    np.testing.assert_array_equal(left.categorical, right.categorical)
    np.testing.assert_array_equal(left.label, right.label)


def test_a_table_a_batch_and_its_parts_give_the_same_blocks() -> None:
    encoder, rows = all_kinds(), tables.table(150, seed=2)
    whole = encoder(rows)
    same(encoder(rows.combine_chunks().to_batches()[0]), whole)
    parts = [encoder(batch) for batch in rows.to_batches(max_chunksize=41)]
    same(encoder(pa.concat_tables([rows.slice(0, 50), rows.slice(50)])), whole)
    np.testing.assert_array_equal(np.concatenate([part.numeric for part in parts]), whole.numeric)
    np.testing.assert_array_equal(np.concatenate([part.categorical for part in parts]), whole.categorical)
    empty = encoder(rows.slice(0, 0))
    assert empty.numeric.shape == (0, whole.numeric.shape[1])
    assert empty.categorical.shape == (0, whole.categorical.shape[1])


def test_tables_of_dictionaries_that_differ_from_chunk_to_chunk() -> None:
    config = tables.config({"kind": "categorical", "name": "w"})
    chunks = [
        pa.table({"w": pa.array(words).dictionary_encode(), "y": [0, 1]})
        for words in (["a", "b"], ["b", "c"])
    ]
    rows = pa.concat_tables(chunks)
    features = fit(config, rows.to_batches())
    assert Encoder(features)(rows).categorical[:, 0].tolist() == [3, 2, 2, 4]


def test_an_encoder_may_be_shared_by_threads() -> None:
    encoder = all_kinds()
    batches = [tables.table(120, seed=place) for place in range(8)]
    expected = [encoder(rows) for rows in batches]
    failures: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for turn in range(24):
                place = (start + turn) % len(batches)
                same(encoder(batches[place]), expected[place])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_weights_and_keys() -> None:
    features = fit(
        tables.config({"kind": "numeric", "name": "x"}), [pa.record_batch({"x": [1.0, 2.0], "y": [0, 1]})]
    )
    encoder = Encoder(features, weight_column="w", key_column="k")
    assert encoder.columns == ("x", "y", "w", "k")
    rows = {"x": [1.0, None], "y": [1, 0], "w": [2, 0.5], "k": ["a", None]}
    blocks = encoder(pa.record_batch(rows))
    assert blocks.weight.dtype == np.float32
    assert blocks.weight.tolist() == [2, 0.5]
    assert blocks.key is not None
    assert blocks.key.tolist() == ["a", None]
    assert encoder(pa.record_batch({**rows, "k": [2**62 + 1, None]})).key.tolist() == [2**62 + 1, None]
    for wrong in (None, NAN, -1.0, float("inf")):
        with pytest.raises(
            UserError, match=r"data.weight: column 'w' has 1 values in 2 rows that are missing"
        ):
            encoder(pa.record_batch({**rows, "w": [1.0, wrong]}))
    plain = Encoder(features, with_label=False)(pa.record_batch({"x": [1.0]}))
    assert (plain.label, plain.key, plain.weight.tolist()) == (None, None, [1])


def test_an_absent_column_is_named() -> None:
    with pytest.raises(
        UserError, match=r"feature 'at_bare'|feature 'at': there is no column 'at' in the data"
    ):
        all_kinds()(tables.table(3, seed=1).drop_columns(["at"]))


def test_features_that_do_not_hash_need_no_tensorflow() -> None:
    code = """
import sys
import pyarrow as pa
sys.path.insert(0, "tests")
import feature_tables as tables
from trainer.features import Features, fit
assert "pyarrow" in sys.modules
from trainer.data.encode import Encoder
kinds = [f for f in tables.ALL_KINDS if f["kind"] not in ("hashed", "cross") and f.get("oov_buckets", 1) == 1]
rows = tables.table(50, seed=1, nasty=False)
features = fit(tables.config(*kinds), rows.to_batches())
Encoder(Features.from_json(features.to_json()))(rows)
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.bench
@pytest.mark.slow
def test_speed_of_13_numbers_and_26_texts(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints rows a CPU second; fails only where something is done row by row (some 20 k rows/s)."""
    rng = np.random.default_rng(0)
    rows, sizes = 65_536, [20, 100, 1_000, 5_000, 30_000, 200_000]
    numbers = {f"n{place}": rng.normal(size=rows) for place in range(13)}
    words = {
        f"w{place}": pa.array(
            [f"{value:08x}" for value in (sizes[place % 6] * rng.random(rows) ** 4).astype(int)]
        ).dictionary_encode()
        for place in range(26)
    }
    config: Config = tables.config(
        *({"kind": "numeric", "name": name} for name in numbers),
        *({"kind": "categorical", "name": name} for name in words),
    )
    batch = pa.record_batch({**numbers, **words, "y": rng.integers(0, 2, rows)})
    start = time.process_time()
    features = fit(config, [batch])
    figures = {"fit": rows / (time.process_time() - start)}
    for name, source in {
        "dictionaries": batch,
        "strings": pa.record_batch(
            {
                name: batch[name].dictionary_decode() if name in words else batch[name]
                for name in batch.schema.names
            }
        ),
    }.items():
        spent = []
        for _ in range(3):
            encoder = Encoder(features)  # a new one, so that no dictionary is remembered
            start = time.process_time()
            encoder(source)
            spent.append(time.process_time() - start)
        figures[name] = rows / min(spent)
    with capsys.disabled():
        print(
            "\nrows a CPU second: " + ", ".join(f"{name} {figure:,.0f}" for name, figure in figures.items())
        )
    assert min(figures.values()) > 30_000
