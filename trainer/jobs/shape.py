"""A job file against the API's own types: field names, enums and kinds of values. Adopters: leave.

The types are in tables/api.json. What is nearly right is read as what was meant, so that one slip of the
pen is one finding and not ten.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from trainer.errors import nearest
from trainer.jobs import tables
from trainer.jobs.document import Value, joined

# (rule, the field, why it is wrong, what to write instead)
Note = Callable[[str, Value, str, str], None]

_MOST = 2**63  # whole numbers of the API are smaller
_SURE = 0.75  # likeness of a word that is read as the one that was meant
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# The task of a training pipeline that tunes: not a type of the API, but a part of one.
_TUNING_TASK = ("studySpec", "trialJobSpec", "maxTrialCount", "parallelTrialCount", "maxFailedTrialCount")


def fields(message: str) -> dict[str, str]:
    """Returns the type of each field of a message, by the API's JSON name."""
    if message == "TuningTask":
        every = fields("HyperparameterTuningJob")
        return {name: every[name] for name in _TUNING_TASK}
    found: dict[str, str] = tables.load("api")["messages"][message]
    return found


def camel(name: str) -> str:
    """Returns a field's JSON name: `worker_pool_specs` -> `workerPoolSpecs`."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def close(name: str, valid: Iterable[str]) -> str | None:
    """Returns the one of `valid` that `name` surely means, or None."""
    lower = {choice.lower().replace("-", "_"): choice for choice in valid}
    if name.lower().replace("-", "_") in lower:
        return lower[name.lower().replace("-", "_")]
    found = difflib.get_close_matches(name, list(lower.values()), n=1, cutoff=_SURE)
    return found[0] if found else None


def seconds(text: str) -> float | None:
    """Returns the seconds of a duration as the API writes it (`3600s`), or None when it is none."""
    return float(text[:-1]) if re.fullmatch(r"\d+(\.\d{1,9})?s", text) else None


def canonical(value: Value, message: str, note: Note) -> Value:
    """Returns a message with the API's JSON names and typed scalars; what doesn't fit is noted and left out.

    Args:
        value: the message as it stands in the file.
        message: name of its type.
        note: told of each mistake.
    """
    if value.data is None:
        return replace(value, data={})
    if not isinstance(value.data, dict):
        note("wrong-type", value, f"got {_got(value)}", f"write the fields of a {message} below it")
        return replace(value, data={})
    known = fields(message)
    result: dict[str, Value] = {}
    for written, item in value.data.items():
        name: str | None = written if written in known else camel(written)
        if name not in known:
            name = close(camel(written), known)
            hint = (
                nearest(camel(written), known) or f"; a {_words(message)} has {', '.join(_writable(known))}"
            )
            note("unknown-field", item, f"no such field in {_words(message)}", _instead(hint))
            if name is None or name in value.data:
                continue
        if name in result:
            note("unknown-field", item, f"{name} is given twice", f"keep one spelling: {name}")
            continue
        kind = known[name]
        if kind.startswith("-"):
            note("output-only", item, "only the service writes this field", "leave it out")
            continue
        typed = _field(item, kind, note)
        if typed is not None:
            result[name] = typed
    _one_of(value, message, result, note)
    return replace(value, data=result)


def _instead(hint: str) -> str:
    """Turns `; did you mean 'x'?` into what to write."""
    meant = re.fullmatch(r"; did you mean '(.+)'\?", hint)
    return f"write {meant[1]}" if meant else hint.removeprefix("; ")


def _words(message: str) -> str:
    return "the task of a tuning pipeline" if message == "TuningTask" else message.rpartition(".")[2]


def _writable(known: dict[str, str]) -> list[str]:
    return [name for name, kind in known.items() if not kind.startswith("-")]


def _one_of(value: Value, message: str, result: dict[str, Value], note: Note) -> None:
    for group in tables.load("api")["oneofs"].get(message, {}).values():
        given = [name for name in group if name in result]
        if len(given) > 1:
            second = result[given[1]]
            note(
                "one-of",
                second,
                f"{given[0]} and {given[1]} exclude each other",
                "keep one of them",
            )
            del result[given[1]]


def _field(value: Value, kind: str, note: Note) -> Value | None:
    if value.data is None:  # a field with nothing after it is a field that is not set
        return None
    if kind.endswith("[]"):
        if not isinstance(value.data, list):
            note(
                "wrong-type",
                value,
                f"got {_got(value)}, but it is a list",
                "begin each item with '- '",
            )
            value = replace(value, data=[replace(value, path=joined(value.path, 0))])
        items = [_item(item, kind[:-2], note) for item in value.data]
        return replace(value, data=[item for item in items if item is not None])
    if kind.endswith("{}"):
        if not isinstance(value.data, dict):
            note(
                "wrong-type",
                value,
                f"got {_got(value)}, but it is a map",
                "write 'key: value' lines",
            )
            return None
        pairs = {key: _item(item, kind[:-2], note) for key, item in value.data.items()}
        return replace(value, data={key: item for key, item in pairs.items() if item is not None})
    return _item(value, kind, note)


def _item(value: Value, kind: str, note: Note) -> Value | None:
    if kind.startswith("msg:"):
        if value.data is None:
            note("wrong-type", value, "nothing is written after the dash or colon", "write {}, or its fields")
        return canonical(value, kind[4:], note)
    if kind == "any":
        return value
    if kind.startswith("enum:"):
        return _enum(value, tables.load("api")["enums"][kind[5:]], note)
    if isinstance(value.data, (dict, list)):
        note("wrong-type", value, f"got {_got(value)}", f"write {_EXPECTED[kind]}")
        return None
    if value.data is None:
        note(
            "wrong-type",
            value,
            "nothing is written after the dash or colon",
            f"write {_EXPECTED[kind]}",
        )
        return None
    return _READERS[kind](value, note)


def _enum(value: Value, choices: list[str], note: Note) -> Value | None:
    if value.kind == "str" and value.data in choices:
        return value
    meant = close(value.text, choices)
    listed = ", ".join(choice for choice in choices if not choice.endswith("UNSPECIFIED"))
    note(
        "unknown-value",
        value,
        f"{value.text or _got(value)!r} is none of its values",
        f"write {meant}" if meant else f"write one of {listed}",
    )
    return replace(value, data=meant) if meant else None


def _string(value: Value, note: Note) -> Value:
    if value.kind != "str":
        what = {"timestamp": "a date", "bool": "a bool"}.get(value.kind, "a number")
        note(
            "wrong-type",
            value,
            f"YAML takes {value.text} for {what}, but it is a text",
            f'write "{value.text}" with quotes',
        )
    return replace(value, data=value.text)


def _int(value: Value, note: Note) -> Value | None:
    text = value.kind == "str" and re.fullmatch(r"-?\d{1,19}", value.data)  # int64 is a text in JSON
    if value.kind == "int" or text:
        number = int(value.data)
        if abs(number) < _MOST:
            return replace(value, data=number)
    note("wrong-type", value, f"got {value.text!r}", "write a whole number")
    whole = value.kind == "float" and value.data.is_integer() and abs(value.data) < _MOST
    return replace(value, data=int(value.data)) if whole else None


def _double(value: Value, note: Note) -> Value | None:
    if value.kind in ("int", "float"):
        return replace(value, data=float(value.data))
    try:
        number = float(value.data) if value.kind == "str" else float("nan")  # 1e-5 is a text to YAML 1.1
    except ValueError:
        number = float("nan")
    if math.isfinite(number):
        return replace(value, data=number)
    note("wrong-type", value, f"got {value.text!r}", "write a number")
    return None


def _bool(value: Value, note: Note) -> Value | None:
    if value.kind == "bool":
        return value
    meant = {"true": True, "false": False, "1": True, "0": False}.get(value.text.lower())
    note("wrong-type", value, f"got {value.text!r}", "write true or false, without quotes")
    return None if meant is None else replace(value, data=meant)


def _duration(value: Value, note: Note) -> Value | None:
    if value.kind == "str" and seconds(value.data) is not None:
        return value
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])?\w*", value.text)
    meant = f"{float(number[1]) * _UNITS[number[2] or 's']:g}s" if number else None
    if number and float(number[1]) == int(float(number[1])):
        meant = f"{int(float(number[1])) * _UNITS[number[2] or 's']}s"
    note(
        "wrong-type",
        value,
        f"got {value.text!r}, but a duration is seconds with an s",
        f'write "{meant or "3600s"}"',
    )
    return replace(value, data=meant) if meant else None


def _got(value: Value) -> str:
    if isinstance(value.data, dict):
        return "a map"
    if isinstance(value.data, list):
        return "a list"
    return "nothing" if value.data is None else repr(value.text)


_EXPECTED = {
    "string": "a text",
    "bytes": "a text",
    "int32": "a whole number",
    "int64": "a whole number",
    "double": "a number",
    "float": "a number",
    "bool": "true or false",
    "duration": 'seconds such as "3600s"',
    "timestamp": "a time such as 2026-01-31T00:00:00Z",
}
_READERS: dict[str, Callable[[Value, Note], Value | None]] = {
    "string": _string,
    "bytes": _string,
    "int32": _int,
    "int64": _int,
    "double": _double,
    "float": _double,
    "bool": _bool,
    "duration": _duration,
    "timestamp": lambda value, note: replace(value, data=value.text),
}
