"""One large file read in parts, against the same file read whole. Adopters: leave.

    python benchmarks/parts.py [--rows 1500000] [--rounds 3] [--folder FOLDER]

A table of 13 numbers and 26 texts in one file of CSV, JSON lines and TFRecord each (100 to 500 MB), encoded
and kept in memory by two reader threads; whole and in parts take turns in one process. Parts are what a run
reads; for "whole", the size of a part is set beyond that of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainer import process

process.prepare()

from benchmarks import input_data  # noqa: E402
from trainer.data.encode import Encoder  # noqa: E402
from trainer.data.formats import ranges  # noqa: E402
from trainer.data.pipeline import Pipeline  # noqa: E402
from trainer.data.source import open_rows  # noqa: E402
from trainer.features import Features, fit  # noqa: E402

SIZE = (input_data.NUMBERS, input_data.CATEGORIES)
LARGEST = 10_000  # values of the largest vocabulary


def write(folder: Path, kind: str, rows: int) -> Path:
    """Writes one file of a kind, unless it is there, and returns its folder."""
    if kind != "jsonl":
        return input_data.write(folder, kind, rows, 1, *SIZE, LARGEST)
    target = folder / f"jsonl-{rows}"
    if not target.exists():
        scratch = folder / f"{target.name}.{os.getpid()}"
        scratch.mkdir(parents=True)
        with (scratch / "rows.jsonl").open("w") as file:
            for row in input_data.table(0, rows, *SIZE, LARGEST).to_pylist():
                file.write(json.dumps(row) + "\n")
        scratch.rename(target)
    return target


def sample(path: Path, features: Features, rows: int) -> tuple[float, float, int]:
    """Reads a folder once; returns rows a second, CPU microseconds a row, and the number of parts."""
    config = input_data.config(path, *SIZE)
    source = open_rows(str(path), config, labelled=True)
    pipeline = Pipeline(source, Encoder(features), batch_size=4096, cache="memory")
    begin, before = time.perf_counter(), os.times()
    if pipeline.rows != rows:
        raise RuntimeError(f"{path} gave {pipeline.rows} rows, expected {rows}")
    seconds, after = time.perf_counter() - begin, os.times()
    cpu = after.user + after.system - before.user - before.system
    return rows / seconds, cpu / rows * 1e6, len(source.units())


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description="One large file in parts against the same file whole.")
    parser.add_argument(
        "--rows", type=int, default=1_500_000, help="rows of the CSV file; a third in the others"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files are kept; default: a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        few = write(folder, "parquet", 200_000)
        config = input_data.config(few, *SIZE)
        features = fit(config, open_rows(str(few), config, labelled=True).batches())
        print("| file | whole: rows/s | CPU us/row | in parts: rows/s | CPU us/row | parts | times as fast |")
        print("|---|---|---|---|---|---|---|")
        for kind, rows in (
            ("csv", arguments.rows),
            ("jsonl", arguments.rows // 3),
            ("tfrecord", arguments.rows // 3),
        ):
            path = write(folder, kind, rows)
            whole, parts = [], []
            for _ in range(arguments.rounds):
                with mock.patch.object(ranges, "PART_BYTES", 1 << 50):
                    whole.append(sample(path, features, rows))
                parts.append(sample(path, features, rows))
            ratio = statistics.median(mine[0] / theirs[0] for mine, theirs in zip(parts, whole, strict=True))
            columns = [
                f"{statistics.median(one[place] for one in found):,.{digits}f}"
                for found in (whole, parts)
                for place, digits in ((0, 0), (1, 1))
            ]
            print(f"| {kind} | {' | '.join(columns)} | {parts[0][2]} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
