"""Serialized tf.Examples read all at once, in NumPy, straight from their bytes. Adopters: leave.

`tf.io.parse_example` looks up each feature of each record in a hash table and makes a string of each text.
Records of one file mostly name their features in one order, so here entry number j of all records is decoded
in one go. Whatever is unusual (several values, unknown fields, a feature named twice) is left to
`parse_example`: `decode` then returns None. The encoding: https://protobuf.dev/programming-guides/encoding
and tensorflow/core/example/feature.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

Column = tuple[pa.Array, np.ndarray]  # values that there are, and int64 [records]: 1 with a value, else 0


class _Words(NamedTuple):
    """Texts of up to 8 bytes, each as one number.

    Attributes:
        keys: uint64 [texts]: the bytes; in the last one the length, unless all texts have 8.
        full: whether all texts have 8 bytes.
    """

    keys: np.ndarray
    full: bool

    def array(self) -> pa.Array:
        """Returns dictionary<int32, binary>: numbers are told apart faster than texts."""
        encoded = pa.array(self.keys).dictionary_encode()
        distinct = encoded.dictionary.to_numpy()
        places = distinct.astype("<u8").view(np.uint8).reshape(-1, 8)
        sizes = np.full(len(distinct), 8, np.int32) if self.full else (distinct >> _U64(56)).astype(np.int32)
        offsets = np.zeros(len(distinct) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        body = places[np.arange(8) < sizes[:, None]]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(body)]
        texts = pa.Array.from_buffers(pa.binary(), len(distinct), buffers)
        return pa.DictionaryArray.from_arrays(encoded.indices, texts)


_Values: TypeAlias = "pa.Array | _Words"

_U64 = np.uint64
_KEEP = np.array([(1 << 8 * size) - 1 for size in range(8)] + [2**64 - 1], _U64)  # first bytes of a word
_TAGS = {"bytes_list": 0x0A, "float_list": 0x12, "int64_list": 0x1A}
_ODD = _U64(0xD6E8FEB86659FD93)
_LONGEST_NAME = 256
_MIXED = 8  # names that entries of one number may have, on average: with more, a full parser is faster
_PART_BYTES = 8 << 20  # bytes that are gone over at a time: they stay in the processor's cache
_LONGEST = 1 << 30  # bytes of all records together: offsets are int32


class _UnusualError(Exception):
    """Something that only a full parser should judge."""


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
    for first in range(0, max(1, len(records)), step):
        some = records[first : first + step]
        data = b"".join([*some, bytes(32)])
        if len(data) > _LONGEST:
            return None
        try:
            parts.append(
                _Batch(data, np.cumsum([len(record) for record in some], dtype=np.int64)).columns(kinds)
            )
        except _UnusualError:
            return None
    return {
        name: (_joined([part[name][0] for part in parts]), np.concatenate([part[name][1] for part in parts]))
        for name in kinds
    }


def _joined(parts: Sequence[_Values]) -> pa.Array:
    """Puts the values of all parts together."""
    words = [part for part in parts if isinstance(part, _Words)]
    if len(words) == len(parts) and len({part.full for part in words}) == 1:
        return _Words(np.concatenate([part.keys for part in words]), words[0].full).array()
    arrays = [part.array().dictionary_decode() if isinstance(part, _Words) else part for part in parts]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _require(holds: bool | np.bool_) -> None:
    if not holds:
        raise _UnusualError


class _Batch:
    """The bytes of some records; positions are counted from the first byte of the first."""

    def __init__(self, data: bytes, ends: np.ndarray) -> None:
        self._data = data
        self._words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))  # the word at each byte
        self._ends = ends
        self._size = int(ends[-1]) if len(ends) else 0

    def columns(self, kinds: Mapping[str, str]) -> dict[str, tuple[_Values, np.ndarray]]:
        """See `decode`."""
        starts = np.concatenate([[0], self._ends[:-1]]) if len(self._ends) else self._ends
        places = {name: np.full(len(starts), -1, np.int64) for name in kinds}
        limits = {name: np.zeros(len(starts), np.int64) for name in kinds}
        wanted = {name.encode(): name for name in kinds}
        at, end = self._field(starts, self._ends, 0x0A)  # Example.features
        _require((end == self._ends).all())
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
            short = self._short_entries(at, end)
            if short is not None:
                name, value, after = short
                found: list[tuple[bytes, np.ndarray | slice]] = [(name, slice(None))]
            else:
                entry, after = self._field(at, end, 0x0A)  # Features.feature, an entry of a map
                key, value = self._field(entry, after, 0x0A)
                found = self._named(key, value)
            names, most = names + len(found), most + _MIXED
            _require(names <= most)
            for name, which in found:
                if (known := wanted.get(name)) is None:
                    _require(_is_text(name))
                    _, stop = self._field(value[which], after[which], 0x12)
                    _require((stop == after[which]).all())
                    continue
                owners = which if rows is None else rows[which]
                _require((places[known][owners] < 0).all())  # named twice: the last one counts
                places[known][owners], limits[known][owners] = value[which], after[which]
            at = after
        return {name: self._column(kind, places[name], limits[name]) for name, kind in kinds.items()}

    def _field(self, at: np.ndarray, limit: np.ndarray, tag: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns where the content of length-delimited fields begins and ends.

        Args:
            at: int64 [n]: where the fields begin.
            limit: int64 [n]: where what holds them ends.
            tag: the first byte that all must have.
        """
        words = self._words[at]
        _require(((words & _U64(0xFF)) == _U64(tag)).all())
        sizes = (words >> _U64(8)) & _U64(0x7F)
        begin = at + 2
        more = (words & _U64(0x8000)) != 0
        for byte in range(2, 6):  # a length takes one byte below 128, five below 2^35
            if not more.any():
                break
            part = (words >> _U64(8 * byte)) & _U64(0xFF)
            sizes |= np.where(more, (part & _U64(0x7F)) << _U64(7 * (byte - 1)), _U64(0))
            begin += more
            more &= part >= _U64(0x80)
        _require(not more.any())
        end = begin + sizes.astype(np.int64)
        _require((end <= limit).all())
        return begin, end

    def _short_entries(self, at: np.ndarray, end: np.ndarray) -> tuple[bytes, np.ndarray, np.ndarray] | None:
        """Reads entries below 128 bytes that all have one name, which is the usual case, with fewer looks.

        Returns:
            The name, where its values begin and where the entries end; None in all other cases.
        """
        words = self._words[at]
        first = int(words[0])  # 0x0A, size, 0x0A, size of the name, up to four bytes of it
        size = first >> 24 & 0xFF
        if first & 0x80FF00FF != 0x000A000A:
            return None
        mask = _U64(0xFFFF80FF | ((1 << 8 * min(size, 4)) - 1) << 32)
        if not ((words & mask) == _U64(first & int(mask))).all():
            return None
        value = at + (4 + size)
        after = at + ((words >> _U64(8)) & _U64(0x7F)).astype(np.int64)
        after += 2
        if not (after <= end).all() or not (value <= after).all():
            return None
        start = int(at[0]) + 4
        name = self._data[start : start + size]
        if size > 4 and not self._matches(at + 8, name[4:]).all():
            return None
        return name, value, after

    def _named(self, start: np.ndarray, end: np.ndarray) -> list[tuple[bytes, np.ndarray | slice]]:
        """Returns the distinct names between positions, each with the places where it stands."""
        first = self._data[int(start[0]) : int(end[0])]
        same = self._equal(start, end, first)
        if same.all():
            return [(first, slice(None))]
        found: list[tuple[bytes, np.ndarray | slice]] = [(first, np.flatnonzero(same))]
        others = np.flatnonzero(~same)
        left = (end - start)[others]
        _require(left.max() <= _LONGEST_NAME)
        hashes = left.astype(_U64)
        for offset in range(0, int(left.max()), 8):
            at = np.minimum(start[others] + offset, self._size)
            hashes ^= self._words[at] & _KEEP[np.clip(left - offset, 0, 8)]
            hashes *= _ODD
            hashes ^= hashes >> _U64(32)
        order = np.argsort(hashes, kind="stable")
        cuts = np.flatnonzero(np.diff(hashes[order])) + 1
        for places in np.split(others[order], cuts):
            name = self._data[int(start[places[0]]) : int(end[places[0]])]
            _require(self._equal(start[places], end[places], name).all())
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
            word = _U64(int.from_bytes(part, "little"))
            same &= (self._words[np.minimum(start + offset, self._size)] & _KEEP[len(part)]) == word
        return same

    def _column(self, kind: str, at: np.ndarray, limit: np.ndarray) -> tuple[_Values, np.ndarray]:
        """Decodes a feature from where the values of its map entries begin (-1: there is none) and end."""
        present = at >= 0
        if not present.all():
            at, limit = at[present], limit[present]
        short = self._short_values(kind, at, limit) if len(at) else None
        if short is not None:
            return short, present.astype(np.int64)
        at, end = self._field(at, limit, 0x12) if len(at) else (at, limit)  # the entry's value, a Feature
        _require((end == limit).all())
        at, end, present = _drop_empty(at, end, present)
        inner, after = self._field(at, end, _TAGS[kind]) if len(at) else (at, end)
        _require((after == end).all())
        inner, after, present = _drop_empty(inner, after, present)
        decoder = {"bytes_list": self._bytes, "float_list": self._floats, "int64_list": self._integers}[kind]
        return decoder(inner, after), present.astype(np.int64)

    def _short_values(self, kind: str, at: np.ndarray, limit: np.ndarray) -> _Values | None:
        """Decodes values of the usual form with fewer looks: a packed float, or a text below 122 bytes."""
        words = self._words[at] & _U64(0xFFFF_FFFF_FFFF)
        if kind == "float_list":
            if not (words == _U64(0x040A_0612_0812)).all() or not (limit - at == 10).all():
                return None
            bits = np.ndarray((len(self._data) - 3,), "<u4", self._data, strides=(1,))
            return pa.array(bits[at + 6].view(np.float32))
        if kind == "bytes_list":
            size = words >> _U64(40)
            # 0x12, size + 4, 0x0A, size + 2, 0x0A, size
            usual = size * _U64(0x0100_0100_0100) + _U64(0x000A_020A_0412)
            stop = at + 6
            begin = stop.copy()
            stop += size.astype(np.int64)
            if not (words == usual).all() or not (stop == limit).all() or size.max() > 121:
                return None
            longest = int(size.max())
            if longest < 8:
                return _Words((self._words[begin] & _KEEP[size]) | (size << _U64(56)), False)
            if longest == int(size.min()) == 8:
                return _Words(self._words[begin], True)
            return self._texts(begin, stop)
        return None

    def _bytes(self, at: np.ndarray, end: np.ndarray) -> pa.Array:
        if not len(at):
            return pa.array([], pa.binary())
        begin, stop = self._field(at, end, 0x0A)
        _require((stop == end).all())  # else there are several
        return self._texts(begin, stop)

    def _texts(self, begin: np.ndarray, stop: np.ndarray) -> pa.Array:
        # Texts and the gaps between them, as one array over these bytes: Arrow then picks every second one.
        offsets = np.empty(2 * len(begin) + 1, np.int32)
        offsets[0:-1:2], offsets[1::2] = begin, stop
        offsets[-1] = stop[-1]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._data)]
        both = pa.Array.from_buffers(pa.binary(), 2 * len(begin), buffers)
        return both.take(pa.array(np.arange(0, 2 * len(begin), 2, dtype=np.int32)))

    def _floats(self, at: np.ndarray, end: np.ndarray) -> pa.Array:
        words = self._words[at]
        size = end - at
        packed = (size == 6) & ((words & _U64(0xFFFF)) == _U64(0x040A))  # one field of four bytes
        plain = (size == 5) & ((words & _U64(0xFF)) == _U64(0x0D))
        _require((packed | plain).all())
        bits = words >> np.where(packed, _U64(16), _U64(8))
        return pa.array((bits & _U64(0xFFFFFFFF)).astype(np.uint32).view(np.float32))

    def _integers(self, at: np.ndarray, end: np.ndarray) -> pa.Array:
        words = self._words[at]
        tag = words & _U64(0xFF)
        packed = (tag == _U64(0x0A)) & (((words >> _U64(8)) & _U64(0xFF)).astype(np.int64) == end - at - 2)
        _require((packed | (tag == _U64(0x08))).all())
        return pa.array(self._varints(at + np.where(packed, 2, 1), end))

    def _varints(self, at: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Returns int64 numbers that fill the bytes between positions."""
        size = end - at
        _require(((size >= 1) & (size <= 10)).all())
        values = np.zeros(len(at), _U64)
        words = self._words[at]
        for byte in range(int(size.max()) if len(size) else 0):
            if byte == 8:
                words = self._words[at + 8]
            part = (words >> _U64(8 * (byte % 8))) & _U64(0xFF)
            inside = size > byte
            _require((~inside | ((part >= _U64(0x80)) == (size > byte + 1))).all())  # else there are several
            values |= np.where(inside, (part & _U64(0x7F)) << _U64(7 * byte), _U64(0))
        return values.view(np.int64)


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _drop_empty(
    at: np.ndarray, end: np.ndarray, present: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Leaves out features without a value: a Feature of no kind, or an empty list."""
    filled = at < end
    if filled.all():
        return at, end, present
    present = present.copy()
    present[np.flatnonzero(present)[~filled]] = False
    return at[filled], end[filled], present
