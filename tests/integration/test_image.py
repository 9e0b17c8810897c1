"""The CPU image, built where no Docker engine runs, and a job in it as an ordinary user: make test-image.

The base is a Debian of debootstrap in place of python:3.12-slim, with Debian's own Python; all else is the
Dockerfile as it is. buildah builds it without a daemon and without namespaces (chroot), so that it works in a
container too; it needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.integration.small_run import small_config

ROOT = Path(__file__).parents[2]
RELEASE = "bookworm"  # its Python, 3.11, is one that requirements/default.txt is compiled for
TOOLS = ("buildah", "debootstrap", "apt-get")
USER = 1000

pytestmark = [pytest.mark.image, pytest.mark.slow, pytest.mark.timeout(3000)]


def why_not() -> str:
    """Returns why the image can't be built here, or nothing."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} missing: apt-get install --no-install-recommends buildah debootstrap"
    return "" if os.geteuid() == 0 else "not root: debootstrap and buildah --isolation chroot need it"


@dataclass(frozen=True)
class Buildah:
    """buildah with a store of its own.

    Attributes:
        store: folder of images and containers.
    """

    store: Path

    def __call__(self, command: str, *argv: str) -> str:
        """Runs a command and returns what it prints."""
        places = ["--root", str(self.store / "root"), "--runroot", str(self.store / "run")]
        done = subprocess.run(
            ["buildah", *places, "--storage-driver", "vfs", command, *argv], capture_output=True, text=True
        )
        assert done.returncode == 0, f"buildah {command}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout.strip()


def mirror() -> str:
    """Returns the Debian mirror that this machine's own apt uses."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    listed = subprocess.run(
        [*command, f"Codename: {RELEASE}"], capture_output=True, text=True, check=True
    ).stdout.split()
    if not listed:  # another release of Debian: the same mirror has all of them
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return next(iter(listed), "")


def pip_settings(folder: Path) -> list[str]:
    """Returns the volumes that bring this machine's index and certificates into the build alone."""
    volumes = []
    if os.path.isdir("/etc/ssl/certs"):
        volumes += ["--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"]
    lines = ["[global]"]
    bundle = "/etc/ssl/certs/ca-certificates.crt"
    if os.path.exists(bundle):
        lines.append(f"cert = {bundle}")
    if index := os.environ.get("PIP_INDEX_URL"):
        lines.append(f"index-url = {index}")
    (folder / "pip.conf").write_text("\n".join(lines) + "\n")
    return [*volumes, "--volume", f"{folder / 'pip.conf'}:/etc/pip.conf:ro"]


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("buildah")
    yield Buildah(folder)
    shutil.rmtree(folder, ignore_errors=True)  # gigabytes


@pytest.fixture(scope="module")
def image(buildah: Buildah, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Builds the image and returns its name; the times of the steps are printed."""
    folder = tmp_path_factory.mktemp("base")
    began = time.monotonic()
    made = subprocess.run(
        [
            "debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates",
            RELEASE, str(folder / "base"), mirror(),
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"debootstrap can't make a base here: {made.stdout.strip().splitlines()[-1]}")
    print(f"\nbase {time.monotonic() - began:.0f} s", end="")
    began = time.monotonic()
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, str(folder / "base"), "/")
    buildah("commit", "--quiet", "--rm", container, "localhost/base")
    shutil.rmtree(folder / "base", ignore_errors=True)
    labels = {
        "VERSION": "9.9.9",
        "REVISION": "0123456789ab",
        "CREATED": "2026-01-31T00:00:00Z",
        "SOURCE": "here",
    }
    arguments = [f"--build-arg={name}={value}" for name, value in labels.items()]
    buildah(
        "bud", "--isolation", "chroot", "--layers=false", "--build-arg=BASE_IMAGE=localhost/base",
        *arguments, *pip_settings(folder), "--tag", "localhost/trainer", str(ROOT),
    )  # fmt: skip
    print(f", image {time.monotonic() - began:.0f} s", end="")
    return "localhost/trainer"


@pytest.fixture(scope="module")
def container(buildah: Buildah, image: str) -> str:
    return buildah("from", image)


def test_what_the_image_says_of_itself(buildah: Buildah, image: str) -> None:
    config = json.loads(buildah("inspect", "--type", "image", image))["OCIv1"]["config"]
    assert config["Entrypoint"] == ["python", "-m", "trainer.task"]
    assert config["User"] == str(USER)
    assert config["WorkingDir"] == "/app"
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in config["Labels"].items()}
    assert labels["version"] == "9.9.9"
    assert labels["revision"] == "0123456789ab"
    assert labels["created"] == "2026-01-31T00:00:00Z"
    assert labels["base.name"] == "localhost/base"


def test_what_is_in_it(buildah: Buildah, container: str) -> None:
    """The trainer and its configs, nothing of the checkout besides, no cache and no build tools' leavings."""
    script = (
        "ls /app; echo --; id -u; echo --; ls -d /root/.cache /home/*/.cache /requirements 2>/dev/null;"
        " ls /tmp; echo --; test -w /app && echo writable; pip check"
    )
    shown = buildah("run", "--isolation", "chroot", container, "--", "sh", "-c", script)
    app, user, caches, rest = shown.split("--\n")
    assert app.split() == ["configs", "trainer"]
    assert user.strip() == str(USER)
    assert caches.strip() == ""
    assert "writable" not in rest
    assert "No broken requirements found" in rest


def test_a_job_of_one_epoch_as_an_ordinary_user(
    buildah: Buildah, container: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The image's own entry point, data and output on mounted folders, as on the service."""
    import pyarrow.parquet as pq

    from tests.integration.small_run import small_table

    folder = tmp_path_factory.mktemp("mounted")
    pq.write_table(small_table(), folder / "rows.parquet")
    (folder / "small.yaml").write_text(yaml.safe_dump(small_config(Path("/mnt/data/rows.parquet"), epochs=1)))
    out = folder / "out"
    out.mkdir()
    os.chown(out, USER, USER)
    for parent in (folder, *folder.parents):  # pytest's folders are closed to others
        if parent == Path("/tmp"):
            break
        parent.chmod(0o755)
    variables = {
        "AIP_MODEL_DIR": "/mnt/data/out/model/",
        "AIP_CHECKPOINT_DIR": "/mnt/data/out/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": "/mnt/data/out/logs/",
        "CLOUD_ML_JOB_ID": "1",
    }
    config = json.loads(buildah("inspect", container))["OCIv1"]["config"]
    began = time.monotonic()
    shown = buildah(
        "run", "--isolation", "chroot", "--volume", f"{folder}:/mnt/data",
        *[word for name, value in variables.items() for word in ("--env", f"{name}={value}")],
        container, "--", *config["Entrypoint"], "--config=/mnt/data/small.yaml", "--report.importance_rows=0",
    )  # fmt: skip
    print(f", job {time.monotonic() - began:.0f} s")
    last = json.loads(shown.splitlines()[-1])
    assert last["severity"] == "INFO"
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["epochs"] == 1
    for name in ("model/saved_model.pb", "report.html", "checkpoints"):
        assert (out / name).exists()
        assert (out / name).stat().st_uid == USER
