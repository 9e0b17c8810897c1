"""Writes the same rows in every file format, for the tests of the readers."""

from __future__ import annotations

import csv
import datetime
import gzip
import json
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.config import Config

FORMATS = ("parquet", "csv", "jsonl", "avro", "arrow", "tfrecord")
START = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)


def sample(rows: int = 1000, seed: int = 0, nulls: bool = True) -> pa.Table:
    """Rows with every kind of column; floats are exact in 32 bits, so that tf.Example can hold them."""
    rng = np.random.default_rng(seed)

    def hide(values: list[Any], share: float = 0.1) -> list[Any]:
        return [None if nulls and rng.random() < share else value for value in values]

    states = ["CA", "NY", "Zürich", 'say "hi"', "a,b", "two\nlines", "日本"]
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "amount": pa.array(hide(np.float32(rng.normal(size=rows) * 100).astype(float).tolist())),
            "count": pa.array(hide(rng.integers(-(2**40), 2**40, rows).tolist()), pa.int64()),
            "state": pa.array(hide([states[i] for i in rng.integers(0, len(states), rows)])),
            "store": pa.array(hide(rng.integers(0, 50, rows).tolist()), pa.int64()),
            "big": pa.array(hide((2**53 + 1 + rng.integers(0, 9, rows) * 2).tolist()), pa.int64()),
            "member": pa.array(hide((rng.random(rows) < 0.5).tolist())),
            "seen": pa.array(
                hide([START + datetime.timedelta(minutes=37 * i, microseconds=i) for i in range(rows)]),
                pa.timestamp("us", tz="UTC"),
            ),
            "tags": pa.array(
                hide([[str(t) for t in rng.integers(0, 9, rng.integers(0, 4))] for _ in range(rows)]),
                pa.list_(pa.string()),
            ),
            "vector": pa.array(
                hide([np.float32(rng.normal(size=3)).tolist() for _ in range(rows)]), pa.list_(pa.float32())
            ),
            "day": pa.array(
                [START + datetime.timedelta(days=i // 100) for i in range(rows)], pa.timestamp("us", tz="UTC")
            ),
            "label": pa.array(hide([("no", "yes")[i] for i in rng.integers(0, 2, rows)], 0.05)),
        }
    )


FEATURES: tuple[dict[str, Any], ...] = (
    {"kind": "numeric", "name": "amount"},
    {"kind": "numeric", "name": "count"},
    {"kind": "categorical", "name": "state"},
    {"kind": "hashed", "name": "store"},
    {"kind": "integer", "name": "big", "size": 10},
    {"kind": "boolean", "name": "member"},
    {"kind": "datetime", "name": "seen"},
    {"kind": "bag", "name": "tags"},
    {"kind": "vector", "name": "vector", "length": 3},
)


def make_config(
    source: str | Path | list[str],
    split: dict[str, Any] | None = None,
    features: Any = FEATURES,
    task: str = "binary",
    label: Any = None,
    **data: Any,
) -> Config:
    """A config that reads `source`; by default split by hash of the column id."""
    sources = [str(source)] if isinstance(source, (str, Path)) else [str(one) for one in source]
    return Config(
        name="test",
        task=task,  # type: ignore[arg-type]
        data={"source": sources, "split": split or {"by": "hash", "column": "id"}, **data},  # type: ignore[arg-type]
        label=label or {"column": "label"},
        features=list(features),
    )


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.datetime) else value


def write(table: pa.Table, path: Path, kind: str, row_group: int = 128) -> Path:
    """Writes rows in one format; a name that ends in .gz is compressed where the format allows it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=row_group)
    elif kind == "arrow":
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=row_group)
    elif kind == "csv":
        _write_csv(table, path)
    elif kind == "jsonl":
        lines = [
            json.dumps({k: _plain(v) for k, v in row.items() if v is not None}, ensure_ascii=False)
            for row in table.to_pylist()
        ]
        _write_bytes(path, ("\n".join(lines) + "\n").encode())
    elif kind == "avro":
        _write_avro(table, path)
    else:
        write_tfrecord(table.to_pylist(), path)
    return path


def _write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def _write_csv(table: pa.Table, path: Path) -> None:
    import io

    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.column_names)
    for row in table.to_pylist():
        cells = []
        for value in row.values():
            value = json.dumps(value) if isinstance(value, list) else _plain(value)
            cells.append("" if value is None else repr(value) if isinstance(value, float) else value)
        writer.writerow(cells)
    _write_bytes(path, text.getvalue().encode())


def avro_schema(table: pa.Table) -> dict[str, Any]:
    """The Avro schema of a table, all columns nullable."""
    simple = {"int64": "long", "double": "double", "float": "float", "string": "string", "bool": "boolean"}

    def kind(of: pa.DataType) -> Any:
        if pa.types.is_list(of):
            return {"type": "array", "items": kind(of.value_type)}
        if pa.types.is_timestamp(of):
            return {"type": "long", "logicalType": "timestamp-micros"}
        return simple[str(of)]

    fields = [{"name": field.name, "type": ["null", kind(field.type)]} for field in table.schema]
    return {"type": "record", "name": "row", "fields": fields}


def _write_avro(table: pa.Table, path: Path) -> None:
    with path.open("wb") as out:
        fastavro.writer(out, avro_schema(table), table.to_pylist(), codec="deflate", sync_interval=4000)


def write_tfrecord(rows: list[dict[str, Any]], path: Path, compression: str = "") -> Path:
    """Writes rows as tf.Example: None is left out, times are ISO 8601 text."""
    import tensorflow as tf

    def feature(value: Any) -> Any:
        values = value if isinstance(value, list) else [_plain(value)]
        if any(isinstance(v, (str, bytes)) for v in values):
            encoded = [v.encode() if isinstance(v, str) else v for v in values]
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))
        if any(isinstance(v, float) for v in values):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[int(v) for v in values]))

    kind = compression or ("GZIP" if path.suffix == ".gz" else "")
    with tf.io.TFRecordWriter(str(path), "" if kind == "NONE" else kind) as writer:
        for row in rows:
            features = {name: feature(value) for name, value in row.items() if value is not None}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    return path


def read_all(source: Any, columns: list[str] | None = None) -> pa.Table:
    """All rows of a source as a plain table: dictionaries decoded, integers of categories as text."""
    batches = list(source.batches(columns))
    return pa.table(
        {
            name: pa.concat_arrays(
                [
                    batch.column(name).dictionary_decode()
                    if pa.types.is_dictionary(batch.schema.field(name).type)
                    else batch.column(name)
                    for batch in batches
                ]
            )
            for name in batches[0].schema.names
        }
    )
