"""The raw rows that the parity gate compares: a sample, and probes made from it. Adopters: may add probes.

A sample alone shows what is frequent; what breaks in serving is rare: a column that is missing, a value that
training never saw, empty text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.errors import TrainingError

if TYPE_CHECKING:
    import pyarrow as pa

    from trainer.features import Features


def sample(features: Features, rows: pa.Table, count: int) -> tuple[pa.Table, list[str]]:
    """Returns the rows to compare and where each comes from: rows of the table, evenly spaced, and probes.

    Args:
        features: The fitted features.
        rows: Raw rows; only the columns that the features read are kept.
        count: Rows of the table to take at most (probes come on top).

    Raises:
        TrainingError: There are no rows.
    """
    import pyarrow as pa

    if not rows.num_rows:
        raise TrainingError(
            "parity gate: there are no rows to compare; expected rows of the validation split"
        )
    table = rows.select([raw.name for raw in features.raw_inputs])
    table = pa.table({name: _decoded(table.column(name)) for name in table.column_names})
    places = np.unique(np.linspace(0, table.num_rows - 1, min(count, table.num_rows)).astype(np.int64))
    chosen = table.take(pa.array(places))
    origins = [f"row {place} of the sample" for place in places]
    probes = _probes(chosen)
    made = [pa.table(values, schema=chosen.schema) for _, values in probes]
    return pa.concat_tables([chosen, *made]).combine_chunks(), origins + [origin for origin, _ in probes]


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _probes(table: pa.Table) -> list[tuple[str, dict[str, Any]]]:
    """Returns made rows: the fullest row of the table with one thing changed."""
    nulls = sum(np.asarray(column.is_null().to_numpy()).astype(int) for column in table.columns)
    base = {name: [value] for name, value in table.slice(int(np.argmin(nulls)), 1).to_pylist()[0].items()}
    names = table.column_names
    probes = [(f"probe: {name} missing", {**base, name: [None]}) for name in names]
    for name in names:
        kind = table.schema.field(name).type
        for what, value in _values(kind):
            probes.append((f"probe: {name} {what}", {**base, name: [value]}))
    half = set(names[::2])
    probes.append(("probe: every other column missing", {n: base[n] if n in half else [None] for n in names}))
    probes.append(("probe: all columns missing", {name: [None] for name in names}))
    return probes


def _values(kind: pa.DataType) -> list[tuple[str, Any]]:
    import pyarrow as pa

    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [
            ("empty", ""),
            ("never seen", "\u00fcnseen-\u5024-7f3a"),
            ("with blanks around", " blank "),
        ]
    if pa.types.is_boolean(kind):
        return [("true", True), ("false", False)]
    if pa.types.is_integer(kind):
        return [("0", 0), ("100, perhaps never seen", 100)]
    if pa.types.is_floating(kind):
        return [("0", 0.0), ("-1.5", -1.5), ("not a number", float("nan")), ("infinite", float("inf"))]
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_string(kind.value_type):
        return [("empty", []), ("with unseen entries", ["\u00fcnseen", "", None] * 20)]
    return []
