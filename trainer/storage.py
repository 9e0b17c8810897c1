"""Small files of a run, on a local disk or on gs://. Adopters: leave.

Local paths go through the operating system, so that nothing here needs TensorFlow; `gs://` paths go
through `tf.io.gfile`, which is imported only then. A bucket that is mounted as a folder is a local path,
where files can be renamed and folders can't.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from typing import Any

BUCKET_MOUNTS = ("/gcs/",)  # where the service mounts buckets
_STALE_TRIES = 5  # openings of a file that is replaced on another machine (NFS)


def is_remote(path: str) -> bool:
    """Returns whether `path` names an object store (`scheme://...`) and not a local file."""
    return "://" in path


def is_bucket_mount(path: str) -> bool:
    """Returns whether `path` lies in a bucket that is mounted as a folder."""
    return not is_remote(path) and f"{os.path.abspath(path)}/".startswith(BUCKET_MOUNTS)


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
    for left in reversed(range(_STALE_TRIES)):
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except OSError as error:
            if error.errno != errno.ESTALE or not left:
                raise
            time.sleep(0.1)
    raise AssertionError  # the last try returns or raises


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
    gone: tuple[type[Exception], ...] = (FileNotFoundError,)
    if is_remote(path):
        import tensorflow as tf

        gone = (tf.errors.NotFoundError,)
    try:
        return json.loads(read_text(path)) if exists(path) else None
    except gone:  # removed under our eyes
        return None


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
        move(path, aside)
    return aside


def move(source: str, target: str, last: str = "") -> None:
    """Renames a local file or folder; where no folder can be renamed, copies its files and deletes it.

    Args:
        source: What is moved.
        target: A name that is free, or an empty folder.
        last: File of the folder that comes last: whoever finds it there finds all.

    Raises:
        OSError: It can't be moved; the source is whole.
    """
    try:
        os.rename(source, target)
        return
    except OSError:
        if not os.path.isdir(source) or listing(target):
            raise
    names = [
        os.path.relpath(os.path.join(base, name), source)
        for base, _, files in os.walk(source)
        for name in files
    ]
    for name in sorted(names, key=lambda name: (name == last, name)):
        place = os.path.join(target, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        shutil.copyfile(os.path.join(source, name), place)
    shutil.rmtree(source)
