"""Serialized tf.Examples read all at once, in NumPy, straight from their bytes. Adopters: leave.

`tf.io.parse_example` looks up each feature of each record in a hash table and makes a string of each text.
Records of one file mostly name their features in one order, so here entry number j of all records is decoded
in one go. Whatever is unusual (several values, unknown fields, a feature named twice) is left to
`parse_example`: `decode` then returns None. The encoding: https://protobuf.dev/programming-guides/encoding
and tensorflow/core/example/feature.proto.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from trainer.data.example_columns import (
    KEEP,
    U64,
    Column,
    Feature,
    Part,
    UnusualError,
    Values,
    column,
    counted,
    joined,
    require,
    words_of,
)

_TAGS = {"bytes_list": 0x0A, "float_list": 0x12, "int64_list": 0x1A}
_ODD = U64(0xD6E8FEB86659FD93)
_LONGEST_NAME = 256
_USUAL_NAME = 100  # a longer name is not looked for in the fast way
_MIXED = 8  # names that entries of one number may have, on average: with more, a full parser is faster
_PART_BYTES = 8 << 20  # bytes gone over at a time: fewer leave time to Python, more the cache
_LONGEST = 1 << 30  # bytes of all records together: offsets are int32
_BEFORE, _AFTER = bytes(8), bytes(128)  # around the records, so that whatever is looked at is there


class _Pattern(NamedTuple):
    """The bytes before a value, in the usual form of an entry below 128 bytes, as words.

    Each word is `(word & mask) == fixed + size * grows`, with `size` the number of bytes of the value.

    Attributes:
        before: bytes from the first of the entry to the value.
        blank: bytes before the entry, so that the value begins a word.
        words: (mask, fixed, grows) of each word before the value.
    """

    before: int
    blank: int
    words: tuple[tuple[np.uint64, np.uint64, np.uint64], ...]


@functools.lru_cache(maxsize=4096)
def _pattern(name: bytes, tag: int) -> _Pattern:
    """Returns the pattern of a feature: Features.feature{key, value: Feature{list{value}}}."""
    size = len(name)
    fixed = bytes([0x0A, size + 8, 0x0A, size]) + name + bytes([0x12, 4, tag, 2, 0x0A, 0])
    grows = bytes([0, 1, 0, 0]) + bytes(size) + bytes([0, 1, 0, 1, 0, 1])
    blank = -len(fixed) % 8
    masks = bytes(blank) + b"\xff" * len(fixed)
    rows = (
        np.frombuffer(part, "<u8").astype(U64) for part in (masks, bytes(blank) + fixed, bytes(blank) + grows)
    )
    return _Pattern(len(fixed), blank, tuple(zip(*rows, strict=True)))


def decode(records: list[bytes], kinds: Mapping[str, str]) -> dict[str, Column] | None:
    """Decodes features that hold at most one value.

    Args:
        records: serialized tf.Examples.
        kinds: wanted feature -> "bytes_list", "float_list" or "int64_list".

    Returns:
        A column for each wanted feature (binary, as it is or as a dictionary; float32; int64), or None if a
        record is in any way unusual, broken, or a feature of another kind.
    """
    step = max(256, _PART_BYTES * len(records) // max(1, sum(map(len, records))))
    parts = []
    sizes = []
    for first in range(0, max(1, len(records)), step):
        some = records[first : first + step]
        data = b"".join([_BEFORE, *some, _AFTER])
        if len(data) > _LONGEST:
            return None
        bounds = np.cumsum([len(_BEFORE), *map(len, some)], dtype=np.int64)
        try:
            parts.append(_Batch(data, bounds[:-1], bounds[1:]).columns(kinds))
        except UnusualError:
            return None
        sizes.append(len(some))
    return {
        name: (joined([part[name][0] for part in parts]), counted([part[name][1] for part in parts], sizes))
        for name in kinds
    }


class _Batch:
    """The bytes of some records.

    Args:
        data: the records with `_BEFORE` and `_AFTER` around them, and anything between them.
        starts: int64 [records]: where each begins.
        ends: int64 [records]: where each ends.
    """

    def __init__(self, data: bytes, starts: np.ndarray, ends: np.ndarray) -> None:
        self._data = data
        self._words = words_of(data)
        self._starts, self._ends = starts, ends
        self._size = int(ends[-1]) if len(ends) else 0

    def columns(self, kinds: Mapping[str, str]) -> dict[str, tuple[Part, np.ndarray | None]]:
        """See `decode`."""
        features = {name: Feature(len(self._starts)) for name in kinds}
        wanted = {name.encode(): name for name in kinds}
        tags = {name: _TAGS[kinds[known]] for name, known in wanted.items()}
        at, end = self._field(self._starts, self._ends, 0x0A)  # Example.features
        require((end == self._ends).all())
        rows: np.ndarray | None = None  # records with entries left; None: all
        names = most = 0
        while len(at):
            if (left := at < end).all():
                pass
            elif not left.any():
                break
            else:
                rows = np.flatnonzero(left) if rows is None else rows[left]
                at, end = at[left], end[left]
            usual = self._usual(at, end, tags)
            if usual is not None:
                name, values, at = usual
                features[wanted[name]].put(rows, values)
                continue
            short = self._short_entries(at, end)
            if short is not None:
                name, value, after = short
                found: list[tuple[bytes, np.ndarray | None]] = [(name, None)]
            else:
                entry, after = self._field(at, end, 0x0A)  # Features.feature, an entry of a map
                key, value = self._field(entry, after, 0x0A)
                found = self._named(key, value)
            names, most = names + len(found), most + _MIXED
            require(names <= most)
            for name, which in found:
                begin, stop = (value, after) if which is None else (value[which], after[which])
                if name not in wanted:
                    require(_is_text(name))
                    require((self._field(begin, stop, 0x12)[1] == stop).all())
                    continue
                owners = rows if which is None else which if rows is None else rows[which]
                features[wanted[name]].put(owners, self._value(begin, stop, tags[name]))
            at = after
        return {name: column(kind, features[name], self._data) for name, kind in kinds.items()}

    def _field(self, at: np.ndarray, limit: np.ndarray, tag: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns where the content of length-delimited fields begins and ends.

        Args:
            at: int64 [n]: where the fields begin.
            limit: int64 [n]: where what holds them ends.
            tag: the first byte that all must have.
        """
        words = self._words[at]
        require(((words & U64(0xFF)) == U64(tag)).all())
        sizes = (words >> U64(8)) & U64(0x7F)
        begin = at + 2
        more = (words & U64(0x8000)) != 0
        for byte in range(2, 6):  # a length takes one byte below 128, five below 2^35
            if not more.any():
                break
            part = (words >> U64(8 * byte)) & U64(0xFF)
            sizes |= np.where(more, (part & U64(0x7F)) << U64(7 * (byte - 1)), U64(0))
            begin += more
            more &= part >= U64(0x80)
        require(not more.any())
        end = begin + sizes.astype(np.int64)
        require((end <= limit).all())
        return begin, end

    def _usual(
        self, at: np.ndarray, end: np.ndarray, tags: Mapping[bytes, int]
    ) -> tuple[bytes, Values, np.ndarray] | None:
        """Reads entries of one wanted name below 128 bytes that hold one value, with one look at each.

        Returns:
            The name, the values and where the entries end; None in all other cases.
        """
        start = int(at[0])
        size = self._data[start + 3]
        name = self._data[start + 4 : start + 4 + size]
        if size > _USUAL_NAME or name not in tags:
            return None
        pattern = _pattern(name, tags[name])
        width = len(pattern.words) + 1
        everywhere = np.ndarray((len(self._data) - 8 * width + 1,), f"V{8 * width}", self._data, strides=(1,))
        entries = everywhere[at - pattern.blank].view("<u8").reshape(-1, width)
        sizes = entries[:, -2] >> U64(56)  # the byte before the value
        if (largest := int(sizes.max())) + size + 8 >= 128:
            return None
        one = largest == sizes.min()
        grown = U64(largest) if one else sizes
        for place, (mask, fixed, grows) in enumerate(pattern.words):
            if not ((entries[:, place] & mask) == fixed + grown * grows).all():
                return None
        length = largest if one else sizes.astype(np.int64)
        begin = at + pattern.before
        after = begin + length
        return (name, Values(begin, length, entries[:, -1]), after) if (after <= end).all() else None

    def _short_entries(self, at: np.ndarray, end: np.ndarray) -> tuple[bytes, np.ndarray, np.ndarray] | None:
        """Reads entries below 128 bytes that all have one name, with fewer looks.

        Returns:
            The name, where its values begin and where the entries end; None in all other cases.
        """
        words = self._words[at]
        first = int(words[0])  # 0x0A, size, 0x0A, size of the name, up to four bytes of it
        size = first >> 24 & 0xFF
        if first & 0x80FF00FF != 0x000A000A:
            return None
        mask = U64(0xFFFF80FF | ((1 << 8 * min(size, 4)) - 1) << 32)
        if not ((words & mask) == U64(first & int(mask))).all():
            return None
        value = at + (4 + size)
        after = at + ((words >> U64(8)) & U64(0x7F)).astype(np.int64)
        after += 2
        if not (after <= end).all() or not (value <= after).all():
            return None
        start = int(at[0]) + 4
        name = self._data[start : start + size]
        if size > 4 and not self._matches(at + 8, name[4:]).all():
            return None
        return name, value, after

    def _named(self, start: np.ndarray, end: np.ndarray) -> list[tuple[bytes, np.ndarray | None]]:
        """Returns the distinct names between positions, each with the places where it stands (None: all)."""
        first = self._data[int(start[0]) : int(end[0])]
        same = self._equal(start, end, first)
        if same.all():
            return [(first, None)]
        found: list[tuple[bytes, np.ndarray | None]] = [(first, np.flatnonzero(same))]
        others = np.flatnonzero(~same)
        left = (end - start)[others]
        require(left.max() <= _LONGEST_NAME)
        hashes = left.astype(U64)
        for offset in range(0, int(left.max()), 8):
            at = np.minimum(start[others] + offset, self._size)
            hashes ^= self._words[at] & KEEP[np.clip(left - offset, 0, 8)]
            hashes *= _ODD
            hashes ^= hashes >> U64(32)
        order = np.argsort(hashes, kind="stable")
        cuts = np.flatnonzero(np.diff(hashes[order])) + 1
        for places in np.split(others[order], cuts):
            name = self._data[int(start[places[0]]) : int(end[places[0]])]
            require(self._equal(start[places], end[places], name).all())
            found.append((name, places))
        return found

    def _equal(self, start: np.ndarray, end: np.ndarray, text: bytes) -> np.ndarray:
        """Returns which stretches of bytes are `text`."""
        return ((end - start) == len(text)) & self._matches(start, text)

    def _matches(self, start: np.ndarray, text: bytes) -> np.ndarray:
        """Returns where `text` stands."""
        same = np.ones(len(start), bool)
        for offset in range(0, len(text), 8):
            part = text[offset : offset + 8]
            word = U64(int.from_bytes(part, "little"))
            same &= (self._words[np.minimum(start + offset, self._size)] & KEEP[len(part)]) == word
        return same

    def _value(self, at: np.ndarray, limit: np.ndarray, tag: int) -> Values:
        """Reads what a map entry holds beside its name: a Feature of one value or none."""
        words = self._words[at] & U64(0xFFFF_FFFF_FFFF)
        size = words >> U64(40)
        # The usual form: 0x12, size + 4, tag, size + 2, 0x0A, size.
        usual = size * U64(0x0100_0100_0100) + U64(0x000A_0200_0412 | tag << 16)
        begin, length = at + 6, size.astype(np.int64)
        if size.max() < 122 and (words == usual).all() and (begin + length == limit).all():
            return Values(begin, length)
        at, end = self._field(at, limit, 0x12)
        require((end == limit).all())
        filled = np.flatnonzero(at < end)  # a Feature of no kind has no value
        inner, after = self._field(at[filled], end[filled], tag)
        require((after == end[filled]).all())
        kept = inner < after  # nor has an empty list
        filled, inner, after = filled[kept], inner[kept], after[kept]
        sizes = np.full(len(at), -1, np.int64)
        start, stop = self._only(inner, after, tag)
        at[filled], sizes[filled] = start, stop - start
        return Values(at, sizes)

    def _only(self, at: np.ndarray, end: np.ndarray, tag: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns where the only value of lists (of texts, of packed or plain numbers) begins and ends."""
        if tag == _TAGS["bytes_list"]:
            begin, stop = self._field(at, end, 0x0A)
            require((stop == end).all())  # else there are several
            return begin, stop
        first = self._words[at] & U64(0xFF)
        packed = first == U64(0x0A)
        begin = at + 1
        begin[packed], stop = self._field(at[packed], end[packed], 0x0A)
        require((stop == end[packed]).all())
        require((packed | (first == U64(0x0D if tag == _TAGS["float_list"] else 0x08))).all())
        return begin, end


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
