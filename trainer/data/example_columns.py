"""Values found in serialized tf.Examples become Arrow columns, all records at once. Adopters: leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

U64 = np.uint64
KEEP = np.array([(1 << 8 * size) - 1 for size in range(8)] + [2**64 - 1], U64)  # first bytes of a word
# The values that there are, and int64 [records]: 1 with a value, else 0; None: every record has one.
Column: TypeAlias = "tuple[pa.Array, np.ndarray | None]"

_HIGH_BITS = U64(0x8080_8080_8080_8080)
_FOLDS = (
    (U64(0x007F_007F_007F_007F), U64(0x7F00_7F00_7F00_7F00), U64(1)),
    (U64(0x0000_3FFF_0000_3FFF), U64(0x3FFF_0000_3FFF_0000), U64(2)),
    (U64(0x0000_0000_0FFF_FFFF), U64(0x0FFF_FFFF_0000_0000), U64(4)),
)


class UnusualError(Exception):
    """Something that only a full parser should judge."""


def require(holds: bool | np.bool_) -> None:
    if not holds:
        raise UnusualError


def words_of(data: bytes) -> np.ndarray:
    """Returns a view, uint64 [len(data) - 7]: the word that begins at each byte."""
    return np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))


class Words(NamedTuple):
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
        sizes = np.full(len(distinct), 8, np.int32) if self.full else (distinct >> U64(56)).astype(np.int32)
        offsets = np.zeros(len(distinct) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        body = places[np.arange(8) < sizes[:, None]]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(body)]
        texts = pa.Array.from_buffers(pa.binary(), len(distinct), buffers)
        return pa.DictionaryArray.from_arrays(encoded.indices, texts)


Part: TypeAlias = "pa.Array | Words"


class Values(NamedTuple):
    """Where the values of some records stand, without any tag.

    Attributes:
        begin: int64 [n]: the first byte of each.
        size: bytes of each, int64 [n], or of all; -1: there is no value.
        words: uint64 [n]: the 8 bytes from `begin` on, where they were looked at.
    """

    begin: np.ndarray
    size: np.ndarray | int
    words: np.ndarray | None = None


class Feature:
    """The values of one wanted feature, gathered turn by turn."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._some: tuple[np.ndarray, np.ndarray] | None = None  # begin (-1: not named yet) and size
        self._all: Values | None = None

    def put(self, owners: np.ndarray | None, found: Values) -> None:
        """Takes the values of some records; None: of all of them."""
        require(self._all is None)  # named twice: the last one counts
        if owners is None:
            require(self._some is None)
            self._all = found
            return
        if self._some is None:
            self._some = np.full(self._records, -1, np.int64), np.full(self._records, -1, np.int64)
        begin, size = self._some
        require((begin[owners] < 0).all())
        begin[owners], size[owners] = found.begin, found.size

    def values(self) -> tuple[Values, np.ndarray | None]:
        """Returns the values that there are, and int64 [records]: how many each has, None: one."""
        nothing = np.full(0 if self._all or self._some else self._records, -1, np.int64)
        found = self._all or Values(*(self._some or (nothing, nothing)))
        if isinstance(found.size, int) or (present := found.size >= 0).all():
            return found, None
        return Values(found.begin[present], found.size[present]), present.astype(np.int64)


def joined(parts: Sequence[Part]) -> pa.Array:
    """Puts the values of all parts together."""
    words = [part for part in parts if isinstance(part, Words)]
    if len(words) == len(parts) and len({part.full for part in words}) == 1:
        return Words(np.concatenate([part.keys for part in words]), words[0].full).array()
    arrays = [part.array().dictionary_decode() if isinstance(part, Words) else part for part in parts]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def counted(parts: Sequence[np.ndarray | None], sizes: Sequence[int]) -> np.ndarray | None:
    """Puts the numbers of values of all parts together."""
    if all(part is None for part in parts):
        return None
    pairs = zip(parts, sizes, strict=True)
    return np.concatenate([np.ones(size, np.int64) if part is None else part for part, size in pairs])


def texts(values: Values, words: np.ndarray, data: bytes) -> Part:
    longest = np.max(values.size)
    if longest < 8:
        return Words((words & KEEP[values.size]) | (np.asarray(values.size, U64) << U64(56)), False)
    if longest == 8 == np.min(values.size):
        return Words(np.ascontiguousarray(words), True)
    # Texts and the gaps between them, as one array over these bytes: Arrow then picks every second one.
    count = len(values.begin)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2], offsets[1::2] = values.begin, values.begin + values.size
    offsets[-1] = offsets[-2]
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _floats(values: Values, words: np.ndarray, data: bytes) -> pa.Array:
    require(bool(np.all(values.size == 4)))  # else there are several
    return pa.array(words.astype(np.uint32).view(np.float32))


def integers(values: Values, words: np.ndarray, data: bytes) -> pa.Array:
    """Returns the numbers that fill the bytes of the values, seven bits a byte, the lowest first."""
    size = values.size
    require(bool(np.min(size) >= 1 and np.max(size) <= 10))
    numbers = _sevens(words, np.minimum(size, 8), np.minimum(size - 1, 8))
    if np.max(size) > 8:
        rest = words_of(data)[values.begin + 8]
        numbers |= _sevens(rest, np.maximum(size - 8, 0), np.maximum(size - 9, 0)) << U64(56)
    return pa.array(numbers.view(np.int64))


def _sevens(words: np.ndarray, size: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Puts the low seven bits of the first `size` bytes of words together.

    The first `more` bytes, and no others, must have the high bit, which says that another one follows.
    """
    words = words & KEEP[size]
    require(((words & _HIGH_BITS) == (_HIGH_BITS & KEEP[more])).all())
    for low, high, shift in _FOLDS:  # two sevens become 14 bits, two of these 28, two of these 56
        words = (words & low) | ((words & high) >> shift)
    return words


_KINDS: dict[str, tuple[pa.DataType, Callable[[Values, np.ndarray, bytes], Part]]] = {
    "bytes_list": (pa.binary(), texts),
    "float_list": (pa.float32(), _floats),
    "int64_list": (pa.int64(), integers),
}


def column(kind: str, feature: Feature, data: bytes) -> tuple[Part, np.ndarray | None]:
    """Returns the values of a feature that records have, and int64 [records]: how many each has; None: one.

    Args:
        kind: "bytes_list", "float_list" or "int64_list".
        feature: where the values stand.
        data: the bytes that they stand in, with eight more behind the last value.

    Raises:
        UnusualError: a record holds several numbers, or what is no number.
    """
    values, counts = feature.values()
    stored, decoder = _KINDS[kind]
    if not len(values.begin):
        return pa.array([], stored), counts
    words = words_of(data)[values.begin] if values.words is None else values.words
    return decoder(values, words, data), counts
