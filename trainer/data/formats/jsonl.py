"""JSON lines: one object a line, plain or gzip. Adopters: leave.

A block of lines goes through Arrow's parser with the types seen so far; where that fails (numbers that are
text in one line and not in another, blank or broken lines) the block is read line by line in Python. Both
ways give the same values. A key that is absent is null; nested fields have dotted names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from trainer.data import cast
from trainer.data.files import DataFile
from trainer.data.formats import BadRow, Bounds, Part, ReadOptions, ranges
from trainer.data.nested import extract
from trainer.errors import UserError

_BOM = b"\xef\xbb\xbf"
_BLOCK = 8 << 20
_STEP = 1 << 16
_SAMPLE_BYTES = 1 << 20
_SAMPLE_LINES = 1000
_LONGEST = 256 << 20  # a line beyond this is no line

# What a value can be; the first three letters of a list's name say so.
_TYPES = {
    "text": pa.string(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "boolean": pa.bool_(),
    "list text": pa.list_(pa.string()),
    "list integer": pa.list_(pa.int64()),
    "list float": pa.list_(pa.float64()),
    "list boolean": pa.list_(pa.bool_()),
}
_GUESS = {  # for columns without a value in the sample
    cast.NUMBER: "float",
    cast.INTEGER: "integer",
    cast.TEXT: "text",
    cast.TIME: "text",
    cast.BOOLEAN: "boolean",
    cast.TEXT_LIST: "list text",
    cast.NUMBER_LIST: "list float",
}


class _BrokenLineError(ValueError):
    pass


class JsonlReader:
    """One file of JSON lines."""

    optional_columns = True
    typed = False  # 7 in one line may be "7" in the next

    def __init__(self, file: DataFile, options: ReadOptions) -> None:
        self._file = file
        self._options = options
        self._kinds: dict[str, set[str]] = {}
        self._literal: set[str] = set()  # top-level keys, which may hold dots themselves
        with file.open_text() as stream:
            start = stream.read(_SAMPLE_BYTES).removeprefix(_BOM)
        if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in start[:200]:
            raise UserError(f"{file.path}: is not UTF-8 text; save it as UTF-8")
        if not start.strip():
            raise UserError(f"{file.path}: the file holds no text")
        if start.lstrip()[:1] == b"[":
            raise UserError(f"{file.path}: is a JSON array; expected one JSON object a line")
        for line in start.split(b"\n")[:_SAMPLE_LINES]:
            try:
                record = _parse(line) if line.strip() else None
            except ValueError:
                continue  # told when it is read; the last line may be cut
            if record is not None:
                self._literal.update(record)
                _note(self._kinds, record)
        if not self._kinds:
            raise UserError(
                f'{file.path}:1: is not JSON lines; expected an object such as {{"age": 1}} a line'
            )
        self._parts = ranges.parts(file)
        self._starts = ranges.Starts(self._parts, self._find_start)

    def schema(self) -> dict[str, pa.DataType]:
        return {name: _stored(kinds) for name, kinds in self._kinds.items()}

    def parts(self) -> list[Part]:
        return list(self._parts)

    def bounds(self, part: Part, column: str) -> Bounds | None:
        return None

    def read(
        self, part: Part, columns: Sequence[str], bad: BadRow
    ) -> Iterator[tuple[pa.RecordBatch, Sequence[int] | int]]:
        kinds = {name: set(self._kinds.get(name, ())) for name in columns}
        line = part.first_row
        for block in self._blocks(*self._starts.of(part.place)):
            lines = block.count(b"\n") + (not block.endswith(b"\n"))
            table = self._fast(block, columns, kinds, lines)
            if table is not None:
                row = line
                for batch in table.to_batches(max_chunksize=self._options.chunk_rows):
                    yield extract(batch, columns), row
                    row += batch.num_rows
            else:
                batch, rows = self._slow(block, columns, kinds, line, bad)
                if batch.num_rows:
                    yield batch, rows
            line += lines

    def locate(self, row: int) -> str:
        """Rows are lines here: blank ones count, so that an editor finds them."""
        index, line = ranges.split_number(row)
        if start := self._starts.at(index):
            with ranges.open_text(self._file, self._parts, 0, start) as before:
                while data := before.read(_BLOCK):
                    line += data.count(b"\n")
        return f"{self._file.path}:{line + 1}"

    def _find_start(self, begin: int, place: int) -> int:
        """Returns where the first line begins that doesn't begin before `place`."""
        del begin  # in JSON, a line break in a text is written as \n
        with ranges.ByteRange(self._file, place - 1, self._file.size) as stream:
            at = place - 1
            while data := stream.read(_STEP):
                found = data.find(b"\n")
                if found >= 0:
                    return at + found + 1
                at += len(data)
        return self._file.size

    def _blocks(self, start: int, stop: int) -> Iterator[bytes]:
        """Yields whole lines, some megabytes at a time."""
        rest = b""
        with ranges.open_text(self._file, self._parts, start, stop) as stream:
            first = not start
            while data := stream.read(_BLOCK):
                if first:
                    data, first = data.removeprefix(_BOM), False
                cut = data.rfind(b"\n") + 1
                if not cut:
                    rest += data
                    if len(rest) > _LONGEST:
                        raise UserError(f"{self._file.path}: holds a line of more than {_LONGEST >> 20} MB")
                    continue
                yield rest + data[:cut]
                rest = data[cut:]
        if rest:
            yield rest

    def _fast(
        self, block: bytes, columns: Sequence[str], kinds: dict[str, set[str]], lines: int
    ) -> pa.Table | None:
        fields = _tree(
            {name: self._type(name, kinds[name]) for name in columns},
            [name for name in columns if name in self._literal],
        )
        if fields is None:
            return None
        try:
            str(block, "utf-8")  # Arrow takes any bytes for text
            table = pajson.read_json(
                pa.BufferReader(block),
                read_options=pajson.ReadOptions(use_threads=self._options.threads, block_size=1 << 20),
                parse_options=pajson.ParseOptions(
                    explicit_schema=fields, unexpected_field_behavior="ignore", newlines_in_values=False
                ),
            )
        except (pa.ArrowException, ValueError):
            return None
        if table.num_rows != lines:
            return None
        return table if table.num_columns else None

    def _type(self, name: str, kinds: set[str]) -> pa.DataType | None:
        """Returns the type to ask Arrow for, or None where only the slow way can read the column."""
        asked = self._options.wanted.get(name)
        found = {"float" if kind == "integer" and asked == cast.NUMBER else kind for kind in kinds}
        if "float" in found and asked in (cast.INTEGER, cast.TEXT):
            return None  # Arrow would round a large integer among the floats
        if found == {"list integer", "list float"}:
            found = {"list float"}
        found.discard("list empty")
        if not found:
            found = {_GUESS.get(asked, "text")}
        return _TYPES.get(found.pop()) if len(found) == 1 else None

    def _slow(
        self, block: bytes, columns: Sequence[str], kinds: dict[str, set[str]], line: int, bad: BadRow
    ) -> tuple[pa.RecordBatch, list[int]]:
        values: dict[str, list[Any]] = {name: [] for name in columns}
        rows: list[int] = []
        for number, text in enumerate(block.split(b"\n"), start=line):
            if not text.strip():
                continue
            try:
                record = _parse(text)
                found = [_pick(record, name) for name in columns]
                for name, value in zip(columns, found, strict=True):
                    kinds[name].update(_kind(value))
            except ValueError as error:
                bad(number, str(error))
                continue
            rows.append(number)
            for name, value in zip(columns, found, strict=True):
                values[name].append(value)
        arrays = [_array(values[name]) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns)), rows


# --- one line ---------------------------------------------------------------------------------------


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        raise _BrokenLineError(f"names the key {next(n for n in names if names.count(n) > 1)!r} twice")
    return record


def _parse(line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
        record = json.loads(text, object_pairs_hook=_unique)
        if "\\u" in text:  # half of a surrogate pair is no text
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except _BrokenLineError:
        raise
    except UnicodeError as error:
        raise ValueError("is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {str(error)[:120]}") from error
    if not isinstance(record, dict):
        raise ValueError(f"is a JSON {type(record).__name__}, expected an object")
    return record


def _pick(record: dict[str, Any], name: str) -> Any:
    """Returns the value of a dotted name; None where it is absent.

    Raises:
        ValueError: the value is an object, or something above it is none.
    """
    value: Any = record.get(name)
    if value is None and "." in name and name not in record:
        value = record
        for part in name.split("."):
            if value is None:
                break
            if not isinstance(value, dict):
                raise ValueError(f"has {json.dumps(value)[:40]} above {name!r}, expected an object")
            value = value.get(part)
    if isinstance(value, dict):
        raise ValueError(f"{name!r} is an object, expected a value")
    return value


def _kind(value: Any) -> set[str]:
    if value is None:
        return set()
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer" if -(2**63) <= value < 2**63 else "big"}
    if isinstance(value, float):
        return {"float"}
    if isinstance(value, str):
        return {"text"}
    if isinstance(value, list):
        inner: set[str] = set().union(*(_kind(entry) for entry in value))
        return {"list " + kind for kind in inner} or {"list empty"}
    return {"object"}


def _note(kinds: dict[str, set[str]], record: dict[str, Any], prefix: str = "") -> None:
    """Adds the kinds of all values of a record."""
    for key, value in record.items():
        if isinstance(value, dict):
            _note(kinds, value, f"{prefix}{key}.")
        else:
            kinds.setdefault(prefix + key, set()).update(_kind(value))


def _stored(kinds: set[str]) -> pa.DataType:
    """Returns the type that a column is said to have in messages."""
    known = kinds - {"list empty"}
    if len(known) == 1:
        return _TYPES.get(next(iter(known)), pa.string())
    if kinds and all(kind.startswith("list") for kind in kinds):
        return pa.list_(pa.string())
    return pa.float64() if known == {"integer", "float"} else pa.string() if known else pa.null()


def _tree(types: dict[str, pa.DataType | None], literal: Sequence[str]) -> pa.Schema | None:
    """Returns a schema in which dotted names are fields of records; None where Arrow has none."""
    tree: dict[str, Any] = {}
    for name, kind in types.items():
        if kind is None:
            return None
        *above, last = [name] if name in literal else name.split(".")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                return None
        if last in node:
            return None
        node[last] = kind

    def build(node: dict[str, Any]) -> list[pa.Field]:
        return [
            pa.field(name, pa.struct(build(kind)) if isinstance(kind, dict) else kind)
            for name, kind in node.items()
        ]

    return pa.schema(build(tree))


def _array(values: list[Any]) -> pa.Array:
    """Returns values of any kinds as a column: of their own type if they share one, else as text."""
    kinds: set[str] = set().union(*(_kind(value) for value in values))
    if kinds == {"integer", "float"}:  # exact only below 2^53; beyond, text keeps the digits
        exact = all(abs(value) < 2**53 for value in values if isinstance(value, int))
        kinds = {"float"} if exact else {"integer", "float"}
    known = kinds - {"list empty"}
    if not kinds:
        return pa.nulls(len(values))
    if len(known) == 1 and next(iter(known)) in _TYPES:
        return pa.array(values, _TYPES[next(iter(known))])
    if all(kind.startswith("list") for kind in kinds):
        if known <= {"list integer", "list float"} and known:
            return pa.array(values, _TYPES["list float"])
        if any("list" in kind[5:] or "object" in kind for kind in known):
            return pa.array([None if v is None else json.dumps(v) for v in values], pa.string())
        lists = [None if v is None else [_text(entry) for entry in v] for v in values]
        return pa.array(lists, pa.list_(pa.string()))
    return pa.array([_text(value) for value in values], pa.string())


def _text(value: Any) -> str | None:
    """Returns the text form of a value, by the rules of `trainer.data.cast`."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, float) and value != value:
        return None
    return json.dumps(value)
