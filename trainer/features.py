"""Fitted features: one list that drives reading, encoding, the model's inputs and serving. Adopters: leave.

`fit` reads the train split once and returns a `Features`; `data/encode.py` (NumPy) and `preprocess.py`
(TensorFlow) both follow it, so training and serving see the same numbers. `features.json` is its saved
form. Neither this module nor the loader of that file imports TensorFlow, pyarrow or NumPy.

Rows of the fused table, from the `offset` of each slot on:

    categorical   [missing, with missing=own] [oov_buckets rows] [vocabulary, most frequent first]
    bag           [missing: an empty list]    [oov_buckets rows] [vocabulary, most frequent first]
    hashed, cross [missing]                                      [buckets rows]
    integer       [missing]                   [one OOV row]      [0 .. size-1]
    quantile      [missing, with indicator]                      [buckets, lowest first]

With missing=oov a missing value takes the first OOV row.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError

from trainer.config import Config, Task
from trainer.config_features import Feature
from trainer.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1  # of features.json; raise it whenever an older reader would misunderstand the file
INT64_MISSING = -(2**63)  # a missing integer in a serving request
FLOAT_MAX = 3.4028234663852886e38  # of float32: scaled numbers are kept within it
SEPARATOR = "\x1f"  # between the parts of a cross
_FEATURE: TypeAdapter[Feature] = TypeAdapter(Feature)

DType = Literal["string", "float32", "int64", "bool"]


@dataclass(frozen=True)
class Slot:
    """The columns of `categorical` that one feature owns, and its rows of the fused table.

    Attributes:
        name: Name of the feature.
        start: First of its columns in `categorical`.
        width: Number of its columns: 1, or `max_length` of a bag.
        offset: First of its rows in the fused table.
        rows: Number of its rows.
        weight_start: First of its weight columns in `numeric`; -1 where it has none (width 1).
    """

    name: str
    start: int
    width: int
    offset: int
    rows: int
    weight_start: int = -1


@dataclass(frozen=True)
class Layout:
    """Who owns which column of the two blocks.

    Attributes:
        numeric: Names of all columns of `numeric`.
        dense: Columns `numeric[:dense]` feed dense layers; the rest are the weights of bags.
        slots: Owners of the columns of `categorical`, in their order.
        table_rows: Rows of the fused embedding table.
    """

    numeric: tuple[str, ...]
    dense: int
    slots: tuple[Slot, ...]
    table_rows: int

    @property
    def categorical(self) -> int:
        """Number of columns of `categorical`."""
        return sum(slot.width for slot in self.slots)


@dataclass(frozen=True)
class RawInput:
    """A source column as the serving signature takes it: a tensor [batch, *shape].

    Attributes:
        name: Source column.
        dtype: Type in a request.
        shape: () for one value a row, (length,) for a vector, (None,) for a list of any length.
        default: What stands for a missing value: NaN, "", -9223372036854775808, or for a boolean the
            value that is imputed. Also pads lists.
    """

    name: str
    dtype: DType
    shape: tuple[int | None, ...]
    default: float | int | str | bool


@dataclass(frozen=True)
class LabelSpec:
    """What is learned.

    Attributes:
        task: Task of the run.
        columns: Label columns (several for multilabel).
        classes: Class names in output order: two for binary (the second is the positive one); the
            column names for multilabel; empty for regression.
        counts: Train rows of each class (multilabel: rows where that label is 1).
        missing: Train rows that came without a label.
        summary: Regression: count, mean, std, min, max and quantiles of the label.
    """

    task: Task
    columns: tuple[str, ...]
    classes: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    missing: int = 0
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outputs(self) -> int:
        """Number of logits."""
        return len(self.classes) if self.task in ("multiclass", "multilabel") else 1


@dataclass(frozen=True)
class Fitted:
    """One feature with what the train split taught about it.

    A number x becomes `(t(x) - shift) * factor`, where t is log1p of the magnitude for normalize=log and
    nothing otherwise. Lists have one entry for each column of a vector and one entry for other kinds.

    Attributes:
        config: The feature as configured.
        dtype: Type of its source column in a request.
        numeric: First of its dense columns in `numeric`; -1 without any.
        slot: Index in `Layout.slots`; -1 without one.
        impute: Stands for a missing value, before scaling (boolean: 0 or 1).
        shift: Subtracted, float64 (datetime: of the age in days).
        factor: Multiplied, float64 (datetime: of the age in days).
        boundaries: quantile: x belongs to the bucket whose number is the count of boundaries <= x.
        vocabulary: Known values, most frequent first.
        newest: datetime: newest train moment in microseconds since 1970 UTC.
        summary: Figures for the report: missing share, mean, top values and so on.
    """

    config: Feature
    dtype: DType
    numeric: int = -1
    slot: int = -1
    impute: tuple[float, ...] = ()
    shift: tuple[float, ...] = ()
    factor: tuple[float, ...] = ()
    boundaries: tuple[float, ...] = ()
    vocabulary: tuple[str, ...] = ()
    newest: int = 0
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the feature."""
        return self.config.name

    @property
    def column(self) -> str:
        """Source column (meaningless for a cross)."""
        return self.config.source_column

    @property
    def quantile(self) -> bool:
        """Whether this is a number that is cut into buckets."""
        return self.config.kind == "numeric" and self.config.normalize == "quantile"

    @property
    def missing_row(self) -> int:
        """Row of a missing value, counted from the slot's offset; -1: the imputed value's row."""
        config = self.config
        if config.kind == "numeric":
            return 0 if config.indicator else -1
        return 0

    @property
    def first_oov(self) -> int:
        """First OOV row, counted from the slot's offset."""
        config = self.config
        return 0 if config.kind == "categorical" and config.missing == "oov" else 1

    @property
    def oov_rows(self) -> int:
        """Number of OOV rows."""
        config = self.config
        if config.kind in ("categorical", "bag"):
            return config.oov_buckets  # type: ignore[union-attr]
        return 1 if config.kind == "integer" else 0

    @property
    def first_value(self) -> int:
        """Row of the first known value (or hash bucket, or quantile bucket), counted from the offset."""
        if self.quantile:
            return self.missing_row + 1
        return self.first_oov + self.oov_rows

    @property
    def rows(self) -> int:
        """Rows of the fused table; 0 for a feature without a slot."""
        config = self.config
        if config.kind in ("hashed", "cross"):
            return 1 + config.buckets  # type: ignore[union-attr]
        if config.kind == "integer":
            return 2 + config.size
        if config.kind in ("categorical", "bag"):
            return self.first_value + len(self.vocabulary)
        return self.first_value + len(self.boundaries) + 1 if self.quantile else 0

    @property
    def dense_columns(self) -> tuple[str, ...]:
        """Names of its columns in `numeric[:dense]`."""
        config, name = self.config, self.config.name
        if config.kind == "numeric":
            if self.quantile:
                return ()
            return (name, f"{name}:missing") if config.indicator else (name,)
        if config.kind == "boolean":
            return (name,)
        if config.kind == "vector":
            return tuple(f"{name}:{place}" for place in range(config.length))
        if config.kind == "datetime":
            parts = tuple(f"{name}:{part}_{wave}" for part in config.parts for wave in ("sin", "cos"))
            age = (f"{name}:age",) if config.age else ()
            return parts + age + ((f"{name}:missing",) if config.indicator else ())
        return ()


@dataclass(frozen=True)
class Features:
    """All that the train split taught about features and label: the contents of features.json.

    Attributes:
        fitted: The features in the order of the config.
        layout: Who owns which column of the encoded blocks.
        label: What is learned.
        raw_inputs: What a serving request holds; each source column once.
        rows: Train rows that were read.
        warnings: Sentences for the log and the report.
    """

    fitted: tuple[Fitted, ...]
    layout: Layout
    label: LabelSpec
    raw_inputs: tuple[RawInput, ...]
    rows: int
    warnings: tuple[str, ...] = ()

    @property
    def config_features(self) -> tuple[Feature, ...]:
        """The features as configured."""
        return tuple(item.config for item in self.fitted)

    @property
    def columns(self) -> tuple[str, ...]:
        """Source columns that the features are read from, each once."""
        return source_columns(self.config_features)

    def __getitem__(self, name: str) -> Fitted:
        """Returns the feature of that name; KeyError without one."""
        for item in self.fitted:
            if item.name == name:
                return item
        raise KeyError(name)

    def slot(self, item: Fitted) -> Slot:
        """Returns the slot of a feature that has one."""
        return self.layout.slots[item.slot]

    def _document(self) -> dict[str, Any]:
        default = Fitted(config=self.fitted[0].config, dtype="string")
        fitted = []
        for item in self.fitted:
            entry: dict[str, Any] = {"config": item.config.model_dump(mode="json"), "dtype": item.dtype}
            for name in Fitted.__dataclass_fields__:
                value = getattr(item, name)
                if name not in entry and value != getattr(default, name):
                    entry[name] = value
            fitted.append(entry)
        raw = [asdict(item) for item in self.raw_inputs]
        for entry in raw:
            if isinstance(entry["default"], float) and math.isnan(entry["default"]):
                entry["default"] = None  # JSON has no NaN
        return {
            "format": FORMAT,
            "rows": self.rows,
            "label": asdict(self.label),
            "layout": asdict(self.layout),
            "raw_inputs": raw,
            "features": fitted,
            "warnings": self.warnings,
        }

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the canonical JSON of spec and statistics."""
        text = json.dumps(
            self._document(), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> str:
        """Returns the text of features.json."""
        document = {**self._document(), "fingerprint": self.fingerprint}
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Features:
        """Reads the text of features.json.

        Raises:
            UserError: Not such a file, one of another format, or one that was edited by hand.
        """
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise UserError(
                    f"features.json has format {document['format']}, expected {FORMAT}: "
                    "use the trainer version that wrote it, or train anew"
                )
            layout = document["layout"]
            features = cls(
                fitted=tuple(_fitted(entry) for entry in document["features"]),
                layout=Layout(
                    numeric=tuple(layout["numeric"]),
                    dense=layout["dense"],
                    slots=tuple(Slot(**slot) for slot in layout["slots"]),
                    table_rows=layout["table_rows"],
                ),
                label=LabelSpec(
                    **{
                        **document["label"],
                        "columns": tuple(document["label"]["columns"]),
                        "classes": tuple(document["label"]["classes"]),
                    }
                ),
                raw_inputs=tuple(_raw_input(entry) for entry in document["raw_inputs"]),
                rows=document["rows"],
                warnings=tuple(document["warnings"]),
            )
            written = document["fingerprint"]
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise UserError(f"features.json can't be read ({type(error).__name__}: {error})") from error
        if features.fingerprint != written:
            raise UserError(
                "features.json was changed after the run that wrote it: its fingerprint does not fit"
            )
        return features


def _fitted(entry: Mapping[str, Any]) -> Fitted:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()
    }
    values["config"] = _FEATURE.validate_python(entry["config"])
    return Fitted(**values)


def _raw_input(entry: Mapping[str, Any]) -> RawInput:
    default = math.nan if entry["default"] is None else entry["default"]
    return RawInput(**{**entry, "shape": tuple(entry["shape"]), "default": default})


def source_columns(features: Iterable[Feature]) -> tuple[str, ...]:
    """Returns the source columns of some features (bag weights too), each once, in order."""
    columns: dict[str, None] = {}
    for feature in features:
        if feature.kind != "cross":
            columns[feature.source_column] = None
        if feature.kind == "bag" and feature.weights:
            columns[feature.weights] = None
    return tuple(columns)


def label_columns(config: Config) -> tuple[str, ...]:
    """Returns the label columns."""
    return (config.label.column,) if isinstance(config.label.column, str) else config.label.column


def fit(config: Config, batches: Iterable[pa.RecordBatch]) -> Features:
    """Fits features and label to the train split, in one pass.

    Args:
        config: The run config.
        batches: Rows of the train split; the columns of `source_columns(config.features)` and
            `label_columns(config)` must be there, others are left alone.

    Returns:
        The fitted features. Their warnings are logged too.

    Raises:
        UserError: No rows; a column that is absent, has no value at all or is of a type that its feature
            can't use; labels that don't fit the task; a vocabulary file that can't be used.
    """
    from trainer.data.fitting import build
    from trainer.data.statistics import Statistics

    statistics = Statistics(config)
    for batch in batches:
        statistics.update(batch)
    return build(statistics.finish())
