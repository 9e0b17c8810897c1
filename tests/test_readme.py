"""What the README says is true: its tables are current, and its commands exist and do what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import readme as generator
from trainer import errors, flags, task

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def commands() -> list[str]:
    """Returns the lines of the README's shell blocks, comments cut off."""
    blocks = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    lines = [re.sub(r"\s+# .*", "", line).strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def make_commands() -> list[str]:
    """Returns every make command that the README names, in blocks and in running text."""
    inline = re.findall(r"`(make [a-z][^`]*)`", TEXT)
    return sorted(
        {part.strip() for line in commands() + inline for part in line.split("&&") if "make " in part}
    )


def test_tables_are_current() -> None:
    assert generator.filled(TEXT) == TEXT, "run: make readme"


def test_every_module_says_what_an_adopter_does_with_it() -> None:
    for path in generator.modules():
        what, adopter = generator.banner(path)
        assert what, f"{path} doesn't say what it is"
        assert adopter, f"{path}: the first paragraph of its docstring must end with 'Adopters: ...'"


def test_links_and_paths_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    paths = re.findall(r"`((?:configs|trainer|docs|tests|scripts|requirements|benchmarks)/[\w./]*)`", TEXT)
    assert len(paths) > 5
    for path in links + paths:
        if path != "configs/mine.yaml":  # the reader's own
            assert (ROOT / path).exists(), path


def test_make_commands_exist() -> None:
    found = make_commands()
    assert "make train" in found
    for command in found:
        words = [
            "make",
            "--dry-run",
            "-o",
            "venv-run",
            "-o",
            "venv-dev",
            "-o",
            "data",
            *shlex.split(command)[1:],
        ]
        result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 0, f"{command}: {result.stderr}"


def test_flags_of_the_commands_are_flags() -> None:
    seen = 0
    for command in make_commands():
        words = dict(word.split("=", 1) for word in shlex.split(command)[2:] if "=" in word)
        if command.startswith("make train") and "ARGS" in words:
            arguments = ["--config", str(ROOT / "configs/flights.yaml")]
            for word in shlex.split(words["ARGS"]):
                arguments.append(str(ROOT / word) if word.startswith("configs/") else word)
            flags.parse(arguments)
            seen += 1
    assert seen >= 2


@pytest.mark.parametrize("verb", sorted(set(re.findall(r"python -m trainer ([a-z]+)", TEXT))))
def test_verbs_answer_for_help(verb: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "trainer", verb, "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("usage:")


def test_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| ", TEXT, re.M)
    known = {
        value for module in (errors, task) for name, value in vars(module).items() if name.startswith("EXIT_")
    }
    assert {int(code) for code in rows} == known | {0}


def test_stacks_are_those_of_the_locks() -> None:
    stacks = dict(re.findall(r"^\| TensorFlow (\d+\.\d+)( for TPU)?[,| ]", TEXT, re.M))
    locks = {"default": "", "tf217": "", "serving": "-cpu", "tfio": "-cpu", "tpu": "-tpu"}
    for lock, package in locks.items():
        text = (ROOT / "requirements" / f"{lock}.txt").read_text()
        (version,) = re.findall(rf"^tensorflow{package}==(\d+\.\d+)", text, re.M)
        assert version in stacks


@pytest.mark.slow
def test_quickstart_makes_the_files_that_it_names(tmp_path: Path) -> None:
    """The quickstart's run on a few rows: one step, then everything that comes after training."""
    if not (ROOT / "data" / "flights" / "_prepared.json").exists():
        pytest.skip("data/flights is not there: make data")
    output = tmp_path / "run"
    command = [sys.executable, "-m", "trainer", "train", "--config", "configs/flights.yaml"]
    command += ["--config", "configs/debug/one_step.yaml", f"--output_dir={output}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    section = TEXT.split("Everything is in `runs/flights`:")[1].split("More commands")[0]
    named = re.findall(r"`([\w.]+)/?`", "".join(re.findall(r"^\| (`.+?) \| ", section, re.M)))
    assert len(named) > 8
    for name in named:
        assert (output / name).exists(), f"the README names {name}; there is {sorted(output.iterdir())}"
