"""Encoded rows on disk: reused, verified, written whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from trainer.data import cache as cache_module
from trainer.data.arrays import NAMES, RowFormat, Rows
from trainer.data.cache import DiskCache, MemoryCache, allocate, available_memory, parts
from trainer.errors import UserError

FORMAT = RowFormat(numeric=2, categorical=3, labels=2)


def blocks(sizes: tuple[int, ...] = (5, 0, 17, 1, 40), seed: int = 0) -> Iterator[SimpleNamespace]:
    random = np.random.default_rng(seed)
    for size in sizes:
        yield SimpleNamespace(
            numeric=random.normal(size=(size, 2)).astype(np.float32),
            categorical=random.integers(0, 2**31 - 1, (size, 3), np.int32),
            label=random.normal(size=(size, 2)).astype(np.float32),
            weight=random.random(size).astype(np.float32),
        )


def pieces(sizes: tuple[int, ...] = (5, 0, 17, 1, 40), seed: int = 0) -> Iterator[Rows]:
    return (Rows.of(part, FORMAT) for part in blocks(sizes, seed))


def check(rows: Rows, seed: int = 0) -> None:
    parts = list(blocks(seed=seed))
    found = rows.as_dict()
    for name in ("numeric", "categorical", "label", "weight"):
        np.testing.assert_array_equal(found[name], np.concatenate([getattr(part, name) for part in parts]))


def in_memory(rows: Iterable[Rows]) -> Rows:
    """Rows that one thread kept."""
    cache = MemoryCache(FORMAT)
    return cache.joined([cache.keep(rows)])


@pytest.fixture(params=[1, 100, 1 << 20])
def _part_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_PART_BYTES", request.param)


@pytest.mark.usefixtures("_part_bytes")
def test_rows_in_memory_are_the_encoded_rows() -> None:
    check(in_memory(pieces()))
    assert len(in_memory(pieces((0, 0)))) == 0


@pytest.mark.usefixtures("_part_bytes")
def test_rows_in_memory_may_come_by_several_threads() -> None:
    cache, turn = MemoryCache(FORMAT), threading.Barrier(2, timeout=60)

    def taking_turns(rows: Iterable[Rows]) -> Iterator[Rows]:
        for one in rows:
            turn.wait()
            yield one

    halves = [list(pieces((9, 1, 30), seed)) for seed in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        kept = list(pool.map(lambda half: cache.keep(taking_turns(half)), halves))
    found = cache.joined(kept)
    for place in range(len(NAMES)):
        wanted = [one.arrays[place] for half in halves for one in half]
        np.testing.assert_array_equal(found.arrays[place], np.concatenate(wanted))


@pytest.mark.usefixtures("_part_bytes")
def test_rows_on_disk_are_the_encoded_rows_now_and_after_a_restart(tmp_path: Path) -> None:
    check(DiskCache(str(tmp_path), "a").write(pieces(), FORMAT))
    again = DiskCache(str(tmp_path), "a").open(FORMAT)
    assert again is not None
    assert all(isinstance(array.base, np.memmap) for array in again.arrays)
    check(again)
    assert sorted(os.listdir(tmp_path / "a")) == sorted([*(f"{name}.npy" for name in NAMES), "rows.json"])
    assert os.listdir(tmp_path) == ["a"]
    for name, array in again.as_dict().items():
        np.testing.assert_array_equal(np.load(tmp_path / "a" / f"{name}.npy"), array)


def test_another_fingerprint_or_layout_is_another_cache(tmp_path: Path) -> None:
    DiskCache(str(tmp_path), "a").write(pieces(), FORMAT)
    assert DiskCache(str(tmp_path), "b").open(FORMAT) is None
    assert DiskCache(str(tmp_path), "a").open(RowFormat(numeric=3, categorical=2, labels=2)) is None


@pytest.mark.parametrize("damage", ["flip", "cut", "more", "json", "no json", "meta", "empty"])
def test_a_damaged_cache_is_found_and_made_again(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    DiskCache(str(tmp_path), "a").write(pieces(), FORMAT)
    rows, about = tmp_path / "a" / "label.npy", tmp_path / "a" / "rows.json"
    data = bytearray(rows.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
        rows.write_bytes(data)
    elif damage == "cut":
        rows.write_bytes(data[:-8])
    elif damage == "more":
        rows.write_bytes(data + b"1234")
    elif damage == "empty":
        rows.write_bytes(b"")
    elif damage == "json":
        about.write_text("{")
    elif damage == "no json":
        about.unlink()
    else:
        about.write_text(json.dumps(json.loads(about.read_text()) | {"checksums": []}))
    cache = DiskCache(str(tmp_path), "a")
    with caplog.at_level(logging.WARNING):
        found = cache.open(FORMAT)
    if damage == "more":  # bytes behind the end are not rows
        check(found)
        return
    assert found is None
    assert damage == "no json" or "again" in caplog.text
    check(cache.write(pieces(seed=1), FORMAT), seed=1)
    check(cache.open(FORMAT), seed=1)
    assert os.listdir(tmp_path) == ["a"]


def test_a_run_that_is_killed_leaves_no_cache(tmp_path: Path) -> None:
    script = """
        import os, sys
        sys.path.insert(0, "tests/data")
        from test_cache import DiskCache, FORMAT, pieces
        def killed():
            yield from pieces()
            os._exit(137)
        DiskCache(sys.argv[1], "a").write(killed(), FORMAT)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], check=False, timeout=60
    )
    assert done.returncode == 137
    assert DiskCache(str(tmp_path), "a").open(FORMAT) is None
    check(DiskCache(str(tmp_path), "a").write(pieces(), FORMAT))


def test_an_error_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[Rows]:
        yield from pieces()
        raise UserError("row 9 is broken")

    with pytest.raises(UserError, match="row 9 is broken"):
        DiskCache(str(tmp_path), "a").write(broken(), FORMAT)
    assert os.listdir(tmp_path) == []


def test_two_runs_that_write_the_same_cache(tmp_path: Path) -> None:
    first = DiskCache(str(tmp_path), "a").write(pieces(), FORMAT)
    second = DiskCache(str(tmp_path), "a").write(pieces(), FORMAT)
    check(first)  # still mapped, though its file has given way
    check(second)


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'gs://bucket/x' is not a local folder"):
        DiskCache("gs://bucket/x", "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"data\.cache_dir: can't write to .*file"):
        DiskCache(str(tmp_path / "file"), "a").write(pieces(), FORMAT)


def test_memory_that_runs_out_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_module, "_PART_BYTES", 1)
    monkeypatch.setattr(cache_module, "available_memory", lambda: 1 << 40)
    in_memory(pieces())
    assert not caplog.records
    monkeypatch.setattr(cache_module, "available_memory", lambda: 0)
    in_memory(pieces())
    assert "data.cache=memory: the rows take" in caplog.text


def test_memory_comes_aligned_and_parts_are_even(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(array.ctypes.data % 64 == 0 for array in allocate(10, FORMAT).arrays)
    assert all(array.ctypes.data % 64 == 0 for array in Rows.empty(FORMAT, 10).arrays)
    assert [array.shape for array in allocate(0, FORMAT).arrays] == [(0, 2), (0, 3), (0, 2), (0,)]
    monkeypatch.setattr(cache_module, "_PART_BYTES", FORMAT.row_bytes * 10)
    assert [len(part) for part in parts(pieces(), FORMAT)] == [10] * 6 + [3]
    memory = available_memory()
    assert memory is None or memory > 0
