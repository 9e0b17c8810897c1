"""The preprocessing as a TensorFlow graph, for serving: the twin of `data/encode.py`. Adopters: leave.

Plain TensorFlow operations and `tf.lookup.StaticHashTable` only, so that the exported model also loads in
the older TensorFlow of the serving images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config_features import (
    BagFeature,
    BooleanFeature,
    CrossFeature,
    DatetimeFeature,
    NumericFeature,
    VectorFeature,
)
from trainer.data import calendar
from trainer.errors import UserError, nearest
from trainer.features import FLOAT_MAX, INT64_MISSING, SEPARATOR, Features, Fitted, RawInput

# Dates and times in a request. Groups: 1 year, 2 month, 3 day, 4 hour, 5 minute, 6 second, 7 fraction,
# 8 sign and hours, 9 minutes of the zone's distance from UTC (none: UTC).
_ISO_8601 = (
    r"\s*([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.]([0-9]{1,9}))?)?)?"
    r"\s*(?:Z|z|UTC|([+-][0-9]{2}):?([0-9]{2}))?\s*"
)


def parse_times(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads ISO 8601 dates and times.

    Args:
        texts: string [rows]: `YYYY-MM-DD`, `YYYY-MM-DDTHH:MM[:SS[.ffffff]]` with `T` or a blank, then
            nothing, `Z`, ` UTC` or a distance such as `+02:00`.

    Returns:
        int64 [rows]: microseconds since 1970 UTC (digits beyond them are cut off); bool [rows]: which are
        missing, that is empty or not of this form, or no such day or time.
    """
    valid = tf.strings.regex_full_match(texts, _ISO_8601)
    texts = tf.where(valid, texts, tf.constant("1970-01-01"))

    def group(number: int) -> tf.Tensor:
        return tf.strings.regex_replace(texts, f"^{_ISO_8601}$", rf"\{number}", replace_global=False)

    def whole(text: tf.Tensor) -> tf.Tensor:
        return tf.strings.to_number(tf.strings.join(["0", text]), tf.int64)

    year, month, day, hour, minute, second = (whole(group(number)) for number in range(1, 7))
    fraction = whole(tf.strings.substr(tf.strings.join([group(7), "000000"]), 0, 6))
    zone = group(8)
    zone = tf.where(tf.equal(zone, ""), tf.constant("+00"), zone)
    sign = tf.where(
        tf.equal(tf.strings.substr(zone, 0, 1), "-"), tf.constant(-1, tf.int64), tf.constant(1, tf.int64)
    )
    zone_hour, zone_minute = whole(tf.strings.substr(zone, 1, 2)), whole(group(9))
    in_clock = (hour < 24) & (minute < 60) & (second < 60) & (zone_hour < 24) & (zone_minute < 60)
    valid = valid & (year >= 1) & (month >= 1) & (month <= 12) & in_clock
    month = tf.where(valid, month, tf.ones_like(month))
    valid = valid & (day >= 1) & (day <= calendar.days_in_month(year, month))
    minutes = calendar.days_from_civil(year, month, day) * 1_440 + hour * 60 + minute
    minutes -= sign * (zone_hour * 60 + zone_minute)
    micros = (minutes * 60 + second) * calendar.MICROSECONDS + fraction
    return tf.where(valid, micros, tf.zeros_like(micros)), ~valid


def signature(features: Features) -> dict[str, tf.TensorSpec]:
    """Returns the raw inputs by source column, each [batch, *shape]."""
    return {
        raw.name: tf.TensorSpec((None, *raw.shape), tf.dtypes.as_dtype(raw.dtype), raw.name)
        for raw in features.raw_inputs
    }


class Preprocess(tf.Module):
    """Raw tensors to the two blocks that the model takes; its lookup tables are saved with it."""

    def __init__(self, features: Features) -> None:
        """Builds the lookup tables."""
        super().__init__(name="preprocess")
        self._features = features
        self.tables = {
            str(place): tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant(item.vocabulary, tf.string), tf.range(len(item.vocabulary), dtype=tf.int64)
                ),
                default_value=-1,
            )
            for place, item in enumerate(features.fitted)
            if item.vocabulary
        }
        self._places = {item.name: str(place) for place, item in enumerate(features.fitted)}

    def __call__(self, raw: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Preprocesses a batch.

        Args:
            raw: Tensors by source column, as `RawInput` says: scalars [rows] or [rows, 1], vectors
                [rows, length], lists [rows, any]. A column that is left out is missing in every row.

        Returns:
            "numeric" float32 [rows, len(layout.numeric)] and "categorical" int32 [rows, layout.categorical].

        Raises:
            UserError: No column, or an unknown one.
        """
        return _Call(self._features, self.tables, self._places, raw).blocks()


class _Call:
    """The preprocessing of one batch (or the tracing of it)."""

    def __init__(
        self,
        features: Features,
        tables: Mapping[str, Any],
        places: Mapping[str, str],
        raw: Mapping[str, tf.Tensor],
    ) -> None:
        self._features, self._tables, self._places = features, tables, places
        known = {item.name: item for item in features.raw_inputs}
        for name in raw:
            if name not in known:
                raise UserError(f"raw input {name!r} is no source column of a feature{nearest(name, known)}")
        if not raw:
            raise UserError(f"raw inputs are empty, expected {', '.join(known)}")
        self._rows = tf.shape(next(iter(raw.values())))[0]
        self._raw = {name: self._tensor(item, raw.get(name)) for name, item in known.items()}
        self._texts: dict[str, tf.Tensor] = {}

    def _tensor(self, item: RawInput, given: tf.Tensor | None) -> tf.Tensor:
        dtype = tf.dtypes.as_dtype(item.dtype)
        if given is None:
            inner = [1 if size is None else size for size in item.shape]
            return tf.fill([self._rows, *inner], tf.constant(item.default, dtype))
        tensor = tf.convert_to_tensor(given)
        if tensor.dtype != dtype:
            tensor = tf.cast(tensor, dtype)
        if item.shape:
            return tf.reshape(tensor, [self._rows, *(-1 if size is None else size for size in item.shape)])
        return tf.reshape(tensor, [self._rows])

    def blocks(self) -> dict[str, tf.Tensor]:
        """Returns the two blocks."""
        layout = self._features.layout
        columns: dict[int, tf.Tensor] = {}  # first column in `numeric` -> float32 [rows, width]
        ids: dict[int, tf.Tensor] = {}  # first column in `categorical` -> int64 [rows, width]
        columns.update(self._scaled())
        for item in self._features.fitted:
            match item.config:
                case NumericFeature() if item.quantile:
                    ids[self._features.slot(item).start] = self._global(
                        item, self._quantile(item)[:, tf.newaxis]
                    )
                case NumericFeature() | VectorFeature():
                    pass  # in _scaled
                case BooleanFeature():
                    columns[item.numeric] = tf.cast(self._raw[item.column], tf.float32)[:, tf.newaxis]
                case DatetimeFeature():
                    columns[item.numeric] = self._datetime(item)
                case BagFeature():
                    slot = self._features.slot(item)
                    rows, columns[slot.weight_start] = self._bag(item)
                    ids[slot.start] = self._global(item, rows)
                case CrossFeature():
                    ids[self._features.slot(item).start] = self._global(
                        item, self._cross(item)[:, tf.newaxis]
                    )
                case _ if item.config.kind == "integer":
                    ids[self._features.slot(item).start] = self._global(
                        item, self._integer(item)[:, tf.newaxis]
                    )
                case _:
                    rows = self._text_rows(item, self._text(item.column))
                    ids[self._features.slot(item).start] = self._global(item, rows[:, tf.newaxis])
        return {
            "numeric": self._joined(columns, len(layout.numeric), tf.float32),
            "categorical": tf.cast(self._joined(ids, layout.categorical, tf.int64), tf.int32),
        }

    def _joined(self, parts: Mapping[int, tf.Tensor], width: int, dtype: tf.DType) -> tf.Tensor:
        if not parts:
            return tf.zeros([self._rows, 0], dtype)
        joined = tf.concat([parts[start] for start in sorted(parts)], axis=1)
        return tf.ensure_shape(joined, [None, width])

    def _global(self, item: Fitted, rows: tf.Tensor) -> tf.Tensor:
        return tf.cast(rows, tf.int64) + self._features.slot(item).offset

    # --- numbers ------------------------------------------------------------------------------------

    def _number(self, column: str) -> tf.Tensor:
        """Returns float32 [rows] or [rows, length] with NaN for missing and infinite."""
        raw = self._raw[column]
        values = tf.cast(raw, tf.float32)
        finite = tf.math.is_finite(values)
        if raw.dtype == tf.int64:
            finite &= raw != INT64_MISSING
        return tf.where(finite, values, tf.constant(math.nan, tf.float32))

    def _scaled(self) -> dict[int, tf.Tensor]:
        """Scales the columns of all numbers and vectors at once: far fewer operations than one by one."""
        scaled = [
            item
            for item in self._features.fitted
            if item.config.kind == "vector" or (item.config.kind == "numeric" and not item.quantile)
        ]
        if not scaled:
            return {}
        parts = [self._number(item.column) for item in scaled]
        parts = [part if part.shape.rank == 2 else part[:, tf.newaxis] for part in parts]
        values = tf.concat(parts, axis=1)
        missing = tf.math.is_nan(values)
        values = tf.where(missing, self._constants(scaled, "impute", np.float32), values)
        wide = tf.cast(values, tf.float64)
        logs = np.concatenate(
            [np.full(len(item.shift), getattr(item.config, "normalize", "") == "log") for item in scaled]
        )
        if logs.any():
            wide = tf.where(logs, tf.sign(wide) * tf.math.log1p(tf.abs(wide)), wide)
        wide = (wide - self._constants(scaled, "shift", np.float64)) * self._constants(
            scaled, "factor", np.float64
        )
        narrow = tf.cast(tf.clip_by_value(wide, -FLOAT_MAX, FLOAT_MAX), tf.float32)
        result = {}
        place = 0
        for item in scaled:
            width = len(item.shift)
            result[item.numeric] = narrow[:, place : place + width]
            if isinstance(item.config, NumericFeature) and item.config.indicator:
                result[item.numeric + 1] = tf.cast(missing[:, place : place + 1], tf.float32)
            place += width
        return result

    @staticmethod
    def _constants(items: list[Fitted], name: str, dtype: Any) -> tf.Tensor:
        return tf.constant(np.concatenate([np.array(getattr(item, name), dtype) for item in items]))

    def _quantile(self, item: Fitted) -> tf.Tensor:
        values = self._number(item.column)
        missing = tf.math.is_nan(values)
        values = tf.where(missing, tf.constant(item.impute[0], tf.float32), values)
        boundaries = tf.constant(item.boundaries, tf.float32)
        rows = item.first_value + tf.searchsorted(boundaries, values, side="right", out_type=tf.int64)
        if item.missing_row < 0:
            return rows
        return tf.where(missing, tf.constant(item.missing_row, tf.int64), rows)

    def _datetime(self, item: Fitted) -> tf.Tensor:
        config = item.config
        assert isinstance(config, DatetimeFeature)
        micros, missing = parse_times(self._raw[item.column])
        columns = []
        for part in config.parts:
            turns = tf.cast(calendar.part_value(part, micros), tf.float64)
            angle = turns * (2 * np.pi / calendar.PERIODS[part])
            columns += [tf.sin(angle), tf.cos(angle)]
        if config.age:
            age = tf.cast(item.newest - micros, tf.float64) / calendar.DAY
            columns.append(tf.clip_by_value((age - item.shift[0]) * item.factor[0], -FLOAT_MAX, FLOAT_MAX))
        columns = [tf.where(missing, tf.zeros_like(column), column) for column in columns]
        if config.indicator:
            columns.append(tf.cast(missing, tf.float64))
        return tf.cast(tf.stack(columns, axis=1), tf.float32)

    # --- ids ----------------------------------------------------------------------------------------

    def _text(self, column: str) -> tf.Tensor:
        """Returns the text form of a column; "" is missing."""
        if column not in self._texts:
            raw = self._raw[column]
            if raw.dtype == tf.int64:
                raw = tf.where(raw == INT64_MISSING, tf.constant(""), tf.strings.as_string(raw))
            elif raw.dtype == tf.bool:
                raw = tf.where(raw, tf.constant("true"), tf.constant("false"))
            self._texts[column] = raw
        return self._texts[column]

    def _text_rows(self, item: Fitted, texts: tf.Tensor) -> tf.Tensor:
        missing = tf.constant(item.missing_row, tf.int64)
        if item.config.kind == "hashed":
            rows = item.first_value + tf.strings.to_hash_bucket_fast(texts, item.config.buckets)
        else:
            rows = item.first_oov + tf.strings.to_hash_bucket_fast(texts, item.oov_rows)
            if item.vocabulary:
                found = self._tables[self._places[item.name]].lookup(texts)
                rows = tf.where(found >= 0, item.first_value + found, rows)
        return tf.where(tf.equal(texts, ""), missing, rows)

    def _integer(self, item: Fitted) -> tf.Tensor:
        config = item.config
        assert config.kind == "integer"
        values = self._raw[item.column]
        rows = tf.where(
            (values >= 0) & (values < config.size),
            item.first_value + values,
            tf.constant(item.first_oov, tf.int64),
        )
        return tf.where(values == INT64_MISSING, tf.constant(item.missing_row, tf.int64), rows)

    def _bag(self, item: Fitted) -> tuple[tf.Tensor, tf.Tensor]:
        config = item.config
        assert isinstance(config, BagFeature)
        missing = tf.constant(item.missing_row, tf.int64)
        rows = self._fitted_width(self._text_rows(item, self._text(item.column)), config.max_length, missing)
        present = rows != missing
        weights = tf.cast(present, tf.float32)
        if config.weights:
            given = self._raw[config.weights]
            given = tf.where(tf.math.is_finite(given), given, tf.ones_like(given))
            given = tf.where(given < np.finfo(np.float32).tiny, tf.zeros_like(given), given)
            weights *= self._fitted_width(given, config.max_length, tf.constant(1.0))
        empty = ~tf.reduce_any(weights > 0, axis=1, keepdims=True)
        first = tf.constant([[1.0] + [0.0] * (config.max_length - 1)])
        return tf.where(empty, missing, rows), tf.where(empty, first, weights)

    def _fitted_width(self, values: tf.Tensor, width: int, filler: tf.Tensor) -> tf.Tensor:
        """Cuts or fills lists [rows, any] to [rows, width]."""
        padding = tf.fill([self._rows, width], filler)
        return tf.ensure_shape(tf.concat([values, padding], axis=1)[:, :width], [None, width])

    def _cross(self, item: Fitted) -> tf.Tensor:
        config = item.config
        assert isinstance(config, CrossFeature)
        parts = [self._text(self._features[name].column) for name in config.of]
        joined = tf.strings.join(parts, SEPARATOR)
        rows = item.first_value + tf.strings.to_hash_bucket_fast(joined, config.buckets)
        blank = tf.equal(joined, SEPARATOR * (len(parts) - 1))
        return tf.where(blank, tf.constant(item.missing_row, tf.int64), rows)
