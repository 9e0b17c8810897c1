"""`python -m trainer predict`: an exported model's predictions for any rows, as a file. Adopters: leave.

    python -m trainer predict --model runs/x/model --input new.csv --output predictions.parquet

Needs the SavedModel alone: what the run's config said about columns and files is in its metadata. Rows are
read, predicted and written a chunk at a time, so the input may be larger than memory.

Columns of the output: the key column (data.key), the columns of --keep, and
    binary       probability (of the second class), label
    multiclass   label, probability_<class> for each class
    regression   prediction
    multilabel   probability_<label> for each label
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import tensorflow as tf
from pydantic import ValidationError

from trainer import storage
from trainer.config import Config
from trainer.data.source import Source, open_rows
from trainer.errors import UserError, nearest
from trainer.serving import Served

log = logging.getLogger("trainer")

FORMATS = ("auto", "parquet", "csv", "jsonl", "avro", "arrow", "tfrecord")
_ENDINGS = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the verb's arguments."""
    made = argparse.ArgumentParser(
        prog="python -m trainer predict", description="Write an exported model's predictions for rows."
    )
    add_common(made)
    made.add_argument("--input", required=True, nargs="+", help="files, folders or globs, local or gs://")
    made.add_argument("--output", required=True, help="file to write: .csv, .jsonl or .parquet")
    made.add_argument("--keep", default="", help="columns of the input to write too, with commas between")
    made.add_argument("--no_key", action="store_true", help="the input has no key column; write none")
    made.add_argument("--overwrite", action="store_true", help="replace the output file if it is there")
    return made


def add_common(made: argparse.ArgumentParser) -> None:
    """Adds the arguments that `predict` and `evaluate` share."""
    made.add_argument("--model", required=True, help="folder of the SavedModel, or of the run that made it")
    made.add_argument("--format", default="auto", choices=FORMATS, help="format of the input files")
    made.add_argument("--batch_size", type=int, default=4096, help="rows of one call of the model")
    made.add_argument("--debug", action="store_true", help="all native logs")


def main(argv: Sequence[str]) -> int:
    """Predicts rows and writes the predictions.

    Args:
        argv: The arguments after the verb.

    Returns:
        0.

    Raises:
        UserError: A file, column or option can't be used as given.
    """
    args = parser().parse_args(argv)
    kind = output_kind(args.output)
    if storage.exists(args.output) and not args.overwrite:
        raise UserError(f"--output {args.output}: is there already; --overwrite replaces it")
    served = load(args.model)
    config = config_of(served, args.format)
    if args.no_key:
        config = config.model_copy(update={"data": config.data.model_copy(update={"key": None})})
    keep = [name.strip() for name in args.keep.split(",") if name.strip()]
    key = config.data.key
    rows = open_rows(tuple(args.input), config, keep=keep)
    shown = list(dict.fromkeys([*([key] if key else []), *keep]))
    parts = (frame(served, batch, shown, args.batch_size) for batch in _batches(rows, served, shown))
    count = write(args.output, kind, parts)
    log.info("%s: predictions for %s rows", args.output, f"{count:,}")
    return 0


def load(folder: str) -> Served:
    """Loads a SavedModel, given its folder or the folder of its run."""
    folder = folder.rstrip("/")
    if not storage.exists(f"{folder}/saved_model.pb") and storage.exists(f"{folder}/model/saved_model.pb"):
        folder = f"{folder}/model"
    return Served(folder)


def config_of(served: Served, file_format: str = "auto") -> Config:
    """Returns the config that a model was trained with, set to read whole files of a format.

    Raises:
        UserError: The model was exported by a version whose configs this one can't read.
    """
    try:
        config = Config(**served.metadata["config"])
    except (ValidationError, KeyError) as error:
        raise UserError(
            f"{served.folder}: was exported by version {served.metadata.get('template')} of this trainer, "
            f"whose config this version can't read ({error})"
        ) from error
    data = config.data.model_copy(update={"format": file_format, "limit_rows": 0})
    return config.model_copy(update={"data": data})


def output_kind(path: str) -> str:
    """Returns csv, jsonl or parquet, by a file's name.

    Raises:
        UserError: Another ending.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in _ENDINGS:
        hint = nearest(ending, _ENDINGS)
        raise UserError(f"--output {path}: ends in {ending!r}, expected .csv, .jsonl or .parquet{hint}")
    return _ENDINGS[ending]


def _batches(rows: Source, served: Served, shown: Sequence[str]) -> Iterator[pa.RecordBatch]:
    known = rows.schema.names
    for name in served.columns:
        if name not in known:
            raise UserError(f"{rows.name}: no column {name!r}, which the model reads{nearest(name, known)}")
    yield from rows.batches(list(dict.fromkeys([*served.columns, *shown])))


def frame(served: Served, batch: pa.RecordBatch, shown: Sequence[str], batch_size: int) -> pa.Table:
    """Returns the output rows for some input rows.

    Args:
        served: The model.
        batch: Raw rows.
        shown: Columns of the input that are written too.
        batch_size: Rows of one call of the model.

    Raises:
        UserError: A column of the input has the name of a predicted one.
    """
    outputs = served.predict(batch, batch_size)
    columns: dict[str, Any] = {}
    for name in shown:
        column = batch.column(batch.schema.names.index(name))
        columns[name] = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    predicted: dict[str, Any] = {}
    for name in ("prediction", "probability", "label"):
        if name in outputs and name != (served.metadata["key"] or {}).get("name"):
            predicted[name] = pa.array(outputs[name])
    if "probabilities" in outputs and "probability" not in outputs:
        for place, name in enumerate(served.classes):
            predicted[f"probability_{name}"] = pa.array(
                np.ascontiguousarray(outputs["probabilities"][:, place])
            )
    if clash := [name for name in predicted if name in columns]:
        raise UserError(f"--keep: the input's column {clash[0]!r} has the name of a predicted column")
    return pa.table({**columns, **predicted})


# --- writing ----------------------------------------------------------------------------------------


def write(path: str, kind: str, parts: Iterator[pa.Table]) -> int:
    """Writes tables of one schema to a file, whole or not at all.

    Args:
        path: The file, local or gs://; replaced if it is there.
        kind: csv, jsonl or parquet.
        parts: The tables.

    Returns:
        Number of rows.
    """
    if storage.is_remote(path):
        with tempfile.TemporaryDirectory() as folder:
            scratch = os.path.join(folder, "predictions")
            count = _write(scratch, kind, parts)
            tf.io.gfile.copy(scratch, path, overwrite=True)
        return count
    storage.make_folder(os.path.dirname(path) or ".")
    scratch = f"{path}.tmp-{os.getpid()}"
    try:
        count = _write(scratch, kind, parts)
        os.replace(scratch, path)
    finally:
        if os.path.exists(scratch):
            os.remove(scratch)
    return count


def _write(path: str, kind: str, parts: Iterator[pa.Table]) -> int:
    count = 0
    if kind == "jsonl":
        with open(path, "w", encoding="utf-8") as file:
            for part in parts:
                count += part.num_rows
                file.writelines(_line(row) for row in part.to_pylist())
        return count
    writer: Any = None
    try:
        for part in parts:
            if kind == "csv":
                part = _flat(part)
            if writer is None:
                make = pa.csv.CSVWriter if kind == "csv" else pa.parquet.ParquetWriter
                writer = make(path, part.schema)
            writer.write_table(part)
            count += part.num_rows
    finally:
        if writer is not None:
            writer.close()
    return count


def _line(row: dict[str, Any]) -> str:
    plain = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}
    return json.dumps(plain, ensure_ascii=False, default=str) + "\n"


def _flat(part: pa.Table) -> pa.Table:
    """Writes lists as JSON text, as CSV has none."""
    for place, field in enumerate(part.schema):
        if pa.types.is_nested(field.type):
            texts = [None if value is None else json.dumps(value) for value in part.column(place).to_pylist()]
            part = part.set_column(place, field.name, pa.array(texts, pa.string()))
    return part
