"""From the end of training to the figures and the page. Adopters: leave."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import tensorflow as tf

from trainer import analysis, inputs, logs, losses, outputs, report
from trainer.config import Config
from trainer.data import leaks
from trainer.data.encode import Encoder
from trainer.data.pipeline import Pipeline
from trainer.data.source import Source, Splits
from trainer.features import Features
from trainer.loop import Loop
from trainer.state import RunState

log = logging.getLogger("trainer")

_MOST_CHART_ROWS = 2_000_000  # predictions kept for the charts; the figures are always of all rows


def speed(loop: Loop, state: RunState) -> float | None:
    """Returns training rows a second, first call (which compiles the graph) left out where it can be."""
    timing = loop.timing
    seconds = timing["train_seconds"]
    if not timing["steps"]:  # everything was done by an earlier start
        return state.history.get("examples_per_second", [None])[-1]
    return float(timing["examples"] / seconds) if seconds else None


def input_share(loop: Loop) -> float | None:
    """Returns the share of the training time in which the loop waited for batches."""
    seconds = loop.timing["train_seconds"]
    return float(min(1.0, loop.timing["input_seconds"] / seconds)) if seconds else None


def _labels(pipeline: Pipeline) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels and weights of all rows in the order of `Loop.predict`."""
    labels, weights = [], []
    for batch in pipeline.evaluation_numpy():
        kept = batch["valid"] > 0
        labels.append(batch["label"][kept])
        weights.append(batch["weight"][kept])
    return np.concatenate(labels), np.concatenate(weights)


def _predictions(config: Config, model: keras.Model, pipeline: Pipeline) -> np.ndarray:
    """Returns predictions of all rows in the order of `Loop.predict`, made in this process alone."""
    parts = []
    with tf.device("/CPU:0"):
        for batch in pipeline.whole().evaluation_numpy():
            inputs = {name: tf.constant(batch[name]) for name in ("numeric", "categorical")}
            found = losses.predictions(config.task, model(inputs, training=False)).numpy()
            parts.append(found[batch["valid"] > 0])
    return np.concatenate(parts)


def _slices(
    config: Config, source: Source, labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray
) -> dict[str, list[dict[str, Any]]]:
    columns = list(config.report.slice_by)
    if not columns:
        return {}
    table = pa.Table.from_batches(source.batches(columns)).unify_dictionaries()
    return {
        name: analysis.slices(
            config.task, table.column(name), labels, predictions, weights, config.report.slice_values
        )
        for name in columns
    }


def _importance(
    config: Config, features: Features, source: Source, predict: Callable[[pa.Table], np.ndarray]
) -> tuple[str, dict[str, tuple[float, float]]]:
    if not config.report.importance_rows:
        return "", {}
    encoder = Encoder(features, weight_column=config.data.weight)
    table = leaks.head(source, list(encoder.columns), config.report.importance_rows)
    blocks = encoder(table)
    assert blocks.label is not None
    groups: dict[str, list[str]] = {name: [name] for name in features.columns}
    for feature in features.config_features:
        if feature.kind == "bag" and feature.weights:  # a list and its weights only make sense together
            groups[feature.source_column].append(feature.weights)
            groups.pop(feature.weights, None)
    plain = table.select(list(features.columns))
    return analysis.importance(
        config.task, plain, groups.values(), blocks.label, blocks.weight, predict, config.seed
    )


def outcome(
    config: Config,
    features: Features,
    splits: Splits,
    pipelines: Mapping[str, Pipeline],
    loop: Loop,
    served: keras.Model,
    state: RunState,
    metrics: Mapping[str, Any],
    parity: Mapping[str, Any],
    predict: Callable[[pa.Table], np.ndarray],
) -> report.Outcome:
    """Gathers what the page shows.

    Args:
        config: the run's config.
        features: fitted features.
        splits: the splits.
        pipelines: by split name.
        loop: with the weights that were exported.
        served: the float32 copy of the model that was exported.
        state: where training ended.
        metrics: the content of metrics.json so far.
        parity: the content of parity.json.
        predict: raw rows -> predictions.
    """
    source = splits.test or splits.validation or splits.train
    pipeline = pipelines[source.name]
    if pipeline.rows <= _MOST_CHART_ROWS:
        # A prediction of the loop is one of all workers; the others have gone by now.
        alone = not loop.steps.several_workers
        predictions = loop.predict(pipeline) if alone else _predictions(config, served, pipeline)
        labels, weights = _labels(pipeline.whole())
        slices = _slices(config, source, labels, predictions, weights)
    else:
        encoder = Encoder(features, weight_column=config.data.weight)
        names = [*encoder.columns, *(c for c in config.report.slice_by if c not in encoder.columns)]
        table = leaks.head(source, names, _MOST_CHART_ROWS // 4)
        blocks = encoder(table)
        assert blocks.label is not None
        labels, weights, predictions = blocks.label, blocks.weight, predict(table)
        slices = {
            name: analysis.slices(
                config.task, table.column(name), labels, predictions, weights, config.report.slice_values
            )
            for name in config.report.slice_by
        }
    importance_metric, importance = _importance(config, features, source, predict)
    history = state.history
    epochs = max((len(values) for values in history.values()), default=0)
    return report.Outcome(
        metrics=metrics,
        history=[
            {name: values[epoch] for name, values in history.items() if epoch < len(values)}
            for epoch in range(epochs)
        ],
        best_epoch=state.best["epoch"] if state.best else None,
        splits=inputs.summary(splits, pipelines),
        classes=features.label.classes,
        split=source.name,
        labels=labels,
        predictions=predictions,
        weights=weights,
        slices=slices,
        importance=importance,
        importance_metric=importance_metric,
        parity=parity,
    )


def write_report(path: str, config: Config, made: report.Outcome) -> None:
    """Writes report.html."""
    report.write(path, config, made, outputs.resolved_yaml(config))


def show(config: Config, metrics: Mapping[str, Any]) -> None:
    """Prints the table of figures that ends a run."""
    rows = [{"split": name, **metrics[name]} for name in ("train", "validation", "test") if name in metrics]
    logs.summary(rows, title=f"{config.name}: figures of the exported model")
