"""Command lines of the verbs that take job files: `VERB JOB.yaml ... [--flag=value]`. Adopters: leave."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainer.errors import UserError, nearest
from trainer.flags import Option

PLACEHOLDER = re.compile(r"\bmy-(?:project|bucket)\b")  # what the shipped files leave to be filled in
Options = Mapping[str, Option]
ASSIGN = {
    "set": Option(
        "Lay PATH=VALUE over the job file, such as workerPoolSpecs[0].replicaCount=1.", "PATH=VALUE"
    )
}


@dataclass(frozen=True)
class Command:
    """What a command line asked for.

    Attributes:
        files: what stands without dashes: the job files.
        values: each option that was given, with all its values in order; a switch has "true" or "false".
    """

    files: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def get(self, name: str) -> str | None:
        """Returns the last value of an option, or None."""
        return self.values[name][-1] if name in self.values else None

    def all(self, name: str) -> tuple[str, ...]:
        """Returns every value of an option."""
        return self.values.get(name, ())

    def switch(self, name: str) -> bool:
        """Returns whether a switch is on."""
        return self.get(name) == "true"

    def number(self, name: str, low: float = 0.0) -> float | None:
        """Returns an option's value as a number above `low`, or None when it wasn't given.

        Raises:
            UserError: it is no such number.
        """
        text = self.get(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low < value < float("inf"):
            raise UserError(f"Invalid --{name}: got {text!r}, expected a number above {low:g}")
        return value

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Returns an option's value, the first of `choices` when it wasn't given.

        Raises:
            UserError: it is none of them.
        """
        value = self.get(name) or choices[0]
        if value not in choices:
            expected = f"expected {', '.join(choices)}{nearest(value, choices)}"
            raise UserError(f"Invalid --{name}: got {value!r}, {expected}")
        return value


def parse(argv: Sequence[str], options: Options, verb: str, about: str, example: str) -> Command:
    """Reads a command line; `--help` prints the help and leaves.

    Args:
        argv: the arguments after the verb.
        options: the verb's options.
        verb: its name.
        about: one line on what it does.
        example: arguments that work.

    Raises:
        UserError: an unknown option, one without its value, or no job file.
        SystemExit: after `--help`.
    """
    if "--help" in argv or "-h" in argv:
        print(help_text(options, verb, about, example))
        raise SystemExit(0)
    files: list[str] = []
    values: dict[str, tuple[str, ...]] = {}
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        if not token.startswith("-"):
            files.append(token)
            continue
        name, equals, value = token.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if name not in options:
            raise UserError(
                f"unknown flag {token.partition('=')[0]}{nearest(name, options) or '; see --help'}"
            )
        if not options[name].value:
            if equals and value not in ("true", "false"):
                raise UserError(f"Invalid --{name}: got {value!r}, expected true or false")
            value = value or "true"
        elif not equals:
            if not rest or rest[0].startswith("--"):
                raise UserError(f"--{name} needs a value: {options[name].value}")
            value = rest.pop(0)
        values[name] = (*values.get(name, ()), value)
    if not files:
        raise UserError(f"{verb} needs a job file: python -m trainer {verb} {example}")
    return Command(tuple(files), values)


def help_text(options: Options, verb: str, about: str, example: str) -> str:
    """Returns the help of a verb."""
    names = {
        f"--{name}" + (f"={option.value}" if option.value else ""): option for name, option in options.items()
    }
    width = max(map(len, names), default=0)
    lines = [f"usage: python -m trainer {verb} JOB.yaml ... [--FLAG=VALUE ...]", "", about, ""]
    for name, option in names.items():
        text = textwrap.wrap(option.description, max(30, 100 - width))
        lines.append(f"  {name:<{width}}  {text[0]}")
        lines += [" " * (width + 4) + more for more in text[1:]]
    return "\n".join([*lines, "", f"Example: python -m trainer {verb} {example}"])
