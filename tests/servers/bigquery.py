"""A local server that speaks the protocol of the BigQuery Storage Read API. Adopters: use it in your tests.

    python -m tests.servers.bigquery data/flights/*.parquet --port 9050
    python -m tests.servers.bigquery data/flights/*.parquet -- python -m trainer train --config ...

The first serves Parquet files until it is interrupted, the second as long as the command runs. Each folder is
one table, local.<folder above>.<folder>, here bigquery://local.data.flights, and each file a block of rows
that no stream cuts. The trainer reads from here when BIGQUERY_STORAGE_EMULATOR_HOST=localhost:9050 is set.

CreateReadSession and ReadRows (version 1, Arrow) over real gRPC: selected fields, row filters, snapshots,
several streams, offsets, LZ4 and ZSTD, sessions that expire, and errors on demand (`bigquery_faults.py`). The
retired version 1beta1, which the reader of tensorflow-io calls, is answered too (`bigquery_v1beta1.py`).
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
from google.cloud.bigquery_storage_v1 import types

from tests.servers import bigquery_filter, bigquery_tables, bigquery_v1beta1
from tests.servers.bigquery_faults import Fault, Faults, answer
from tests.servers.bigquery_tables import StoredTable, blocks_of

_SERVICE = "google.cloud.bigquery.storage.v1.BigQueryRead"
_TABLE = re.compile(r"^projects/([^/]+)/datasets/([^/]+)/tables/([^/]+)$")
_CODECS = {0: None, 1: "lz4", 2: "zstd"}
_ROWS = types.ReadRowsResponse.pb(types.ReadRowsResponse()).__class__
_UTC = datetime.timezone.utc


@dataclass
class Session:
    """An open session: the rows of each stream, and how they become responses."""

    name: str
    schema: pa.Schema
    streams: list[list[pa.Table]]
    expires: datetime.datetime
    rows: int
    encode: Callable[[pa.Table], bytes]
    encoded: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)


class BigQueryServer:
    """The server, in threads of this process; `with` starts and stops it.

    Attributes:
        address: host:port, once it is started.
        faults: what goes wrong.
        creates: the CreateReadSession requests so far.
        reads: (stream number, offset) of the ReadRows requests so far.
        sent: rows sent so far.
        most_open: most streams that were being read at once.
        session_seconds: life of new sessions.
        most_streams: most streams of new sessions, however many are asked for.
        message_rows: rows of a response.
        pause: seconds between two responses.
    """

    def __init__(
        self,
        tables: Mapping[str, pa.Table | Sequence[pa.Table]] | None = None,
        *,
        message_rows: int = 4096,
        block_rows: int = 10_000,
        keep_encoded: bool = False,
        workers: int = 64,
    ) -> None:
        """Makes a server.

        Args:
            tables: "project.dataset.table" -> rows; a sequence of tables is taken as the table's blocks.
            message_rows: rows of a response.
            block_rows: rows of a block of tables that come whole.
            keep_encoded: whether responses are kept, so that reading again costs the server nothing.
            workers: calls that can run at once.
        """
        self.tables: dict[str, StoredTable] = {}
        self.faults = Faults()
        self.creates: list[Any] = []
        self.reads: list[tuple[int, int]] = []
        self.sent = 0
        self.most_open = 0
        self.session_seconds = 6 * 3600.0
        self.most_streams = 1000
        self.message_rows = message_rows
        self.pause = 0.0
        self.address = ""
        self._block_rows = block_rows
        self._keep_encoded = keep_encoded
        self._workers = workers
        self._open = 0
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()
        for name, rows in (tables or {}).items():
            self.write(name, rows)

    def write(
        self,
        name: str,
        rows: pa.Table | Sequence[pa.Table],
        since: datetime.datetime = bigquery_tables.LONG_AGO,
    ) -> None:
        """Makes a table, or replaces its rows from a moment on."""
        blocks = blocks_of(rows, self._block_rows) if isinstance(rows, pa.Table) else list(rows)
        self.tables.setdefault(name, StoredTable()).write(blocks, since)

    def replace(self, name: str, rows: pa.Table) -> None:
        """Puts other rows in the place of a table, its past included, and ends the life of all sessions."""
        table = StoredTable()
        table.write(blocks_of(rows, self._block_rows))
        self.tables[name] = table
        self.expire()

    def expire(self) -> None:
        """Ends the life of all sessions."""
        with self._lock:
            for session in self._sessions.values():
                session.expires = datetime.datetime.now(_UTC) - datetime.timedelta(seconds=1)

    # --- life

    def start(self, port: int = 0) -> BigQueryServer:
        """Starts to answer on a port of the loopback interface; 0 finds a free one."""
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self._server = grpc.server(futures.ThreadPoolExecutor(self._workers), options=options)
        handlers = {
            "CreateReadSession": grpc.unary_unary_rpc_method_handler(
                self._create, types.CreateReadSessionRequest.deserialize, types.ReadSession.serialize
            ),
            "ReadRows": grpc.unary_stream_rpc_method_handler(
                self._read, types.ReadRowsRequest.deserialize, None
            ),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        self._server.add_generic_rpc_handlers((bigquery_v1beta1.handler(self),))
        bound = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"localhost:{bound}"
        self._server.start()
        return self

    def stop(self) -> None:
        """Ends all calls and closes the port."""
        self._server.stop(None).wait()

    def __enter__(self) -> BigQueryServer:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # --- CreateReadSession

    def _create(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            self.creates.append(request)
        fault = self.faults.take_create()
        if fault is not None:
            answer(context, fault)
        asked = request.read_session
        match = _TABLE.match(asked.table)
        if match is None or not re.match(r"^projects/[^/]+$", request.parent):
            refuse(
                context, grpc.StatusCode.INVALID_ARGUMENT, f"request failed: Malformed name {asked.table!r}"
            )
        name = ".".join(match.groups())
        if asked.data_format != types.DataFormat.ARROW:
            refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "request failed: only ARROW is served here")
        if request.max_stream_count and request.preferred_min_stream_count > request.max_stream_count:
            refuse(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                "request failed: preferred_min_stream_count must be at most max_stream_count",
            )
        moment = None
        if "snapshot_time" in asked.table_modifiers:
            moment = asked.table_modifiers.snapshot_time
        options = asked.read_options
        codec = _CODECS[int(options.arrow_serialization_options.buffer_compression)]
        session = self.open(
            request.parent,
            name,
            list(options.selected_fields),
            options.row_restriction,
            request.max_stream_count,
            functools.partial(encoded, codec=codec),
            context,
            moment,
        )
        schema = session.schema.serialize().to_pybytes()
        return types.ReadSession(
            name=session.name,
            table=asked.table,
            expire_time=session.expires,
            data_format=types.DataFormat.ARROW,
            arrow_schema=types.ArrowSchema(serialized_schema=schema),
            streams=[
                types.ReadStream(name=f"{session.name}/streams/{i}") for i in range(len(session.streams))
            ],
            estimated_row_count=session.rows,
            read_options=options,
        )

    def open(
        self,
        parent: str,
        table: str,
        fields: Sequence[str],
        restriction: str,
        most: int,
        encode: Callable[[pa.Table], bytes],
        context: grpc.ServicerContext,
        moment: datetime.datetime | None = None,
    ) -> Session:
        """Opens a session, or ends the call with what is wrong.

        Args:
            parent: "projects/..." that is billed.
            table: "project.dataset.table".
            fields: columns; none: all.
            restriction: row filter.
            most: most streams; 0: as many as there are blocks.
            encode: rows -> response.
            context: the call.
            moment: as of which the table is read; None: now.
        """
        stored = self.tables.get(table)
        if stored is None:
            refuse(context, grpc.StatusCode.NOT_FOUND, f"request failed: Not found: Table {table}")
        if stored.kind != "TABLE":
            refuse(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                "request failed: non-table entities cannot be read with the storage API; "
                f"Table '{table}' Type '{stored.kind}'",
            )
        version = stored.at(moment)
        if version is None:
            refuse(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                f"request failed: Invalid snapshot time {moment} for table {table}",
            )
        try:
            blocks = [bigquery_filter.apply(block, restriction) for block in version.blocks]
        except bigquery_filter.FilterError as error:
            refuse(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                f"request failed: Row filter for table {table} is invalid. Filter is '{restriction}'; "
                f"{error}",
            )
        try:
            blocks = [bigquery_tables.select(block, fields) for block in blocks]
        except KeyError as error:
            refuse(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                "request failed: The following selected fields do not exist in the table schema: "
                f"{error.args[0]}",
            )
        rows = sum(block.num_rows for block in version.blocks)
        streams = _dealt(blocks, min(most or 1000, self.most_streams)) if rows else []
        with self._lock:
            number = len(self._sessions)
            name = f"{parent}/locations/us/sessions/s{number}"
            expires = datetime.datetime.now(_UTC) + datetime.timedelta(seconds=self.session_seconds)
            made = Session(name, blocks[0].schema, streams, expires, rows, encode)
            self._sessions[name] = made
        return made

    # --- ReadRows

    def _read(self, request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        first = True
        for session, message in self.responses(request.read_stream, request.offset, context):
            if first:  # it brings the schema along
                response = _ROWS.FromString(message)
                response.arrow_schema.serialized_schema = session.schema.serialize().to_pybytes()
                message, first = response.SerializeToString(), False
            yield message

    def responses(
        self, name: str, offset: int, context: grpc.ServicerContext
    ) -> Iterator[tuple[Session, bytes]]:
        """Yields the responses of a stream from a row on, and the faults that are planned for it."""
        about = f"there was an error operating on '{name}'"
        name, _, number = name.rpartition("/streams/")
        session = self._sessions.get(name)
        if session is None or not number.isdigit() or int(number) >= len(session.streams):
            refuse(context, grpc.StatusCode.NOT_FOUND, f"{about}: not found")
        stream = int(number)
        with self._lock:
            self.reads.append((stream, offset))
            self._open += 1
            self.most_open = max(self.most_open, self._open)
        try:
            for message in self._responses(session, stream, offset, about, context):
                yield session, message
        finally:
            with self._lock:
                self._open -= 1

    def _responses(
        self, session: Session, stream: int, offset: int, about: str, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        total = sum(block.num_rows for block in session.streams[stream])
        while True:
            fault = self.faults.take_read(stream, offset)
            if fault is not None:
                self._fail(fault, context)
            if session.expires <= datetime.datetime.now(_UTC):
                refuse(
                    context,
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"{about}: session expired at {session.expires.isoformat()}",
                )
            if offset >= total:
                return
            stop = self.faults.next_stop(stream, offset)
            rows, message = self._message(session, stream, offset, stop)
            yield message
            offset += rows
            with self._lock:
                self.sent += rows
            if self.pause:
                time.sleep(self.pause)

    @staticmethod
    def _fail(fault: Fault, context: grpc.ServicerContext) -> None:
        if fault.stall:
            while context.is_active():
                time.sleep(0.01)
        answer(context, fault)

    def _message(self, session: Session, stream: int, offset: int, stop: int | None) -> tuple[int, bytes]:
        """Returns the response from a row of a stream on, and its number of rows."""
        whole = stop is None or stop >= offset + self.message_rows
        if self._keep_encoded and whole and offset % self.message_rows == 0:
            with self._lock:
                known = session.encoded.get(stream)
            if known is None:
                known = list(_messages(session, stream, self.message_rows))
                with self._lock:
                    session.encoded[stream] = known
            return known[offset // self.message_rows]
        rows = self.message_rows if stop is None else min(self.message_rows, stop - offset)
        table = pa.concat_tables(session.streams[stream]).slice(offset, rows)
        return table.num_rows, session.encode(table)


def refuse(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    """Ends a call with an error."""
    context.abort(code, text)
    raise AssertionError("abort raises")


def _dealt(blocks: list[pa.Table], most: int) -> list[list[pa.Table]]:
    """Deals blocks, in order, to at most `most` streams."""
    count = min(most, len(blocks))
    cuts = [len(blocks) * i // count for i in range(count + 1)]
    return [blocks[low:high] for low, high in itertools.pairwise(cuts)]


def _messages(session: Session, stream: int, rows: int) -> Iterator[tuple[int, bytes]]:
    table = pa.concat_tables(session.streams[stream])
    for start in range(0, table.num_rows, rows):
        part = table.slice(start, rows)
        yield part.num_rows, session.encode(part)


def encoded(table: pa.Table, codec: str | None) -> bytes:
    """Returns the rows of a table as one ReadRowsResponse."""
    batch = table.combine_chunks().to_batches()[0]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # the schema
    response = _ROWS(row_count=batch.num_rows)
    response.arrow_record_batch.serialized_record_batch = reader.read_next_message().serialize().to_pybytes()
    response.stats.progress.at_response_end = 0.5
    return response.SerializeToString()  # type: ignore[no-any-return]


# --- by hand ----------------------------------------------------------------------------------------


def from_files(paths: Sequence[str]) -> dict[str, list[pa.Table]]:
    """Reads Parquet files: each folder a table, each file a block."""
    tables: dict[str, list[pa.Table]] = {}
    for path in sorted(paths):
        folder = os.path.dirname(os.path.abspath(path))
        name = f"local.{os.path.basename(os.path.dirname(folder)) or 'root'}.{os.path.basename(folder)}"
        tables.setdefault(name, []).append(pq.read_table(path))
    return tables


def main(argv: Sequence[str]) -> int:
    """Serves Parquet files by hand, or while a command runs.

    Returns:
        The exit status of the command.
    """
    argv = list(argv)
    command: list[str] = []
    if "--" in argv:
        place = argv.index("--")
        argv, command = argv[:place], argv[place + 1 :]
    parser = argparse.ArgumentParser(prog="python -m tests.servers.bigquery", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="+", help="Parquet files")
    parser.add_argument("--port", type=int, default=0, help="port on this machine; default: a free one")
    args = parser.parse_args(argv)
    tables = from_files(args.files)
    server = BigQueryServer(tables).start(args.port)
    try:
        for name, blocks in tables.items():
            print(f"bigquery://{name}: {sum(block.num_rows for block in blocks):,} rows", flush=True)
        print(f"export BIGQUERY_STORAGE_EMULATOR_HOST={server.address}", flush=True)
        if command:
            environ = {**os.environ, "BIGQUERY_STORAGE_EMULATOR_HOST": server.address}
            return subprocess.run(command, env=environ, check=False).returncode
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
