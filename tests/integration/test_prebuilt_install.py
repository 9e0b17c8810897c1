"""The source distribution in the prebuilt container: what its wrapper does, on a stand-in for the image.

The image is played by a Python 3.10 that sees the packages of TensorFlow 2.17 and what comes with it, and no
others. The wrapper installs with `pip install --user`, whose folder comes before the image's
packages: whatever it pulls there shadows them.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from checkout import build_sdist
from packaging.requirements import Requirement

from tests.integration.small_run import small_config

ROOT = Path(__file__).parents[2]
STACK = ROOT / ".venv-tf217"
# What the image holds of ours: TensorFlow with all that it needs, and these.
IMAGE = ("tensorflow", "tensorboard", "pydantic", "cloudml-hypertune", "setuptools", "wheel", "pip")
NEVER = ("tensorflow", "keras", "numpy", "protobuf", "pydantic", "pydantic-core", "tensorboard", "h5py")

pytestmark = pytest.mark.skipif(
    not (STACK / "bin" / "python").exists() or sys.version_info < (3, 11),
    reason="no .venv-tf217 here (make venv-tf217), or the tests run in it",
)


@dataclass(frozen=True)
class Image:
    """The stand-in.

    Attributes:
        python: its interpreter.
        user: the folder that `pip install --user` writes to.
        env: its environment variables.
    """

    python: Path
    user: Path
    env: dict[str, str]

    def run(self, *argv: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs its Python."""
        return subprocess.run(
            [str(self.python), *argv], cwd=cwd, env={**self.env, **env}, capture_output=True, text=True
        )

    def pip(self, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Runs its pip."""
        return self.run("-m", "pip", *argv, cwd=cwd)

    def installed(self) -> set[str]:
        """Returns the names of what lies in the user's folder."""
        found = importlib.metadata.distributions(
            path=[str(path) for path in self.user.glob("lib/*/site-packages")]
        )
        return {normal(dist.metadata["Name"]) for dist in found}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(site: Path) -> list[importlib.metadata.Distribution]:
    """Returns the distributions of IMAGE and of all that they need, for Linux and Python 3.10."""
    every = {
        normal(dist.metadata["Name"]): dist for dist in importlib.metadata.distributions(path=[str(site)])
    }
    environment = {"python_version": "3.10", "python_full_version": "3.10.13", "extra": ""}
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(IMAGE)
    while waiting:
        name = normal(waiting.pop())
        if name in found or name not in every:
            continue
        found[name] = every[name]
        for line in every[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(environment):
                waiting.append(requirement.name)
    return list(found.values())


def link(dist: importlib.metadata.Distribution, site: Path, target: Path) -> None:
    """Links a distribution's files into a folder; `google` is shared by several, so its parts are linked."""
    for file in dist.files or ():
        parts = file.parts
        if parts[0] in ("..", "__pycache__") or parts[0].endswith(".pth"):
            continue
        depth = 2 if parts[0] == "google" and len(parts) > 2 else 1
        place = target.joinpath(*parts[:depth])
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(site.joinpath(*parts[:depth]))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("image")
    subprocess.run(
        [
            str(STACK / "bin" / "python"),
            "-m",
            "venv",
            "--without-pip",
            "--system-site-packages",
            str(folder / "venv"),
        ],
        check=True,
    )
    (site,) = (STACK / "lib").resolve().glob("python3.10/site-packages")
    packages = folder / "packages"
    packages.mkdir()
    for dist in closure(site):
        link(dist, site, packages)
    (own,) = (folder / "venv" / "lib").glob("python3.10/site-packages")
    # Last on the path, as the image's packages are: behind the user's folder.
    (own / "sitecustomize.py").write_text(
        "import sys\n"
        f"own = ({str(own)!r}, {str(folder / 'user')!r})\n"
        "sys.path[:] = [p for p in sys.path if not p.endswith('site-packages') or p.startswith(own)]\n"
        f"sys.path.append({str(packages)!r})\n"
    )
    unwanted = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TF_CONFIG")
    env = {name: value for name, value in os.environ.items() if name not in unwanted}
    env |= {"PYTHONUSERBASE": str(folder / "user"), "PIP_NO_WARN_SCRIPT_LOCATION": "1", "PIP_NO_INPUT": "1"}
    env |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "HOME": str(folder)}
    (folder / "user" / "lib" / "python3.10" / "site-packages").mkdir(parents=True)
    return Image(folder / "venv" / "bin" / "python", folder / "user", env)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, built from a copy of the checkout: a build leaves files behind."""
    return build_sdist(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def container(image: Image, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image after the wrapper's two passes of pip."""
    work = tmp_path_factory.mktemp("work")
    assert image.pip("check", cwd=work).returncode == 0, "the stand-in itself is not whole"
    probe = image.pip(
        "download", "--quiet", "--no-deps", "--dest", str(work / "probe"), "setuptools", cwd=work
    )
    if probe.returncode:
        pytest.skip(f"no package index in reach: {probe.stderr.strip().splitlines()[-1]}")
    first = image.pip(
        "install", "--user", "--upgrade", "--force-reinstall", "--no-deps", str(archive), cwd=work
    )
    assert first.returncode == 0, first.stderr
    assert image.installed() == {"trainer"}
    second = image.pip("install", "--user", str(archive), cwd=work)
    assert second.returncode == 0, second.stderr
    return image


@pytest.mark.slow
def test_nothing_of_the_image_is_shadowed(container: Image, tmp_path: Path) -> None:
    installed = container.installed()
    assert "pyarrow" in installed, "the image lacks it: pip had to bring it"
    assert not installed & set(NEVER)
    path = container.run("-c", "import sys; print(sys.path)", cwd=tmp_path).stdout
    assert 0 < path.index(str(container.user)) < path.index("/packages"), "the user's folder comes first"
    # Whatever else it brought is in no package of the image: nothing was upgraded.
    site = next((STACK / "lib").resolve().glob("python3.10/site-packages"))
    assert not installed & {normal(dist.metadata["Name"]) for dist in closure(site)}


@pytest.mark.slow
def test_pip_check(container: Image, tmp_path: Path) -> None:
    done = container.pip("check", cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_what_pip_chose_is_what_is_locked_and_tested(container: Image, tmp_path: Path) -> None:
    """The versions that a job gets today and those of requirements/tf217.txt have the same majors."""
    listed = json.loads(container.pip("list", "--user", "--format=json", cwd=tmp_path).stdout)
    got = {normal(item["name"]): item["version"] for item in listed}
    text = (ROOT / "requirements" / "tf217.txt").read_text()
    for name in ("pyarrow", "fastavro", "google-cloud-bigquery-storage", "matplotlib"):
        locked = re.search(rf"^{name}(?:\[.*\])?==([^ ;]+)", text, re.MULTILINE)
        assert locked is not None
        assert got[name].split(".")[0] == locked[1].split(".")[0], (name, got[name], locked[1])


@pytest.mark.slow
def test_it_trains_from_another_folder(container: Image, tmp_path: Path) -> None:
    """The service's own command, in a folder that is neither the package's nor the checkout's."""
    import pyarrow.parquet as pq

    from tests.integration.small_run import small_table

    pq.write_table(small_table(), tmp_path / "rows.parquet")
    (tmp_path / "configs").mkdir()
    config = tmp_path / "configs" / "small.yaml"
    config.write_text(yaml.safe_dump(small_config(tmp_path / "rows.parquet", epochs=1)))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    out = tmp_path / "out"
    done = container.run(
        "-m", "trainer.task", f"--config={config}", "--report.importance_rows=0",
        cwd=elsewhere,
        AIP_MODEL_DIR=f"{out}/model/", AIP_CHECKPOINT_DIR=f"{out}/checkpoints/",
        AIP_TENSORBOARD_LOG_DIR=f"{out}/logs/", CLOUD_ML_JOB_ID="1", CLOUD_ML_PROJECT_ID="1234",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (out / "model" / "saved_model.pb").exists()
    assert (out / "report.html").exists(), "package data came along"
    assert not list(elsewhere.iterdir())
    # One JSON object a line: what the service's log viewer takes apart.
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"severity", "message"} <= set(entries[0])
