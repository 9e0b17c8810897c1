"""The rows of an epoch as chunks of whole batches, from memory, disk or the source. Adopters: leave.

Every order is a function of (seed, epoch) and of row counts, so each method can start at any batch and then
gives exactly what an unbroken run gives from there on:

* rows in memory: one permutation of all rows;
* rows on disk: blocks of neighbouring rows in random order fill a pool, which is permuted (whole blocks are
  read, so that it stays fast when the file is larger than memory);
* rows from the source: units in random order, several of them mixed piece by piece, fill a pool, which is
  permuted.

A pool is emptied before it is filled again (a second one is filled meanwhile). A pool that swaps rows one by
one would mix a little further, but a restart would have to rebuild it from nearly everything read before.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from trainer.data import background, order
from trainer.data.arrays import RowFormat, Rows
from trainer.data.cache import allocate
from trainer.data.reading import Reader

DISK_BLOCK_ROWS = 1024  # neighbours on disk that stay in one pool: 256 blocks mix in the default pool
_IN_FLIGHT_BYTES = 256 << 20  # rough bound of what open units may hold; wide rows mix fewer units


@dataclass(frozen=True)
class Plan:
    """How rows are ordered, cut and shared out.

    Attributes:
        rows: rows of an epoch.
        batch_size: rows of a global batch.
        seed: seed of all orders.
        shuffle_rows: rows of a pool.
        chunk_rows: rows handed on at a time.
        lanes: units mixed piece by piece.
        shard_index: which slice of each global batch is wanted.
        shard_count: slices of each global batch.
    """

    rows: int
    batch_size: int
    seed: int
    shuffle_rows: int
    chunk_rows: int
    lanes: int
    shard_index: int = 0
    shard_count: int = 1

    @property
    def own_steps(self) -> int:
        """Batches that the rows fill, the padded one included; other workers may have one more."""
        return -(-self.rows // self.batch_size)

    @property
    def shard_rows(self) -> int:
        """Rows of a batch that are wanted."""
        return self.batch_size // self.shard_count

    @property
    def pool_rows(self) -> int:
        """Rows of a pool: whole batches, so that no batch has rows of two pools."""
        return max(1, self.shuffle_rows // self.batch_size) * self.batch_size

    def of_share(self, rows: int) -> Plan:
        """Returns the plan of one worker's share of `rows` rows, of which its part of each batch is made."""
        first, stop = order.window(rows, self.shard_index, self.shard_count)
        return replace(
            self,
            rows=stop - first,
            batch_size=self.shard_rows,
            shard_index=0,
            shard_count=1,
        )

    def chunk(self, layout: RowFormat) -> int:
        """Rows of a chunk: whole batches, up to about 16 MiB."""
        rows = min(self.chunk_rows, (16 << 20) // layout.row_bytes)
        return max(1, rows // self.batch_size) * self.batch_size

    def open_units(self, layout: RowFormat) -> int:
        """Units mixed at a time, fewer where rows are wide."""
        return max(2, min(self.lanes, _IN_FLIGHT_BYTES // (3 * self.chunk_rows * layout.row_bytes)))


@dataclass(frozen=True)
class Chunk:
    """Some batches.

    Attributes:
        rows: arrays [batches, shard_rows, ...]; padding repeats rows of its batch, with weight 0.
        position: number of the first batch's first row in the epoch.
    """

    rows: Rows
    position: int


class Epochs:
    """Gives the chunks of any epoch from any batch on."""

    def __init__(
        self,
        plan: Plan,
        layout: RowFormat,
        *,
        kept: Rows | None = None,
        on_disk: bool = False,
        reader: Reader | None = None,
    ) -> None:
        """Makes the epochs of rows that are `kept` (in memory or mapped) or of a counted `reader`."""
        self.plan = plan
        self._layout = layout
        self._kept = kept
        self._on_disk = on_disk
        self._reader = reader

    def whole(self) -> Epochs:
        """Returns the same epochs in whole global batches."""
        other = copy.copy(self)
        other.plan = replace(self.plan, shard_index=0, shard_count=1)
        return other

    def fixed(self, start: int = 0, stop: int | None = None) -> Generator[Chunk, None, None]:
        """Yields one epoch in the order of the source.

        Args:
            start: rows to leave out, a multiple of the batch.
            stop: row after the last, a multiple of the batch; None: the whole epoch.
        """
        stop = self.plan.rows if stop is None else stop
        if self._kept is not None:
            yield from self._gather(self._kept, None, start, stop, 0)
            return
        assert self._reader is not None
        assert self._reader.counts is not None
        counts = self._reader.counts
        schedule = order.interleave(counts, range(len(counts)), 1, max(counts, default=1))
        with closing(self._reader.pieces(order.cut(schedule, start, stop), self._reader.threads)) as pieces:
            source = _Rows(pieces)
            step = self.plan.chunk(self._layout)
            for position in range(start, stop, step):
                size = min(step, stop - position)
                rows = source.take(size, self._layout)
                if position + size == stop:
                    source.end()
                yield Chunk(self._own(rows, None, 0, size, passing=True), position)

    def shuffled(
        self, epoch: int, start: int = 0, stop: int | None = None, permutation: np.ndarray | None = None
    ) -> Generator[Chunk, None, None]:
        """Yields epoch number `epoch` in its random order.

        Args:
            epoch: number of the epoch.
            start: rows to leave out, a multiple of the batch.
            stop: row after the last, a multiple of the batch; None: the whole epoch.
            permutation: what `self.permutation(epoch)` gives, where it was made before.
        """
        stop = self.plan.rows if stop is None else stop
        if self._kept is not None and not self._on_disk:
            wanted = self.permutation(epoch) if permutation is None else permutation
            yield from self._gather(self._kept, wanted, start, stop, 0)
            return
        # Pools are filled whole: which rows are in the last batches depends on all rows of their pool.
        size = self.plan.pool_rows
        first, last = start // size * size, min(-(-stop // size) * size, self.plan.rows)
        with closing(self._mixed(epoch, first, last)) as pieces:
            yield from self._pools(pieces, epoch, start, stop)

    def padding(self) -> Chunk:
        """Returns the last batch of an epoch where others have one more: its first rows, with weight 0."""
        plan = self.plan
        rows = min(plan.batch_size, plan.rows)
        with closing(self.fixed(0, rows)) as chunks:
            batch = next(chunks).rows
        batch.weigh_nothing((slice(None),))
        return Chunk(batch, plan.own_steps * plan.batch_size)

    def permutation(self, epoch: int) -> np.ndarray | None:
        """Returns the order of all rows in an epoch, int64 [rows]; None where it is made pool by pool."""
        if self._kept is None or self._on_disk:
            return None
        return order.permutation(self.plan.rows, self.plan.seed, epoch)

    def _mixed(self, epoch: int, start: int, stop: int) -> Generator[Rows, None, None]:
        """Yields the pieces that fill the pools of an epoch, rows start..stop of the epoch."""
        plan = self.plan
        if self._kept is not None:
            size = DISK_BLOCK_ROWS
            counts = [min(size, plan.rows - first) for first in range(0, plan.rows, size)]
            blocks = order.permutation(len(counts), plan.seed, epoch).tolist()
            for block, first, last in order.cut(order.interleave(counts, blocks, 1, size), start, stop):
                yield self._kept[block * size + first : block * size + last]
            return
        assert self._reader is not None
        assert self._reader.counts is not None
        units = order.permutation(len(self._reader.counts), plan.seed, epoch).tolist()
        lanes = plan.open_units(self._layout)
        piece = max(1, plan.pool_rows // (2 * lanes))
        schedule = order.interleave(self._reader.counts, units, lanes, piece)
        yield from self._reader.pieces(order.cut(schedule, start, stop), lanes)

    def _pools(self, pieces: Iterator[Rows], epoch: int, start: int, stop: int) -> Iterator[Chunk]:
        """Fills pools with pieces and yields each in random order; the next is filled meanwhile."""
        plan = self.plan
        source = _Rows(pieces)
        size = min(plan.pool_rows, plan.rows)
        buffers = [allocate(size, self._layout) for _ in range(2)]

        def fill(number: int) -> tuple[Rows, np.ndarray]:
            buffer = buffers[number % 2][: min(size, plan.rows - number * plan.pool_rows)]
            source.fill(buffer)
            if number + 1 == pools:
                source.end()
            return buffer, order.permutation(len(buffer), plan.seed, epoch, number)

        first, pools = start // plan.pool_rows, -(-stop // plan.pool_rows)
        following: Future[tuple[Rows, np.ndarray]] = background.start(fill, first)
        try:
            for number in range(first, pools):
                buffer, wanted = following.result()
                if number + 1 < pools:
                    following = background.start(fill, number + 1)
                position = number * plan.pool_rows
                last = min(len(buffer), stop - position)
                yield from self._gather(buffer, wanted, max(0, start - position), last, position)
        finally:
            source.stop()
            wait([following])  # the pieces can't be closed while they are taken

    def _gather(
        self, rows: Rows, wanted: np.ndarray | None, start: int, stop: int, position: int
    ) -> Iterator[Chunk]:
        step = self.plan.chunk(self._layout)
        for first in range(start, stop, step):
            last = min(first + step, stop)
            yield Chunk(self._own(rows, wanted, first, last), position + first)

    def _own(
        self, rows: Rows, wanted: np.ndarray | None, first: int, last: int, *, passing: bool = False
    ) -> Rows:
        """Returns this shard's part of rows first..last as whole batches, padded.

        What is returned belongs to whoever takes it, never to what is kept here: TensorFlow works in place on
        a slice of a NumPy array once nobody else holds it (its slices don't tell that NumPy owns the memory),
        and so would overwrite the rows in memory, or crash on those that are mapped from disk.

        Padding repeats the rows of its batch, with weight 0: batch normalisation, which knows no weights,
        sees the rows of the batch and nothing that no row holds.

        Args:
            rows: what the order is about.
            wanted: order of the rows; None: as they are.
            first: row of the order, the first of a batch.
            last: row after the last.
            passing: whether nobody else will ever look at `rows`, so that they may be returned themselves.

        Returns:
            Arrays [batches, shard_rows, ...].
        """
        plan = self.plan
        batches = -(-(last - first) // plan.batch_size)
        whole = last - first == batches * plan.batch_size
        if whole and wanted is None and plan.shard_count == 1:
            found = rows[first:last]
            return (found if passing and found.writable else found.copy(self._layout)).batches(
                plan.batch_size
            )
        index = np.arange(first, last) if wanted is None else wanted[first:last]
        rows_of_last = last - first - (batches - 1) * plan.batch_size
        if not whole:
            index = np.concatenate([index, np.resize(index[-rows_of_last:], plan.batch_size - rows_of_last)])
        index = index.reshape(batches, plan.batch_size)
        low = plan.shard_index * plan.shard_rows
        found = rows.take(index[:, low : low + plan.shard_rows], self._layout)
        if not whole:
            found.weigh_nothing((-1, slice(max(0, min(plan.shard_rows, rows_of_last - low)), None)))
        return found


class _Rows:
    """Pieces of any size as one run of rows."""

    def __init__(self, pieces: Iterator[Rows]) -> None:
        self._pieces = pieces
        self._rest: Rows | None = None
        self._stopped = threading.Event()

    def _next(self, most: int) -> Rows:
        piece = next(self._pieces) if self._rest is None else self._rest
        self._rest = piece[most:] if len(piece) > most else None
        return piece[:most]

    def take(self, rows: int, layout: RowFormat) -> Rows:
        """Returns the next `rows` rows: views of a piece where one holds them all."""
        first = self._next(rows)
        if len(first) == rows:
            return first
        buffer = Rows.empty(layout, rows)
        buffer[: len(first)].write(first)
        self.fill(buffer[len(first) :])
        return buffer

    def fill(self, buffer: Rows) -> None:
        """Writes the next len(buffer) rows to `buffer`."""
        filled = 0
        while filled < len(buffer) and not self._stopped.is_set():
            piece = self._next(len(buffer) - filled)
            buffer[filled : filled + len(piece)].write(piece)
            filled += len(piece)

    def end(self) -> None:
        """Lets the pieces run out, which finds rows that should not be there."""
        if not self._stopped.is_set():
            assert next(self._pieces, None) is None

    def stop(self) -> None:
        """Makes a `fill` that is under way in another thread return early."""
        self._stopped.set()
