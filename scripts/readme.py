"""Writes the tables of README.md that the code decides: make readme. Adopters: leave.

Each Python file's first line says what it is and what an adopter does with it; the README repeats that, and a
test fails when it is out of date.

    python scripts/readme.py [--check]
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
FOLDERS = ("trainer",)


def banner(path: Path) -> tuple[str, str]:
    """Returns what a file is, and what an adopter does with it ("" where its first line doesn't say)."""
    text = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")
    what, _, adopter = text.partition(" Adopters: ")
    return what.rstrip("."), adopter.rstrip(".")


def modules() -> list[Path]:
    """Returns the Python files of the trainer, each folder's own files before its folders."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    files = [path for path in paths if path.name != "__init__.py"]
    return sorted(files, key=lambda path: (path.parent.relative_to(ROOT).parts, path.name))


def rooms() -> str:
    """Returns the Markdown table of the files that an adopter changes or may change."""
    lines = ["| file | what it is | you |", "|---|---|---|"]
    for path in modules():
        what, adopter = banner(path)
        if not adopter.startswith("leave"):
            name = path.relative_to(ROOT).as_posix()
            lines.append(f"| [`{name}`]({name}) | {what} | {adopter} |")
    return "\n".join(lines)


def tree() -> str:
    """Returns the tree of the trainer, one comment a line."""
    lines = ["```"]
    folder = None
    for path in modules():
        where = path.parent.relative_to(ROOT)
        depth = len(where.parts)
        if where != folder:
            folder = where
            what = banner(path.parent / "__init__.py")[0]
            lines.append(f"{'  ' * (depth - 1)}{where.name + '/':<{24 - 2 * (depth - 1)}}{what}")
        lines.append(f"{'  ' * depth}{path.name:<{24 - 2 * depth}}{banner(path)[0]}")
    return "\n".join([*lines, "```"])


BLOCKS = {"rooms": rooms, "tree": tree}


def filled(text: str) -> str:
    """Returns the README's text with each block between its two markers written anew."""
    for name, write in BLOCKS.items():
        begin, end = f"<!-- {name}: make readme -->", f"<!-- /{name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"README.md: the markers {begin} and {end} are missing")
        block = f"{begin}\n{write()}\n{end}"
        text = pattern.sub(lambda _, block=block: block, text)  # type: ignore[misc]
    return text


def main() -> int:
    """Runs from the command line; with --check, returns 1 where README.md is out of date."""
    text = README.read_text()
    wanted = filled(text)
    if "--check" in sys.argv[1:]:
        return int(text != wanted)
    README.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
