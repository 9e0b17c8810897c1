"""The memory of a shuffled, uncached epoch of some rows and of ten times as many, for input.py."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from trainer import process

    process.prepare()  # as in a training run, before TensorFlow is imported

import input_data
import input_report

from trainer.data.encode import Encoder
from trainer.data.pipeline import Pipeline
from trainer.data.source import open_rows
from trainer.features import Features

BATCH = 4096
SAMPLES = 3


def kilobytes(name: str) -> int:
    """Returns a figure of this process as the kernel tells it in /proc/self/status."""
    with open("/proc/self/status") as text:
        return next(int(line.split()[1]) for line in text if line.startswith(f"{name}:"))


def measure(folder: Path, features: Path, numbers: int, categories: int) -> dict[str, Any]:
    """Reads an epoch in this process.

    Returns:
        In KiB: `peak`, the high-water mark of the resident memory since the process began; `file`, how much
        of it is mapped files; `thirds`, the mean resident memory in each third of the epoch. And `rows`.
    """
    config = input_data.config(folder, numbers, categories)
    encoder = Encoder(Features.from_json(features.read_text()))
    pipeline = Pipeline(
        open_rows(str(folder), config, labelled=True), encoder, batch_size=BATCH, cache="none"
    )
    found: tuple[list[int], ...] = ([], [], [])
    for step, _ in enumerate(pipeline.training(0, pipeline.steps_per_epoch)):
        if step % 8 == 0:
            found[3 * step // pipeline.steps_per_epoch].append(kilobytes("VmRSS"))
    return {
        "rows": pipeline.rows,
        "peak": kilobytes("VmHWM"),
        "file": kilobytes("RssFile"),
        "thirds": [statistics.mean(third or [0]) for third in found],
    }


def compare(once: Path, ten_times: Path, features: Path, numbers: int, categories: int) -> input_report.Line:
    """Compares two folders, a process for each sample, in turn; medians."""
    found: dict[Path, list[dict[str, Any]]] = {once: [], ten_times: []}
    for _ in range(SAMPLES):
        for folder, figures in found.items():
            command = [sys.executable, __file__, folder, features, numbers, categories]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
            figures.append(json.loads(done.stdout.splitlines()[-1]))
    few, many = (statistics.median(one["peak"] for one in figures) for figures in found.values())
    most = found[ten_times]
    thirds = [statistics.median(one["thirds"][third] for one in most) for third in range(3)]
    detail = f"{found[once][0]['rows']:,} rows: {few / 1024:,.0f} MiB, {most[0]['rows']:,} rows: "
    detail += (
        f"{many / 1024:,.0f} MiB ({most[0]['file'] / 1024:,.0f} of both are mapped files); mean in each "
    )
    detail += "third of the long epoch: " + ", ".join(f"{third / 1024:,.0f}" for third in thirds)
    return input_report.Line("peak resident memory, ten times the rows", many / few, 1.1, False, detail)


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
