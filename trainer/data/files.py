"""Files of a data source: globs, folders, partitions, compression, format. Adopters: leave.

Everything goes through `pyarrow.fs`, so local paths and gs:// are read alike.
"""

from __future__ import annotations

import bz2
import datetime
import fnmatch
import functools
import hashlib
import os
import re
import urllib.parse
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import fs

from trainer.data.formats import Reader, ReadOptions
from trainer.errors import UserError, nearest

_BY_NAME = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".avro": "avro",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".tfr": "tfrecord",
}
_BY_MAGIC = ((b"PAR1", "parquet"), (b"Obj\x01", "avro"), (b"ARROW1", "arrow"), (b"\xff\xff\xff\xff", "arrow"))
_COMPRESSION_BY_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ", "xz"),
    (b"PK\x03\x04", "zip"),
)
_PACKED_NAMES = (".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz", ".zip")
_WITH_COMPRESSION = ("csv", "jsonl", "tfrecord")  # formats that other programs compress as a whole file
_HEAD_BYTES = 64
_WHOLE_BYTES = 4 << 20  # objects up to this size are fetched whole
_EMULATOR = "STORAGE_EMULATOR_HOST"  # as in Google's own clients: a local server, without credentials
# A bucket that can't be reached at the start is a mistake in a name or in credentials more often than a fault
# that passes; once rows are read, waiting is cheaper than starting anew.
_FIRST_CONTACT_SECONDS = 60
_READING_SECONDS = 900
_GLOB = re.compile(r"[*?\[]")
_SPLIT_OUTPUT = re.compile(r"-\d+-of-\d+$")  # name.tfrecord-00003-of-00010


@dataclass(frozen=True)
class DataFile:
    """A file of a source.

    Attributes:
        path: what messages call it: the path as the user would write it.
        size: bytes.
        partitions: values of `key=value` folders above the file (None for Hive's null).
    """

    path: str
    size: int
    partitions: tuple[tuple[str, str | None], ...] = ()
    inner: str = ""  # path inside the filesystem
    filesystem: fs.FileSystem = field(default=None, compare=False, repr=False)
    changed_at: int | None = field(default=None, compare=False)  # nanoseconds, as the store tells it
    _seen: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def remote(self) -> bool:
        """Whether it is an object of Cloud Storage."""
        return self.path.startswith("gs://")

    def open(self) -> pa.NativeFile:
        """Opens the file for random access.

        Raises:
            UserError: it can't be opened, or is another one than it was when it was listed or opened before.
        """
        try:
            if self.remote and self.size <= _WHOLE_BYTES:
                # One request. Random access takes two, and Arrow holds Python's lock for one of them.
                with self.filesystem.open_input_stream(self.inner) as source:
                    content = source.read()
                self._same("size", self.size, len(content))
                self._same("content", None, hashlib.blake2b(content).digest())
                return pa.BufferReader(content)
            stream = self.filesystem.open_input_file(self.inner)
            if self.remote:  # all reads of this stream are of this generation, or fail
                self._same("generation", None, stream.metadata().get("generation"))
            self._same("size", self.size, stream.size())
            return stream
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error

    def _same(self, what: str, listed: Any, found: Any) -> None:
        if self._seen.setdefault(what, found if listed is None else listed) != found:
            raise self._changed()

    def _changed(self) -> UserError:
        return UserError(f"{self.path}: changed during the run; start anew with --fresh when it is at rest")

    def _failed(self, error: Exception) -> UserError:
        if "generation" in self._seen and isinstance(error, FileNotFoundError):
            return self._changed()
        return UserError(f"{self.path}: can't be opened: {error}")

    def check_unchanged(self) -> None:
        """Looks at the file anew; call it where reading failed, which may be why.

        Raises:
            UserError: it is another file than the one that was listed, or gone.
        """
        try:
            now = self.filesystem.get_file_info(self.inner)
        except (OSError, pa.ArrowException):
            return  # the store itself is out of reach: not the file's fault
        if now.type != fs.FileType.File or now.size != self.size or now.mtime_ns != self.changed_at:
            raise self._changed()

    def head(self, size: int) -> bytes:
        """Returns the first bytes of the file as they are stored."""
        known = self._seen.get("head", b"")
        if size > len(known) and len(known) < min(self.size, _HEAD_BYTES):
            with self.open() as stream:
                known = self._seen["head"] = bytes(stream.read(_HEAD_BYTES))
        if size <= len(known) or len(known) == self.size:
            return known[:size]
        with self.open() as stream:
            return bytes(stream.read(size))

    @property
    def compression(self) -> str | None:
        """Returns how the whole file is compressed, by its first bytes and not its name; None if it isn't."""
        start = self.head(6)
        return next((name for magic, name in _COMPRESSION_BY_MAGIC if start.startswith(magic)), None)

    def open_text(self) -> TextStream:
        """Opens the file for reading from its start, decompressed."""
        return TextStream(self)


class TextStream:
    """The decompressed bytes of a file, from its start; a file-like object."""

    def __init__(self, file: DataFile) -> None:
        kind = file.compression
        if kind in ("xz", "zip"):
            raise UserError(f"{file.path}: is compressed with {kind}; expected gzip, zstd, bz2 or none")
        self._file = file
        self._raw = file.open()
        self._kind = kind
        self._stream = None if kind in (None, "gzip", "bz2") else pa.CompressedInputStream(self._raw, kind)
        self._unpack = _unpacker(kind)
        self._ready = bytearray()
        self._ended = False
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """Returns up to `size` bytes; fewer only at the end.

        Raises:
            UserError: the compressed data is damaged or cut short.
        """
        limit = 1 << 62 if size is None or size < 0 else size
        try:
            if self._kind is None:
                return bytes(self._raw.read() if limit == 1 << 62 else self._raw.read(limit))
            while len(self._ready) < limit and not self._ended:
                self._fill()
        except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
            raise UserError(
                f"{self._file.path}: the {self._kind or 'file'} data is damaged or cut short: {error}"
            ) from error
        part = bytes(self._ready[:limit])
        del self._ready[:limit]
        return part

    def _fill(self) -> None:
        if self._stream is not None:
            data = self._stream.read(1 << 20)
            self._ended = not data
            self._ready += data
            return
        data = self._raw.read(1 << 20)
        if not data:
            if not self._unpack.eof:
                raise EOFError("it ends in the middle")
            self._ended = True
        while data:
            if self._unpack.eof:  # several compressed parts one after the other are one file
                if not data.strip(b"\x00"):
                    return
                self._unpack = _unpacker(self._kind)
            self._ready += self._unpack.decompress(data)
            data = self._unpack.unused_data if self._unpack.eof else b""

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._raw.close()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _unpacker(kind: str | None):  # type: ignore[no-untyped-def]  # zlib has no public name for its type
    return (
        zlib.decompressobj(wbits=31) if kind == "gzip" else bz2.BZ2Decompressor() if kind == "bz2" else None
    )


# --- listing ----------------------------------------------------------------------------------------


def _filesystem(source: str, seconds: int) -> tuple[fs.FileSystem, str, str]:
    """Returns the filesystem, the path in it and what to put before a path of it in messages.

    Args:
        source: path or URL.
        seconds: how long a call to a bucket is tried again.
    """
    scheme, separator, rest = source.partition("://")
    if not separator:
        return fs.LocalFileSystem(), os.path.expanduser(source), ""
    if scheme == "file":
        return fs.LocalFileSystem(), rest, ""
    if scheme != "gs":
        raise UserError(f"data source {source!r}: unknown scheme {scheme!r}; expected a local path or gs://")
    bucket, _, inner = rest.partition("/")
    try:
        filesystem = _cloud_storage(os.environ.get(_EMULATOR, "").strip(), seconds)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"data source {source!r}: can't reach the bucket: {error}") from error
    return filesystem, f"{bucket}/{inner}".rstrip("/"), "gs://"


@functools.lru_cache(maxsize=4)
def _cloud_storage(emulator: str, seconds: int) -> fs.FileSystem:
    """Returns Arrow's file system for gs://; it waits out 429, 5xx and lost connections by itself."""
    patience = datetime.timedelta(seconds=seconds)
    if not emulator:
        return fs.GcsFileSystem(retry_time_limit=patience)
    scheme, _, host = emulator.rpartition("://")
    return fs.GcsFileSystem(
        anonymous=True,
        scheme=scheme or "http",
        endpoint_override=host.rstrip("/"),
        retry_time_limit=patience,
    )


def _hidden(path: str) -> bool:
    """Returns whether a part of a path below the source is hidden, as `_SUCCESS` and `.crc` files are."""
    return any(part[:1] in ("_", ".") and "=" not in part for part in path.split("/") if part)


def _glob_pattern(pattern: str) -> re.Pattern[str]:
    """Translates a glob: `*` and `?` stay within a folder, `**` crosses folders."""
    text = ""
    for piece in re.split(r"(\*\*/?|\*|\?|\[[^\]]*\])", pattern):
        if piece.startswith("**"):
            text += "(?:.*/)?" if piece.endswith("/") else ".*"
        elif piece == "*":
            text += "[^/]*"
        elif piece == "?":
            text += "[^/]"
        elif piece.startswith("[") and piece.endswith("]"):
            text += fnmatch.translate(piece)[4:-3] if len(piece) > 2 else re.escape(piece)
        else:
            text += re.escape(piece)
    return re.compile(text + r"\Z", re.DOTALL)


def _partitions(path: str) -> tuple[tuple[str, str | None], ...]:
    found = []
    for folder in path.split("/")[:-1]:
        key, separator, value = folder.partition("=")
        if separator and key:
            text = urllib.parse.unquote(value)
            found.append((urllib.parse.unquote(key), None if text == "__HIVE_DEFAULT_PARTITION__" else text))
    return tuple(found)


def _select(filesystem: fs.FileSystem, folder: str, recursive: bool = True) -> list[fs.FileInfo]:
    return list(
        filesystem.get_file_info(fs.FileSelector(folder or ".", allow_not_found=True, recursive=recursive))
    )


def _list_one(source: str) -> list[DataFile]:
    filesystem, inner, prefix = _filesystem(source, _FIRST_CONTACT_SECONDS)
    here = f" in {os.getcwd()}" if not prefix and not os.path.isabs(inner) else ""
    try:
        info = filesystem.get_file_info(inner)
        if (
            info.type == fs.FileType.File
        ):  # a file that exists is taken as it is, whatever its name looks like
            found = [info]
        elif info.type == fs.FileType.Directory:
            root = info.path.rstrip("/")
            found = [entry for entry in _select(filesystem, root) if not _hidden(entry.path[len(root) :])]
        elif _GLOB.search(inner):
            root = inner[: _GLOB.search(inner).start()].rpartition("/")[0]  # type: ignore[union-attr]
            root = root or ("/" if inner.startswith("/") else "")
            deep = "**" in inner or "/" in inner[len(root) :].lstrip("/")
            entries = _select(filesystem, root, recursive=deep)
            normal = inner[2:] if inner.startswith("./") else inner
            pattern = _glob_pattern(normal)
            found = []
            for entry in entries:
                name = entry.path[2:] if entry.path.startswith("./") else entry.path
                if pattern.match(name) and not _hidden(name[len(root) :]):
                    if entry.type == fs.FileType.Directory:
                        below = _select(filesystem, entry.path)
                        found += [e for e in below if not _hidden(e.path[len(entry.path) :])]
                    else:
                        found.append(entry)
        else:
            raise UserError(
                f"data source {source!r}: no such file or folder{here}{_similar(filesystem, inner)}"
            )
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"data source {source!r}: can't be listed: {error}") from error
    reading = _filesystem(source, _READING_SECONDS)[0] if prefix else filesystem
    files = {entry.path: entry for entry in found if entry.type == fs.FileType.File}
    if not files:
        raise UserError(
            f"data source {source!r}: no file {'matches' if _GLOB.search(inner) else 'in this folder'}{here}"
            " (names that start with '.' or '_' are ignored)"
        )
    listed = []
    for path in sorted(files):
        shown = path[2:] if path.startswith("./") else path
        info = files[path]
        listed.append(
            DataFile(prefix + shown, info.size or 0, _partitions(shown), path, reading, info.mtime_ns)
        )
    return listed


def _similar(filesystem: fs.FileSystem, inner: str) -> str:
    folder, _, name = inner.rpartition("/")
    try:
        names = [entry.base_name for entry in _select(filesystem, folder, recursive=False)]
    except (OSError, pa.ArrowException):
        return ""
    return nearest(name, names)


def list_files(sources: Sequence[str]) -> list[DataFile]:
    """Returns the files of a source, each once, sorted within each entry of `sources`.

    Args:
        sources: files, folders (read with all folders below them) or globs (`*`, `?`, `[a-z]`, `**`), local
            or gs://.

    Raises:
        UserError: nothing is there, or it can't be listed.
    """
    seen: dict[str, DataFile] = {}
    for source in sources:
        for file in _list_one(source):
            seen.setdefault(file.path, file)
    return list(seen.values())


# --- formats ----------------------------------------------------------------------------------------


def format_by_name(path: str) -> str | None:
    """Returns the format that a file's name tells, or None."""
    name = path.rsplit("/", 1)[-1].lower()
    name = _SPLIT_OUTPUT.sub("", name)
    for packed in _PACKED_NAMES:
        name = name.removesuffix(packed)
    return _BY_NAME.get(os.path.splitext(name)[1])


def _format_by_content(file: DataFile) -> str | None:
    start = file.head(6)
    return next((name for magic, name in _BY_MAGIC if start.startswith(magic)), None)


def file_format(file: DataFile, asked: str = "auto") -> str:
    """Returns the format of a file: `asked`, or by its name, or by its first bytes.

    Raises:
        UserError: the file is empty, of no known format, or its content is not what its name says.
    """
    if file.size == 0:
        raise UserError(f"{file.path}: the file is empty (0 bytes)")
    named = format_by_name(file.path) if asked == "auto" else asked
    content = _format_by_content(file)
    found = named or content
    if found is None:
        raise UserError(f"{file.path}: can't tell the format by its name; set data.format")
    if content is not None and content != found:
        raise UserError(f"{file.path}: expected {found}, but its content is {content}")
    if found in ("parquet", "avro", "arrow"):
        if file.compression is not None and content is None:
            raise UserError(
                f"{file.path}: is compressed as a whole with {file.compression}, "
                f"which {found} files are not; decompress it"
            )
        if found != "arrow" and content is None:
            raise UserError(f"{file.path}: is not a {found} file (its first bytes are {file.head(4)!r})")
    return found


def open_reader(file: DataFile, asked: str, options: ReadOptions) -> Reader:
    """Opens a file with the reader of its format.

    Raises:
        UserError: see `file_format`; or the file can't be read as that format.
    """
    kind = file_format(file, asked)
    # Each reader is imported when it is first needed: TensorFlow and fastavro take their time.
    if kind == "parquet":
        from trainer.data.formats.parquet import ParquetReader

        return ParquetReader(file, options)
    if kind == "csv":
        from trainer.data.formats.csv import CsvReader

        return CsvReader(file, options)
    if kind == "jsonl":
        from trainer.data.formats.jsonl import JsonlReader

        return JsonlReader(file, options)
    if kind == "avro":
        from trainer.data.formats.avro import AvroReader

        return AvroReader(file, options)
    if kind == "arrow":
        from trainer.data.formats.arrow import ArrowReader

        return ArrowReader(file, options)
    from trainer.data.tfrecord import TfrecordReader

    return TfrecordReader(file, options)
