"""`python -m trainer evaluate`: how good an exported model is on rows with labels. Adopters: leave.

    python -m trainer evaluate --model runs/x/model --input march.parquet
    python -m trainer evaluate --model runs/x/model --split test

Needs the SavedModel alone. The figures are those of the run's metrics.json: same metrics, same weights; the
loss comes from the served probabilities, so that of one row ends at 17 or 85. They are printed as JSON, and
written with --output.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import tensorflow as tf

from trainer import losses, metrics, storage
from trainer.config import Config
from trainer.data import checks, columns
from trainer.data.labels import LabelEncoder
from trainer.data.source import Source, open_rows, open_splits
from trainer.errors import UserError
from trainer.features import LabelSpec
from trainer.predict import add_common, config_of, load
from trainer.serving import Served

log = logging.getLogger("trainer")
# Served probabilities are float32, which ends at 1e-38 near 0 and in steps of 6e-8 near 1.
_SMALLEST, _LARGEST = 1e-37, 1 - 2**-25


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the verb's arguments."""
    made = argparse.ArgumentParser(
        prog="python -m trainer evaluate", description="Evaluate an exported model on a split or other rows."
    )
    add_common(made)
    given = made.add_mutually_exclusive_group(required=True)
    given.add_argument("--input", nargs="+", help="files, folders or globs with labels, local or gs://")
    given.add_argument("--split", choices=("train", "validation", "test"), help="split of the run's own data")
    made.add_argument("--output", help="JSON file to write the figures to")
    made.add_argument("--overwrite", action="store_true", help="replace the output file if it is there")
    return made


def main(argv: Sequence[str]) -> int:
    """Evaluates a model, prints the figures as JSON and writes them with --output.

    Args:
        argv: The arguments after the verb.

    Returns:
        0.

    Raises:
        UserError: A file, column or option can't be used as given.
    """
    args = parser().parse_args(argv)
    if args.output and storage.exists(args.output) and not args.overwrite:
        raise UserError(f"--output {args.output}: is there already; --overwrite replaces it")
    served = load(args.model)
    config = config_of(served, args.format)
    rows = _rows(config, served, args.input, args.split)
    figures = evaluate(served, config, rows.batches(), args.batch_size)
    log.info("%s: %s", rows.name, rows.counts())
    plain = {name: None if np.isnan(value) else value for name, value in figures.items()}
    print(json.dumps(plain))
    if args.output:
        storage.write_json(args.output, {rows.name: plain})
    return 0


def _rows(config: Config, served: Served, given: Sequence[str] | None, split: str | None) -> Source:
    # Neither the key nor the columns of the report's slices are needed for figures, so they may be absent.
    report = config.report.model_copy(update={"slice_by": ()})
    if given:
        data = config.data.model_copy(update={"key": None})
        config = config.model_copy(update={"data": data, "report": report})
        return open_rows(tuple(given), config, labelled=True)
    original = Config(**served.metadata["config"]).data.model_copy(update={"key": None})
    splits = open_splits(config.model_copy(update={"data": original, "report": report}))
    found = {source.name: source for source in splits.sources}
    if split not in found:
        raise UserError(f"--split {split}: the run's config has the splits {', '.join(found)} only")
    return found[str(split)]


def evaluate(
    served: Served, config: Config, batches: Iterable[pa.RecordBatch], batch_size: int = 4096
) -> dict[str, float]:
    """Returns the loss, the metrics and the number of rows.

    Args:
        served: The model.
        config: The config that it was trained with.
        batches: Raw rows with label (and weight).
        batch_size: Rows of one call of the model.

    Raises:
        UserError: A label is unknown, or all weights are 0.
    """
    label = served.metadata["label"]
    spec = LabelSpec(config.task, tuple(label["columns"]), tuple(label["classes"]))
    encode = LabelEncoder(spec)
    loss = losses.loss_function(config, SimpleNamespace(label=spec))
    made = metrics.make(spec.task, spec.classes)
    total, weights, count = 0.0, 0.0, 0
    for batch in batches:
        labels, weight = encode(batch), _weights(config, batch)
        values = _predictions(served.predict(batch, batch_size), spec.task)
        for metric in made.values():
            metric.update_state(tf.constant(labels), tf.constant(values), tf.constant(weight))
        by_row = loss(tf.constant(labels), tf.constant(_logits(values, spec.task))).numpy()
        total += float(np.sum(by_row.astype(np.float64) * weight))
        weights += float(weight.sum(dtype=np.float64))
        count += batch.num_rows
    if not weights > 0:
        raise UserError("evaluation: every row has weight 0, so there is nothing to average over")
    return {
        "loss": total / weights,
        **{name: float(metric.result()) for name, metric in made.items()},
        "examples": count,
    }


def _weights(config: Config, batch: pa.RecordBatch) -> np.ndarray:
    name = config.data.weight
    if name is None:
        return np.ones(batch.num_rows, np.float32)
    weight = columns.float32(columns.column(batch, name, "data.weight"))
    checks.check_weights(weight, name, "the rows to evaluate")
    return weight


def _predictions(outputs: dict[str, np.ndarray], task: str) -> np.ndarray:
    return outputs[{"binary": "probability", "regression": "prediction"}.get(task, "probabilities")]


def _logits(values: np.ndarray, task: str) -> np.ndarray:
    """Returns float32 logits [rows, outputs] whose predictions are `values`."""
    if task == "regression":
        return values[:, np.newaxis]
    inside = np.clip(values.astype(np.float64), _SMALLEST, _LARGEST)
    logits = np.log(inside) if task == "multiclass" else np.log(inside) - np.log1p(-inside)
    return (logits if logits.ndim == 2 else logits[:, np.newaxis]).astype(np.float32)
