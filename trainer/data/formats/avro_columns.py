"""Avro blocks of flat records decoded in NumPy, a row of all blocks at a time. Adopters: leave.

A value begins where the one before it ends, so a block has to be gone through in turn. But blocks begin at
known places: the same row of some hundreds of them is read in one go, field by field. What is unusual (other
types, a damaged block, too few blocks for this to be faster) is left to fastavro: `decode` then raises
`UnusualError`. The encoding: https://avro.apache.org/docs/1.12.0/specification
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from trainer.data.example_columns import U64, UnusualError, Values, integers, joined, require, texts, words_of

_LEAST = 12  # rows that are read in one go, on average: with fewer, an object a row is as fast
_AFTER = bytes(16)  # behind the blocks, so that whatever is looked at is there
_HIGH = U64(0x8080_8080_8080_8080)
_ONES = U64(0x0101_0101_0101_0101)
_FIXED = {"float": 4, "double": 8, "boolean": 1}
_VARIED = ("int", "long", "string", "bytes")
# Logical type -> microseconds (or days) of a unit, and its least and largest value in Python's years.
_TIMES = {
    "timestamp-micros": (1, -62_135_596_800_000_000, 253_402_300_799_999_999),
    "timestamp-millis": (1000, -62_135_596_800_000, 253_402_300_799_999),
    "local-timestamp-micros": (1, -62_135_596_800_000_000, 253_402_300_799_999_999),
    "local-timestamp-millis": (1000, -62_135_596_800_000, 253_402_300_799_999),
    "date": (1, -719_162, 2_932_896),
}
_OTHER_LOGICAL = ("decimal", "uuid", "time-millis", "time-micros")


@dataclass(frozen=True)
class Field:
    """A field of a flat record.

    Attributes:
        name: its name.
        kind: its primitive type, or "enum".
        null: number of the branch that is null, of the two of a union with null; None where it is no union.
        logical: logical type, or "".
        symbols: the texts of an enum.
    """

    name: str
    kind: str
    null: int | None
    logical: str = ""
    symbols: tuple[str, ...] = ()


class Block(NamedTuple):
    """The bytes of a block, without compression, and the number of its records."""

    data: bytes
    rows: int


def fields_of(schema: dict[str, Any]) -> list[Field] | None:
    """Returns the fields of a record schema; None where one of them is of a type that isn't decoded here."""
    found = []
    for field in schema["fields"]:
        kind, null = field["type"], None
        if isinstance(kind, list):
            if len(kind) != 2 or kind.count("null") != 1:
                return None
            null = kind.index("null")
            kind = kind[1 - null]
        logical, symbols = "", ()
        if isinstance(kind, dict):
            logical = kind.get("logicalType", "")
            symbols = tuple(kind.get("symbols", ()))
            kind = kind["type"]
        if not isinstance(kind, str) or kind not in (*_FIXED, *_VARIED, "enum") or logical in _OTHER_LOGICAL:
            return None
        found.append(Field(field["name"], kind, null, logical if logical in _TIMES else "", symbols))
    return found


def decode(blocks: Sequence[Block], fields: Sequence[Field], wanted: Collection[str]) -> dict[str, pa.Array]:
    """Decodes blocks.

    Args:
        blocks: blocks that follow each other.
        fields: all fields of their records.
        wanted: names of the fields that are asked for.

    Returns:
        A column for each wanted field, with the rows of all blocks in order: int64, double, bool, string (as
        it is or as a dictionary), binary, timestamp or date.

    Raises:
        UnusualError: fastavro has to decide.
    """
    counts = np.array([block.rows for block in blocks], np.int64)
    data = b"".join([*(block.data for block in blocks), _AFTER])
    rows = int(counts.sum())
    require(len(fields) > 0 and (counts >= 0).all() and rows < len(data) < 1 << 30)
    require(rows >= _LEAST * int(counts.max(initial=0)))
    try:
        places = _Walk(data, [len(block.data) for block in blocks], counts).go(fields, wanted)
    except IndexError:  # beyond the end
        raise UnusualError from None
    with np.errstate(over="ignore"):
        return {name: _column(field, found[0], found[1], data) for name, (field, found) in places.items()}


class _Walk:
    """Goes through the rows of some blocks at once."""

    def __init__(self, data: bytes, sizes: Sequence[int], counts: np.ndarray) -> None:
        self._words = words_of(data)
        ends = np.cumsum(sizes)
        order = np.argsort(-counts, kind="stable")  # those that have a row left are the first ones, always
        self._counts = counts[order]
        self._ends = ends[order]
        self._at = (ends - sizes)[order]
        self._first_rows = (np.cumsum(counts) - counts)[order]
        self._rows = int(counts.sum())
        self._wrong = False

    def go(
        self, fields: Sequence[Field], wanted: Collection[str]
    ) -> dict[str, tuple[Field, list[np.ndarray]]]:
        """Returns for each wanted field where its values begin and their bytes (-1: null), by row."""
        stored: dict[str, tuple[Field, list[np.ndarray]]] = {
            field.name: (field, [np.empty(self._rows, np.int64), np.empty(self._rows, np.int32)])
            for field in fields
            if field.name in wanted
        }
        rows = np.empty(self._rows, np.int64)
        done = 0
        with_row = np.searchsorted(-self._counts, -np.arange(int(self._counts.max(initial=0))))
        for row, blocks in enumerate(with_row.tolist()):
            at = self._at[:blocks]
            here = slice(done, done + blocks)
            np.add(self._first_rows[:blocks], row, out=rows[here])
            for field in fields:
                begin, size = self._pass(field, at)
                if field.name in stored:
                    begins, sizes = stored[field.name][1]
                    begins[here] = begin
                    sizes[here] = size
            require(not self._wrong)
            done += blocks
        require((self._at == self._ends).all())
        for _, arrays in stored.values():
            for place, array in enumerate(arrays):
                arrays[place] = np.empty_like(array)
                arrays[place][rows] = array
        return stored

    def _pass(self, field: Field, at: np.ndarray) -> tuple[np.ndarray, np.ndarray | int]:
        """Moves behind a value in all blocks.

        Args:
            field: the field that comes next.
            at: int64 [blocks]: where it begins; where the next one begins, afterwards.

        Returns:
            Where the values begin and how many bytes they have; -1 where there is none.
        """
        words = self._words[at]
        has: np.ndarray | None = None  # int64 [blocks], 0 or 1; None: all have a value
        if field.null is not None:
            branch = words & U64(0xFF)
            most, least = int(branch.max()), int(branch.min())
            self._wrong |= most > 2 or bool((branch & U64(1)).any())
            at += 1
            if most != least or most != 2 * (1 - field.null):
                has = (branch >> U64(1)).astype(np.int64)
                if field.null == 1:
                    has = 1 - has
            words >>= U64(8)
        size: np.ndarray | int
        if field.kind in _FIXED:
            size = _FIXED[field.kind]
            begin = at.copy()
        else:
            length, number = self._number(words, at, field.null is not None, has)
            if field.kind in ("string", "bytes"):
                self._wrong |= bool((number & U64(1)).any()) or bool(np.max(length) > 4)
                begin = at + length
                size = (number >> U64(1)).astype(np.int64)
                moved = size + length
                at += moved if has is None else moved * has
                return begin, size if has is None else np.where(has, size, -1)
            begin, size = at.copy(), length
        at += size if has is None else size * has
        return begin, size if has is None else np.where(has, size, -1)

    def _number(
        self, words: np.ndarray, at: np.ndarray, shifted: bool, has: np.ndarray | None
    ) -> tuple[np.ndarray | int, np.ndarray]:
        """Returns the bytes of variable-length numbers, and the numbers below 2^28, before their zigzag.

        Args:
            words: uint64 [blocks]: the bytes at `at`, seven of them where `shifted`, else eight.
            at: where the numbers begin.
            shifted: see `words`.
            has: where there is a number.
        """
        if has is not None:
            words = np.where(has, words, U64(0))
        if not (words & U64(0x80)).any():
            return 1, words & U64(0x7F)
        ends = ~words & _HIGH
        if shifted:
            ends &= ~U64(0) >> U64(8)
        if not ends.all():
            words = self._words[at] if has is None else np.where(has, self._words[at], U64(0))
            ends = ~words & _HIGH
        lowest = ends & (~ends + U64(1))
        length = (((lowest - U64(1)) & _ONES) * _ONES >> U64(56)).astype(np.int64)
        if not ends.all():
            long = np.flatnonzero(ends == 0)
            rest = self._words[at[long] + 8]
            self._wrong |= bool(((rest & U64(0x8080)) == U64(0x8080)).any())
            length[long] = np.where(rest & U64(0x80), 10, 9)
        low = words & (U64(0x7F) | U64(0x7F00) | U64(0x7F0000) | U64(0x7F000000))
        low &= lowest - U64(1)
        number = (low & U64(0x7F)) | (low >> U64(1) & U64(0x3F80)) | (low >> U64(2) & U64(0x1FC000))
        number |= low >> U64(3) & U64(0xFE00000)
        return length, number


def _column(field: Field, begin: np.ndarray, size: np.ndarray, data: bytes) -> pa.Array:
    absent = size < 0
    some = bool(absent.any())
    if some:
        kept = ~absent
        begin, size = begin[kept], size[kept].astype(np.int64)
    else:
        size = size.astype(np.int64)
    values = _values(field, begin, size, data)
    if not some:
        return values
    places = np.cumsum(kept) - 1
    return (
        values.take(pa.array(np.maximum(places, 0), mask=absent))
        if len(values)
        else pa.nulls(len(absent), values.type)
    )


def _values(field: Field, begin: np.ndarray, size: np.ndarray, data: bytes) -> pa.Array:
    words = words_of(data)[begin]
    if field.kind == "double":
        return pa.array(words.view(np.float64))
    if field.kind == "float":
        return pa.array(words.astype(np.uint32).view(np.float32).astype(np.float64))
    if field.kind == "boolean":
        flags = words & U64(0xFF)
        require(bool((flags <= 1).all()))
        return pa.array(flags.astype(bool))
    if field.kind in ("string", "bytes"):
        if not len(begin):
            return pa.array([], pa.string() if field.kind == "string" else pa.binary())
        require(int(size.max()) < 1 << 28)
        found = joined([texts(Values(begin, size), words, data)])
        return found if field.kind == "bytes" else _utf8(found)
    if not len(begin):
        numbers = np.zeros(0, np.int64)
    else:
        found = integers(Values(begin, size), words, data).to_numpy().view(U64)
        numbers = ((found >> U64(1)) ^ (~(found & U64(1)) + U64(1))).view(np.int64)
    if field.kind == "enum":
        require(bool(((numbers >= 0) & (numbers < len(field.symbols))).all()))
        return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), pa.array(field.symbols))
    if not field.logical:
        return pa.array(numbers)
    unit, least, most = _TIMES[field.logical]
    require(bool(((numbers >= least) & (numbers <= most)).all()))
    if field.logical == "date":
        return pa.array(numbers.astype(np.int32)).cast(pa.date32())
    zone = None if field.logical.startswith("local") else "UTC"
    return pa.array(numbers * unit).cast(pa.timestamp("us", tz=zone))


def _utf8(found: pa.Array) -> pa.Array:
    try:
        if pa.types.is_dictionary(found.type):
            return pa.DictionaryArray.from_arrays(found.indices, found.dictionary.cast(pa.string()))
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        raise UnusualError from None
