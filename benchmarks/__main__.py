"""Runs every benchmark, one after the other, and prints one table. Adopters: leave.

    python -m benchmarks [NAME ...] [--json PATH]

A benchmark is a file of this folder with a command line of its own and the flag --json, which writes a list
of {"name", "value", "goal", "holds", "detail"}.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Returns the benchmarks of this folder: the files that can be run and take --json."""
    return sorted(
        path.stem
        for path in FOLDER.glob("[a-z]*.py")
        if '"--json"' in (text := path.read_text()) and 'if __name__ == "__main__"' in text
    )


def run(name: str) -> list[dict[str, Any]]:
    """Runs one benchmark in a process of its own, with its output shown, and returns its figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        print(f"--- {name}", flush=True)
        began = time.monotonic()
        code = subprocess.run(
            [sys.executable, str(FOLDER / f"{name}.py"), "--json", str(path)], cwd=FOLDER.parent
        ).returncode
        print(f"    {time.monotonic() - began:.0f} s", flush=True)
        if path.exists():
            return list(json.loads(path.read_text()))
        detail = f"exit code {code}, no figures"
        return [{"name": name, "value": None, "goal": "runs", "holds": False, "detail": detail}]


def main() -> int:
    """Runs from the command line; returns 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description="Runs the benchmarks and prints one table.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(names())}")
    parser.add_argument("--json", metavar="PATH", help="write all figures into this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names()):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    figures = [figure for name in arguments.names or names() for figure in run(name)]
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")
    print("---")
    for figure in figures:
        value = figure["value"]
        shown = f"{value:.4g}" if isinstance(value, float) else value
        mark = {True: "holds", False: "MISSED", None: "-"}[figure["holds"]]
        print(f"{figure['name']:<44} {shown!s:>12}  goal {figure['goal']!s:<14} {mark:<7} {figure['detail']}")
    return 1 if any(figure["holds"] is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
