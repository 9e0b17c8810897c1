"""Rows shared out to workers: each read by one of them, once an epoch, in as many steps as everybody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_rows import CACHES, UNITS, FakeSource, ids_of, make

from trainer.config import Config
from trainer.data import order
from trainer.data.pipeline import Pipeline
from trainer.errors import UserError
from trainer.state import RunState, begin

pytestmark = pytest.mark.faults

SIZES = [UNITS, (132,), (1,) * 20, (3, 0, 0, 1), (8, 8, 8), (24, 1), (0, 49), (5, 100, 0, 43, 49)]


def shares(
    tmp_path: Path, cache: str, sizes: tuple[int, ...], workers: int, **settings: Any
) -> list[Pipeline]:
    """Returns the pipelines of all workers; batches of 2 rows a worker."""
    return [
        make(
            tmp_path, cache, FakeSource(sizes, counted=False), sharding="rows", batch_size=2 * workers,
            shard_index=index, shard_count=workers, **settings,
        )
        for index in range(workers)
    ]  # fmt: skip


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_each_row_is_one_workers_once_an_epoch(
    tmp_path: Path, cache: str, sizes: tuple[int, ...], workers: int
) -> None:
    rows = sum(sizes)
    steps = -(-rows // (2 * workers))
    parts = shares(tmp_path, cache, sizes, workers)
    assert [part.rows for part in parts] == [rows] * workers
    assert [part.steps_per_epoch for part in parts] == [steps] * workers
    streams = [ids_of(part.training_numpy(0, 2 * steps)).reshape(2, steps * 2) for part in parts]
    for epoch in np.stack(streams, 1):
        for own in epoch:  # equal shares, whatever the sizes of the units
            assert (own >= 0).sum() in (rows // workers, -(-rows // workers))
        np.testing.assert_array_equal(np.sort(epoch[epoch >= 0]), np.arange(rows))
    if rows >= 10 * workers:
        assert (streams[0][0] != streams[0][1]).mean() > 0.5  # each epoch in a new order
    evaluated = np.concatenate([ids_of(part.evaluation()) for part in parts])
    assert len(evaluated) == workers * steps * 2
    np.testing.assert_array_equal(evaluated[evaluated >= 0], np.arange(rows))


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_restart_goes_on_at_the_exact_row(tmp_path: Path, cache: str, shuffle: bool) -> None:
    sizes = (5, 0, 20, 8)  # 33 rows for 4 workers: three of them have nothing for the fifth step
    for part in shares(tmp_path, cache, sizes, 4, shuffle=shuffle):
        whole = ids_of(part.training_numpy(0, 17)).reshape(17, 2)
        for start in range(17):
            fresh = shares(tmp_path, cache, sizes, 4, shuffle=shuffle)[part._plan.shard_index]
            np.testing.assert_array_equal(ids_of(fresh.training_numpy(start, 17)), whole[start:].ravel())
        for start in (0, 4, 7, 16):  # and through TensorFlow: a first step, a last of an epoch, others
            np.testing.assert_array_equal(ids_of(part.training().skip(start).take(1)), whole[start])


@pytest.mark.parametrize("cache", CACHES)
def test_a_worker_reads_its_own_units_alone(tmp_path: Path, cache: str) -> None:
    parts = shares(tmp_path, cache, (10,) * 12, 4)
    for index, part in enumerate(parts):
        list(part.training_numpy(0, part.steps_per_epoch))
        assert set(part._source.read_units) == {3 * index, 3 * index + 1, 3 * index + 2}
        reads = len(part._source.read_units)
        list(part.evaluation_numpy())
        assert len(part._source.read_units) == (2 if cache == "none" else 1) * reads  # kept, or read anew


def test_the_chief_counts_for_all(tmp_path: Path) -> None:
    told: list[list[int]] = []

    def chief(count: Any) -> list[int]:
        told.append(count())
        return told[0]

    first = make(tmp_path, "none", sharding="rows", shard_count=2, unit_rows=chief)
    second = make(
        tmp_path, "none", sharding="rows", shard_count=2, shard_index=1, unit_rows=lambda count: told[0]
    )
    assert first.rows == second.rows == 132
    assert told == [list(UNITS)]
    other = make(
        tmp_path,
        "none",
        FakeSource((66, 66)),
        sharding="rows",
        shard_count=2,
        unit_rows=lambda count: told[0],
    )
    with pytest.raises(UserError, match=r"sees the train rows in 2 parts, the chief in 10: the data must be"):
        other.prepare()


@pytest.mark.parametrize("cache", CACHES)
def test_fewer_rows_than_workers(tmp_path: Path, cache: str) -> None:
    """Such a split can't be shared out: each reads it whole and takes its slice, as with batches."""
    parts = shares(tmp_path, cache, (2, 0, 1), 4)
    batches = [batch for part in parts for batch in part.evaluation_numpy()]
    ids = np.concatenate([batch["categorical"][batch["valid"] > 0, 0] for batch in batches])
    np.testing.assert_array_equal(ids, np.arange(3))
    with pytest.raises(UserError, match="the train split has no rows"):
        shares(tmp_path, cache, (0, 0), 4)[0].prepare()


@pytest.mark.parametrize("cache", CACHES)
def test_the_whole_split_in_one_process(tmp_path: Path, cache: str) -> None:
    for part in shares(tmp_path, cache, UNITS, 3):
        np.testing.assert_array_equal(ids_of(part.whole().evaluation_numpy())[:132], np.arange(132))


def test_the_disk_cache_of_another_share_is_not_taken(tmp_path: Path) -> None:
    for part in (*shares(tmp_path, "disk", UNITS, 2), *shares(tmp_path, "disk", UNITS, 4)):
        ids = ids_of(part.evaluation_numpy())
        first, stop = order.window(132, part._plan.shard_index, part._plan.shard_count)
        np.testing.assert_array_equal(ids[ids >= 0], np.arange(first, stop))


def test_a_share_that_changes_is_an_error(tmp_path: Path) -> None:
    part = shares(tmp_path, "none", (20, 20, 20, 20), 2)[1]
    part.prepare()
    units = part._epochs._reader._units
    units[2] = replace(units[2], size=13)
    with pytest.raises(UserError, match="rows are missing from the 20 rows counted before"), part.errors():
        list(part.evaluation_numpy())


def test_as_many_workers_as_before() -> None:
    def config(sharding: str) -> Config:
        data = {"source": "x.csv", "split": {"by": "hash", "column": "k"}, "sharding": sharding}
        features = [{"name": "a", "kind": "numeric"}]
        return Config(name="x", task="binary", label={"column": "y"}, data=data, features=features)

    assert begin(None, config("rows"), 3) == RunState(workers=3, sharding="rows")
    alone = RunState(step=5)  # one worker has all rows either way
    assert begin(alone, config("rows"), 1) is begin(alone, config("batches"), 1) is alone
    assert begin(alone, config("batches"), 3) is alone
    restored = RunState(step=5, workers=2, sharding="rows")
    assert begin(restored, config("rows"), 2) is restored
    with pytest.raises(UserError, match=r"began with rows on 2 worker\(s\), now it is batches on 2"):
        begin(restored, config("batches"), 2)
    with pytest.raises(UserError, match=r"began with rows on 2 worker\(s\), now it is rows on 3"):
        begin(restored, config("rows"), 3)
