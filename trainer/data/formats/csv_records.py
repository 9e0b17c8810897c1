"""Where records of a CSV file begin, found without reading them. Adopters: leave.

A line break ends a record unless it stands in a quoted field. As for Arrow's parser, a quote opens such a
field only as the first character of a field, the next quote closes it, and two in a row are one character.
"""

from __future__ import annotations

import numpy as np

from trainer.data.files import DataFile
from trainer.data.formats.ranges import ByteRange

_BOM = b"\xef\xbb\xbf"
_READ = 4 << 20
_STEP = 1 << 17  # bytes looked at together: what is made of them stays in the processor's cache
_QUOTE = ord('"')
_U64 = np.uint64


def find_start(file: DataFile, delimiter: str, begin: int, place: int) -> int:
    """Returns the first byte at or after `place` where a record begins; the file's size if there is none.

    Args:
        file: a file that isn't compressed.
        delimiter: what stands between two fields.
        begin: a byte where a record begins.
        place: a byte behind it.
    """
    stream = ByteRange(file, begin, file.size)
    quotes = Quotes(delimiter)
    at = begin
    try:
        while data := stream.read(_READ):
            if not at and data.startswith(_BOM):
                data, at = data[len(_BOM) :], len(_BOM)
            found = quotes.line_end(data, max(0, place - 1 - at))  # one right before the place will do
            if found >= 0:
                return at + found + 1
            at += len(data)
    finally:
        stream.close()
    return file.size


class Quotes:
    """Follows the quotes from the beginning of a record on, for 64 bytes at a time in the bits of a word.

    Attributes:
        inside: whether a quoted field is open.
    """

    def __init__(self, delimiter: str) -> None:
        self.inside = False
        self._ends = (ord("\n"), ord("\r"), *delimiter.encode())  # bytes after which a field begins
        self._last = ord("\n")  # the byte before
        self._closed = False  # whether it was a quote that closed a field, so that another one opens it again

    def follow(self, data: bytes) -> None:
        """Goes over the next bytes."""
        for start in range(0, len(data), _STEP):
            self._go(data[start : start + _STEP])

    def line_end(self, data: bytes, start: int) -> int:
        """Goes over the next bytes, too, up to the line break that it finds.

        Returns:
            The first line break from `start` on that is in no quoted field, or -1.
        """
        for first in range(0, len(data), _STEP):
            piece = data[first : first + _STEP]
            within = self._go(piece)
            if first + len(piece) <= start:
                continue
            begin = max(0, start - first)
            if within is None:
                found = piece.find(b"\n", begin)
            else:
                outside = np.unpackbits(~within.view(np.uint8), count=len(piece), bitorder="little").view(
                    bool
                )
                ends = (np.frombuffer(piece, np.uint8) == ord("\n")) & outside
                found = begin + int(ends[begin:].argmax())
                found = found if ends[found] else -1
            if found >= 0:
                return first + found
        return -1

    def _go(self, data: bytes) -> np.ndarray | None:
        """Returns whether each byte is in a quoted field, bits of uint64 [bytes / 64]; None: none is."""
        if not self.inside and b'"' not in data:
            self._last, self._closed = data[-1] if data else self._last, False
            return None
        codes = np.frombuffer(data, np.uint8)
        is_quote = codes == _QUOTE
        before = is_quote.copy()
        for end in self._ends:
            before |= codes == end
        quotes = _bits(is_quote)
        within = _odd(quotes, self.inside)  # if every quote opens or closes a field
        # One that opens it stands behind an end of a field; or behind a quote, which closed it: the two are
        # one character of the field.
        proper = _bits(before)
        carried = proper >> _U64(63)
        proper <<= _U64(1)
        proper[1:] |= carried[:-1]
        proper[0] |= _U64(self._last in self._ends or self._closed)
        if (quotes & within & ~proper).any():
            quotes = _bits(self._one_by_one(codes, np.flatnonzero(is_quote)))
            within = _odd(quotes, self.inside)
        last = len(data) - 1
        self.inside = bool(within[last >> 6] >> _U64(last & 63) & _U64(1))
        self._closed = not self.inside and bool(quotes[last >> 6] >> _U64(last & 63) & _U64(1))
        self._last = data[-1]
        return within

    def _one_by_one(self, codes: np.ndarray, quotes: np.ndarray) -> np.ndarray:
        """Returns which bytes are quotes that open or close a field, where others stand in unquoted text."""
        turns = np.zeros(len(codes), bool)
        inside, closed = self.inside, -1 if self._closed else -2
        starts = np.isin(np.where(quotes > 0, codes[quotes - 1], self._last), self._ends).tolist()
        for quote, first in zip(quotes.tolist(), starts, strict=True):
            if inside:
                inside, closed = False, quote
            elif first or closed == quote - 1:
                inside = True
            else:
                continue
            turns[quote] = True
        return turns


def _bits(mask: np.ndarray) -> np.ndarray:
    """Returns bool [n] as bits, the first ones lowest, uint64 [n / 64]."""
    packed = np.packbits(mask, bitorder="little")
    words = np.zeros(-(-len(packed) // 8), _U64)
    words.view(np.uint8)[: len(packed)] = packed
    return words


def _odd(bits: np.ndarray, before: bool) -> np.ndarray:
    """Returns for each bit whether an odd number of bits is set up to it, uint64 [words].

    Args:
        bits: uint64 [words].
        before: whether the number before the first bit is odd.
    """
    odd = bits.copy()
    for shift in (1, 2, 4, 8, 16, 32):
        odd ^= odd << _U64(shift)
    words = np.bitwise_xor.accumulate((odd >> _U64(63)).astype(bool))
    carried = np.concatenate([[before], words[:-1] ^ before])
    odd[carried] = ~odd[carried]
    return odd
