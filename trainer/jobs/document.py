"""YAML as the service's own tools read it, with the line of every field. Adopters: leave.

Unlike a run config, whose scalars stay text until a key's type says what they mean, a job file is read by
gcloud and by the API, to which `3` is a number and `yes` is a bool: a mistake for us to find.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from trainer.errors import UserError

# The parser in C where PyYAML was built with it: five times as fast.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KINDS = ("str", "int", "float", "bool", "null", "timestamp", "seq", "map")
_TAGS = {f"tag:yaml.org,2002:{name}": name for name in _KINDS}
_MAX_DEPTH = 40
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]"
)  # what YAML's reader refuses


@dataclass(frozen=True)
class Value:
    """One value of a file.

    Attributes:
        data: a dict or list of values, or a str, int, float, bool or None.
        line: line of its key (of the item, in a list), from 1.
        column: column there, from 1.
        text: a scalar as it was written.
        kind: what YAML takes a scalar for: str, int, float, bool, null or timestamp; "" for maps and lists.
        path: where it is, with the file's own spelling, such as `workerPoolSpecs[0].replicaCount`.
    """

    data: Any
    line: int = 1
    column: int = 1
    text: str = ""
    kind: str = ""
    path: str = ""

    @property
    def plain(self) -> Any:
        """The value without places: dicts, lists and scalars."""
        if isinstance(self.data, dict):
            return {key: item.plain for key, item in self.data.items()}
        if isinstance(self.data, list):
            return [item.plain for item in self.data]
        return self.data

    def get(self, *keys: str | int) -> Value | None:
        """Returns what is at a path below, or None."""
        found: Value | None = self
        for key in keys:
            if found is None:
                return None
            if isinstance(key, int):
                found = found.data[key] if isinstance(found.data, list) and key < len(found.data) else None
            else:
                found = found.data.get(key) if isinstance(found.data, dict) else None
        return found

    def nearest(self, *keys: str | int) -> Value:
        """Returns what is at a path below, or the last part of the path that is there."""
        found = self
        for key in keys:
            below = found.get(key)
            if below is None:
                return found
            found = below
        return found

    def of(self, *keys: str | int, default: Any = None) -> Any:
        """Returns the plain value at a path below, or `default` when it isn't there or null."""
        found = self.get(*keys)
        return default if found is None or found.data is None else found.plain

    def items(self) -> Iterator[Value]:
        """Yields the items of a list; nothing for anything else."""
        yield from self.data if isinstance(self.data, list) else ()


def joined(path: str, key: str | int) -> str:
    """Returns the path of a key or list position below `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


class _Builder:
    def __init__(self, file: str) -> None:
        self._file = file
        self._scalars = yaml.constructor.SafeConstructor()

    def fail(self, node: yaml.Node, problem: str) -> UserError:
        return UserError(f"{self._file}:{node.start_mark.line + 1}: {problem}")

    def build(self, node: yaml.Node, path: str = "", depth: int = 0) -> Value:
        if depth > _MAX_DEPTH:
            raise self.fail(node, f"nested more than {_MAX_DEPTH} deep")
        if node.tag not in _TAGS:
            raise self.fail(node, f"the tag {node.tag!r} has no meaning in a job file")
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        if isinstance(node, yaml.MappingNode):
            return Value(self._mapping(node, path, depth), line, column, path=path)
        if isinstance(node, yaml.SequenceNode):
            items = [self.build(item, joined(path, i), depth + 1) for i, item in enumerate(node.value)]
            return Value(items, line, column, path=path)
        kind = _TAGS[node.tag]
        try:
            data = node.value if kind in ("str", "timestamp") else self._scalars.construct_object(node)
        except ValueError as error:
            raise self.fail(node, f"{node.value!r} is no {kind}") from error
        return Value(data, line, column, node.value, kind, path)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Value]:
        result: dict[str, Value] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.fail(key, "a key must be a single word")
            if key.tag == "tag:yaml.org,2002:merge":
                raise self.fail(key, "'<<' is not understood by gcloud: write the fields out")
            if key.value in result:
                raise self.fail(key, f"the field {key.value!r} is given twice")
            value = self.build(item, joined(path, key.value), depth + 1)
            result[key.value] = replace(value, line=key.start_mark.line + 1, column=key.start_mark.column + 1)
        return result


def parse(text: str, file: str) -> Value:
    """Returns the one document in a YAML or JSON text.

    Raises:
        UserError: not valid YAML, a field given twice, or what gcloud doesn't understand.
    """
    text = text.removeprefix("\ufeff")
    if control := _CONTROL.search(text):
        line = text.count("\n", 0, control.start()) + 1
        raise UserError(f"{file}:{line}: not valid YAML: the control character {control[0]!r}")
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except RecursionError as error:
        raise UserError(f"{file}:1: not valid YAML: nested too deep") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1 if mark else 1}"
        raise UserError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
    return Value(None, path="") if root is None else _Builder(file).build(root)


def plain_yaml(text: str) -> Any:
    """Returns the plain content of a YAML text that is known to be good."""
    return yaml.load(text, Loader=_LOADER)


_PART = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)|\[(\d+)\]|\.")


def _keys(path: str) -> list[str | int]:
    keys: list[str | int] = []
    place = 0
    while place < len(path):
        part = _PART.match(path, place)
        if part is None:
            raise UserError(f"--set {path}: expected a path such as workerPoolSpecs[0].replicaCount")
        if part[1]:
            keys.append(part[1])
        elif part[2]:
            keys.append(int(part[2]))
        place = part.end()
    return keys


def lay(root: Value, assignments: Sequence[str]) -> Value:
    """Returns the document with `path=value` assignments laid over it, such as `jobSpec.tensorboard=...`.

    Args:
        root: the document.
        assignments: each value is read as YAML; a list position may be one past the end.

    Raises:
        UserError: no such list position, or not of the form path=value.
    """
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"--set {assignment}: expected PATH=VALUE, such as displayName=nightly")
        root = _laid(root, _keys(path), parse(text, f"--set {path}"), path)
    return root


def _laid(under: Value, keys: list[str | int], value: Value, whole: str) -> Value:
    if not keys:
        return replace(value, line=under.line, column=under.column, path=under.path)
    key, rest = keys[0], keys[1:]
    if isinstance(key, int):
        items = list(under.data) if isinstance(under.data, list) else []
        if key > len(items):
            raise UserError(f"--set {whole}: {under.path or 'the file'} has {len(items)} items, no [{key}]")
        if key == len(items):
            items.append(Value(None, under.line, under.column, path=joined(under.path, key)))
        items[key] = _laid(items[key], rest, value, whole)
        return replace(under, data=items)
    fields = dict(under.data) if isinstance(under.data, dict) else {}
    below = fields.get(key, Value(None, under.line, under.column, path=joined(under.path, key)))
    fields[key] = _laid(below, rest, value, whole)
    return replace(under, data=fields)
