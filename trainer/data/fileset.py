"""The files of a source, opened when first needed, and the types of their columns. Adopters: leave."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from trainer.config import DataConfig
from trainer.data import cast
from trainer.data.checks import BadRecords, missing_column
from trainer.data.files import file_format, list_files, open_reader
from trainer.data.formats import Reader, ReadOptions
from trainer.data.source import Wanted
from trainer.errors import UserError

_SAMPLED_FILES = 8  # files opened to learn the columns, where rows may leave columns out


class FileSet:
    """The files of a source, opened when first needed, and shared by its splits. Safe to use from threads."""

    def __init__(self, sources: Sequence[str], data: DataConfig, asked: Wanted) -> None:
        self.files = list_files(sources)
        self.data = data
        self.asked = asked
        self.bad = BadRecords(skip=data.on_bad_record == "skip", limit=data.max_bad_records)
        self.options = ReadOptions(asked.types, data.chunk_rows, data.csv)
        self.format = file_format(self.files[0], data.format)
        self._readers: dict[int, Reader] = {}
        self._lock = threading.Lock()
        self.texts = data.csv.na_values if self.format == "csv" else ("",)

    def reader(self, index: int) -> Reader:
        """Returns the opened file.

        Raises:
            UserError: it can't be opened, or is of another format than the first file.
        """
        known = self._readers.get(index)
        if known is not None:
            return known
        file = self.files[index]
        kind = file_format(file, self.data.format)
        if kind != self.format:
            raise UserError(
                f"{file.path}: is a {kind} file, but {self.files[0].path} is {self.format}; use one format"
            )
        reader = open_reader(file, self.data.format, self.options)
        with self._lock:
            return self._readers.setdefault(index, reader)

    def open_all(self) -> None:
        """Opens all files at once: on an object store the waits add up otherwise."""
        missing = [index for index in range(len(self.files)) if index not in self._readers]
        if len(missing) > 1:
            with ThreadPoolExecutor(min(16, len(missing)), thread_name_prefix="open") as pool:
                list(pool.map(self.reader, missing))

    def columns(self, index: int) -> dict[str, pa.DataType]:
        """Returns the columns of a file, those of its folders' names included."""
        stored = self.reader(index).schema()
        folders = dict.fromkeys((key for key, _ in self.files[index].partitions), pa.string())
        return {**stored, **folders}

    @functools.cached_property
    def types(self) -> dict[str, pa.DataType]:
        """The type of each wanted column: those of the config, with stored integers kept where they may be.

        Raises:
            UserError: a wanted column isn't there.
        """
        first = self.reader(0)
        sampled = min(_SAMPLED_FILES, len(self.files)) if first.optional_columns else len(self.files)
        if not first.optional_columns and self.format != "csv":
            self.open_all()
        elif self.format == "csv":
            sampled = 1
        known = [self.columns(index) for index in range(sampled)]
        resolved: dict[str, pa.DataType] = {}
        for name, kind in self.asked.types.items():
            stored = [columns[name] for columns in known if name in columns]
            if not stored:
                raise missing_column(
                    self.files[0].path, name, sorted({n for columns in known for n in columns})
                )
            stored = [_plain(one) for one in stored if not pa.types.is_null(one)]
            if (
                first.typed
                and name in self.asked.keep_integers
                and stored
                and all(_fits_int64(one) for one in stored)
            ):
                kind = cast.INTEGER
            resolved[name] = kind
        return resolved

    def locate(self, file: int, row: int) -> str:
        """Names a row for a person."""
        return self.reader(file).locate(row)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _fits_int64(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
