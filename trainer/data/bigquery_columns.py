"""Columns of a BigQuery table: names in any case, types, and the split as a row filter. Adopters: leave."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from trainer.config import SplitConfig
from trainer.data import cast
from trainer.data.bigquery_client import Table
from trainer.data.checks import missing_column
from trainer.data.nested import flat_schema
from trainer.data.source import Wanted
from trainer.data.split import TEST, TRAIN, VALIDATION
from trainer.data.times import parse_time
from trainer.errors import UserError

_UTC = datetime.timezone.utc


@dataclass(frozen=True)
class Column:
    """A column that a config reads.

    Attributes:
        name: as the config spells it.
        stored: as the table spells it; dotted for fields of records.
        kind: Arrow type in which BigQuery gives it.
    """

    name: str
    stored: str
    kind: pa.DataType


def find(names: Mapping[str, None] | list[str], schema: pa.Schema, table: Table) -> dict[str, Column]:
    """Finds columns of a table by name, without regard to case, as BigQuery does.

    Args:
        names: names as the config spells them, dotted for fields of records.
        schema: the table's columns.
        table: the table.

    Raises:
        UserError: a column isn't there.
    """
    known = flat_schema(schema)
    lower = {name.lower(): name for name in known}
    whole = {one.name.lower(): one for one in schema}
    found: dict[str, Column] = {}
    for name in names:
        stored = lower.get(name.lower())
        if stored is not None:
            found[name] = Column(name, stored, known[stored])
        elif name.lower() in whole:  # a record as a whole: refused with its type, not as unknown
            found[name] = Column(name, whole[name.lower()].name, whole[name.lower()].type)
        else:
            raise missing_column(str(table), name, known)
    return found


def sql_type(kind: pa.DataType) -> str:
    """Returns BigQuery's name of the type that it gives as an Arrow type."""
    if pa.types.is_list(kind):
        return f"ARRAY<{sql_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return "STRUCT"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz else "DATETIME"
    if pa.types.is_decimal(kind):
        return "NUMERIC" if kind.precision <= 38 else "BIGNUMERIC"
    names = {
        pa.int64(): "INT64",
        pa.float64(): "FLOAT64",
        pa.bool_(): "BOOL",
        pa.string(): "STRING",
        pa.binary(): "BYTES",
        pa.date32(): "DATE",
        pa.time64("us"): "TIME",
        pa.month_day_nano_interval(): "INTERVAL",
    }
    return names.get(kind, str(kind))


def resolve(asked: Wanted, columns: Mapping[str, Column], table: Table) -> dict[str, pa.DataType]:
    """Returns the type in which each wanted column is given: the config's, integers kept where they may be.

    Raises:
        UserError: a column is of a type from which the wanted one can't be made.
    """
    types: dict[str, pa.DataType] = {}
    for name, kind in asked.types.items():
        column = columns[name]
        if name in asked.keep_integers and pa.types.is_integer(column.kind):
            kind = cast.INTEGER
        if not _fits(column.kind, kind):
            raise UserError(
                f"{table}: column {name!r} is {sql_type(column.kind)}, where {cast.describe(kind)} is "
                f"wanted; {_way_out(column, kind)}"
            )
        types[name] = kind
    return types


def _fits(kind: pa.DataType, wanted: pa.DataType) -> bool:
    values = pa.array([], kind.value_type if pa.types.is_list(kind) and pa.types.is_list(wanted) else kind)
    element = wanted
    if pa.types.is_list(wanted) and pa.types.is_list(kind):
        element = cast.TEXT if wanted == cast.TEXT_LIST else cast.NUMBER
    try:
        cast.convert(values, element)
    except (cast.WrongTypeError, pa.ArrowException):
        return False
    return True


def _way_out(column: Column, wanted: pa.DataType) -> str:
    if pa.types.is_struct(column.kind):
        return f"name one of its fields, such as {column.stored}.{column.kind.field(0).name}"
    if pa.types.is_list(column.kind) and not pa.types.is_list(wanted):
        return "a list is read by the features bag and vector"
    to = {cast.NUMBER: "FLOAT64", cast.INTEGER: "INT64", cast.BOOLEAN: "BOOL", cast.TIME: "TIMESTAMP"}
    return (
        f"make a table with a column of another type, such as CAST({column.stored} AS "
        f"{to.get(wanted, 'STRING')})"
    )


# --- the split as a filter --------------------------------------------------------------------------


def split_filter(split: SplitConfig, code: int, column: Column) -> str:
    """Returns the row filter that leaves out most rows of the other splits, or "" where only the client can.

    It only ever drops rows of which it is certain that they are in another split. Rows without a value, or
    with one that names no split, stay in: the splitter on the client sees each row that comes and decides, so
    that the split, and its errors, are those of the same rows in files.

    Args:
        split: the split of the config.
        code: which part of it.
        column: the column that decides.
    """
    if split.by == "time":
        return _time_filter(split, code, column)
    if split.by == "column" and pa.types.is_string(column.kind):
        values = (split.train_value, split.validation_value, split.test_value)
        others = ", ".join(_text(value) for place, value in enumerate(values) if place != code)
        name = _quoted(column.stored)
        return f"({name} IS NULL OR NOT {name} IN ({others}))"
    return ""


def _time_filter(split: SplitConfig, code: int, column: Column) -> str:
    cuts = [split.validation_from, split.test_from]
    literals = [None if cut is None else _moment(cut, column.kind) for cut in cuts]
    if any(cut is not None and literal is None for cut, literal in zip(cuts, literals, strict=True)):
        return ""
    name = _quoted(column.stored)
    validation, test = literals
    if code == TRAIN:  # NOT >= rather than <: NaN is no moment, and the client has to see it
        return f"({name} IS NULL OR NOT {name} >= {validation})"
    if code == VALIDATION:
        return f"({name} >= {validation}" + (f" AND {name} < {test})" if test else ")")
    assert code == TEST
    return f"({name} >= {test})"


def _moment(text: str, kind: pa.DataType) -> str | None:
    """Returns a cut as a literal of the column's type, or None if it has none."""
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if numeric:
        try:
            number = float(text)
        except ValueError:
            return None
        return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)
    try:
        moment = parse_time(text)
    except ValueError:
        return None
    if pa.types.is_date(kind):
        # Dates are midnights: the first one that is not before the cut.
        day = moment.date()
        midnight = datetime.datetime(day.year, day.month, day.day, tzinfo=_UTC)
        if moment > midnight:
            day += datetime.timedelta(days=1)
        return f"CAST('{day.isoformat()}' AS DATE)"
    if pa.types.is_timestamp(kind):
        shown = moment.replace(tzinfo=None).isoformat(" ", "microseconds")
        return f"CAST('{shown}+00:00' AS TIMESTAMP)" if kind.tz else f"CAST('{shown}' AS DATETIME)"
    return None


def _quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def user_filters(restrictions: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the filters of data.row_restriction, checked as far as they can be here.

    Raises:
        UserError: one begins with WHERE, or is too long.
    """
    for text in restrictions:
        if text.strip().split(None, 1)[:1] and text.strip().split(None, 1)[0].upper() == "WHERE":
            raise UserError(
                f"data.row_restriction={text!r}: leave the word WHERE out; expected a condition such as "
                f"{text.strip()[5:].strip()!r}"
            )
        if len(text.encode()) > 1_000_000:
            raise UserError("data.row_restriction: is longer than the 1 MB that BigQuery takes")
    return tuple(text.strip() for text in restrictions if text.strip()) or ("",)


def joined(*conditions: str) -> str:
    """Joins conditions with AND."""
    given = [text for text in conditions if text]
    return given[0] if len(given) == 1 else " AND ".join(f"({text})" for text in given)
