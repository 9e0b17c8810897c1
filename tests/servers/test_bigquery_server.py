"""The local BigQuery server, seen through the official client."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud.bigquery_storage_v1 import BigQueryReadClient, types
from google.cloud.bigquery_storage_v1.services.big_query_read.transports import BigQueryReadGrpcTransport

from tests.servers import bigquery_filter
from tests.servers.bigquery import BigQueryServer, from_files
from tests.servers.bigquery_faults import Fault

ROOT = Path(__file__).parents[2]
UTC = datetime.timezone.utc
ROWS = pa.table(
    {
        "Id": pa.array(range(100)),
        "day": pa.array([datetime.date(2024, 1, 1) + datetime.timedelta(days=i) for i in range(100)]),
        "at": pa.array(
            [datetime.datetime(2024, 1, 1, tzinfo=UTC) + datetime.timedelta(hours=i) for i in range(100)],
            pa.timestamp("us", tz="UTC"),
        ),
        "x": pa.array([None if i % 10 == 0 else i / 2 for i in range(100)]),
        "word": pa.array([("a'b", "c", None)[i % 3] for i in range(100)]),
        "geo": pa.array([{"lat": float(i), "lon": -float(i)} for i in range(100)]),
    }
)


@pytest.fixture
def server() -> Iterator[BigQueryServer]:
    with BigQueryServer({"p.d.t": ROWS}, message_rows=7, block_rows=25) as started:
        yield started


def client(server: BigQueryServer) -> BigQueryReadClient:
    channel = grpc.insecure_channel(server.address, options=[("grpc.enable_http_proxy", 0)])
    return BigQueryReadClient(
        transport=BigQueryReadGrpcTransport(channel=channel, credentials=AnonymousCredentials())
    )


def session(
    server: BigQueryServer, table: str = "projects/p/datasets/d/tables/t", streams: int = 1, **options: object
) -> tuple[BigQueryReadClient, types.ReadSession]:
    official = client(server)
    modifiers = options.pop("table_modifiers", None)
    made = official.create_read_session(
        parent="projects/billed",
        read_session=types.ReadSession(
            table=table,
            data_format=types.DataFormat.ARROW,
            read_options=types.ReadSession.TableReadOptions(**options),
            table_modifiers=modifiers,
        ),
        max_stream_count=streams,
        retry=None,
    )
    return official, made


def rows(server: BigQueryServer, **options: object) -> pa.Table:
    official, made = session(server, **options)  # type: ignore[arg-type]
    parts = [official.read_rows(stream.name).to_arrow(made) for stream in made.streams]
    return pa.concat_tables(parts)


def test_the_official_client_reads_every_row_once(server: BigQueryServer) -> None:
    for streams in (1, 2, 4, 9):
        read = rows(server, streams=streams)
        assert read.column("Id").to_pylist() == list(range(100))
        assert read.column("geo").to_pylist() == ROWS.column("geo").to_pylist()
    assert len({number for number, _ in server.reads}) == 4  # blocks are not cut


@pytest.mark.parametrize("codec", [1, 2])
def test_buffers_are_compressed_when_asked(server: BigQueryServer, codec: int) -> None:
    options = types.ArrowSerializationOptions(buffer_compression=codec)
    assert rows(server, arrow_serialization_options=options).equals(rows(server))


def test_selected_fields_come_in_the_order_of_the_table(server: BigQueryServer) -> None:
    read = rows(server, selected_fields=["geo.lon", "ID"])
    assert read.column_names == ["Id", "geo"]
    assert read.column("geo").to_pylist()[3] == {"lon": -3.0}
    with pytest.raises(exceptions.InvalidArgument, match="nothing"):
        rows(server, selected_fields=["nothing"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id >= 97", [97, 98, 99]),
        ("Id < 3 AND x IS NOT NULL", [1, 2]),
        ("Id < 3 and (x IS NULL OR Id = 2)", [0, 2]),
        ("NOT Id < 98", [98, 99]),
        ("Id IN (4, 5, -1)", [4, 5]),
        ("Id BETWEEN 10 AND 11", [10, 11]),
        ("MOD(Id, 50) = 1", [1, 51]),
        ("day >= CAST('2024-04-08' AS DATE)", [98, 99]),
        ("day >= '2024-04-08'", [98, 99]),
        ("day < DATE '2024-01-02'", [0]),
        ("at < CAST('2024-01-01 02:00:00+00:00' AS TIMESTAMP)", [0, 1]),
        ("`word` = 'a\\'b' AND Id < 5", [0, 3]),
        ('word = "c" AND Id < 5', [1, 4]),
        ("geo.lat >= 98.5", [99]),
        ("x > 49", [99]),  # NULL is not greater than anything
        ("NOT x > 49 AND Id > 97", [98]),  # nor not greater: 90 and 100 are NULL
        ("TRUE AND Id = 7", [7]),
    ],
)
def test_filters_mean_what_sql_says(server: BigQueryServer, text: str, expected: list[int]) -> None:
    assert rows(server, row_restriction=text).column("Id").to_pylist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "WHERE Id > 3",
        "Id IN (SELECT 1)",
        "Id >",
        "unknown = 1",
        "Id",
        "day > 'soon'",
        "SUM(Id) = 3",
        "Id ? 3",
    ],
)
def test_other_filters_are_refused(server: BigQueryServer, text: str) -> None:
    with pytest.raises(exceptions.InvalidArgument, match="Row filter"):
        rows(server, row_restriction=text)


def test_a_filter_of_an_unknown_column_is_an_error_of_the_filter() -> None:
    with pytest.raises(bigquery_filter.FilterError, match="Unrecognized name"):
        bigquery_filter.apply(ROWS, "idd = 3")


def test_offsets_begin_inside_messages_and_blocks(server: BigQueryServer) -> None:
    official, made = session(server)
    read = official.read_rows(made.streams[0].name, offset=31).to_arrow(made)
    assert read.column("Id").to_pylist() == list(range(31, 100))


def test_a_snapshot_is_the_table_of_that_moment(server: BigQueryServer) -> None:
    server.write("p.d.t", ROWS.slice(0, 5), since=datetime.datetime(2024, 6, 1, tzinfo=UTC))
    assert rows(server).num_rows == 5
    early = types.ReadSession.TableModifiers(snapshot_time=datetime.datetime(2024, 5, 1, tzinfo=UTC))
    assert rows(server, table_modifiers=early).num_rows == 100
    never = types.ReadSession.TableModifiers(snapshot_time=datetime.datetime(1999, 5, 1, tzinfo=UTC))
    with pytest.raises(exceptions.InvalidArgument, match="snapshot"):
        rows(server, table_modifiers=never)


def test_faults_happen_where_they_are_planned(server: BigQueryServer) -> None:
    server.faults.add(Fault(after_row=10), Fault(after_row=10))
    read = rows(server)  # the official client resumes
    assert read.column("Id").to_pylist() == list(range(100))
    assert server.reads == [(0, 0), (0, 10), (0, 10)]
    assert len(server.faults.happened) == 2
    server.faults.add(Fault(grpc.StatusCode.PERMISSION_DENIED, "no", at="create"))
    with pytest.raises(exceptions.PermissionDenied):
        rows(server)
    server.faults.add(Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", after_row=3, retry_delay=0.05))
    assert rows(server).num_rows == 100  # the official client resumes only as it was told how long to wait


def test_what_is_not_there_is_not_found(server: BigQueryServer) -> None:
    with pytest.raises(exceptions.NotFound, match=r"p\.d\.u"):
        session(server, table="projects/p/datasets/d/tables/u")
    official, made = session(server)
    with pytest.raises(exceptions.NotFound):
        next(iter(official.read_rows(f"{made.name}/streams/8")))


def test_views_and_expired_sessions_are_refused(server: BigQueryServer) -> None:
    official, made = session(server)
    server.expire()
    with pytest.raises(exceptions.FailedPrecondition, match="session expired at"):
        official.read_rows(made.streams[0].name).to_arrow(made)
    server.tables["p.d.t"].kind = "VIEW"
    with pytest.raises(exceptions.InvalidArgument, match="non-table entities"):
        session(server)


def test_an_empty_table_has_no_streams() -> None:
    with BigQueryServer({"p.d.t": ROWS.slice(0, 0)}) as server:
        assert not session(server)[1].streams


def test_files_become_tables_by_their_folders(tmp_path: Path) -> None:
    folder = tmp_path / "shop" / "sales"
    folder.mkdir(parents=True)
    for month in (1, 2):
        pq.write_table(ROWS.slice(10 * month, 10), folder / f"{month}.parquet")
    tables = from_files([str(path) for path in folder.iterdir()])
    assert [block.num_rows for block in tables["local.shop.sales"]] == [10, 10]


def test_a_command_runs_against_the_server(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    pq.write_table(ROWS, tmp_path / "d" / "t.parquet")
    code = "import os, sys; print(os.environ['BIGQUERY_STORAGE_EMULATOR_HOST']); sys.exit(3)"
    serve = [sys.executable, "-m", "tests.servers.bigquery", str(tmp_path / "d" / "t.parquet")]
    done = subprocess.run(
        [*serve, "--", sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert ".d: 100 rows" in done.stdout
    assert done.stdout.count("localhost:") == 2
