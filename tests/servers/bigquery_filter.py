"""Row filters of the local BigQuery server: a small part of SQL, evaluated on Arrow. Adopters: leave.

OR, AND, NOT, parentheses; =, !=, <>, <, <=, >, >=; IS [NOT] NULL; [NOT] IN; [NOT] BETWEEN; columns (dotted,
in backquotes or not, in any case); numbers, texts, TRUE, FALSE; DATE '...', CAST('...' AS DATE) and the like;
MOD and IS_NAN. NULL is neither true nor false, as in SQL.
"""

from __future__ import annotations

import datetime
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)
  | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
  | (?P<name>(?:`[^`]+`|[A-Za-z_]\w*)(?:\.(?:`[^`]+`|[A-Za-z_]\w*))*)
  | (?P<sign><=|>=|!=|<>|[=<>(),-])
)""",
    re.VERBOSE,
)
_COMPARE = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_TYPES = {
    "DATE": pa.date32(),
    "DATETIME": pa.timestamp("us"),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "INT64": pa.int64(),
    "FLOAT64": pa.float64(),
    "STRING": pa.string(),
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class FilterError(ValueError):
    """The filter can't be understood, or does not fit the table."""


def apply(table: pa.Table, restriction: str) -> pa.Table:
    """Returns the rows of a table for which a filter is true.

    Raises:
        FilterError: see the class.
    """
    if not restriction.strip():
        return table
    return table.filter(_Parser(table, restriction).whole())


class _Parser:
    def __init__(self, table: pa.Table, text: str) -> None:
        self._table = table
        self._tokens: list[tuple[str, str]] = []
        self._place = 0
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise FilterError(f"Syntax error: Unexpected {text[position:].strip()[:20]!r}")
            self._tokens.append((str(match.lastgroup), match.group(str(match.lastgroup))))
            position = match.end()

    # --- tokens

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._place] if self._place < len(self._tokens) else ("end", "end of the filter")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._place += 1
        return token

    def _word(self, *words: str) -> bool:
        """Takes the next tokens if they are these words or signs."""
        found = [text.upper() for _, text in self._tokens[self._place : self._place + len(words)]]
        if found != list(words):
            return False
        self._place += len(words)
        return True

    def _expect(self, word: str) -> None:
        if not self._word(word):
            raise FilterError(f"Syntax error: Expected {word} but got {self._peek()[1]}")

    # --- conditions

    def whole(self) -> pa.Array:
        condition = self._either()
        if self._peek()[0] != "end":
            raise FilterError(f"Syntax error: Unexpected {self._peek()[1]}")
        if isinstance(condition, pa.Scalar):
            condition = pa.array([condition.as_py()] * self._table.num_rows, pa.bool_())
        if not pa.types.is_boolean(condition.type):
            raise FilterError("Row filter must be of type BOOL")
        return condition

    def _either(self) -> Any:
        left = self._both()
        while self._word("OR"):
            left = pc.or_kleene(left, self._both())
        return left

    def _both(self) -> Any:
        left = self._negated()
        while self._word("AND"):
            left = pc.and_kleene(left, self._negated())
        return left

    def _negated(self) -> Any:
        if self._word("NOT"):
            return pc.invert(self._negated())
        return self._condition()

    def _condition(self) -> Any:
        left = self._operand()
        if self._word("IS", "NOT", "NULL"):
            return pc.is_valid(left)
        if self._word("IS", "NULL"):
            return pc.is_null(left)
        inverted = self._word("NOT")
        if self._word("IN"):
            self._expect("(")
            found = self._compare("=", left, self._operand())
            while self._word(","):
                found = pc.or_kleene(found, self._compare("=", left, self._operand()))
            self._expect(")")
            return pc.invert(found) if inverted else found
        if self._word("BETWEEN"):
            low = self._compare(">=", left, self._operand())
            self._expect("AND")
            found = pc.and_kleene(low, self._compare("<=", left, self._operand()))
            return pc.invert(found) if inverted else found
        if inverted:
            raise FilterError(f"Syntax error: Unexpected {self._peek()[1]} after NOT")
        kind, sign = self._peek()
        if kind == "sign" and sign in _COMPARE:
            self._next()
            return self._compare(sign, left, self._operand())
        return left

    @staticmethod
    def _compare(sign: str, left: Any, right: Any) -> Any:
        try:
            if pa.types.is_decimal(left.type) and pa.types.is_floating(right.type):
                right = _as(right, pa.decimal128(38, 9))
            elif left.type != right.type and not (_number(left.type) and _number(right.type)):
                # A literal takes the type of what it is compared with; numbers compare as they are.
                if isinstance(right, pa.Scalar):
                    right = _as(right, left.type)
                elif isinstance(left, pa.Scalar):
                    left = _as(left, right.type)
            return _COMPARE[sign](left, right)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise FilterError(
                f"No matching signature for operator {sign} for argument types: {left.type}, {right.type}"
            ) from error

    # --- values

    def _operand(self) -> Any:
        kind, text = self._next()
        if kind == "sign" and text == "-":
            kind, text = self._next()
            text = f"-{text}"
        if kind == "number":
            return pa.scalar(float(text)) if set(text) & set(".eE") else pa.scalar(int(text))
        if kind == "text":
            return pa.scalar(_unquoted(text))
        if (kind, text) == ("sign", "("):
            inner = self._either()
            self._expect(")")
            return inner
        if kind != "name":
            raise FilterError(f"Syntax error: Unexpected {text}")
        return self._named(text)

    def _named(self, text: str) -> Any:
        word = text.upper()
        if word in ("TRUE", "FALSE"):
            return pa.scalar(word == "TRUE")
        if word == "NULL":
            return pa.scalar(None, pa.bool_())
        if word in ("SELECT", "WHERE"):
            raise FilterError(f"Syntax error: Unexpected keyword {word}")
        if word in _TYPES and self._peek()[0] == "text":
            return _as(pa.scalar(_unquoted(self._next()[1])), _TYPES[word])
        if self._word("("):
            return self._function(word)
        return self._column(text.replace("`", ""))

    def _function(self, word: str) -> Any:
        first = self._operand()
        if word == "CAST":
            self._expect("AS")
            kind = self._next()[1].upper()
            if kind not in _TYPES:
                raise FilterError(f"Type not found: {kind}")
            result = _as(first, _TYPES[kind])
        elif word == "MOD":
            self._expect(",")
            divisor = self._operand()
            result = pc.subtract(first, pc.multiply(pc.divide(first, divisor), divisor))
        elif word == "IS_NAN":
            result = pc.is_nan(first)
        else:
            raise FilterError(f"Function not found: {word}")
        self._expect(")")
        return result

    def _column(self, name: str) -> pa.Array:
        array: Any = self._table
        kind: Any = self._table.schema
        for part in name.split("."):
            names = [field.name for field in kind]
            place = next((i for i, known in enumerate(names) if known.lower() == part.lower()), None)
            if place is None:
                raise FilterError(f"Unrecognized name: {name}")
            array = array.column(place) if isinstance(array, pa.Table) else pc.struct_field(array, [place])
            kind = kind.field(place).type
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1])


def _as(value: Any, kind: pa.DataType) -> Any:
    """Casts a literal (or a column) to a type, as SQL reads dates and times."""
    if not isinstance(value, pa.Scalar) or not pa.types.is_string(value.type):
        return pc.cast(value, kind)
    text = value.as_py()
    try:
        if pa.types.is_date(kind):
            return pa.scalar(datetime.date.fromisoformat(text), kind)
        if pa.types.is_timestamp(kind):
            moment = datetime.datetime.fromisoformat(text)
            if moment.tzinfo is None and kind.tz:
                moment = moment.replace(tzinfo=datetime.timezone.utc)
            return pa.scalar(moment, kind)
    except ValueError as error:
        raise FilterError(f"Invalid {kind} value: {text!r}") from error
    return pc.cast(value, kind)
