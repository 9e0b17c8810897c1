"""The keys of each kind of feature. Adopters: add kinds here, then in encode.py and preprocess.py."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _one_is_a_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_one_is_a_list)]  # a bare text is a list of one


class Section(BaseModel):
    """A part of the config: unknown keys are errors and values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class _Feature(Section):
    name: str = Field(..., min_length=1, description="Name of the feature; also its column unless given.")
    column: str | None = Field(None, description="Source column; dotted for nested fields.")

    @property
    def source_column(self) -> str:
        """The raw column that this feature is read from."""
        return self.column or self.name


class NumericFeature(_Feature):
    kind: Literal["numeric"] = Field("numeric", description="A number.")
    normalize: Literal["none", "standard", "minmax", "log", "quantile"] = Field(
        "standard",
        description="Scaling by train statistics; log is log1p of the magnitude, standardised; "
        "quantile cuts into buckets that are embedded.",
    )
    buckets: int = Field(16, ge=2, le=1024, description="normalize=quantile: number of buckets.")
    impute: Literal["mean", "median", "zero"] | float = Field(
        "median", description="What stands in for a missing value (a number stands for itself)."
    )
    indicator: bool = Field(True, description="Whether a 0/1 column says that the value was missing.")


class CategoricalFeature(_Feature):
    kind: Literal["categorical"] = Field("categorical", description="Text or integers from a vocabulary.")
    min_count: int = Field(1, ge=1, description="Rarer train values become out-of-vocabulary.")
    max_size: int = Field(1_000_000, ge=1, description="Most frequent values kept.")
    oov_buckets: int = Field(1, ge=1, description="Rows of the table for values outside the vocabulary.")
    missing: Literal["own", "oov"] = Field("own", description="Missing values: an id of their own, or OOV.")
    vocabulary_file: str | None = Field(None, description="Text file, one value a line, instead of counting.")


class HashedFeature(_Feature):
    kind: Literal["hashed"] = Field("hashed", description="Text or integers hashed into buckets.")
    buckets: int = Field(1024, ge=1, description="Number of hash buckets.")


class IntegerFeature(_Feature):
    kind: Literal["integer"] = Field("integer", description="Integers 0..size-1 that are categories already.")
    size: int = Field(..., ge=1, description="Number of categories; others count as out-of-vocabulary.")


class BooleanFeature(_Feature):
    kind: Literal["boolean"] = Field("boolean", description="True or false.")
    impute: Literal["mode", "true", "false"] = Field(
        "mode", description="What stands in for a missing value."
    )


class DatetimeFeature(_Feature):
    kind: Literal["datetime"] = Field("datetime", description="A date or timestamp (UTC).")
    parts: tuple[Literal["hour", "weekday", "day", "month", "dayofyear"], ...] = Field(
        ("hour", "weekday", "month"), description="Each part becomes a sine and a cosine."
    )
    age: bool = Field(False, description="Whether days before the newest train moment are a feature too.")
    indicator: bool = Field(True, description="Whether a 0/1 column says that the value was missing.")


class BagFeature(_Feature):
    kind: Literal["bag"] = Field(
        "bag", description="A list of texts or integers, embedded as a weighted mean."
    )
    weights: str | None = Field(None, description="Column with a list of weights, one an entry.")
    max_length: int = Field(16, ge=1, description="Entries kept of each list, from its start.")
    min_count: int = Field(1, ge=1, description="Rarer train values become out-of-vocabulary.")
    max_size: int = Field(1_000_000, ge=1, description="Most frequent values kept.")
    oov_buckets: int = Field(1, ge=1, description="Rows of the table for values outside the vocabulary.")


class VectorFeature(_Feature):
    kind: Literal["vector"] = Field("vector", description="A list of numbers of fixed length.")
    length: int = Field(..., ge=1, description="Length of the list.")
    normalize: Literal["none", "standard"] = Field("none", description="Scaling of each place of the list.")


class CrossFeature(_Feature):
    kind: Literal["cross"] = Field("cross", description="Combinations of other categorical features, hashed.")
    of: Texts = Field(..., min_length=2, description="Names of the features to combine.")
    buckets: int = Field(4096, ge=1, description="Number of hash buckets.")


Feature = Annotated[
    NumericFeature
    | CategoricalFeature
    | HashedFeature
    | IntegerFeature
    | BooleanFeature
    | DatetimeFeature
    | BagFeature
    | VectorFeature
    | CrossFeature,
    Field(discriminator="kind"),
]
