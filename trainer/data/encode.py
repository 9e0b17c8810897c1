"""Encodes Arrow batches into the dense blocks that a model is trained on. Adopters: leave.

The NumPy half of the preprocessing; `preprocess.py` is its TensorFlow twin for serving, and the two give the
same numbers. Text is never handled row by row: each *distinct* value of a batch gets its id, then the ids
are taken by index. TensorFlow is imported only for features that hash, to share its hash function.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.config_features import (
    BagFeature,
    BooleanFeature,
    CrossFeature,
    DatetimeFeature,
    NumericFeature,
    VectorFeature,
)
from trainer.data import calendar
from trainer.data import columns as arrow
from trainer.data.arrays import aligned
from trainer.data.columns import Batch
from trainer.data.labels import LabelEncoder
from trainer.data.lookup import Vocabulary
from trainer.data.memo import Remembered
from trainer.data.statistics import absent_texts, log1p
from trainer.errors import UserError
from trainer.features import FLOAT_MAX, INT64_MISSING, SEPARATOR, Features, Fitted


@dataclass
class Blocks:
    """Encoded rows.

    Attributes:
        numeric: float32 [rows, len(layout.numeric)], C order.
        categorical: int32 [rows, layout.categorical], C order: rows of the fused table.
        label: binary and regression float32 [rows], multiclass int32 [rows], multilabel float32 [rows, K];
            None without labels.
        weight: float32 [rows]; 1 without a weight column.
        key: The key column as objects [rows]; None without one.
    """

    numeric: np.ndarray
    categorical: np.ndarray
    label: np.ndarray | None
    weight: np.ndarray
    key: np.ndarray | None


def hash_texts(texts: pa.Array, buckets: int) -> np.ndarray:
    """Returns int64 [texts]: Fingerprint64 of the UTF-8 bytes modulo `buckets`, as in the serving graph."""
    if buckets == 1 or not len(texts):
        return np.zeros(len(texts), np.int64)
    import tensorflow as tf

    # The encoder may run while a graph is built or under a strategy; this must stay a plain CPU call.
    with tf.init_scope(), tf.device("/CPU:0"):
        raw = texts.cast(pa.binary()).to_numpy(zero_copy_only=False)
        return tf.strings.to_hash_bucket_fast(tf.constant(raw, tf.string), buckets).numpy()


def scale(values: np.ndarray, item: Fitted) -> np.ndarray:
    """Returns `(t(x) - shift) * factor` as float32: computed in float64, kept finite.

    Args:
        values: float32 [rows] or [rows, places]; NaN and infinities become the imputed value.
        item: The fitted feature.
    """
    finite = np.isfinite(values)
    if not finite.all():
        values = np.where(finite, values, np.array(item.impute, np.float32))
    return _scaled(values.astype(np.float64), item)


def _scaled(values: np.ndarray, item: Fitted) -> np.ndarray:
    """Returns float64 `values` (which are overwritten) scaled, as float32."""
    if isinstance(item.config, NumericFeature) and item.config.normalize == "log":
        values = log1p(values)
    values -= np.array(item.shift)
    values *= np.array(item.factor)
    return np.clip(values, -FLOAT_MAX, FLOAT_MAX, out=values).astype(np.float32)


def _columns(count: int, rows: int, dtype: type) -> np.ndarray:
    """Returns an array [count, rows] to be filled by row and read by column.

    Its rows lie a little apart: at a distance of a power of 2, all values of a column would fall into the
    same few lines of the processor's cache.
    """
    return np.empty((count, rows + 16), dtype)[:, :rows]


def _by_row(columns: np.ndarray) -> np.ndarray:
    """Returns an array [count, rows] as [rows, count], in C order."""
    turned = aligned(columns.shape[::-1], columns.dtype)
    turned[...] = columns.T
    return turned


class _TextIds:
    """Gives each distinct text its row of the fused table (without the slot's offset)."""

    def __init__(self, item: Fitted) -> None:
        self._item = item
        self._vocabulary = Vocabulary(item.vocabulary)
        self.remembered = Remembered(self)

    def __call__(self, texts: pa.Array) -> np.ndarray:
        """Returns int32 [texts + 1]; the last is the row of a null, so that index -1 finds it."""
        item = self._item
        rows = np.full(len(texts) + 1, item.missing_row, np.int32)
        absent = absent_texts(texts)
        if item.dtype == "int64":
            absent |= pc.fill_null(pc.equal(texts, str(INT64_MISSING)), False).to_numpy(zero_copy_only=False)
        if item.config.kind == "hashed":
            hashed = hash_texts(texts.filter(pa.array(~absent)), item.config.buckets)
            rows[:-1][~absent] = item.first_value + hashed
            return rows
        found = self._vocabulary(texts)
        rows[:-1] = item.first_value + found
        unseen = (found < 0) & ~absent
        if unseen.any():
            rows[:-1][unseen] = item.first_oov + hash_texts(texts.filter(pa.array(unseen)), item.oov_rows)
        rows[:-1][absent] = item.missing_row
        return rows


class Encoder:
    """Turns Arrow batches into `Blocks`; may be called from several threads."""

    def __init__(
        self,
        features: Features,
        *,
        with_label: bool = True,
        weight_column: str | None = None,
        key_column: str | None = None,
    ) -> None:
        """Prepares the lookups.

        Args:
            features: The fitted features.
            with_label: Whether batches have labels to encode.
            weight_column: Column of row weights.
            key_column: Column that is passed through.
        """
        self.features = features
        self._labels = LabelEncoder(features.label) if with_label else None
        self._weight_column = weight_column
        self._key_column = key_column
        self._text_ids = {
            item.name: _TextIds(item)
            for item in features.fitted
            if item.config.kind in ("categorical", "hashed", "bag")
        }

    @property
    def columns(self) -> tuple[str, ...]:
        """Source columns that this encoder reads, each once: features, label, weight, key."""
        label = self.features.label.columns if self._labels else ()
        more = [name for name in (*label, self._weight_column, self._key_column) if name]
        return tuple(dict.fromkeys((*self.features.columns, *more)))

    def __call__(self, batch: Batch) -> Blocks:
        """Encodes rows.

        Raises:
            UserError: A column is absent or can't be read as its feature asks; a label is missing or
                unknown; a weight is missing, infinite or below 0.
        """
        layout = self.features.layout
        # One row of memory per column while they are filled, turned into one row per example at the end.
        numeric = _columns(len(layout.numeric), batch.num_rows, np.float32)
        categorical = _columns(layout.categorical, batch.num_rows, np.int32)
        for item in self.features.fitted:
            self._encode(item, batch, numeric, categorical)
        return Blocks(
            numeric=_by_row(numeric),
            categorical=_by_row(categorical),
            label=self._labels(batch) if self._labels else None,
            weight=self._weights(batch),
            key=self._keys(batch),
        )

    def _source(self, item: Fitted, batch: Batch) -> arrow.Column:
        return arrow.column(batch, item.column, f"feature {item.name!r}")

    def _encode(self, item: Fitted, batch: Batch, numeric: np.ndarray, categorical: np.ndarray) -> None:
        match item.config:
            case NumericFeature():
                self._numeric(item, batch, numeric, categorical)
            case VectorFeature(length=length):
                block = arrow.vectors(self._source(item, batch), length)
                numeric[item.numeric : item.numeric + length] = scale(block, item).T
            case BooleanFeature():
                values = arrow.boolean(self._source(item, batch))
                numeric[item.numeric] = np.where(values < 0, item.impute[0], values)
            case DatetimeFeature():
                self._datetime(item, batch, numeric)
            case BagFeature():
                self._bag(item, batch, numeric, categorical)
            case CrossFeature():
                slot = self.features.slot(item)
                categorical[slot.start] = slot.offset + self._cross(item, batch)
            case _ if item.config.kind == "integer":
                slot = self.features.slot(item)
                values, missing = arrow.int64(self._source(item, batch))
                inside = (values >= 0) & (values < item.config.size)
                rows = np.where(inside, item.first_value + values, item.first_oov)
                categorical[slot.start] = slot.offset + np.where(missing, item.missing_row, rows)
            case _:
                slot = self.features.slot(item)
                indices, texts = arrow.text(self._source(item, batch))
                ids = self._text_ids[item.name].remembered(texts) + np.int32(slot.offset)
                # index -1 is the last: the row of a null
                np.take(ids, indices, out=categorical[slot.start], mode="wrap")

    def _numeric(self, item: Fitted, batch: Batch, numeric: np.ndarray, categorical: np.ndarray) -> None:
        values = arrow.float32(self._source(item, batch), int64_marker=item.dtype == "int64")
        if not item.quantile:
            numeric[item.numeric] = scale(values, item)
            if item.config.indicator:  # type: ignore[union-attr]
                numeric[item.numeric + 1] = ~np.isfinite(values)
            return
        missing = ~np.isfinite(values)
        values = np.where(missing, np.float32(item.impute[0]), values)
        rows = item.first_value + np.searchsorted(np.array(item.boundaries, np.float32), values, side="right")
        if item.missing_row >= 0:
            rows = np.where(missing, item.missing_row, rows)
        slot = self.features.slot(item)
        categorical[slot.start] = slot.offset + rows

    def _datetime(self, item: Fitted, batch: Batch, numeric: np.ndarray) -> None:
        config = item.config
        assert isinstance(config, DatetimeFeature)
        moments, missing = arrow.micros(self._source(item, batch))
        column = item.numeric
        for part in config.parts:
            angle = calendar.part_value(part, moments) * (2 * np.pi / calendar.PERIODS[part])
            # the middle of the circle, as far from every moment
            numeric[column] = np.where(missing, 0, np.sin(angle))
            numeric[column + 1] = np.where(missing, 0, np.cos(angle))
            column += 2
        if config.age:
            age = (item.newest - moments) / calendar.DAY
            numeric[column] = np.where(missing, np.float32(0), _scaled(age, item))
            column += 1
        if config.indicator:
            numeric[column] = missing

    def _bag(self, item: Fitted, batch: Batch, numeric: np.ndarray, categorical: np.ndarray) -> None:
        config, slot = item.config, self.features.slot(item)
        assert isinstance(config, BagFeature)
        row, place, (indices, texts) = arrow.entries(self._source(item, batch), config.max_length)
        ids = self._text_ids[item.name].remembered(texts)[indices]
        shape = (batch.num_rows, config.max_length)
        table = np.full(shape, item.missing_row, np.int32)
        table[row, place] = ids
        if config.weights:
            given = arrow.column(batch, config.weights, f"feature {item.name!r}")
            weights, _ = arrow.bag_weights(given, *shape)
            weights *= table != item.missing_row
        else:
            weights = (table != item.missing_row).astype(np.float32)
        # A bag without weight is embedded as its own row, so the weights never add up to 0.
        empty = ~(weights > 0).any(axis=1)
        table[empty] = item.missing_row
        weights[empty, 0] = 1
        categorical[slot.start : slot.start + slot.width] = slot.offset + table.T
        numeric[slot.weight_start : slot.weight_start + slot.width] = weights.T

    def _cross(self, item: Fitted, batch: Batch) -> np.ndarray:
        config = item.config
        assert isinstance(config, CrossFeature)
        parts = [self._part(self.features[name], batch) for name in config.of]
        # Number the distinct combinations, one part after the other, so that the numbers stay small.
        codes = np.zeros(batch.num_rows, np.int64)
        picks: list[np.ndarray] = []
        for part in parts:
            wide = codes * (len(part.texts) + 1) + (part.indices + 1)
            distinct, codes = np.unique(wide, return_inverse=True)
            codes = codes.reshape(-1)
            picks = [pick[distinct // (len(part.texts) + 1)] for pick in picks]
            picks.append(distinct % (len(part.texts) + 1) - 1)
        texts = [
            part.texts.take(pa.array(pick, mask=pick < 0)).fill_null("").cast(pa.string())
            for part, pick in zip(parts, picks, strict=True)
        ]
        joined = pc.binary_join_element_wise(*texts, SEPARATOR)
        rows = item.first_value + hash_texts(joined, config.buckets)
        blank = SEPARATOR * (len(parts) - 1)
        rows[pc.equal(joined, blank).to_numpy(zero_copy_only=False)] = item.missing_row
        return rows[codes]

    def _part(self, item: Fitted, batch: Batch) -> arrow.Texts:
        """Returns a part of a cross as texts."""
        source = self._source(item, batch)
        match item.config.kind:
            case "boolean":
                values = arrow.boolean(source)
                known = np.where(values < 0, int(item.impute[0]), values).astype(np.int32)
                return arrow.Texts(known, pa.array(["false", "true"]))
            case "integer":
                whole, missing = arrow.int64(source)
                distinct, places = np.unique(whole, return_inverse=True)
                places = np.where(missing, -1, places.reshape(-1)).astype(np.int32)
                return arrow.Texts(places, pa.array(distinct).cast(pa.string()))
        indices, texts = arrow.text(source)
        if item.dtype == "int64":
            marker = pc.equal(texts, str(INT64_MISSING))
            texts = pc.if_else(marker, pa.scalar(None, pa.string()), texts)
        return arrow.Texts(indices, texts)

    def _weights(self, batch: Batch) -> np.ndarray:
        if self._weight_column is None:
            return np.ones(batch.num_rows, np.float32)
        weights = arrow.float32(arrow.column(batch, self._weight_column, "data.weight"))
        broken = ~(np.isfinite(weights) & (weights >= 0))
        if broken.any():
            raise UserError(
                f"data.weight: column {self._weight_column!r} has {int(broken.sum())} values in "
                f"{len(weights)} rows that are missing, infinite or below 0, such as "
                f"{float(weights[broken][0])!r}: expected a weight in every row"
            )
        return weights

    def _keys(self, batch: Batch) -> np.ndarray | None:
        if self._key_column is None:
            return None
        array = arrow.column(batch, self._key_column, "data.key").array
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        keys = np.empty(len(array), object)
        keys[:] = array.to_pylist()
        return keys
