"""A vocabulary that finds the ids of many texts at once, without a Python object for each. Adopters: leave.

Measured with 45,000 distinct texts against 200,000 values, per call: Arrow's `index_in` 31 ms (it builds its
hash table anew each time), a Python dict 34 ms (cache misses, and a new string object each), this 2 to 3 ms.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_U64 = np.uint64
_KEEP = np.array(
    [(1 << 8 * size) - 1 for size in range(8)] + [2**64 - 1], _U64
)  # first `size` bytes of a word
_SPREAD = _U64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_ODD = _U64(0xD6E8FEB86659FD93)  # odd, so that a multiplication loses nothing
_SHIFT = _U64(32)


def _mix(hashes: np.ndarray) -> np.ndarray:
    """Mixes uint64 numbers in place, in a way that can be undone, and returns them."""
    for _ in range(2):
        hashes *= _ODD
        hashes ^= hashes >> _SHIFT
    return hashes


def fingerprints(texts: pa.Array) -> np.ndarray:
    """Returns uint64 [texts]: a hash of each text (0 never; a null hashes as "").

    Each word of 8 bytes is xor-ed in and mixed by a function that can be undone, so two texts of the same
    length up to 8 bytes never share a value; longer ones do with a chance of 2^-64. Not for foes: whoever
    knows the constants can make collisions.
    """
    if not len(texts):
        return np.zeros(0, _U64)
    _, ends, body = texts.buffers()
    offsets = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(body if body is not None else b"", np.uint8)[offsets[0] : offsets[-1]]
    left = np.diff(offsets)
    longest = int(left.max())
    hashes = (left.astype(_U64) + _U64(1)) * _SPREAD
    if longest == left.min():  # dates, codes and ids: all of one length, so words need no cutting out
        padded = np.zeros((len(left), -(-longest // 8) * 8), np.uint8)
        padded[:, :longest] = data.reshape(len(left), longest)
        for word in padded.view("<u8").T:
            hashes ^= word
            _mix(hashes)
        hashes[hashes == 0] = 1
        return hashes
    data = np.concatenate([data, np.zeros(8, np.uint8)])  # so that a word may begin at the last byte
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))  # the word that begins at each byte
    at = (offsets[:-1] - offsets[0]).astype(np.int64)
    which: np.ndarray | slice = slice(None)
    while True:
        mixed = hashes[which] ^ (words[at] & _KEEP[np.minimum(left, 8)])
        hashes[which] = _mix(mixed)
        more = np.flatnonzero(left > 8)
        if not len(more):
            break
        which = more if isinstance(which, slice) else which[more]
        at, left = at[more] + 8, left[more] - 8
    hashes[hashes == 0] = 1
    return hashes


class Vocabulary:
    """Finds the place of texts in a list of distinct texts: a hash table with linear probing.

    Texts are compared by their 64-bit hash alone: the chance that a text that is not in the list is taken
    for one that is, is the length of the list / 2^64.
    """

    def __init__(self, texts: tuple[str, ...]) -> None:
        """Builds the table; ValueError should two of the texts have the same hash."""
        bits = max(4, (2 * len(texts)).bit_length())  # at most half full
        self._shift = _U64(64 - bits)
        self._last = (1 << bits) - 1
        self._hashes = np.zeros(1 << bits, _U64)  # 0: empty
        self._places = np.full(1 << bits, -1, np.int32)
        hashes = fingerprints(pa.array(texts, pa.string()))
        if len(np.unique(hashes)) < len(hashes):
            raise ValueError("two values of the vocabulary are equal, or have the same 64-bit hash")
        waiting, at = np.arange(len(texts), dtype=np.int32), self._home(hashes)
        while len(waiting):
            free = self._hashes[at] == 0
            # Several may want one cell: all write, the last one stays, the others go on with the next cell.
            self._hashes[at[free]] = hashes[waiting[free]]
            self._places[at[free]] = waiting[free]
            waiting_still = self._hashes[at] != hashes[waiting]
            waiting, at = waiting[waiting_still], (at[waiting_still] + 1) & self._last

    def _home(self, hashes: np.ndarray) -> np.ndarray:
        return ((hashes * _SPREAD) >> self._shift).astype(np.int64)

    def __call__(self, texts: pa.Array) -> np.ndarray:
        """Returns int32 [texts]: places in the list, -1 for texts that are not in it."""
        hashes = fingerprints(texts)
        at = self._home(hashes)
        cell = self._hashes[at]
        found = self._places[at]  # right for most: the table is at most half full
        missed = np.flatnonzero(cell != hashes)
        found[missed] = -1
        which = missed[cell[missed] != 0]
        at = (at[which] + 1) & self._last
        while len(which):
            cell = self._hashes[at]
            hit = cell == hashes[which]
            found[which[hit]] = self._places[at[hit]]
            on = ~hit & (cell != 0)
            which, at = which[on], (at[on] + 1) & self._last
        return found
