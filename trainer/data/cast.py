"""Stored columns become the types that the features ask for, value by value. Adopters: leave.

Rules, the same for every file format:

- number: integers, floats, decimals, booleans (0/1), and text that is a number, blanks around it or not;
- integer: integers, whole floats, and text that is an integer; large ones are never rounded;
- text: any scalar in its text form: an integer in decimals, a whole float without a fraction (7.0 is "7"),
  a boolean as true/false, a date or time in ISO 8601. So 7, 7.0 and "7" are the same value;
- boolean: booleans, 0/1, and the texts true/false, t/f, yes/no, y/n, 1/0 in any case;
- time: dates and timestamps (without a zone: UTC) and ISO 8601 text;
- list: a list of the above, or a JSON array as text (for CSV); an empty list is missing.

Missing stays null. A value that fits none of this is reported, not guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.times import parse_time

NUMBER = pa.float64()
INTEGER = pa.int64()
TEXT = pa.dictionary(pa.int32(), pa.string())
BOOLEAN = pa.bool_()
TIME = pa.timestamp("us", tz="UTC")
TEXT_LIST = pa.list_(pa.string())
NUMBER_LIST = pa.list_(pa.float32())

_TRUE = frozenset(("true", "t", "yes", "y", "1"))
_FALSE = frozenset(("false", "f", "no", "n", "0"))
_NAMES = {
    NUMBER: "a number",
    INTEGER: "an integer",
    TEXT: "text",
    BOOLEAN: "true or false",
    TIME: "a date or time (ISO 8601)",
    TEXT_LIST: "a list of texts",
    NUMBER_LIST: "a list of numbers",
}


@dataclass(frozen=True)
class Converted:
    """A column after its conversion.

    Attributes:
        values: the column in the wanted type; null where it was missing or bad.
        bad: bool [rows], true where a value could not be read; None when all could.
    """

    values: pa.Array
    bad: np.ndarray | None = None


class WrongTypeError(TypeError):
    """A whole column is of a type from which the wanted one can't be made."""


def describe(wanted: pa.DataType) -> str:
    """Returns a wanted type in words."""
    return _NAMES.get(wanted, str(wanted))


def convert(array: pa.Array, wanted: pa.DataType, missing: Iterable[str] = ("",)) -> Converted:
    """Converts a stored column.

    Args:
        array: the stored column, of any type.
        wanted: one of the types of this module.
        missing: texts that stand for a missing value, after blanks around them are dropped. The empty text
            does so anyway, except where text is wanted and no other one is given.

    Returns:
        The column in the wanted type, with a mask of the values that could not be read.

    Raises:
        WrongTypeError: the stored type as a whole doesn't fit.
    """
    if array.type == wanted and not pa.types.is_list(wanted):
        return _unmarked(Converted(array), frozenset(missing))
    if pa.types.is_null(array.type):
        return Converted(pa.nulls(len(array), wanted))
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    missing = frozenset(missing)
    if pa.types.is_list(wanted):
        return _lists(array, wanted, missing)
    if pa.types.is_dictionary(array.type):
        if wanted == TEXT:
            return _unmarked(_text_dictionary(array), missing)
        done = convert(array.dictionary, wanted, missing)
        bad = None
        if done.bad is not None:
            indices = pc.fill_null(array.indices, 0).to_numpy(zero_copy_only=False)
            used = done.bad[indices] if len(done.bad) else np.zeros(len(array), bool)
            used &= pc.is_valid(array).to_numpy(zero_copy_only=False)
            bad = used if used.any() else None
        return Converted(done.values.take(array.indices), bad)
    kind = array.type
    if wanted == TEXT:
        return _unmarked(_to_text(array), missing)
    if _is_text(kind):
        array, bad = _utf8(array)
        parser = {
            NUMBER: _parse_numbers,
            INTEGER: _parse_integers,
            BOOLEAN: _parse_booleans,
            TIME: _parse_times,
        }
        done = parser[wanted](array, missing)
        return Converted(done.values, _either(bad, done.bad))
    if wanted == NUMBER and _is_numeric(kind):
        return Converted(pc.cast(array, NUMBER, safe=False))
    if wanted == INTEGER and _is_numeric(kind):
        return _to_integers(array)
    if wanted == BOOLEAN and _is_numeric(kind):
        return _to_booleans(array)
    if wanted == TIME and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return Converted(to_time(array))
    raise WrongTypeError(f"{kind} where {describe(wanted)} is wanted")


def to_time(array: pa.Array) -> pa.Array:
    """Casts dates and timestamps to microseconds in UTC; those without a zone are taken as UTC."""
    if pa.types.is_date(array.type):
        array = pc.cast(array, pa.timestamp("ms"))
    zone = array.type.tz
    return pc.cast(pc.cast(array, pa.timestamp("us", tz=zone), safe=False), TIME, safe=False)


def text_form(array: pa.Array) -> pa.Array:
    """Returns the text form of a column as dictionary<int32, string>, by the rules of this module.

    Raises:
        WrongTypeError: lists and records have no text form.
    """
    return convert(array, TEXT).values


# --- numbers, integers, booleans --------------------------------------------------------------------


def _is_text(kind: pa.DataType) -> bool:
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or kind in (getattr(pa, "string_view", pa.string)(), getattr(pa, "binary_view", pa.binary)())
    )


def _is_numeric(kind: pa.DataType) -> bool:
    return (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
    )


def _either(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    return second if first is None else first if second is None else first | second


def _numpy(array: pa.Array) -> np.ndarray:
    return array.to_numpy(zero_copy_only=False)


def _mask(array: pa.Array) -> np.ndarray | None:
    bad = _numpy(pc.fill_null(array, False))
    return bad if bad.any() else None


def _without(array: pa.Array, bad: np.ndarray | None) -> pa.Array:
    return array if bad is None else pc.if_else(pa.array(bad), pa.scalar(None, array.type), array)


def _utf8(array: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """Returns text as pa.string(), with a mask of the values that are not UTF-8."""
    if pa.types.is_string(array.type):
        return array, None
    try:
        return pc.cast(array, pa.string()), None
    except pa.ArrowInvalid:
        bad = np.zeros(len(array), bool)
        texts: list[str | None] = []
        for row, value in enumerate(array.to_pylist()):
            try:
                texts.append(value.decode() if isinstance(value, bytes) else value)
            except UnicodeDecodeError:
                bad[row] = True
                texts.append(None)
        return pa.array(texts, pa.string()), bad


def _trimmed(array: pa.Array, missing: frozenset[str]) -> pa.Array:
    """Drops blanks around text and makes the texts that mean missing null."""
    array = pc.utf8_trim_whitespace(array)
    markers = pa.array(sorted(missing | {""}), pa.string())
    return pc.if_else(pc.is_in(array, markers), pa.scalar(None, pa.string()), array)


def _by_value(array: pa.Array, wanted: pa.DataType, parse: Callable[[str], Any]) -> Converted:
    """Parses each distinct text with a Python function that raises ValueError for a bad one."""
    encoded = array.dictionary_encode()
    values: list[Any] = []
    wrong = []
    for text in encoded.dictionary.to_pylist():
        try:
            values.append(parse(text))
            wrong.append(False)
        except (ValueError, OverflowError):
            values.append(None)
            wrong.append(True)
    parsed = pa.array(values, wanted).take(encoded.indices)
    return Converted(parsed, _mask(pa.array(wrong, pa.bool_()).take(encoded.indices)) if any(wrong) else None)


def _number(text: str) -> float:
    if "_" in text:  # Python takes 1_000 for a number, no data file means that
        raise ValueError(text)
    return float(text)


def _parse_numbers(array: pa.Array, missing: frozenset[str]) -> Converted:
    try:
        return Converted(pc.cast(array, NUMBER))
    except pa.ArrowInvalid:
        array = _trimmed(array, missing)
    try:
        return Converted(pc.cast(array, NUMBER))
    except pa.ArrowInvalid:
        return _by_value(array, NUMBER, _number)


def _integer(text: str) -> int:
    if "_" in text:
        raise ValueError(text)
    try:
        value = int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer() or abs(number) > 2**53:
            raise ValueError(text) from None
        value = int(number)
    if not -(2**63) <= value < 2**63:
        raise ValueError(text)
    return value


def _parse_integers(array: pa.Array, missing: frozenset[str]) -> Converted:
    try:
        return Converted(pc.cast(array, INTEGER))
    except pa.ArrowInvalid:
        array = _trimmed(array, missing)
    try:
        return Converted(pc.cast(array, INTEGER))
    except pa.ArrowInvalid:
        return _by_value(array, INTEGER, _integer)


def _to_integers(array: pa.Array) -> Converted:
    kind = array.type
    if pa.types.is_boolean(kind):
        return Converted(pc.cast(array, INTEGER))
    bad = None
    if pa.types.is_floating(kind):
        values = _numpy(pc.cast(array, NUMBER))  # null becomes NaN, and NaN means missing
        absent = np.isnan(values)
        bad = ~absent & ((values != np.floor(values)) | (np.abs(values) >= 2.0**63))
        whole = np.where(absent | bad, 0, values).astype(np.int64)
        return Converted(pa.array(whole, mask=absent | bad), bad if bad.any() else None)
    try:
        return Converted(pc.cast(array, INTEGER))
    except pa.ArrowInvalid:  # unsigned beyond 2^63, decimals with a fraction
        return _by_value(pc.cast(array, pa.string()), INTEGER, _integer)


def _to_booleans(array: pa.Array) -> Converted:
    numbers = pc.cast(array, NUMBER, safe=False)
    numbers = pc.if_else(pc.is_nan(numbers), pa.scalar(None, NUMBER), numbers)
    is_true, is_false = pc.equal(numbers, 1.0), pc.equal(numbers, 0.0)
    bad = _mask(pc.invert(pc.or_(is_true, is_false)))
    return Converted(_without(is_true, bad), bad)


def _boolean(text: str) -> bool:
    lower = text.lower()
    if lower in _TRUE or lower in ("1.0",):
        return True
    if lower in _FALSE or lower in ("0.0",):
        return False
    raise ValueError(text)


def _parse_booleans(array: pa.Array, missing: frozenset[str]) -> Converted:
    return _by_value(_trimmed(array, missing), BOOLEAN, _boolean)


# --- times ------------------------------------------------------------------------------------------


def _parse_times(array: pa.Array, missing: frozenset[str]) -> Converted:
    # Text with and without a zone needs two casts in Arrow; most columns hold one of the two.
    for kind in (pa.timestamp("us"), TIME):
        try:
            return Converted(to_time(pc.cast(array, kind)))
        except pa.ArrowInvalid:
            continue
    return _by_value(_trimmed(array, missing), TIME, parse_time)


# --- text -------------------------------------------------------------------------------------------


def _text_dictionary(array: pa.DictionaryArray) -> Converted:
    values = array.dictionary
    bad = None
    if not pa.types.is_string(values.type):
        if _is_text(values.type):
            values, wrong = _utf8(values)
            if wrong is not None:
                bad = _mask(pa.array(wrong).take(array.indices))
        else:
            values = _plain_text(values)
    indices = array.indices
    if not pa.types.is_int32(indices.type):
        indices = pc.cast(indices, pa.int32())
    return Converted(pa.DictionaryArray.from_arrays(indices, values), bad)


def _unmarked(done: Converted, missing: frozenset[str]) -> Converted:
    """Makes the texts that mean missing null."""
    if done.values.type != TEXT or not missing - {""}:
        return done
    column = done.values
    marked = pc.is_in(pc.utf8_trim_whitespace(column.dictionary), pa.array(sorted(missing), pa.string()))
    if not pc.any(marked).as_py():
        return done
    places = pc.indices_nonzero(marked).cast(pa.int32())
    indices = pc.if_else(pc.is_in(column.indices, places), pa.scalar(None, pa.int32()), column.indices)
    return Converted(pa.DictionaryArray.from_arrays(indices, column.dictionary), done.bad)


def _to_text(array: pa.Array) -> Converted:
    if _is_text(array.type):
        if pa.types.is_binary(array.type):  # whether it is text is asked once for each distinct value
            return _text_dictionary(array.dictionary_encode())
        array, bad = _utf8(array)
        return Converted(array.dictionary_encode(), bad)
    if pa.types.is_nested(array.type):
        raise WrongTypeError(f"{array.type} where text is wanted")
    encoded = array.dictionary_encode()
    return Converted(pa.DictionaryArray.from_arrays(encoded.indices, _plain_text(encoded.dictionary)))


def _plain_text(values: pa.Array) -> pa.Array:
    """Returns the text form of distinct values that are not stored as text."""
    kind = values.type
    if pa.types.is_floating(kind):
        numbers = pc.cast(values, NUMBER)
        exact = _numpy(numbers)
        whole = np.isfinite(exact) & (exact == np.floor(exact)) & (np.abs(exact) < 2.0**53)
        as_integers = pc.cast(pa.array(np.where(whole, exact, 0).astype(np.int64)), pa.string())
        text = pc.if_else(pa.array(whole), as_integers, pc.cast(numbers, pa.string()))
        return pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.string()), text)
    if pa.types.is_decimal(kind):
        texts = (None if v is None else f"{v:f}" for v in values.to_pylist())
        return pa.array(
            [t if t is None or "." not in t else t.rstrip("0").rstrip(".") for t in texts], pa.string()
        )
    if pa.types.is_timestamp(kind):
        text = pc.cast(pc.cast(to_time(values), pa.timestamp("us")), pa.string())
        return pc.replace_substring_regex(text, r"\.000000$", "")
    try:
        return pc.cast(values, pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise WrongTypeError(f"{kind} where text is wanted") from error


# --- lists ------------------------------------------------------------------------------------------


def _lists(array: pa.Array, wanted: pa.DataType, missing: frozenset[str]) -> Converted:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    bad = None
    if _is_text(array.type):
        array, bad = _utf8(array)
        parsed = _by_value(_trimmed(array, missing), wanted, _json_list(wanted))
        array, bad = parsed.values, _either(bad, parsed.bad)
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        array = array.cast(pa.list_(kind.value_type))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise WrongTypeError(f"{kind} where {describe(wanted)} is wanted")
    if len(array) == 0:
        return Converted(pa.array([], wanted), bad)
    entries = convert(array.flatten(), TEXT if wanted == TEXT_LIST else NUMBER, missing)
    lengths = _numpy(pc.fill_null(pc.list_value_length(array), 0)).astype(np.int64)
    if entries.bad is not None:
        rows = np.repeat(np.arange(len(array)), lengths)
        wrong = np.zeros(len(array), bool)
        wrong[rows[entries.bad]] = True
        bad = _either(bad, wrong)
    values = entries.values
    values = values.dictionary_decode() if wanted == TEXT_LIST else pc.cast(values, pa.float32(), safe=False)
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    empty = lengths == 0  # an empty list holds nothing: missing, as in tf.Example
    nulls = pa.array(empty if bad is None else empty | bad)
    return Converted(pa.ListArray.from_arrays(pa.array(offsets), values, mask=nulls), bad)


def _json_list(wanted: pa.DataType) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        value = json.loads(text)
        if not isinstance(value, list) or any(isinstance(entry, (list, dict)) for entry in value):
            raise ValueError(text)
        if wanted == NUMBER_LIST:
            return [None if entry is None else float(entry) for entry in value]
        return [
            None if entry is None else entry if isinstance(entry, str) else json.dumps(entry)
            for entry in value
        ]

    return parse
