"""Parquet on gs:// against the same files on a local disk, to batches of tensors.

    python benchmarks/storage.py [--rows 500000] [--rounds 5] [--json PATH]

fake-gcs-server (a process of its own on the same two cores) hands the objects out by HTTP. Both take turns in
one process with the allocator settings of a training run, two units at once, up to the last batch of 8,192; a
ratio is the median over rounds. Columns that no feature names are not fetched: reading half shows it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])

from trainer import process  # noqa: E402

process.prepare()

import pyarrow.parquet as pq  # noqa: E402

from benchmarks import bigquery as shared  # noqa: E402
from benchmarks.measuring import tell  # noqa: E402
from tests.servers import gcs  # noqa: E402

FILES = 4


def opened(source: str, names: list[str]) -> tuple[Any, Any]:
    """Returns a source that has been read once, and an encoder for it."""
    from trainer.config import Config
    from trainer.data.encode import Encoder
    from trainer.data.source import open_rows
    from trainer.features import fit

    config = Config.model_validate(
        {
            "name": "bench",
            "task": "binary",
            "data": {"source": source, "split": {"by": "hash", "column": "label"}, "cache": "none"},
            "label": {"column": "label"},
            "features": [{"name": name, "kind": "numeric", "indicator": False} for name in names],
        }
    )
    rows = open_rows(config.data.source, config, labelled=True)
    return rows, Encoder(fit(config, rows.batches()))


def measure(rows: int, rounds: int) -> list[dict[str, Any]]:
    """Returns the figures."""
    table = shared.numbers(rows)
    names = [name for name in table.column_names if name != "label"]
    with tempfile.TemporaryDirectory() as folder, gcs.GcsServer(("bench",)) as server:
        os.environ["STORAGE_EMULATOR_HOST"] = f"http://{server.direct}"
        size = rows // FILES
        for i in range(FILES):
            part = table.slice(i * size, size)
            pq.write_table(part, f"{folder}/{i}.parquet", row_group_size=65_536)
        server.upload(Path(folder), "bench")
        here = shared.Variant("local files", shared.ours(*opened(folder, names), 8192))
        there = shared.Variant("gs://", shared.ours(*opened("gs://bench/*.parquet", names), 8192))
        few = shared.Variant(
            "gs://, half of the columns", shared.ours(*opened("gs://bench/", names[:20]), 8192)
        )
        for _ in range(rounds):
            for variant in (here, there, few):
                shared.sample(variant, size * FILES)
        for variant in (here, there, few):
            print(f"{variant.name:30}{statistics.median(variant.rates) / 1e3:10,.0f} k rows/s", flush=True)
        made = shared.line("Parquet on gs://, of local files", shared.ratio(there, [here]), 0.8)
        half = shared.line("gs:// with half of the columns, of all", shared.ratio(few, [there]), None)
    return [{**one, "name": one["name"].replace("bigquery: ", "storage: ")} for one in (made, half)]


def main() -> int:
    """Runs from the command line; returns 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description="Parquet on gs:// against local files.")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="file for the figures")
    arguments = parser.parse_args()
    figures = measure(arguments.rows, arguments.rounds)
    return tell(figures, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
