"""Arrow tables as BigQuery would store them, for the local BigQuery server. Adopters: leave."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

LONG_AGO = datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Returns the Arrow type in which BigQuery hands out a column that was loaded from another Arrow type."""
    if pa.types.is_dictionary(kind):
        return stored_type(kind.value_type)
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_decimal(kind):
        numeric = kind.scale <= 9 and kind.precision - kind.scale <= 29
        return pa.decimal128(38, 9) if numeric else pa.decimal256(76, 38)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(stored_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([_stored_field(kind.field(i)) for i in range(kind.num_fields)])
    return kind


def _stored_field(one: pa.Field) -> pa.Field:
    metadata = one.metadata
    if pa.types.is_timestamp(one.type) and one.type.tz is None:
        # BigQuery marks DATETIME like this; for JSON and GEOGRAPHY the caller says so in the same way.
        metadata = {b"ARROW:extension:name": b"google:sqlType:datetime"}
    return pa.field(one.name, stored_type(one.type), one.nullable, metadata)


def as_stored(table: pa.Table) -> pa.Table:
    """Returns a table with the types that BigQuery would hand it out in."""
    schema = pa.schema([_stored_field(one) for one in table.schema])
    return table.cast(schema) if table.schema != schema else table


def select(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Returns the selected columns in the table's order; dotted names take fields out of records.

    Raises:
        KeyError: a name that the table doesn't have.
    """
    if not names:
        return table
    wanted = {name.lower() for name in names}
    taken: set[str] = set()
    fields, arrays = [], []
    for one, column in zip(table.schema, table.columns, strict=True):
        pruned = _pruned(one, one.name.lower(), wanted, taken)
        if pruned is not None:
            fields.append(pruned)
            arrays.append(column if pruned.type == one.type else _take_fields(column, pruned.type))
    if unknown := wanted - taken:
        raise KeyError(", ".join(sorted(unknown)))
    return pa.table(arrays, schema=pa.schema(fields)) if fields else table.select([])


def _pruned(one: pa.Field, path: str, wanted: set[str], taken: set[str]) -> pa.Field | None:
    if path in wanted:
        taken.add(path)
        return one
    if not pa.types.is_struct(one.type):
        return None
    inner = [one.type.field(i) for i in range(one.type.num_fields)]
    kept = [_pruned(field, f"{path}.{field.name.lower()}", wanted, taken) for field in inner]
    found = [field for field in kept if field is not None]
    return pa.field(one.name, pa.struct(found), one.nullable) if found else None


def _take_fields(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    def take(array: pa.StructArray, kind: pa.DataType) -> pa.Array:
        if not pa.types.is_struct(kind):
            return array
        fields = [kind.field(i) for i in range(kind.num_fields)]
        inner = [take(array.field(field.name), field.type) for field in fields]
        return pa.StructArray.from_arrays(inner, fields=fields, mask=array.is_null())

    return pa.chunked_array([take(chunk, kind) for chunk in column.chunks], kind)


@dataclass
class Version:
    """A table from a moment on: its blocks of rows, which streams never cut."""

    since: datetime.datetime
    blocks: list[pa.Table]

    @property
    def schema(self) -> pa.Schema:
        return self.blocks[0].schema


@dataclass
class StoredTable:
    """A table with its history.

    Attributes:
        kind: TABLE, VIEW, MATERIALIZED_VIEW or EXTERNAL; only the first can be read.
        versions: from the oldest on.
    """

    kind: str = "TABLE"
    versions: list[Version] = field(default_factory=list)

    def write(self, blocks: Sequence[pa.Table], since: datetime.datetime = LONG_AGO) -> None:
        """Replaces the rows from a moment on.

        Args:
            blocks: the rows; all with the same columns.
            since: the moment.
        """
        self.versions.append(Version(since, [as_stored(block) for block in blocks]))
        self.versions.sort(key=lambda version: version.since)

    def at(self, moment: datetime.datetime | None) -> Version | None:
        """Returns the version at a moment, by default the newest; None before the first."""
        known = [version for version in self.versions if moment is None or version.since <= moment]
        return known[-1] if known else None


def blocks_of(table: pa.Table, rows: int) -> list[pa.Table]:
    """Cuts a table to blocks of `rows` rows."""
    return [table.slice(start, rows) for start in range(0, table.num_rows, rows)] or [table]
