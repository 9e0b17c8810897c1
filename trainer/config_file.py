"""Config files: YAML with line numbers and `base:` inheritance, read as text nodes. Adopters: leave.

A scalar stays the text that was written: what it means is for the key's type to say (`schema.py`), so a
class named `no`, a date and a version such as `1.10` arrive as they stand in the file.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from trainer import storage
from trainer.config import Config
from trainer.config_features import Section
from trainer.errors import UserError, nearest_file

_NULLS = ("", "~", "null", "Null", "NULL")
_MAX_DEPTH = 30
_TAGS = tuple(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value", "seq", "map")
)


@dataclass(frozen=True)
class Node:
    """A value as it was written, and where.

    Attributes:
        value: None for YAML's null, else the scalar's text, a list or a map.
        where: "file:line", or "" for a flag.
        is_flag: whether it came from the command line, where `none` means null.
    """

    value: str | list[Node] | dict[str, Node] | None
    where: str = ""
    is_flag: bool = False


def parse_yaml(text: str, name: str, is_flag: bool = False) -> Node:
    """Returns the one document in a YAML (or JSON) text.

    Args:
        text: the text.
        name: file name for messages; empty for a flag's value.
        is_flag: whether the text is a flag's value.

    Raises:
        UserError: not valid YAML, a key given twice, or a tag that configs have no use for.
    """
    try:
        root = yaml.compose(text.removeprefix("\ufeff"), Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        where = f"{name}:{mark.line + 1}: " if mark and name else f"{name}: " if name else ""
        raise UserError(f"{where}not valid YAML: {problem}") from error
    return Node(None, name, is_flag) if root is None else _Builder(name, is_flag).build(root)


class _Builder:
    """Turns PyYAML's nodes into ours."""

    def __init__(self, name: str, is_flag: bool) -> None:
        self._name = name
        self._is_flag = is_flag

    def _where(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}" if self._name else ""

    def _fail(self, node: yaml.Node, problem: str) -> UserError:
        where = self._where(node)
        return UserError(f"{where}: {problem}" if where else problem)

    def build(self, node: yaml.Node, depth: int = 0) -> Node:
        """Returns the node, checked for what YAML lets pass: doubled keys, tags and endless aliases."""
        if depth > _MAX_DEPTH:
            raise self._fail(node, f"nested more than {_MAX_DEPTH} deep")
        if node.tag not in _TAGS:
            raise self._fail(node, f"the tag {node.tag!r} has no meaning in a config")
        where = self._where(node)
        if isinstance(node, yaml.MappingNode):
            return Node(self._mapping(node, depth), where, self._is_flag)
        if isinstance(node, yaml.SequenceNode):
            items: list[Node] = [self.build(item, depth + 1) for item in node.value]
            return Node(items, where, self._is_flag)
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        return Node(None if plain and node.value in _NULLS else node.value, where, self._is_flag)

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._fail(key, "a key must be a single word")
            if key.tag == "tag:yaml.org,2002:merge":  # `<<: *anchor`: the map's own keys win
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(source, yaml.MappingNode):
                        raise self._fail(key, "'<<' takes a map, or a list of maps")
                    merged = {**self._mapping(source, depth + 1), **merged}
                continue
            if key.value in own:
                raise self._fail(key, f"the key {key.value!r} is given twice")
            child = self.build(value, depth + 1)
            own[key.value] = Node(child.value, self._where(key), self._is_flag)
        return {**merged, **own}


def section_of(model: type[Section] | None, key: str) -> type[Section] | None:
    """Returns the class of the section that `key` names in `model`; None when it names none."""
    field = model.model_fields.get(key) if model else None
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def merge(under: Node, over: Node, model: type[Section] | None = Config) -> Node:
    """Lays one node over another: sections key by key, all else (lists, maps of values) as a whole.

    Args:
        under: the node below.
        over: the node that wins.
        model: class of the section that both are; None when they are none.

    Returns:
        The merged node.
    """
    if model is None or not isinstance(under.value, dict):
        return over
    if over.value is None:  # a section header with nothing under it
        return under
    if not isinstance(over.value, dict):
        return over
    result = dict(under.value)
    for key, node in over.value.items():
        result[key] = merge(result[key], node, section_of(model, key)) if key in result else node
    return Node(result, over.where or under.where, over.is_flag)


def relative_to(path: str, name: str) -> str:
    """Returns `name` seen from the folder of the file `path`; absolute and gs:// names stay."""
    if storage.is_remote(name) or os.path.isabs(name):
        return name
    scheme, separator, rest = path.rpartition("://")
    return scheme + separator + posixpath.normpath(posixpath.join(posixpath.dirname(rest), name))


def _read_text(path: str, named_by: str) -> str:
    remote_errors: tuple[type[Exception], ...] = ()
    if storage.is_remote(path):  # the only way into this module that needs TensorFlow
        import tensorflow as tf

        remote_errors = (tf.errors.OpError,)
    try:
        return storage.read_text(path)
    except FileNotFoundError as error:
        others = storage.listing(os.path.dirname(path) or ".")
        raise UserError(f"{named_by}: no such file: {path}{nearest_file(path, others)}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text") from error
    except OSError as error:
        raise UserError(f"{named_by}: {path} can't be read: {error.strerror or error}") from error
    except remote_errors as error:
        raise UserError(f"{named_by}: {path} can't be read: {error}") from error


def read_file(path: str, named_by: str = "--config", chain: Sequence[str] = ()) -> Node:
    """Returns a config file laid over its `base:` (a path, seen from the file's own folder).

    Args:
        path: the file, local or gs://.
        named_by: what named it, for messages.
        chain: the files that led here, to notice a circle.

    Raises:
        UserError: a file that can't be read, isn't YAML, or bases that go in a circle.
    """
    if path in chain:
        raise UserError(f"{named_by}: the bases go in a circle: {' -> '.join([*chain, path])}")
    node = parse_yaml(_read_text(path, named_by), path)
    if node.value is None:
        return Node({}, path)
    if not isinstance(node.value, dict):
        raise UserError(f"{path}: expected keys such as 'name:' and 'data:' at the top")
    keys = dict(node.value)
    base = keys.pop("base", None)
    own = Node(keys, path)
    if base is None or base.value is None:
        return own
    if not isinstance(base.value, str):
        raise UserError(f"{base.where}: Invalid base: expected the path of one config file")
    return merge(read_file(relative_to(path, base.value), f"{base.where}: base", [*chain, path]), own)
