"""The config's keys for readers: `--help`, and docs/config.md. Adopters: leave; it reads config.py.

`python -m trainer.config_help` prints the page; `--write` puts it into docs/config.md.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from trainer import schema
from trainer.config_features import Section
from trainer.flags import TRAIN, Option

PAGE = Path(__file__).parent.parent / "docs" / "config.md"

_INTRO = """\
# Config keys

<!-- Generated from trainer/config.py by `python -m trainer.config_help --write`; edit there. -->

A run is described by a YAML file, and every key is a flag too:

```
python -m trainer train --config configs/flights.yaml --training.learning_rate=0.01 --epochs 5
```

- **Flags** go by the full name or by any ending of it that only one key has (`--learning_rate`). Dashes and
  underscores are the same. A prefix is never enough. The last of two equal flags counts.
- **Lists** are written with commas (`--hidden_units=64,32`) or as JSON (`'["a,b"]'`); one value is a list of
  one. **Maps** are JSON (`--class_weights='{"no": 1, "yes": 9}'`). Whole numbers may come as `64.0` or
  `6.4e1`. Keys that may be none take `none` as a flag and `null` in a file.
- **Features** in the file can be changed one key at a time: `--features.NAME.buckets=32`.
- **`base: other.yaml`** in a file (seen from its folder) is read first, and the file is laid over it:
  sections key by key, lists and maps of values as a whole. `--config` may be given several times, and works
  in the same way: `--config configs/flights.yaml --config configs/debug/overfit.yaml`.
- `--print_config` shows what came of it, as a file that loads again; each run keeps it as `config.yaml`.
"""


def _kinds() -> Mapping[str, type[Section]]:
    return schema.kinds(schema.FEATURE)


def _own_leaves(model: type[Section]) -> list[schema.Leaf]:
    """Returns a feature kind's keys but `kind` itself, which its heading says."""
    return [leaf for leaf in schema.leaves(model) if leaf.path != "kind"]


def _entry(leaf: schema.Leaf, name: str) -> str:
    default = "required" if leaf.required else f"default {leaf.default_text or repr('')}"
    head = f"  {name}  ({leaf.expected}; {default})"
    lines = textwrap.wrap(head, 100, subsequent_indent="      ")
    return "\n".join(
        [*lines, *textwrap.wrap(leaf.description, 94, initial_indent="      ", subsequent_indent="      ")]
    )


def help_text(verb: str, options: Mapping[str, Option] = TRAIN) -> str:
    """Returns the text of `--help`: every key with its type, default and doc line.

    Args:
        verb: name of the command.
        options: its flags that are no keys of the config.
    """
    lines = [f"usage: python -m trainer {verb} --config FILE [--KEY=VALUE ...]", "", "options:"]
    for name, option in options.items():
        lines.append(f"  --{name}{' ' + option.value if option.value else ''}")
        lines.append(f"      {option.description}")
    lines += ["  --help", "      Print this text and stop."]
    lines += ["", "keys of the config (an ending that only one key has is enough, such as --learning_rate):"]
    lines += [_entry(leaf, f"--{leaf.path}") for leaf in schema.leaves(deep=False)]
    for path, model, description in schema.sections():
        lines += ["", f"{path}: {description}"]
        lines += [_entry(leaf, f"--{leaf.path}") for leaf in schema.leaves(model, path, deep=False)]
    lines += ["", "kinds of features, with the keys of each (as a flag: --features.NAME.KEY=VALUE):"]
    for kind, model in _kinds().items():
        lines += ["", f"kind: {kind}   {model.model_fields['kind'].description}"]
        lines += [_entry(leaf, leaf.path) for leaf in _own_leaves(model)]
    return "\n".join(lines)


def _table(leaves: list[schema.Leaf], prefix: str = "") -> list[str]:
    rows = ["| Key | Takes | Default | Meaning |", "|---|---|---|---|"]
    for leaf in leaves:
        default = "**required**" if leaf.required else f"`{leaf.default_text or repr('')}`"
        cells = [f"`{leaf.path.removeprefix(prefix)}`", leaf.expected, default, leaf.description]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def markdown() -> str:
    """Returns docs/config.md."""
    lines = [_INTRO, "## Top level", "", *_table(list(schema.leaves(deep=False)))]
    for path, model, description in schema.sections():
        lines += ["", f"## `{path}`", "", description, ""]
        lines += _table(list(schema.leaves(model, path, deep=False)), f"{path}.")
    lines += [
        "",
        "## Kinds of features",
        "",
        "Each entry of `features` has a `kind`, and the keys of that kind.",
    ]
    for kind, model in _kinds().items():
        lines += ["", f"### `kind: {kind}`", "", str(model.model_fields["kind"].description), ""]
        lines += _table(_own_leaves(model))
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Prints docs/config.md, or writes it."""
    if argv == ["--write"]:
        PAGE.write_text(markdown(), encoding="utf-8")
        print(f"wrote {PAGE}")
    else:
        print(markdown(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
