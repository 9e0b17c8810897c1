"""TFRecord files of tf.Example, parsed a few thousand at a time. Adopters: leave.

TensorFlow is imported when the first such file is opened. A feature that is absent or empty is null; integers
are accepted where numbers are wanted; several values for a feature that takes one are a bad record.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.data import cast, examples
from trainer.data.files import DataFile
from trainer.data.formats import BadRow, Bounds, Part, ReadOptions, ranges, records
from trainer.errors import UserError

_ROWS, _BYTES = 32_768, 32 << 20  # examples parsed in one call, and how large they may be
_BLOCK = 8 << 20  # bytes read at a time
_SAMPLE, _SAMPLE_BYTES = 200, 256 << 10
_UNUSUAL = 3  # batches that `examples.decode` may refuse before a file is left to TensorFlow alone
_LISTS = (cast.TEXT_LIST, cast.NUMBER_LIST)
_STORED = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}
_GUESS = {
    cast.NUMBER: "float_list",
    cast.INTEGER: "int64_list",
    cast.BOOLEAN: "int64_list",
    cast.TEXT: "bytes_list",
    cast.TIME: "bytes_list",
    cast.TEXT_LIST: "bytes_list",
    cast.NUMBER_LIST: "float_list",
}


def _tensorflow() -> Any:
    import tensorflow as tf

    return tf


class TfrecordReader:
    """One TFRecord file."""

    optional_columns = True
    typed = True

    def __init__(self, file: DataFile, options: ReadOptions) -> None:
        tf = _tensorflow()
        self._file = file
        self._options = options
        self._compression = _compression(file)
        self._kinds: dict[str, set[str]] = {}
        self._unusual = 0
        self._parts = [ranges.whole(file)] if self._compression else ranges.parts(file)
        self._starts = ranges.Starts(self._parts, functools.partial(records.find_start, file))
        count = 0
        try:
            for some in self._lists(0, file.size, _SAMPLE_BYTES):
                for record in () if isinstance(some, records.Damaged) else some[: _SAMPLE - count]:
                    count += 1
                    with contextlib.suppress(ValueError):  # told when it is read
                        for name, (kind, values) in _parse(record).items():
                            self._kinds.setdefault(name, set()).update({kind} if values else ())
                if count >= _SAMPLE:
                    break
        except (records.DamageError, tf.errors.OpError) as error:
            if not count:
                raise UserError(f"{file.path}: {_reason(error)} at its first record") from error
        if not self._kinds:
            raise UserError(f"{file.path}: holds no tf.Example with features")

    def _lists(self, start: int, stop: int, step: int) -> Iterator[list[bytes] | records.Damaged]:
        """Yields the records between two places, some at a time; see `records.read`."""
        if not self._compression:
            yield from records.read(self._file, start, stop, step)
            return
        yield from records.together(records.in_tensorflow(self._file, self._compression))

    def schema(self) -> dict[str, pa.DataType]:
        return {
            name: _STORED[next(iter(kinds))] if len(kinds) == 1 else pa.string() if kinds else pa.null()
            for name, kinds in self._kinds.items()
        }

    def parts(self) -> list[Part]:
        return list(self._parts)

    def bounds(self, part: Part, column: str) -> Bounds | None:
        return None

    def locate(self, row: int) -> str:
        index, number = ranges.split_number(row)
        if index:
            number += records.count(self._file, self._starts.at(index))
        return f"{self._file.path}, record {number + 1}"

    def read(
        self, part: Part, columns: Sequence[str], bad: BadRow
    ) -> Iterator[tuple[pa.RecordBatch, Sequence[int] | int]]:
        kinds = {name: set(self._kinds.get(name, ())) for name in columns}
        for row, some in self._batches(part, bad):
            found = self._fast(some, columns, kinds)
            if found is None:
                yield self._slow(some, columns, kinds, row, bad)
            else:
                yield self._single(found, columns, len(some), row, bad)

    def _batches(self, part: Part, bad: BadRow) -> Iterator[tuple[int, list[bytes]]]:
        """Yields whole records, some thousands at a time, each time with the row of the first one."""
        rows = min(_ROWS, self._options.chunk_rows)
        waiting: list[bytes] = []
        size, done = 0, part.first_row
        lists = self._lists(*self._starts.of(part.place), _BLOCK)
        damage: Exception | None = None
        while True:
            try:
                some = next(lists, None)
            except (records.DamageError, _tensorflow().errors.OpError) as error:
                some, damage = None, error
            last = not isinstance(some, list)
            if isinstance(some, list):
                waiting += some
                size += sum(map(len, some))
            while len(waiting) >= rows or (waiting and (last or size >= _BYTES)):
                yield done, waiting[:rows]
                done += len(waiting[:rows])
                del waiting[:rows]
                size = sum(map(len, waiting))
            if isinstance(some, records.Damaged):
                bad(done, f"is damaged ({some})")
                done += 1
            elif some is None:
                break
        if damage is not None:
            bad(done, f"{_reason(damage)}; the records after it can't be found")

    # --- parsing many records at once

    def _fast(
        self, records: list[bytes], columns: Sequence[str], kinds: dict[str, set[str]]
    ) -> dict[str, examples.Column] | None:
        """Returns the flat values and their number in each row of each column, or None if it can't."""
        one: dict[str, str] = {}
        for name in columns:
            found = kinds[name] or {_GUESS[self._options.wanted.get(name, cast.TEXT)]}
            if len(found) > 1:
                return None
            one[name] = next(iter(found))
        decoded: dict[str, examples.Column] | None = {}
        single = {name: kind for name, kind in one.items() if self._options.wanted.get(name) not in _LISTS}
        if single and self._unusual < _UNUSUAL:
            decoded = examples.decode(records, single)
            self._unusual += decoded is None
        rest = {name: kind for name, kind in one.items() if not decoded or name not in decoded}
        if not rest:
            return decoded
        parsed = self._parsed(records, rest)
        return None if parsed is None else {**(decoded or {}), **parsed}

    def _parsed(self, records: list[bytes], kinds: dict[str, str]) -> dict[str, examples.Column] | None:
        """Parses in TensorFlow; None if it can't."""
        tf = _tensorflow()
        types = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}
        spec = {
            name: tf.io.RaggedFeature(types[kind], row_splits_dtype=tf.int64) for name, kind in kinds.items()
        }
        with tf.device("/CPU:0"):
            try:
                parsed = tf.io.parse_example(tf.constant(records, tf.string), spec)
            except (tf.errors.OpError, UnicodeDecodeError):  # the message may hold bytes of the record
                return None
            result = {}
            for name, ragged in parsed.items():
                lengths = np.diff(ragged.row_splits.numpy())
                result[name] = (_values(ragged.flat_values), lengths)
        return result

    def _single(
        self,
        found: dict[str, examples.Column],
        columns: Sequence[str],
        size: int,
        row: int,
        bad: BadRow,
    ) -> tuple[pa.RecordBatch, Sequence[int] | int]:
        """Makes columns of parsed features: one value a row, or a list where a list is wanted."""
        keep = np.ones(size, bool)
        arrays = []
        for name in columns:
            values, lengths = found[name]
            if lengths is None:
                arrays.append(values)
                continue
            if self._options.wanted.get(name) in _LISTS:
                offsets = np.zeros(size + 1, np.int32)
                np.cumsum(lengths, out=offsets[1:])
                arrays.append(pa.ListArray.from_arrays(pa.array(offsets), values))
                continue
            for place in np.flatnonzero(lengths > 1):
                if keep[place]:
                    bad(row + int(place), f"feature {name!r} has {int(lengths[place])} values, expected one")
                    keep[place] = False
            if (lengths == 1).all():
                arrays.append(values)
            else:
                ends = pa.array(np.maximum(np.cumsum(lengths) - 1, 0), mask=lengths == 0)
                arrays.append(values.take(ends))
        batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
        if keep.all():
            return batch, row
        return batch.filter(pa.array(keep)), (row + np.flatnonzero(keep)).tolist()

    # --- parsing in Python, for features of mixed types and for finding a broken record

    def _slow(
        self, records: list[bytes], columns: Sequence[str], kinds: dict[str, set[str]], row: int, bad: BadRow
    ) -> tuple[pa.RecordBatch, list[int]]:
        rows: list[int] = []
        found: dict[str, list[list[Any]]] = {name: [] for name in columns}
        for number, record in enumerate(records, start=row):
            try:
                example = _parse(record)
                for name in columns:
                    values = example.get(name, ("", []))[1]
                    if len(values) > 1 and self._options.wanted.get(name) not in _LISTS:
                        raise ValueError(f"feature {name!r} has {len(values)} values, expected one")
            except ValueError as error:
                bad(number, str(error))
                continue
            rows.append(number)
            for name in columns:
                kind, values = example.get(name, ("", []))
                found[name].append(values)
                kinds[name].update({kind} if values else ())
        arrays = []
        for name in columns:
            lists = found[name]
            kind = _common([value for values in lists for value in values])
            if kind == pa.binary():
                lists = [[_as_bytes(value) for value in values] for values in lists]
            if self._options.wanted.get(name) in _LISTS:
                arrays.append(pa.array(lists, pa.list_(kind)))
            else:
                arrays.append(pa.array([values[0] if values else None for values in lists], kind))
        return pa.RecordBatch.from_arrays(arrays, names=list(columns)), rows


def _compression(file: DataFile) -> str:
    """Returns TensorFlow's name for the compression, by the content and not by the name."""
    if file.compression == "gzip":
        return "GZIP"
    start = file.head(12)
    if start[:1] == b"\x78" and len(start) >= 8 and struct.unpack("<Q", start[:8])[0] > file.size:
        return "ZLIB"
    if file.compression is not None and os.path.splitext(file.path)[1] in (".zst", ".bz2", ".xz", ".zip"):
        raise UserError(
            f"{file.path}: is compressed with {file.compression}; TFRecord files may be gzip or zlib"
        )
    return ""


def _parse(record: bytes) -> dict[str, tuple[str, list[Any]]]:
    """Returns feature -> (kind, values) of a serialized tf.Example.

    Raises:
        ValueError: the record is no tf.Example.
    """
    from google.protobuf.message import DecodeError

    try:
        example = _tensorflow().train.Example.FromString(record)
    except DecodeError as error:
        raise ValueError("is no tf.Example") from error
    features = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind") or ""
        features[name] = (kind, list(getattr(feature, kind).value) if kind else [])
    return features


def _values(tensor: Any) -> pa.Array:
    """Returns a flat tensor as an Arrow array; strings without making a Python object of each."""
    tf = _tensorflow()
    if tensor.dtype != tf.string:
        return pa.array(tensor.numpy())
    lengths = tf.strings.length(tensor).numpy()
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = tf.strings.reduce_join(tensor).numpy()
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
    )


def _common(values: list[Any]) -> pa.DataType:
    kinds = {type(value) for value in values}
    if not kinds:
        return pa.null()
    if bytes in kinds:
        return pa.binary()
    return pa.float64() if float in kinds else pa.int64()


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    text = pa.array([value])
    return cast.text_form(text).dictionary[0].as_py().encode()


def _reason(error: Exception) -> str:
    message = (str(getattr(error, "message", "")) or str(error)).splitlines()[0][:150]
    return f"is damaged, cut short or no TFRecord file ({message})"
