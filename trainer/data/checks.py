"""Checks of rows: broken records, weights, leaks of the label and between splits. Adopters: leave."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.data import cast
from trainer.errors import UserError, nearest

_LOG = logging.getLogger("trainer")
_SHOWN = 5  # skipped records that are logged one by one


class BadRecords:
    """Counts the records that can't be read, each once however often its file is read.

    Safe to use from several threads.
    """

    def __init__(self, *, skip: bool, limit: int) -> None:
        """Creates the count.

        Args:
            skip: whether such a record is skipped (data.on_bad_record=skip) or an error.
            limit: skipped records beyond which it is an error all the same.
        """
        self.skip = skip
        self._limit = limit
        self._seen: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Number of different records skipped so far."""
        return len(self._seen)

    def seen(self) -> list[tuple[str, int]]:
        """Returns (file, row) of each record skipped so far."""
        with self._lock:
            return sorted(self._seen)

    def add(self, file: str, row: int, message: Callable[[], str]) -> bool:
        """Takes note of a record that can't be read.

        Args:
            file: path of its file.
            row: its number in the file.
            message: makes the sentence about it; called only when it is shown.

        Returns:
            Whether it is the first time, so that two splits of one file don't both count it.

        Raises:
            UserError: records are not skipped, or too many are.
        """
        if not self.skip:
            raise UserError(message())
        with self._lock:
            if (file, row) in self._seen:
                return False
            self._seen.add((file, row))
            count = len(self._seen)
        if count <= _SHOWN:
            _LOG.warning("skipped a record: %s", message())
        if count > self._limit:
            raise UserError(
                f"more than {self._limit} records can't be read (data.max_bad_records); "
                f"the last one: {message()}"
            )
        return True


# --- columns ----------------------------------------------------------------------------------------


def missing_column(file: str, column: str, have: Iterable[str], like: str = "") -> UserError:
    """Returns the error for a column that a file lacks, with the nearest name that it has."""
    names = list(have)
    other = f" that {like} has" if like else ""
    close = nearest(column, names)
    listing = "" if close else f"; it has {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"
    return UserError(f"{file}: no column {column!r}{other}{close}{listing}")


def check_weights(values: np.ndarray, column: str, where: str) -> None:
    """Checks the weights of rows.

    Args:
        values: float [rows].
        column: name of the weight column.
        where: what messages call the rows.

    Raises:
        UserError: a weight is missing, negative or not finite.
    """
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise UserError(
            f"{where}: weight column {column!r} has {int(bad.sum())} value(s) that are missing, negative "
            f"or not finite; the first is {values[first]} in row {first + 1} of them; expected a number >= 0"
        )


# --- leaks ------------------------------------------------------------------------------------------


def rank_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Returns the area under the ROC curve of `scores`, ties counted half.

    Mann-Whitney U over ranks: AUC = (R1 - n1 (n1 + 1) / 2) / (n1 n0), with R1 the sum of the mean ranks of
    the positive rows.

    Args:
        scores: float [rows], without NaN.
        positive: bool [rows].

    Returns:
        The area, or NaN when one of the two classes has no row.
    """
    ones = int(positive.sum())
    zeros = len(positive) - ones
    if not ones or not zeros:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank = last - (counts - 1) / 2.0
    total = float(mean_rank[inverse][positive].sum())
    return (total - ones * (ones + 1) / 2.0) / (ones * float(zeros))


def _scores(column: pa.Array, positive: np.ndarray) -> np.ndarray | None:
    """Returns the best single-column scores of rows: the number itself, or the class share of each text."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    if pa.types.is_floating(kind) or pa.types.is_integer(column.type) or pa.types.is_boolean(kind):
        values = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.where(np.isnan(values), -np.inf, values)
    if not (pa.types.is_dictionary(kind) or pa.types.is_string(kind)):
        return None
    return _shares(cast.text_form(column), positive)


def _shares(column: pa.DictionaryArray, positive: np.ndarray) -> np.ndarray:
    """Returns for each row the share of positives among the OTHER rows with its value.

    Leaving the row itself out keeps a column of nearly unique values, such as a name, from looking perfect.
    """
    plain = column.dictionary_decode().dictionary_encode(null_encoding="encode")
    values = plain.indices.to_numpy(zero_copy_only=False)
    rows = np.bincount(values)[values]
    ones = np.bincount(values, weights=positive)[values]
    share = float(positive.mean())
    return (ones - positive + share) / (rows - 1 + 1.0)


def telling_columns(
    table: pa.Table, label: np.ndarray, columns: Sequence[str], threshold: float = 0.98
) -> dict[str, float]:
    """Finds columns that alone give the label away, which mostly means that they were made from it.

    Args:
        table: a sample of train rows.
        label: int or float [rows]: class numbers; for a regression target pass it cut at its median. With
            more than two classes each is held against all others, and the best counts.
        columns: columns of `table` to look at; lists are passed over.
        threshold: AUC above which a column counts.

    Returns:
        Column -> AUC (0.5 to 1), the highest first.
    """
    found: dict[str, float] = {}
    for name in columns:
        column = table.column(name)
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
        best = 0.0
        for value in np.unique(label)[:20]:
            positive = label == value
            scores = _scores(array, positive)
            if scores is None:
                break
            area = rank_auc(scores, positive)
            if not np.isnan(area):
                best = max(best, area, 1 - area)
        if best > threshold:
            found[name] = best
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def warn_telling_columns(table: pa.Table, label: np.ndarray, columns: Sequence[str]) -> dict[str, float]:
    """Logs a warning for each column that alone gives the label away (AUC above 0.98); returns them."""
    found = telling_columns(table, label, columns)
    for name, area in found.items():
        _LOG.warning(
            "column %r alone tells the label (AUC %.3f in a sample of %d train rows): "
            "is it known at the time of the prediction?",
            name,
            area,
            table.num_rows,
        )
    return found


class Overlap:
    """Finds keys, or whole rows, that are in more than one split.

    Keeps 8 bytes for each distinct key or row, so millions of them fit in memory.
    """

    def __init__(self) -> None:
        self._hashes: dict[str, list[np.ndarray]] = {}

    def add(self, split: str, batch: pa.RecordBatch) -> None:
        """Adds the rows of a split; two rows are the same when all columns of `batch` are equal."""
        self._hashes.setdefault(split, []).append(row_hashes(batch))

    def found(self) -> dict[tuple[str, str], int]:
        """Returns (split, other split) -> number of distinct entries that both hold."""
        distinct = {split: np.unique(np.concatenate(parts)) for split, parts in self._hashes.items()}
        names = list(distinct)
        pairs = {}
        for place, first in enumerate(names):
            for second in names[place + 1 :]:
                common = len(np.intersect1d(distinct[first], distinct[second], assume_unique=True))
                if common:
                    pairs[first, second] = common
        return pairs


def row_hashes(batch: pa.RecordBatch) -> np.ndarray:
    """Returns a 64-bit hash of each row, over the text form of its columns.

    Distinct values are hashed once each (BLAKE2b), and a row's columns are then mixed, so that the same row
    has the same hash whatever file format it came from.

    Returns:
        uint64 [rows].
    """
    from trainer.data.split import hash_bits

    mixed = np.zeros(batch.num_rows, np.uint64)
    for column in batch.columns:
        if pa.types.is_list(column.type):
            column = pa.array([None if v is None else repr(v) for v in column.to_pylist()], pa.string())
        encoded = cast.text_form(column)
        texts = [text or b"" for text in encoded.dictionary.cast(pa.binary()).to_pylist()]
        hashes = hash_bits([*texts, b""], "")
        values = hashes[pc.fill_null(encoded.indices, len(texts)).to_numpy(zero_copy_only=False)]
        with np.errstate(over="ignore"):  # multiplication modulo 2^64 is meant
            mixed = (mixed ^ values) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
    return mixed
