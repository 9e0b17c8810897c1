"""One file that trains: it runs alone, in an empty folder, and holds what it says."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.integration.small_run import small_config
from trainer import flags
from trainer.jobs import package, single_file

ROOT = Path(__file__).parents[2]


def run(script: Path, folder: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a folder as a stranger would: nothing of the checkout is on the path."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(script), *argv]
    return subprocess.run(command, cwd=folder, env={**environ, **env}, capture_output=True, text=True)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(small_config(tmp_path / "rows.parquet", epochs=1)))
    return path


def test_same_config_same_script_another_config_another(config_file: Path) -> None:
    config = flags.load(str(config_file), [])
    first = single_file.script(config, ["rich>=13"])
    assert single_file.script(config, ["rich>=13"]) == first
    assert single_file.script(flags.load(str(config_file), ["--epochs=2"]), ["rich>=13"]) != first
    module = ast.parse(first)
    assert "pip install 'rich>=13'" in (ast.get_docstring(module) or "")
    assert max(map(len, first.splitlines())) <= 110


def test_it_prints_the_config_it_holds_and_leaves_nothing(tmp_path: Path, config_file: Path) -> None:
    temporary, alone = tmp_path / "tmp", tmp_path / "alone"
    temporary.mkdir()
    alone.mkdir()
    script = alone / "train.py"
    argv = ["--single-file", f"--config={config_file}", f"--output={script}", "--learning_rate=0.5"]
    assert package.main(argv) == 0
    done = run(script, alone, "--print_config", "--epochs=7", TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr
    resolved = yaml.safe_load(done.stdout)
    assert (resolved["training"]["learning_rate"], resolved["training"]["epochs"]) == (0.5, 7)
    assert [path.name for path in alone.iterdir()] == ["train.py"]
    assert not list(temporary.iterdir())


def test_a_mistake_is_one_sentence(tmp_path: Path, config_file: Path) -> None:
    (tmp_path / "train.py").write_text(single_file.script(flags.load(str(config_file), [])))
    done = run(tmp_path / "train.py", tmp_path, "--epochss=3")
    assert done.returncode == 2
    assert "did you mean" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_package_is_named(tmp_path: Path, config_file: Path) -> None:
    (tmp_path / "train.py").write_text(single_file.script(flags.load(str(config_file), [])))
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pydantic'] = None\n")
    done = run(tmp_path / "train.py", tmp_path, "--help", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "missing package: pydantic" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_it_trains_in_an_empty_folder(tmp_path: Path, config_file: Path) -> None:
    import pyarrow.parquet as pq

    from tests.integration.small_run import small_table

    pq.write_table(small_table(), tmp_path / "rows.parquet")
    alone = tmp_path / "alone"
    alone.mkdir()
    assert package.main(["--single_file", f"--config={config_file}", f"--output={alone / 'train.py'}"]) == 0
    config_file.unlink()
    done = run(alone / "train.py", alone, "--report.importance_rows=0")
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = json.loads((alone / "runs" / "small" / "metrics.json").read_text())
    assert metrics["epochs"] == 1
    assert (alone / "runs" / "small" / "model" / "saved_model.pb").exists()
    assert (alone / "runs" / "small" / "report.html").stat().st_size > 10_000  # package data came along
    assert {path.name for path in alone.iterdir()} == {"train.py", "runs"}
