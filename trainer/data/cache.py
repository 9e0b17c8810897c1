"""Encoded rows kept after the first pass: in memory, or on disk and memory-mapped. Adopters: leave."""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.packed import RowFormat
from trainer.errors import UserError

log = logging.getLogger(__name__)

_PART_BYTES = 16 << 20
_HUGE = 4 << 20  # bytes from which huge pages are worth it
_VERSION = 1  # of the files below; another number is another fingerprint


def available_memory() -> int | None:
    """Returns the bytes that this process can still take (machine and container), or None if unknown."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError):
        pass
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            text = Path(limit).read_text().strip()
            if text != "max":
                found.append(max(0, int(text) - int(Path(used).read_text())))
        except (OSError, ValueError):
            pass
    return min(found) if found else None


def allocate(rows: int, width: int) -> np.ndarray:
    """Returns an int32 matrix [rows, width] straight from the system.

    Its memory goes back as soon as it is dropped, whatever the allocator settings, is aligned to a page (so
    TensorFlow may take it without a copy), takes no room until it is written to, and is in huge pages where
    the system has them: random rows are then found without a miss in the page tables.
    """
    size = 4 * rows * width
    if size == 0:
        return np.zeros((rows, width), np.int32)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE") and size >= _HUGE:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.int32).reshape(rows, width)


def parts(pieces: Iterable[np.ndarray], layout: RowFormat) -> Iterator[np.ndarray]:
    """Yields packed rows of any number a piece as matrices (int32 [n, width]) of about 16 MiB each."""
    rows = max(1, _PART_BYTES // layout.row_bytes)
    part = allocate(rows, layout.width)
    filled = 0
    for piece in pieces:
        start = 0
        while start < len(piece):
            count = min(rows - filled, len(piece) - start)
            part[filled : filled + count] = piece[start : start + count]
            start, filled = start + count, filled + count
            if filled == rows:
                yield part
                part, filled = allocate(rows, layout.width), 0
    if filled:
        yield part[:filled]


def in_memory(pieces: Iterable[np.ndarray], layout: RowFormat) -> np.ndarray:
    """Returns all packed rows as one matrix, int32 [rows, width].

    Parts are freed while they are copied together: the peak is one part above the result.
    """
    kept: list[np.ndarray] = []
    for part in parts(pieces, layout):
        kept.append(part)
        if len(kept) % 16 == 0:
            _warn_of_memory(len(kept) * _PART_BYTES)
    rows = allocate(sum(len(part) for part in kept), layout.width)
    position = 0
    kept.reverse()
    while kept:
        part = kept.pop()
        rows[position : position + len(part)] = part
        position += len(part)
    return rows


def _warn_of_memory(taken: int) -> None:
    available = available_memory()
    if available is not None and available < taken // 4:
        log.warning(
            "data.cache=memory: the rows take %.1f GiB so far and %.1f GiB are left; data.cache=disk or none "
            "takes less",
            taken / 2**30,
            available / 2**30,
        )


class DiskCache:
    """Packed rows in `<folder>/<fingerprint>/rows.npy`, with `rows.json` saying what they are.

    A finished cache appears under its name by one rename, so that a killed run leaves no half of one.
    """

    def __init__(self, folder: str, fingerprint: str) -> None:
        """Names the cache.

        Args:
            folder: a local folder for caches; made when needed.
            fingerprint: hash of everything that the rows depend on (data, feature spec, statistics).

        Raises:
            UserError: the folder is not local: rows are mapped into memory.
        """
        if "://" in folder:
            raise UserError(
                f"data.cache_dir: {folder!r} is not a local folder; expected one on a disk of this machine"
            )
        self.folder = Path(folder) / fingerprint
        self._fingerprint = fingerprint

    def open(self, layout: RowFormat) -> np.ndarray | None:
        """Returns the rows, memory-mapped (int32 [rows, width]), or None if there is no good cache.

        All bytes are checked against the checksums written with them, at the speed of the disk.
        """
        about = self._about()
        if about is None:
            return None
        path = self.folder / "rows.npy"
        try:
            rows = np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            log.warning("%s can't be read (%s): the rows are encoded again", path, error)
            return None
        if about.get("layout") != layout.as_dict() or rows.shape != (about.get("rows"), layout.width):
            log.warning("%s doesn't hold the rows that this run needs: they are encoded again", path)
            return None
        if not _verified(rows, about["part_rows"], about["checksums"]):
            log.warning("%s is damaged (checksum): the rows are encoded again", path)
            return None
        return rows

    def write(self, pieces: Iterable[np.ndarray], layout: RowFormat) -> np.ndarray:
        """Writes all packed rows, then opens them.

        Returns:
            The rows, memory-mapped: int32 [rows, width].

        Raises:
            UserError: the folder can't be written, or the disk is full.
        """
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=f".{self.folder.name[:16]}-", dir=self.folder.parent))
        except OSError as error:
            raise UserError(f"data.cache_dir: can't write to {self.folder.parent}: {error}") from error
        try:
            rows = self._write(scratch, pieces, layout)
            self._replace(scratch)
        except OSError as error:
            raise UserError(
                f"data.cache_dir: can't write the cache to {self.folder.parent}: {error}"
            ) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if not rows:
            return np.zeros((0, layout.width), np.int32)  # nothing can't be mapped
        return np.load(self.folder / "rows.npy", mmap_mode="r")

    def _write(self, scratch: Path, pieces: Iterable[np.ndarray], layout: RowFormat) -> int:
        """Writes the two files and returns the number of rows."""
        rows = 0
        checksums: list[int] = []
        with open(scratch / "rows.npy", "wb") as stream:
            stream.write(_npy_header(0, layout.width))
            for part in parts(pieces, layout):
                data = part.reshape(-1).view(np.uint8)
                stream.write(data.data)
                checksums.append(zlib.crc32(data.data))
                rows += len(part)
            stream.seek(0)
            stream.write(_npy_header(rows, layout.width))
            stream.flush()
            os.fsync(stream.fileno())
        about = {
            "version": _VERSION,
            "fingerprint": self._fingerprint,
            "rows": rows,
            "layout": layout.as_dict(),
            "part_rows": max(1, _PART_BYTES // layout.row_bytes),
            "checksums": checksums,
        }
        with open(scratch / "rows.json", "w", encoding="utf-8") as text:
            json.dump(about, text)
            text.flush()
            os.fsync(text.fileno())
        return rows

    def _replace(self, scratch: Path) -> None:
        """Moves the finished cache to its name; one that is there (damaged, or of another run) gives way."""
        try:
            os.rename(scratch, self.folder)
        except OSError:
            if not self.folder.is_dir():
                raise
            aside = Path(tempfile.mkdtemp(prefix=".old-", dir=self.folder.parent))
            os.rename(self.folder, aside / "cache")
            os.rename(scratch, self.folder)
            shutil.rmtree(aside, ignore_errors=True)  # a run that maps the old rows keeps them until it ends

    def _about(self) -> dict[str, Any] | None:
        path = self.folder / "rows.json"
        if not path.exists():
            return None
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            log.warning("%s can't be read (%s): the rows are encoded again", path, error)
            return None
        fits = (
            isinstance(about, dict)
            and about.get("version") == _VERSION
            and about.get("fingerprint") == self._fingerprint
            and isinstance(about.get("checksums"), list)
            and isinstance(about.get("part_rows"), int)
        )
        if not fits:
            log.warning("%s is of another kind: the rows are encoded again", path)
        return about if fits else None


def _npy_header(rows: int, width: int) -> bytes:
    """Returns a .npy header (format 1.0, 128 bytes whatever the numbers) of an int32 matrix."""
    text = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"


def _verified(rows: np.ndarray, part_rows: int, checksums: list[int]) -> bool:
    if len(checksums) != -(-len(rows) // part_rows):
        return False

    def fits(number: int) -> bool:
        part = rows[number * part_rows : (number + 1) * part_rows]
        return zlib.crc32(part.reshape(-1).view(np.uint8).data) == checksums[number]

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # crc32 works outside the GIL
        return all(pool.map(fits, range(len(checksums))))
