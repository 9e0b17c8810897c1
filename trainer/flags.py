"""The command line: config files, then flags, into one checked Config. Adopters: leave.

Every key of the config is a flag under its full name (`--training.learning_rate=0.01`) or any ending of
it that only one key has (`--learning_rate 0.01`). Dashes and underscores are the same; a prefix of a name
is never enough, so a typo can't set another key. A flag given twice counts the last time: a tuning
service appends its own. Nothing here imports TensorFlow unless a config file is on gs://.
"""

from __future__ import annotations

import difflib
import glob
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from trainer import schema
from trainer.config import Config
from trainer.config_features import Section
from trainer.config_file import Node, merge, parse_yaml, read_file
from trainer.errors import UserError


@dataclass(frozen=True)
class Option:
    """A flag that is no key of the config.

    Attributes:
        description: its doc line.
        value: what stands for its value in the help; empty for a switch.
    """

    description: str
    value: str = ""


CONFIG = {
    "config": Option("Config file, local or gs://; of several, the later wins key by key.", "FILE"),
    "print_config": Option("Print the resolved config as YAML and stop."),
    "debug": Option("Show everything that TensorFlow and the libraries say."),
}
TRAIN = {**CONFIG, "fresh": Option("Move an earlier run in the output folder aside and start over.")}


@dataclass(frozen=True)
class Arguments:
    """What a command line asked for.

    Attributes:
        config: the resolved config.
        fresh: start over, moving an earlier run aside.
        print_config: print the config and stop.
        debug: show everything.
        options: every option that was given, by name: its text, or a bool for a switch.
    """

    config: Config
    fresh: bool = False
    print_config: bool = False
    debug: bool = False
    options: Mapping[str, str | bool] = field(default_factory=dict)


Pair = tuple[str, "str | None"]


def pairs(argv: Sequence[str]) -> list[Pair]:
    """Cuts a command line into (name, value) pairs; the value is None where none was given.

    `--name=value` and `--name value` are the same; a value that starts with `--` needs the first form.

    Raises:
        UserError: something that is no flag.
    """
    found: list[Pair] = []
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--") or token == "--":
            hint = f"; did you mean '--{token.lstrip('-')}'?" if re.match(r"-?\w[\w.-]*=|-\w", token) else ""
            raise UserError(f"unexpected argument {token!r}: every setting is a --flag{hint}")
        name, equals, value = token[2:].partition("=")
        if equals:
            found.append((name, value))
        else:
            found.append((name, rest.pop(0) if rest and not rest[0].startswith("--") else None))
    return found


def find(name: str, options: Iterable[str] = ()) -> schema.Leaf:
    """Returns the key that a flag means: its full name, or an ending that only one key has.

    Args:
        name: the flag without its dashes.
        options: other flags of the command, for suggestions.

    Raises:
        UserError: no such key, a section, or several keys end so.
    """
    normal = name.replace("-", "_")
    every = {leaf.path: leaf for leaf in schema.leaves()}
    if normal in every:
        return every[normal]
    ends = [path for path in every if path.endswith(f".{normal}")]
    if len(ends) == 1:
        return every[ends[0]]
    if ends:
        raise UserError(f"ambiguous flag --{name}: it may mean {' or '.join(f'--{path}' for path in ends)}")
    inside = [path for path in every if f".{path}".startswith(f".{normal}.") or f".{normal}." in f".{path}"]
    if inside:
        raise UserError(f"--{name} is a section: set one of its keys, such as --{inside[0]}")
    known = {option: option for option in options}
    for path in every:  # a name without dots is compared with last words
        known.setdefault(path if "." in normal else path.rpartition(".")[2], path)
    close = difflib.get_close_matches(normal, list(known), n=1, cutoff=0.5)
    hint = f"did you mean '--{known[close[0]]}'?" if close else "--help lists them all"
    raise UserError(f"unknown flag --{name}; {hint}")


def _value_node(text: str, annotation: Any, name: str) -> Node:
    """Returns a flag's text as a node: lists by commas or as JSON, maps as JSON."""
    members = schema.members(annotation)
    takes_list = any(typing.get_origin(member) is tuple for member in members)
    takes_map = any(typing.get_origin(member) is dict for member in members)
    start = text.strip()[:1]
    if (takes_list and start == "[") or (takes_map and start == "{"):
        try:
            return parse_yaml(text, "", is_flag=True)  # JSON is YAML
        except UserError as error:
            raise UserError(f"Invalid {name}: got {text!r}, expected JSON ({error})") from error
    if takes_list and ("," in text or str not in members):
        items = [Node(part.strip(), is_flag=True) for part in text.split(",")] if text.strip() else []
        return Node(items, is_flag=True)
    return Node(text, is_flag=True)


def _text(value: str | None, annotation: Any, name: str, metadata: Iterable[Any]) -> str:
    if value is not None:
        return value
    if annotation is bool:
        return "true"
    raise UserError(f"--{name} needs a value: {schema.expectation(annotation, metadata)}")


def _lay_feature(tree: Node, name: str, value: str | None) -> Node:
    """Returns the tree with one key of one feature set, for `--features.NAME.KEY=value`."""
    feature_name, _, key = name.removeprefix("features.").rpartition(".")
    key = key.replace("-", "_")
    features = tree.value.get("features") if isinstance(tree.value, dict) else None
    items = features.value if features and isinstance(features.value, list) else []
    by_name: dict[str, int] = {}
    for index, item in enumerate(items):
        called = item.value.get("name") if isinstance(item.value, dict) else None
        if called and isinstance(called.value, str):
            by_name[called.value] = index
    if feature_name not in by_name:
        raise UserError(f"unknown flag --{name}: the config's features are {', '.join(by_name) or 'none'}")
    item = items[by_name[feature_name]]
    assert isinstance(item.value, dict)
    kind = item.value.get("kind")
    feature_class = schema.kinds(schema.FEATURE).get(str(kind.value) if kind else "")
    if feature_class is None or key not in feature_class.model_fields:
        keys = ", ".join(feature_class.model_fields if feature_class else ())
        raise UserError(f"unknown flag --{name}: a {kind.value if kind else '?'} feature has the keys {keys}")
    key_field = feature_class.model_fields[key]
    text = _text(value, key_field.annotation, name, key_field.metadata)
    changed = list(items)
    node = _value_node(text, key_field.annotation, name)
    changed[by_name[feature_name]] = Node({**item.value, key: node}, item.where)
    assert features is not None
    return merge(tree, Node({"features": Node(changed, features.where)}))


def _lay(tree: Node, name: str, value: str | None, options: Iterable[str]) -> Node:
    """Returns the tree with one flag laid over it."""
    if name.startswith("features.") and name.count(".") > 1:
        return _lay_feature(tree, name, value)
    leaf = find(name, options)
    node = _value_node(_text(value, leaf.annotation, name, leaf.metadata), leaf.annotation, leaf.path)
    for part in reversed(leaf.path.split(".")):
        node = Node({part: node})
    return merge(tree, node)


def _walk(loc: Sequence[Any]) -> tuple[schema.Path, FieldInfo | None]:
    """Turns pydantic's place of an error, which also names union members, into our path and its field."""
    path: schema.Path = ()
    last: FieldInfo | None = None
    annotation: Any = Config
    for part in loc:
        classes = schema.kinds(annotation)
        is_section = isinstance(annotation, type) and issubclass(annotation, Section)
        if not is_section and part in classes:
            annotation = classes[part]
        elif is_section and part in annotation.model_fields:
            last = annotation.model_fields[part]
            annotation, path = last.annotation, (*path, part)
        elif inner := [m for m in schema.members(annotation) if typing.get_origin(m) in (tuple, dict)]:
            item = typing.get_args(inner[0])
            annotation = item[0] if isinstance(part, int) else item[1]
            path = (*path, part)
    return path, last


def _note_violations(error: ValidationError, reader: schema.Reader) -> None:
    """Adds what pydantic found to the problems: ranges, missing keys, keys that don't go together."""
    reported = [problem.path for problem in reader.problems]
    for item in error.errors(include_url=False):
        path, key_field = _walk(item["loc"])
        # A key that was wrong is missing from what pydantic saw: it would be blamed once more.
        if any(old[: len(path)] == path or path[: len(old)] == old for old in reported):
            continue
        reported.append(path)
        if item["type"] == "missing" and key_field is not None:
            takes = schema.expectation(key_field.annotation, key_field.metadata)
            name = ".".join(filter(None, [reader.names.get(path[:-1], ""), str(path[-1])]))
            reader.note(path[:-1], f"{name} is missing: {takes} ({key_field.description})")
        elif item["type"] == "value_error":
            text = str(item["ctx"]["error"])
            if path:
                reader.note(path, f"{reader.names.get(path, '.'.join(map(str, path)))}: {text}")
            else:  # these name their key themselves
                key = text.partition(":")[0]
                place = next((place for place, name in reader.names.items() if name == key), ())
                reader.note(place, text)
        elif path in reader.names:
            reader.invalid(path)
        else:
            reader.note(path, f"{'.'.join(map(str, path))}: {item['msg']}")


def _resolve(files: Sequence[str], overrides: Sequence[Pair], options: Iterable[str] = ()) -> Config:
    tree = Node({})
    for path in files:
        tree = merge(tree, read_file(path))
    reader = schema.Reader()
    wrong_flags: list[str] = []
    for name, value in overrides:
        try:
            tree = _lay(tree, name, value, options)
        except UserError as error:
            wrong_flags.append(str(error))
    values = reader.section(tree, Config)
    config: Config | None = None
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        _note_violations(error, reader)
    lines = wrong_flags + [problem.text for problem in reader.problems]
    if config is None or lines:
        raise UserError("\n".join(lines))
    return config


def load(path: str | Sequence[str] | None, overrides: Sequence[str] = ()) -> Config:
    """Returns the config that files and flags make.

    Args:
        path: a YAML file, local or gs://, or several, of which the later win; None for flags alone.
        overrides: flags as on a command line, such as `["--training.epochs=2", "--seed", "7"]`.

    Raises:
        UserError: with one line for each mistake: `file:line: key: what is wrong`.
    """
    files = [path] if isinstance(path, str) else list(path or ())
    return _resolve(files, pairs(overrides))


def _switch(name: str, value: str | None) -> bool:
    if value is None or value.lower() in ("true", "1"):
        return True
    if value.lower() in ("false", "0"):
        return False
    raise UserError(f"Invalid --{name}: got {value!r}, expected true or false")


def parse(argv: Sequence[str], options: Mapping[str, Option] = TRAIN, verb: str = "train") -> Arguments:
    """Reads a command line; `--help` prints the help and leaves.

    Args:
        argv: the arguments after the program's name (and verb).
        options: flags of the command that are no keys of the config.
        verb: name of the command, for the help.

    Raises:
        UserError: any mistake in the flags or the config files.
        SystemExit: after `--help`.
    """
    if "--help" in argv or "-h" in argv:
        from trainer import config_help

        print(config_help.help_text(verb, options))
        raise SystemExit(0)
    files: list[str] = []
    overrides: list[Pair] = []
    given: dict[str, str | bool] = {}
    for name, value in pairs(argv):
        normal = name.replace("-", "_")
        option = options.get(normal)
        if option is None:
            overrides.append((name, value))
        elif not option.value:
            given[normal] = _switch(name, value)
        elif not value:
            raise UserError(f"--{name} needs a value: {option.value}")
        else:
            given[normal] = value
            if normal == "config":
                files.append(value)
    if not files:
        example = next(iter(sorted(glob.glob("configs/*.yaml"))), "configs/NAME.yaml")
        raise UserError(f"--config is missing: name a config file, such as --config {example}")
    config = _resolve(files, overrides, options)
    switches = {name: bool(given.get(name, False)) for name in ("fresh", "print_config", "debug")}
    return Arguments(config, options=given, **switches)
