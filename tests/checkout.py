"""A copy of the checkout to build the source distribution from: a build leaves files behind."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainer.jobs import package

ROOT = Path(__file__).parents[1]


def copy_checkout(folder: Path) -> Path:
    """Copies what a source distribution is made of into the empty `folder`, and returns it."""
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "trainer", folder / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def build_sdist(folder: Path) -> Path:
    """Builds the source distribution from a copy in the empty `folder`; no other file comes out."""
    package.sdist(copy_checkout(folder), str(folder / "dist"))
    (archive,) = (folder / "dist").iterdir()
    return archive
