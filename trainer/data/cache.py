"""Encoded rows kept after the first pass: in memory, or on disk and memory-mapped. Adopters: leave."""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import shutil
import tempfile
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainer import storage
from trainer.data.arrays import NAMES, RowFormat, Rows
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


def allocate(rows: int, layout: RowFormat) -> Rows:
    """Returns room for rows, straight from the system.

    Its memory goes back as soon as it is dropped, whatever the allocator settings, is aligned to a page (so
    TensorFlow may take it without a copy), takes no room until it is written to, and is in huge pages where
    the system has them: random rows are then found without a miss in the page tables.
    """
    return Rows(tuple(_allocate((rows, *tail), dtype) for tail, dtype in layout.parts))


def _allocate(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    if size == 0:
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE") and size >= _HUGE:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)


def parts(pieces: Iterable[Rows], layout: RowFormat) -> Iterator[Rows]:
    """Yields rows that come in pieces of any size in parts of about 16 MiB each.

    After the last piece, what Arrow keeps for reading more goes back to the system.
    """
    rows = max(1, _PART_BYTES // layout.row_bytes)
    part = allocate(rows, layout)
    filled = 0
    for piece in pieces:
        start = 0
        while start < len(piece):
            count = min(rows - filled, len(piece) - start)
            part[filled : filled + count].write(piece[start : start + count])
            start, filled = start + count, filled + count
            if filled == rows:
                yield part
                part, filled = allocate(rows, layout), 0
    pa.default_memory_pool().release_unused()
    if filled:
        yield part[:filled]


class MemoryCache:
    """Rows in memory, which may come by several threads at once."""

    def __init__(self, layout: RowFormat) -> None:
        self._layout = layout
        self._rows = max(1, _PART_BYTES // layout.row_bytes)
        self._parts = 0
        self._lock = threading.Lock()
        self._open = threading.local()  # .rest: room left in the part that a thread fills

    def keep(self, pieces: Iterable[Rows]) -> list[Rows]:
        """Returns copies of rows, for `joined`, in parts of about 16 MiB that a thread fills one by one."""
        kept: list[Rows] = []
        for piece in pieces:
            start = 0
            while start < len(piece):
                rest = getattr(self._open, "rest", None)
                if rest is None or not len(rest):
                    rest = self._another()
                count = min(len(rest), len(piece) - start)
                rest[:count].write(piece[start : start + count])
                kept.append(rest[:count])
                self._open.rest = rest[count:]
                start += count
        return kept

    def _another(self) -> Rows:
        with self._lock:
            self._parts += 1
            number = self._parts
        if number % 16 == 0:
            _warn_of_memory(number * _PART_BYTES)
        return allocate(self._rows, self._layout)

    def joined(self, kept: Sequence[list[Rows]]) -> Rows:
        """Returns rows that were kept together, in order, and empties their lists.

        Parts are freed while they are put together: the peak is one part for each thread above the result.
        What Arrow keeps for reading more goes back to the system.
        """
        self._open = threading.local()
        pa.default_memory_pool().release_unused()
        rows = allocate(sum(len(part) for some in kept for part in some), self._layout)
        position = 0
        for some in kept:
            some.reverse()
            while some:
                part = some.pop()
                rows[position : position + len(part)].write(part)
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
    """Rows in `<folder>/<fingerprint>/`: a .npy file for each array, with `rows.json` saying what they are.

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
        if storage.is_remote(folder) or storage.is_bucket_mount(folder):
            raise UserError(
                f"data.cache_dir: {folder!r} is not a local folder; expected one on a disk of this machine"
            )
        self.folder = Path(folder) / fingerprint
        self._fingerprint = fingerprint

    def open(self, layout: RowFormat) -> Rows | None:
        """Returns the rows, memory-mapped, or None if there is no good cache.

        All bytes are checked against the checksums written with them, at the speed of the disk.
        """
        about = self._about()
        if about is None:
            return None
        try:
            rows = _mapped(self.folder, about["rows"], layout)
        except (OSError, ValueError, EOFError) as error:
            log.warning("%s can't be read (%s): the rows are encoded again", self.folder, error)
            return None
        if about.get("layout") != layout.as_dict() or not _fits(rows, about["rows"], layout):
            log.warning("%s doesn't hold the rows that this run needs: they are encoded again", self.folder)
            return None
        if not _verified(rows, about["part_rows"], about["checksums"]):
            log.warning("%s is damaged (checksum): the rows are encoded again", self.folder)
            return None
        return rows

    def write(self, pieces: Iterable[Rows], layout: RowFormat) -> Rows:
        """Writes all rows, then opens them, memory-mapped.

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
        return _mapped(self.folder, rows, layout)

    def _write(self, scratch: Path, pieces: Iterable[Rows], layout: RowFormat) -> int:
        """Writes the files and returns the number of rows."""
        rows = 0
        checksums: list[list[int]] = []
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(open(scratch / f"{name}.npy", "wb")) for name in NAMES]
            for stream, (tail, dtype) in zip(streams, layout.parts, strict=True):
                stream.write(_npy_header((0, *tail), dtype))
            for part in parts(pieces, layout):
                data = [_bytes(array) for array in part.arrays]
                for stream, view in zip(streams, data, strict=True):
                    stream.write(view)
                checksums.append([zlib.crc32(view) for view in data])
                rows += len(part)
            for stream, (tail, dtype) in zip(streams, layout.parts, strict=True):
                stream.seek(0)
                stream.write(_npy_header((rows, *tail), dtype))
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
            and isinstance(about.get("rows"), int)
        )
        if not fits:
            log.warning("%s is of another kind: the rows are encoded again", path)
        return about if fits else None


def _npy_header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """Returns the header of a .npy file (format 1.0, 128 bytes whatever the numbers)."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _mapped(folder: Path, rows: int, layout: RowFormat) -> Rows:
    arrays = []
    for name, (tail, dtype) in zip(NAMES, layout.parts, strict=True):
        if rows * int(np.prod(tail)) == 0:  # nothing can't be mapped
            arrays.append(np.zeros((rows, *tail), dtype))
        else:
            arrays.append(np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")))
    return Rows(tuple(arrays))


def _fits(found: Rows, rows: int, layout: RowFormat) -> bool:
    return all(
        array.shape == (rows, *tail) and array.dtype == dtype
        for array, (tail, dtype) in zip(found.arrays, layout.parts, strict=True)
    )


def _verified(rows: Rows, part_rows: int, checksums: list[list[int]]) -> bool:
    if len(checksums) != -(-len(rows) // part_rows):
        return False

    def fits(number: int) -> bool:
        part = rows[number * part_rows : (number + 1) * part_rows]
        return [zlib.crc32(_bytes(array)) for array in part.arrays] == checksums[number]

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # crc32 works outside the GIL
        return all(pool.map(fits, range(len(checksums))))
