"""The verb package: the source distribution, and what it refuses."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from checkout import copy_checkout
from packaging.requirements import Requirement

import trainer
from trainer.errors import UserError
from trainer.jobs import package

ROOT = Path(__file__).parents[2]


def test_sdist_of_a_checkout(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="the test environment has no setuptools to build with")
    copy = tmp_path / "checkout"
    copy.mkdir()
    path = package.sdist(copy_checkout(copy), str(tmp_path / "out"))
    assert Path(path).name == f"trainer-{trainer.__version__}.tar.gz"
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert f"trainer-{trainer.__version__}/trainer/task.py" in names


def test_sdist_outside_of_a_checkout(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no checkout \(it has no setup.py\)"):
        package.sdist(tmp_path, "dist")


def test_a_build_that_fails_shows_why(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("raise SystemExit('no such thing')")
    with pytest.raises(UserError, match=r"setup.py failed:\nno such thing"):
        package.sdist(tmp_path, "dist")


def test_a_config_is_for_the_single_file_alone() -> None:
    with pytest.raises(UserError, match="--config only counts with --single_file"):
        package.main(["--config=configs/flights.yaml"])


def test_single_file_needs_a_config() -> None:
    with pytest.raises(UserError, match="--config is missing"):
        package.main(["--single_file"])


def test_another_file_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    path = tmp_path / "mine.py"
    path.write_text("print('mine')\n")
    argv = ["--single_file", "--config=configs/flights.yaml", f"--output={path}"]
    with pytest.raises(UserError, match="was not written by package"):
        package.main(argv)
    assert path.read_text() == "print('mine')\n"
    path.unlink()
    assert package.main(argv) == 0
    assert package.main(argv) == 0  # its own it may write anew


@pytest.mark.parametrize("output", ["gs://b/train.py", "train.sh"])
def test_output_must_be_a_local_python_file(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match=f"Invalid --output: got '{output}'"):
        package.main(["--single_file", "--config=configs/flights.yaml", f"--output={output}"])


def test_requirements_are_those_of_the_container() -> None:
    found = {Requirement(line).name: Requirement(line) for line in package.requirements(ROOT)}
    assert not found["pyarrow"].specifier.contains("26.0.1"), "Python 3.10 takes the older ones"
    assert all(requirement.marker is None for requirement in found.values())
    assert package.requirements(ROOT / "trainer") == []


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert package.main(["--help"]) == 0
    assert "--single_file" in capsys.readouterr().out
