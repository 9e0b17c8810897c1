"""TFRecord files of tf.Example: compression, damage, features of several types."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from format_writers import make_config, read_all, write_tfrecord

from trainer.data.source import open_rows
from trainer.errors import UserError

FEATURES = ({"kind": "numeric", "name": "age"}, {"kind": "categorical", "name": "state"})
ROWS = [{"age": 25, "state": "CA"}, {"age": 30}, {"age": 35, "state": "NY"}]
EXPECTED = {"age": [25.0, 30.0, 35.0], "state": ["CA", None, "NY"]}


def read(path: Path | list[str], features: Any = FEATURES, **options: Any) -> dict[str, list[Any]]:
    source = [str(path)] if isinstance(path, Path) else path
    config = make_config(source, features=features, **options)
    return read_all(open_rows(source, config)).to_pydict()


@pytest.mark.parametrize(
    ("name", "compression"),
    [
        ("a.tfrecord", ""),
        ("b.tfrecord.gz", "GZIP"),
        ("c.tfrecord", "GZIP"),
        ("d.tfrecord.gz", "NONE"),
        ("e.tfrecord", "ZLIB"),
    ],
)
def test_compression_goes_by_content(name: str, compression: str, tmp_path: Path) -> None:
    assert read(write_tfrecord(ROWS, tmp_path / name, compression)) == EXPECTED


def test_mixed_compression(tmp_path: Path) -> None:
    write_tfrecord(ROWS, tmp_path / "a.tfrecord")
    write_tfrecord(ROWS, tmp_path / "b.tfrecord.gz")
    assert read(tmp_path) == {name: values * 2 for name, values in EXPECTED.items()}


def test_damage_is_told_with_the_file(tmp_path: Path) -> None:
    good = write_tfrecord(ROWS, tmp_path / "a.tfrecord").read_bytes()
    bad = tmp_path / "b.tfrecord"
    bad.write_bytes(good[:-5])
    with pytest.raises(UserError, match=r"b\.tfrecord, record 3: is damaged, cut short or no TFRecord"):
        read(bad)
    assert read(bad, on_bad_record="skip")["age"] == [25.0, 30.0]
    bad.write_bytes(b"")
    with pytest.raises(UserError, match=r"b\.tfrecord: the file is empty \(0 bytes\)"):
        read(bad)
    bad.write_bytes(b"age,state\n1,CA\n2,NY\n")
    with pytest.raises(UserError, match=r"b\.tfrecord: is damaged, cut short or no TFRecord"):
        read(bad)
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    bad.write_bytes(flipped)
    with pytest.raises(UserError, match=r"b\.tfrecord, record 2: is damaged"):
        read(bad)
    bad.write_bytes(zlib.compress(good)[:-9])
    with pytest.raises(UserError, match=r"b\.tfrecord"):
        read(bad)


def test_integers_and_floats_in_different_files_and_rows(tmp_path: Path) -> None:
    write_tfrecord([{"age": 25, "state": "CA"}], tmp_path / "a.tfrecord")
    write_tfrecord([{"age": 2.5, "state": "CA"}, {"age": 3}, {"age": []}, {}], tmp_path / "b.tfrecord")
    assert read(tmp_path)["age"] == [25.0, 2.5, 3.0, None, None]
    write_tfrecord([{"age": 25}, {"age": b"7"}], tmp_path / "a.tfrecord")
    assert read(tmp_path / "a.tfrecord", FEATURES[:1])["age"] == [25.0, 7.0]


def test_a_type_that_changes_after_the_sample(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"age": i} for i in range(9000)] + [{"age": 0.5}]
    found = read(write_tfrecord(rows, tmp_path / "a.tfrecord"), FEATURES[:1])["age"]
    assert found == [float(i) for i in range(9000)] + [0.5]


def test_two_values_where_one_is_wanted(tmp_path: Path) -> None:
    path = write_tfrecord([ROWS[0], {"age": [1, 2]}, ROWS[2]], tmp_path / "a.tfrecord")
    with pytest.raises(UserError, match=r"a\.tfrecord, record 2: feature 'age' has 2 values, expected one"):
        read(path)
    assert read(path, on_bad_record="skip")["age"] == [25.0, 35.0]


def test_lists(tmp_path: Path) -> None:
    features = [{"kind": "vector", "name": "v", "length": 2}, {"kind": "bag", "name": "t"}]
    path = write_tfrecord(
        [{"v": [1.0, 2.0], "t": ["a", "b"]}, {"v": [3, 4], "t": ["c"]}, {}], tmp_path / "a.tfrecord"
    )
    assert read(path, features) == {"v": [[1.0, 2.0], [3.0, 4.0], None], "t": [["a", "b"], ["c"], None]}


def test_text_that_is_not_utf8_and_records_that_are_no_examples(tmp_path: Path) -> None:
    path = write_tfrecord([{"age": 1, "state": b"\xff"}, ROWS[0]], tmp_path / "a.tfrecord")
    with pytest.raises(UserError, match=r"record 1: column 'state' holds b'\\xff', expected text"):
        read(path)
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"\x08garbage")
    with pytest.raises(UserError, match=r"holds no tf.Example with features"):
        read(path)
    with pytest.raises(UserError, match="no column 'aeg'; did you mean 'age'"):
        read(write_tfrecord(ROWS, path), [{"kind": "numeric", "name": "aeg"}])


def test_a_record_whose_damage_is_no_text_is_told(tmp_path: Path) -> None:
    """TensorFlow puts the record into its message, which Python then can't decode."""
    path = tmp_path / "a.tfrecord"
    example = tf.train.Example()
    example.features.feature["age"].int64_list.value.append(300)
    record = example.SerializeToString()
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(record)
        writer.write(record.replace(b"\x0a\x03age", b"\x0a\x04age"))
    with pytest.raises(UserError, match=r"a\.tfrecord, record 2: is no tf\.Example"):
        read(path, FEATURES[:1])
    assert read(path, FEATURES[:1], on_bad_record="skip")["age"] == [300.0]
