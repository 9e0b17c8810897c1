"""Large files of records without an index are read in parts, each from its first record on. Adopters: leave.

A file is cut at fixed places that its size alone decides, so that units, and with them every order of rows,
are the same on any machine and with any number of threads. A part holds the records that begin between two of
these places; where the first of them begins is looked for when the part is read. Formats in which the bytes
around a place don't tell walk there from the beginning of the part before, once for each file.

Which row of the file is a part's first would take counting all rows before it. So rows are numbered by part:
number of the part times 2^40, plus the row of the part; `Reader.locate` makes line numbers of that.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.data.files import DataFile, TextStream
from trainer.data.formats import Part

PART_BYTES = 32 << 20
_ROW_BITS = 40


@dataclass(frozen=True)
class Range:
    """The place of a part: the records that begin at bytes start..stop of the file.

    Attributes:
        index: number of the part.
        start: the part's first record begins at this byte, or behind it.
        stop: the next part's first record begins at this byte, or behind it.
    """

    index: int
    start: int
    stop: int


def large(file: DataFile) -> bool:
    """Returns whether a file would be read in parts, if its format and compression allow it."""
    return file.size >= 2 * PART_BYTES


def parts(file: DataFile) -> list[Part]:
    """Returns the parts of a file of records; one for the whole file where it is small or compressed."""
    count = file.size // PART_BYTES if large(file) and file.compression is None else 1
    if count < 2:
        return [whole(file)]
    cuts = [number * file.size // count for number in range(count + 1)]
    return [
        Part(f"part {i + 1} of {count}", i << _ROW_BITS, None, Range(i, cuts[i], cuts[i + 1]))
        for i in range(count)
    ]


def whole(file: DataFile) -> Part:
    """Returns a file as one part."""
    return Part("", 0, None, Range(0, 0, file.size))


def open_text(file: DataFile, parts: Sequence[Part], start: int, stop: int) -> TextStream | ByteRange:
    """Opens the text between two places of a file in parts; of one that is whole, all of it, decompressed."""
    return file.open_text() if len(parts) == 1 else ByteRange(file, start, stop)


def split_number(row: int) -> tuple[int, int]:
    """Returns (number of the part, row in the part) of a row."""
    return row >> _ROW_BITS, row & ((1 << _ROW_BITS) - 1)


class Starts:
    """Where the first record of each part begins; found when first asked for. Safe to use from threads."""

    def __init__(self, parts: Sequence[Part], find: Callable[[int, int], int]) -> None:
        """Makes the places.

        Args:
            parts: all parts of the file.
            find: (a byte where a record begins, a byte behind it) -> the first byte where a record begins
                that is not before the second one; the size of the file where there is none.
        """
        self._cuts = [part.place.start for part in parts] + [parts[-1].place.stop]
        self._find = find
        self._known = [0]
        self._lock = threading.Lock()

    def of(self, part: Range) -> tuple[int, int]:
        """Returns the first byte of a part's records, and the byte after the last."""
        return self.at(part.index), self.at(part.index + 1)

    def at(self, index: int) -> int:
        """Returns the first byte of a part's records; the size of the file for the number of parts."""
        if index == len(self._cuts) - 1:
            return self._cuts[-1]
        with self._lock:
            for cut in self._cuts[len(self._known) : index + 1]:
                begin = self._known[-1]
                self._known.append(begin if begin >= cut else self._find(begin, cut))
            return self._known[index]


class ByteRange(io.RawIOBase):
    """Some bytes of a file that isn't compressed; a file-like object."""

    def __init__(self, file: DataFile, start: int, stop: int) -> None:
        self._stream = file.open()
        self._left = stop - start
        self._stream.seek(start)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Returns up to `size` bytes; fewer only at the end."""
        data = self._stream.read(self._left if size is None or size < 0 else min(size, self._left))
        self._left -= len(data)
        return bytes(data)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
