"""BigQuery read sessions: opened once, kept in a file of the run, renewed when expired. Adopters: leave."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from trainer.data.bigquery_client import CallError, Client, Table, explain
from trainer.data.bigquery_ledger import Ledger
from trainer.data.bigquery_stream import Patience, first_rows
from trainer.errors import UserError

_LOG = logging.getLogger("trainer")
_UTC = datetime.timezone.utc
_SPARE = datetime.timedelta(minutes=5)  # a session with less life left than this isn't taken up again
_RETRY_SECONDS = 10.0  # least time between two renewals
_LOCAL_SECONDS = 20.0  # a local server that isn't there won't come by itself


@dataclass(frozen=True)
class Request:
    """What a session is asked for.

    Attributes:
        table: the table.
        fields: selected fields; () for all.
        restriction: row filter, or "".
        most: most streams; 0 lets the service choose.
        least: streams that would be good to have.
        codec: how Arrow buffers are compressed: "lz4", "zstd" or "none".
        snapshot: the moment as of which the table is read.
        billing: the project that is billed.
    """

    table: Table
    fields: tuple[str, ...]
    restriction: str
    most: int
    least: int
    codec: str
    snapshot: datetime.datetime
    billing: str

    @property
    def key(self) -> str:
        """The name of such a session in the ledger."""
        about = [str(self.table), sorted(self.fields), self.restriction, self.most, self.snapshot.isoformat()]
        text = json.dumps(about)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def message(self) -> Any:
        """Returns the CreateReadSessionRequest."""
        from google.cloud.bigquery_storage_v1 import types

        codecs = types.ArrowSerializationOptions.CompressionCodec
        codec = {"lz4": codecs.LZ4_FRAME, "zstd": codecs.ZSTD}.get(self.codec, codecs.COMPRESSION_UNSPECIFIED)
        options = types.ReadSession.TableReadOptions(
            selected_fields=list(self.fields),
            row_restriction=self.restriction,
            arrow_serialization_options=types.ArrowSerializationOptions(buffer_compression=codec),
        )
        session = types.ReadSession(
            table=self.table.path,
            data_format=types.DataFormat.ARROW,
            read_options=options,
            table_modifiers=types.ReadSession.TableModifiers(snapshot_time=self.snapshot),
        )
        return types.CreateReadSessionRequest(
            parent=f"projects/{self.billing}",
            read_session=session,
            max_stream_count=self.most,
            preferred_min_stream_count=min(self.least, self.most) if self.most else self.least,
        )


@dataclass
class Opened:
    """A session as the service gave it.

    Attributes:
        name: its name.
        streams: names of its streams.
        expires: end of its life.
        schema: columns of its rows.
        rows: number of rows of the table, as estimated.
        first: hash of the first rows of each stream, where they were read, else None.
        generation: how often a run's session was replaced by one that cuts the table otherwise.
    """

    name: str
    streams: list[str]
    expires: datetime.datetime
    schema: pa.Schema
    rows: int
    first: list[str | None] = field(default_factory=list)
    generation: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Returns the session for the ledger."""
        return {
            "name": self.name,
            "streams": self.streams,
            "expires": self.expires.isoformat(),
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "rows": self.rows,
            "first": self.first,
            "generation": self.generation,
        }

    @classmethod
    def from_dict(cls, entry: dict[str, Any]) -> Opened:
        """Returns a session from the ledger."""
        return cls(
            entry["name"],
            list(entry["streams"]),
            datetime.datetime.fromisoformat(entry["expires"]),
            pa.ipc.read_schema(pa.py_buffer(base64.b64decode(entry["schema"]))),
            entry["rows"],
            list(entry["first"]),
            entry["generation"],
        )


def open_session(client: Client, request: Request, patience: Patience) -> Opened:
    """Opens a read session, and waits out limits that pass.

    Raises:
        UserError: the table can't be read, with the reason.
    """
    patience = patience.anew()
    if client.local:
        patience.seconds = min(patience.seconds, _LOCAL_SECONDS)
    while True:
        began = time.monotonic()
        try:
            made = client.create(request.message())
        except CallError as failure:
            if not failure.passing or failure.credentials:
                raise explain(
                    failure,
                    what=str(request.table),
                    table=request.table,
                    billing=request.billing,
                    account=client.account,
                    restriction=request.restriction,
                ) from failure
            patience.wait(failure, f"{request.table}: no read session could be opened", began)
            continue
        schema = pa.ipc.read_schema(pa.py_buffer(made.arrow_schema.serialized_schema))
        expires = made.expire_time
        if not expires:
            expires = datetime.datetime.now(_UTC) + datetime.timedelta(hours=6)
        expires = datetime.datetime.fromtimestamp(expires.timestamp(), _UTC)
        names = [stream.name for stream in made.streams]
        return Opened(made.name, names, expires, schema, made.estimated_row_count, [None] * len(names))


class Session:
    """A session of a run: the one that the ledger holds, or a new one; renewed when it has expired.

    Safe to use from threads.

    Attributes:
        request: what it was asked for.
        opened: the session of now.
    """

    def __init__(
        self,
        client: Client,
        request: Request,
        ledger: Ledger,
        patience: Patience,
        *,
        kept_schema: bool = False,
        followed: bool = False,
    ) -> None:
        """Takes a session up or opens one.

        Args:
            client: the connections.
            request: what is asked for.
            ledger: where the run keeps its sessions.
            patience: how long failures are waited out.
            kept_schema: whether only its columns are wanted, so that an expired one will do.
            followed: whether other workers read it too, for whom the chief renews it in time.

        Raises:
            UserError: the table can't be read, with the reason.
        """
        self.request = request
        self._client = client
        self._ledger = ledger
        self._patience = patience
        self._lock = threading.RLock()
        usable = (lambda entry: True) if kept_schema else self._alive
        entry = ledger.shared("sessions", request.key, usable, self._first)
        self.opened = Opened.from_dict(entry)
        if followed and ledger.path and ledger.writes:
            self._renew_in_time()

    def _renew_in_time(self) -> None:
        """Renews the session shortly before it expires, again and again, in the background.

        A worker that finds it expired waits for the chief's next one. Without this the chief, which waits
        for that worker in training, might read nothing meanwhile, and so never find it expired itself.
        """
        left = self.opened.expires - _SPARE - datetime.datetime.now(_UTC)
        timer = threading.Timer(max(_RETRY_SECONDS, left.total_seconds()), self._renewed_in_time)
        timer.daemon = True
        timer.start()

    def _renewed_in_time(self) -> None:
        try:
            self.renew(self.opened.name)
        except UserError as error:  # whoever reads next says it; the next try may do better
            _LOG.warning("the read session could not be renewed: %s", error)
        self._renew_in_time()

    @staticmethod
    def _alive(entry: dict[str, Any]) -> bool:
        return datetime.datetime.fromisoformat(entry["expires"]) > datetime.datetime.now(_UTC) + _SPARE

    def _first(self) -> dict[str, Any]:
        """Opens the session at the start of a run, in place of an expired one if there was one."""
        entry = self._ledger.get("sessions", self.request.key)
        if entry is None:
            opened = open_session(self._client, self.request, self._patience)
            level = logging.INFO if self.request.fields else logging.DEBUG
            _LOG.log(
                level,
                "%s: read session with %d stream(s) as of %s, billed to %s%s",
                self.request.table,
                len(opened.streams),
                self.request.snapshot.isoformat(timespec="seconds"),
                self.request.billing,
                f", rows where {self.request.restriction}" if self.request.restriction else "",
            )
            return opened.as_dict()
        return self._again(Opened.from_dict(entry)).as_dict()

    def _again(self, old: Opened) -> Opened:
        """Opens a session like an expired one; of another generation, if it cuts the table otherwise."""
        request = replace(self.request, most=len(old.streams) or self.request.most)
        opened = open_session(self._client, request, self._patience)
        _same_columns(self.request.table, old.schema, opened.schema)
        opened.generation = old.generation
        if self._alike(old, opened):
            opened.first = old.first
            _LOG.info(
                "%s: the read session expired; a new one as of the same moment has the same streams: no row "
                "is lost or read twice",
                self.request.table,
            )
        else:
            opened.generation += 1
        return opened

    def _alike(self, old: Opened, new: Opened) -> bool:
        if len(old.streams) != len(new.streams):
            return False
        for stream, known in enumerate(old.first):
            if known is None:
                continue
            if self.fingerprint(new, stream) != known:
                return False
        return True

    def fingerprint(self, opened: Opened, stream: int) -> str:
        """Reads the first rows of a stream and returns their hash."""
        batch = first_rows(
            self._client, opened.streams[stream], opened.schema, self._patience, self.failed(stream)
        )
        return hash_rows(batch)

    def note_first(self, stream: int, batch: pa.RecordBatch | None) -> None:
        """Remembers the first rows of a stream, so that a later session can be compared with this one."""
        if self.opened.first[stream] is None:
            self.opened.first[stream] = hash_rows(batch)

    def save(self) -> None:
        """Writes what is known of the session to the ledger."""
        with self._lock:
            self._ledger.put("sessions", self.request.key, self.opened.as_dict())

    def renew(self, expired: str) -> None:
        """Replaces an expired session, once for all threads that find it expired.

        The new one has another `opened.generation` if (stream, offset) no longer means the same row.

        Args:
            expired: name of the session that the caller found expired.
        """
        with self._lock:
            if self.opened.name == expired:
                before = self.opened
                entry = self._ledger.shared(
                    "sessions",
                    self.request.key,
                    lambda found: found["name"] != expired and self._alive(found),
                    lambda: self._again(before).as_dict(),
                )
                self.opened = Opened.from_dict(entry)

    def failed(self, stream: int) -> Callable[[CallError], UserError]:
        """Returns what makes the error of a stream."""

        def make(failure: CallError) -> UserError:
            return explain(
                failure,
                what=self.describe(stream),
                table=self.request.table,
                billing=self.request.billing,
                account=self._client.account,
                reading=True,
            )

        return make

    def describe(self, stream: int) -> str:
        """Names a stream for a person."""
        return f"{self.request.table}, stream {stream + 1} of {len(self.opened.streams)}"


def hash_rows(batch: pa.RecordBatch | None) -> str:
    """Returns a hash of the first rows of a batch; an empty stream has one too."""
    rows = [] if batch is None else batch.slice(0, 16).to_pylist()
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def _same_columns(table: Table, old: pa.Schema, new: pa.Schema) -> None:
    before = {one.name: one.type for one in old}
    after = {one.name: one.type for one in new}
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            raise UserError(
                f"{table}: column {name!r} was {before.get(name, 'not there')} when the run began and is "
                f"{after.get(name, 'not there')} now; start anew with --fresh"
            )


def snapshot(asked: str | None, table: Table, ledger: Ledger) -> datetime.datetime:
    """Returns the moment as of which a run reads a table: data.snapshot, or when the run first opened it."""
    from trainer.data.times import parse_time

    if asked is not None:
        try:
            return parse_time(asked)
        except ValueError:
            raise UserError(
                f"data.snapshot={asked!r} is no moment; expected ISO 8601 such as 2024-05-01T12:00:00Z"
            ) from None
    entry = ledger.shared(
        "snapshots",
        str(table),
        lambda found: isinstance(found, str),
        lambda: datetime.datetime.now(_UTC).isoformat(timespec="milliseconds"),
    )
    return datetime.datetime.fromisoformat(entry)


def least_streams(reader_threads: int, workers: int) -> int:
    """Returns how many streams would be good to have: a few for each worker."""
    return max(1, reader_threads) * max(1, workers)
