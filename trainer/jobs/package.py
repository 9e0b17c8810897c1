"""`python -m trainer package`: what the prebuilt containers install or run. Adopters: leave.

Two forms: a source distribution (`pythonPackageSpec.packageUris`), made by setup.py as `make package` does,
and with `--single_file` one Python file that holds the trainer and a config, for places that take a script
alone (gcloud's `script=`, the SDK's `from_local_script`).
"""

from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import trainer
from trainer import flags, storage
from trainer.errors import UserError
from trainer.flags import Option
from trainer.jobs import single_file

log = logging.getLogger("trainer")

ROOT = Path(trainer.__file__).parents[1]
OPTIONS = {
    "single_file": Option("Write one script that trains a config, instead of the source distribution."),
    "config": Option("With --single_file: config file, local or gs://; of several, the later wins.", "FILE"),
    "output": Option(
        "Folder of the distribution (default: dist), or the script (dist/train_NAME.py).", "PATH"
    ),
    "debug": Option("Show everything that the tools say."),
}


def main(argv: Sequence[str]) -> int:
    """Writes a source distribution or a script, and prints where it is."""
    if "--help" in argv or "-h" in argv:
        print(_help())
        return 0
    names = {name.replace("-", "_"): value for name, value in flags.pairs(argv)}
    if names.get("single_file", "false") in (None, "true", "1"):
        path = _script(argv)
        print(path)
        return 0
    if unknown := [name for name in names if name not in ("single_file", "output", "debug")]:
        raise UserError(
            f"--{unknown[0]} only counts with --single_file: a source distribution holds no config"
        )
    print(sdist(ROOT, names.get("output") or "dist"))
    return 0


def _help() -> str:
    head = (
        "usage: python -m trainer package [--output=FOLDER]\n       python -m trainer package --single_file "
    )
    about = (
        "Packs the trainer for the prebuilt containers. With --single_file every key of the config is\n"
        "a flag, as in training: what is given here is written into the script."
    )
    width = max(len(f"--{name}={option.value}") for name, option in OPTIONS.items())
    lines = [
        f"  {f'--{name}={option.value}'.removesuffix('='):<{width}}  {option.description}"
        for name, option in OPTIONS.items()
    ]
    return "\n".join([f"{head}--config=FILE [--KEY=VALUE ...] [--output=FILE]", "", about, "", *lines])


def sdist(root: Path, folder: str) -> str:
    """Builds the source distribution of a checkout and returns its path.

    Args:
        root: folder with setup.py.
        folder: where the archive goes.

    Raises:
        UserError: no checkout, or the build failed.
    """
    if not (root / "setup.py").exists():
        raise UserError(
            f"package: {root} is no checkout (it has no setup.py): run it in one, or use --single_file"
        )
    where = os.path.abspath(folder)
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--formats=gztar", "--dist-dir", where]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        if "No module named 'setuptools'" in done.stderr:
            raise UserError(f"package needs setuptools: {sys.executable} -m pip install setuptools")
        raise UserError(f"package: setup.py failed:\n{done.stderr.strip()}")
    log.debug("%s", done.stderr.strip())
    return os.path.join(folder, f"trainer-{trainer.__version__}.tar.gz")


def _script(argv: Sequence[str]) -> str:
    arguments = flags.parse(argv, OPTIONS, "package")
    config = arguments.config
    path = str(arguments.options.get("output") or f"dist/train_{config.name.replace('.', '_')}.py")
    if storage.is_remote(path) or not path.endswith(".py"):
        raise UserError(f"Invalid --output: got {path!r}, expected a local file that ends in .py")
    text = single_file.script(config, requirements(ROOT))
    local = [source for source in config.data.source if "://" not in source]
    if local:
        log.warning(
            "data.source: %s is local: where the script runs without it, give it --data.source=gs://...",
            local[0],
        )
    if os.path.exists(path) and not Path(path).read_text(encoding="utf-8").startswith(single_file.FIRST_LINE):
        raise UserError(f"--output: {path} is there and was not written by package: name another file")
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")
    return path


def requirements(root: Path) -> list[str]:
    """Returns what the prebuilt containers (Python 3.10) lack, as setup.py says; empty without a checkout."""
    if not (root / "setup.py").exists():
        return []
    tree = ast.parse((root / "setup.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "REQUIRED":
            every: list[str] = ast.literal_eval(node.value)
            return [line.partition(";")[0].strip() for line in every if ">= '3.11'" not in line]
    return []
