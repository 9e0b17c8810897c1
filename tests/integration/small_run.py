"""A small table, its config, and the command line as a user runs it, for the integration tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import warm
import yaml

ROOT = Path(__file__).parents[2]
ROWS = 3001  # odd on purpose


def small_table(rows: int = ROWS, seed: int = 3) -> pa.Table:
    """Rows with every awkward thing that real ones have: nulls, rare values, a list, a skewed number."""
    generator = np.random.default_rng(seed)
    state = generator.choice(["CA", "NY", "TX", "WA", "rare"], rows, p=[0.4, 0.3, 0.2, 0.098, 0.002])
    age = generator.normal(40, 12, rows)
    income = generator.lognormal(10, 1, rows)
    tags = [list(generator.choice(["a", "b", "c", "d"], generator.integers(0, 4))) for _ in range(rows)]
    score = 0.08 * (age - 40) + (state == "CA") - (state == "NY") + np.array([0.8 * ("a" in t) for t in tags])
    label = generator.random(rows) < 1 / (1 + np.exp(-score))
    missing = generator.random((3, rows)) < 0.05
    start = datetime(2024, 1, 1)
    return pa.table(
        {
            "row_id": [f"r{i:05d}" for i in range(rows)],
            "at": pa.array(
                [start + timedelta(minutes=10 * i) for i in range(rows)], pa.timestamp("us", "UTC")
            ),
            "age": pa.array(age, mask=missing[0]),
            "income": pa.array(income, mask=missing[1]),
            "state": pa.array(list(state), mask=missing[2]),
            "tags": pa.array(tags, pa.list_(pa.string())),
            "flag": pa.array(generator.random(rows) < 0.3),
            "weight": generator.uniform(0.5, 2, rows),
            "late": pa.array([None if i % 97 == 0 else bool(v) for i, v in enumerate(label)]),
        }
    )


def small_config(data: Path, **training: Any) -> dict[str, Any]:
    """The config of `small_table`."""
    return {
        "name": "small",
        "task": "binary",
        "data": {
            "source": str(data),
            "key": "row_id",
            "split": {
                "by": "time",
                "column": "at",
                "validation_from": "2024-01-16",
                "test_from": "2024-01-19",
            },
        },
        "label": {"column": "late"},
        "features": [
            {"name": "age", "kind": "numeric"},
            {"name": "income", "kind": "numeric", "normalize": "log"},
            {"name": "state", "kind": "categorical", "min_count": 3},
            {"name": "tags", "kind": "bag", "max_length": 4},
            {"name": "flag", "kind": "boolean"},
            {"name": "at", "kind": "datetime", "parts": ["hour", "weekday"]},
        ],
        "model": {"hidden_units": [16, 8], "embedding_dim": 4, "dropout": 0.1},
        "training": {"batch_size": 64, "epochs": 3, "learning_rate": 0.01, **training},
        "export": {"parity_rows": 100},
        "report": {"slice_by": ["state"], "importance_rows": 300},
    }


def clean_environment() -> dict[str, str]:
    """The environment of a laptop: no variable of the service, no GPU."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("AIP_", "CLOUD_ML_", "TF_CONFIG"))}
    return {**environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}


def trainer(*arguments: object, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m trainer ...` from another folder than the repository."""
    return subprocess.run(
        [sys.executable, "-m", "trainer", *map(str, arguments)],
        cwd=cwd,
        env={**clean_environment(), **environ},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def forked(
    *arguments: object, cwd: Path, program: str = "trainer", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Does what `trainer` does, without the seconds of importing TensorFlow."""
    return warm.run(["-m", program, *arguments], {**clean_environment(), **environ}, cwd)


def start(*arguments: object, cwd: Path, program: str = "trainer", **environ: str) -> warm.Process:
    """Starts `python -m trainer ...` and returns at once."""
    return warm.Process(["-m", program, *arguments], {**clean_environment(), **environ}, cwd)


def end(process: warm.Process, number: int = signal.SIGKILL) -> str:
    """Sends a signal, waits, and returns what the process had printed."""
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    return output


def wait_until(condition: Callable[[], bool], process: warm.Process, seconds: float = 240) -> None:
    """Waits for a condition while the process lives; a hang is a failure."""
    limit = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"ended early with {process.returncode}:\n{process.communicate()[0]}"
        assert time.monotonic() < limit, "the condition never came true"
        time.sleep(0.05)


class Small:
    """A folder with the small table and its config."""

    def __init__(self, folder: Path, **training: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.data = folder / "rows.parquet"
        self.table = small_table()
        pq.write_table(self.table, self.data, row_group_size=700)
        self.config = folder / "small.yaml"
        self.config.write_text(yaml.safe_dump(small_config(self.data, **training)))

    def command(self, output: str, *more: object) -> list[object]:
        """The arguments that train into a folder below this one."""
        return ["train", "--config", self.config, f"--output_dir={self.folder / output}", *more]

    def train(self, output: str, *more: object, **environ: str) -> subprocess.CompletedProcess[str]:
        """Trains into a folder below this one."""
        return trainer(*self.command(output, *more), cwd=self.folder, **environ)

    def forked(
        self, output: str, *more: object, program: str = "trainer"
    ) -> subprocess.CompletedProcess[str]:
        """Trains into a folder below this one, without the seconds of importing TensorFlow."""
        return forked(*self.command(output, *more), cwd=self.folder, program=program)
