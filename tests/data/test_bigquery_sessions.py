"""Read sessions: shared, kept over a restart, renewed when they expire."""

from __future__ import annotations

import datetime
import functools
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bigquery_cases import NAME, SOURCE, UTC, keys_of, make_config, opened, sample
from feature_tables import same
from meeting import meet, together

from tests.servers.bigquery import BigQueryServer
from tests.servers.bigquery_faults import Fault
from trainer.data import bigquery_client, bigquery_ledger, bigquery_session, shares
from trainer.data.bigquery import BigQuerySource
from trainer.data.encode import Encoder
from trainer.data.fitting import build
from trainer.data.pipeline import Pipeline
from trainer.data.source import open_rows, open_splits
from trainer.errors import UserError
from trainer.features import fit

pytestmark = pytest.mark.faults

TABLE = sample()
TRAIN = [f"r{i:05d}" for i in range(576) if i % 97]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BigQueryServer]:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    with BigQueryServer({NAME: TABLE}, message_rows=32, block_rows=125) as started:
        monkeypatch.setenv(bigquery_client.EMULATOR, started.address)
        yield started


def unit_keys(source: Any, unit: int, skip: int = 0) -> list[str]:
    batches = source.read(source.units()[unit], ["row_id"], skip)
    return [key for batch in batches for key in batch.column(0).to_pylist()]


# --- a restart --------------------------------------------------------------------------------------


def test_a_restart_takes_the_sessions_up_and_knows_the_counts(server: BigQueryServer, tmp_path: Path) -> None:
    memory = tmp_path / "bigquery.json"
    first, _ = opened(server, memory)
    keys = [keys_of(source) for source in first.sources]
    assert len(server.creates) == 4  # columns, and one a split
    server.creates.clear()
    server.reads.clear()
    again, _ = opened(server, memory)
    assert [source.count() for source in again.sources] == [570, 267, 152]
    assert [str(source.counts()) for source in again.sources] == [
        str(source.counts()) for source in first.sources
    ]
    assert not server.creates
    assert not server.reads  # counted by the first start
    assert [keys_of(source) for source in again.sources] == keys


def test_skipped_rows_are_not_fetched_again(server: BigQueryServer, tmp_path: Path) -> None:
    split = {"by": "hash", "column": "row_id", "validation_fraction": 0.4}
    memory = tmp_path / "bigquery.json"
    first, _ = opened(server, memory, split=split, chunk_rows=25)
    whole = [unit_keys(first.train, unit) for unit in range(8)]
    again, _ = opened(server, memory, split=split, chunk_rows=25)
    for unit, keys in enumerate(whole):
        for skip in (0, 1, len(keys) // 2, len(keys) - 1, len(keys)):
            server.reads.clear()
            assert unit_keys(again.train, unit, skip) == keys[skip:]
            (_, offset), *_ = server.reads
            assert offset % 25 == 0
            if skip:
                assert offset <= 125
                known = sum(int(k[1:]) < 125 * unit + offset for k in keys)
                assert known <= skip < known + 25  # the last place that is not beyond it


def test_a_run_goes_on_at_its_step_without_reading_what_it_had(
    server: BigQueryServer, tmp_path: Path
) -> None:
    memory = tmp_path / "bigquery.json"

    def pipeline() -> Pipeline:
        splits, _ = opened(server, memory, chunk_rows=32)
        features = fit(make_config(), splits.train.batches())
        encoder = Encoder(features)
        made = Pipeline(
            splits.train,
            encoder,
            batch_size=16,
            cache="none",
            shuffle_rows=32,
            chunk_rows=32,
            columns=encoder.columns,
        )
        made.prepare()
        return made

    unbroken = list(_take(pipeline().training_numpy(), 100))
    made = pipeline()
    server.reads.clear()
    server.sent = 0
    rest = list(_take(made.training_numpy(start_step=30), 6))  # to the end of the first epoch, 36 steps
    for left, right in zip(unbroken[30:36], rest, strict=True):
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])
    assert server.sent < 350  # 90 rows to come, from places 32 rows apart, and what the server sends ahead
    assert any(offset for _, offset in server.reads)


def _take(batches: Iterator[Any], count: int) -> Iterator[Any]:
    for _ in range(count):
        yield next(batches)


def test_another_config_has_sessions_of_its_own(server: BigQueryServer, tmp_path: Path) -> None:
    memory = tmp_path / "bigquery.json"
    keys_of(opened(server, memory)[0].train)
    server.creates.clear()
    keys_of(opened(server, memory, row_restriction="x > 0")[0].train)
    assert len(server.creates) == 1
    server.creates.clear()
    keys_of(opened(server, memory, compression="none", reader_threads=4)[0].train)
    assert not server.creates


def test_a_ledger_that_is_no_json_is_written_anew(server: BigQueryServer, tmp_path: Path) -> None:
    memory = tmp_path / "bigquery.json"
    memory.write_text("{half")
    assert keys_of(opened(server, memory)[0].train) == TRAIN
    assert set(json.loads(memory.read_text())["pages"]) == {"sessions", "snapshots", "splits"}


def test_without_a_file_nothing_is_kept(server: BigQueryServer) -> None:
    keys_of(opened(server)[0].train)
    keys_of(opened(server)[0].train)
    assert len(server.creates) == 4


# --- an expired session -----------------------------------------------------------------------------


def test_a_restart_after_the_end_of_a_session(
    server: BigQueryServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    memory = tmp_path / "bigquery.json"
    server.session_seconds = 240  # enough to read, too little to be taken up again
    first, _ = opened(server, memory)
    keys = keys_of(first.train)
    server.expire()
    moments = {str(request.read_session.table_modifiers.snapshot_time) for request in server.creates}
    server.write(NAME, TABLE.slice(0, 3), since=datetime.datetime.now(UTC))
    server.session_seconds = 3600
    server.creates.clear()
    again, _ = opened(server, memory)
    assert keys_of(again.train) == keys
    assert again.train.recut is False
    (request,) = server.creates
    assert str(request.read_session.table_modifiers.snapshot_time) in moments  # as of the same moment
    assert "has the same streams: no row is lost or read twice" in caplog.text


def test_a_restart_after_which_the_table_is_cut_otherwise(
    server: BigQueryServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = tmp_path / "bigquery.json"
    server.session_seconds = 240  # enough to read, too little to be taken up again
    first, _ = opened(server, memory)
    keys = keys_of(first.train)
    server.expire()
    server.session_seconds = 3600
    server.most_streams = 3
    again, _ = opened(server, memory)
    assert sorted(keys_of(again.train)) == sorted(keys)
    assert again.train.recut is True
    assert "the train rows come in another order than before" in caplog.text
    third, _ = opened(server, memory)  # the new cut has become the run's own
    assert third.train.count() == 570
    assert third.train.recut is False


@pytest.mark.parametrize("when", [0, 40, 100])
def test_a_session_that_expires_while_it_is_read(
    when: int, server: BigQueryServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    splits, _ = opened(server, chunk_rows=20)
    assert keys_of(splits.train) == TRAIN
    batches = splits.train.batches(["row_id"])
    keys: list[str] = []
    for batch in batches:
        keys += batch.column(0).to_pylist()
        if len(keys) > when:
            break
    server.expire()
    for batch in batches:
        keys += batch.column(0).to_pylist()
    assert keys == TRAIN
    assert "has the same streams" in caplog.text
    assert "twice in this pass" not in caplog.text
    assert keys_of(splits.train) == TRAIN


def test_a_session_that_expires_in_the_first_pass(server: BigQueryServer) -> None:
    splits, _ = opened(server, chunk_rows=20)
    batches = splits.train.batches(["row_id"])
    keys = next(batches).column(0).to_pylist()
    server.expire()
    assert keys + [key for batch in batches for key in batch.column(0).to_pylist()] == TRAIN
    assert splits.train.count() == 570


@pytest.mark.parametrize("streams", [3, 1, 8])
def test_a_new_session_that_cuts_the_table_otherwise(
    streams: int, server: BigQueryServer, caplog: pytest.LogCaptureFixture
) -> None:
    splits, _ = opened(server, chunk_rows=20, split={"by": "hash", "column": "row_id"})
    source = splits.train
    first = keys_of(source)
    units = source.units()
    other = splits.validation
    assert other is not None
    others = keys_of(other)
    batches = source.batches(["row_id"])
    keys = next(batches).column(0).to_pylist()
    server.most_streams = streams
    server.replace(NAME, TABLE.take(np.random.default_rng(1).permutation(1000)))  # the same rows, elsewhere
    keys += [key for batch in batches for key in batch.column(0).to_pylist()]
    assert len(keys) == len(first)  # as many as the pipeline has to be given
    assert [unit.rows for unit in source.units()] == [unit.rows for unit in units]
    seen = len(keys) - len(set(keys))
    (told,) = [r.getMessage() for r in caplog.records if "may be seen twice in this pass" in r.getMessage()]
    most = int(told.split("up to ")[1].split(" of")[0].replace(",", ""))
    assert seen <= most < len(first)
    assert "cuts the table otherwise" in told
    for _ in range(2):  # each later pass has each row once, unit by unit
        assert sorted(keys_of(source)) == sorted(first)
    parts = [unit_keys(source, unit) for unit in range(len(units))]
    assert sorted(key for part in parts for key in part) == sorted(first)
    assert unit_keys(source, 2, skip=7) == parts[2][7:]
    assert sorted(keys_of(other)) == sorted(others)


def test_a_new_cut_in_the_first_pass_asks_for_a_restart(server: BigQueryServer) -> None:
    splits, _ = opened(server, chunk_rows=20)
    batches = splits.train.batches(["row_id"])
    next(batches)
    server.most_streams = 2
    server.expire()
    with pytest.raises(UserError, match="run the same command again"):
        list(batches)


def test_rows_that_are_gone_are_an_error(server: BigQueryServer) -> None:
    splits, _ = opened(server, chunk_rows=20)
    keys_of(splits.train)
    batches = splits.train.batches(["row_id"])
    next(batches)
    server.replace(NAME, TABLE.slice(100, 800))
    gone = r"the new read session holds 47\d rows of the train split"
    with pytest.raises(UserError, match=gone):
        list(batches)
    for unit in filter(lambda unit: unit.rows, splits.train.units()):  # else it would look for them for ever
        with pytest.raises(UserError, match=gone):
            list(splits.train.read(unit, ["row_id"]))


def test_a_schema_that_changed_is_an_error(server: BigQueryServer) -> None:
    splits, _ = opened(server, chunk_rows=20)
    batches = splits.train.batches(["row_id"])
    next(batches)
    place = TABLE.column_names.index("x")
    server.replace(NAME, TABLE.set_column(place, "x", TABLE["x"].cast(pa.string())))
    with pytest.raises(UserError, match="column 'x' was double when the run began and is string now"):
        list(batches)


def test_expiry_and_failures_together(server: BigQueryServer) -> None:
    splits, waits = opened(server, chunk_rows=20)
    assert keys_of(splits.train) == TRAIN
    server.faults.add(Fault(after_row=50, stream=1), Fault(after_row=0, stream=0), Fault(at="create"))
    server.expire()
    assert keys_of(splits.train) == TRAIN
    assert len(waits) >= 2


# --- several workers --------------------------------------------------------------------------------


def _worker(monkeypatch: pytest.MonkeyPatch, chief: bool) -> None:
    cluster = {"cluster": {"chief": ["h0:1"], "worker": ["h1:1"]}}
    task = {"type": "chief", "index": 0} if chief else {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({**cluster, "task": task}))


_FOLLOWER = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from bigquery_cases import keys_of, make_config
from trainer.data.source import open_splits
splits = open_splits(make_config(), sys.argv[3])
keys = keys_of(splits.train)
print(json.dumps([splits.train._files.sessions[0].opened.name, keys]))
"""


def test_all_workers_read_the_streams_of_the_chief(
    server: BigQueryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = str(tmp_path / "bigquery.json")
    here = Path(__file__).parent
    _worker(monkeypatch, chief=False)
    with subprocess.Popen(
        [sys.executable, "-c", _FOLLOWER, str(here), str(here.parents[1]), memory],
        stdout=subprocess.PIPE,
        text=True,
    ) as follower:
        time.sleep(2)
        assert not server.creates
        _worker(monkeypatch, chief=True)
        chief = open_splits(make_config(), memory)
        assert [len(keys_of(source)) for source in chief.sources] == [570, 267, 152]
        count = len(server.creates)
        said, _ = follower.communicate(timeout=60)
    name, keys = json.loads(said)
    assert keys == TRAIN
    assert name == chief.train._files.sessions[0].opened.name
    assert len(server.creates) == count == 4


def test_workers_share_the_first_pass_and_all_know_what_it_found(
    server: BigQueryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, config = str(tmp_path / "bigquery.json"), make_config(sharding="rows", chunk_rows=50)
    trains: list[Any] = []
    for rank in range(2):
        _worker(monkeypatch, chief=rank == 0)
        trains.append(open_splits(config, memory).train)
        trains[rank].units()
    alone = fit(config, open_splits(config).train.batches())
    server.reads.clear()
    learning = [functools.partial(shares.learn, config, *one) for one in zip(trains, meet(2), strict=True)]
    statistics, _ = together(learning)
    same(json.loads(build(statistics.finish()).to_json()), json.loads(alone.to_json()))
    assert sorted(server.reads) == [(stream, 0) for stream in sorted({name for name, _ in server.reads})]
    assert len(server.reads) == len(trains[0].units()) > 2, "each stream was read once, by one of them"
    server.reads.clear()
    again: Any = open_splits(config, memory).train  # a restart
    for source in (again, *trains):
        assert source.count() == 570
        assert source.counts() == again.counts()
        filled = [unit for unit in source.units() if unit.rows]
        for unit in filled:  # wherever its share begins, a worker begins to read there
            rest = source.read(unit, ["row_id"], unit.rows - 1)
            assert sum(batch.num_rows for batch in rest) == 1
    assert len(server.reads) == 3 * len(filled) > 6
    assert all(offset for _, offset in server.reads)


def test_a_worker_does_not_wait_for_ever(
    server: BigQueryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bigquery_ledger, "_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(bigquery_ledger, "_POLL_SECONDS", 0.05)
    _worker(monkeypatch, chief=False)
    with pytest.raises(UserError, match="the chief has opened no read session within"):
        open_splits(make_config(), str(tmp_path / "bigquery.json"))


def test_the_chief_renews_in_time_for_the_others(
    server: BigQueryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chief that waits for a worker in training reads nothing, and would never find its session expired."""
    memory = str(tmp_path / "bigquery.json")
    _worker(monkeypatch, chief=True)
    chief = open_splits(make_config(), memory)
    assert keys_of(chief.train) == TRAIN
    _worker(monkeypatch, chief=False)
    follower = open_splits(make_config(), memory)
    batches = follower.train.batches(["row_id"])
    keys = next(batches).column(0).to_pylist()
    (session,) = chief.train._files.sessions
    old = session.opened
    monkeypatch.setattr(bigquery_session, "_RETRY_SECONDS", 0.05)
    session.opened = replace(old, expires=datetime.datetime.now(UTC))
    server.expire()
    session._renew_in_time()  # the clock that runs since the session was opened rings now
    keys += [key for batch in batches for key in batch.column(0).to_pylist()]
    assert keys == TRAIN
    assert follower.train._files.sessions[0].opened.name == session.opened.name != old.name


def test_a_few_streams_are_asked_for_each_worker(
    server: BigQueryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _worker(monkeypatch, chief=True)
    source = open_rows(SOURCE, make_config(reader_threads=3))
    assert isinstance(source, BigQuerySource)
    keys_of(source)
    request = server.creates[-1]
    assert (request.max_stream_count, request.preferred_min_stream_count) == (0, 6)
