"""From a source and an encoder to batches of static shape for the loop. Adopters: leave."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import tensorflow as tf

from trainer.data import allocator, background, order
from trainer.data.arrays import NAMES, BlocksLike, RowFormat, Rows
from trainer.data.cache import DiskCache, MemoryCache, available_memory
from trainer.data.epochs import Chunk, Epochs, Plan
from trainer.data.reading import Reader
from trainer.errors import UserError

log = logging.getLogger(__name__)

Chunks = Generator[Chunk, None, None]

_LANES = 4  # units of an uncached source that are mixed at a time, if no more reader threads are asked for


class Pipeline:
    """The batches of one split.

    Every batch is a dict of tensors with static shapes (B rows of this shard's part of the global batch):
    `numeric` float32 [B, N], `categorical` int32 [B, C], `label` (float32 or int32 [B], multilabel float32
    [B, K]; zeros where the source has none), `weight` float32 [B], `valid` float32 [B] (1: row, 0: padding).
    The last batch of an epoch is padded with rows of its own: weight 0, valid 0.

    With `sharding="rows"` a worker that has no row for the last batch of an epoch gives padding alone.

    The order of a training epoch depends on `seed`, the number of the epoch, `shuffle_rows`, `batch_size`
    and the kind of cache alone (without a cache, also on `chunk_rows` and `reader_threads`): a run that
    starts at step s gets the batches that an unbroken run gets from step s on.
    """

    def __init__(
        self,
        source: Any,
        encoder: Callable[[Any], BlocksLike],
        *,
        batch_size: int,
        seed: int = 1,
        shuffle: bool = True,
        cache: Literal["none", "memory", "disk"] = "memory",
        cache_dir: str | None = None,
        fingerprint: str = "",
        shuffle_rows: int = 262_144,
        chunk_rows: int = 65_536,
        reader_threads: int = 2,
        columns: Sequence[str] | None = None,
        rows: int | None = None,
        shard_index: int = 0,
        shard_count: int = 1,
        sharding: Literal["batches", "rows"] = "batches",
        unit_rows: Callable[[Callable[[], list[int]]], list[int]] | None = None,
    ) -> None:
        """Makes a pipeline; nothing is read yet.

        Args:
            source: the rows of a split (see `source.Source`).
            encoder: Arrow record batch or table -> blocks (see `encode.Encoder`); called by several threads.
            batch_size: rows of a global batch.
            seed: seed of the order of training rows.
            shuffle: whether `training` gives rows in a new order each epoch.
            cache: where encoded rows are kept after the first pass.
            cache_dir: cache="disk": a local folder.
            fingerprint: cache="disk": hash of how rows are encoded; which rows they are, the source tells
                (`source.fingerprint()`, where it has one, and the names of its units).
            shuffle_rows: rows mixed at a time unless the cache is in memory; two such pools are held.
            chunk_rows: rows that are read, encoded and handed to TensorFlow at a time.
            reader_threads: units of the source read at once.
            columns: columns to read; None: `encoder.columns`, or all that the source was opened for.
            rows: number of rows, where it is known before the first pass.
            shard_index: which part of each global batch this pipeline gives (a worker's own).
            shard_count: parts of each global batch.
            sharding: "batches": every part reads the whole source and takes its slice of each global batch;
                "rows": it reads its share of the rows alone, and its part of each batch is made of them. A
                source with fewer rows than parts is read whole by all.
            unit_rows: with "rows": returns the rows of each unit, from the function that counts them or from
                who has counted them for all workers; None: they are counted here.

        Raises:
            UserError: the batch can't be cut into `shard_count` parts, or the disk cache has no folder.
        """
        if batch_size % shard_count:
            raise UserError(
                f"training.batch_size: {batch_size} rows can't be shared out to {shard_count} workers; "
                f"expected a multiple of {shard_count}, such as {-(-batch_size // shard_count) * shard_count}"
            )
        if cache == "disk" and not cache_dir:
            raise UserError("data.cache_dir: expected a folder for data.cache=disk, got none")
        self.batch_size = batch_size
        self.failure: BaseException | None = (
            None  # what stopped the last iteration, before TensorFlow wrapped it
        )
        self._source = source
        self._encoder = encoder
        self._shuffle = shuffle
        self._cache = cache
        self._cache_dir = cache_dir
        self._fingerprint = fingerprint
        self._rows = rows
        self._columns = getattr(encoder, "columns", None) if columns is None else columns
        self._threads, self._chunk_rows = reader_threads, chunk_rows
        self._shares_rows = sharding == "rows" and shard_count > 1
        self._unit_rows = unit_rows or (lambda count: count())
        self._plan = Plan(
            rows=0,  # known after the first pass
            batch_size=batch_size,
            seed=seed,
            shuffle_rows=shuffle_rows,
            chunk_rows=chunk_rows,
            lanes=max(_LANES, reader_threads),
            shard_index=shard_index,
            shard_count=shard_count,
        )
        self._epochs: Epochs | None = None
        self._layout: RowFormat | None = None
        self._evaluation: tf.data.Dataset | None = None

    # --- size -----------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Rows of an epoch; reads the source once where that's needed to know."""
        if self._rows is None:
            self.prepare()
        assert self._rows is not None
        return self._rows

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, the padded one included."""
        return -(-self.rows // self.batch_size)

    @property
    def layout(self) -> RowFormat:
        """Shapes and types of the parts of a row."""
        if self._layout is None:
            self._layout = RowFormat.of(self._encoder(self._no_rows()))
        return self._layout

    def _no_rows(self) -> pa.RecordBatch:
        schema = self._source.schema
        names = schema.names if self._columns is None else self._columns
        fields = [schema.field(name) for name in names]
        arrays = [pa.nulls(0, field.type) for field in fields]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def prepare(self) -> None:
        """Makes the first pass, unless it was made: fills the cache, or counts the rows of each unit.

        Raises:
            UserError: the split has no rows, or other rows than were counted before.
        """
        if self._epochs is not None:
            return
        counts = self._unit_rows(self._count) if self._shares_rows else None
        reader = Reader(
            self._source,
            self._encoder,
            self.layout,
            columns=self._columns,
            threads=self._threads,
            chunk_rows=self._chunk_rows,
        )
        if counts is not None and len(counts) != reader.units:
            raise UserError(
                f"data.source: this worker sees the {self._source.name} rows in {reader.units} parts, the "
                f"chief in {len(counts)}: the data must be the same"
            )
        plan, kept, found = self._plan, None, sum(counts or ())
        if counts is not None and found >= plan.shard_count:
            window = order.window(found, plan.shard_index, plan.shard_count)
            reader.set_counts(counts, window)
            plan = plan.of_share(found)
        elif self._cache == "none":
            counts = self._count()
            reader.set_counts(counts)
            found = sum(counts)
        if self._cache != "none":
            kept = self._cached(reader)
            found = found or len(kept)
        name = getattr(self._source, "name", "data")
        if found == 0:
            raise self._source.no_rows()
        if self._rows is not None and self._rows != found:
            raise UserError(
                f"the {name} split has {found} rows, but {self._rows} were counted before: the data changed"
            )
        self._rows = found
        plan = plan if plan.rows else replace(plan, rows=found)
        self._epochs = Epochs(plan, self.layout, kept=kept, on_disk=self._cache == "disk", reader=reader)

    def _count(self) -> list[int]:
        """Returns the rows of each unit; a source that was read knows them, another one counts."""
        counts = [unit.rows for unit in self._source.units()]
        if None in counts:
            self._source.count()
            counts = [unit.rows for unit in self._source.units()]
        return counts

    def _cached(self, reader: Reader) -> Rows:
        if self._cache == "memory":
            memory = MemoryCache(self.layout)
            return memory.joined(reader.gather(memory.keep))
        assert self._cache_dir is not None
        about = json.dumps(
            [self._fingerprint, self._identity(), self.layout.as_dict(), *reader.window], sort_keys=True
        )
        cache = DiskCache(self._cache_dir, hashlib.sha256(about.encode()).hexdigest()[:32])
        rows = cache.open(self.layout)
        if rows is not None:
            log.info("%d encoded rows reused from %s", len(rows), cache.folder)
            return rows
        return cache.write(reader.everything(), self.layout)

    def _identity(self) -> list[Any]:
        """Returns what tells these rows from others that are encoded in the same way."""
        told = getattr(self._source, "fingerprint", None)
        units = [unit.name for unit in self._source.units()]
        return [self._source.name, told() if callable(told) else told, units]

    # --- batches --------------------------------------------------------------------------------

    def training(self, start_step: int = 0, stop_step: int | None = None) -> tf.data.Dataset:
        """Returns the stream of training batches.

        Args:
            start_step: global steps to leave out, epochs and all.
            stop_step: step after the last; None: endless. With it, nothing is read that no step needs.
        """
        dataset = self._dataset(lambda: self._training_chunks(start_step, stop_step))
        steps = tf.data.INFINITE_CARDINALITY if stop_step is None else max(0, stop_step - start_step)
        return dataset.apply(tf.data.experimental.assert_cardinality(steps))

    def whole(self) -> Pipeline:
        """Returns all rows in whole global batches; reads them anew where they are shared out."""
        if self._plan.shard_count == 1:
            return self
        self.prepare()
        assert self._epochs is not None
        other = copy.copy(self)
        other._plan = replace(self._plan, shard_index=0, shard_count=1)
        other._evaluation = None
        if self._shares_rows:  # the rows of the others are not here
            other._shares_rows, other._cache, other._epochs = False, "none", None
        else:
            other._epochs = self._epochs.whole()
        return other

    def evaluation(self) -> tf.data.Dataset:
        """Returns one pass in the order of the source; the same dataset each time."""
        if self._evaluation is None:
            dataset = self._dataset(self._evaluation_chunks)
            self._evaluation = dataset.apply(tf.data.experimental.assert_cardinality(self.steps_per_epoch))
        return self._evaluation

    def training_numpy(
        self, start_step: int = 0, stop_step: int | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches of `training` as NumPy arrays (views of a chunk), without TensorFlow."""
        return self._numpy(lambda: self._training_chunks(start_step, stop_step))

    def evaluation_numpy(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches of `evaluation` as NumPy arrays, without TensorFlow."""
        return self._numpy(self._evaluation_chunks)

    def keys(self) -> np.ndarray | None:
        """Returns the key of each row in the order of `evaluation` (object [rows]); reads the source again.

        None if the encoder was made without a key column.
        """
        parts = []
        for unit in self._source.units():
            for batch in self._source.read(unit, self._columns):
                parts.append(self._encoder(batch).key)  # type: ignore[attr-defined]
        return None if not parts or parts[0] is None else np.concatenate(parts)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raises what really stopped a dataset of this pipeline, in place of TensorFlow's wrapping of it."""
        self.failure = None
        try:
            yield
        except tf.errors.OpError as error:
            if self.failure is not None:
                raise self.failure from error
            raise

    def _training_chunks(self, start_step: int, stop_step: int | None) -> Chunks:
        self.prepare()
        assert self._epochs is not None
        epochs, plan, per_epoch = self._epochs, self._epochs.plan, self.steps_per_epoch
        last = None if stop_step is None else (stop_step - 1) // per_epoch
        if self._shuffle and self._cache != "memory":
            _warn_of_pool(plan, self.layout)
        epoch, step = divmod(start_step, per_epoch)
        wanted = None
        while stop_step is None or epoch * per_epoch + step < stop_step:
            steps = per_epoch
            if epoch == last and stop_step is not None:
                steps = min(steps, stop_step - epoch * per_epoch)
            start = min(step * plan.batch_size, plan.rows)
            stop = min(steps * plan.batch_size, plan.rows)
            following = None
            if not self._shuffle or start == stop:  # of none there is no order: only the padding is left
                chunks = epochs.fixed(start, stop)
            else:
                chunks = epochs.shuffled(epoch, start, stop, wanted)
                if epoch != last:  # The next order is drawn meanwhile: for 10 million rows it takes 0.3 s.
                    following = background.start(epochs.permutation, epoch + 1)
            with closing(chunks):
                yield from chunks
            if plan.own_steps < steps:
                yield epochs.padding()
            wanted = None if following is None else following.result()
            epoch, step = epoch + 1, 0

    def _evaluation_chunks(self) -> Chunks:
        self.prepare()
        assert self._epochs is not None
        yield from self._epochs.fixed()
        if self._epochs.plan.own_steps < self.steps_per_epoch:
            yield self._epochs.padding()

    def _numpy(self, chunks: Callable[[], Chunks]) -> Iterator[dict[str, np.ndarray]]:
        with closing(chunks()) as source:
            for chunk in source:
                valid = self._valid(chunk)
                for number in range(len(chunk.rows)):
                    batch = {name: array[number] for name, array in chunk.rows.as_dict().items()}
                    yield {**batch, "valid": valid[number]}

    def _valid(self, chunk: Chunk) -> np.ndarray:
        assert self._epochs is not None
        plan = self._epochs.plan
        first = plan.shard_index * plan.shard_rows + chunk.position
        batches = np.arange(len(chunk.rows))[:, None] * plan.batch_size
        return (first + batches + np.arange(plan.shard_rows) < plan.rows).astype(np.float32)

    def _dataset(self, chunks: Callable[[], Chunks]) -> tf.data.Dataset:
        """Returns a dataset of batches from a generator of chunks.

        Python is entered once a chunk (tens of thousands of rows); TensorFlow cuts it into batches.
        The data is never part of the graph.
        """
        self.prepare()
        shard_rows = self._plan.shard_rows

        def generate() -> Iterator[tuple[np.ndarray, ...]]:
            allocator.keep_freed_blocks()
            try:
                with closing(chunks()) as source:
                    while True:
                        with background.GATE.call() as opened:
                            chunk = next(source, None) if opened else None
                        if chunk is None:
                            return
                        yield *chunk.rows.arrays, self._valid(chunk)
            except Exception as error:
                self.failure = error
                raise

        signature = tuple(
            tf.TensorSpec([None, shard_rows, *tail], dtype)
            for tail, dtype in (*self.layout.parts, ((), np.dtype(np.float32)))
        )
        dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
        dataset = dataset.map(lambda *parts: dict(zip((*NAMES, "valid"), parts, strict=True)))
        dataset = dataset.prefetch(1).flat_map(tf.data.Dataset.from_tensor_slices).prefetch(2)
        return dataset.with_options(_options())


def _options() -> tf.data.Options:
    options = tf.data.Options()
    # With autotune on, dropping an iterator can block for seconds after the last batch.
    options.autotune.enabled = False
    options.deterministic = True
    # Shards are cut here, by index: TensorFlow must not cut a generator a second time.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def _warn_of_pool(plan: Plan, layout: RowFormat) -> None:
    available = available_memory()
    needed = 2 * min(plan.pool_rows, plan.rows) * layout.row_bytes
    if available is not None and needed > available // 2:
        log.warning(
            "data.shuffle_rows=%d: two pools of rows of %d bytes take %.1f GiB, %.1f GiB are free; lower it",
            plan.shuffle_rows,
            layout.row_bytes,
            needed / 2**30,
            available / 2**30,
        )
