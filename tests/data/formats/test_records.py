"""Records of TFRecord files, found with google-crc32c and through TensorFlow: the same, damaged or not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_fuzz import mutate

from trainer.data.files import list_files
from trainer.data.formats import records


def found(path: Path, start: int = 0, step: int = 1 << 20) -> list[bytes | str]:
    file = list_files([str(path)])[0]
    given: list[bytes | str] = []
    try:
        for some in records.read(file, start, file.size, step):
            given += [str(some)] if isinstance(some, records.Damaged) else some
    except records.DamageError as error:
        given.append(f"end: {error}")
    return given


def write(path: Path, stored: list[bytes]) -> bytes:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in stored:
            writer.write(record)
    return path.read_bytes()


def test_records_of_all_sizes_and_where_they_begin(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stored = [rng.bytes(int(size)) for size in rng.choice([0, 1, 3, 4, 100, 1000, 70_000], 300)]
    path = tmp_path / "a.tfrecord"
    data = write(path, stored)
    starts = np.cumsum([0] + [len(record) + 16 for record in stored]).tolist()
    for step in (17, 4096, 1 << 20):
        assert found(path, 0, step) == stored
    file = list_files([str(path)])[0]
    for place in (1, starts[7], starts[7] + 1, starts[-2], len(data) - 1):
        expected = next(start for start in starts if start >= place)
        assert records.find_start(file, starts[3] if place > starts[3] else 0, place) == expected
        assert found(path, expected) == stored[starts.index(expected) :]
    assert records.count(file, starts[100]) == 100


def test_damage_is_found_alike_without_google_crc32c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google_crc32c", reason="google-crc32c is not installed")
    rng = np.random.default_rng(1)
    path = tmp_path / "a.tfrecord"
    good = write(path, [rng.bytes(int(size)) for size in rng.integers(0, 300, 40)])
    ends = set()
    for _ in range(200):
        path.write_bytes(mutate(good, rng))
        fast = found(path)
        with monkeypatch.context() as patch:
            patch.setattr(records, "_crc", None)
            assert found(path) == fast
        ends.add(str(fast[-1])[:14] if fast else "")
    assert {"end: corrupted", "end: truncated"} <= ends
