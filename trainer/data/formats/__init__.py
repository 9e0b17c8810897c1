"""What every file reader offers: parts of a file, read as Arrow record batches. Adopters: leave.

A reader gives columns as the file stores them, under their dotted names; `cast.py` then makes them the
types that the features ask for. A value that can't be read is the reader's business only where the whole
row is broken (a CSV line with too many fields); it then calls `bad` with the row and the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from trainer.config import CsvConfig

# Called for a broken row with (row number from 1, reason): raises, or counts the row as skipped.
BadRow = Callable[[int, str], None]


@dataclass(frozen=True)
class ReadOptions:
    """How files are read.

    Attributes:
        wanted: column -> Arrow type that the features ask for; a reader may use it as a hint.
        chunk_rows: most rows of a record batch.
        csv: how CSV files are written.
        threads: whether a reader may use Arrow's own thread pool.
    """

    wanted: Mapping[str, pa.DataType]
    chunk_rows: int
    csv: CsvConfig
    threads: bool = True


@dataclass(frozen=True)
class Part:
    """A piece of a file that can be read by itself.

    Attributes:
        label: what the part is called in messages, such as "row groups 3-5"; "" for the whole file.
        first_row: number of rows of the file before this part.
        rows: number of rows, or None where only reading tells.
        place: the reader's own address of the part.
    """

    label: str
    first_row: int
    rows: int | None
    place: Any = None


@dataclass(frozen=True)
class Bounds:
    """Smallest and largest value of a column in a part, and its number of nulls (from file statistics)."""

    low: Any
    high: Any
    nulls: int


class Reader(Protocol):
    """An opened file."""

    optional_columns: bool  # whether a row may leave a column out (JSON lines, tf.Example)
    typed: bool  # whether the file says which columns are integers, so that categories may stay integers

    def schema(self) -> dict[str, pa.DataType]:
        """Stored columns (dotted names for nested fields) and types; pa.null() where not known yet."""
        ...

    def parts(self) -> list[Part]:
        """The parts of the file, in order."""
        ...

    def bounds(self, part: Part, column: str) -> Bounds | None:
        """Statistics of a column in a part, or None where the file has none."""
        ...

    def read(
        self, part: Part, columns: Sequence[str], bad: BadRow
    ) -> Iterator[tuple[pa.RecordBatch, Sequence[int] | int]]:
        """Yields record batches with exactly `columns`, and the file's row number (from 0) of each row.

        The second item is the number of the batch's first row where rows are consecutive, else one a row.
        """
        ...

    def locate(self, row: int) -> str:
        """Names row `row` (from 0) for a person, e.g. "a.csv:17"."""
        ...
