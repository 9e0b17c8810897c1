"""Arrow IPC: files (also called Feather V2) and streams. Adopters: leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from trainer.data.files import DataFile
from trainer.data.formats import BadRow, Bounds, Part, ReadOptions
from trainer.data.nested import duplicates, extract, flat_schema, sound
from trainer.errors import UserError

DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError, IndexError, TypeError)


class ArrowReader:
    """One Arrow file; each record batch of the file format is a part, a stream is one part."""

    optional_columns = False
    typed = True

    def __init__(self, file: DataFile, options: ReadOptions) -> None:
        self._file = file
        self._options = options
        start = file.head(8)
        if start.startswith(b"FEA1"):
            raise UserError(f"{file.path}: is Feather version 1; write it again as Feather V2 (Arrow IPC)")
        self._is_file = start.startswith(b"ARROW1")
        self._sizes: list[int] = []
        try:
            with file.open() as stream:
                if self._is_file:
                    schema = pa.ipc.open_file(stream).schema
                    self._sizes = _sizes(stream, schema)
                else:
                    schema = pa.ipc.open_stream(stream).schema
            self._columns = flat_schema(schema)
            self._names = schema.names
        except DAMAGE as error:
            raise UserError(f"{file.path}: can't be read as Arrow IPC: {_short(error)}") from error
        if duplicates(self._names):
            raise UserError(f"{file.path}: has the column {duplicates(self._names)[0]!r} twice")

    def schema(self) -> dict[str, pa.DataType]:
        return dict(self._columns)

    def parts(self) -> list[Part]:
        if not self._is_file:
            return [Part("stream", 0, None)]
        parts = []
        first = start = 0
        while start < len(self._sizes):
            stop, rows = start + 1, self._sizes[start]
            while stop < len(self._sizes) and rows + self._sizes[stop] <= self._options.chunk_rows:
                rows, stop = rows + self._sizes[stop], stop + 1
            if rows:
                label = f"record batch {start}" if stop == start + 1 else f"record batches {start}-{stop - 1}"
                parts.append(Part(label, first, rows, range(start, stop)))
            first, start = first + rows, stop
        return parts

    def bounds(self, part: Part, column: str) -> Bounds | None:
        return None

    def read(self, part: Part, columns: Sequence[str], bad: BadRow) -> Iterator[tuple[pa.RecordBatch, int]]:
        del bad  # an Arrow file has no broken rows: it can be read or it can't
        row = part.first_row
        roots = [name for name in self._names if any(c == name or c.startswith(name + ".") for c in columns)]
        options = pa.ipc.IpcReadOptions(included_fields=[self._names.index(name) for name in roots])
        try:
            with self._file.open() as stream:
                for batch in self._batches(stream, part, options):
                    yield extract(sound(batch), columns), row
                    row += batch.num_rows
        except DAMAGE as error:
            raise UserError(
                f"{self._file.path}: {part.label} can't be read (damaged or cut short?): {_short(error)}"
            ) from error

    def _batches(
        self, stream: pa.NativeFile, part: Part, options: pa.ipc.IpcReadOptions
    ) -> Iterator[pa.RecordBatch]:
        if self._is_file:
            reader = pa.ipc.open_file(stream, options=options)
            for index in part.place:
                yield reader.get_batch(index)
        else:
            with pa.ipc.open_stream(stream, options=options) as batches:
                yield from batches

    def locate(self, row: int) -> str:
        return f"{self._file.path}, row {row + 1}"


def _sizes(stream: pa.NativeFile, schema: pa.Schema) -> list[int]:
    """Returns the rows of each record batch; the file's index leaves them out, so a narrow column is read."""
    widths = [(_width(field.type), place) for place, field in enumerate(schema)]
    options = pa.ipc.IpcReadOptions(included_fields=[min(widths)[1]] if widths else None)
    reader = pa.ipc.open_file(stream, options=options)
    return [reader.get_batch(index).num_rows for index in range(reader.num_record_batches)]


def _width(kind: pa.DataType) -> int:
    try:
        return kind.bit_width
    except ValueError:  # text and lists have no fixed width
        return 1 << 16


def _short(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
