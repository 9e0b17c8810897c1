"""What the report says beyond the figures: slices, and what each column is worth. Adopters: leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer import figures
from trainer.config import Task

Predict = Callable[[pa.Table], np.ndarray]  # raw rows -> predictions, as losses.predictions gives them


def row_losses(task: Task, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Returns the loss of each row from its prediction: log loss, or squared error for a regression.

    Args:
        task: what is predicted.
        labels: [rows] or [rows, K].
        predictions: probabilities or values, [rows] or [rows, K].

    Returns:
        float64 [rows].
    """
    tiny = 1e-7  # the least probability that float32 tells from 0 and 1
    if task == "regression":
        return np.square(labels.astype(np.float64) - predictions)
    p = np.clip(predictions.astype(np.float64), tiny, 1 - tiny)
    if task == "multiclass":
        return -np.log(p[np.arange(len(labels)), labels.astype(np.int64)])
    losses = -(labels * np.log(p) + (1 - labels) * np.log1p(-p))
    return losses.mean(axis=1) if losses.ndim == 2 else losses


def score(task: Task, labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray) -> tuple[str, float]:
    """Returns the name and value of the task's headline figure; higher is better.

    A binary part with a single class has no AUC: its value is NaN.
    """
    if task == "binary":
        both = len(np.unique(labels[weights > 0])) == 2
        return "auc", figures.rank_auc(labels, predictions, weights) if both else float("nan")
    if task == "multiclass":
        return "accuracy", float(np.average(predictions.argmax(axis=1) == labels, weights=weights))
    return "negative loss", -float(np.average(row_losses(task, labels, predictions), weights=weights))


def slices(
    task: Task,
    column: pa.ChunkedArray,
    labels: np.ndarray,
    predictions: np.ndarray,
    weights: np.ndarray,
    most: int,
) -> list[dict[str, Any]]:
    """Breaks the figures down by the values of a raw column, most frequent first.

    Args:
        task: what is predicted.
        column: the column's values, [rows], in the order of the predictions.
        labels: [rows] or [rows, K].
        predictions: [rows] or [rows, K].
        weights: float32 [rows].
        most: values shown; the others become one row.

    Returns:
        One dict a value: value, rows, label_mean and prediction_mean (binary and regression), loss, and the
        task's headline figure (None where it does not exist).
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        return []
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.date32())  # a row an instant would say nothing
    text = pc.fill_null(pc.cast(column, pa.string()), "(missing)").combine_chunks().dictionary_encode()
    ids = text.indices.to_numpy(zero_copy_only=False)
    names = text.dictionary.to_pylist()
    counts = np.bincount(ids, minlength=len(names))
    order = np.argsort(-counts, kind="stable")
    losses = row_losses(task, labels, predictions)
    parts: list[tuple[str, np.ndarray]] = [(names[i], ids == i) for i in order[:most]]
    if len(order) > most:
        parts.append((f"({len(order) - most} others)", np.isin(ids, order[most:])))
    rows = []
    for name, mask in parts:
        weight = weights[mask]
        if not weight.sum() > 0:
            continue
        row: dict[str, Any] = {"value": name, "rows": int(mask.sum())}
        if labels.ndim == 1 and task != "multiclass":
            row["label_mean"] = float(np.average(labels[mask], weights=weight))
            row["prediction_mean"] = float(np.average(predictions[mask], weights=weight))
        row["loss"] = float(np.average(losses[mask], weights=weight))
        name, value = score(task, labels[mask], predictions[mask], weight)
        if name != "negative loss":
            row[name] = value if np.isfinite(value) else None
        rows.append(row)
    return rows


def importance(
    task: Task,
    table: pa.Table,
    columns: Iterable[Sequence[str]],
    labels: np.ndarray,
    weights: np.ndarray,
    predict: Predict,
    seed: int,
    repeats: int = 3,
) -> tuple[str, dict[str, tuple[float, float]]]:
    """Measures what each raw column is worth: the fall of the headline figure when it is shuffled.

    Permutation importance, Breiman (2001), "Random Forests", section 10.

    Args:
        task: what is predicted.
        table: raw rows of one split.
        columns: raw columns to shuffle, in groups that belong together (a bag and its weights).
        labels: [rows] or [rows, K].
        weights: float32 [rows].
        predict: raw rows -> predictions.
        seed: of the shuffling.
        repeats: shufflings of each column.

    Returns:
        The figure's name, and by group (its first column) the mean fall and its standard deviation.
    """
    name, base = score(task, labels, predict(table), weights)
    generator = np.random.Generator(np.random.PCG64(seed))
    falls: dict[str, tuple[float, float]] = {}
    for group in columns:
        values = []
        for _ in range(repeats):
            order = pa.array(generator.permutation(table.num_rows))
            shuffled = table
            for column in group:
                place = table.schema.get_field_index(column)
                shuffled = shuffled.set_column(
                    place, table.schema.field(place), table.column(place).take(order)
                )
            values.append(base - score(task, labels, predict(shuffled), weights)[1])
        falls[group[0]] = (float(np.mean(values)), float(np.std(values)))
    return ("loss" if name == "negative loss" else name), falls
