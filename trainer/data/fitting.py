"""From statistics of the train split to fitted features. Adopters: leave."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from trainer import storage
from trainer.config_features import BagFeature, CategoricalFeature, CrossFeature, Feature, NumericFeature
from trainer.data import labels
from trainer.data.calendar import DAY
from trainer.data.labels import number_summary
from trainer.data.statistics import Bags, Booleans, Integers, Numbers, Statistics, Times, Vectors, Words
from trainer.errors import UserError
from trainer.features import INT64_MISSING, DType, Features, Fitted, Layout, RawInput, Slot

_LOG = logging.getLogger(__name__)
_TOP = 10  # most frequent values kept for the report
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_SMALLEST_SPREAD = 1e-30  # below it (and float32 ends at 1e-38) a column is constant for all that matters
_CROSSED = ("categorical", "hashed", "integer", "boolean")


def build(statistics: Statistics) -> Features:
    """Makes the fitted features from the finished statistics of the train split; warnings are logged.

    Raises:
        UserError: Labels that don't fit the task, a vocabulary file that can't be used, or two features that
            need the same column in two types.
    """
    config = statistics.config
    warnings: list[str] = []
    types = statistics.types
    fitted = [
        _FITTERS[feature.kind](feature, statistics.features.get(feature.name), types, warnings.append)
        for feature in config.features
    ]
    _check_crosses(config.features)
    placed, layout = arrange(fitted)
    raw_inputs = _raw_inputs(placed)
    dtypes = {item.name: item.dtype for item in raw_inputs}
    placed = [replace(item, dtype=dtypes.get(item.column, item.dtype)) for item in placed]
    label = labels.build(config, statistics.labels)
    if unseen := [name for name, count in label.counts.items() if not count]:
        warnings.append(f"label: the train split has no row of {', '.join(map(repr, unseen))}")
    for warning in warnings:
        _LOG.warning(warning)
    return Features(tuple(placed), layout, label, raw_inputs, statistics.rows, tuple(warnings))


# --- one function for each kind ---------------------------------------------------------------------

_Types = Mapping[str, pa.DataType]
_Warn = Callable[[str], None]


def _shared(made: Any) -> dict[str, Any]:
    return {"missing": made.missing / made.rows}


def _spread(what: str, low: float, high: float, spread: float, warn: _Warn) -> float:
    """Returns 1 / spread; 1 with a warning for a constant column, which would be blown up otherwise."""
    if low == high or spread < _SMALLEST_SPREAD:
        warn(f"{what} is constant in the train split ({low!r}): it is taken to have variance 1")
        return 1.0
    return 1.0 / spread


def _numeric(feature: NumericFeature, made: Numbers, types: _Types, warn: _Warn) -> Fitted:
    what = f"feature {feature.name!r}: column {feature.source_column!r}"
    if made.infinite:
        warn(f"{what} has {made.infinite} infinite values in the train split: they count as missing")
    mean, std = float(made.moments.mean[0]), float(made.moments.std[0])
    low, high = float(made.moments.min[0]), float(made.moments.max[0])
    if isinstance(feature.impute, str):
        stand_in = {"mean": mean, "median": float(made.quantiles([0.5])[0]), "zero": 0.0}[feature.impute]
    else:
        stand_in = feature.impute
    with np.errstate(over="ignore"):
        stand_in = float(np.float32(stand_in))
    if not math.isfinite(stand_in):
        raise UserError(
            f"feature {feature.name!r}: impute is {feature.impute!r}, expected a finite float32 number"
        )
    summary = {**_shared(made), "infinite": made.infinite, **number_summary(made)}
    result = Fitted(feature, "float32", impute=(stand_in,), shift=(0.0,), factor=(1.0,), summary=summary)
    match feature.normalize:
        case "standard":
            return replace(result, shift=(mean,), factor=(_spread(what, low, high, std, warn),))
        case "minmax":
            return replace(result, shift=(low,), factor=(_spread(what, low, high, high - low, warn),))
        case "log":
            assert made.log is not None
            factor = _spread(what, low, high, float(made.log.std[0]), warn)
            return replace(result, shift=(float(made.log.mean[0]),), factor=(factor,))
        case "quantile":
            shares = np.arange(1, feature.buckets) / feature.buckets
            cuts = np.unique(made.quantiles(shares).astype(np.float32))
            cuts = cuts[cuts > np.float32(low)]  # a cut at the minimum leaves an empty bucket below
            if low == high:
                warn(f"{what} is constant in the train split ({low!r}): all its values fall into one bucket")
            return replace(result, shift=(), factor=(), boundaries=tuple(float(cut) for cut in cuts))
    return result


def _vector(feature: Any, made: Vectors, types: _Types, warn: _Warn) -> Fitted:
    moments, length = made.moments, feature.length
    what = f"feature {feature.name!r}: column {feature.source_column!r}"
    if made.infinite:
        warn(f"{what} has {made.infinite} infinite values in the train split: they count as missing")
    summary = {**_shared(made), "infinite": made.infinite, "mean": float(moments.mean.mean())}
    if feature.normalize == "none":
        zero, one = (0.0,) * length, (1.0,) * length
        return Fitted(feature, "float32", impute=zero, shift=zero, factor=one, summary=summary)
    low, high, std = moments.min, moments.max, moments.std
    for place in np.flatnonzero(moments.count == 0):
        warn(f"{what} has no value at place {place} in the train split")
    factor = tuple(
        _spread(f"{what}, place {place},", float(low[place]), float(high[place]), float(std[place]), warn)
        if moments.count[place]
        else 1.0
        for place in range(length)
    )
    means = tuple(map(float, moments.mean))
    return Fitted(feature, "float32", impute=means, shift=means, factor=factor, summary=summary)


def _boolean(feature: Any, made: Booleans, types: _Types, warn: _Warn) -> Fitted:
    true = 2 * made.true > made.rows - made.missing if feature.impute == "mode" else feature.impute == "true"
    summary = {**_shared(made), "mean": made.true / (made.rows - made.missing)}
    return Fitted(feature, "bool", impute=(float(true),), summary=summary)


def _datetime(feature: Any, made: Times, types: _Types, warn: _Warn) -> Fitted:
    assert made.newest is not None
    assert made.oldest is not None
    summary = {**_shared(made), "oldest": _iso(made.oldest), "newest": _iso(made.newest)}
    result = Fitted(feature, "string", newest=made.newest, summary=summary)
    if not feature.age:
        return result
    mean, std = made.newest / DAY - float(made.days.mean[0]), float(made.days.std[0])
    what = f"feature {feature.name!r}: column {feature.source_column!r}"
    low, high = float(made.days.min[0]), float(made.days.max[0])
    return replace(result, shift=(mean,), factor=(_spread(what, low, high, std, warn),))


def _iso(micros: int) -> str:
    return str(np.datetime64(micros, "us"))


def _integer(feature: Any, made: Integers, types: _Types, warn: _Warn) -> Fitted:
    if made.outside:
        warn(
            f"feature {feature.name!r}: column {feature.source_column!r} has {made.outside} values outside 0 "
            f"to {feature.size - 1} in the train split: they count as out-of-vocabulary"
        )
    order = np.lexsort((np.arange(feature.size), -made.counts))[:_TOP]
    top = [[str(place), int(made.counts[place])] for place in order if made.counts[place]]
    summary = {**_shared(made), "distinct": int((made.counts > 0).sum()), "outside": made.outside, "top": top}
    return Fitted(feature, "int64", summary=summary)


def _words_summary(made: Words) -> dict[str, Any]:
    top = [list(item) for item in made.counts.most_common(size=_TOP)]
    summary: dict[str, Any] = {**_shared(made), "distinct": made.counts.distinct, "top": top}
    if made.counts.error:
        summary["count_error"] = made.counts.error  # counts may be that much too low
    return summary


def _hashed(feature: Any, made: Words, types: _Types, warn: _Warn) -> Fitted:
    texts = tuple(text for text, _ in made.counts.most_common(size=_TOP))
    dtype = _request_dtype(types.get(feature.source_column), texts)
    return Fitted(feature, dtype, summary=_words_summary(made))


def _categorical(feature: CategoricalFeature, made: Words, types: _Types, warn: _Warn) -> Fitted:
    summary = _words_summary(made)
    if feature.vocabulary_file:
        vocabulary = read_vocabulary(feature.name, feature.vocabulary_file, feature.max_size)
    else:
        vocabulary = _vocabulary(feature, made, warn)
    return Fitted(
        feature,
        _request_dtype(types.get(feature.source_column), vocabulary),
        vocabulary=vocabulary,
        summary=summary,
    )


def _bag(feature: BagFeature, made: Bags, types: _Types, warn: _Warn) -> Fitted:
    if made.cut:
        warn(
            f"feature {feature.name!r}: {made.cut} lists in column {feature.source_column!r} are longer than "
            f"max_length {feature.max_length}: their ends are left out"
        )
    summary = {
        **_words_summary(made.words),
        **_shared(made),
        "mean_length": made.entries / made.rows,
        "cut": made.cut,
    }
    vocabulary = _vocabulary(feature, made.words, warn)
    kind = types.get(feature.source_column)
    if kind is not None and hasattr(kind, "value_type"):
        kind = kind.value_type
    return Fitted(feature, _request_dtype(kind, vocabulary), vocabulary=vocabulary, summary=summary)


def _cross(feature: CrossFeature, made: None, types: _Types, warn: _Warn) -> Fitted:
    return Fitted(feature, "string")


_FITTERS: dict[str, Callable[..., Fitted]] = {
    "numeric": _numeric,
    "categorical": _categorical,
    "hashed": _hashed,
    "integer": _integer,
    "boolean": _boolean,
    "datetime": _datetime,
    "bag": _bag,
    "vector": _vector,
    "cross": _cross,
}


def _request_dtype(kind: pa.DataType | None, texts: tuple[str, ...]) -> DType:
    """Returns int64 for a column that is stored as integers (or as floats that are all whole)."""
    if kind is None:
        return "string"
    if pa.types.is_integer(kind):
        return "int64"
    return "int64" if pa.types.is_floating(kind) and all(map(_INTEGER.fullmatch, texts)) else "string"


def _vocabulary(feature: CategoricalFeature | BagFeature, made: Words, warn: _Warn) -> tuple[str, ...]:
    """Returns the texts that occur often enough, most frequent first, then by text."""
    what = f"feature {feature.name!r}: column {feature.source_column!r}"
    if made.counts.error:
        warn(
            f"{what} has more than {made.counts.limit} distinct values in the train split: the rarest were "
            f"not counted, and counts may be up to {made.counts.error} too low"
        )
    found = made.counts.most_common(feature.min_count)
    if len(found) > feature.max_size:
        warn(
            f"{what} has {len(found)} values that occur {feature.min_count} times or more in the train "
            f"split: the {feature.max_size} most frequent are kept (max_size)"
        )
    return tuple(text for text, _ in found[: feature.max_size])


def read_vocabulary(name: str, path: str, max_size: int) -> tuple[str, ...]:
    """Reads a vocabulary file: UTF-8, one value a line, most frequent first; empty lines are skipped.

    Raises:
        UserError: The file can't be read, names a value twice or has more than `max_size` values.
    """
    where = f"feature {name!r}: vocabulary_file {path!r}"
    try:
        text = storage.read_text(path)
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 ({error})") from error
    except OSError as error:
        raise UserError(f"{where} can't be read ({error.strerror or error})") from error
    lines: dict[str, int] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        value = line.removesuffix("\r")
        if not value:
            continue
        if value in lines:
            raise UserError(f"{where}: line {number} repeats {value!r} of line {lines[value]}")
        lines[value] = number
    if not lines:
        raise UserError(f"{where} has no values")
    if len(lines) > max_size:
        raise UserError(f"{where} has {len(lines)} values, expected at most max_size = {max_size}")
    return tuple(lines)


# --- the layout -------------------------------------------------------------------------------------


def _check_crosses(features: tuple[Feature, ...]) -> None:
    kinds = {feature.name: feature for feature in features}
    for feature in features:
        for name in feature.of if isinstance(feature, CrossFeature) else ():
            if kinds[name].kind not in _CROSSED:
                raise UserError(
                    f"feature {feature.name!r}: cross can't combine {name!r} of kind {kinds[name].kind}, "
                    f"expected {', '.join(_CROSSED)}"
                )


def arrange(fitted: list[Fitted]) -> tuple[list[Fitted], Layout]:
    """Gives each feature its columns and its rows of the fused table, in the order of the config.

    Raises:
        UserError: More rows than an int32 id can name.
    """
    dense = [name for item in fitted for name in item.dense_columns]
    weights: list[str] = []
    slots: list[Slot] = []
    placed: list[Fitted] = []
    start = offset = column = 0
    for item in fitted:
        if item.dense_columns:
            item = replace(item, numeric=column)
            column += len(item.dense_columns)
        if item.rows:
            width, weight_start = 1, -1
            if isinstance(item.config, BagFeature):
                width, weight_start = item.config.max_length, len(dense) + len(weights)
                weights += [f"{item.name}:weight_{place}" for place in range(width)]
            slots.append(Slot(item.name, start, width, offset, item.rows, weight_start))
            item = replace(item, slot=len(slots) - 1)
            start, offset = start + width, offset + item.rows
        placed.append(item)
    if offset >= 2**31:
        raise UserError(
            f"the features have {offset} ids in all, expected fewer than {2**31}: lower max_size or buckets"
        )
    return placed, Layout((*dense, *weights), len(dense), tuple(slots), offset)


def _raw_inputs(fitted: list[Fitted]) -> tuple[RawInput, ...]:
    """Returns what a request holds: each source column once.

    Raises:
        UserError: Two features need one column in two types.
    """
    found: dict[str, tuple[RawInput, str]] = {}
    for item in fitted:
        for raw in _raw_inputs_of(item):
            if raw.name not in found:
                found[raw.name] = (raw, item.name)
                continue
            other, owner = found[raw.name]
            if (other.dtype, other.shape, str(other.default)) == (raw.dtype, raw.shape, str(raw.default)):
                continue
            if {raw.dtype, other.dtype} == {"float32", "int64"} and raw.shape == other.shape == ():
                found[raw.name] = (RawInput(raw.name, "int64", (), INT64_MISSING), owner)
                continue
            raise UserError(
                f"features {owner!r} and {item.name!r} read the column {raw.name!r} as "
                f"{_described(other)} and as {_described(raw)}: give one of them a column of its own"
            )
    return tuple(raw for raw, _ in found.values())


def _described(raw: RawInput) -> str:
    missing = f" (missing: {raw.default})" if raw.dtype == "bool" else ""
    return ("list of " if raw.shape else "") + raw.dtype + missing


def _raw_inputs_of(item: Fitted) -> list[RawInput]:
    config = item.config
    missing: dict[str, float | int | str] = {"float32": math.nan, "int64": INT64_MISSING, "string": ""}
    match config.kind:
        case "cross":
            return []
        case "boolean":
            return [RawInput(item.column, "bool", (), bool(item.impute[0]))]
        case "vector":
            return [RawInput(item.column, "float32", (config.length,), math.nan)]
        case "bag":
            entries = RawInput(item.column, item.dtype, (None,), missing[item.dtype])
            return [
                entries,
                *([RawInput(config.weights, "float32", (None,), math.nan)] if config.weights else []),
            ]
    return [RawInput(item.column, item.dtype, (), missing[item.dtype])]
