"""Files of a run where a file system does less, or other, than a local disk: mounted buckets and NFS."""

from __future__ import annotations

import builtins
import errno
import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mounts
import pytest

from trainer import storage
from trainer.data.cache import DiskCache
from trainer.errors import UserError
from trainer.lock import MOUNT_WATCH_SECONDS, WATCH_SECONDS, FolderLock

pytestmark = pytest.mark.faults


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return mounts.refuse(monkeypatch, tmp_path / "gcs" / "bucket")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def written(folder: Path) -> dict[str, bytes]:
    for name in ("a.json", "model/saved_model.pb", "model/variables/x", "model/zz"):
        storage.write_text(str(folder / name), name)
    return files(folder)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/gcs/b/x", True),
        ("/gcs/b/../b", True),
        ("gs://b/x", False),
        ("/gcsx/b", False),
        ("/mnt/nfs/x", False),
    ],
)
def test_what_a_mounted_bucket_is(path: str, expected: bool) -> None:
    assert storage.is_bucket_mount(path) is expected


def test_a_folder_that_cannot_be_renamed_is_moved_file_by_file(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = written(bucket / "run")
    aside = storage.move_aside(str(bucket / "run"))
    assert aside is not None
    assert files(Path(aside)) == content
    assert not (bucket / "run").exists()

    order, copy = [], shutil.copyfile
    monkeypatch.setattr(shutil, "copyfile", lambda a, b: (order.append(Path(a).name), copy(a, b))[1])
    storage.move(f"{aside}/model", str(bucket / "model"), last="saved_model.pb")
    assert order[-1] == "saved_model.pb"
    assert sorted(order) == ["saved_model.pb", "x", "zz"]


def test_what_cannot_be_moved_stays_whole(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = written(bucket / "run")
    written(bucket / "other")
    with pytest.raises(OSError, match="rename a folder"):
        storage.move(str(bucket / "run"), str(bucket / "other"))
    with pytest.raises(FileNotFoundError):
        storage.move(str(bucket / "none"), str(bucket / "more"))

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space"):
        storage.move(str(bucket / "run"), str(bucket / "more"))
    assert files(bucket / "run") == content


def test_rows_are_not_mapped_from_a_mounted_bucket(bucket: Path) -> None:
    with pytest.raises(UserError, match=r"data\.cache_dir: .* is not a local folder"):
        DiskCache(str(bucket / "run" / "cache"), "x")


# --- NFS, and what another machine writes -----------------------------------------------------------


def test_a_file_that_another_machine_replaces_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "x.json")
    storage.write_json(path, {"x": 1})
    real, stale = builtins.open, [2]

    def open_file(file: Any, *more: Any, **options: Any) -> Any:
        if file == path and stale[0]:
            stale[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(file, *more, **options)

    monkeypatch.setattr(builtins, "open", open_file)
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
    assert storage.read_json(path) == {"x": 1}
    stale[0] = 100
    with pytest.raises(OSError, match="Stale file handle"):
        storage.read_json(path)


def test_a_file_that_goes_while_it_is_looked_for_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "exists", lambda path: True)
    assert storage.read_json(str(tmp_path / "gone.json")) is None


@pytest.mark.parametrize(
    ("seen", "held"),
    [
        (["stale", 4, 4, "stale", 5], True),  # it can't be read just after it was written anew
        ([4, "stale", "stale", 5], True),
        ([4, 4, 4, None], False),
        (["stale", 4, 4, 4, 4], False),
        (["stale", "stale", None], False),
    ],
)
def test_a_lock_of_another_machine(
    seen: list[Any], held: bool, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = FolderLock(str(bucket))
    assert (lock._watch, FolderLock("/mnt/nfs/run")._watch) == (MOUNT_WATCH_SECONDS, WATCH_SECONDS)
    storage.write_text(lock.path, "{}")
    clock, real, left = [0.0], storage.read_json, list(seen)

    def read(path: str) -> Any:
        if lock._beats:
            return real(path)
        now = left.pop(0) if len(left) > 1 else left[0]
        if now == "stale":
            raise OSError(errno.ESTALE, "Stale file handle")
        return None if now is None else {"pid": 1, "host": "elsewhere", "id": "x", "beat": now}

    monkeypatch.setattr(storage, "read_json", read)
    later = lambda seconds: clock.__setitem__(0, clock[0] + seconds)  # noqa: E731
    ticking = SimpleNamespace(
        sleep=later, monotonic=lambda: clock[0], strftime=time.strftime, gmtime=time.gmtime
    )
    monkeypatch.setattr("trainer.lock.time", ticking)
    if held:
        with pytest.raises(UserError, match="in use by process 1 on host elsewhere"):
            lock.acquire()
        return
    lock.acquire()
    assert json.loads(Path(lock.path).read_text())["id"] == lock._id
    lock.release()
    assert not Path(lock.path).exists()
