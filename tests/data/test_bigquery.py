"""Rows of BigQuery tables: the same as those of files, with every type, split and filter."""

from __future__ import annotations

import datetime
import decimal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bigquery_cases import (
    FEATURES,
    NAME,
    SOURCE,
    TIME_SPLIT,
    UTC,
    keys_of,
    make_config,
    opened,
    rows_of,
    sample,
    write_parquet,
)

from tests.servers.bigquery import BigQueryServer
from trainer.data import bigquery_client
from trainer.data.encode import Encoder
from trainer.data.source import open_rows, open_splits
from trainer.errors import UserError
from trainer.features import fit

TABLE = sample()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BigQueryServer]:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    with BigQueryServer({NAME: TABLE}, message_rows=64, block_rows=125) as started:
        monkeypatch.setenv(bigquery_client.EMULATOR, started.address)
        yield started


def blocks(source: Any, features: Any) -> dict[str, np.ndarray]:
    encoder = Encoder(features, key_column="row_id")
    encoded = [encoder(batch) for batch in source.batches(encoder.columns)]
    names = ("numeric", "categorical", "label", "weight", "key")
    return {name: np.concatenate([getattr(block, name) for block in encoded]) for name in names}


# --- the same rows as files -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "split",
    [
        TIME_SPLIT,
        {"by": "hash", "column": "row_id", "validation_fraction": 0.2, "test_fraction": 0.1},
        {"by": "column", "column": "part"},
        {"by": "time", "column": "count", "validation_from": "25", "test_from": "40.5"},
        {"by": "time", "column": "price", "validation_from": "5", "test_from": "9.5"},
    ],
    ids=["time", "hash", "column", "integers", "decimals"],
)
def test_encoded_blocks_are_those_of_the_same_rows_in_parquet(
    split: dict[str, Any], server: BigQueryServer, tmp_path: Path
) -> None:
    table = TABLE.filter(pa.compute.and_(TABLE["count"].is_valid(), TABLE["price"].is_valid()))
    server.write(NAME, table, since=datetime.datetime(2024, 1, 1, tzinfo=UTC))
    files = open_splits(make_config(write_parquet(table, tmp_path), split=split))
    splits, _ = opened(server, split=split)
    config = make_config(split=split)
    features = fit(config, files.train.batches())
    own = fit(config, splits.train.batches())
    for ours, theirs in zip(splits.sources, files.sources, strict=True):
        assert ours.schema == theirs.schema
        left, right = blocks(ours, features), blocks(theirs, features)
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])
        # Statistics are summed up over other batches, so their last bits may differ.
        mine = blocks(ours, own)
        np.testing.assert_allclose(mine["numeric"], right["numeric"], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(mine["categorical"], right["categorical"])
        assert ours.counts().missing_label == theirs.counts().missing_label
        assert ours.count() == theirs.count() == len(left["label"])
    assert splits.describe()[0].startswith("train: ")


def test_batches_do_not_depend_on_messages(server: BigQueryServer) -> None:
    def sizes() -> list[int]:
        splits, _ = opened(server, chunk_rows=100, streams=2)
        return [batch.num_rows for batch in splits.train.batches()]

    first = sizes()
    server.message_rows = 33
    assert sizes() == first
    assert max(first) <= 100


def test_a_time_split_leaves_the_other_rows_at_the_server(server: BigQueryServer) -> None:
    splits, _ = opened(server)
    count = len(keys_of(splits.validation))
    assert count < server.sent < count + 10  # rows without a label are sent and dropped here


@pytest.mark.parametrize(
    ("column", "kind", "cuts", "literal"),
    [
        ("day", pa.date32(), ("2024-01-02T12:00", None), "CAST('2024-01-03' AS DATE)"),
        ("day", pa.date32(), ("2024-01-03", "2024-01-05"), "CAST('2024-01-05' AS DATE)"),
        ("local", pa.timestamp("us"), ("2024-01-03", None), "AS DATETIME)"),
        ("moment", pa.timestamp("us", tz="UTC"), ("2024-01-03T01:00+01:00", None), "2024-01-03 00:00:00"),
        ("text", pa.string(), ("2024-01-03", "2024-01-04"), None),
    ],
)
def test_time_splits_of_each_type_are_those_of_files(
    column: str,
    kind: pa.DataType,
    cuts: tuple[str, str | None],
    literal: str | None,
    server: BigQueryServer,
    tmp_path: Path,
) -> None:
    days = [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=8 * i) for i in range(21)]
    values = [d.date() if pa.types.is_date(kind) else str(d) if pa.types.is_string(kind) else d for d in days]
    table = pa.table(
        {
            "row_id": [str(i) for i in range(21)],
            column: pa.array(values, kind),
            "x": [1.0] * 21,
            "y": [True] * 21,
        }
    )
    server.write(NAME, table, since=datetime.datetime(2024, 1, 1, tzinfo=UTC))
    split = {"by": "time", "column": column, "validation_from": cuts[0], "test_from": cuts[1]}
    given = {"features": [{"name": "x", "kind": "numeric"}], "split": split}
    files = open_splits(make_config(write_parquet(table, tmp_path), **given))
    splits, _ = opened(server, **given)
    for ours, theirs in zip(splits.sources, files.sources, strict=True):
        assert keys_of(ours) == keys_of(theirs)
    sent = [request.read_session.read_options.row_restriction for request in server.creates]
    assert any(literal in text for text in sent) if literal else not any(sent)


def test_rows_without_a_moment_are_an_error_as_in_files(server: BigQueryServer) -> None:
    split = {"by": "time", "column": "count", "validation_from": "25"}
    splits, _ = opened(server, split=split)
    with pytest.raises(UserError, match="no value in the split column 'count'"):
        keys_of(splits.train)


def test_values_that_name_no_split_are_an_error_as_in_files(server: BigQueryServer) -> None:
    table = TABLE.set_column(9, "part", pa.array(["training"] * 999 + ["trian"]))
    server.write(NAME, table, since=datetime.datetime(2024, 1, 1, tzinfo=UTC))
    with pytest.raises(UserError, match=r"stream 8 of 8: split column 'part' holds 'trian', expected 'trai"):
        opened(server, split={"by": "column", "column": "part"})


def test_splits_by_paths_are_tables(server: BigQueryServer) -> None:
    server.write("p.d.validation", TABLE.slice(0, 50))
    split = {"by": "paths", "validation_source": "bq://p.d.validation"}
    splits, _ = opened(server, split=split)
    assert len(keys_of(splits.train)) == 989
    assert len(keys_of(splits.validation)) == 49
    same = {"by": "paths", "validation_source": SOURCE}
    with pytest.raises(UserError, match="is in both the train and the validation split"):
        opened(server, split=same)


def test_several_tables_are_read_one_after_the_other(server: BigQueryServer) -> None:
    server.write("p.d.u", TABLE.slice(0, 50))
    split = {"by": "hash", "column": "row_id", "validation_fraction": 0, "test_fraction": 0}
    splits, _ = opened(server, source=[SOURCE, "bigquery://p.d.u"], split=split)
    keys = keys_of(splits.train)
    assert len(keys) == 989 + 49
    assert keys[989:] == keys[:49]


# --- streams ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [1, 4, 10])
@pytest.mark.parametrize("given", [1, 3, 1000])
def test_every_stream_is_read(asked: int, given: int, server: BigQueryServer) -> None:
    blocks = [TABLE.slice(0, 3), TABLE.slice(0, 0), TABLE.slice(3, 5), TABLE.slice(8, 2)]
    server.write(NAME, blocks, since=datetime.datetime(2024, 1, 1, tzinfo=UTC))
    server.most_streams = given
    rows = open_rows(SOURCE, make_config(streams=asked))
    assert sorted(keys_of(rows)) == [f"r{i:05d}" for i in range(10)]
    assert len(rows.units()) == min(asked, given, 4)
    assert rows.count() == 10
    assert sorted(keys_of(rows)) == [f"r{i:05d}" for i in range(10)]  # and again


def test_reading_at_once_is_capped_and_logged(
    server: BigQueryServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server.pause = 0.001
    rows_of(open_rows(SOURCE, make_config(reader_threads=3)))
    assert 1 < server.most_open <= 3
    assert "8 streams, at most 3 of them read at once" in caplog.text


def test_an_empty_table_is_an_error_with_its_name(server: BigQueryServer) -> None:
    server.write("p.d.none", TABLE.slice(0, 0))
    with pytest.raises(UserError, match=r"bigquery://p\.d\.none: no rows"):
        rows_of(open_rows("bigquery://p.d.none", make_config()))
    splits, _ = opened(server, row_restriction="x > 1000")
    with pytest.raises(UserError, match=r"where \(x > 1000\) AND .*: no row is in the train split"):
        rows_of(splits.train)


def test_a_limit_reads_the_first_rows_of_each_split(server: BigQueryServer, tmp_path: Path) -> None:
    files = open_splits(make_config(write_parquet(TABLE, tmp_path), limit_rows=130))
    splits, _ = opened(server, limit_rows=130)
    for ours, theirs in zip(splits.sources, files.sources, strict=True):
        assert ours.count() == theirs.count() == 130
        assert keys_of(ours) == keys_of(theirs)


def test_a_slow_reader_stops_the_server(server: BigQueryServer) -> None:
    wide = pa.table({"row_id": ["k" * 1000] * 200_000, "x": np.zeros(200_000)})
    server.write("p.d.wide", wide)
    server.message_rows = 1000
    config = make_config(features=[{"name": "x", "kind": "numeric"}], chunk_rows=1000, reader_threads=2)
    batches = open_rows("bigquery://p.d.wide", config).batches()
    for _ in range(3):
        next(batches)
    sent = -1
    while sent != server.sent:  # until the server is stopped by what nobody took
        sent = server.sent
        time.sleep(0.5)
    assert sent < 60_000
    batches.close()  # type: ignore[attr-defined]
    for _ in range(100):
        if not server._open:
            break
        time.sleep(0.05)
    assert server._open == 0  # closing ends the calls


# --- columns ----------------------------------------------------------------------------------------


def test_only_the_columns_of_the_config_are_asked_for(server: BigQueryServer) -> None:
    splits, _ = opened(server, split={"by": "column", "column": "part"})
    keys_of(splits.train)
    fields = set(server.creates[-1].read_session.read_options.selected_fields)
    assert fields == {*(f.get("column", f["name"]) for f in FEATURES), "row_id", "y", "part"}


def test_columns_are_found_in_any_case(server: BigQueryServer, tmp_path: Path) -> None:
    features = [{"name": "X", "kind": "numeric"}, {"name": "l", "column": "GEO.Lat", "kind": "numeric"}]
    splits, _ = opened(server, features=features, split={**TIME_SPLIT, "column": "AT"}, key="Row_Id")
    files = open_splits(make_config(write_parquet(TABLE, tmp_path)))
    assert rows_of(splits.train, ["Row_Id", "X", "GEO.Lat"]) == rows_of(
        files.train, ["row_id", "x", "geo.lat"]
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrod", "no column 'wrod'; did you mean 'word'?"),
        ("geo.lta", "did you mean 'geo.lat'?"),
        ("geo", "column 'geo' is STRUCT, where a number is wanted; name one of its fields, such as geo.lat"),
        ("tags", "column 'tags' is ARRAY<STRING>, where a number is wanted; a list is read by the features"),
        (
            "at",
            "column 'at' is TIMESTAMP, where a number is wanted; make a table with a column of another type",
        ),
    ],
)
def test_columns_that_cannot_be_read_are_named_before_reading(
    name: str, message: str, server: BigQueryServer
) -> None:
    with pytest.raises(UserError) as caught:
        opened(server, features=[{"name": "f", "column": name, "kind": "numeric"}])
    assert message in str(caught.value)
    assert str(caught.value).startswith("bigquery://p.d.t: ")
    assert not server.reads


def test_a_missing_split_column_is_named(server: BigQueryServer) -> None:
    with pytest.raises(UserError, match="no column 'day'"):
        opened(server, split={**TIME_SPLIT, "column": "day"})


_LAST = datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)
_TYPES = {
    # type -> (Arrow type, value) and what each kind of column gives: number, integer, text, boolean, time
    "INT64": (pa.int64(), 7, 7.0, 7, "7", UserError, UserError),
    "FLOAT64": (pa.float64(), 12.5, 12.5, UserError, "12.5", UserError, UserError),
    "BOOL": (pa.bool_(), True, 1.0, 1, "true", True, UserError),
    "STRING": (pa.string(), "3", 3.0, 3, "3", UserError, UserError),
    "BYTES": (pa.binary(), b"1", 1.0, 1, "1", True, UserError),
    "NUMERIC": (pa.decimal128(38, 9), decimal.Decimal("12.5"), 12.5, UserError, "12.5", UserError, UserError),
    "BIGNUMERIC": (
        pa.decimal256(76, 38),
        decimal.Decimal("1E-20"),
        1e-20,
        UserError,
        "0.00000000000000000001",
        UserError,
        UserError,
    ),
    "DATE": (
        pa.date32(),
        datetime.date(9999, 12, 31),
        UserError,
        UserError,
        "9999-12-31",
        UserError,
        _LAST.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=UTC),
    ),
    "DATETIME": (
        pa.timestamp("us"),
        _LAST,
        UserError,
        UserError,
        "9999-12-31 23:59:59.999999",
        UserError,
        _LAST.replace(tzinfo=UTC),
    ),
    "TIME": (
        pa.time64("us"),
        datetime.time(1, 2, 3),
        UserError,
        UserError,
        "01:02:03.000000",
        UserError,
        UserError,
    ),
    "TIMESTAMP": (
        pa.timestamp("us", tz="UTC"),
        datetime.datetime(2024, 1, 1, tzinfo=UTC),
        UserError,
        UserError,
        "2024-01-01 00:00:00",
        UserError,
        datetime.datetime(2024, 1, 1, tzinfo=UTC),
    ),
    "JSON": (pa.string(), '{"a":1}', UserError, UserError, '{"a":1}', UserError, UserError),
    "GEOGRAPHY": (pa.string(), "POINT(1 2)", UserError, UserError, "POINT(1 2)", UserError, UserError),
}
_KINDS = ("numeric", "integer", "categorical", "boolean", "datetime")


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("name", _TYPES)
def test_each_type_with_nulls(name: str, kind: str, server: BigQueryServer) -> None:
    arrow, value, *results = _TYPES[name]
    expected = results[_KINDS.index(kind)]
    marked = {b"ARROW:extension:name": f"google:sqlType:{name.lower()}".encode()}
    field = pa.field("c", arrow, metadata=marked if name in ("JSON", "GEOGRAPHY") else None)
    column = pa.array([value, None], arrow)
    schema = pa.schema([field, pa.field("row_id", pa.string())])
    server.write("p.d.types", pa.Table.from_arrays([column, pa.array(["a", "b"])], schema=schema))
    feature = {"name": "c", "kind": kind, **({"size": 9} if kind == "integer" else {})}
    config = make_config(features=[feature])
    rows = open_rows("bigquery://p.d.types", config)
    if expected is UserError:
        with pytest.raises(UserError, match=r"bigquery://p\.d\.types"):
            rows_of(rows, ["c"])
        return
    found = rows_of(rows, ["c"])
    if name == "INT64" and kind == "categorical":
        assert rows.schema.field("c").type == pa.int64()  # integers stay what they are
        expected = 7
    assert found == [(expected,), (None,)]


def test_bytes_that_are_not_text_are_refused_as_text(server: BigQueryServer) -> None:
    server.write("p.d.b", pa.table({"row_id": ["a"], "c": pa.array([b"\x00\xff"], pa.binary())}))
    rows = open_rows("bigquery://p.d.b", make_config(features=[{"name": "c", "kind": "categorical"}]))
    with pytest.raises(UserError, match=r"stream 1 of 1, row 1: column 'c' holds b'\\x00\\xff'"):
        rows_of(rows)


def test_null_is_missing_and_never_a_number(server: BigQueryServer) -> None:
    table = pa.table({"row_id": ["a", "b", "c"], "age": pa.array([30, None, 0]), "y": [True, None, False]})
    server.write("p.d.n", table)
    config = make_config("bigquery://p.d.n", features=[{"name": "age", "kind": "numeric"}])
    assert rows_of(open_rows("bigquery://p.d.n", config)) == [(30.0, "a"), (None, "b"), (0.0, "c")]
    labelled = open_rows("bigquery://p.d.n", config, labelled=True)
    assert rows_of(labelled, ["row_id", "y"]) == [("a", "true"), ("c", "false")]
    assert labelled.counts().missing_label == 1
    strict = config.model_copy(update={"label": config.label.model_copy(update={"missing": "fail"})})
    with pytest.raises(UserError, match=r"bigquery://p\.d\.n, stream 1 of 1, row 2: no label in column 'y'"):
        rows_of(open_rows("bigquery://p.d.n", strict, labelled=True))


def test_bad_values_are_skipped_when_asked(server: BigQueryServer) -> None:
    server.write("p.d.s", pa.table({"row_id": ["a", "b", "c"], "x": ["1", "one", "3"]}))
    config = make_config(features=[{"name": "x", "kind": "numeric"}], on_bad_record="skip")
    rows = open_rows("bigquery://p.d.s", config)
    assert rows_of(rows, ["row_id"]) == [("a",), ("c",)]
    assert rows.counts().bad == 1


# --- what is asked of the service -------------------------------------------------------------------


def test_a_row_restriction_is_passed_on_as_it_is(server: BigQueryServer) -> None:
    text = "word = 'red' AND part != \"test\""
    splits, _ = opened(server, row_restriction=text)
    words = {row[0] for row in rows_of(splits.train, ["word"])}
    assert words == {"red"}
    sent = server.creates[-1].read_session.read_options.row_restriction
    moment = "CAST('2024-01-25 00:00:00.000000+00:00' AS TIMESTAMP)"
    assert sent == f"({text}) AND ((`at` IS NULL OR NOT `at` >= {moment}))"


def test_several_restrictions_are_several_sessions(server: BigQueryServer) -> None:
    everything, _ = opened(server)
    parts, _ = opened(server, row_restriction=["MOD(count, 2) = 0", "MOD(count, 2) = 1", "count IS NULL"])
    assert sorted(keys_of(parts.train)) == sorted(keys_of(everything.train))
    assert sorted(keys_of(parts.test)) == sorted(keys_of(everything.test))


@pytest.mark.parametrize("codec", ["lz4", "zstd", "none"])
def test_compression_is_asked_for(codec: str, server: BigQueryServer) -> None:
    splits, _ = opened(server, compression=codec)
    assert len(keys_of(splits.train)) == 570
    options = server.creates[-1].read_session.read_options.arrow_serialization_options
    assert int(options.buffer_compression) == {"none": 0, "lz4": 1, "zstd": 2}[codec]


def test_a_snapshot_holds_for_the_whole_run(server: BigQueryServer) -> None:
    splits, _ = opened(server)
    before = keys_of(splits.train)
    server.write(NAME, TABLE.slice(0, 5), since=datetime.datetime.now(UTC))
    assert keys_of(splits.train) == before
    assert len(keys_of(splits.validation)) > 0  # its session is opened only now
    early, _ = opened(server, snapshot="2001-01-01")
    assert len(keys_of(early.train)) == len(before)
    with pytest.raises(UserError, match="snapshot='soon' is no moment"):
        opened(server, snapshot="soon")


@pytest.mark.parametrize(
    ("asked", "environ", "expected"),
    [
        (None, {}, "p"),
        (None, {"CLOUD_ML_PROJECT_ID": "123"}, "123"),
        (None, {"CLOUD_ML_PROJECT_ID": "123", "GOOGLE_CLOUD_PROJECT": "mine"}, "mine"),
        ("told", {"GOOGLE_CLOUD_PROJECT": "mine"}, "told"),
    ],
)
def test_who_is_billed(
    asked: str | None,
    environ: dict[str, str],
    expected: str,
    server: BigQueryServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    opened(server, project=asked)[0].train.units()
    assert {request.parent for request in server.creates} == {f"projects/{expected}"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("bigquery://d.t", "expected bigquery://project.dataset.table, got 2 part"),
        ("bigquery://", "got 0 part"),
        ("bigquery://p.d.events_*", "a wildcard table can't be read"),
        ("bigquery://p.d.t$20240101", "a partition can't be read"),
    ],
)
def test_names_that_are_no_tables(source: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("$", r"\$")):
        open_rows(source, make_config())


def test_a_project_with_a_domain_is_a_project() -> None:
    table = bigquery_client.parse_table("bq://example.com:shop.d.t")
    assert table == bigquery_client.Table("example.com:shop", "d", "t")


def test_where_is_left_out_of_a_restriction() -> None:
    with pytest.raises(UserError, match=r"leave the word WHERE out; expected a condition such as 'age > 3'"):
        open_rows(SOURCE, make_config(row_restriction="WHERE age > 3"))


def test_missing_credentials_name_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (bigquery_client.EMULATOR, "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(UserError) as caught:
        open_rows(SOURCE, make_config()).units()
    assert "GOOGLE_APPLICATION_CREDENTIALS (not set)" in str(caught.value)
    assert f"{tmp_path}/application_default_credentials.json (not there)" in str(caught.value)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(UserError, match=r"none\.json"):
        open_rows(SOURCE, make_config()).units()
