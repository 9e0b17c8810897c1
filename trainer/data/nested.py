"""Fields inside records, under dotted names such as `geo.lat`. Adopters: leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def flat_schema(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Returns name -> type of all columns; a record is replaced by its fields under dotted names."""
    columns: dict[str, pa.DataType] = {}

    def visit(prefix: str, fields: Sequence[pa.Field]) -> None:
        for field in fields:
            name = prefix + field.name
            if pa.types.is_struct(field.type):
                visit(name + ".", [field.type.field(i) for i in range(field.type.num_fields)])
            else:
                columns.setdefault(name, field.type)

    visit("", list(schema))
    return columns


def duplicates(names: Sequence[str]) -> list[str]:
    """Returns the names that occur more than once."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def extract(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Returns a batch with exactly `columns`, taken from inside records where their names are dotted.

    A field of a record that is null is null.
    """
    if list(batch.schema.names) == list(columns):
        return batch
    return pa.RecordBatch.from_arrays([column(batch, name) for name in columns], names=list(columns))


def sound(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch after a look at all its offsets, indices and texts.

    Arrow trusts what a file says of itself; text that isn't UTF-8 and offsets that point nowhere would fail,
    or crash, whoever reads the values later.

    Raises:
        ValueError: a column holds what its type doesn't allow.
    """
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        try:
            if pa.types.is_dictionary(array.type):
                _check_dictionary(array)
            else:
                array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise ValueError(f"column {name!r}: {error}") from error
    return batch


def _check_dictionary(array: pa.DictionaryArray) -> None:
    """Does what `array.validate(full=True)` does, which takes ten times as long to compare the indices."""
    array.validate()
    array.indices.validate(full=True)
    array.dictionary.validate(full=True)
    indices = array.indices.drop_null().to_numpy()
    if len(indices) and not 0 <= indices.min() <= indices.max() < len(array.dictionary):
        raise pa.ArrowInvalid(f"an index is beyond the {len(array.dictionary)} values of its dictionary")


def column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Returns the column `name` (dotted for nested fields) of a batch."""
    names = batch.schema.names
    if name in names:
        return batch.column(names.index(name))
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):  # a record's own name may hold dots
        root = ".".join(parts[:cut])
        if root in names:
            array = batch.column(names.index(root))
            for part in parts[cut:]:
                array = pc.struct_field(array, part)
            return array
    raise KeyError(name)
