"""A folder that behaves as a mounted bucket: no folder can be renamed, no file linked or added to."""

from __future__ import annotations

import builtins
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from trainer import storage


def refuse(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Makes `folder`, and what lies in it, refuse what a mounted bucket refuses; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    inside = f"{folder}/"

    def is_inside(path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(inside)

    def renames(name: str) -> None:
        real = getattr(os, name)

        def rename(source: Any, target: Any, **options: Any) -> None:
            if os.path.isdir(source) and (is_inside(source) or is_inside(target)):
                raise OSError(errno.EMFILE, "too many files to rename a folder", str(source))
            real(source, target, **options)

        monkeypatch.setattr(os, name, rename)

    def links(name: str) -> None:
        real = getattr(os, name)

        def link(source: Any, target: Any, **options: Any) -> None:
            if is_inside(source) or is_inside(target):
                raise OSError(errno.ENOSYS, "a mounted bucket has no links", str(target))
            real(source, target, **options)

        monkeypatch.setattr(os, name, link)

    real_open = builtins.open

    def open_file(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        if is_inside(file) and set(mode) & set("a+"):
            raise OSError(errno.EPERM, "a mounted bucket has whole files alone", str(file))
        return real_open(file, mode, *more, **options)

    for name in ("rename", "renames", "replace"):
        renames(name)
    for name in ("link", "symlink"):
        links(name)
    monkeypatch.setattr(builtins, "open", open_file)
    monkeypatch.setattr(storage, "BUCKET_MOUNTS", (inside,))
    return folder
