"""The CPU image, built where no Docker engine runs, and a job in it as an ordinary user: make test-image.

The base is a Debian of debootstrap in place of python:3.12-slim, with Debian's own Python; all else is the
Dockerfile as it is. Where the machine doesn't allow it the tests are skipped with the reason: image_build.py.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration import image_build
from tests.integration.image_build import Buildah, NotHereError
from tests.integration.small_run import small_config

ROOT = Path(__file__).parents[2]
USER = 1000
IMAGE = "localhost/trainer"
LABELS = {"VERSION": "9.9.9", "REVISION": "0123456789ab", "CREATED": "2026-01-31T00:00:00Z", "SOURCE": "here"}
SECONDS = 600  # of the build; it takes 190 on two idle cores

pytestmark = [pytest.mark.image, pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("image")
    yield folder
    image_build.remove(folder)  # gigabytes


@pytest.fixture(scope="module")
def buildah(folder: Path) -> Buildah:
    """Returns buildah with the image in its store; the times of the steps are printed."""
    began = time.monotonic()
    try:
        buildah = image_build.tools(folder)
        print(f"\n{buildah.driver}", end="")
        volumes = image_build.pip_volumes(folder)
        image_build.make_base(buildah, folder)
        image_build.try_base(buildah, volumes)
        print(f", base {time.monotonic() - began:.0f} s", end="")
        began = time.monotonic()
        arguments = [f"--build-arg={name}={value}" for name, value in LABELS.items()]
        image_build.build(buildah, ROOT, IMAGE, volumes, SECONDS, *arguments)
    except NotHereError as reason:
        pytest.skip(str(reason))
    print(f", image {time.monotonic() - began:.0f} s", end="")
    return buildah


@pytest.fixture(scope="module")
def container(buildah: Buildah) -> str:
    return buildah("from", IMAGE)


def test_what_the_image_says_of_itself(buildah: Buildah) -> None:
    config = image_build.inspect(buildah, "image", IMAGE)
    assert config["Entrypoint"] == ["python", "-m", "trainer.task"]
    assert config["User"] == str(USER)
    assert config["WorkingDir"] == "/app"
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in config["Labels"].items()}
    assert {name: labels[name.lower()] for name in LABELS} == LABELS
    assert labels["base.name"] == image_build.BASE


def test_what_is_in_it(buildah: Buildah, container: str) -> None:
    """The trainer and its configs, nothing of the checkout besides, no cache and no build tools' leavings."""
    script = (
        "ls /app; echo --; id -u; echo --; ls -d /root/.cache /home/*/.cache /requirements 2>/dev/null;"
        " ls /tmp; echo --; test -w /app && echo writable; pip check"
    )
    shown = buildah("run", container, "--", "sh", "-c", script)
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
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == 0 and parent.name.startswith(("mounted", "pytest-")):  # closed to others
            parent.chmod(0o755)
    variables = {
        "AIP_MODEL_DIR": "/mnt/data/out/model/",
        "AIP_CHECKPOINT_DIR": "/mnt/data/out/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": "/mnt/data/out/logs/",
        "CLOUD_ML_JOB_ID": "1",
    }
    config = image_build.inspect(buildah, "container", container)
    began = time.monotonic()
    shown = buildah(
        "run", "--volume", f"{folder}:/mnt/data",
        *[word for name, value in variables.items() for word in ("--env", f"{name}={value}")],
        container, "--", *config["Entrypoint"], "--config=/mnt/data/small.yaml", "--report.importance_rows=0",
        seconds=300,
    )  # fmt: skip
    print(f", job {time.monotonic() - began:.0f} s")
    last = json.loads(shown.splitlines()[-1])
    assert last["severity"] == "INFO"
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["epochs"] == 1
    for name in ("model/saved_model.pb", "report.html", "checkpoints"):
        assert (out / name).exists()
        assert (out / name).stat().st_uid == USER
