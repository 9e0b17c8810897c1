"""Which split a row is in: by time, by a hash of a key, or by a column. Adopters: leave."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import math
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.config import SplitConfig
from trainer.data import cast
from trainer.data.formats import Bounds
from trainer.data.times import parse_time
from trainer.errors import UserError, nearest

TRAIN, VALIDATION, TEST = 0, 1, 2
NAMES = ("train", "validation", "test")


class Splitter(Protocol):
    """Deals rows to the splits by one column."""

    column: str
    has: tuple[bool, bool, bool]  # which splits can have rows at all

    def assign(self, values: pa.Array, where: str) -> np.ndarray:
        """Returns int8 [rows]: the split of each row, from the stored column.

        Args:
            values: the stored column.
            where: what messages call the rows, such as the file's name.

        Raises:
            UserError: a value that names no split.
        """
        ...

    def assign_bounds(self, bounds: Bounds) -> range | None:
        """Returns the splits that rows with these bounds can be in, or None if only reading them tells."""
        ...

    def seen(self) -> str:
        """Says which values rows have been dealt by so far, for the message about an empty split."""
        ...


def make_splitter(config: SplitConfig) -> Splitter | None:
    """Returns the splitter that the config asks for; None for by=paths, where files decide."""
    if config.by == "time":
        return TimeSplit(config)
    if config.by == "hash":
        return HashSplit(config)
    if config.by == "column":
        return ColumnSplit(config)
    return None


def _column(config: SplitConfig) -> str:
    assert config.column is not None  # the config checks this
    return config.column


class TimeSplit:
    """Rows before `validation_from` train, rows from `test_from` on test, the rest validate."""

    def __init__(self, config: SplitConfig) -> None:
        self.column = _column(config)
        self._cuts = [(key, text) for key, text in _cuts(config) if text is not None]
        self.has = (True, True, config.test_from is not None)
        numbers = [_as_number(text) for _, text in self._cuts]
        times = [_as_time(text) for _, text in self._cuts]
        self._numbers = None if any(n is None for n in numbers) else [n for n in numbers if n is not None]
        self._times = None if any(t is None for t in times) else [t for t in times if t is not None]
        for key, text in self._cuts:
            if _as_number(text) is None and _as_time(text) is None:
                raise UserError(
                    f"data.split.{key}={text!r} is no moment; "
                    "expected ISO 8601 such as 2024-05-01 or a number"
                )
        for cuts in (self._numbers, self._times):
            if cuts is not None and len(cuts) == 2 and cuts[0] >= cuts[1]:  # type: ignore[operator]
                raise UserError(
                    f"data.split.test_from={self._cuts[1][1]!r} must be later than "
                    f"validation_from={self._cuts[0][1]!r}"
                )
        if self._numbers is None and self._times is None:
            raise UserError("data.split: validation_from and test_from must both be times or both be numbers")
        self._low: Any = None
        self._high: Any = None

    def assign(self, values: pa.Array, where: str) -> np.ndarray:
        if pa.types.is_dictionary(values.type):
            # A dictionary may hold values that no row uses, so rows are checked and not the dictionary.
            values = values.dictionary_decode()
        kind = values.type
        temporal = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        if temporal and self._times is None:
            raise UserError(
                f"{where}: split column {self.column!r} holds times, "
                f"but data.split.{self._cuts[0][0]}={self._cuts[0][1]!r} is a number"
            )
        if numeric and self._numbers is None:
            raise UserError(
                f"{where}: split column {self.column!r} holds numbers, "
                f"but data.split.{self._cuts[0][0]}={self._cuts[0][1]!r} is a time"
            )
        as_number = numeric or (not temporal and self._numbers is not None)
        try:
            done = cast.convert(values, cast.NUMBER if as_number else cast.TIME)
        except cast.WrongTypeError as error:
            raise UserError(f"{where}: split column {self.column!r} holds {error}") from error
        if done.bad is not None:
            first = int(np.flatnonzero(done.bad)[0])
            raise UserError(
                f"{where}: split column {self.column!r} holds {values[first].as_py()!r}, expected "
                f"{'a number' if as_number else 'a time (ISO 8601)'} like data.split.validation_from"
            )
        found = done.values
        if as_number:
            found = pc.if_else(pc.is_nan(found), pa.scalar(None, cast.NUMBER), found)
        if found.null_count:
            raise UserError(
                f"{where}: {found.null_count} of {len(found)} rows have no value in the split column "
                f"{self.column!r}; give each row a time or split by hash"
            )
        codes = np.zeros(len(found), np.int8)
        cuts = self._numbers if as_number else self._times
        for cut in cuts or ():
            codes += pc.greater_equal(found, pa.scalar(cut, found.type)).to_numpy(zero_copy_only=False)
        with contextlib.suppress(OverflowError, ValueError):  # Arrow knows more years than Python
            ends = pc.min_max(found).as_py()
            self._note(ends["min"], ends["max"])
        return codes

    def assign_bounds(self, bounds: Bounds) -> range | None:
        if bounds.nulls or bounds.low is None:
            return None
        codes = []
        for value in (bounds.low, bounds.high):
            if isinstance(value, (datetime.datetime, datetime.date)):
                cuts: list[Any] | None = self._times
                value = _moment(value)
            elif isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value):
                # Floats may hold NaN, which statistics leave out: such rows have to be read.
                cuts = self._numbers if isinstance(value, int) else None
            else:
                return None  # text has an order of its own
            if cuts is None:
                return None
            codes.append(sum(value >= cut for cut in cuts))
            self._note(value, value)
        return range(codes[0], codes[1] + 1)

    def _note(self, low: Any, high: Any) -> None:
        if low is None:
            return
        try:
            self._low = low if self._low is None else min(self._low, low)
            self._high = high if self._high is None else max(self._high, high)
        except TypeError:
            pass  # only a message needs them

    def seen(self) -> str:
        if self._low is None:
            return f"no value of {self.column!r} was seen"
        return f"column {self.column!r} goes from {_show(self._low)} to {_show(self._high)}"


def _cuts(config: SplitConfig) -> list[tuple[str, str | None]]:
    return [("validation_from", config.validation_from), ("test_from", config.test_from)]


def _as_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _as_time(text: str) -> datetime.datetime | None:
    try:
        return parse_time(text)
    except ValueError:
        return None


def _moment(value: datetime.date) -> datetime.datetime:
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if value.tzinfo is None:
        return value.replace(tzinfo=datetime.timezone.utc)
    return value.astimezone(datetime.timezone.utc)


def _show(value: Any) -> str:
    return value.isoformat(sep=" ") if isinstance(value, datetime.datetime) else f"{value:g}"


def hash_bits(values: list[bytes], salt: str) -> np.ndarray:
    """Hashes texts, the same in each run, process and version.

    BLAKE2b (RFC 7693) with 8 bytes of output, of `salt`, the byte 31 and the text.

    Returns:
        uint64 [len(values)].
    """
    prefix = salt.encode() + b"\x1f"
    blake = hashlib.blake2b
    digests = b"".join([blake(prefix + value, digest_size=8).digest() for value in values])
    return np.frombuffer(digests, ">u8").astype(np.uint64)


def hash_share(values: list[bytes], salt: str) -> np.ndarray:
    """Maps texts to [0, 1) by the upper 53 bits of `hash_bits`.

    Returns:
        float64 [len(values)].
    """
    return (hash_bits(values, salt) >> np.uint64(11)).astype(np.float64) * 2.0**-53


class HashSplit:
    """Rows with the same value of a column are in the same split, whatever else is in the data."""

    def __init__(self, config: SplitConfig) -> None:
        self.column = _column(config)
        self._salt = config.salt
        self._validation = config.validation_fraction
        self._test = config.test_fraction
        self.has = (True, self._validation > 0, self._test > 0)

    def assign(self, values: pa.Array, where: str) -> np.ndarray:
        try:
            encoded = cast.text_form(values)
        except cast.WrongTypeError as error:
            raise UserError(f"{where}: split column {self.column!r} holds {error}") from error
        # Null and the empty text are one value, as CSV can't tell them apart.
        texts = [text or b"" for text in encoded.dictionary.cast(pa.binary()).to_pylist()]
        texts.append(b"")
        share = hash_share(texts, self._salt)
        codes = np.where(
            share < self._validation,
            VALIDATION,
            np.where(share < self._validation + self._test, TEST, TRAIN),
        ).astype(np.int8)
        indices = pc.fill_null(encoded.indices, len(texts) - 1).to_numpy(zero_copy_only=False)
        return codes[indices]

    def assign_bounds(self, bounds: Bounds) -> range | None:
        del bounds
        return None

    def seen(self) -> str:
        return (
            f"too few different values of {self.column!r} for validation_fraction={self._validation:g} and "
            f"test_fraction={self._test:g}"
        )


class ColumnSplit:
    """A column names the split of each row."""

    def __init__(self, config: SplitConfig) -> None:
        self.column = _column(config)
        self._values = (config.train_value, config.validation_value, config.test_value)
        if len(set(self._values)) < 3:
            raise UserError(f"data.split: the three values of by=column must differ, got {self._values}")
        self.has = (True, True, True)
        self._seen: set[str] = set()

    def assign(self, values: pa.Array, where: str) -> np.ndarray:
        try:
            encoded = cast.text_form(values)
        except cast.WrongTypeError as error:
            raise UserError(f"{where}: split column {self.column!r} holds {error}") from error
        texts = [None if text is None else text.strip() for text in encoded.dictionary.to_pylist()]
        codes = np.array([self._values.index(t) if t in self._values else -1 for t in texts] + [-1], np.int8)
        indices = pc.fill_null(encoded.indices, len(texts)).to_numpy(zero_copy_only=False)
        dealt = codes[indices]
        wrong = np.flatnonzero(dealt < 0)
        if len(wrong):
            unknown = sorted({texts[i] or "" for i in np.unique(indices[wrong]) if i < len(texts)} - {""})
            if not unknown:
                raise UserError(
                    f"{where}: {len(wrong)} of {len(dealt)} rows have no value in the split column "
                    f"{self.column!r}"
                )
            raise UserError(
                f"{where}: split column {self.column!r} holds {', '.join(map(repr, unknown[:5]))}, expected "
                f"{', '.join(map(repr, self._values))}{nearest(unknown[0].lower(), self._values)} "
                "(see data.split.train_value, validation_value, test_value)"
            )
        self._seen.update(t for t in (texts[i] for i in np.unique(indices)) if t)
        return dealt

    def assign_bounds(self, bounds: Bounds) -> range | None:
        # Only a part with one known value can be judged: another one might hold a value that names no split.
        if bounds.nulls or bounds.low is None or bounds.low != bounds.high or bounds.low not in self._values:
            return None
        self._seen.add(bounds.low)
        code = self._values.index(bounds.low)
        return range(code, code + 1)

    def seen(self) -> str:
        return f"column {self.column!r} holds {', '.join(map(repr, sorted(self._seen))) or 'no value'}"
