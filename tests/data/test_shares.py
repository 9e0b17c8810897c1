"""Statistics that several workers take, each of its share of the units, are those of one process."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import feature_tables as tables
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from meeting import meet, together

from trainer import inputs
from trainer.config import Config
from trainer.data import shares
from trainer.data.fitting import build
from trainer.data.source import Splits, open_splits
from trainer.data.statistics import Statistics
from trainer.errors import UserError
from trainer.features import Features, fit
from trainer.peers import Peers

pytestmark = pytest.mark.faults

LABELS = {"binary": "y", "regression": "amount", "multilabel": ["p", "y"]}


def columns(statistics: Statistics) -> list[tuple[str, Any]]:
    return [*statistics.features.items(), *statistics.labels.items()]


def dumped(statistics: Statistics) -> list[Any]:
    """All that statistics know, to the bit."""
    return [shares.head(statistics), *((name, shares.dump(one)) for name, one in columns(statistics))]


def carried(statistics: Statistics) -> Statistics:
    """What another process gets."""
    made = Statistics(statistics.config)
    shares.add_head(made, json.loads(json.dumps(shares.head(statistics))))
    for (_, empty), (_, full) in zip(columns(made), columns(statistics), strict=True):
        shares.load(empty, json.loads(json.dumps(shares.dump(full))))
    return made


def merged(config: Config, parts: list[list[Any]]) -> Statistics:
    """The statistics of some shares, each a list of batches, as the chief merges them."""
    whole = Statistics(config)
    for part in parts:
        made = Statistics(config)
        for batch in part:
            made.update(batch)
        whole.merge(carried(made))
    return whole


def same_features(one: Features, other: Features) -> None:
    tables.same(json.loads(one.to_json()), json.loads(other.to_json()))


# --- the statistics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("task", LABELS)
def test_three_shares_of_every_kind_are_the_whole(task: str) -> None:
    config = tables.config(*tables.ALL_KINDS, task=task, column=LABELS[task])
    table = pa.table(tables.table(900, seed=1, nasty=False))
    table = table.append_column("amount", pa.array(np.random.default_rng(4).normal(1e6, 3, 900)))
    batches = table.append_column("p", pa.array(np.arange(900) % 7 == 0)).to_batches(max_chunksize=37)
    whole = Statistics(config)
    for batch in batches:
        whole.update(batch)
    shared = merged(config, [batches[rank::3] for rank in range(3)])
    for name, made in whole.features.items():
        found = shared.features[name]
        for key in ("rows", "missing", "infinite", "outside", "true", "cut", "entries", "oldest", "newest"):
            assert getattr(found, key, None) == getattr(made, key, None), (name, key)
        if (moments := getattr(made, "moments", None)) is not None:
            for key in ("count", "min", "max"):
                np.testing.assert_array_equal(getattr(found.moments, key), getattr(moments, key))
        if (quantiles := getattr(made, "quantiles", None)) is not None:  # few enough to be exact
            np.testing.assert_array_equal(found.quantiles([0.1, 0.5]), quantiles([0.1, 0.5]))
    assert shared.types == whole.types
    same_features(build(shared.finish()), build(whole.finish()))
    again = merged(config, [batches[rank::3] for rank in range(3)])
    assert build(again.finish()).fingerprint == build(shared.finish()).fingerprint, "the same bits"


def test_not_a_bit_changes_on_the_way() -> None:
    config = tables.config(*tables.ALL_KINDS)
    made = Statistics(config)
    made.update(tables.table(500, seed=2, nasty=False))
    nothing = Statistics(config)  # the share of a worker for which there is no unit
    for one in (made, nothing):
        assert dumped(carried(one)) == dumped(one)
    with pytest.raises(UserError, match="statistics are of version 7, expected 1: give all"):
        shares.add_head(nothing, {**shares.head(made), "version": 7})


def test_more_than_is_counted_exactly_is_within_the_stated_error() -> None:
    config = tables.config({"kind": "numeric", "name": "x"}, {"kind": "hashed", "name": "w", "buckets": 9})
    generator = np.random.default_rng(1)
    x = generator.lognormal(size=210_000).astype(np.float32)
    common = generator.zipf(2, len(x))
    words = np.where(generator.random(len(x)) < 0.5, common, generator.integers(0, 60_000, len(x)))
    batches = pa.table(
        {"x": x, "w": pa.array(words.astype(str)).dictionary_encode(), "y": words % 2}
    ).to_batches(max_chunksize=30_000)
    made = merged(config, [batches[rank::3] for rank in range(3)])
    quantiles, counts = made.features["x"].quantiles, made.features["w"].counts
    assert 0 < quantiles.rank_error < 0.001
    at = [0.01, 0.25, 0.5, 0.75, 0.99]
    ranks = np.searchsorted(np.sort(x), quantiles(at)) / len(x)
    assert np.abs(ranks - at).max() <= quantiles.rank_error + 1e-5
    assert counts.error > 0
    right = dict(zip(*np.unique(words.astype(str), return_counts=True), strict=True))
    for text, count in counts.most_common(size=100):
        assert right[text] - counts.error <= count <= right[text]


# --- threads ----------------------------------------------------------------------------------------


def test_no_bit_depends_on_the_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, size in enumerate((300, 70, 1, 120, 200, 90, 150)):
        pq.write_table(rows(size, 1000 * number), tmp_path / f"{number}.parquet")
    monkeypatch.setattr(shares, "_RUNS", 4)
    made = {}
    for threads in (1, 2, 5):
        config = config_of(tmp_path, "*.parquet", reader_threads=threads)
        source = open_splits(config).train
        made[threads] = shares.alone(config, source)
        assert (source.counts().units, source.counts().of) == (7, 7)
    assert dumped(made[1]) == dumped(made[2]) == dumped(made[5])
    same_features(build(made[1].finish()), fit(config, open_splits(config).train.batches()))


def test_units_are_read_at_once_each_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams of a table, or large files of an object store, are slow one by one."""
    for number in range(2):
        pq.write_table(rows(400, 1000 * number), tmp_path / f"{number}.parquet")
    config = config_of(tmp_path, "*.parquet", chunk_rows=1024)
    source = open_splits(config).train
    inner, done = source.read, threading.Event()

    def read(unit: Any, columns: Any = None) -> Any:
        if unit.index == 0:
            assert done.wait(60)
        for batch in inner(unit, columns):
            for row in range(batch.num_rows):  # many more than are read ahead
                yield batch.slice(row, 1)
        if unit.index == 1:
            done.set()

    monkeypatch.setattr(source, "read", read)
    assert shares.alone(config, source).rows == source.counts().rows > 500


# --- a job ------------------------------------------------------------------------------------------


class Job:
    """Three workers of a job, here threads, each with sources of its own."""

    def __init__(self, config: Config, count: int = 3) -> None:
        self.config = config
        self.peers: list[Peers] = meet(count)
        self.splits: list[Splits] = [open_splits(config) for _ in self.peers]
        self.read: list[list[tuple[int, int]]] = [[] for _ in self.peers]  # (unit, rows), by worker
        for splits, read in zip(self.splits, self.read, strict=True):
            self._watch(splits.train, read)

    @staticmethod
    def _watch(source: Any, read: list[tuple[int, int]]) -> None:
        inner = source.read

        def watched(unit: Any, columns: Any = None) -> Any:
            for batch in inner(unit, columns):
                read.append((unit.index, batch.num_rows))
                yield batch

        source.read = watched

    def parts(self) -> list[Callable[[], Statistics | None]]:
        return [
            lambda splits=splits, peers=peers: shares.learn(self.config, splits.train, peers)  # type: ignore[misc]
            for splits, peers in zip(self.splits, self.peers, strict=True)
        ]

    def learn(self) -> Statistics:
        chief, *others = together(self.parts())
        assert others == [None] * len(others)
        return chief  # type: ignore[no-any-return]

    def fails(self) -> list[UserError]:
        """Every worker ends with an error, as in `run.train`; returns what each says."""

        def ends(peers: Peers, part: Callable[[], Any]) -> UserError:
            with pytest.raises(UserError) as caught:
                part()
            peers.failed(caught.value)
            return caught.value

        return together([functools.partial(ends, *one) for one in zip(self.peers, self.parts(), strict=True)])


def config_of(folder: Path, pattern: str, **data: Any) -> Config:
    return Config.model_validate(
        {
            "name": "t",
            "task": "binary",
            "data": {
                "source": str(folder / pattern),
                "sharding": "rows",
                "split": {"by": "hash", "column": "id"},
                **data,
            },
            "label": {"column": "y"},
            "features": [{"name": "x", "kind": "numeric"}, {"name": "w", "kind": "categorical"}],
        }
    )


def rows(count: int, first: int) -> pa.Table:
    generator = np.random.default_rng(first)
    return pa.table(
        {
            "id": [f"r{i}" for i in range(first, first + count)],
            "x": generator.normal(size=count),
            "w": generator.choice(["a", "b", "c", "d", "e"], count),
            "y": [None if i % 31 == 0 else i % 2 == 0 for i in range(first, first + count)],
        }
    )


def test_each_worker_reads_its_share_and_the_chief_knows_all(tmp_path: Path) -> None:
    for number, size in enumerate((300, 70, 1, 120, 200, 90, 150)):
        pq.write_table(rows(size, 1000 * number), tmp_path / f"{number}.parquet")
    config = config_of(tmp_path, "*.parquet")
    alone = open_splits(config)
    expected = fit(config, alone.train.batches())

    job = Job(config)
    features = build(job.learn().finish())
    same_features(features, expected)
    counts = alone.train.counts()
    assert counts.missing_label > 10
    units = len(alone.train.units())
    for rank, (splits, read) in enumerate(zip(job.splits, job.read, strict=True)):
        assert {unit for unit, _ in read} == set(range(units)[rank::3]), "its own units"
        assert splits.train.counts() == counts, "and what the others found"
        assert [unit.rows for unit in splits.train.units()] == [unit.rows for unit in alone.train.units()]
    assert sum(size for read in job.read for _, size in read) == counts.rows == features.rows
    job.splits[0].train.count()  # is known: nothing is read for it
    assert sum(size for read in job.read for _, size in read) == counts.rows


def test_a_restart_learns_nothing_anew(tmp_path: Path) -> None:
    csv(tmp_path, bad=0)
    config = config_of(tmp_path, "*.csv")
    kept: dict[str, str] = {}
    told, reads = [], []
    for state in ("new", "started"):
        place = SimpleNamespace(state=state, read_text=kept.get, write_text=kept.__setitem__)
        job = Job(config)
        starts = [
            functools.partial(inputs.learn, config, splits, None if rank else place, peers)
            for rank, (splits, peers) in enumerate(zip(job.splits, job.peers, strict=True))
        ]
        told += [features.fingerprint for features in together(starts)]
        reads.append([bool(read) for read in job.read])
    assert len(set(told)) == 1
    assert reads == [[True] * 3, [False] * 3]


def test_fewer_files_than_workers(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,x,w,y\n" + "".join(f"r{i},{i},a,{i % 2}\n" for i in range(50)))
    config = config_of(tmp_path, "*.csv")
    job = Job(config)
    same_features(build(job.learn().finish()), fit(config, open_splits(config).train.batches()))
    assert [bool(read) for read in job.read] == [True, False, False]


def csv(folder: Path, bad: int) -> None:
    for number in range(3):
        lines = [f"f{number}r{i},{i},a,{i % 2}" for i in range(40)]
        lines[3 : 3 + bad] = [f"f{number}r{i},what,a,0" for i in range(bad)]
        (folder / f"{number}.csv").write_text("\n".join(["id,x,w,y", *lines]) + "\n")


def test_records_that_are_skipped_are_counted_once_over_all(tmp_path: Path) -> None:
    csv(tmp_path, bad=3)
    config = config_of(tmp_path, "*.csv", on_bad_record="skip", max_bad_records=100)
    alone = open_splits(config)
    expected = fit(config, alone.train.batches())
    job = Job(config)
    same_features(build(job.learn().finish()), expected)
    for splits in job.splits:
        for _ in splits.train.batches():  # read again
            pass
        assert splits.train.counts() == alone.train.counts()

    found = alone.train.counts().bad
    assert found > 5  # of which no share has more than three
    few = config_of(tmp_path, "*.csv", on_bad_record="skip", max_bad_records=5)
    told = Job(few).fails()
    assert all("more than 5 records can't be read (data.max_bad_records)" in str(error) for error in told)


def test_a_mistake_in_the_share_of_one_is_told_by_all(tmp_path: Path) -> None:
    csv(tmp_path, bad=0)
    (tmp_path / "1.csv").write_text("id,x,w,y\n" + "".join(f"q{i},what,a,1\n" for i in range(40)))
    job = Job(config_of(tmp_path, "*.csv"))
    told = [str(error) for error in job.fails()]
    for text in told:
        assert "1.csv" in text
        assert "'what'" in text
    assert "worker 1 at" not in told[1]
    assert all("worker 1 at" in text for text in (told[0], told[2]))


def test_a_split_without_a_row_is_told_as_one_process_tells_it(tmp_path: Path) -> None:
    csv(tmp_path, bad=0)
    config = config_of(
        tmp_path, "*.csv", split={"by": "time", "column": "id", "validation_from": "1970-01-01"}
    )
    for number in range(3):
        text = "".join(f"2024-01-0{i % 9 + 1},{i},a,1\n" for i in range(40))
        (tmp_path / f"{number}.csv").write_text("id,x,w,y\n" + text)
    with pytest.raises(UserError) as alone:
        fit(config, open_splits(config).train.batches())
    told = [str(error) for error in Job(config).fails()]
    assert told[0] == str(alone.value)
    assert all(text.endswith(told[0]) and "the chief at" in text for text in told[1:])
