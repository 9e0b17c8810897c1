"""What the config's types say: each key in words, and text read as its type. Adopters: leave."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

import annotated_types
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trainer.config import Config
from trainer.config_features import Feature, Section
from trainer.config_file import Node, section_of
from trainer.errors import nearest

FEATURE = Feature  # the union of the kinds of features
Path = tuple[Any, ...]  # names and list positions, from the top

_TRUE, _FALSE, _NONE = ("true", "1"), ("false", "0"), ("none", "null")
_BAD = object()  # stands for a value that was reported already


@dataclass(frozen=True)
class Leaf:
    """One key that takes a value.

    Attributes:
        path: full dotted name.
        annotation: its type.
        metadata: constraints of the type.
        expected: its type and range in words.
        default: its default; None too when it is required.
        required: whether it has no default.
        description: its doc line.
    """

    path: str
    annotation: Any
    metadata: tuple[Any, ...]
    expected: str
    default: Any
    required: bool
    description: str

    @property
    def default_text(self) -> str:
        """The default as one would write it."""
        return "required" if self.required else show(self.default)


def show(value: Any) -> str:
    """Returns a value as it is written in a config: numbers bare, texts bare unless empty or odd."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if value and not set(value) & set(" ,'\"{}[]") else json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(show(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{show(key)}: {show(item)}" for key, item in value.items()) + "}"
    return str(value)


def sections(model: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, type[Section], str]]:
    """Yields (dotted name, class, doc line) of each section below `model`, in order."""
    for name, field in model.model_fields.items():
        if kind := section_of(model, name):
            path = f"{prefix}.{name}" if prefix else name
            yield path, kind, field.description or ""
            yield from sections(kind, path)


def leaves(model: type[Section] = Config, prefix: str = "", deep: bool = True) -> Iterator[Leaf]:
    """Yields each key of `model` that takes a value and, if `deep`, those of its sections, in order."""
    for name, field in model.model_fields.items():
        path = f"{prefix}.{name}" if prefix else name
        if kind := section_of(model, name):
            if deep:
                yield from leaves(kind, path)
            continue
        default = field.get_default(call_default_factory=True)
        yield Leaf(
            path=path,
            annotation=field.annotation,
            metadata=tuple(field.metadata),
            expected=expectation(field.annotation, field.metadata),
            default=None if default is PydanticUndefined else default,
            required=field.is_required(),
            description=field.description or "",
        )


def _unwrap(annotation: Any) -> tuple[Any, list[Any]]:
    """Takes `Annotated[...]` apart into the type and its constraints."""
    if typing.get_origin(annotation) is not Annotated:
        return annotation, []
    inner, *metadata = typing.get_args(annotation)
    for item in list(metadata):
        if isinstance(item, FieldInfo):
            metadata.extend(item.metadata)
    return inner, metadata


def members(annotation: Any) -> tuple[Any, ...]:
    """Returns the types of a union, or the one type."""
    inner, _ = _unwrap(annotation)
    union = typing.get_origin(inner) in (Union, types.UnionType)
    return typing.get_args(inner) if union else (inner,)


def kinds(annotation: Any) -> dict[str, type[Section]]:
    """Returns the classes of a union of sections by their `kind`; empty for any other type."""
    found: dict[str, type[Section]] = {}
    for member in members(annotation):
        if isinstance(member, type) and issubclass(member, Section) and "kind" in member.model_fields:
            found[member.model_fields["kind"].default] = member
    return found


def _limits(metadata: Iterable[Any]) -> str:
    words: list[str] = []
    for item in metadata:
        if isinstance(item, annotated_types.Ge):
            words.append(f"at least {item.ge}")
        elif isinstance(item, annotated_types.Gt):
            words.append(f"above {item.gt}")
        elif isinstance(item, annotated_types.Le):
            words.append(f"at most {item.le}")
        elif isinstance(item, annotated_types.Lt):
            words.append(f"below {item.lt}")
        elif isinstance(item, annotated_types.MinLen):
            words.append("not empty" if item.min_length == 1 else f"at least {item.min_length} long")
        elif isinstance(item, annotated_types.MaxLen):
            words.append(f"at most {item.max_length} long")
        elif getattr(item, "pattern", None):
            words.append(f"of the form {item.pattern}")
    return " and ".join(words)


def _one(member: Any, plural: bool = False) -> str:
    """Returns a type in words."""
    if typing.get_origin(member) is Literal:
        return " or ".join(
            [", ".join(typing.get_args(member)[:-1]), typing.get_args(member)[-1]]
        ).removeprefix(" or ")
    if typing.get_origin(member) is tuple:
        item = typing.get_args(member)[0]
        if kinds(item):
            return "a list of features"
        inner, metadata = _unwrap(item)
        limits = _limits(metadata)
        return f"a list of {_one(inner, plural=True)}" + (f", each {limits}" if limits else "")
    if typing.get_origin(member) is dict:
        return f"a map of texts to {_one(typing.get_args(member)[1], plural=True)}"
    if isinstance(member, type) and issubclass(member, Section):
        return "a section"
    one, many = {
        bool: ("true or false", "true or false"),
        int: ("a whole number", "whole numbers"),
        float: ("a number", "numbers"),
        str: ("a text", "texts"),
        type(None): ("none", "none"),
    }[member]
    return many if plural else one


def expectation(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Returns what a key takes, in words: type, range, and whether it may be none.

    Args:
        annotation: the type.
        metadata: its constraints.
    """
    _, inner = _unwrap(annotation)
    limits = _limits([*metadata, *inner])
    parts = members(annotation)
    if kinds(annotation):
        return "a feature: a map with name and kind"
    words = " or ".join(_one(member) for member in parts if member is not type(None))
    words += f", {limits}" if limits else ""
    return f"{words}, or none" if type(None) in parts else words


class _MismatchError(ValueError):
    """The text is not a value of the type."""


def _scalar(text: str, member: Any) -> Any:
    """Reads a text as a Literal, bool, int, float or str."""
    if typing.get_origin(member) is Literal:
        for choice in typing.get_args(member):
            if text.lower() == choice.lower():
                return choice
    elif member is str:
        return text
    elif member is bool and text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    elif member in (int, float):
        try:
            # A study sends whole numbers as 64.0; beyond 2**53 only int() keeps every digit.
            return int(text) if member is int else _finite(text)
        except ValueError:
            number = _finite(text)
            if number == int(number):
                return int(number)
    raise _MismatchError


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise _MismatchError from error
    if not math.isfinite(number):
        raise _MismatchError
    return number


@dataclass(frozen=True)
class Problem:
    """Something wrong with the key at `path`, in one line."""

    path: Path
    text: str


class Reader:
    """Reads nodes as the types of a config, noting everything that doesn't fit.

    Attributes:
        problems: what was wrong so far.
        where: "file:line" of each path that was seen ("" for flags).
        names: each path as a user names it: features go by their own name.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.where: dict[Path, str] = {}
        self.names: dict[Path, str] = {}
        self._expected: dict[Path, str] = {}
        self._got: dict[Path, str] = {}
        self._choices: dict[Path, list[str]] = {}

    def section(self, node: Node, model: type[Section], path: Path = (), name: str = "") -> dict[str, Any]:
        """Returns the keys of a section as Python values, without those that were wrong."""
        self.where[path], self.names[path] = node.where, name
        if node.value is None:  # a header with every key below it commented out
            return {}
        if not isinstance(node.value, dict):
            self.note(
                path, f"Invalid {name}: got {_raw(node)}, expected the keys {', '.join(model.model_fields)}"
            )
            return {}
        result: dict[str, Any] = {}
        for key, child in node.value.items():
            here, dotted = (*path, key), f"{name}.{key}" if name else key
            self.where[here], self.names[here] = child.where, dotted
            field = model.model_fields.get(key)
            if field is None:
                self.note(here, f"{dotted}: unknown key{_suggest(key, model)}")
            elif inner := section_of(model, key):
                result[key] = self.section(child, inner, here, dotted)
            else:
                value = self._value(child, field.annotation, field.metadata, here, dotted)
                if value is not _BAD:
                    result[key] = value
        return result

    def note(self, path: Path, text: str) -> None:
        """Notes a problem, with the file and line of the nearest part of `path` that was written."""
        place = path
        while place and place not in self.where:
            place = place[:-1]
        where = self.where.get(place, "")
        self.problems.append(Problem(path, f"{where}: {text}" if where else text))

    def invalid(self, path: Path) -> None:
        """Notes that the value at `path` doesn't fit its type or range."""
        got, expected = self._got.get(path, "something else"), self._expected.get(path, "another value")
        hint = nearest(got.strip("'"), self._choices.get(path, ()))
        self.note(path, f"Invalid {self.names[path]}: got {got}, expected {expected}{hint}")

    def _value(self, node: Node, annotation: Any, metadata: Iterable[Any], path: Path, name: str) -> Any:
        """Reads a node as a type; `_BAD` when it doesn't fit (and was noted)."""
        self.where[path], self.names[path] = node.where, name
        self._expected[path] = expectation(annotation, metadata)
        self._got[path] = _raw(node)
        parts = members(annotation)
        self._choices[path] = [
            choice
            for member in parts
            if typing.get_origin(member) is Literal
            for choice in typing.get_args(member)
        ]
        if classes := kinds(annotation):
            return self._feature(node, classes, path, name)
        if node.value is None or (
            isinstance(node.value, str)
            and node.value.lower() in _NONE
            and type(None) in parts
            and (node.is_flag or str not in parts)  # in a file, a text may well be 'none'
        ):
            if type(None) in parts:
                return None
            self.invalid(path)
            return _BAD
        lists = [member for member in parts if typing.get_origin(member) is tuple]
        if isinstance(node.value, list):
            if lists:
                return self._items(node.value, lists[0], path, name)
        elif isinstance(node.value, dict):
            for member in parts:
                if typing.get_origin(member) is dict:
                    return self._map(node.value, member, path, name)
        else:
            for member in sorted(parts, key=lambda member: member is str):  # str takes anything: last
                try:
                    return _scalar(node.value, member)
                except _MismatchError:
                    continue
            if lists:  # one value stands for a list of one
                return self._items([node], lists[0], path, name)
        self.invalid(path)
        return _BAD

    def _items(self, nodes: list[Node], member: Any, path: Path, name: str) -> Any:
        annotation = typing.get_args(member)[0]
        values = []
        for index, node in enumerate(nodes):
            label = f"{name}[{index}]"
            if kinds(annotation) and isinstance(node.value, dict):
                called = node.value.get("name")
                label = f"{name}.{called.value}" if called and isinstance(called.value, str) else label
            inner, metadata = _unwrap(annotation)
            values.append(
                self._value(node, annotation if kinds(annotation) else inner, metadata, (*path, index), label)
            )
        return _BAD if any(value is _BAD for value in values) else tuple(values)

    def _map(self, nodes: dict[str, Node], member: Any, path: Path, name: str) -> Any:
        annotation = typing.get_args(member)[1]
        values = {
            key: self._value(node, annotation, (), (*path, key), f"{name}.{key}")
            for key, node in nodes.items()
        }
        return _BAD if any(value is _BAD for value in values.values()) else values

    def _feature(self, node: Node, classes: dict[str, type[Section]], path: Path, name: str) -> Any:
        if not isinstance(node.value, dict):
            self.invalid(path)
            return _BAD
        kind = node.value.get("kind")
        if kind is None or not isinstance(kind.value, str):
            self.note(path, f"{name}: 'kind' is missing, expected one of {', '.join(classes)}")
            return _BAD
        if kind.value not in classes:
            here = (*path, "kind")
            self.where[here] = kind.where
            self.note(
                here,
                f"Invalid {name}.kind: got {_raw(kind)}, expected one of {', '.join(classes)}"
                f"{nearest(kind.value, classes)}",
            )
            return _BAD
        before = len(self.problems)
        values = self.section(node, classes[kind.value], path, name)
        return values if len(self.problems) == before else _BAD


def _raw(node: Node) -> str:
    """Returns what was written, short."""

    def plain(node: Node) -> Any:
        if isinstance(node.value, list):
            return [plain(item) for item in node.value]
        if isinstance(node.value, dict):
            return {key: plain(item) for key, item in node.value.items()}
        return node.value

    if node.value is None:
        return "nothing"
    if isinstance(node.value, str):
        try:
            float(node.value)
        except ValueError:
            return repr(node.value)
        return node.value
    text = show(plain(node))
    return text if len(text) < 80 else text[:76] + " ..."


def _suggest(key: str, model: type[Section]) -> str:
    """Returns the nearest key of the section, or the place where a key of that very name is."""
    elsewhere = [leaf.path for leaf in leaves() if leaf.path.rpartition(".")[2] == key]
    if len(elsewhere) == 1 and key not in model.model_fields:
        return f"; did you mean {elsewhere[0]!r}?"
    normal = key.replace("-", "_")
    return f"; did you mean {normal!r}?" if normal in model.model_fields else nearest(key, model.model_fields)
