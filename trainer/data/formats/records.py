"""The records of a TFRecord file that isn't compressed, some thousands at a time. Adopters: leave.

A record is its length (8 bytes), the length's checksum (4), its data and the data's checksum (4); see
tensorflow/core/lib/io/record_writer.h. The checksums are CRC-32C, rotated and added to.

google-crc32c, which comes with Google's clients, computes them; without it TensorFlow reads each record.
"""

from __future__ import annotations

import itertools
import logging
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from trainer.data.files import DataFile
from trainer.data.formats.ranges import ByteRange

try:
    from google_crc32c import value as _crc
except ImportError:
    _crc = None

_READ = 8 << 20
_TOGETHER = 1024
_AROUND = 16  # bytes of a record that aren't data
_LENGTH = struct.Struct("<Q")
_U32 = np.uint32


class DamageError(Exception):
    """A record whose length can't be read, so that those behind it can't be found."""


class Damaged(str):
    """In the place of a record: what is wrong with its data."""


class _Piece(NamedTuple):
    """Some bytes with whole records.

    Attributes:
        data: the bytes; what follows the last record is of no use.
        starts: int64 [records + 1]: where each record begins, and where the last one ends.
        first: the place of the first byte in the file.
    """

    data: bytes
    starts: np.ndarray
    first: int


def find_start(file: DataFile, begin: int, place: int) -> int:
    """Returns the first byte at or after `place` where a record begins; the file's size if there is none.

    Args:
        file: a file that isn't compressed.
        begin: a byte where a record begins.
        place: a byte behind it.
    """
    try:
        for piece in _pieces(file, begin, file.size):
            after = np.flatnonzero(piece.starts + piece.first >= place)
            if len(after):
                return piece.first + int(piece.starts[after[0]])
    except DamageError:  # told when the part before is read
        pass
    return file.size


def count(file: DataFile, stop: int) -> int:
    """Returns the number of records before a place where one begins.

    Raises:
        DamageError: they can't be found.
    """
    return sum(len(piece.starts) - 1 for piece in _pieces(file, 0, stop))


def read(file: DataFile, start: int, stop: int, step: int = _READ) -> Iterator[list[bytes] | Damaged]:
    """Yields the records between two places where records begin, some at a time.

    Args:
        file: a file that isn't compressed.
        start: where the first one begins.
        stop: where the last one ends.
        step: bytes that are read at a time.

    Raises:
        DamageError: a record is cut short, or its length's checksum is wrong; those before it were given.
    """
    if _crc is None:
        yield from _read_in_tensorflow(file, start, stop)
        return
    for piece in _pieces(file, start, stop, step):
        data, starts = piece.data, piece.starts
        bounds = starts.tolist()
        records = [data[a + 12 : b - 4] for a, b in itertools.pairwise(bounds)]
        found = np.fromiter(map(_crc, records), _U32, len(records))
        first = 0
        for wrong in np.flatnonzero(_masked(found) != _words(data, starts[1:] - 4)).tolist():
            if records[first:wrong]:
                yield records[first:wrong]
            yield Damaged(f"corrupted record at {piece.first + bounds[wrong]}")
            first = wrong + 1
        if records[first:]:
            yield records[first:]


def _pieces(file: DataFile, start: int, stop: int, step: int = _READ) -> Iterator[_Piece]:
    """Yields whole records with right lengths.

    Raises:
        DamageError: the length of a record is wrong, or goes beyond `stop`.
    """
    stream = ByteRange(file, start, stop)
    unpack = _LENGTH.unpack_from
    data, wanted = b"", step
    try:
        while more := stream.read(wanted):
            data += more
            at, limit = 0, len(data)
            if limit < _AROUND:
                continue
            starts = [0]
            while at + _AROUND <= limit:
                at += unpack(data, at)[0] + _AROUND
                starts.append(at)
            places = np.array([place for place in starts if place <= limit], np.int64)
            heads = np.array(starts[:-1], np.int64)  # the last record may be cut off, its length not
            wrong = np.flatnonzero(_masked(_crc_of_words(data, heads)) != _words(data, heads + 8))
            if len(wrong):
                places = places[: wrong[0] + 1]
            if len(places) > 1:
                yield _Piece(data, places, start)
            end = int(places[-1])
            if len(wrong):
                raise DamageError(f"corrupted record at {start + end}")
            wanted = step
            if starts[-1] > limit:
                if start + starts[-1] > stop:
                    raise DamageError(f"truncated record at {start + end}")
                wanted = max(step, starts[-1] - limit)
            data = data[end:]
            start += end
    finally:
        stream.close()
    if data:
        raise DamageError(f"truncated record at {start}")


def _words(data: bytes, places: np.ndarray) -> np.ndarray:
    """Returns the 4 bytes at each place as a number, uint32 [places]."""
    return np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))[places]


def _masked(checksums: np.ndarray) -> np.ndarray:
    """Returns checksums as they are stored."""
    return ((checksums >> _U32(15)) | (checksums << _U32(17))) + _U32(0xA282EAD8)


def _table() -> np.ndarray:
    """Returns what each byte, followed by 0 to 7 others, does to a checksum, uint32 [8, 256]."""
    rows = [np.arange(256, dtype=_U32)]
    for _ in range(8):
        rows[0] = np.where(rows[0] & _U32(1), (rows[0] >> _U32(1)) ^ _U32(0x82F63B78), rows[0] >> _U32(1))
    for _ in range(7):
        rows.append(rows[0][rows[-1] & _U32(255)] ^ (rows[-1] >> _U32(8)))
    return np.stack(rows)


_TABLE = _table()


def _crc_of_words(data: bytes, places: np.ndarray) -> np.ndarray:
    """Returns the checksum of the 8 bytes at each place, uint32 [places]."""
    low, high = _words(data, places) ^ _U32(0xFFFFFFFF), _words(data, places + 4)
    found = np.full(len(places), 0xFFFFFFFF, _U32)
    for byte in range(4):
        found ^= _TABLE[7 - byte][(low >> _U32(8 * byte)) & _U32(255)]
        found ^= _TABLE[3 - byte][(high >> _U32(8 * byte)) & _U32(255)]
    return found


def together(records: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yields records some at a time; those before one that can't be read come before its error."""
    some: list[bytes] = []
    try:
        for record in records:
            some.append(record)
            if len(some) == _TOGETHER:
                yield some
                some = []
    except Exception:
        if some:
            yield some
        raise
    if some:
        yield some


# --- in TensorFlow


def in_tensorflow(file: DataFile, compression: str) -> Iterator[bytes]:
    """Yields the records of a file from its start; twice as fast as a pipeline of tf.data.

    Args:
        file: the file.
        compression: "", "GZIP" or "ZLIB".

    Raises:
        tf.errors.OpError: a record can't be read.
    """
    import tensorflow as tf

    kinds = tf.compat.v1.io.TFRecordCompressionType
    kind = {"": kinds.NONE, "GZIP": kinds.GZIP, "ZLIB": kinds.ZLIB}[compression]
    logger = tf.get_logger()
    logger.addFilter(_not_deprecated)  # it says so of all of v1
    try:
        options = tf.compat.v1.io.TFRecordOptions(kind)
        return iter(tf.compat.v1.io.tf_record_iterator(_tensorflow_path(file), options))
    finally:
        logger.removeFilter(_not_deprecated)


def _not_deprecated(record: logging.LogRecord) -> bool:
    return "deprecated" not in record.getMessage()


def _tensorflow_path(file: DataFile) -> str:
    return file.path if "://" in file.path else file.inner


def _read_in_tensorflow(file: DataFile, start: int, stop: int) -> Iterator[list[bytes] | Damaged]:
    while start < stop:
        for some in together(_to_damage(file, start, stop)):
            start += sum(map(len, some)) + len(some) * _AROUND
            yield some
        if start < stop:
            piece = next(_pieces(file, start, stop), None)
            if piece is None:
                raise DamageError(f"truncated record at {start}")
            yield Damaged(f"corrupted record at {start}")
            start += int(piece.starts[1])


def _to_damage(file: DataFile, start: int, stop: int) -> Iterator[bytes]:
    """Yields the records from `start` on, up to the first one that can't be read."""
    import tensorflow as tf
    from tensorflow.python.lib.io import _pywrap_record_io  # what is public reads from the start alone

    try:
        if not start and stop == file.size:
            yield from in_tensorflow(file, "")
            return
        reader: Any = _pywrap_record_io.RandomRecordReader(_tensorflow_path(file))
        while start < stop:
            record, start = reader.read(start)
            yield record
    except (tf.errors.OpError, IndexError):  # the latter: less is left than a head takes
        return
