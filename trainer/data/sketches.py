"""Mergeable statistics of a stream: moments, quantiles, value counts. Adopters: leave.

Each class has `update` (some rows), `merge` (another instance over other rows) and properties that read
the result. What each one gets wrong, and by how much at most, stands in its docstring.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.memo import same_memory

_LEAF = 65_536  # values that are sorted at a time, and distinct values that are kept exactly
_POINTS = 4_096  # points that stand for a longer sorted run


class Moments:
    """Count, mean, variance, minimum and maximum of each place of a vector, in float64.

    Exact but for float64 rounding: each batch is summed around its own mean, and two parts are joined by
    the pairwise update of Chan, Golub and LeVeque (1983), so a large common offset does no harm.
    """

    def __init__(self, width: int = 1) -> None:
        """Starts empty, for vectors of `width` places."""
        self.count = np.zeros(width, np.int64)
        self.mean = np.zeros(width)
        self.squares = np.zeros(width)  # sum of squared distances from the mean
        self.min = np.full(width, np.inf)
        self.max = np.full(width, -np.inf)

    def update(self, values: np.ndarray) -> None:
        """Adds rows: float [rows] (width 1) or [rows, width]; NaN is left out."""
        block = values.reshape(len(values), len(self.count)).astype(np.float64)
        other = Moments(len(self.count))
        for place in range(block.shape[1]):
            column = block[:, place]
            missing = np.isnan(column)
            if missing.any():
                column = column[~missing]
            if not len(column):
                continue
            mean = column.mean()
            distance = column - mean
            other.count[place] = len(column)
            other.mean[place] = mean
            # no BLAS: for so little its threads cost more than they save
            other.squares[place] = np.square(distance, out=distance).sum()
            other.min[place] = column.min()
            other.max[place] = column.max()
        self.merge(other)

    def merge(self, other: Moments) -> None:
        """Adds the rows that another instance has seen."""
        count = self.count + other.count
        share = np.divide(other.count, count, out=np.zeros(len(count)), where=count > 0)
        delta = other.mean - self.mean
        self.squares = self.squares + other.squares + delta * delta * self.count * share
        self.mean = self.mean + delta * share
        self.count = count
        self.min = np.minimum(self.min, other.min)
        self.max = np.maximum(self.max, other.max)

    @property
    def std(self) -> np.ndarray:
        """Population standard deviation of each place, float64 [width]; 0 without rows."""
        variance = np.divide(self.squares, self.count, out=np.zeros(len(self.count)), where=self.count > 0)
        return np.sqrt(variance)


class _Run:
    """Sorted values with weights: stands for the rows it was made from, `error` ranks off at most."""

    def __init__(self, values: np.ndarray, weights: np.ndarray, error: float = 0.0) -> None:
        self.values, self.weights, self.error = values, weights, error

    @property
    def total(self) -> float:
        return float(self.weights.sum())

    @classmethod
    def joined(cls, runs: list[_Run]) -> _Run:
        values = np.concatenate([run.values for run in runs])
        weights = np.concatenate([run.weights for run in runs])
        order = np.argsort(values, kind="stable")
        values, weights = values[order], weights[order]
        starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]]) if len(values) else np.zeros(0, int)
        if len(starts) < len(values):
            values, weights = values[starts], np.add.reduceat(weights, starts)
        return cls(values, weights, sum(run.error for run in runs))

    def compressed(self) -> _Run:
        """Keeps the values in the middle of `_POINTS` equal parts of the weight: half a part off at most."""
        if len(self.values) <= _POINTS:
            return self
        part = self.total / _POINTS
        middles = (np.arange(_POINTS) + 0.5) * part
        picked = np.searchsorted(np.cumsum(self.weights), middles, side="right").clip(
            max=len(self.values) - 1
        )
        return _Run(self.values[picked], np.full(_POINTS, part), self.error + part / 2)


class Quantiles:
    """Quantiles of a stream of float32 numbers.

    Exact while there are at most 65,536 distinct values (NumPy's linear interpolation between the two
    nearest). Beyond that, sorted runs of 65,536 values are each cut down to 4,096 points and joined two by
    two, as in Manku, Rajagopalan and Lindsay (1998): the rank of an answer is wrong by at most
    (1 + log2(rows / 65,536)) / 8,192 of the rows, about 0.2 % at a thousand million rows.
    `rank_error` is the bound for what was seen.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._pending: list[np.ndarray] = []
        self._pending_rows = 0
        self._exact: _Run | None = _Run(np.zeros(0, np.float32), np.zeros(0))
        self._levels: dict[int, _Run] = {}  # level -> run that stands for about _LEAF << level rows

    def update(self, values: np.ndarray) -> None:
        """Adds finite float32 numbers [rows]."""
        if len(values):
            self._pending.append(np.array(values, np.float32))  # a copy: the caller may reuse its memory
            self._pending_rows += len(values)
        if self._pending_rows >= _LEAF:
            self._flush()

    def _flush(self) -> None:
        if not self._pending_rows:
            return
        rows = np.sort(np.concatenate(self._pending))
        self._pending, self._pending_rows = [], 0
        for start in range(0, len(rows), _LEAF) if self._exact is None else (0,):
            part = rows if self._exact is not None else rows[start : start + _LEAF]
            run = _Run.joined([_Run(part, np.ones(len(part)))])
            self._add(run)

    def _add(self, run: _Run) -> None:
        if self._exact is not None:
            joined = _Run.joined([self._exact, run])
            if len(joined.values) <= _LEAF:
                self._exact = joined
                return
            self._exact, run = None, joined
        run = run.compressed()
        level = max(0, int(np.ceil(np.log2(run.total / _LEAF))))
        while level in self._levels:
            run = _Run.joined([self._levels.pop(level), run]).compressed()
            level += 1
        self._levels[level] = run

    def merge(self, other: Quantiles) -> None:
        """Adds the rows that another instance has seen."""
        self._flush()
        other._flush()
        for run in [other._exact] if other._exact is not None else list(other._levels.values()):
            if len(run.values):
                self._add(run)

    def state(self) -> dict[str, Any]:
        """Returns all that it knows, as numbers, lists and arrays, for `restore`."""
        self._flush()
        runs = {-1: self._exact} if self._exact is not None else self._levels
        return {"runs": [[level, run.values, run.weights, run.error] for level, run in runs.items()]}

    def restore(self, state: dict[str, Any]) -> None:
        """Becomes what `state` was taken of."""
        runs = {level: _Run(values, weights, error) for level, values, weights, error in state["runs"]}
        self._pending, self._pending_rows = [], 0
        self._exact, self._levels = runs.pop(-1, None), runs

    def _all(self) -> _Run:
        self._flush()
        return self._exact if self._exact is not None else _Run.joined(list(self._levels.values()))

    @property
    def rank_error(self) -> float:
        """Largest error of an answer's rank, as a share of the rows; 0 while exact."""
        run = self._all()
        return run.error / run.total if run.error else 0.0

    def __call__(self, shares: np.ndarray | list[float]) -> np.ndarray:
        """Returns the quantiles at `shares` (0 to 1) as float64; NaN without rows."""
        run = self._all()
        if not len(run.values):
            return np.full(len(shares), np.nan)
        above = np.cumsum(run.weights)
        place = np.asarray(shares, np.float64) * max(run.total - 1, 0)
        last = len(run.values) - 1
        low = run.values[np.searchsorted(above, np.floor(place), side="right").clip(max=last)].astype(
            np.float64
        )
        high = run.values[np.searchsorted(above, np.ceil(place), side="right").clip(max=last)].astype(
            np.float64
        )
        return low + (high - low) * (place - np.floor(place))


class ValueCounts:
    """How often each text occurs.

    Exact while there are at most `limit` distinct texts. Beyond that the rarest are forgotten (lossy
    counting, Manku and Motwani 2002): a count may then be too low by at most `error`, and texts that
    are not listed occurred at most `error` times.
    """

    def __init__(self, limit: int) -> None:
        """Starts empty; never keeps many more than `limit` texts."""
        self.limit = limit
        self.error = 0
        self._texts = pa.array([], pa.large_string())
        self._counts = np.zeros(0, np.int64)
        self._pending: list[tuple[pa.Array, np.ndarray]] = []
        self._pending_texts = 0

    def update(self, indices: np.ndarray, texts: pa.Array) -> None:
        """Adds rows: `indices` int [rows] into `texts` (string array); -1, null and "" are left out."""
        counts = np.bincount(indices + 1, minlength=len(texts) + 1)[1:].astype(np.int64)
        if self._pending and same_memory(self._pending[-1][0], texts):
            self._pending[-1] = (texts, self._pending[-1][1] + counts)
            return
        self._add(texts, counts)

    def merge(self, other: ValueCounts) -> None:
        """Adds the rows that another instance has seen."""
        self.error += other.error
        for texts, counts in [(other._texts, other._counts), *other._pending]:
            self._add(texts, counts)

    def _add(self, texts: pa.Array, counts: np.ndarray) -> None:
        self._pending.append((texts, counts))
        self._pending_texts += len(texts)
        if self._pending_texts > max(262_144, 2 * len(self._texts)):
            self._compact()

    def state(self) -> dict[str, Any]:
        """Returns all that it knows, as numbers and arrays, for `restore`."""
        self._compact()
        return {"error": self.error, "texts": self._texts, "counts": self._counts}

    def restore(self, state: dict[str, Any]) -> None:
        """Becomes what `state` was taken of; `limit` stays."""
        self._pending, self._pending_texts = [], 0
        self.error, self._texts, self._counts = state["error"], state["texts"], state["counts"]

    def _compact(self) -> None:
        if not self._pending:
            return
        pending, self._pending, self._pending_texts = self._pending, [], 0
        encoded = pa.concat_arrays(
            [self._texts, *(texts.cast(pa.large_string()) for texts, _ in pending)]
        ).dictionary_encode()
        counts = np.concatenate([self._counts, *(counts for _, counts in pending)])
        places = encoded.indices.fill_null(-1).to_numpy() + 1
        # bincount adds in float64: exact below 2^53 rows
        summed = np.bincount(places, weights=counts, minlength=len(encoded.dictionary) + 1)[1:].astype(
            np.int64
        )
        kept = (summed > 0) & (pc.binary_length(encoded.dictionary).to_numpy() > 0)
        if kept.sum() > self.limit:
            order = np.partition(summed[kept], kept.sum() - self.limit // 2 - 1)
            rare = int(order[kept.sum() - self.limit // 2 - 1])
            kept &= summed > rare
            self.error += rare
        self._texts, self._counts = encoded.dictionary.filter(pa.array(kept)), summed[kept]

    @property
    def distinct(self) -> int:
        """Number of distinct texts (those that are kept)."""
        self._compact()
        return len(self._texts)

    def most_common(self, min_count: int = 1, size: int | None = None) -> list[tuple[str, int]]:
        """Returns (text, count), most frequent first, then by text (code points)."""
        self._compact()
        if size is not None and len(self._counts) > size:  # no need to sort what can't be among them
            min_count = max(min_count, int(np.partition(self._counts, -size)[-size]) if size else 1)
        wanted = self._counts >= min_count
        table = pa.table({"text": self._texts.filter(pa.array(wanted)), "count": self._counts[wanted]})
        table = table.sort_by([("count", "descending"), ("text", "ascending")]).slice(0, size)
        return list(zip(table["text"].to_pylist(), table["count"].to_pylist(), strict=True))
