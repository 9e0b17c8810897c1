"""Images without a Docker engine: buildah on a Debian of debootstrap, and the reasons why a machine can't.

Containers of CI differ in what they allow. What the machine withholds (a tool, root, devices, mounts, a
mirror, the package index, disk, time) is a `NotHereError` with its reason; what is left is a fault of the
Dockerfile. To tell the two apart, each thing that the Dockerfile needs of the machine is tried on the base
alone first, and once more after a build that failed.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RELEASE = "bookworm"  # its Python, 3.11, is one that requirements/default.txt is compiled for
TOOLS = ("buildah", "debootstrap")
BASE = "localhost/base"
DEBIAN = "http://deb.debian.org/debian"
# Two stages, the image and its blob under way: 9 GB where layers share files, 15 GB where each is a copy.
ROOM = {"overlay": 12 * 10**9, "vfs": 20 * 10**9}
# pip's settings that say where packages come from and how they are reached; the last two name files.
PIP = (
    "index-url",
    "extra-index-url",
    "find-links",
    "trusted-host",
    "no-index",
    "proxy",
    "timeout",
    "default-timeout",
    "retries",
)
PIP_FILES = ("cert", "client-cert")


class NotHereError(Exception):
    """This machine can't build the image; the text says why."""


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: its exit code; None if its time was over.
        output: what it wrote on standard output.
        errors: what it wrote on standard error.
        seconds: the time it had.
    """

    code: int | None
    output: str
    errors: str
    seconds: float

    @property
    def said(self) -> str:
        return f"{self.output}\n{self.errors}"

    @property
    def why(self) -> str:
        """The end of what it said, on one line."""
        lines = [line.strip() for line in self.said.splitlines() if line.strip()]
        short = [line if len(line) < 300 else f"{line[:60]} ... {line[-200:]}" for line in lines[-2:]]
        slow = f"more than {self.seconds:.0f} s, up to: " if self.code is None else ""
        return slow + (" / ".join(short) or f"exit code {self.code}")


def run(argv: Sequence[str], seconds: float, env: Mapping[str, str] | None = None) -> Ended:
    """Runs a command, and ends it with its children when its time is over."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return Ended(None, *process.communicate(), seconds)
    except BaseException:  # Ctrl-C, or pytest's own limit
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Ended(process.returncode, output, errors, seconds)


@dataclass(frozen=True)
class Buildah:
    """buildah with a store and settings of its own, whatever this machine's say.

    Attributes:
        store: folder of images and containers, and of what is under way.
        driver: overlay, or vfs, which copies each layer and works on any file system.
    """

    store: Path
    driver: str

    def try_to(self, command: str, *argv: str, seconds: float = 300) -> Ended:
        """Runs a command, which may fail."""
        places = ["--root", str(self.store / "root"), "--runroot", str(self.store / "run")]
        under_way = self.store / "tmp"
        under_way.mkdir(parents=True, exist_ok=True)
        storage, policy = self.store / "storage.conf", self.store / "policy.json"
        storage.write_text(f'[storage]\ndriver = "{self.driver}"\n')
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')  # images of this store alone
        trusting = ["--signature-policy", str(policy)] if command in ("from", "bud", "commit") else []
        if command in ("from", "bud"):
            trusting.append("--pull=never")  # no registry is asked
        return run(
            ["buildah", *places, "--storage-driver", self.driver, command, *trusting, *argv],
            seconds,
            {
                "TMPDIR": str(under_way),
                "BUILDAH_ISOLATION": "chroot",  # no namespaces, no runtime: works in a container too
                "CONTAINERS_CONF": os.devnull,
                "CONTAINERS_STORAGE_CONF": str(storage),
            },
        )

    def __call__(self, command: str, *argv: str, seconds: float = 300) -> str:
        """Runs a command that has to succeed and returns what it prints."""
        ended = self.try_to(command, *argv, seconds=seconds)
        assert ended.code == 0, f"buildah {command}: exit code {ended.code}\n{ended.said[-6000:]}"
        return ended.output.strip()


def tools(store: Path) -> Buildah:
    """Returns buildah with the best storage driver that this machine has.

    Raises:
        NotHereError: a tool, root or disk is missing, or buildah can't keep images here.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise NotHereError(
            f"{' and '.join(missing)} missing: apt-get install --no-install-recommends {' '.join(TOOLS)}"
        )
    if os.geteuid() != 0:
        raise NotHereError("not root, which debootstrap and buildah's chroot isolation need")
    for driver, room in ROOM.items():
        buildah = Buildah(store / driver, driver)
        ended = buildah.try_to("info", seconds=60)
        if ended.code == 0:
            free = shutil.disk_usage(store).free
            if free < room:
                raise NotHereError(
                    f"{free / 1e9:.0f} GB free in {store}, {room / 1e9:.0f} GB needed ({driver})"
                )
            return buildah
    raise NotHereError(f"buildah can't keep images here: {ended.why}")


def mirror() -> str:
    """Returns the Debian mirror that this machine's own apt uses, else Debian's own."""
    command = [
        "apt-get",
        "indextargets",
        "--format",
        "$(CODENAME) $(REPO_URI)",
        "Created-By: Packages",
        "Origin: Debian",
    ]
    listed = []
    if shutil.which("apt-get"):
        listed = [line.split() for line in run(command, 60).output.splitlines()]
    mirrors = [words for words in listed if len(words) == 2 and words[1].startswith(("http://", "https://"))]
    mirrors.sort(key=lambda words: words[0] != RELEASE)  # of another release: the same mirror has them all
    return mirrors[0][1] if mirrors else DEBIAN


def apt_proxy() -> dict[str, str]:
    """Returns the proxy of this machine's apt, which debootstrap asks for only in the environment."""
    if "http_proxy" in os.environ or not shutil.which("apt-config"):
        return {}
    proxy = run(["apt-config", "dump", "--format", "%v%n", "Acquire::http::Proxy"], 60).output.strip()
    return {} if proxy in ("", "DIRECT") else {"http_proxy": proxy}


def pip_settings(listed: str) -> tuple[list[str], list[str]]:
    """Reads how packages are reached from `pip config list`: lines of section.option='value'.

    Packages on this machine's own disk are left out: an index of files points anywhere on it.

    Returns:
        The lines of a pip.conf, and the files that they name.
    """
    sections = {"global": 0, "install": 1, ":env:": 2}  # the last wins
    chosen: dict[str, tuple[int, str]] = {}
    for line in listed.splitlines():
        key, _, text = line.partition("=")
        section, _, option = key.rpartition(".")
        if section in sections and option in PIP + PIP_FILES:
            chosen[option] = max(chosen.get(option, (0, "")), (sections[section], ast.literal_eval(text)))
    options = {option: text.split() for option, (_, text) in chosen.items()}
    if "cert" not in options and os.path.exists(bundle := "/etc/ssl/certs/ca-certificates.crt"):
        options["cert"] = [bundle]  # this machine's own authorities, which the base doesn't know
    for option in ("index-url", "extra-index-url", "find-links"):
        options[option] = [
            place for place in options.get(option, []) if place.startswith(("http://", "https://"))
        ]
    lines = [f"{option} = {' '.join(words)}" for option, words in options.items() if words]
    return ["[global]", *lines], [file for option in PIP_FILES for file in options.get(option, [])]


def pip_volumes(folder: Path) -> list[str]:
    """Returns the options of buildah that bring the settings of this machine's pip into the build alone."""
    lines, files = pip_settings(run([sys.executable, "-m", "pip", "config", "list"], 60).output)
    (folder / "pip.conf").write_text("\n".join(lines) + "\n")
    pairs = [(str(folder / "pip.conf"), "/etc/pip.conf"), *((file, file) for file in files)]
    return [word for source, target in pairs for word in ("--volume", f"{source}:{target}:ro")]


def make_base(buildah: Buildah, folder: Path, seconds: float = 400) -> None:
    """Makes the image that stands in the place of python:3.12-slim: Debian with its own Python.

    Raises:
        NotHereError: devices, mounts or the mirror aren't to be had.
    """
    target = folder / "base"
    command = [
        "debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", RELEASE,
        str(target), mirror(),
    ]  # fmt: skip
    try:
        ended = run(command, seconds, apt_proxy())
        if ended.code != 0:
            raise NotHereError(f"debootstrap can't make a base here: {ended.why}")
        remove(target / "dev")  # a step gets this machine's own, and not everyone may copy devices
        (target / "dev").mkdir(parents=True, exist_ok=True)
        for step in (
            ("from", "--name", "base", "scratch"),
            ("add", "--quiet", "base", str(target), "/"),
            ("commit", "--quiet", "base", BASE),
        ):
            ended = buildah.try_to(*step)
            if ended.code != 0:
                raise NotHereError(f"buildah can't make an image here: {ended.why}")
    finally:
        remove(target)


def try_base(buildah: Buildah, volumes: Sequence[str]) -> None:
    """Does on the base what the Dockerfile's steps need of the machine, and nothing of the Dockerfile's own.

    Raises:
        NotHereError: a step can't run here (chroot, mounts, users), or doesn't reach the package index.
    """
    buildah.try_to("rm", "base")
    ended = buildah.try_to("from", "--name", "base", BASE)
    if ended.code == 0:
        script = "cd /tmp && echo x >mine"
        ended = buildah.try_to("run", "--user", "nobody", *volumes, "base", "--", "sh", "-c", script)
    if ended.code != 0:
        raise NotHereError(f"buildah can't run a step here: {ended.why}")
    script = "python3 -m venv /tmp/venv && /tmp/venv/bin/pip download --quiet --no-deps --dest /tmp/any wheel"
    ended = buildah.try_to("run", *volumes, "base", "--", "sh", "-c", script)
    if ended.code != 0:
        raise NotHereError(f"no package index is reached from a build: {ended.why}")
    buildah.try_to("rm", "base")


def build(
    buildah: Buildah, context: Path, tag: str, volumes: Sequence[str], seconds: float, *argv: str
) -> None:
    """Builds the Dockerfile of `context` on the base.

    Raises:
        NotHereError: it took too long, the disk is full, or the base alone no longer does what it did before.
        AssertionError: the Dockerfile's own fault, with the end of its output.
    """
    ended = buildah.try_to(
        "bud", "--layers=false", f"--build-arg=BASE_IMAGE={BASE}", *argv, *volumes, "--tag", tag,
        str(context), seconds=seconds,
    )  # fmt: skip
    if ended.code == 0:
        return
    if ended.code is None:
        raise NotHereError(f"the build takes too long here: {ended.why}")
    full = re.search(r".*(no space left on device|disk quota exceeded)", ended.said, re.IGNORECASE)
    if full is not None:
        raise NotHereError(f"the disk was full before the image was built: {full[0][-300:].strip()}")
    if ended.code < 0 or "exit status 137" in ended.said:
        raise NotHereError(f"the build was killed, as is done where memory is short: {ended.why}")
    try_base(buildah, volumes)
    raise AssertionError(f"the Dockerfile can't be built: exit code {ended.code}\n{ended.said[-6000:]}")


def inspect(buildah: Buildah, kind: str, name: str) -> dict:
    """Returns the configuration of an image or a container."""
    return json.loads(buildah("inspect", "--type", kind, name))["OCIv1"]["config"]


def remove(folder: Path) -> None:
    """Removes a folder, once nothing is mounted below it any more: never what a mount shows."""
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        places = [line.split()[4].encode().decode("unicode_escape") for line in mounts]
    below = [place for place in places if Path(place).is_relative_to(folder)]
    for place in reversed(below):
        if run(["umount", "--lazy", place], 60).code != 0:
            return
    shutil.rmtree(folder, ignore_errors=True)
