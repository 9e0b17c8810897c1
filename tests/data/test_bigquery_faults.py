"""What goes wrong at BigQuery: waited out, resumed at the right row, or told in one sentence."""

from __future__ import annotations

import functools
import itertools
import logging
import random
import time
from collections.abc import Iterator

import grpc
import pyarrow as pa
import pytest
from bigquery_cases import NAME, SOURCE, keys_of, make_config, sample

from tests.servers.bigquery import BigQueryServer
from tests.servers.bigquery_faults import Fault
from trainer.data import bigquery_client, bigquery_session, bigquery_stream, bigquery_tables
from trainer.data.bigquery import BigQuerySource
from trainer.data.source import open_rows, open_splits
from trainer.errors import UserError

pytestmark = pytest.mark.faults

Code = grpc.StatusCode
KEYS = [f"r{i:05d}" for i in range(1000)]
TABLE = sample()
_PASSING = [
    (Code.UNAVAILABLE, "connection reset"),
    (Code.UNKNOWN, "Stream removed"),
    (Code.ABORTED, "try again"),
    (Code.DEADLINE_EXCEEDED, "too slow"),
    (Code.INTERNAL, "Received RST_STREAM with error code 2"),
    (Code.RESOURCE_EXHAUSTED, "concurrent stream usage exceeded"),
]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BigQueryServer]:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    with BigQueryServer({NAME: TABLE}, message_rows=64, block_rows=250) as started:
        monkeypatch.setenv(bigquery_client.EMULATOR, started.address)
        yield started


def rows(**data: object) -> tuple[BigQuerySource, list[float]]:
    """Opens all rows of the table; the second result is the list of waits, which take no time."""
    source = open_rows(SOURCE, make_config(**data))
    assert isinstance(source, BigQuerySource)
    waits: list[float] = []
    source._files.connection.patience.sleep = waits.append
    return source, waits


# --- errors that pass -------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "message"), _PASSING, ids=[code.name for code, _ in _PASSING])
@pytest.mark.parametrize("after_row", [None, 0, 1, 64, 130, 249, 250])
def test_a_broken_stream_goes_on_at_the_right_row(
    code: grpc.StatusCode, message: str, after_row: int | None, server: BigQueryServer
) -> None:
    server.faults.add(Fault(code, message, after_row=after_row, stream=1, times=2))
    source, waits = rows()
    assert keys_of(source) == KEYS
    assert len(waits) == 2
    offsets = [offset for stream, offset in server.reads if stream == 1]
    assert offsets == [0, after_row or 0, after_row or 0]


def test_a_stream_that_breaks_after_its_last_row_is_whole(server: BigQueryServer) -> None:
    server.faults.add(
        Fault(after_row=250, stream=0), Fault(Code.OUT_OF_RANGE, "offset", after_row=250, stream=0)
    )
    source, _ = rows()
    assert keys_of(source) == KEYS
    assert source.count() == 1000


def test_the_service_says_how_long_to_wait(server: BigQueryServer) -> None:
    server.faults.add(
        Fault(Code.RESOURCE_EXHAUSTED, "busy", after_row=100, stream=0, retry_delay=7.25),
        Fault(Code.RESOURCE_EXHAUSTED, "busy", at="create", retry_delay=3.5),
    )
    source, waits = rows()
    assert keys_of(source) == KEYS
    assert waits == [3.5, 7.25]


def test_waits_grow_and_begin_anew_with_each_row(server: BigQueryServer) -> None:
    server.faults.add(
        Fault(after_row=64, stream=0, times=3), Fault(Code.RESOURCE_EXHAUSTED, "busy", after_row=70, stream=0)
    )
    source, waits = rows(streams=1)
    assert keys_of(source) == KEYS
    assert waits == pytest.approx([0.01, 0.1, 0.13, 1.0])


def test_a_wait_takes_its_time(server: BigQueryServer) -> None:
    server.faults.add(Fault(Code.RESOURCE_EXHAUSTED, "busy", after_row=100, stream=0, retry_delay=0.4))
    began = time.monotonic()
    assert keys_of(open_rows(SOURCE, make_config())) == KEYS
    assert time.monotonic() - began >= 0.4


def test_a_silent_stream_is_noticed(server: BigQueryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bigquery_stream, "CALL_SECONDS", 0.3)
    server.faults.add(Fault(after_row=100, stream=2, stall=True))
    source, waits = rows()
    assert keys_of(source) == KEYS
    assert waits  # more of them where the machine is slow to answer


def test_a_consumer_may_take_longer_than_a_call(
    server: BigQueryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bigquery_stream, "CALL_SECONDS", 0.1)
    source, _ = rows(streams=1, chunk_rows=64)
    got: list[str] = []
    for batch in source.read(source.units()[0], ["row_id"]):
        got += batch.column(0).to_pylist()
        time.sleep(0.03)
    assert got == KEYS


def test_a_damaged_message_is_asked_for_again(
    server: BigQueryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, calls = bigquery_stream.decode, itertools.count()

    def damaged(response: bytes, schema: pa.Schema) -> pa.RecordBatch | None:
        return decode(response[:-40] if next(calls) == 3 else response, schema)

    monkeypatch.setattr(bigquery_stream, "decode", damaged)
    source, waits = rows()
    assert keys_of(source) == KEYS
    assert len(waits) == 1


def test_opening_is_tried_again_too(server: BigQueryServer) -> None:
    server.faults.add(Fault(at="create", times=3))
    source, waits = rows()
    assert keys_of(source) == KEYS
    assert waits == pytest.approx([0.01, 0.1, 0.13])


def test_giving_up_names_the_stream(server: BigQueryServer) -> None:
    server.faults.add(Fault(Code.UNAVAILABLE, "down", after_row=30, stream=2, times=-1))
    source, waits = rows(retry_seconds=20)
    with pytest.raises(UserError) as caught:
        keys_of(source)
    text = str(caught.value)
    assert text.startswith("bigquery://p.d.t, stream 3 of 4, row 30: given up after ")
    assert "data.retry_seconds=20" in text
    assert text.endswith("the last answer was UNAVAILABLE: down")
    assert 10 < len(waits) < 30
    assert sum(waits) < 20


def test_giving_up_at_the_door_names_the_table(server: BigQueryServer) -> None:
    server.stop()
    source, _ = rows(retry_seconds=1)
    with pytest.raises(
        UserError, match=r"bigquery://p\.d\.t: no read session could be opened: given up after"
    ):
        keys_of(source)


# --- errors that don't ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        (
            Fault(
                Code.PERMISSION_DENIED,
                "request failed: the user does not have 'bigquery.readsessions.create' permission for "
                "'projects/billed'",
                at="create",
            ),
            [
                "bigquery.readsessions.create",
                "BigQuery Read Session User",
                "billing project billed",
                "nobody",
            ],
        ),
        (
            Fault(
                Code.PERMISSION_DENIED,
                "request failed: the user does not have 'bigquery.tables.getData' permission for table p.d.t",
                at="create",
            ),
            ["bigquery.tables.getData", "BigQuery Data Viewer", "table p.d.t", "billing project billed"],
        ),
        (
            Fault(
                Code.PERMISSION_DENIED, "Access Denied: Table p:d.t: bigquery.tables.get denied", at="create"
            ),
            ["bigquery.tables.get is", "BigQuery Data Viewer"],
        ),
        (
            Fault(
                Code.PERMISSION_DENIED,
                "there was an error operating on 'x': the user does not have "
                "'bigquery.readsessions.getData' permission for 'x'",
                after_row=64,
            ),
            [
                "bigquery.readsessions.getData",
                "BigQuery Read Session User",
                "stream ",
                "billing project billed",
            ],
        ),
        (
            Fault(
                Code.PERMISSION_DENIED, "BigQuery Storage API has not been used in project 12", at="create"
            ),
            ["API is off in the billing project billed"],
        ),
        (Fault(Code.NOT_FOUND, "Not found: Table", at="create"), ["not found (billing project billed)"]),
        (Fault(Code.UNAUTHENTICATED, "no token", at="create"), ["credentials of nobody", "no token"]),
        (
            Fault(
                Code.UNAVAILABLE,
                "Getting metadata from plugin failed with error: ('invalid_grant'",
                at="create",
            ),
            ["no token for nobody", "invalid_grant"],
        ),
        (Fault(Code.INTERNAL, "broken for good", after_row=0), ["INTERNAL: broken for good"]),
    ],
    ids=lambda value: value.code.name if isinstance(value, Fault) else "",
)
def test_what_does_not_pass_fails_at_once(fault: Fault, parts: list[str], server: BigQueryServer) -> None:
    server.faults.add(Fault(**{**vars(fault), "times": -1}))
    source, waits = rows(project="billed")
    with pytest.raises(UserError) as caught:
        keys_of(source)
    text = str(caught.value)
    assert text.startswith("bigquery://p.d.t")
    assert "\n" not in text
    for part in parts:
        assert part in text
    assert not waits


def test_a_table_that_is_not_there(server: BigQueryServer) -> None:
    with pytest.raises(UserError, match=r"bigquery://p\.d\.other: not found \(billing project p\)"):
        keys_of(open_rows("bigquery://p.d.other", make_config()))


@pytest.mark.parametrize("kind", ["VIEW", "MATERIALIZED_VIEW", "EXTERNAL"])
def test_a_view_comes_with_the_way_out(kind: str, server: BigQueryServer) -> None:
    server.tables[NAME].kind = kind
    with pytest.raises(UserError, match=r"is a view or .*CREATE TABLE d\.t_rows AS SELECT \* FROM `p\.d\.t`"):
        keys_of(rows()[0])


@pytest.mark.parametrize("text", ["row_id IN (SELECT 1)", "row_id ==", "SUM(x) > 3", "unheard = 1"])
def test_a_filter_that_is_refused_is_shown(text: str, server: BigQueryServer) -> None:
    with pytest.raises(UserError) as caught:
        keys_of(rows(row_restriction=text)[0])
    assert f"the filter {text!r} (data.row_restriction and the split) was refused" in str(caught.value)
    assert "INVALID_ARGUMENT" in str(caught.value)


# --- all at once ------------------------------------------------------------------------------------


def _storm(server: BigQueryServer, seed: int) -> int:
    """Plans errors at random rows of random streams."""
    chance = random.Random(seed)
    for _ in range(chance.randrange(1, 12)):
        code, message = chance.choice(_PASSING)
        delay = chance.choice([None, 0.5]) if code is Code.RESOURCE_EXHAUSTED else None
        after = chance.choice([None, chance.randrange(250)])
        at = chance.choice(["read", "read", "read", "create"])
        stream = chance.choice([None, chance.randrange(4)])
        server.faults.add(Fault(code, message, at, after, stream, chance.randrange(1, 4), delay))
    return chance.choice([16, 64, 100, 4096])


@pytest.mark.parametrize("seed", range(50))
def test_no_row_is_lost_or_read_twice_in_a_storm(
    seed: int, server: BigQueryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Waits take no time from the first session on. Patience has no end: which stream meets how many of the
    # errors in a row is up to the threads, and all of them together are beyond what a run should wait for.
    endless = functools.partial(bigquery_stream.Patience, sleep=lambda seconds: None)
    monkeypatch.setattr(bigquery_tables, "Patience", lambda seconds: endless(1e9))
    monkeypatch.setattr(bigquery_session, "_LOCAL_SECONDS", 1e9)
    server.message_rows = _storm(server, seed)
    data = make_config(chunk_rows=random.Random(seed).choice([50, 64, 1000]), reader_threads=4)
    splits = open_splits(data)
    keys = [keys_of(source) for source in splits.sources]
    assert [len(part) for part in keys] == [570, 267, 152]
    assert [key for part in keys for key in part] == [key for i, key in enumerate(KEYS) if i % 97]


def test_a_token_that_cannot_be_had_for_a_moment_is_waited_for(server: BigQueryServer) -> None:
    server.faults.add(Fault(Code.UNAVAILABLE, "Getting metadata from plugin failed", after_row=64, stream=0))
    source, waits = rows()
    assert keys_of(source) == KEYS
    assert len(waits) == 1


def test_failures_are_logged(server: BigQueryServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server.faults.add(Fault(Code.UNAVAILABLE, "down", after_row=30, stream=1, times=3))
    keys_of(rows()[0])
    told = [record for record in caplog.records if "stream 2 of 4, row 30" in record.message]
    assert [record.levelname for record in told] == ["INFO", "INFO", "WARNING"]
    assert "UNAVAILABLE: down; trying again in 0.1 s" in told[1].message
