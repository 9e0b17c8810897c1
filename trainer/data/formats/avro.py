"""Avro container files: unions with null, logical types, all codecs that fastavro knows. Adopters: leave."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import fastavro
import pyarrow as pa

from trainer.data.example_columns import UnusualError
from trainer.data.files import DataFile
from trainer.data.formats import BadRow, Bounds, Part, ReadOptions, avro_columns, ranges
from trainer.errors import UserError

_SIMPLE = {
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "null": pa.null(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "time-millis": pa.time64("us"),
    "time-micros": pa.time64("us"),
    "uuid": pa.string(),
}
_ROWS = 8192  # rows that are held as Python objects at a time
_MARKER = 16
_STEP = 1 << 20
_TOGETHER = 16 << 20  # bytes of blocks that are decoded at a time


class AvroReader:
    """One Avro file, read through fastavro with a schema of the wanted columns only."""

    optional_columns = False
    typed = True

    def __init__(self, file: DataFile, options: ReadOptions) -> None:
        self._file = file
        self._options = options
        try:
            with file.open() as stream:
                self._schema: Any = fastavro.reader(stream).writer_schema
                size = stream.tell()
            self._header = file.head(size)  # it ends with the marker that stands behind each block, too
        except Exception as error:  # fastavro raises whatever a damaged header leads it into
            raise UserError(f"{file.path}: can't be read as Avro: {_short(error)}") from error
        if not isinstance(self._schema, dict) or self._schema.get("type") != "record":
            raise UserError(f"{file.path}: holds no records (its Avro schema is {str(self._schema)[:80]})")
        self._columns: dict[str, pa.DataType] = {}
        self._visit("", self._schema["fields"])
        self._fields = avro_columns.fields_of(self._schema)
        self._parts = ranges.parts(file)
        self._starts = ranges.Starts(self._parts, self._find_start)

    def _visit(self, prefix: str, fields: list[dict[str, Any]]) -> None:
        for field in fields:
            kind = _branch(field["type"])
            if isinstance(kind, dict) and kind.get("type") == "record":
                self._visit(f"{prefix}{field['name']}.", kind["fields"])
            else:
                self._columns.setdefault(prefix + field["name"], _arrow(field["type"]))

    def schema(self) -> dict[str, pa.DataType]:
        return dict(self._columns)

    def parts(self) -> list[Part]:
        return list(self._parts)

    def bounds(self, part: Part, column: str) -> Bounds | None:
        return None

    def read(self, part: Part, columns: Sequence[str], bad: BadRow) -> Iterator[tuple[pa.RecordBatch, int]]:
        del bad
        start, stop = self._starts.of(part.place)
        if start == stop:
            return
        row = part.first_row
        try:
            with self._open(start, stop) as stream:
                if self._fields is None:
                    batches = self._by_record(stream, columns)
                else:
                    batches = self._by_block(stream, columns, self._fields)
                for batch in batches:
                    yield batch, row
                    row += batch.num_rows
        except UserError:
            raise
        except Exception as error:  # fastavro raises whatever damaged data leads it into
            number = self._row_of_file(row)
            after = "in its last part" if number is None else f"after row {number}"
            raise UserError(
                f"{self._file.path}: can't be read {after} (damaged or cut short?): {_short(error)}"
            ) from error

    def _open(self, start: int, stop: int) -> Any:
        """Opens the blocks between two places where blocks begin, behind the file's header."""
        if len(self._parts) == 1:
            return self._file.open()
        return _Behind(self._header if start else b"", ranges.ByteRange(self._file, start, stop))

    def _find_start(self, begin: int, place: int) -> int:
        """Returns where the first block begins that doesn't begin before `place`."""
        del begin  # no block holds the marker but by a chance of 2^-128
        marker = self._header[-_MARKER:]
        at = max(place, len(self._header)) - _MARKER
        data = b""
        with ranges.ByteRange(self._file, at, self._file.size) as stream:
            while more := stream.read(_STEP):
                data += more
                found = data.find(marker)
                if found >= 0:
                    return at + found + _MARKER
                at += max(0, len(data) - _MARKER)
                data = data[-_MARKER:]
        return self._file.size

    def _row_of_file(self, row: int) -> int | None:
        """Returns the number of a row in the whole file, from 0; None where those before it aren't known."""
        index, number = ranges.split_number(row)
        if start := self._starts.at(index):
            try:
                with self._open(0, start) as stream:
                    number += sum(block.num_records for block in fastavro.block_reader(stream))
            except Exception:  # whatever damaged data leads fastavro into
                return None
        return number

    def _by_record(self, stream: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields rows that fastavro reads."""
        roots = {name.partition(".")[0] for name in columns} | set(columns)
        # Choosing columns takes fastavro a slower way, which pays only where it drops most of them.
        few = len(roots) * 4 <= len(self._schema["fields"])
        chosen = _only(self._schema, roots) if few else None
        yield from self._objects(fastavro.reader(stream, reader_schema=chosen), columns)

    def _objects(self, records: Iterable[Any], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Makes columns of a Python object a record."""
        paths = [name.split(".") for name in columns]
        records = iter(records)
        while rows := list(itertools.islice(records, min(_ROWS, self._options.chunk_rows))):
            arrays = [
                _column([_pick(record, path) for record in rows], self._columns[name])
                for name, path in zip(columns, paths, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _by_block(
        self, stream: Any, columns: Sequence[str], fields: Sequence[avro_columns.Field]
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of some megabytes of blocks at a time."""
        blocks: list[Any] = []
        block: Any = None
        size = 0
        failed: Exception | None = None
        stored = iter(fastavro.block_reader(stream))
        while True:
            try:
                block = next(stored, None)
            except Exception as error:  # the rows before it are good
                block, failed = None, error
            if block is not None:
                blocks.append(block)
                size += len(block.bytes_.getbuffer())
            if blocks and (block is None or size >= _TOGETHER):
                yield from self._of_blocks(blocks, columns, fields)
                blocks, size = [], 0
            if block is None:
                break
        if failed is not None:
            raise failed

    def _of_blocks(
        self, blocks: list[Any], columns: Sequence[str], fields: Sequence[avro_columns.Field]
    ) -> Iterator[pa.RecordBatch]:
        try:
            found = avro_columns.decode(
                [avro_columns.Block(block.bytes_.getvalue(), block.num_records) for block in blocks],
                fields,
                set(columns),
            )
        except UnusualError:
            yield from self._objects(itertools.chain.from_iterable(blocks), columns)
            return
        yield pa.RecordBatch.from_arrays([found[name] for name in columns], names=list(columns))

    def locate(self, row: int) -> str:
        number = self._row_of_file(row)
        return self._file.path if number is None else f"{self._file.path}, row {number + 1}"


class _Behind:
    """Some bytes, and those of a stream behind them; a file-like object."""

    def __init__(self, first: bytes, rest: ranges.ByteRange) -> None:
        self._first = io.BytesIO(first)
        self._rest = io.BufferedReader(rest, _STEP)
        self._at = 0

    def read(self, size: int) -> bytes:
        data = self._first.read(size)
        if len(data) < size:
            data += self._rest.read(size - len(data))
        self._at += len(data)
        return data

    def tell(self) -> int:
        return self._at

    def __enter__(self) -> _Behind:
        return self

    def __exit__(self, *exception: object) -> None:
        self._rest.close()


def _branch(kind: Any) -> Any:
    """Returns the one type of a union with null, or the union itself where there are more."""
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        return others[0] if len(others) == 1 else kind
    return kind


def _arrow(kind: Any) -> pa.DataType:
    """Returns the Arrow type of an Avro type; text for unions of several types."""
    kind = _branch(kind)
    if isinstance(kind, list):
        if not kind:
            return pa.null()
        found = {_arrow(one) for one in kind if one != "null"}
        if found == {pa.int64(), pa.float64()}:
            return pa.float64()
        return found.pop() if len(found) == 1 else pa.string()
    if isinstance(kind, dict):
        logical = kind.get("logicalType")
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        if logical == "decimal":
            return pa.decimal128(max(1, min(38, kind.get("precision", 38))), kind.get("scale", 0))
        if kind["type"] == "array":
            return pa.list_(_arrow(kind["items"]))
        if kind["type"] == "map":
            return pa.map_(pa.string(), _arrow(kind["values"]))
        if kind["type"] == "record":
            return pa.struct([(field["name"], _arrow(field["type"])) for field in kind["fields"]])
        kind = kind["type"]
        return _arrow(kind) if isinstance(kind, (dict, list)) else _SIMPLE.get(kind, pa.binary())
    return _SIMPLE.get(
        kind, pa.binary()
    )  # a named type that was defined before: enum and fixed are bytes or text


def _only(schema: dict[str, Any], roots: set[str]) -> dict[str, Any]:
    """Returns the schema with the wanted columns alone, so that fastavro makes no objects of the others."""
    fields = [field for field in schema["fields"] if field["name"] in roots]
    return {key: value for key, value in schema.items() if not key.startswith("__")} | {"fields": fields}


def _pick(record: Any, path: list[str]) -> Any:
    if len(path) == 1:  # nearly always
        return record[path[0]]
    for part in path:
        if record is None:
            return None
        record = record[part]
    return record


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        if pa.types.is_binary(kind):  # a named enum
            return pa.array([None if v is None else v if isinstance(v, bytes) else str(v) for v in values])
        if pa.types.is_string(kind):  # a union of several types, in its text form
            return pa.array([None if v is None else _text(v) for v in values], pa.string())
        raise


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _short(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
