"""What one pass over the train split counts and measures, mergeable. Adopters: leave.

One small class for each kind of column; `Statistics` holds one of them for each feature and the label.
Several `Statistics` over parts of the rows can be filled in parallel and merged in a fixed order.
Cross features need none: their values are hashed.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.config import Config
from trainer.config_features import (
    BagFeature,
    BooleanFeature,
    CategoricalFeature,
    CrossFeature,
    DatetimeFeature,
    Feature,
    HashedFeature,
    IntegerFeature,
    NumericFeature,
    VectorFeature,
)
from trainer.data import calendar, columns
from trainer.data.sketches import Moments, Quantiles, ValueCounts
from trainer.errors import UserError
from trainer.features import label_columns

REPORTED = 20_000  # distinct values that are counted where no vocabulary is made, for the report alone
MAX_CLASSES = 65_536
_KEPT = 100_000  # distinct values that are counted at least where a vocabulary is made


class Accumulator(Protocol):
    """Statistics of one column."""

    rows: int
    missing: int

    def update(self, source: columns.Column) -> None:
        """Adds the rows of one batch."""

    def merge(self, other: Any) -> None:
        """Adds the rows that another instance of the same class has seen."""


class Numbers:
    """A column of numbers; infinities (also beyond float32) count as missing."""

    def __init__(self, log: bool = False) -> None:
        """Starts empty; `log` adds the moments of sign(x) * log1p(|x|)."""
        self.rows = self.missing = self.infinite = 0
        self.moments, self.quantiles = Moments(), Quantiles()
        self.log = Moments() if log else None

    def update(self, source: columns.Column) -> None:
        """Adds the rows of one batch."""
        values = columns.float32(source)
        finite = np.isfinite(values)
        self.rows += len(values)
        if not finite.all():
            self.missing += int(len(values) - finite.sum())
            self.infinite += int(np.isinf(values).sum())
            values = values[finite]
        self.moments.update(values)
        self.quantiles.update(values)
        if self.log is not None:
            self.log.update(log1p(values.astype(np.float64)))

    def merge(self, other: Numbers) -> None:
        """Adds the rows that another instance has seen."""
        self.rows += other.rows
        self.missing += other.missing
        self.infinite += other.infinite
        self.moments.merge(other.moments)
        self.quantiles.merge(other.quantiles)
        if self.log is not None and other.log is not None:
            self.log.merge(other.log)


def log1p(values: np.ndarray) -> np.ndarray:
    """Returns sign(x) * log1p(|x|) of float64 numbers."""
    return np.sign(values) * np.log1p(np.abs(values))


class Words:
    """A column of texts or of integers in text form."""

    def __init__(self, limit: int) -> None:
        """Starts empty; counts about `limit` distinct values."""
        self.rows = self.missing = 0
        self.counts = ValueCounts(limit)

    def update(self, source: columns.Column) -> None:
        """Adds the rows of one batch."""
        self.add(columns.text(source))

    def add(self, words: columns.Texts) -> None:
        """Adds rows that are texts already."""
        self.rows += len(words.indices)
        absent = np.append(absent_texts(words.texts), True)  # -1 is the last
        self.missing += int(np.count_nonzero(absent[words.indices]))
        self.counts.update(words.indices, words.texts)

    def merge(self, other: Words) -> None:
        """Adds the rows that another instance has seen."""
        self.rows += other.rows
        self.missing += other.missing
        self.counts.merge(other.counts)


def absent_texts(texts: pa.Array) -> np.ndarray:
    """Returns bool [texts]: which are null or ""."""
    if pa.types.is_string(texts.type) and not texts.null_count and len(texts):
        ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
        return ends[1:] == ends[:-1]
    return pc.fill_null(pc.equal(pc.binary_length(texts), 0), True).to_numpy(zero_copy_only=False)


class Integers:
    """A column of ids 0..size-1."""

    def __init__(self, size: int) -> None:
        """Starts empty."""
        self.rows = self.missing = self.outside = 0
        self.counts = np.zeros(size, np.int64)

    def update(self, source: columns.Column) -> None:
        """Adds the rows of one batch."""
        values, missing = columns.int64(source)
        self.rows += len(values)
        self.missing += int(missing.sum())
        inside = ~missing & (values >= 0) & (values < len(self.counts))
        self.outside += int(len(values) - missing.sum() - inside.sum())
        self.counts += np.bincount(values[inside], minlength=len(self.counts))

    def merge(self, other: Integers) -> None:
        """Adds the rows that another instance has seen."""
        self.rows += other.rows
        self.missing += other.missing
        self.outside += other.outside
        self.counts += other.counts


class Booleans:
    """A column of true and false."""

    def __init__(self) -> None:
        """Starts empty."""
        self.rows = self.missing = self.true = 0

    def update(self, source: columns.Column) -> None:
        """Adds the rows of one batch."""
        values = columns.boolean(source)
        self.rows += len(values)
        self.missing += int((values < 0).sum())
        self.true += int((values > 0).sum())

    def merge(self, other: Booleans) -> None:
        """Adds the rows that another instance has seen."""
        self.rows += other.rows
        self.missing += other.missing
        self.true += other.true


class Times:
    """A column of moments: oldest and newest in microseconds, moments in days since 1970."""

    def __init__(self) -> None:
        """Starts empty."""
        self.rows = self.missing = 0
        self.days = Moments()
        self.oldest: int | None = None
        self.newest: int | None = None

    def update(self, source: columns.Column) -> None:
        """Adds the rows of one batch."""
        values, missing = columns.micros(source)
        self.rows += len(values)
        self.missing += int(missing.sum())
        values = values[~missing]
        if len(values):
            self.days.update(values / calendar.DAY)
            self._span(int(values.min()), int(values.max()))

    def _span(self, oldest: int, newest: int) -> None:
        self.oldest = oldest if self.oldest is None else min(self.oldest, oldest)
        self.newest = newest if self.newest is None else max(self.newest, newest)

    def merge(self, other: Times) -> None:
        """Adds the rows that another instance has seen."""
        self.rows += other.rows
        self.missing += other.missing
        self.days.merge(other.days)
        if other.oldest is not None and other.newest is not None:
            self._span(other.oldest, other.newest)


class Bags:
    """A column of lists of texts; only the entries that are kept are counted."""

    def __init__(self, limit: int, max_length: int) -> None:
        """Starts empty."""
        self.rows = self.missing = self.cut = self.entries = 0
        self.max_length = max_length
        self.words = Words(limit)

    def update(self, source: columns.Column) -> None:
        """Adds the rows of one batch."""
        lengths = columns.lists(source, "a list of texts or integers").lengths
        row, _, words = columns.entries(source, self.max_length)
        before = self.words.rows - self.words.missing
        self.words.add(words)
        self.entries += self.words.rows - self.words.missing - before
        present = ~np.append(absent_texts(words.texts), True)[words.indices]
        self.rows += len(lengths)
        self.missing += int(len(lengths) - len(np.unique(row[present])))
        self.cut += int((lengths > self.max_length).sum())

    def merge(self, other: Bags) -> None:
        """Adds the rows that another instance has seen."""
        self.rows += other.rows
        self.missing += other.missing
        self.cut += other.cut
        self.entries += other.entries
        self.words.merge(other.words)


class Vectors:
    """A column of lists of numbers; a row is missing where no place has a number."""

    def __init__(self, length: int) -> None:
        """Starts empty."""
        self.rows = self.missing = self.infinite = 0
        self.moments = Moments(length)

    def update(self, source: columns.Column) -> None:
        """Adds the rows of one batch."""
        values = columns.vectors(source, len(self.moments.count))
        finite = np.isfinite(values)
        self.rows += len(values)
        self.missing += int((~finite.any(axis=1)).sum())
        self.infinite += int(np.isinf(values).sum())
        self.moments.update(np.where(finite, values, np.nan))

    def merge(self, other: Vectors) -> None:
        """Adds the rows that another instance has seen."""
        self.rows += other.rows
        self.missing += other.missing
        self.infinite += other.infinite
        self.moments.merge(other.moments)


def accumulator(feature: Feature) -> Accumulator | None:
    """Returns empty statistics for a feature; None for a cross."""
    match feature:
        case NumericFeature():
            return Numbers(log=feature.normalize == "log")
        case CategoricalFeature():
            return Words(REPORTED if feature.vocabulary_file else max(_KEPT, feature.max_size) * 2)
        case HashedFeature():
            return Words(REPORTED)
        case IntegerFeature():
            return Integers(feature.size)
        case BooleanFeature():
            return Booleans()
        case DatetimeFeature():
            return Times()
        case BagFeature():
            return Bags(max(_KEPT, feature.max_size) * 2, feature.max_length)
        case VectorFeature():
            return Vectors(feature.length)
        case CrossFeature():
            return None


class Statistics:
    """Statistics of all features and of the label.

    Attributes:
        rows: Rows seen.
        features: By feature name (crosses left out).
        labels: By label column.
        types: By source column: the Arrow type it was seen with first (of a dictionary: of its values).
    """

    def __init__(self, config: Config) -> None:
        """Starts empty."""
        from trainer.data.labels import accumulator as label_accumulator

        self.config = config
        self.rows = 0
        self.features = {
            feature.name: made for feature in config.features if (made := accumulator(feature)) is not None
        }
        self.labels: dict[str, Accumulator] = {
            name: label_accumulator(config.task) for name in label_columns(config)
        }
        self.types: dict[str, pa.DataType] = {}

    def update(self, batch: columns.Batch) -> None:
        """Adds rows.

        Raises:
            UserError: A column is absent or can't be read as its feature asks.
        """
        self.rows += batch.num_rows
        for feature in self.config.features:
            made = self.features.get(feature.name)
            if made is None:
                continue
            source = columns.column(batch, feature.source_column, f"feature {feature.name!r}")
            self._note_type(source)
            made.update(source)
            if isinstance(feature, BagFeature) and feature.weights:
                self._check_weights(batch, source, feature)
        for name, made in self.labels.items():
            source = columns.column(batch, name, "label")
            self._note_type(source)
            made.update(source)

    def _note_type(self, source: columns.Column) -> None:
        kind = source.array.type
        if not pa.types.is_null(kind):
            self.types.setdefault(source.name, kind.value_type if pa.types.is_dictionary(kind) else kind)

    @staticmethod
    def _check_weights(batch: columns.Batch, source: columns.Column, feature: BagFeature) -> None:
        """Refuses weights that don't fit the entries: later, they would go unnoticed."""
        assert feature.weights is not None
        given = columns.column(batch, feature.weights, source.owner)
        weights = columns.lists(given, "a list of numbers")
        lengths = columns.lists(source, "a list of texts or integers").lengths
        differ = (weights.lengths != lengths) & (weights.lengths != 0)
        if differ.any():
            row = int(np.flatnonzero(differ)[0])
            raise UserError(
                f"{source.owner}: {int(differ.sum())} rows have lists of different lengths in "
                f"{source.name!r} and {given.name!r}, such as {int(lengths[row])} entries "
                f"with {int(weights.lengths[row])} weights"
            )
        values = columns.float32(columns.Column(weights.values, given.name, given.owner))
        if (values < 0).any():
            raise UserError(
                f"{source.owner}: column {given.name!r} has {int((values < 0).sum())} weights below 0, such "
                f"as {float(values[values < 0][0])!r}: a mean needs weights of 0 or more"
            )

    def merge(self, other: Statistics) -> None:
        """Adds the rows that another instance (of the same config) has seen."""
        self.rows += other.rows
        for name, made in self.features.items():
            made.merge(other.features[name])
        for name, made in self.labels.items():
            made.merge(other.labels[name])
        for name, kind in other.types.items():
            self.types.setdefault(name, kind)

    def finish(self) -> Statistics:
        """Checks that there is something to learn from and returns the statistics.

        Raises:
            UserError: No rows, or a feature without a single value.
        """
        if not self.rows:
            raise UserError("the train split has no rows: look at data.source and data.split")
        for feature in self.config.features:
            made = self.features.get(feature.name)
            if made is not None and made.missing == made.rows:
                raise UserError(
                    f"feature {feature.name!r}: column {feature.source_column!r} has no value in the "
                    f"{self.rows} rows of the train split: remove the feature or mend the source"
                )
        return self
