from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.errors import UserError
from trainer.lock import FolderLock

pytestmark = pytest.mark.faults

HOLD = """
import sys, time
from trainer.lock import FolderLock
with FolderLock(sys.argv[1], heartbeat=0.05):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock of tmp_path."""
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": root})
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_the_second_job_is_refused(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(UserError, match=f"in use by process {holder.pid} on host .*output_dir"):
        FolderLock(str(tmp_path)).acquire()


def test_a_killed_job_holds_nothing(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()  # no chance to release
    holder.wait()
    assert (tmp_path / "lock.json").exists()
    with FolderLock(str(tmp_path), watch=1e6):  # no watching: the process table tells
        pass


def test_the_same_pid_of_an_earlier_life_holds_nothing(tmp_path: Path) -> None:
    with FolderLock(str(tmp_path)):
        content = json.loads((tmp_path / "lock.json").read_text())
    content["started"] = "1"  # as in a container, where each start is process 1
    (tmp_path / "lock.json").write_text(json.dumps(content))
    FolderLock(str(tmp_path), watch=0).acquire()


def test_a_dead_stranger_is_watched_and_then_replaced(tmp_path: Path) -> None:
    (tmp_path / "lock.json").write_text(json.dumps({"pid": 1, "host": "elsewhere", "id": "x", "beat": 4}))
    lock = FolderLock(str(tmp_path), watch=0.3)
    lock.acquire()
    lock.release()
    assert not (tmp_path / "lock.json").exists()


def test_a_living_stranger_is_respected(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    content = json.loads((tmp_path / "lock.json").read_text())
    # As if seen from another machine: only the heartbeat can tell.
    lock = FolderLock(str(tmp_path), watch=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "another")
        with pytest.raises(UserError, match=f"in use by process {content['pid']}"):
            lock.acquire()


def test_a_broken_lock_file_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock.json").write_text('{"pid": 1')
    with FolderLock(str(tmp_path)):
        pass


def test_release_leaves_the_lock_of_another_alone(tmp_path: Path) -> None:
    lock = FolderLock(str(tmp_path))
    lock.acquire()
    (tmp_path / "lock.json").write_text(json.dumps({"id": "another"}))
    lock.release()
    assert (tmp_path / "lock.json").exists()


def test_the_heart_beats(tmp_path: Path) -> None:
    with FolderLock(str(tmp_path), heartbeat=0.02):
        limit = time.monotonic() + 30
        while json.loads((tmp_path / "lock.json").read_text())["beat"] < 3:
            assert time.monotonic() < limit
            time.sleep(0.02)
