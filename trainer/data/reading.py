"""Reading and encoding in the background, in any order of a source's units. Adopters: leave.

Each open group of units has a thread that reads Arrow batches (mostly waiting: disk, network, Arrow's own
threads); encoding, which is all CPU, is done by a small pool of threads for all of them. Both sides are
bounded, so that a slow consumer stops the readers instead of filling memory.
"""

from __future__ import annotations

import collections
import functools
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa

from trainer.data import order
from trainer.data.arrays import BlocksLike, RowFormat, Rows
from trainer.data.split import NAMES as SPLITS
from trainer.errors import UserError

T = TypeVar("T")

_END = object()
_QUEUED = 2  # encoded batches that wait in each open group: one being taken, one ready


class Reader:
    """The encoded rows of a source."""

    def __init__(
        self,
        source: Any,
        encoder: Callable[[Any], BlocksLike],
        layout: RowFormat,
        *,
        columns: Sequence[str] | None = None,
        threads: int = 2,
        chunk_rows: int = 65_536,
    ) -> None:
        """Makes a reader; nothing is read yet.

        Args:
            source: has `units()` and `read(unit, columns)` (see `source.Source`); where its attribute `skips`
                is true, `read(unit, columns, skip)` leaves rows out without fetching them.
            encoder: Arrow batch -> blocks; called by several threads at once.
            layout: format of the blocks.
            columns: columns to read; None: those that the source was opened for.
            threads: units read at once, and at most as many threads that encode.
            chunk_rows: rows that are encoded at a time, where units allow it.
        """
        self.source = source
        self.threads = threads
        self._encoder = encoder
        self._layout = layout
        self._columns = columns
        self._chunk_rows = chunk_rows
        self._units = list(source.units())
        self._groups = [[i] for i in range(len(self._units))]
        self._unit_counts: Sequence[int] = ()
        self._before = 0  # rows of the first group that are another worker's
        self.window: tuple[int, ...] = ()  # (first, stop) of the rows that are wanted, where not all are
        self._cut = False  # whether the last group has rows of another worker at its end
        self.counts: list[int] | None = None

    def set_counts(self, counts: Sequence[int], window: tuple[int, int] | None = None) -> None:
        """Sets the number of encoded rows of each unit, and puts small units together.

        A thousand files of a hundred rows would otherwise be encoded a hundred rows at a time.

        Args:
            counts: rows of each unit.
            window: the rows first..stop that are wanted, numbered as if all units were one; None: all.
        """
        self._unit_counts = counts
        if window is None:
            units, sizes = list(range(len(counts))), list(counts)
        else:
            self.window = window
            wanted = order.within(counts, *window)
            units, sizes = [unit for unit, _, _ in wanted], [stop - start for _, start, stop in wanted]
            self._before, self._cut = wanted[0][1], wanted[-1][2] < counts[units[-1]]
        groups = order.group(sizes, self._chunk_rows)
        self._groups = [[units[place] for place in members] for members in groups]
        self.counts = [sum(sizes[place] for place in members) for members in groups]

    @property
    def units(self) -> int:
        """Number of units of the source."""
        return len(self._units)

    def everything(self) -> Iterator[Rows]:
        """Yields all rows that are wanted, in order; needs no counts unless they are a window of all."""
        if self.counts is not None:
            schedule = order.within(self.counts, 0, sum(self.counts))
            yield from self.pieces(iter(schedule), self.threads)
            return
        with _Streams(self, self._groups) as streams:
            for unit in range(len(self._groups)):
                for number in range(unit, min(unit + self.threads, len(self._groups))):
                    streams.open(number, 0)
                yield from self._whole(streams, unit)

    def gather(self, keep: Callable[[Iterator[Rows]], T]) -> list[T]:
        """Reads all rows that are wanted, `threads` groups of units at once, each as fast as it comes.

        In `everything`, a group waits for those before it as soon as a few batches are ready: one stream of a
        table, or one large file, is read at a time.

        Args:
            keep: called with the rows of each group, in a thread of its own.

        Returns:
            What `keep` returned, in the order of the groups.

        Raises:
            Exception: the first of whatever reading, encoding or keeping raised.
        """
        with (
            _Streams(self, self._groups) as streams,
            ThreadPoolExecutor(self.threads, thread_name_prefix="keep") as pool,
        ):
            kept = [
                pool.submit(lambda group: keep(self._whole(streams, group)), group)
                for group in range(len(self._groups))
            ]
            try:
                return [one.result() for one in kept]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                streams.stop()  # after an error, the others wait for rows that nobody needs

    def _whole(self, streams: _Streams, group: int) -> Iterator[Rows]:
        """Yields the rows of a group that are wanted, and closes it."""
        stream = streams.open(group, 0 if group else self._before)
        if self.counts is None:
            while (rows := stream.next()) is not None:
                yield rows
        else:
            yield from stream.take(self.counts[group])
            self._expect_end(stream, group)
        streams.close(group)

    def _expect_end(self, stream: _Stream, group: int) -> None:
        assert self.counts is not None
        if not (self._cut and group == len(self.counts) - 1):
            stream.expect_end()

    def pieces(self, schedule: Iterator[tuple[int, int, int]], ahead: int) -> Generator[Rows, None, None]:
        """Yields the rows of a schedule of (group, start, stop), in its order.

        Rows before the first `start` of a group are read and dropped; groups that the schedule doesn't name
        aren't opened.

        Args:
            schedule: as `order.interleave` makes it, for `self.counts`.
            ahead: groups that may be open besides the one being taken from.

        Raises:
            UserError: a group holds fewer or more rows than when they were counted.
        """
        assert self.counts is not None
        with _Streams(self, self._groups) as streams:
            upcoming: collections.deque[tuple[int, int, int]] = collections.deque()
            live: dict[int, int] = {}  # groups with rows to come -> first row needed, in order of need
            exhausted = False
            while True:
                while not exhausted and len(live) <= ahead:
                    step = next(schedule, None)
                    if step is None:
                        exhausted = True
                    else:
                        upcoming.append(step)
                        live.setdefault(step[0], step[1])
                if not upcoming:
                    return
                group, start, stop = upcoming.popleft()
                for number in (group, *live):
                    streams.open(number, live[number] + (0 if number else self._before))
                stream = streams.open(group, start)
                yield from stream.take(stop - start)
                if stop == self.counts[group]:
                    self._expect_end(stream, group)
                    streams.close(group)
                    del live[group]

    @property
    def skips(self) -> bool:
        """Whether the source can leave out the first rows of a unit without fetching them."""
        return bool(getattr(self.source, "skips", False))

    def read_group(self, members: Sequence[int], skip: int = 0) -> Iterator[pa.RecordBatch | pa.Table]:
        """Yields Arrow batches of some units; small ones are put together to tables.

        Args:
            members: numbers of the units.
            skip: rows to leave out at the start; only where the source `skips`.
        """
        small: list[pa.RecordBatch] = []
        rows = 0
        for unit in members:
            more: tuple[int, ...] = ()
            if skip:
                skipped = min(skip, self._unit_counts[unit])
                skip -= skipped
                if skipped == self._unit_counts[unit]:
                    continue
                more = (skipped,)
            for batch in self.source.read(self._units[unit], self._columns, *more):
                if batch.num_rows == 0:
                    continue
                if rows and rows + batch.num_rows > self._chunk_rows:
                    yield _together(small)
                    small, rows = [], 0
                small.append(batch)
                rows += batch.num_rows
        if small:
            yield _together(small)

    def encode(self, batch: pa.RecordBatch | pa.Table, members: Sequence[int]) -> Rows:
        """Encodes an Arrow batch of some units.

        Raises:
            UserError: values that can't be encoded; it says where they are.
        """
        try:
            return Rows.of(self._encoder(batch), self._layout)
        except UserError as error:
            others = f" and {len(members) - 1} more" if len(members) > 1 else ""
            split = f"{self.source.name} split: " if self.source.name in SPLITS else ""
            raise UserError(f"{error} ({split}{self._named(members[0])}{others})") from error

    def _named(self, unit: int) -> str:
        return getattr(self._units[unit], "name", "") or getattr(self.source, "name", "data")

    def changed(self, group: int, found: str) -> UserError:
        """Returns the error of a group whose number of rows is not what was counted."""
        counted = self.counts[group] if self.counts else 0
        return UserError(
            f"{self._named(self._groups[group][0])}: {found} the {counted} rows counted before; "
            "the data changed during the run"
        )


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch | pa.Table:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches)


def _same(item: Any) -> Any:
    return item


class _Streams:
    """The open groups of one pass; leaving the `with` block stops their threads."""

    def __init__(self, reader: Reader, groups: Sequence[Sequence[int]]) -> None:
        self._reader = reader
        self._groups = groups
        self._open: dict[int, _Stream] = {}
        self._stopped = False
        workers = max(1, min(reader.threads, os.cpu_count() or 1))
        self._encoders = ThreadPoolExecutor(workers, thread_name_prefix="encode")

    def __enter__(self) -> _Streams:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self._encoders.shutdown(wait=True, cancel_futures=True)

    def open(self, group: int, skip: int) -> _Stream:
        """Returns the stream of a group, which reads in the background from its first opening on.

        Args:
            group: number of the group.
            skip: rows of it to drop, where it wasn't open yet.
        """
        if self._stopped:
            raise CancelledError
        if group not in self._open:
            self._open[group] = _Stream(self._reader, group, self._groups[group], skip, self._encoders)
        return self._open[group]

    def close(self, group: int) -> None:
        self._open.pop(group).close()

    def stop(self) -> None:
        """Closes all groups, for good; whoever waits for rows of one gets an error."""
        self._stopped = True
        for stream in list(self._open.values()):
            stream.close()


class _Stream:
    """One group being read: a thread, a short queue of encoded batches, and the rest of the current one."""

    def __init__(
        self, reader: Reader, number: int, members: Sequence[int], skip: int, encoders: ThreadPoolExecutor
    ) -> None:
        self._reader = reader
        self._number = number
        self._members = members
        self._unread, self._skip = (skip, 0) if reader.skips else (0, skip)
        self._encoders = encoders
        self._ready: collections.deque[Any] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self._rest: Rows | None = None
        # A daemon: a process that ends in the middle of a pass must not wait for a reader.
        self._thread = threading.Thread(target=self._read, name=f"read-{number}", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for batch in self._reader.read_group(self._members, self._unread):
                encode = functools.partial(self._reader.encode, batch, self._members)
                if not self._put(functools.partial(self._encoders.submit, encode)):
                    return
            self._put(functools.partial(_same, _END))
        except BaseException as error:  # any error belongs to the thread that consumes the rows
            self._put(functools.partial(_same, error))

    def _put(self, make: Callable[[], Any]) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < _QUEUED)
            if self._closed:
                return False
            self._ready.append(make())
            self._changed.notify_all()
            return True

    def next(self) -> Rows | None:
        """Returns the next encoded rows, or None at the end.

        Raises:
            Exception: whatever reading or encoding raised.
            CancelledError: the stream was closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._ready))
            if self._closed:
                raise CancelledError
            item = self._ready[0]
            if item is _END:
                return None
            if not isinstance(item, Future):
                raise item
        rows = item.result()  # outside the lock: the thread may queue the next batch meanwhile
        with self._changed:
            if self._ready:  # else it was closed meanwhile
                self._ready.popleft()
            self._changed.notify_all()
        return rows

    def take(self, rows: int) -> Iterator[Rows]:
        """Yields the next `rows` rows, after dropping those that were to be skipped."""
        while rows:
            if self._rest is None:
                self._rest = self.next()
                if self._rest is None:
                    raise self._reader.changed(self._number, f"{rows} rows are missing from")
            if self._skip:
                dropped = min(self._skip, len(self._rest))
                self._rest = self._rest[dropped:]
                self._skip -= dropped
            piece, self._rest = self._rest[:rows], self._rest[rows:]
            rows -= len(piece)
            if not len(self._rest):
                self._rest = None
            if len(piece):
                yield piece

    def expect_end(self) -> None:
        """Raises UserError if there are more rows."""
        if self._rest is not None or self.next() is not None:
            raise self._reader.changed(self._number, "there are more than")

    def close(self) -> None:
        """Stops the thread; a read that is under way ends by itself."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
