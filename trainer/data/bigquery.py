"""Rows of BigQuery tables through the Storage Read API, as rows of files are read. Adopters: leave.

A unit is a stream of a read session. Where the service can leave rows of other splits out, each split has a
session of its own; the splitter still looks at every row that comes. Conversion, labels, bad records and
counts are those of files (`rows.py`), so that the same rows give the same batches.

A session lives for six hours. A restart within them takes the same session up again; later ones, and runs
that read for longer, open a new one as of the same moment. If that one has the same streams, nothing changes.
If not, every unit is read from where its rows would lie if all streams were one: each later pass has each row
once, and the log says how many rows of the current pass may come twice, and as many not before the next.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from trainer import environment
from trainer.config import Config
from trainer.data import prefetch
from trainer.data.bigquery_ledger import Ledger
from trainer.data.bigquery_tables import Connection, RecutError, TableFiles
from trainer.data.formats import Part
from trainer.data.rows import FileSource, FileUnit, _UnitCounts
from trainer.data.source import SplitSource, Unit, Wanted
from trainer.data.split import Splitter
from trainer.errors import UserError

_LOG = logging.getLogger("trainer")
_MIXED = 4  # streams that `pipeline` mixes, if no more threads are asked for


@dataclass
class _Index:
    """Where the rows of one split lie in the streams.

    Attributes:
        places: of each stream, (rows of the split before, offset) at some offsets, both rising.
        totals: of each stream, its rows of the split; None until it was read to its end.
        generation: of the streams.
    """

    places: list[list[tuple[int, int]]]
    totals: list[int | None]
    generation: int

    @classmethod
    def empty(cls, streams: int, generation: int) -> _Index:
        return cls([[(0, 0)] for _ in range(streams)], [None] * streams, generation)

    def start(self, stream: int, skip: int) -> tuple[int, int]:
        """Returns the last known (rows before, offset) that is not beyond `skip` rows."""
        known = self.places[stream]
        return known[bisect.bisect_right(known, (skip, 1 << 62)) - 1]

    def note(self, stream: int, rows: int, offset: int) -> None:
        """Remembers a place behind the last known one."""
        known = self.places[stream]
        if rows >= known[-1][0] and offset > known[-1][1]:
            if rows == known[-1][0]:
                known.pop()  # rows of other splits lie between: no need to read them again
            known.append((rows, offset))


@dataclass
class _Cursor:
    """How far a stream has been read: the offset behind the last batch, and the generation of the streams."""

    offset: int
    generation: int


@dataclass
class _Given:
    """Rows that `read` has given of each unit, for the log of a session that was cut otherwise."""

    rows: dict[int, int] = field(default_factory=dict)

    def in_this_pass(self, totals: Sequence[int]) -> int:
        """Returns how many rows of the current pass were given, if each pass reads each unit once."""
        passes = min((self.rows.get(u, 0) // total for u, total in enumerate(totals) if total), default=0)
        return sum(min(total, self.rows.get(u, 0) - passes * total) for u, total in enumerate(totals))


class BigQuerySource(FileSource):
    """The rows of tables, or of one split of them (see `trainer.data.source.Source`).

    Attributes:
        recut: whether rows come in another order than in the earlier start that this run goes on from.
    """

    skips = True  # `read` can leave out rows without fetching them

    _files: TableFiles  # type: ignore[assignment]  # in the place of a FileSet

    def __init__(self, name: str, files: TableFiles, splitter: Splitter | None = None, code: int = 0) -> None:
        super().__init__(name, files, splitter, code)  # type: ignore[arg-type]
        self._index = _Index([], [], -1)  # that of the streams of now
        self._planned = -1  # generation of the streams that the units are
        self._given = _Given()
        self._recounting = threading.Lock()
        self._noting = threading.Lock()  # not the one of the units, which is held while they are planned
        self._saved = False
        self.recut = False

    def share(self, name: str, splitter: Splitter, code: int) -> BigQuerySource:
        """Returns the rows of one split of the same tables."""
        return BigQuerySource(name, self._files.split(splitter, code), splitter, code)

    def identities(self) -> set[str]:
        """Returns the names of the tables."""
        return {str(table) for table in self._files.tables}

    def fingerprint(self) -> str:
        """Returns a hash of what the rows depend on: tables, columns, filters and the moment."""
        about = [session.request.key for session in self._files.sessions]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]

    # --- units

    @property
    def _key(self) -> str:
        """The name of this split's entry in the ledger: everything that its rows depend on."""
        data, asked = self._files.data, self._files.asked
        about = [
            self.name,
            [session.request.key for session in self._files.sessions],
            data.split.model_dump(),
            sorted(map(str, asked.types.items())),
            [asked.labels, data.on_bad_record, data.limit_rows, data.chunk_rows],
        ]
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]

    def _plan(self) -> list[FileUnit]:
        files = self._files
        _ = files.types  # finds missing columns before anything is read
        count = files.streams
        self._planned = files.generation
        self._index = _Index.empty(count, self._planned)
        units = [FileUnit(i, stream.path, None, i) for i, stream in enumerate(files.files[:count])]
        known = files.connection.ledger.get("splits", self._key)
        if known is not None:
            if known["generation"] == self._planned:
                self._index = _Index(
                    [[(rows, offset) for rows, offset in places] for places in known["places"]],
                    known["totals"],
                    self._planned,
                )
                self._done = {int(i): _UnitCounts(*counts) for i, counts in known["units"].items()}
                self._saved = True
                return units
            self.recut = True
            _LOG.warning(
                "%s: the read session of the earlier start expired, and the new one cuts the table "
                "otherwise: the %s rows come in another order than before",
                files.tables[0],
                self.name,
            )
        if count > 1:
            # Without a cache, rows of several streams are mixed, which are all open meanwhile.
            threads = files.data.reader_threads
            most = max(threads, _MIXED) + 1 if files.data.cache == "none" else threads
            _LOG.info("%s: %d streams, at most %d of them read at once", self.name, count, min(most, count))
        return self._limited(units) if files.data.limit_rows else units

    # --- reading

    def read(
        self, unit: Unit, columns: Sequence[str] | None = None, skip: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a unit in order.

        Args:
            unit: the unit.
            columns: columns to give; None gives all.
            skip: rows to leave out, which are not fetched again as far as it is known where they end.
        """
        assert isinstance(unit, FileUnit)
        for batch, _ in self._unit_rows(unit, self._names(columns), skip):
            if batch.num_rows:
                yield batch

    def count(self) -> int:
        starts = [functools.partial(self._counted, unit) for unit in self.units() if unit.rows is None]
        for _ in prefetch.ordered(starts, self._files.data.reader_threads):
            pass
        return sum(unit.rows or 0 for unit in self.units())

    def _counted(self, unit: FileUnit) -> Iterator[None]:
        for _ in self._unit_rows(unit, [], 0):
            pass
        yield

    def _unit_rows(self, unit: FileUnit, names: list[str], skip: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yields (columns, number of rows) of a unit, also across an expired session."""
        counts = _UnitCounts()
        given = skip
        index = self._index
        try:
            if index.generation == self._planned == self._files.generation:
                for batch, size in self._stream_rows(index, unit, unit.file, names, counts, skip, unit.cap):
                    self._note(index, unit, size)
                    given += size
                    yield batch, size
                self._finished(unit, counts, whole=skip == 0)
                return
        except RecutError:
            pass
        first, last = self._range(unit)
        while first + given < last:
            index = self._recount()
            try:
                for stream, start, stop in _overlapping(index.totals, first + given, last):
                    part = self._stream_rows(index, unit, stream, names, _UnitCounts(), start, stop)
                    for batch, size in part:
                        self._note(index, unit, size)
                        given += size
                        yield batch, size
            except RecutError:
                continue

    def _note(self, index: _Index, unit: FileUnit, rows: int) -> None:
        """Notes rows that are to be given now, unless their session was replaced; so the log's figure holds.

        Raises:
            RecutError: the streams no longer hold the rows that they held.
        """
        with self._noting:
            if index.generation != self._files.generation:
                raise RecutError
            self._given.rows[unit.index] = self._given.rows.get(unit.index, 0) + rows

    def _stream_rows(
        self,
        index: _Index,
        unit: FileUnit,
        stream: int,
        names: list[str],
        counts: _UnitCounts,
        skip: int,
        stop: int | None,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yields rows skip..stop of the split's rows in a stream.

        Args:
            index: of the streams; remembers what is learned on the way.
            unit: the unit that they are read for.
            stream: number of the stream.
            names: columns to give.
            counts: gets the rows and those without a label, from the place on where reading began.
            skip: rows of the split to leave out.
            stop: row after the last; None: to the stream's end.
        """
        rows, offset = index.start(stream, skip)
        cursor = _Cursor(offset, index.generation)
        part = Part("", offset, None, cursor)
        piece = FileUnit(unit.index, unit.name, None, stream, part, False, None)
        for batch, size in self._rows(piece, names, counts):
            with self._noting:
                index.note(stream, rows + size, cursor.offset)
            drop = max(0, skip - rows)
            keep = size - drop if stop is None else min(rows + size, stop) - rows - drop
            rows += size
            if keep > 0:
                yield (batch.slice(drop, keep) if batch.num_rows else batch), keep
            if stop is not None and rows >= stop:
                counts.rows = min(counts.rows, stop)
                return
        index.totals[stream] = rows

    def _stored(self, unit: FileUnit, need: list[str]) -> Iterator[tuple[pa.RecordBatch, Any]]:
        files = self._files
        stream = files.files[unit.file]
        # Something has to be read to count rows.
        some = need or [next(iter(files.columns_of[stream.session.request.table]))]
        cursor: _Cursor = unit.part.place
        for offset, batch in files.read(stream, cursor.offset, some, cursor.generation):
            cursor.offset = offset + batch.num_rows
            yield batch, offset

    def _count_unit(self, unit: FileUnit) -> int:
        counts = _UnitCounts()
        index = self._index if self._planned == self._index.generation else None
        if index is None:
            raise RecutError
        for _ in self._stream_rows(index, unit, unit.file, [], counts, 0, unit.cap):
            pass
        return counts.rows

    def _finished(self, unit: FileUnit, counts: _UnitCounts, *, whole: bool) -> None:
        if not whole:
            return
        with self._lock:
            self._done[unit.index] = counts
        self._save_once()

    def _save_once(self) -> None:
        """Writes what a restart needs, as soon as the first pass over all units is done."""
        with self._lock:
            of = self._units
            if self._saved or of is None or len(self._done) < len(of) or self._files.data.limit_rows:
                return
            self._saved = True
        self._files.save()
        self._files.connection.ledger.put("splits", self._key, self.findings())

    def findings(self) -> dict[str, Any]:
        index = self._index
        about = {"generation": index.generation, "totals": index.totals, "places": index.places}
        return {**super().findings(), **about}

    def adopt(self, findings: dict[str, Any]) -> None:
        index = self._index
        if findings["generation"] != index.generation:
            raise self._expired()
        for stream, total in enumerate(findings["totals"]):
            if total is not None and index.totals[stream] is None:
                index.totals[stream] = total
                index.places[stream] = [(rows, offset) for rows, offset in findings["places"][stream]]
        super().adopt(findings)
        self._save_once()

    def no_rows(self) -> UserError:
        where = ", ".join(map(str, self._files.tables))
        filters = [session.request.restriction for session in self._files.sessions]
        if given := [text for text in filters if text]:
            where += f" where {' or '.join(given)}"
        dropped = self.counts().missing_label
        if dropped:
            labels = ", ".join(map(repr, self._files.asked.labels))
            return UserError(f"{where}: all {dropped} rows of the {self.name} split lack a label ({labels})")
        if self._splitter is None:
            return UserError(f"{where}: no rows")
        return UserError(f"{where}: no row is in the {self.name} split: {self._splitter.seen()}")

    # --- a session that expired and came back cut otherwise

    def _range(self, unit: FileUnit) -> tuple[int, int]:
        """Returns the rows of a unit, numbered as if all units were one.

        Raises:
            UserError: not all units were read to their ends yet, so that nobody knows.
        """
        totals = self._totals()
        first = sum(totals[: unit.index])
        return first, first + totals[unit.index]

    def _totals(self) -> list[int]:
        rows = [unit.rows for unit in self.units()]
        if None in rows:
            raise self._expired()
        return [row or 0 for row in rows]

    def _expired(self) -> UserError:
        return UserError(
            f"{self._files.tables[0]}: the read session expired before the first pass over the {self.name} "
            "rows was done, and the new one cuts the table otherwise: run the same command again (no row is "
            "lost, the pass begins anew)"
        )

    def _recount(self) -> _Index:
        """Returns the index of the streams of now; counts their rows of the split where they are new.

        Raises:
            UserError: they don't hold the rows that the streams before held.
        """
        files = self._files
        with self._recounting:
            while self._index.generation != files.generation or None in self._index.totals:
                totals = self._totals()
                if self._index.generation != files.generation:
                    with self._noting:
                        seen = self._given.in_this_pass(totals)
                    _LOG.warning(
                        "%s: the read session of the %s rows expired, and the new one cuts the table "
                        "otherwise: up to %s of the %s rows may be seen twice in this pass, and as many not "
                        "before the next one; the streams are counted anew",
                        files.tables[0],
                        self.name,
                        f"{seen:,}",
                        f"{sum(totals):,}",
                    )
                index = self._index = _Index.empty(files.streams, files.generation)
                starts = [functools.partial(self._recounted, index, i) for i in range(len(index.totals))]
                try:
                    for _ in prefetch.ordered(starts, files.data.reader_threads):
                        pass
                except RecutError:
                    continue
            # Not only for the thread that counted: any other would look for ever for rows that are gone.
            found, expected = sum(total or 0 for total in self._index.totals), sum(self._totals())
            if found < expected or (found > expected and not files.data.limit_rows):
                raise UserError(
                    f"{files.tables[0]}: the new read session holds {found} rows of the {self.name} "
                    f"split where the expired one held {expected}; start anew with --fresh"
                )
            return self._index

    def _recounted(self, index: _Index, stream: int) -> Iterator[None]:
        unit = FileUnit(0, self._files.files[stream].path, None, stream)
        for _ in self._stream_rows(index, unit, stream, [], _UnitCounts(), 0, None):
            pass
        yield


def _overlapping(totals: Sequence[int | None], first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yields (stream, start, stop) for rows first..last, numbered as if all streams were one."""
    before = 0
    for stream, total in enumerate(totals):
        rows = total or 0
        low, high = max(first, before), min(last, before + rows)
        if low < high:
            yield stream, low - before, high - before
        before += rows


def open_tables(
    sources: Sequence[str], config: Config, asked: Wanted, name: str, memory: str | None = None
) -> SplitSource:
    """Opens tables as rows without a split.

    Args:
        sources: bigquery://project.dataset.table, one or more.
        config: the run's config.
        asked: columns to read.
        name: what the rows are called.
        memory: JSON file in which the run keeps its sessions for a restart; None: it keeps none.

    Raises:
        UserError: a name that isn't one of a table.
    """
    connection = Connection(config, Ledger(memory, writes=environment.service().is_chief))
    if config.data.reader == "tensorflow-io":
        from trainer.data import tfio

        tfio.load()  # whether it works here is known before anything is asked of the service
        return tfio.TfioSource(name, tfio.TfioFiles(sources, asked, connection))  # type: ignore[arg-type]
    return BigQuerySource(name, TableFiles(sources, asked, connection))
