"""The streams of BigQuery tables, in the shape in which files are read. Adopters: leave."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trainer import environment
from trainer.config import QUERY_SOURCE, Config
from trainer.data import bigquery_columns, bigquery_query, nested
from trainer.data.bigquery_client import Client, Table, billing_project, parse_table
from trainer.data.bigquery_ledger import Ledger
from trainer.data.bigquery_session import Request, Session, least_streams, snapshot
from trainer.data.bigquery_stream import ExpiredError, Patience, batches
from trainer.data.checks import BadRecords
from trainer.data.source import Wanted
from trainer.data.split import Splitter
from trainer.errors import UserError

if TYPE_CHECKING:
    _once = functools.cached_property
else:

    class _once:  # noqa: N801 - used as a decorator
        """`functools.cached_property` without its lock, which all instances share before Python 3.12: threads
        with one instance each could wait for each other for ever."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self._function, self._name, self.__doc__ = function, function.__name__, function.__doc__

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._function(instance)
            return value


class RecutError(Exception):
    """A session was renewed, and its streams no longer hold the rows that they held."""


@dataclass(frozen=True)
class Stream:
    """A stream of a session, in the place of a file.

    Attributes:
        session: its session.
        number: its number in the session.
        path: what messages call it.
        partitions: none; files may have some.
    """

    session: Session
    number: int
    path: str
    partitions: tuple[tuple[str, str | None], ...] = ()

    @property
    def name(self) -> str:
        """Its name in the session of now."""
        return self.session.opened.streams[self.number]

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return self.session.opened.schema


class Connection:
    """What the tables of a run share."""

    def __init__(self, config: Config, ledger: Ledger) -> None:
        self.config = config
        self.ledger = ledger
        self.client = Client(config.data.reader_threads)
        self.patience = Patience(config.data.retry_seconds)


def _table(source: str, connection: Connection) -> Table:
    """Returns the table that a source names; the one of a query's result where it is that."""
    data = connection.config.data
    if source != QUERY_SOURCE or data.query is None:
        return parse_table(source)
    return bigquery_query.result_of(data.query, data.project, connection.ledger, connection.patience)


class TableFiles:
    """The rows of tables, or those that a filter leaves, as one list of streams.

    Has what `rows.FileSource` needs of its files. Opens its sessions when they are first needed. Safe to use
    from threads.
    """

    format = "bigquery"
    texts = ("",)

    def __init__(self, sources: Sequence[str], asked: Wanted, connection: Connection) -> None:
        self.tables = list(dict.fromkeys(_table(source, connection) for source in sources))
        self.asked = asked
        self.connection = connection
        data = connection.config.data
        self.data = data
        self.bad = BadRecords(skip=data.on_bad_record == "skip", limit=data.max_bad_records)
        self._by: str | None = None
        self._filters: dict[Table, str] = {}
        self._user_filters = bigquery_columns.user_filters(data.row_restriction)
        self._lock = threading.RLock()
        self._sessions: list[Session] | None = None
        self._listed: tuple[list[str], list[Stream]] = ([], [])

    # --- columns

    @_once
    def schemas(self) -> dict[Table, pa.Schema]:
        """All columns of each table, asked for once in a run."""
        found = {}
        for table in self.tables:
            request = self._request(table, (), "", most=1)
            found[table] = Session(
                self.connection.client,
                request,
                self.connection.ledger,
                self.connection.patience,
                kept_schema=True,
            ).opened.schema
        return found

    @_once
    def columns_of(self) -> dict[Table, dict[str, bigquery_columns.Column]]:
        """The columns to read, of each table."""
        names = list(dict.fromkeys([*self.asked.types, *([self._by] if self._by else [])]))
        return {table: bigquery_columns.find(names, schema, table) for table, schema in self.schemas.items()}

    @_once
    def types(self) -> dict[str, pa.DataType]:
        """The type of each wanted column.

        Raises:
            UserError: a column isn't there, or is of a type from which the wanted one can't be made.
        """
        first, *others = self.tables
        types = bigquery_columns.resolve(self.asked, self.columns_of[first], first)
        for table in others:
            here = bigquery_columns.resolve(self.asked, self.columns_of[table], table)
            for name, kind in here.items():
                if kind != types[name]:  # an integer in one table and no integer in another: as text
                    types[name] = self.asked.types[name]
        return types

    def columns(self, index: int) -> dict[str, pa.DataType]:
        """Returns the stored type of each column of a stream's table."""
        known = self.columns_of[self.files[index].session.request.table]
        return {name: column.kind for name, column in known.items()}

    # --- splits

    def split(self, splitter: Splitter, code: int) -> TableFiles:
        """Returns the tables with a filter for one split; these themselves where the client has to split."""
        _ = self.types  # a missing feature column is named before a missing split column
        made = type(self)([str(table) for table in self.tables], self.asked, self.connection)
        made.__dict__["schemas"] = self.schemas  # what the cached property would ask for again
        made._by = splitter.column
        config = self.data.split
        made._filters = {
            table: bigquery_columns.split_filter(config, code, columns[splitter.column])
            for table, columns in made.columns_of.items()
        }
        if any(made._filters.values()):
            return made
        with self._lock:
            if self._by is None:  # the splits share the sessions, and the records that were skipped
                self._by = splitter.column
                self.__dict__.pop("columns_of", None)
            return self

    # --- sessions and streams

    def _request(self, table: Table, fields: tuple[str, ...], restriction: str, most: int) -> Request:
        data, service = self.data, environment.service()
        return Request(
            table,
            fields,
            restriction,
            most,
            least_streams(data.reader_threads, service.workers),
            data.compression,
            snapshot(data.snapshot, table, self.connection.ledger),
            billing_project(data.project, table),
        )

    @property
    def sessions(self) -> list[Session]:
        """The sessions, one a table and filter."""
        with self._lock:
            if self._sessions is None:
                _ = self.types
                made = []
                for table in self.tables:
                    fields = tuple(dict.fromkeys(c.stored for c in self.columns_of[table].values()))
                    for text in self._user_filters:
                        restriction = bigquery_columns.joined(text, self._filters.get(table, ""))
                        request = self._request(table, fields, restriction, self.data.streams)
                        made.append(
                            Session(
                                self.connection.client,
                                request,
                                self.connection.ledger,
                                self.connection.patience,
                                followed=environment.service().workers > 1,
                            )
                        )
                self._sessions = made
            return self._sessions

    @property
    def generation(self) -> int:
        """Grows each time that the streams no longer hold the rows that they held."""
        return sum(session.opened.generation for session in self.sessions)

    @property
    def streams(self) -> int:
        """Number of streams of all sessions."""
        return sum(len(session.opened.streams) for session in self.sessions)

    @property
    def files(self) -> list[Stream]:
        """The streams of all sessions, in order.

        Where a session was renewed with fewer streams, the last ones of its predecessor stay behind them:
        rows that were read from those may still be on their way.
        """
        with self._lock:
            names = [session.opened.name for session in self.sessions]
            if self._listed[0] != names:
                now = [
                    Stream(session, number, session.describe(number))
                    for session in self.sessions
                    for number in range(len(session.opened.streams))
                ]
                self._listed = (names, now + self._listed[1][len(now) :])
            return self._listed[1]

    def save(self) -> None:
        """Writes what is known of the sessions."""
        for session in self.sessions:
            session.save()

    def locate(self, file: int, row: int) -> str:
        """Names a row for a person."""
        return f"{self.files[file].path}, row {row + 1:,}"

    def read(
        self, stream: Stream, offset: int, need: Sequence[str], generation: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (offset of the first row, columns) of a stream, in pieces up to multiples of chunk_rows.

        Small messages are put together: so pieces, and with them all that is summed up over them, don't
        depend on how the service cut its messages.

        Args:
            stream: the stream.
            offset: rows to leave out.
            need: columns, as the config spells them; at least one.
            generation: of the streams, when `stream` was looked up.

        Raises:
            RecutError: the session expired, and its successor's streams hold other rows.
            UserError: the stream can't be read.
        """
        columns = self.columns_of[stream.session.request.table]
        stored = [columns[name].stored for name in need]
        chunk = self.data.chunk_rows
        waiting: list[pa.RecordBatch] = []
        start, end = offset, offset
        schema: pa.Schema | None = None
        for _, message in self._messages(stream, offset, generation):
            if schema is not stream.schema:
                schema = stream.schema
                take = _taker(schema, stored, list(need))
            rest = take(message)
            while rest.num_rows:
                room = (start // chunk + 1) * chunk - end
                piece, rest = rest.slice(0, room), rest.slice(room)
                waiting.append(piece)
                end += piece.num_rows
                if piece.num_rows == room:
                    yield start, _together(waiting)
                    waiting, start = [], end
        if waiting:
            yield start, _together(waiting)

    def _messages(self, stream: Stream, offset: int, generation: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields a stream's messages; goes on in a new session where that has the same streams."""
        session, client, patience = stream.session, self.connection.client, self.connection.patience
        failed = session.failed(stream.number)
        note = offset == 0
        while True:
            if self.generation != generation:
                raise RecutError
            name = session.opened.name
            try:
                for first, batch in batches(client, stream, offset, patience, failed, stream.path):
                    if note:
                        session.note_first(stream.number, batch)
                        note = False
                    yield first, batch
                    offset = first + batch.num_rows
                if note:
                    session.note_first(stream.number, None)
                return
            except ExpiredError:
                session.renew(name)


def _taker(
    schema: pa.Schema, stored: Sequence[str], names: list[str]
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Returns what takes columns out of batches of a schema, and names them.

    Looking names up in each of thousands of messages takes as long as decoding them.
    """
    plain = {name: place for place, name in enumerate(schema.names)}
    places = [plain.get(name) for name in stored]
    fields = [nested.column(pa.RecordBatch.from_pylist([], schema), name).type for name in stored]
    made = pa.schema(list(zip(names, fields, strict=True)))

    def take(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            nested.column(batch, name) if place is None else batch.column(place)
            for name, place in zip(stored, places, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=made)

    return take


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    parts = pa.Table.from_batches(batches).combine_chunks().to_batches()
    if len(parts) > 1:
        raise UserError("data.chunk_rows: a column's texts of so many rows exceed 2 GB; make it smaller")
    return parts[0]
