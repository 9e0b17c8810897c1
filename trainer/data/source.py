"""Rows as Arrow record batches, whatever they are stored in; the one door to the data. Adopters: leave.

`open_splits` gives the train, validation and test rows of a config, `open_rows` any rows without a split.
A new kind of store plugs in here: write a class with the methods of `Source` and open it in `_open`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from trainer.config import Config
from trainer.data import cast
from trainer.data.split import NAMES, TEST, TRAIN, VALIDATION, Splitter, make_splitter
from trainer.errors import UserError

_LOG = logging.getLogger("trainer")


@dataclass(frozen=True)
class Unit:
    """A piece of a source that can be read by itself, such as some row groups of a Parquet file.

    Attributes:
        index: place in the fixed order of the source's units.
        name: what messages call it.
        rows: rows that `read` will give, where that is known without reading; else None.
    """

    index: int
    name: str
    rows: int | None


@dataclass
class Counts:
    """Rows of a source as far as it has been read.

    Attributes:
        rows: rows given.
        missing_label: rows of the split that were dropped because they have no label.
        bad: records that could not be read and were skipped; one that is of no split is counted in the split
            that was read first.
        units: units read to their end; `of` is the number of units.
    """

    rows: int = 0
    missing_label: int = 0
    bad: int = 0
    units: int = 0
    of: int = 0

    def __str__(self) -> str:
        text = f"{self.rows:,} rows"
        if self.missing_label:
            text += f", {self.missing_label:,} dropped without a label"
        if self.bad:
            text += f", {self.bad:,} bad records skipped"
        return text if self.units == self.of else f"{text} (in {self.units} of {self.of} parts read so far)"


class Source(Protocol):
    """The rows of one split. Reading is deterministic: the same call gives the same rows in order."""

    name: str  # "train", "validation", "test", or what was opened

    @property
    def schema(self) -> pa.Schema:
        """All columns that `batches()` gives, with the types of `wanted_types`."""
        ...

    def units(self) -> Sequence[Unit]:
        """Returns the units in their fixed order. They can be read in any order, each any number of times."""
        ...

    def read(self, unit: Unit, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a unit in order, at most data.chunk_rows a batch."""
        ...

    def batches(
        self, columns: Sequence[str] | None = None, units: Sequence[Unit] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields all rows, or those of `units` in the order given, reading ahead in data.reader_threads.

        Args:
            columns: columns to give, in this order; None gives all of `schema`.
            units: units to read; None reads all, and finds it an error when that gives no row.

        Raises:
            UserError: the rows can't be read as the config asks.
        """
        ...

    def count(self) -> int:
        """Returns the number of rows, reading as little as it can."""
        ...

    def counts(self) -> Counts:
        """Returns the rows given and dropped so far; whole after one full pass."""
        ...

    def findings(self) -> dict[str, Any]:
        """Returns what reading has found out about rows so far, as a JSON value."""
        ...

    def adopt(self, findings: dict[str, Any]) -> None:
        """Takes over the `findings` of another process, which has read other units of the same rows."""
        ...

    def no_rows(self) -> UserError:
        """Returns the error of a pass that gave no row, with what was seen instead."""
        ...

    def fingerprint(self) -> str:
        """Returns a hash that differs where the store holds other rows, as far as shows without reading."""
        ...


@dataclass(frozen=True)
class Wanted:
    """The columns that a config reads.

    Attributes:
        types: column -> type; see `wanted_types`.
        keep_integers: columns that stay int64 where the files store integers.
        labels: label columns; a row where one is missing is dropped, or an error.
        fail_missing_label: whether it is an error.
    """

    types: dict[str, pa.DataType]
    keep_integers: frozenset[str]
    labels: tuple[str, ...] = ()
    fail_missing_label: bool = False


_FEATURE_TYPES = {
    "numeric": cast.NUMBER,
    "categorical": cast.TEXT,
    "hashed": cast.TEXT,
    "integer": cast.INTEGER,
    "boolean": cast.BOOLEAN,
    "datetime": cast.TIME,
    "bag": cast.TEXT_LIST,
    "vector": cast.NUMBER_LIST,
}
_SHARED_TYPES = {  # a column that two features read in different ways
    frozenset((cast.NUMBER, cast.TEXT)): cast.NUMBER,
    frozenset((cast.NUMBER, cast.INTEGER)): cast.INTEGER,
    frozenset((cast.TEXT, cast.INTEGER)): cast.INTEGER,
}


def wanted(config: Config, *, labelled: bool = True) -> Wanted:
    """Returns the columns that a config reads, with or without those that only training needs.

    Raises:
        UserError: two features read one column as types that don't go together.
    """
    types: dict[str, pa.DataType] = {}
    readers: dict[str, str] = {}
    keep: set[str] = set()

    def want(column: str, kind: pa.DataType, reader: str) -> None:
        known = types.get(column)
        if known is not None and known != kind:
            both = frozenset((known, kind))
            if both not in _SHARED_TYPES:
                raise UserError(
                    f"column {column!r} is read by {readers[column]} as {cast.describe(known)} "
                    f"and by {reader} as {cast.describe(kind)}; copy it under another name in the data"
                )
            kind = _SHARED_TYPES[both]
        types[column] = kind
        readers.setdefault(column, reader)

    for feature in config.features:
        if feature.kind == "cross":
            continue
        kind = _FEATURE_TYPES[feature.kind]
        want(feature.source_column, kind, f"feature {feature.name!r}")
        if kind == cast.TEXT:
            keep.add(feature.source_column)
        if feature.kind == "bag" and feature.weights:
            want(feature.weights, cast.NUMBER_LIST, f"feature {feature.name!r}")
    labels: tuple[str, ...] = ()
    if labelled:
        labels = (config.label.column,) if isinstance(config.label.column, str) else config.label.column
        for label in labels:
            want(label, cast.TEXT if config.task in ("binary", "multiclass") else cast.NUMBER, "label.column")
        if config.data.weight:
            want(config.data.weight, cast.NUMBER, "data.weight")
    if config.data.key and config.data.key not in types:
        want(config.data.key, cast.TEXT, "data.key")
        keep.add(config.data.key)
    if labelled:
        for column in config.report.slice_by:
            if column not in types:
                want(column, cast.TEXT, "report.slice_by")
                keep.add(column)
    return Wanted(types, frozenset(keep - set(labels)), labels, config.label.missing == "fail")


def wanted_types(config: Config) -> dict[str, pa.DataType]:
    """Returns the columns that a config reads, with the Arrow types that `batches()` gives them in.

    numeric, weight and regression or multilabel label: float64 · categorical, hashed, key, class label and
    slice_by: dictionary<int32, string> · integer: int64 · boolean: bool · datetime: timestamp[us, UTC] ·
    bag: list<string> · vector and bag weights: list<float32>.

    A categorical, hashed, key or slice_by column that a file with types stores as integers is given as int64
    (see `Source.schema`); a column that is both numeric and categorical is given as a number. Compare
    categories by their text form (`cast.text_form`), which is the same for all of these.
    """
    return dict(wanted(config).types)


@dataclass
class Splits:
    """The rows of a config: one source a split; None where the config asks for none."""

    train: Source
    validation: Source | None
    test: Source | None

    @property
    def sources(self) -> list[Source]:
        """The splits that there are, in order."""
        return [source for source in (self.train, self.validation, self.test) if source is not None]

    def describe(self) -> list[str]:
        """Returns a line a split for the log: rows given and dropped so far."""
        return [f"{source.name}: {source.counts()}" for source in self.sources]


def open_splits(config: Config, memory: str | None = None) -> Splits:
    """Opens the train, validation and test rows of a config; reads no rows yet, or few.

    Args:
        config: the run's config.
        memory: file in which a store keeps what a restart of the run needs; None: nothing is kept.

    Raises:
        UserError: a source, a file or a column isn't there, or the split can't be made.
    """
    asked = wanted(config)
    split = config.data.split
    splitter = make_splitter(split)
    if splitter is None:
        folders = (config.data.source, split.validation_source, split.test_source)
        named = zip(folders, NAMES, strict=True)
        opened = [_open(paths, config, asked, name, memory) if paths else None for paths, name in named]
        _check_disjoint([source for source in opened if source is not None])
        train, validation, test = opened
    else:
        files = _open(config.data.source, config, asked, NAMES[TRAIN], memory)
        train = files.share(NAMES[TRAIN], splitter, TRAIN)
        validation = (
            files.share(NAMES[VALIDATION], splitter, VALIDATION) if splitter.has[VALIDATION] else None
        )
        test = files.share(NAMES[TEST], splitter, TEST) if splitter.has[TEST] else None
        if split.by == "column" and test is not None and not test.any_rows():
            test = None  # a column with the two values for train and validation is a whole split too
    assert train is not None  # data.source is never empty
    return Splits(train, validation, test)


def open_rows(
    source: str | Sequence[str], config: Config, *, labelled: bool = False, keep: Sequence[str] = ()
) -> Source:
    """Opens rows without a split, such as those to predict or another test set.

    Args:
        source: as `data.source`.
        config: says how files are read and which columns there must be.
        labelled: whether label and weight are read too; without, rows lacking a label are kept.
        keep: more columns to read, as text (stored integers stay integers).

    Raises:
        UserError: see `open_splits`.
    """
    sources = (source,) if isinstance(source, str) else tuple(source)
    asked = wanted(config, labelled=labelled)
    more = {name: cast.TEXT for name in keep if name not in asked.types}
    asked = replace(asked, types={**asked.types, **more}, keep_integers=asked.keep_integers | more.keys())
    return _open(sources, config, asked, ", ".join(sources))


class SplitSource(Source, Protocol):
    """What `open_splits` needs of a store."""

    def share(self, name: str, splitter: Splitter, code: int) -> SplitSource:
        """Returns the rows of one split."""
        ...

    def any_rows(self) -> bool:
        """Returns whether there is a row at all."""
        ...

    def identities(self) -> set[str]:
        """Returns what can't be in two splits: the files, or the table."""
        ...


def _open(
    sources: Sequence[str], config: Config, asked: Wanted, name: str, memory: str | None = None
) -> SplitSource:
    """Opens a store by the form of its name: the one place that knows which kinds there are."""
    tables = [source.startswith(("bigquery://", "bq://")) for source in sources]
    if all(tables):
        from trainer.data.bigquery import open_tables

        return open_tables(sources, config, asked, name, memory)
    if any(tables):
        raise UserError(f"data source {', '.join(sources)}: files and tables don't go together; use one kind")
    from trainer.data.rows import open_files

    return open_files(sources, config.data, asked, name)


def _check_disjoint(sources: Sequence[SplitSource]) -> None:
    for place, first in enumerate(sources):
        for second in sources[place + 1 :]:
            common = first.identities() & second.identities()
            if common:
                raise UserError(f"{min(common)}: is in both the {first.name} and the {second.name} split")
