"""The benchmarks start: nothing of the tests' own path, and no folder, is needed to run one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import FOLDER

# What has no flags is a part of another one, which imports it.
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py") if "ArgumentParser(" in path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_benchmark_starts_from_another_folder(name: str, tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), "--help"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("usage:")
