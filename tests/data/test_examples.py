"""The NumPy decoder of tf.Examples against TensorFlow's parser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from trainer.data.examples import decode

KINDS = {
    "a_number": "float_list",
    "id": "int64_list",
    "text": "bytes_list",
    "a name longer than a word": "bytes_list",
}
TYPES = {"float_list": tf.float32, "int64_list": tf.int64, "bytes_list": tf.string}


def example(features: dict[str, Any]) -> bytes:
    message = tf.train.Example()
    for name, value in features.items():
        feature = message.features.feature[name]
        values = value if isinstance(value, list) else [value]
        if not values:
            feature.float_list.SetInParent()
        elif isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        else:
            feature.float_list.value.extend(values)
    return message.SerializeToString()


def rows(seed: int, count: int, missing: float) -> list[dict[str, Any]]:
    short = (seed % 5) * 3  # longest of the short texts: below, at and above the 8 bytes of a word
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        row: dict[str, Any] = {
            "other": int(random.integers(9)),
            "a_number": float(np.float32(random.normal())),
            "id": int(random.integers(-(2**63), 2**63 - 1)) >> int(random.integers(0, 64)),
            "text": bytes(random.integers(0, 256, random.integers(0, 400), np.uint8)),
            "a name longer than a word": bytes(random.integers(0, 3, random.integers(short + 1), np.uint8)),
        }
        found.append({name: value for name, value in row.items() if random.random() >= missing})
    return found


def parsed(records: list[bytes]) -> dict[str, list[Any]]:
    spec = {name: tf.io.RaggedFeature(TYPES[kind]) for name, kind in KINDS.items()}
    found = tf.io.parse_example(tf.constant(records, tf.string), spec)
    return {name: [v[0] if v else None for v in ragged.to_list()] for name, ragged in found.items()}


def decoded(records: list[bytes]) -> dict[str, list[Any]] | None:
    found = decode(records, KINDS)
    if found is None:
        return None
    result = {}
    for name, (values, lengths) in found.items():
        if lengths is None:
            result[name] = values.to_pylist()
            continue
        place = pa.array(np.maximum(np.cumsum(lengths) - 1, 0), mask=lengths == 0)
        result[name] = values.take(place).to_pylist()
    return result


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("missing", [0.0, 0.02, 0.3])
def test_the_same_as_parse_example(seed: int, missing: float) -> None:
    records = [example(row) for row in rows(seed, 200, missing)]
    records = [record for record in records if record]  # one without any feature is left to the parser
    found = decoded(records)
    assert found is not None
    assert found == parsed(records)


def test_unpacked_lists_and_empty_ones() -> None:
    entry = b"\x0a\x08a_number\x12\x07\x12\x05\x0d" + np.float32(1.5).tobytes()
    whole = b"\x0a" + bytes([len(entry)]) + entry
    number = b"\x0a\x02id\x12\x04\x1a\x02\x08\x07"
    whole += b"\x0a" + bytes([len(number)]) + number
    records = [b"\x0a" + bytes([len(whole)]) + whole, example({"a_number": [], "text": b""})]
    found = decoded(records)
    assert found is not None
    assert found == parsed(records)
    assert found["a_number"] == [1.5, None]
    assert found["id"] == [7, None]
    assert found["text"] == [None, b""]


@pytest.mark.parametrize(
    "record",
    [
        example({"a_number": [1.0, 2.0]}),
        example({"id": [1, 2]}),
        example({"text": [b"a", b"b"]}),
        example({"a_number": 1}),  # of another kind
        example({"id": 1.0}),
        b"",
        b"\x08garbage",
        example({"id": 300})[:-1],
        example({"id": 1}) + example({"id": 2}),  # two messages one after the other are merged
        example({"id": 1}) + b"\x10\x01",  # a field that nobody knows
    ],
)
def test_what_is_unusual_is_left_to_the_parser(record: bytes) -> None:
    usual = example({"a_number": 1.0, "id": 1, "text": b"a"})
    assert decoded([usual]) is not None
    assert decoded([record]) is None
    assert decoded([usual, record]) is None
    assert decoded([record, usual]) is None


def test_damaged_records_never_give_other_values() -> None:
    """Each byte of the features changed in turn: what is decoded all the same is what TensorFlow reads."""
    random = np.random.default_rng(0)
    usual = example({"a_number": 1.5, "id": 300, "text": b"some text"})
    kept = 0
    for place in range(len(usual)):
        for _ in range(8):
            broken = bytearray(usual)
            broken[place] = random.integers(256)
            found = decoded([bytes(broken), usual])
            if found is None:
                continue
            kept += 1
            try:
                expected = parsed([bytes(broken), usual])
            # What nobody asked for may be broken inside; and a message may hold bytes of the record.
            except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
                assert all(values[0] in (None, parsed([usual])[name][0]) for name, values in found.items())
                continue
            assert found == expected, (place, bytes(broken))
    assert kept > 100


@pytest.mark.parametrize("size", [7, 8, 9])
def test_parts_of_texts_that_are_short_and_long(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.examples._PART_BYTES", 1)
    texts = [b"%08d" % i if i < 400 else (b"x" * size)[: i % 10] for i in range(1000)]
    records = [example({"text": text}) for text in texts]
    found = decoded(records)
    assert found is not None
    assert found["text"] == texts
    found = decoded(records[:400])
    assert found is not None
    assert found["text"] == texts[:400]


@pytest.mark.parametrize("length", [1, 5, 6, 14, 100, 101, 119, 128])
def test_names_and_values_of_any_length(length: int) -> None:
    """Entries below and above 128 bytes, values of one size and of several, at every place in a word."""
    name = "n" * length
    texts = [[b"x" * size] * 3 for size in (*range(10), *range(100, 130))] + [[b"", b"a" * 7, b"b" * 8]]
    integers = [[(1 << bits) - 1] * 3 for bits in range(64)] + [[-1, 0, 1], [1, 127, 128], [-(2**63)] * 3]
    for values in (*texts, *integers, [0.5, -0.0, 1e30]):
        kind = {bytes: "bytes_list", int: "int64_list", float: "float_list"}[type(values[0])]
        records = [example({name: value, "id": 7}) for value in values]
        found = decode(records, {name: kind, "id": "int64_list"})
        assert found is not None
        column, lengths = found[name]
        assert lengths is None
        stored = np.float32(values).tolist() if kind == "float_list" else values
        assert column.to_pylist() == stored
        assert found["id"][0].to_pylist() == [7, 7, 7]


def test_nothing_wanted_and_no_records() -> None:
    assert decode([example({"id": 1})], {}) == {}
    assert decoded([]) == {name: [] for name in KINDS}
