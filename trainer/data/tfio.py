"""BigQuery rows through the reader of tensorflow-io, in place of our own (data.reader). Adopters: leave.

For comparison, and for those who have to: it speaks the retired version 1beta1 of the API, one row at a time,
and its compiled part is for TensorFlow 2.16 alone. It has no NULL: an absent value comes as a stand-in, which
is turned back into NULL here. It resumes neither a broken stream nor an earlier session.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.config import READER_TENSORFLOW as FITS
from trainer.data import bigquery_columns
from trainer.data.bigquery_client import EMULATOR, Table, billing_project
from trainer.data.bigquery_session import least_streams
from trainer.data.bigquery_tables import TableFiles
from trainer.data.rows import FileSource, FileUnit
from trainer.data.split import Splitter
from trainer.errors import UserError

_PACKAGE = "tensorflow-io 0.37.1"
_NO_NUMBER = -(2**63)
_NO_TEXT = "\x1anull\x1a"
_BATCH = 1024  # rows that are taken from the reader at a time


def load() -> Any:
    """Returns a client of the reader, or of the local server that BIGQUERY_STORAGE_EMULATOR_HOST names.

    Raises:
        UserError: the reader isn't there, or doesn't load in this TensorFlow; both versions are named.
    """
    import tensorflow as tf

    here = tf.__version__
    if ".".join(here.split(".")[:2]) != FITS:
        raise UserError(
            f"data.reader=tensorflow-io: {_PACKAGE}, the last one, works in TensorFlow {FITS} alone, and "
            f"this is {here}; leave data.reader out: the trainer's own reader needs no tensorflow-io"
        )
    local = os.environ.get(EMULATOR, "").strip()
    try:
        from tensorflow_io.python.ops import bigquery_dataset_ops as ops

        return ops.BigQueryTestClient(local) if local else ops.BigQueryClient()
    except ImportError as error:
        raise UserError(
            f"data.reader=tensorflow-io: the package isn't there; pip install tensorflow-io==0.37.1 ({error})"
        ) from error
    except (NotImplementedError, AttributeError) as error:  # its library didn't load: found when first used
        raise UserError(
            f"data.reader=tensorflow-io: its library does not load in TensorFlow {here}; {_PACKAGE} was "
            f"built for TensorFlow {FITS} ({str(error).splitlines()[0]})"
        ) from error


@dataclass(frozen=True)
class Stream:
    """A stream, in the place of a file.

    Attributes:
        path: what messages call it.
        table: its table.
        session: the session as the reader knows it.
        name: tensor with the stream's name.
        partitions: none; files may have some.
    """

    path: str
    table: Table
    session: Any
    name: Any
    partitions: tuple[tuple[str, str | None], ...] = ()


class TfioFiles(TableFiles):
    """The streams of tables as this reader opens them; columns and filters are those of our own reader."""

    @property
    def files(self) -> list[Stream]:  # type: ignore[override]
        with self._lock:
            if "opened" not in self.__dict__:
                self.__dict__["opened"] = self._open()
            return self.__dict__["opened"]  # type: ignore[no-any-return]

    def _open(self) -> list[Stream]:
        import tensorflow as tf

        _ = self.types
        client = load()
        kinds = {pa.int64(): tf.int64, pa.float64(): tf.float64, pa.string(): tf.string}
        absent = {pa.int64(): _NO_NUMBER, pa.float64(): "nan", pa.string(): _NO_TEXT}
        streams = []
        for table in self.tables:
            columns = {column.stored: column for column in self.columns_of[table].values()}
            for stored, column in columns.items():
                if column.kind not in kinds or "." in stored:
                    raise UserError(
                        f"{table}: column {stored!r} is {bigquery_columns.sql_type(column.kind)}; "
                        "data.reader=tensorflow-io reads INT64, FLOAT64 and STRING with their NULLs, and "
                        "nothing else; leave data.reader out, or make a table with a CAST"
                    )
            fields = {
                stored: {"output_type": kinds[column.kind], "default_value": absent[column.kind]}
                for stored, column in columns.items()
            }
            wanted = self.data.streams or least_streams(self.data.reader_threads, 1)
            for text in self._user_filters:
                session = self._session(client, table, fields, text, wanted)
                names = session.get_streams()
                streams += [
                    Stream(f"{table}, stream {i + 1} of {len(names)}", table, session, name)
                    for i, name in enumerate(names)
                ]
        return streams

    def _session(self, client: Any, table: Table, fields: Any, text: str, streams: int) -> Any:
        import tensorflow as tf

        try:
            return client.read_session(
                f"projects/{billing_project(self.data.project, table)}",
                table.project,
                table.table,
                table.dataset,
                fields,
                row_restriction=bigquery_columns.joined(text, self._filters.get(table, "")),
                requested_streams=streams,
                data_format=client.DataFormat.AVRO,  # with Arrow, any NULL is an error
            )
        except tf.errors.OpError as error:
            raise UserError(f"{table}: tensorflow-io can't open a session: {error.message}") from error

    def columns(self, index: int) -> dict[str, pa.DataType]:
        known = self.columns_of[self.files[index].table]
        return {name: column.kind for name, column in known.items()}

    def rows(self, stream: Stream, need: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (number of the first row, columns) of a stream.

        Raises:
            UserError: the stream broke, which this reader does not mend.
        """
        import tensorflow as tf

        columns = self.columns_of[stream.table]
        dataset = stream.session.read_rows(stream.name).batch(_BATCH)
        options = tf.data.Options()
        options.autotune.enabled = False
        first = 0
        try:
            for batch in dataset.with_options(options):
                arrays = [_column(batch[columns[name].stored].numpy()) for name in need]
                made = pa.RecordBatch.from_arrays(arrays, names=list(need))
                yield first, made
                first += made.num_rows
        except tf.errors.OpError as error:
            raise UserError(
                f"{stream.path}, row {first + 1:,}: tensorflow-io does not resume a broken stream; leave "
                f"data.reader out ({error.message})"
            ) from error


def _column(values: np.ndarray) -> pa.Array:
    """Returns values as Arrow, their stand-ins as NULL."""
    if values.dtype == object:
        texts = pa.array(values, pa.binary()).cast(pa.string())
        return pc.if_else(pc.equal(texts, _NO_TEXT), None, texts)
    absent = np.isnan(values) if values.dtype.kind == "f" else values == _NO_NUMBER
    return pa.array(values, mask=absent)


class TfioSource(FileSource):
    """The rows of tables, or of one split of them (see `trainer.data.source.Source`)."""

    _files: TfioFiles  # type: ignore[assignment]

    def share(self, name: str, splitter: Splitter, code: int) -> TfioSource:
        """Returns the rows of one split of the same tables."""
        return TfioSource(name, self._files.split(splitter, code), splitter, code)  # type: ignore[arg-type]

    def identities(self) -> set[str]:
        """Returns the names of the tables."""
        return {str(table) for table in self._files.tables}

    def fingerprint(self) -> str:
        """Returns a hash of what the rows depend on, as far as it is known: tables and filters."""
        files = self._files
        about = [[str(table) for table in files.tables], sorted(files._filters.values()), files._user_filters]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]

    def _plan(self) -> list[FileUnit]:
        _ = self._files.types  # finds missing columns before anything is read
        units = [FileUnit(i, stream.path, None, i) for i, stream in enumerate(self._files.files)]
        return self._limited(units) if self._files.data.limit_rows else units

    def _stored(self, unit: FileUnit, need: list[str]) -> Iterator[tuple[pa.RecordBatch, Any]]:
        files = self._files
        stream = files.files[unit.file]
        some = need or [next(iter(files.columns_of[stream.table]))]
        chunks = files.rows(stream, some)
        waiting: list[pa.RecordBatch] = []
        start = size = 0
        for first, batch in chunks:
            if not waiting:
                start = first
            waiting.append(batch)
            size += batch.num_rows
            if size >= files.data.chunk_rows:
                yield _together(waiting), start
                waiting, size = [], 0
        if waiting:
            yield _together(waiting), start


def _together(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
