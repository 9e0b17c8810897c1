"""Rows of files: reads, splits, converts and filters them unit by unit. Adopters: leave."""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.config import DataConfig
from trainer.data import cast, prefetch
from trainer.data.checks import missing_column
from trainer.data.files import DataFile
from trainer.data.fileset import FileSet
from trainer.data.formats import Part, Reader, ranges
from trainer.data.source import Counts, Unit, Wanted
from trainer.data.split import TEST, TRAIN, Splitter
from trainer.errors import UserError

_WHOLE_FILE = Part("", 0, None)


@dataclass(frozen=True)
class FileUnit(Unit):
    """A part of a file.

    Attributes:
        file: number of its file.
        part: the part as its reader knows it.
        inside: whether all its rows are known to be in the split.
        cap: most rows to give (data.limit_rows), or None.
    """

    file: int = 0
    part: Part = _WHOLE_FILE
    inside: bool = False
    cap: int | None = None


@dataclass
class _UnitCounts:
    rows: int = 0
    missing_label: int = 0


class FileSource:
    """The rows of files, or of one split of them (see `trainer.data.source.Source`)."""

    def __init__(self, name: str, files: FileSet, splitter: Splitter | None = None, code: int = 0) -> None:
        self.name = name
        self._files = files
        self._splitter = splitter
        self._code = code
        self._done: dict[int, _UnitCounts] = {}
        self._bad_lock = threading.Lock()
        self._bad = 0  # skipped records that this split came upon first
        self._seen_rows = 0  # rows read so far, whatever their split
        self._units: list[FileUnit] | None = None
        self._lock = threading.Lock()

    def share(self, name: str, splitter: Splitter, code: int) -> FileSource:
        """Returns the rows of one split of the same files."""
        return FileSource(name, self._files, splitter, code)

    def identities(self) -> set[str]:
        """Returns the paths of the files."""
        return {file.path for file in self._files.files}

    def fingerprint(self) -> str:
        """Returns a hash of the names, sizes and, where a store keeps them, times of the files."""
        about = [[one.path, one.size, one.changed_at if one.remote else None] for one in self._files.files]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(self._files.types.items()))

    # --- units

    def units(self) -> list[FileUnit]:
        with self._lock:
            if self._units is None:
                self._units = self._plan()
            units = list(self._units)
        return [self._with_rows(unit) for unit in units]

    def _with_rows(self, unit: FileUnit) -> FileUnit:
        done = self._done.get(unit.index)
        return unit if done is None or unit.rows is not None else replace(unit, rows=done.rows)

    def _plan(self) -> list[FileUnit]:
        files = self._files
        _ = files.types  # finds missing columns before anything is read
        if files.format in ("parquet", "avro", "arrow") or any(map(ranges.large, files.files)):
            files.open_all()
        units: list[FileUnit] = []
        for index, file in enumerate(files.files):
            in_parts = files.format in ("parquet", "arrow") or ranges.large(file)
            reader = files.reader(index) if in_parts else None
            parts = [_WHOLE_FILE] if reader is None else reader.parts()
            for part in parts:
                codes = self._codes_of(reader, file, part)
                if self._code not in codes:
                    continue
                name = f"{file.path}, {part.label}" if part.label else file.path
                unit = FileUnit(len(units), name, None, index, part, len(codes) == 1)
                units.append(replace(unit, rows=self._known_rows(reader, unit)))
        return self._limited(units) if files.data.limit_rows else units

    def _codes_of(self, reader: Reader | None, file: DataFile, part: Part) -> range:
        """Returns the splits that rows of a part can be in, as far as is known without reading it."""
        if self._splitter is None:
            return range(self._code, self._code + 1)
        folders = dict(file.partitions)
        if self._splitter.column in folders:
            value = folders[self._splitter.column]
            code = int(self._splitter.assign(pa.array([value], pa.string()), file.path)[0])
            return range(code, code + 1)
        bounds = None if reader is None else reader.bounds(part, self._splitter.column)
        codes = None if bounds is None else self._splitter.assign_bounds(bounds)
        return range(TRAIN, TEST + 1) if codes is None else codes

    def _known_rows(self, reader: Reader | None, unit: FileUnit) -> int | None:
        """Returns the rows of a unit where the file's statistics say that none can be dropped."""
        if reader is None or not unit.inside or self._files.bad.skip:
            return None
        stored = reader.schema()
        for label in self._files.asked.labels:
            kind = stored.get(label)
            bounds = reader.bounds(unit.part, label) if kind is not None else None
            # Text may be empty and floats NaN, which mean missing as well: only reading tells.
            exact = kind is not None and (pa.types.is_integer(kind) or pa.types.is_boolean(kind))
            if bounds is None or bounds.nulls or not exact:
                return None
        return unit.part.rows

    def _limited(self, units: list[FileUnit]) -> list[FileUnit]:
        """Cuts the units to the first data.limit_rows rows of the split."""
        left = self._files.data.limit_rows
        kept: list[FileUnit] = []
        for unit in units:
            rows = unit.rows if unit.rows is not None else self._count_unit(replace(unit, cap=left))
            if rows:
                kept.append(replace(unit, index=len(kept), rows=min(rows, left), cap=left))
                left -= min(rows, left)
            if not left:
                break
        return kept

    # --- reading

    def read(self, unit: Unit, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        assert isinstance(unit, FileUnit)
        names = self._names(columns)
        counts = _UnitCounts()
        for batch, _ in self._rows(unit, names, counts):
            if batch.num_rows:
                yield batch
        with self._lock:
            self._done[unit.index] = counts

    def batches(
        self, columns: Sequence[str] | None = None, units: Sequence[Unit] | None = None
    ) -> Iterator[pa.RecordBatch]:
        names = self._names(columns)
        chosen = self.units() if units is None else units
        starts = [functools.partial(self.read, unit, names) for unit in chosen]
        empty = True
        for batch in prefetch.ordered(starts, self._files.data.reader_threads):
            empty = False
            yield batch
        if empty and units is None:
            raise self.no_rows()

    def count(self) -> int:
        units = self.units()
        unknown = [unit for unit in units if unit.rows is None]
        starts = [functools.partial(self._counted, unit) for unit in unknown]
        for _ in prefetch.ordered(starts, self._files.data.reader_threads):
            pass
        return sum(unit.rows or 0 for unit in self.units())

    def _counted(self, unit: FileUnit) -> Iterator[None]:
        for _ in self.read(unit, []):
            pass
        yield

    def any_rows(self) -> bool:
        return any(unit.rows or self._count_unit(replace(unit, cap=1)) for unit in self.units())

    def counts(self) -> Counts:
        with self._lock:
            done = list(self._done.values())
            of = len(self._units or ())
        return Counts(
            sum(one.rows for one in done),
            sum(one.missing_label for one in done),
            self._bad,
            len(done),
            of,
        )

    def findings(self) -> dict[str, Any]:
        """Returns what reading has found out about rows, as a JSON value: for `adopt` in other processes."""
        with self._lock:
            units = {str(i): [one.rows, one.missing_label] for i, one in sorted(self._done.items())}
        return {"units": units, "bad": self._files.bad.seen()}

    def adopt(self, findings: dict[str, Any]) -> None:
        """Takes over what another process has found out about rows of this split.

        Raises:
            UserError: more records can't be read than data.max_bad_records allows.
        """
        with self._lock:
            for unit, counts in findings["units"].items():
                self._done.setdefault(int(unit), _UnitCounts(*counts))
        for path, row in findings["bad"]:
            self._skip(path, row, lambda path=path, row=row: f"{path}, row {row:,}, read by another worker")  # type: ignore[misc]

    def no_rows(self) -> UserError:
        paths = self._files.files
        where = paths[0].path if len(paths) == 1 else f"{paths[0].path} and {len(paths) - 1} other file(s)"
        dropped = self.counts().missing_label
        if dropped:
            labels = ", ".join(map(repr, self._files.asked.labels))
            return UserError(f"{where}: all {dropped} rows of the {self.name} split lack a label ({labels})")
        if not self._seen_rows and not self._bad and self._files.format not in ("parquet", "arrow"):
            header = self._files.format == "csv" and self._files.data.csv.header
            return UserError(f"{where}: no rows{': nothing follows the header' if header else ''}")
        if self._splitter is None:
            return UserError(f"{where}: no rows")
        return UserError(f"{where}: no row is in the {self.name} split: {self._splitter.seen()}")

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        types = self._files.types
        if columns is None:
            return list(types)
        for name in columns:
            if name not in types:
                raise KeyError(f"column {name!r} is not among those that the config reads: {sorted(types)}")
        return list(columns)

    def _count_unit(self, unit: FileUnit) -> int:
        counts = _UnitCounts()
        for _ in self._rows(unit, [], counts):
            pass
        return counts.rows

    def _rows(
        self, unit: FileUnit, names: list[str], counts: _UnitCounts
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yields (columns `names`, number of rows) of a unit, and counts its rows."""
        files = self._files
        types = files.types
        # Skipping a row because of a column must not depend on which columns are asked for.
        checked = list(types) if files.bad.skip else list(dict.fromkeys([*names, *files.asked.labels]))
        by = None if self._splitter is None or unit.inside else self._splitter.column
        for whole, first in self._stored(unit, list(dict.fromkeys([*checked, *([by] if by else [])]))):
            self._seen_rows += whole.num_rows
            for start in range(0, whole.num_rows, files.data.chunk_rows):
                stored = whole.slice(start, files.data.chunk_rows)
                numbers = np.arange(stored.num_rows) + start
                numbers = numbers + first if isinstance(first, int) else np.asarray(first)[numbers]
                batch, size = self._finish(unit, stored, numbers, names, checked, by, counts)
                if unit.cap is not None and counts.rows + size >= unit.cap:
                    size = unit.cap - counts.rows
                    counts.rows = unit.cap
                    yield batch.slice(0, size), size
                    return
                counts.rows += size
                yield batch, size

    def _skip(self, path: str, row: int, message: Callable[[], str]) -> None:
        """Takes note of a record that can't be read; see `BadRecords.add`."""
        if self._files.bad.add(path, row, message):
            with self._bad_lock:
                self._bad += 1

    def _stored(self, unit: FileUnit, need: list[str]) -> Iterator[tuple[pa.RecordBatch, Any]]:
        """Yields the columns `need` of a unit as they are stored, and the number of each row in its file."""
        files = self._files
        file = files.files[unit.file]
        reader = files.reader(unit.file)
        have = reader.schema()
        folders = dict(file.partitions)
        inner = [name for name in need if name not in folders and name in have]
        for name in need:
            if name not in folders and name not in have and not reader.optional_columns:
                other = files.files[0].path if unit.file else ""
                raise missing_column(file.path, name, have, like=other)
        # Something has to be read to count rows; a column that is there costs least.
        some = inner or [next((n for n in have if n not in folders), "")]

        def bad(row: int, reason: str) -> None:
            self._skip(file.path, row, lambda: f"{reader.locate(row)}: {reason}")

        if some == [""]:
            raise UserError(f"{file.path}: has no columns")
        parts = [unit.part] if unit.part.label else reader.parts()
        for part in parts:
            for batch, rows in _unchanged(file, reader.read(part, some, bad)):
                arrays = []
                for name in need:
                    if name in folders:
                        arrays.append(_constant(folders[name], batch.num_rows))
                    elif name in have:
                        arrays.append(batch.column(some.index(name)))
                    else:
                        arrays.append(pa.nulls(batch.num_rows))
                if not need:
                    arrays, shown = list(batch.columns), some
                else:
                    shown = need
                yield pa.RecordBatch.from_arrays(arrays, names=shown), rows

    def _finish(
        self,
        unit: FileUnit,
        stored: pa.RecordBatch,
        numbers: np.ndarray,
        names: list[str],
        checked: list[str],
        by: str | None,
        counts: _UnitCounts,
    ) -> tuple[pa.RecordBatch, int]:
        """Splits, converts and filters a stored batch."""
        files = self._files
        path = files.files[unit.file].path
        if by is not None:
            assert self._splitter is not None
            inside = self._splitter.assign(stored.column(by), path) == self._code
            if not inside.all():
                stored = stored.filter(pa.array(inside))
                numbers = numbers[inside]
        size = stored.num_rows
        keep = np.ones(size, bool)
        columns: dict[str, pa.Array] = {}
        for name in checked:
            columns[name], bad = self._convert(unit, name, stored.column(name), numbers)
            if bad is not None:
                keep &= ~bad
        for label in files.asked.labels:
            columns[label], absent = _label(columns[label])
            if absent is not None:
                absent &= keep
                if absent.any() and files.asked.fail_missing_label:
                    raise UserError(
                        f"{files.locate(unit.file, int(numbers[absent][0]))}: no label in column {label!r} "
                        "(label.missing=fail; label.missing=drop drops such rows)"
                    )
                counts.missing_label += int(absent.sum())
                keep &= ~absent
        fields = [pa.field(name, files.types[name]) for name in names]
        batch = pa.RecordBatch.from_arrays([columns[name] for name in names], schema=pa.schema(fields))
        if keep.all():
            return batch, size
        return (batch.filter(pa.array(keep)) if names else batch), int(keep.sum())

    def _convert(
        self, unit: FileUnit, name: str, stored: pa.Array, numbers: np.ndarray
    ) -> tuple[pa.Array, np.ndarray | None]:
        files = self._files
        path = files.files[unit.file].path
        target = files.types[name]
        try:
            done = cast.convert(stored, target, files.texts)
        except cast.WrongTypeError as error:
            raise UserError(f"{path}: column {name!r} holds {error}{self._elsewhere(unit, name)}") from error
        if done.bad is not None:
            wrong = np.flatnonzero(done.bad)
            for place in wrong if files.bad.skip else wrong[:1]:
                row = int(numbers[place])
                value = _value(stored[int(place)])
                self._skip(
                    path,
                    row,
                    lambda row=row, value=value: (  # type: ignore[misc]
                        f"{files.locate(unit.file, row)}: column {name!r} holds {_shorten(value)}, "
                        f"expected {cast.describe(target)}{self._elsewhere(unit, name)}"
                    ),
                )
        return done.values, done.bad

    def _elsewhere(self, unit: FileUnit, name: str) -> str:
        """Says what the first file holds in a column, where that is of another type."""
        if unit.file == 0:
            return ""
        here, there = self._files.columns(unit.file).get(name), self._files.columns(0).get(name)
        return f" ({self._files.files[0].path} holds {there})" if there is not None and there != here else ""


def _unchanged(file: DataFile, batches: Iterator[Any]) -> Iterator[Any]:
    """Yields batches of a file; where reading them fails because the file changed, the error says so."""
    try:
        yield from batches
    except UserError:
        file.check_unchanged()
        raise


def _constant(value: str | None, rows: int) -> pa.Array:
    """Returns a folder's value for all rows of its file."""
    indices = pa.array(np.zeros(rows, np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.string()))


def _label(column: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """Returns a label column without blanks around texts, and which of its rows have no label."""
    if pa.types.is_dictionary(column.type):
        values = pc.utf8_trim_whitespace(column.dictionary)
        if not values.equals(column.dictionary):
            plain = pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
            column = plain.dictionary_encode()
            values = column.dictionary
        empty = pc.index(values, "").as_py() if len(values) else -1
        absent = pc.is_null(column)
        if empty >= 0:
            absent = pc.or_(absent, pc.fill_null(pc.equal(column.indices, empty), False))
        if values.null_count:  # a dictionary may hold null as a value
            absent = pc.or_(absent, pc.is_null(column.dictionary_decode()))
    else:
        absent = pc.is_null(column, nan_is_null=True)
    mask = absent.to_numpy(zero_copy_only=False)
    return column, mask if mask.any() else None


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):  # a time beyond Python's years
        return str(scalar)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def open_files(sources: Sequence[str], data: DataConfig, asked: Wanted, name: str) -> FileSource:
    """Opens files as rows without a split.

    Raises:
        UserError: nothing is there, or a file is empty or of an unknown format.
    """
    return FileSource(name, FileSet(sources, data, asked))
