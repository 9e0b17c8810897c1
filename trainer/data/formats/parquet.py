"""Parquet files, by row group, text columns as dictionaries. Adopters: leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.data.files import DataFile
from trainer.data.formats import BadRow, Bounds, Part, ReadOptions
from trainer.data.nested import duplicates, extract, flat_schema, sound
from trainer.errors import UserError

# What pyarrow raises for a damaged file, depending on where the damage is.
DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError, IndexError, TypeError)


class ParquetReader:
    """One Parquet file; opens its footer at once and its data when read."""

    optional_columns = False
    typed = True

    def __init__(self, file: DataFile, options: ReadOptions) -> None:
        self._file = file
        self._options = options
        try:
            with file.open() as stream:
                self._metadata = pq.read_metadata(stream)
            self._columns = flat_schema(self._metadata.schema.to_arrow_schema())
            leaves = [self._metadata.schema.column(i).path for i in range(self._metadata.num_columns)]
            self._sizes = [self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)]
        except DAMAGE as error:
            raise UserError(f"{file.path}: can't be read as Parquet: {_short(error)}") from error
        if min(self._sizes, default=0) < 0 or sum(self._sizes) != self._metadata.num_rows:
            raise UserError(f"{file.path}: is damaged: its row groups don't add up to its number of rows")
        if duplicates(leaves):
            raise UserError(f"{file.path}: has the column {duplicates(leaves)[0]!r} twice")
        self._asked: dict[tuple[int, str], bool] = {}
        self._leaf = {path: index for index, path in enumerate(leaves)}
        # Only whole text columns come as dictionaries; numbers are as fast without.
        self._dictionaries = [
            name
            for name, kind in self._columns.items()
            if (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))
            and name in self._leaf
            and pa.types.is_dictionary(options.wanted.get(name, pa.null()))
        ]

    def schema(self) -> dict[str, pa.DataType]:
        return dict(self._columns)

    def parts(self) -> list[Part]:
        """Row groups; small neighbours are taken together up to `chunk_rows` rows."""
        parts: list[Part] = []
        group: list[int] = []
        first = rows = 0
        for index, size in enumerate(self._sizes):
            if group and rows + size > self._options.chunk_rows:
                parts.append(_part(group, first, rows))
                first, group, rows = first + rows, [], 0
            group.append(index)
            rows += size
        if group and rows:
            parts.append(_part(group, first, rows))
        return parts

    def bounds(self, part: Part, column: str) -> Bounds | None:
        leaf = self._leaf.get(column)
        if leaf is None or not _has_order(self._columns[column]):
            return None
        lows: list[Any] = []
        highs: list[Any] = []
        nulls = 0
        for index in part.place:
            try:
                if not self._can_ask(index, column):
                    return None
                statistics = self._metadata.row_group(index).column(leaf).statistics
                if statistics is None or not statistics.has_null_count:
                    return None
                nulls += statistics.null_count
                if statistics.has_min_max:
                    lows.append(statistics.min)
                    highs.append(statistics.max)
                elif statistics.null_count < self._sizes[index]:
                    return None
            except DAMAGE:
                return None  # statistics are a shortcut; a type that they can't tell is read instead
        if not lows:
            return Bounds(None, None, nulls)
        try:
            return Bounds(min(lows), max(highs), nulls)
        except TypeError:
            return None

    def _can_ask(self, group: int, column: str) -> bool:
        """Returns whether a column chunk's metadata is sound enough to ask pyarrow for its statistics.

        For some damaged footers pyarrow ends the whole process where it is asked for statistics, but raises
        an exception where it reads; so the first row is read first. Object stores check theirs.
        """
        if "://" in self._file.path:
            return True
        known = self._asked.get((group, column))
        if known is None:
            try:
                with self._file.open() as stream:
                    file = pq.ParquetFile(
                        stream, metadata=self._metadata, buffer_size=1 << 12, pre_buffer=False
                    )
                    for _ in file.iter_batches(1, row_groups=[group], columns=[column], use_threads=False):
                        break
                known = True
            except DAMAGE:
                known = False
            self._asked[group, column] = known
        return known

    def read(self, part: Part, columns: Sequence[str], bad: BadRow) -> Iterator[tuple[pa.RecordBatch, int]]:
        del bad  # a Parquet file has no broken rows: it can be read or it can't
        row = part.first_row
        try:
            with self._file.open() as stream:
                file = pq.ParquetFile(
                    stream,
                    metadata=self._metadata,
                    read_dictionary=[name for name in self._dictionaries if name in columns],
                    coerce_int96_timestamp_unit="us",
                    # Of an object, the ranges of all wanted columns are asked for at once.
                    pre_buffer=self._file.remote,
                )
                for batch in file.iter_batches(
                    batch_size=self._options.chunk_rows,
                    row_groups=list(part.place),
                    columns=list(columns),
                    use_threads=self._options.threads,
                ):
                    yield sound(extract(batch, columns)), row
                    row += batch.num_rows
        except DAMAGE as error:
            raise UserError(
                f"{self._file.path}: {part.label} can't be read (damaged or cut short?): {_short(error)}"
            ) from error
        if row != part.first_row + (part.rows or 0):
            raise UserError(
                f"{self._file.path}: {part.label} should hold {part.rows} rows, got {row - part.first_row}"
            )

    def locate(self, row: int) -> str:
        return f"{self._file.path}, row {row + 1}"


def _has_order(kind: pa.DataType) -> bool:
    """Returns whether statistics of a type are used: numbers and times; text has too many orders."""
    return (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    )


def _part(group: list[int], first: int, rows: int) -> Part:
    label = f"row group {group[0]}" if len(group) == 1 else f"row groups {group[0]}-{group[-1]}"
    return Part(label, first, rows, tuple(group))


def _short(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
