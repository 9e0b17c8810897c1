"""TFRecord files of tf.Example, parsed a few thousand at a time. Adopters: leave.

TensorFlow is imported when the first such file is opened. A feature that is absent or empty is null; integers
are accepted where numbers are wanted; several values for a feature that takes one are a bad record.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.data import cast
from trainer.data.files import DataFile
from trainer.data.formats import BadRow, Bounds, Part, ReadOptions
from trainer.errors import UserError

_ROWS = 8192  # examples parsed in one call
_SAMPLE = 200
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
        count = 0
        with tf.device("/CPU:0"):
            try:
                for record in self._records().take(_SAMPLE):
                    count += 1
                    with contextlib.suppress(ValueError):  # told when it is read
                        for name, (kind, values) in _parse(record.numpy()).items():
                            self._kinds.setdefault(name, set()).update({kind} if values else ())
            except tf.errors.OpError as error:
                if not count:
                    raise UserError(f"{file.path}: {_reason(error)} at its first record") from error
        if not self._kinds:
            raise UserError(f"{file.path}: holds no tf.Example with features")

    def _records(self) -> Any:
        tf = _tensorflow()
        path = self._file.path if "://" in self._file.path else self._file.inner
        return tf.data.TFRecordDataset([path], compression_type=self._compression)

    def schema(self) -> dict[str, pa.DataType]:
        return {
            name: _STORED[next(iter(kinds))] if len(kinds) == 1 else pa.string() if kinds else pa.null()
            for name, kinds in self._kinds.items()
        }

    def parts(self) -> list[Part]:
        return [Part("", 0, None)]

    def bounds(self, part: Part, column: str) -> Bounds | None:
        return None

    def locate(self, row: int) -> str:
        return f"{self._file.path}, record {row + 1}"

    def read(
        self, part: Part, columns: Sequence[str], bad: BadRow
    ) -> Iterator[tuple[pa.RecordBatch, Sequence[int] | int]]:
        kinds = {name: set(self._kinds.get(name, ())) for name in columns}
        row = 0
        for serialized in self._batches(bad):
            size = len(serialized)
            found = self._fast(serialized, columns, kinds)
            if found is None:
                yield self._slow(serialized, columns, kinds, row, bad)
            else:
                yield self._single(found, columns, size, row, bad)
            row += size

    def _batches(self, bad: BadRow) -> Iterator[Any]:
        """Yields string tensors of whole records."""
        tf = _tensorflow()
        done = 0
        with tf.device("/CPU:0"):
            iterator = iter(self._records().batch(min(_ROWS, self._options.chunk_rows)))
        while True:
            try:
                with tf.device("/CPU:0"):  # not around the yield: it would hold for whoever takes the batch
                    batch = next(iterator)
            except StopIteration:
                return
            except tf.errors.OpError as error:
                # The good records before the damage are in the batch that failed: take them one by one.
                good = self._before_damage(done)
                if len(good):
                    yield good
                done += len(good)
                bad(done, f"{_reason(error)}; the records after it can't be found")
                return
            done += len(batch)
            yield batch

    def _before_damage(self, done: int) -> Any:
        """Returns the records after the first `done` up to the one that can't be read."""
        tf = _tensorflow()
        good: list[Any] = []
        with tf.device("/CPU:0"):
            with contextlib.suppress(tf.errors.OpError):
                good.extend(self._records().skip(done))
            return tf.stack(good) if good else tf.constant([], tf.string)

    # --- parsing in TensorFlow

    def _fast(
        self, serialized: Any, columns: Sequence[str], kinds: dict[str, set[str]]
    ) -> dict[str, tuple[Any, np.ndarray]] | None:
        """Returns column -> (flat values as an Arrow array, values of each row), or None if it can't."""
        tf = _tensorflow()
        types = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}
        spec = {}
        for name in columns:
            found = kinds[name] or {_GUESS[self._options.wanted.get(name, cast.TEXT)]}
            if len(found) > 1:
                return None
            spec[name] = tf.io.RaggedFeature(types[next(iter(found))], row_splits_dtype=tf.int64)
        with tf.device("/CPU:0"):
            try:
                parsed = tf.io.parse_example(serialized, spec)
            except tf.errors.OpError:
                return None
            result = {}
            for name, ragged in parsed.items():
                lengths = np.diff(ragged.row_splits.numpy())
                result[name] = (_values(ragged.flat_values), lengths)
        return result

    def _single(
        self,
        found: dict[str, tuple[Any, np.ndarray]],
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
        self, serialized: Any, columns: Sequence[str], kinds: dict[str, set[str]], row: int, bad: BadRow
    ) -> tuple[pa.RecordBatch, list[int]]:
        rows: list[int] = []
        found: dict[str, list[list[Any]]] = {name: [] for name in columns}
        for number, record in enumerate(serialized.numpy(), start=row):
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
