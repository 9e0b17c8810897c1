"""The source distribution, the locks, the images and the Makefile: what is sent away is what runs here."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from checkout import build_sdist
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LOCKS = ("build", "default", "dev", "data", "gpu", "submit", "tpu", "tf217", "tfio", "serving")


def pins(lock: str, python: str = "3.10") -> dict[str, str]:
    """Returns package -> version of a lock, for Linux and the given Python."""
    found = {}
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    for line in (ROOT / "requirements" / f"{lock}.txt").read_text().splitlines():
        if re.match(r"^[A-Za-z0-9]", line):
            requirement = Requirement(line.rstrip("\\ ").strip())
            if requirement.marker is None or requirement.marker.evaluate(environment):
                found[requirement.name] = str(requirement.specifier).removeprefix("==")
    return found


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the sdist as `make package` does, from a copy: a build leaves files behind."""
    pytest.importorskip("setuptools", reason="the test environment has no setuptools to build with")
    return build_sdist(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)
    (only,) = folder.iterdir()
    return only


def extra(unpacked: Path, name: str) -> list[Requirement]:
    """Returns what an extra of the unpacked sdist asks for."""
    text = (unpacked / "trainer.egg-info" / "requires.txt").read_text()
    return [Requirement(line) for line in text.split(f"[{name}]\n")[1].split("\n[")[0].split()]


def test_sdist_name_is_what_the_service_expects(sdist: Path) -> None:
    assert re.fullmatch(r"trainer-\d+\.\d+\.\d+\.tar\.gz", sdist.name)


def test_sdist_holds_every_file_of_the_package_and_no_more(unpacked: Path) -> None:
    def files(root: Path) -> set[str]:
        return {
            str(path.relative_to(root))
            for path in (root / "trainer").rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    assert files(unpacked) == files(ROOT)
    assert not (unpacked / "tests").exists()


def test_every_folder_with_code_is_a_package() -> None:
    for path in (ROOT / "trainer").rglob("*.py"):
        assert (path.parent / "__init__.py").exists(), (
            f"{path.parent} has no __init__.py: setup.py leaves it out"
        )


def test_installed_sdist_runs_from_another_folder(sdist: Path, tmp_path: Path) -> None:
    """An install without dependencies into an empty folder, then the service's own command."""
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    install += ["--no-index", "--target", str(target), str(sdist)]
    subprocess.run(install, check=True, capture_output=True, cwd=tmp_path)
    env = {**os.environ, "PYTHONPATH": str(target)}
    code = "import trainer; print(trainer.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert where.stdout.startswith(str(target))
    result = subprocess.run(
        [sys.executable, "-m", "trainer.task", "--help"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "--learning_rate" in result.stdout
    for path in (ROOT / "trainer").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert (target / path.relative_to(ROOT)).exists()


def test_sdist_asks_for_nothing_that_shadows_the_container(unpacked: Path) -> None:
    requirements = [
        Requirement(line)
        for line in (unpacked / "trainer.egg-info" / "requires.txt").read_text().split("\n[")[0].splitlines()
        if line and not line.startswith("[")
    ]
    assert requirements
    forbidden = {"tensorflow", "keras", "numpy", "protobuf", "google-cloud-aiplatform", "tensorflow-io"}
    assert not forbidden & {requirement.name.lower() for requirement in requirements}


def test_sdist_bounds_admit_what_the_container_stack_is_tested_with(unpacked: Path) -> None:
    """Under Python 3.10 the bounds must let pip choose the versions of requirements/tf217.txt."""
    locked = pins("tf217")
    seen = 0
    section = ""
    for line in (unpacked / "trainer.egg-info" / "requires.txt").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and section in ("", ':python_version < "3.11"'):
            requirement = Requirement(line)
            assert requirement.specifier.contains(locked[requirement.name.lower()], prereleases=True), line
            seen += 1
    assert seen > 8


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_have_hashes_and_name_no_place(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    assert not re.search(r"https?://|file:|--index|--find-links|/home/|/root/", text)
    entries = re.split(r"\n(?=[A-Za-z0-9])", "\n" + text)[1:]
    assert entries
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.splitlines()[0]


def test_every_requirement_has_its_lock() -> None:
    names = {path.stem for path in (ROOT / "requirements").glob("*.in")} - {"base", "test"}
    assert names == set(LOCKS)
    for name in LOCKS:
        have = {key.lower().replace("_", "-") for key in pins(name)}
        for line in (ROOT / "requirements" / f"{name}.in").read_text().splitlines():
            line = line.split("#")[0].strip()
            if line and not line.startswith("-"):
                requirement = Requirement(line)
                if requirement.marker is None or requirement.marker.evaluate({"sys_platform": "linux"}):
                    assert requirement.name.lower() in have


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_dev_stack_is_the_default_stack_and_more(python: str) -> None:
    default, dev = pins("default", python), pins("dev", python)
    assert default.items() <= dev.items()
    assert default["tensorflow"] == "2.21.0"


def test_stacks_are_the_ones_we_name() -> None:
    assert pins("tf217")["tensorflow"] == "2.17.1"
    assert pins("tf217")["keras"] == "3.6.0"
    assert pins("serving")["tensorflow-cpu"] == "2.15.1"
    assert pins("tfio")["tensorflow-cpu"] == "2.16.2"
    assert pins("tfio")["tensorflow-io"] == "0.37.1"
    assert pins("gpu", "3.12")["tensorflow"] == pins("default", "3.12")["tensorflow"]
    tpu = pins("tpu", "3.12")
    assert tpu["tensorflow-tpu"] == "2.20.0"
    assert "tensorflow" not in tpu, "tensorflow and tensorflow-tpu install the same files"


def test_submit_is_an_extra_and_no_part_of_a_job(unpacked: Path) -> None:
    wanted = re.findall(r"^(google\S+)", (ROOT / "requirements" / "submit.in").read_text(), re.M)
    assert extra(unpacked, "submit") == [Requirement(line) for line in wanted]
    for lock in ("default", "gpu", "tpu", "tf217"):
        assert "google-cloud-aiplatform" not in pins(lock)
    for python in ("3.10", "3.11", "3.12", "3.13"):  # it goes into the environment of default.txt as it is
        default, submit = pins("default", python), pins("submit", python)
        assert {name: default[name] for name in default if name in submit} == {
            name: submit[name] for name in default if name in submit
        }


def test_the_extra_of_tensorflow_io_is_the_stack_it_is_tested_with(unpacked: Path) -> None:
    asked = extra(unpacked, "tensorflow-io")
    tested = pins("tfio")
    tested["tensorflow"] = tested.pop("tensorflow-cpu")
    assert {"tensorflow", "tensorflow-io"} <= {wanted.name for wanted in asked}
    for wanted in asked:
        assert wanted.specifier.contains(tested[wanted.name]), str(wanted)
    (tensorflow,) = (wanted for wanted in asked if wanted.name == "tensorflow")
    assert not tensorflow.specifier.contains("2.17.0"), "the reader crashes in it"


@pytest.mark.parametrize("lock", ["gpu"])  # a lock of one platform: the list is the image's own
def test_bill_of_materials(lock: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("cyclonedx_py") is None:
        pytest.skip("cyclonedx-bom is in requirements/dev.txt only")
    made = tmp_path / "sbom.json"
    command = [
        sys.executable,
        "-m",
        "cyclonedx_py",
        "requirements",
        f"requirements/{lock}.txt",
        "--output-reproducible",
        "--of",
        "JSON",
        "-o",
        made,
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    found = json.loads(made.read_text())
    assert found["bomFormat"] == "CycloneDX"
    listed = {item["name"].lower().replace("_", "-"): item for item in found["components"]}
    assert {name.lower() for name in pins(lock, "3.12")} <= set(listed)
    for item in listed.values():
        assert item["purl"].startswith("pkg:pypi/")
        assert any(reference.get("hashes") for reference in item["externalReferences"])


def test_dockerfiles_copy_files_that_exist() -> None:
    ignored = (ROOT / ".dockerignore").read_text()
    for name in ("Dockerfile", "Dockerfile.tpu"):
        text = (ROOT / name).read_text()
        assert 'ENTRYPOINT ["python", "-m", "trainer.task"]' in text
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.M):
            *sources, _ = line.split()
            for source in sources:
                for lock in ("default", "gpu") if "${LOCK}" in source else ("",):
                    path = source.replace("${LOCK}", lock)
                    assert (ROOT / path).exists(), f"{name} copies {path}"
                    assert f"!{path.split('/')[0]}" in ignored, f".dockerignore keeps {path} out"
        assert "--require-hashes" in text


def test_dockerfiles_pass_the_linter() -> None:
    linter = shutil.which("hadolint", path=os.path.dirname(sys.executable))
    if linter is None:
        pytest.skip("hadolint is in requirements/dev.txt only")
    result = subprocess.run(
        [linter, "Dockerfile", "Dockerfile.tpu"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


def test_python_of_the_images_is_the_one_their_locks_are_for() -> None:
    compiled = re.findall(
        r"lock (gpu|tpu) .*--python-version (\S+)", (ROOT / "scripts" / "lock.sh").read_text()
    )
    assert {name for name, _ in compiled} == {"gpu", "tpu"}
    for name in ("Dockerfile", "Dockerfile.tpu"):
        (base,) = set(re.findall(r"^ARG BASE_IMAGE=python:(\d+\.\d+)", (ROOT / name).read_text(), re.M))
        assert {version for _, version in compiled} == {base}


# --- scripts/venv.sh ----------------------------------------------------------------------------------


def run_venv_script(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "scripts" / "venv.sh"), *arguments]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)


def test_unfit_python_is_one_clear_sentence(tmp_path: Path) -> None:
    result = run_venv_script(str(tmp_path / "venv"), "3.99", PYTHON=sys.executable, PYTHON_STRICT="1")
    assert result.returncode == 3
    assert "No Python 3.99" in result.stderr
    assert "make PYTHON=" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_environment_of_another_python_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    result = run_venv_script(str(tmp_path / "venv"), "3.99")
    assert result.returncode == 2
    assert "Remove" in result.stderr


def test_installed_locks_are_not_installed_again(tmp_path: Path) -> None:
    """A fake python notes its pip calls: one a lock the first time, none the second, one after a change."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    calls = tmp_path / "calls"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (venv / "bin" / "python").write_text(
        f'#!/bin/sh\nif [ "$1" = -m ]; then echo "$@" >>{calls}; else exec {sys.executable} "$@"; fi\n'
    )
    (venv / "bin" / "python").chmod(0o755)
    lock = tmp_path / "mine.txt"
    lock.write_text("one\n")
    assert run_venv_script(str(venv), version, str(lock)).returncode == 0
    lines = calls.read_text().splitlines()
    assert [line.rsplit("/", 1)[1] for line in lines] == ["build.txt", "mine.txt"]
    assert all("--require-hashes" in line for line in lines)
    assert run_venv_script(str(venv), version, str(lock)).stdout == ""
    assert len(calls.read_text().splitlines()) == 2
    lock.write_text("two\n")
    assert "mine.txt" in run_venv_script(str(venv), version, str(lock)).stdout
    assert len(calls.read_text().splitlines()) == 3


def test_help_lists_the_targets() -> None:
    result = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0
    listed = re.findall(r"^  make ([a-z0-9-]+)", result.stdout, re.M)
    for target in ("train", "test", "lint", "format", "bench", "lock", "golden", "package", "clean"):
        assert target in listed
    for target in ("image", "image-gpu", "image-tpu", "push", "sbom", "test-image"):
        assert target in listed


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            "image",
            [
                "docker build --tag r/t:1",
                "BASE_IMAGE=python:3.12-slim",
                "VERSION=0.",
                "REVISION=",
                "CREATED=",
            ],
        ),
        ("image-gpu", ["--build-arg LOCK=gpu", "--build-arg REDUCTION_SERVER=yes"]),
        ("image-tpu", ["--file Dockerfile.tpu"]),
        ("push", ["docker push r/t:1"]),
    ],
)
def test_image_targets_run_the_engine_with_the_labels(target: str, words: list[str], tmp_path: Path) -> None:
    """A stand-in for Docker writes down what it is asked for."""
    called = tmp_path / "called"
    engine = tmp_path / "docker"
    engine.write_text(f'#!/bin/sh\necho "docker $@" >>{called}\n')
    engine.chmod(0o755)
    arguments = ["IMAGE=r/t:1", f"DOCKER={engine}"]
    if target == "image-gpu":
        arguments.append("ARGS=--build-arg REDUCTION_SERVER=yes")
    subprocess.run(["make", target, *arguments], cwd=ROOT, check=True, capture_output=True)
    (line,) = called.read_text().splitlines()
    for word in words:
        assert word in line
    declared = re.findall(
        r"^ARG (\w+)", (ROOT / ("Dockerfile.tpu" if "tpu" in target else "Dockerfile")).read_text(), re.M
    )
    assert set(re.findall(r"--build-arg (\w+)=", line)) <= set(declared)


def test_clean_never_removes_runs_or_data() -> None:
    result = subprocess.run(["make", "--dry-run", "clean"], cwd=ROOT, capture_output=True, text=True)
    removed = re.findall(r"rm -rf (.+)", result.stdout)[0].split()
    assert "runs" not in removed
    assert "data" not in removed
