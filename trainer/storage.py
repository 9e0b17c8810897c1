"""Small files of a run, on a local disk or on gs://. Adopters: leave.

Local paths go through the operating system, so that nothing here needs TensorFlow; `gs://` paths go
through `tf.io.gfile`, which is imported only then.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any


def is_remote(path: str) -> bool:
    """Returns whether `path` names an object store (`scheme://...`) and not a local file."""
    return "://" in path


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


def exists(path: str) -> bool:
    """Returns whether a file or folder is there."""
    return bool(_gfile().exists(path)) if is_remote(path) else os.path.exists(path)


def make_folder(path: str) -> None:
    """Makes a folder and its parents; object stores have none to make."""
    if is_remote(path):
        _gfile().makedirs(path)
    else:
        os.makedirs(path, exist_ok=True)


def listing(path: str) -> list[str]:
    """Returns the sorted names in a folder, without trailing slashes; empty when it isn't there."""
    if is_remote(path):
        return sorted(name.rstrip("/") for name in _gfile().listdir(path)) if exists(path) else []
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def read_text(path: str) -> str:
    """Returns the text of a UTF-8 file."""
    if is_remote(path):
        with _gfile().GFile(path, "r") as file:
            return str(file.read())
    with open(path, encoding="utf-8") as file:
        return file.read()


def write_text(path: str, text: str) -> None:
    """Writes a UTF-8 file whole or not at all: a reader never sees half of it."""
    if is_remote(path):  # an object appears only when its upload is complete
        with _gfile().GFile(path, "w") as file:
            file.write(text)
        return
    make_folder(os.path.dirname(path) or ".")
    scratch = f"{path}.tmp-{os.getpid()}"
    with open(scratch, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def read_json(path: str) -> Any:
    """Returns the value in a JSON file, or None when the file isn't there."""
    return json.loads(read_text(path)) if exists(path) else None


def write_json(path: str, value: Any) -> None:
    """Writes a value as JSON with sorted structure kept as given; NaN is refused, as JSON has none."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def move_aside(path: str) -> str | None:
    """Renames a file or folder to `<path>.old-<time>` and returns the new name; None if nothing is there."""
    if not exists(path):
        return None
    aside = f"{path}.old-{time.strftime('%Y%m%d-%H%M%S')}"
    while exists(aside):  # two runs set aside within a second
        aside += "x"
    if is_remote(path):
        _gfile().rename(path, aside)
    else:
        os.rename(path, aside)
    return aside
