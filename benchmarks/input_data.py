"""The rows that benchmarks/input.py reads, as Parquet, CSV and TFRecord, and the config that reads them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import tensorflow as tf

from trainer.config import Config

NUMBERS, CATEGORIES = 13, 26
GROUP_ROWS = 65_536


def vocabulary_size(column: int, largest: int) -> int:
    """Returns the distinct values of a text column: 10, 100, 1,000 ... `largest` in turn."""
    sizes = [size for size in (10, 100, 1_000, 10_000, 100_000, 1_000_000) if size <= largest]
    return sizes[column % len(sizes)]


def table(first: int, rows: int, numbers: int, categories: int, largest: int) -> pa.Table:
    """Returns rows first..first+rows: label int64, `numbers` float64, `categories` texts of 8 characters."""
    random = np.random.default_rng(first)
    columns: dict[str, pa.Array] = {"label": pa.array(random.integers(0, 2, rows))}
    for i in range(numbers):
        columns[f"n{i}"] = pa.array(random.lognormal(0, 1, rows))
    for i in range(categories):
        size = vocabulary_size(i, largest)
        # Skewed as real categories are: half of the rows hold a tenth of the values.
        ids = (size * random.random(rows) ** 3.3).astype(np.int32)
        texts = pa.array([f"{(i * 1_000_003 + v) * 2654435761 % 2**32:08x}" for v in range(size)])
        columns[f"c{i}"] = pa.DictionaryArray.from_arrays(pa.array(ids), texts).dictionary_decode()
    return pa.table(columns)


def write(
    folder: Path, kind: str, rows: int, files: int, numbers: int, categories: int, largest: int
) -> Path:
    """Writes `rows` rows to `files` files, unless they are there, and returns their folder."""
    target = folder / f"{kind}-{rows}-{files}-{numbers}-{categories}-{largest}"
    if target.exists():
        return target
    scratch = folder / (target.name + f".{os.getpid()}")
    scratch.mkdir(parents=True)
    for number in range(files):
        first, last = number * rows // files, (number + 1) * rows // files
        part = table(first, last - first, numbers, categories, largest)
        name = str(scratch / f"part-{number:03}.{kind}")
        if kind == "parquet":
            pq.write_table(part, name, row_group_size=GROUP_ROWS)
        elif kind == "csv":
            pyarrow.csv.write_csv(part, name, pyarrow.csv.WriteOptions(quoting_style="none"))
        else:
            _write_records(part, name)
    scratch.rename(target)
    return target


def _write_records(part: pa.Table, name: str) -> None:
    columns = [(column, part.column(column).to_pylist()) for column in part.column_names]
    with tf.io.TFRecordWriter(name) as writer:
        for row in range(part.num_rows):
            example = tf.train.Example()
            feature = example.features.feature
            for column, values in columns:
                if column == "label":
                    feature[column].int64_list.value.append(values[row])
                elif column[0] == "n":
                    feature[column].float_list.value.append(values[row])
                else:
                    feature[column].bytes_list.value.append(values[row].encode())
            writer.write(example.SerializeToString())


def links(folder: Path, source: Path, times: int) -> Path:
    """Returns a folder that holds the files of `source` several times, without taking room on the disk."""
    target = folder / f"{source.name}-x{times}"
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    for number in range(times):
        for file in sorted(source.iterdir()):
            os.link(file, target / f"{number:03}-{file.name}")
    return target


def config(source: Path, numbers: int, categories: int, kind: str = "auto", **data: object) -> Config:
    """Returns a run config for a folder of these rows, all of them in the train split."""
    features: list[dict[str, object]] = [{"kind": "numeric", "name": f"n{i}"} for i in range(numbers)]
    features += [{"kind": "categorical", "name": f"c{i}"} for i in range(categories)]
    return Config.model_validate(
        {
            "name": "input",
            "task": "binary",
            "data": {"source": [str(source)], "format": kind, "split": {"by": "hash", "column": "label"}}
            | data,
            "label": {"column": "label"},
            "features": features,
        }
    )
