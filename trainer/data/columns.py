"""Arrow columns as NumPy numbers, distinct texts, moments and lists, missing told apart. Adopters: leave.

Where a column is not yet of the type that its feature asks for, the rules of `cast.py` apply, as they do in
the sources. Nothing here works row by row in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.data import cast
from trainer.errors import UserError, nearest
from trainer.features import INT64_MISSING

Batch: TypeAlias = "pa.RecordBatch | pa.Table"


@dataclass(frozen=True)
class Column:
    """A column of one batch and the words that name it in an error."""

    array: pa.Array
    name: str
    owner: str  # "feature 'x'", "label"


class Texts(NamedTuple):
    """A text column: `indices` int32 [rows] into the distinct `texts` (string array); -1 is null.

    A text may still be null or "": both mean missing. A value may be listed twice.
    """

    indices: np.ndarray
    texts: pa.Array


class Lists(NamedTuple):
    """A list column as flat entries: entry i is at `place[i]` of the list in row `row[i]`.

    `values` is the Arrow array of entries, `lengths` int64 [rows] the length of each list (0 for null).
    """

    row: np.ndarray
    place: np.ndarray
    values: pa.Array
    lengths: np.ndarray


def column(batch: Batch, name: str, owner: str) -> Column:
    """Returns one column of a batch as a single array.

    Raises:
        UserError: There is no such column, or two.
    """
    found = batch.schema.get_all_field_indices(name)
    if len(found) != 1:
        what = "there is no column" if not found else f"there are {len(found)} columns"
        hint = nearest(name, batch.schema.names) if not found else ""
        raise UserError(f"{owner}: {what} {name!r} in the data{hint}")
    array = batch.column(found[0])
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # older pyarrow, for some types
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return Column(array, name, owner)


def _converted(source: Column, wanted: pa.DataType) -> pa.Array:
    """Returns the column in one of the types of `cast.py`.

    Raises:
        UserError: The column, or a value in it, can't be read so.
    """
    try:
        done = cast.convert(source.array, wanted)
    except cast.WrongTypeError:
        raise UserError(
            f"{source.owner}: column {source.name!r} has type {source.array.type}, "
            f"expected {cast.describe(wanted)}"
        ) from None
    if done.bad is not None:
        broken = source.array.filter(pa.array(done.bad))
        raise UserError(
            f"{source.owner}: column {source.name!r} of type {source.array.type} has {len(broken)} values "
            f"such as {broken[0].as_py()!r}, expected {cast.describe(wanted)}"
        )
    return done.values


def _missing(array: pa.Array) -> np.ndarray:
    return array.is_null().to_numpy(zero_copy_only=False)


def _filled(array: pa.Array) -> np.ndarray:
    """Returns the values with 0 for null; may be a view of Arrow's memory, so never write to it."""
    if array.null_count:
        array = array.fill_null(pa.scalar(0).cast(array.type))
    return array.to_numpy(zero_copy_only=False)


def float32(source: Column, int64_marker: bool = False) -> np.ndarray:
    """Returns numbers as float32 [rows]; NaN is missing, infinities are kept.

    Args:
        source: Column of numbers, booleans or text of numbers.
        int64_marker: Whether -9223372036854775808 means missing, as in a request with int64 values.

    Raises:
        UserError: A column of another type.
    """
    array = source.array
    # Integers go to float32 in one step: by way of float64 they could be rounded twice.
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        array = _converted(source, cast.NUMBER)
    raw = _filled(array)
    with np.errstate(over="ignore"):  # beyond float32 is infinite, which the caller counts as missing
        values = raw.astype(np.float32)
    if array.null_count:
        values[_missing(array)] = np.nan
    if int64_marker and raw.dtype == np.int64:
        values[raw == INT64_MISSING] = np.nan
    return values


def int64(source: Column) -> tuple[np.ndarray, np.ndarray]:
    """Returns integers as int64 [rows] and bool [rows]: which are missing (their value is 0).

    Raises:
        UserError: A column of another type, or of floating numbers that are not whole.
    """
    array = _converted(source, cast.INTEGER)
    values, missing = _filled(array), _missing(array)
    marker = values == INT64_MISSING
    if marker.any():
        missing, values = missing | marker, np.where(marker, 0, values)
    return values, missing


def boolean(source: Column) -> np.ndarray:
    """Returns int8 [rows]: 0 false, 1 true, -1 missing.

    Raises:
        UserError: A column of another type, or numbers other than 0 and 1.
    """
    array = _converted(source, cast.BOOLEAN)
    return array.cast(pa.int8()).fill_null(-1).to_numpy(zero_copy_only=False)


def micros(source: Column) -> tuple[np.ndarray, np.ndarray]:
    """Returns moments as int64 microseconds since 1970 UTC and bool: which are missing (their value is 0).

    Raises:
        UserError: A column of another type, or text that is no time.
    """
    array = _converted(source, cast.TIME).cast(pa.int64())
    return _filled(array), _missing(array)


def text(source: Column) -> Texts:
    """Returns a column of text, integers, booleans or dates in text form, each distinct value once.

    Raises:
        UserError: A column of another type, or bytes that are not UTF-8.
    """
    array = _converted(source, cast.TEXT)
    indices = array.indices.cast(pa.int32())
    if indices.null_count:
        indices = indices.fill_null(-1)
    return Texts(indices.to_numpy(), array.dictionary)


def lists(source: Column, expected: str) -> Lists:
    """Returns a list column as flat entries.

    Args:
        source: Column of lists; a null is an empty list.
        expected: What the column should hold, for the error.

    Raises:
        UserError: A column of another type.
    """
    array, kind = source.array, source.array.type
    if pa.types.is_null(kind):
        array = array.cast(pa.list_(pa.string()))
    elif pa.types.is_fixed_size_list(kind):  # its nulls own entries; as a plain list they don't
        array = array.cast(pa.large_list(kind.value_field))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise UserError(f"{source.owner}: column {source.name!r} has type {kind}, expected {expected}")
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    row = np.repeat(np.arange(len(array)), lengths)
    place = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Lists(row, place, array.flatten(), lengths)


def vectors(source: Column, length: int) -> np.ndarray:
    """Returns lists of `length` numbers as float32 [rows, length]; NaN is missing, infinities are kept.

    Raises:
        UserError: A column of another type, or a list of another length (null and empty lists are missing).
    """
    found = lists(source, "a list of numbers")
    wrong = (found.lengths != length) & (found.lengths != 0)
    if wrong.any():
        raise UserError(
            f"{source.owner}: column {source.name!r} has {int(wrong.sum())} lists whose length is not "
            f"{length}, such as one of {int(found.lengths[wrong][0])}: set 'length' to the true one"
        )
    block = np.full((len(found.lengths), length), np.nan, np.float32)
    block[found.lengths == length] = float32(Column(found.values, source.name, source.owner)).reshape(
        -1, length
    )
    return block


def entries(source: Column, max_length: int) -> tuple[np.ndarray, np.ndarray, Texts]:
    """Returns the entries of a bag that are kept: row [n], place [n], and their texts.

    Raises:
        UserError: A column of another type.
    """
    found = lists(source, "a list of texts or integers")
    kept = found.place < max_length
    values = found.values if kept.all() else found.values.filter(pa.array(kept))
    return found.row[kept], found.place[kept], text(Column(values, source.name, source.owner))


def bag_weights(source: Column, rows: int, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights of bag entries as float32 [rows, max_length], and int64 [rows]: lengths of the lists.

    A weight that is missing or infinite counts as 1; one below 0, or too small for a normal float32, as 0.

    Raises:
        UserError: A column of another type.
    """
    found = lists(source, "a list of numbers")
    weights = np.ones((rows, max_length), np.float32)
    kept = found.place < max_length
    values = float32(Column(found.values, source.name, source.owner))[kept]
    values = np.where(np.isfinite(values), values, np.float32(1))
    weights[found.row[kept], found.place[kept]] = np.where(values < np.finfo(np.float32).tiny, 0, values)
    return weights, found.lengths
