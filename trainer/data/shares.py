"""Statistics of the train rows: by threads side by side, by workers each of its part. Adopters: leave.

The unit (a row group, a file, a stream) is what is shared out: how many rows each has is known only when it
has been read. What a worker found goes to the chief as a JSON value: plain numbers as they are, arrays and
texts as Arrow's IPC format in base64, so that no bit of them changes on the way.
"""

from __future__ import annotations

import base64
import copy
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.config import Config
from trainer.data import prefetch
from trainer.data.sketches import Quantiles, ValueCounts
from trainer.data.source import Source, Unit
from trainer.data.statistics import Accumulator, Statistics
from trainer.errors import UserError
from trainer.peers import Peers

_VERSION = 1
_RUNS = 64  # merging takes as long as some thousand rows, so tiny files are not merged one by one


def take(config: Config, source: Source, units: Sequence[Unit]) -> Statistics:
    """Returns the statistics of the rows of some units; data.reader_threads runs of them are read at once.

    Runs are merged in their order, and how units make runs depends on their number alone: so the result
    depends neither on the number of threads nor on which of them is faster.

    Raises:
        UserError: see `Statistics.update`, or a unit can't be read.
    """
    count = min(len(units), _RUNS)
    if count <= 1:
        return _taken(config, source.batches(units=units))
    cuts = [number * len(units) // count for number in range(count + 1)]
    runs = [units[first:stop] for first, stop in itertools.pairwise(cuts)]

    def taking(run: Sequence[Unit]) -> Iterator[Statistics]:
        yield _taken(config, itertools.chain.from_iterable(map(source.read, run)))

    whole = Statistics(config)
    starts = [functools.partial(taking, run) for run in runs]
    for made in prefetch.ordered(starts, config.data.reader_threads, depth=1):
        whole.merge(made)
    return whole


def _taken(config: Config, batches: Iterable[pa.RecordBatch]) -> Statistics:
    made = Statistics(config)
    for batch in batches:
        made.update(batch)
    return made


def learn(config: Config, source: Source, peers: Peers) -> Statistics | None:
    """Returns the statistics of all rows on the chief, None elsewhere; each worker reads its share of units.

    Afterwards every worker knows what all have found out about the rows (`source.findings`). Parts are
    merged in the order of the workers, so the same job finds the same bits again. Counts, smallest and
    largest values and the order of vocabularies are those of one process; means and variances are, but for
    float64 rounding; quantiles and counts of more distinct values than are kept are within their errors.

    Args:
        config: the run's config.
        source: the train split.
        peers: the processes of the job, all of which must call this.

    Raises:
        UserError: see `Statistics.update`; another worker found a mistake, or was lost.
    """

    mine = take(config, source, source.units()[peers.rank :: peers.count])
    whole = Statistics(config)
    heads = peers.gather("statistics", lambda: {**head(mine), "findings": source.findings()})

    def found() -> dict[str, Any]:
        for one in heads:
            add_head(whole, one)
            source.adopt(one["findings"])
        if not whole.rows:
            raise source.no_rows()
        return source.findings()

    source.adopt(peers.hand("findings", found))
    for kind in ("features", "labels"):
        for name, made in getattr(whole, kind).items():
            own = getattr(mine, kind).pop(name)
            empty = copy.deepcopy(made)
            for value in peers.gather(f"statistics of {name}", lambda own=own: dump(own)):  # type: ignore[misc]
                made.merge(load(copy.deepcopy(empty), value))
            # One column at a time: vocabularies may be large, and the chief gets one of each worker.
            peers.hand("next", lambda: None)
    return whole if heads else None


def alone(config: Config, source: Source) -> Statistics:
    """Returns the statistics of all rows of a source.

    Raises:
        UserError: see `take`; there are no rows.
    """
    made = take(config, source, source.units())
    if not made.rows:
        raise source.no_rows()
    return made


def head(statistics: Statistics) -> dict[str, Any]:
    """Returns all but the columns as a JSON value, for `add_head`."""
    types = pa.schema(list(statistics.types.items()))
    return {"version": _VERSION, "rows": statistics.rows, "types": _text(types.serialize())}


def add_head(whole: Statistics, value: dict[str, Any]) -> None:
    """Adds what `head` made a JSON value of.

    Raises:
        UserError: another version of this code made it.
    """
    if value["version"] != _VERSION:
        raise UserError(
            f"a worker's statistics are of version {value['version']}, expected {_VERSION}: give all workers "
            "one image"
        )
    whole.rows += value["rows"]
    for field in pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["types"]))):
        whole.types.setdefault(field.name, field.type)


def dump(column: Accumulator) -> dict[str, Any]:
    """Returns the statistics of a column as a JSON value that `load` reads."""
    return _dump(column)  # type: ignore[no-any-return]


def load(empty: Accumulator, value: dict[str, Any]) -> Accumulator:
    """Returns `empty`, statistics of the same class, with all that `dump` made a JSON value of."""
    _fill(empty, value)
    return empty


def _dump(value: Any) -> Any:
    """Returns plain values as they are, arrays packed, and of anything else what it knows."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, list):
        return [_dump(one) for one in value]
    if isinstance(value, dict):
        return {name: _dump(one) for name, one in value.items()}
    if isinstance(value, np.ndarray | pa.Array):
        return _packed(value)
    return _dump(value.state() if isinstance(value, Quantiles | ValueCounts) else vars(value))


def _load(value: Any) -> Any:
    """Returns what `_dump` made a JSON value of: plain values, lists, dicts and arrays."""
    if isinstance(value, list):
        return [_load(one) for one in value]
    if not isinstance(value, dict):
        return value
    return _unpacked(value) if "arrow" in value else {name: _load(one) for name, one in value.items()}


def _fill(made: Any, value: dict[str, Any]) -> None:
    """Gives an empty object of the statistics what another of its class knew."""
    if isinstance(made, Quantiles | ValueCounts):
        made.restore(_load(value))
        return
    for name, before in vars(made).items():
        if hasattr(before, "__dict__"):
            _fill(before, value[name])
        else:
            setattr(made, name, _load(value[name]))


def _packed(array: np.ndarray | pa.Array) -> dict[str, str]:
    batch = pa.record_batch([pa.array(array)], names=["x"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    return {"arrow": _text(sink.getvalue()), "as": "numpy" if isinstance(array, np.ndarray) else "arrow"}


def _unpacked(value: dict[str, str]) -> np.ndarray | pa.Array:
    (batch,) = pa.ipc.open_stream(pa.py_buffer(base64.b64decode(value["arrow"])))
    array = batch.column(0)
    return array.to_numpy().copy() if value["as"] == "numpy" else array  # a copy: counts are added to


def _text(data: Any) -> str:
    return base64.b64encode(data).decode()
