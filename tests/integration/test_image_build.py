"""Which ends of buildah and debootstrap are the machine's doing, and which the Dockerfile's."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration import image_build
from tests.integration.image_build import NotHereError

Stand = Callable[[str, str], None]

# Does as it is told by the file with the name of its command, in FAKE; else succeeds without a word.
BUILDAH = """#!/bin/sh
driver=$6 command=$7
[ ! -e "$FAKE/$command" ] || . "$FAKE/$command"
"""
DEBOOTSTRAP = """#!/bin/sh
[ ! -e "$FAKE/debootstrap" ] || . "$FAKE/debootstrap"
for target; do :; done
"""


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Tools that stand in for the real ones; returns what tells one of their commands how to behave."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("buildah", BUILDAH), ("debootstrap", DEBOOTSTRAP)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(tools / "told"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    room = namedtuple("room", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room(10**14, 0, 10**14))
    monkeypatch.setattr(image_build, "mirror", lambda: image_build.DEBIAN)
    monkeypatch.setattr(image_build, "apt_proxy", dict)
    (tools / "told").mkdir()
    return lambda command, script: (tools / "told" / command).write_text(script) and None


def build(folder: Path, seconds: float = 60) -> image_build.Buildah:
    """Goes through all the steps of the fixture in test_image.py."""
    buildah = image_build.tools(folder)
    image_build.make_base(buildah, folder)
    image_build.try_base(buildah, [])
    image_build.build(buildah, folder, "localhost/trainer", [], seconds)
    return buildah


def test_what_works_says_nothing(tmp_path: Path, stand: Stand) -> None:
    assert build(tmp_path).driver == "overlay"


def test_vfs_where_overlay_cannot_be(tmp_path: Path, stand: Stand) -> None:
    stand(
        "info", "[ $driver = vfs ] || { echo \"'overlay' is not supported over overlayfs\" >&2; exit 125; }"
    )
    assert build(tmp_path).driver == "vfs"


@pytest.mark.parametrize(
    ("command", "script", "reason"),
    [
        (
            "info",
            "echo 'Error: no subuid ranges found for user \"root\"' >&2; exit 125",
            "keep images.*no subuid",
        ),
        ("info", "exit 1", "keep images here: exit code 1"),
        ("debootstrap", "exit 1", "debootstrap can't make a base here: exit code 1"),
        (
            "debootstrap",
            "echo 'mknod: Operation not permitted' >&2; echo 'E: mounted with noexec or nodev' >&2; exit 1",
            "mknod: Operation not permitted / E: mounted with noexec or nodev",
        ),
        ("debootstrap", "echo 'E: Failed getting release file'; exit 1", "Failed getting release file"),
        (
            "from",
            "echo 'Error: /etc/containers/policy.json: no such file' >&2; exit 125",
            "make an image.*policy",
        ),
        ("add", "echo 'Error: no space left on device' >&2; exit 125", "make an image.*no space left"),
        (
            "run",
            "echo 'error mounting /proc: operation not permitted' >&2; exit 1",
            "run a step.*mounting /proc",
        ),
        (
            "run",
            'case "$*" in *download*) echo "No matching" >&2; exit 1;; esac',
            "package index.*No matching",
        ),
        ("bud", "echo 'write: No space left on device' >&2; exit 1", "disk was full.*No space"),
        ("bud", "echo 'committing: no space left on device' >&2; exit 125", "disk was full.*no space"),
        ("bud", "kill -9 $$", "killed, as is done where memory is short"),
        (
            "bud",
            "echo 'Error: while running runtime: exit status 137' >&2; exit 137",
            "killed, .* status 137",
        ),
        (
            "bud",  # the index is gone in mid-build: so it is for the base alone
            "echo 'case \"$*\" in *download*) exit 1;; esac' >$FAKE/run; echo 'Read timed out' >&2; exit 1",
            "no package index is reached",
        ),
    ],
)
def test_what_the_machine_withholds(
    tmp_path: Path, stand: Stand, command: str, script: str, reason: str
) -> None:
    stand(command, script)
    with pytest.raises(NotHereError, match=reason):
        build(tmp_path)
    assert not (tmp_path / "base").exists()


def test_a_fault_of_the_dockerfile_fails(tmp_path: Path, stand: Stand) -> None:
    stand("bud", "echo 'STEP 7: RUN pip install'; echo 'THESE PACKAGES DO NOT MATCH THE HASHES' >&2; exit 1")
    with pytest.raises(AssertionError, match=r"(?s)can't be built: exit code 1.*STEP 7.*DO NOT MATCH"):
        build(tmp_path)


def test_a_command_that_takes_too_long_is_ended_with_its_children(
    tmp_path: Path, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Path(os.environ["FAKE"], "child")
    stand("bud", "echo STEP 7; sleep 1000 & echo $! >$FAKE/new; mv $FAKE/new $FAKE/child; wait")
    communicate = subprocess.Popen.communicate

    def until_it_hangs(process: subprocess.Popen[str], timeout: float | None = None) -> tuple[str, str]:
        if timeout == 1234:
            while not child.exists():
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(process.args, timeout)
        return communicate(process, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", until_it_hangs)
    with pytest.raises(NotHereError, match="takes too long here: more than 1234 s, up to: STEP 7"):
        build(tmp_path, seconds=1234)
    stat = Path(f"/proc/{child.read_text().strip()}/stat")
    with contextlib.suppress(OSError):  # it is gone
        while stat.read_text().split()[2] != "Z":
            time.sleep(0.01)


def test_what_is_looked_at_first(tmp_path: Path, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    room = namedtuple("room", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room(10**14, 0, 5 * 10**9))
    with pytest.raises(NotHereError, match=r"5 GB free in .*, 12 GB needed \(overlay\)"):
        image_build.tools(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotHereError, match="not root"):
        image_build.tools(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotHereError, match="buildah and debootstrap missing: apt-get install"):
        image_build.tools(tmp_path)


def test_pip_settings_of_this_machine_but_for_its_own_disk() -> None:
    lines, files = image_build.pip_settings(
        "global.index-url='https://mirror.example/simple'\n"
        "install.index-url='https://user:secret@other.example/simple'\n"
        "global.extra-index-url='file:///opt/pypi/simple https://more.example/simple'\n"
        "global.find-links='/opt/wheels'\n"
        "global.constraint='/etc/constraints.txt'\n"
        ":env:.default-timeout='180'\n"
        ":env:.cert='/etc/ssl/own.pem'\n"
        "global.cert='/etc/ssl/other.pem'\n"
        "freeze.timeout='10'\n"
    )
    assert sorted(lines) == sorted([
        "[global]",
        "index-url = https://user:secret@other.example/simple",
        "extra-index-url = https://more.example/simple",
        "default-timeout = 180",
        "cert = /etc/ssl/own.pem",
    ])  # fmt: skip
    assert files == ["/etc/ssl/own.pem"]


def test_what_a_mount_shows_is_never_removed(tmp_path: Path) -> None:
    kept, folder = tmp_path / "kept", tmp_path / "folder with a space"
    (folder / "place").mkdir(parents=True)
    kept.mkdir()
    (kept / "file").write_text("x")
    mounted = subprocess.run(
        ["mount", "--bind", str(kept), str(folder / "place")], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    image_build.remove(folder)
    assert not folder.exists()
    assert (kept / "file").read_text() == "x"
