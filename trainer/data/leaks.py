"""Leak guards before training: rows or keys in two splits, columns that are the answer. Adopters: leave."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa

from trainer.config import Config
from trainer.data import checks
from trainer.data.encode import Encoder
from trainer.data.source import Source, Splits
from trainer.features import Features

log = logging.getLogger("trainer")

SAMPLE_ROWS = 20_000  # train rows that are searched for columns that tell the label
MOST_ROWS = 2_000_000  # above this the splits are not read once more to look for rows that they share


def head(source: Source, columns: list[str], rows: int) -> pa.Table:
    """Returns `rows` rows of a source, or all where it has fewer, evenly spaced over what had to be read.

    Args:
        source: the rows of a split.
        columns: columns to read.
        rows: number of rows wanted.
    """
    batches, read = [], 0
    for batch in source.batches(columns):
        batches.append(batch)
        read += batch.num_rows
        if read >= 4 * rows:  # the first rows of sorted data are too much alike
            break
    table = pa.Table.from_batches(batches) if batches else source.schema.empty_table().select(columns)
    if table.num_rows > rows:
        places = np.unique(np.linspace(0, table.num_rows - 1, rows).astype(np.int64))
        table = table.take(pa.array(places))
    return table.unify_dictionaries()


def _warn_telling(splits: Splits, features: Features) -> None:
    encoder = Encoder(features)
    table = head(splits.train, list(encoder.columns), SAMPLE_ROWS)
    label = encoder(table).label
    assert label is not None
    if label.ndim == 2:
        label = label[:, 0]
    if features.label.task == "regression":
        label = (label > np.median(label)).astype(np.int64)
    scalar = [
        name for name in features.columns if not pa.types.is_nested(table.schema.field(name).type)
    ]  # fmt: skip
    checks.warn_telling_columns(table, label, scalar)


def _warn_overlap(what: str, splits: Splits, columns: list[str]) -> None:
    overlap = checks.Overlap()
    for source in splits.sources:
        for batch in source.batches(columns):
            overlap.add(source.name, batch)
    for (first, second), count in overlap.found().items():
        log.warning(
            "%s: %s %s in both %s and %s: figures of %s are too good for rows that were trained on",
            what,
            f"{count:,}",
            "is" if count == 1 else "are",
            first,
            second,
            second,
        )


def warn(config: Config, splits: Splits, features: Features, rows: int) -> None:
    """Logs a warning for each leak that it finds.

    Args:
        config: the run's config; data.leak_checks false leaves all of it out.
        splits: the splits.
        features: fitted features.
        rows: rows of all splits together.
    """
    if not config.data.leak_checks:
        return
    _warn_telling(splits, features)
    if len(splits.sources) < 2 or rows > MOST_ROWS:
        return
    if config.data.key:
        _warn_overlap(f"key column {config.data.key!r}", splits, [config.data.key])
    _warn_overlap("rows with the same features and label", splits, list(Encoder(features).columns))
