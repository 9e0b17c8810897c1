"""report.html: one self-contained page that shows how good a run is. Adopters: may add a section.

The page needs no network and no script: charts are inline SVG (`charts.py`), figures come from
`metrics.json` as it is, which is also embedded for programs to read.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np

from trainer import charts, figures, storage
from trainer.config import Config

_NICE = {
    "auc": "AUC",
    "pr_auc": "PR AUC",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "examples": "rows",
    "brier": "Brier score",
}


@dataclass(frozen=True)
class Outcome:
    """What the page is made of.

    Attributes:
        metrics: the content of metrics.json.
        history: one dict an epoch: loss, validation metrics (`val_*`), learning_rate.
        best_epoch: epoch (from 1) whose weights were exported.
        splits: by split name, {"rows": n, "dropped": n, "first": text, "last": text, ...}.
        classes: class names in output order; empty for a regression.
        split: name of the split that the charts show.
        labels: true labels of that split, [rows] or [rows, K].
        predictions: probabilities or values of that split, [rows] or [rows, K].
        weights: float32 [rows].
        slices: by column, rows of {"value", "rows", "label_mean", "prediction_mean", "loss", metric...}.
        importance: by feature, mean and deviation of what the metric loses when its column is shuffled.
        importance_metric: name of that metric.
        parity: the content of parity.json.
    """

    metrics: Mapping[str, Any]
    history: Sequence[Mapping[str, float]]
    best_epoch: int | None
    splits: Mapping[str, Mapping[str, Any]]
    classes: Sequence[str]
    split: str
    labels: np.ndarray
    predictions: np.ndarray
    weights: np.ndarray
    slices: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    importance: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    importance_metric: str = "loss"
    parity: Mapping[str, Any] | None = None


def _text(value: Any) -> str:
    """Formats a figure for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)):
        return f"{value:,}"
    if isinstance(value, (float, np.floating)):
        number = float(value)
        if number == 0:
            return "0"
        if 1e-3 <= abs(number) < 1000:
            return f"{number:.4f}"
        return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.2e}"
    return html.escape(str(value))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table; cells are HTML already."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cards(svgs: Sequence[str]) -> str:
    return '<div class="grid">' + "".join(f'<div class="card">{svg}</div>' for svg in svgs) + "</div>"


def _figures_section(outcome: Outcome) -> str:
    names = [name for name in ("train", "validation", "test") if name in outcome.metrics]
    keys: list[str] = []
    for name in names:
        keys += [key for key in outcome.metrics[name] if key not in keys]
    rows = [
        [_NICE.get(key, key), *(_text(outcome.metrics[name].get(key)) for name in names)]
        for key in keys
    ]  # fmt: skip
    return "<h2>Figures</h2>" + '<div class="card">' + _table(["", *names], rows) + "</div>"


def _data_section(outcome: Outcome) -> str:
    keys: list[str] = []
    for summary in outcome.splits.values():
        keys += [key for key in summary if key not in keys]
    rows = [
        [html.escape(name), *(_text(summary.get(key)) for key in keys)]
        for name, summary in outcome.splits.items()
    ]
    return "<h2>Data</h2>" + '<div class="card">' + _table(["split", *keys], rows) + "</div>"


def _training_section(outcome: Outcome) -> str:
    history = outcome.history
    if not history:
        return ""
    svgs = []
    names = [name for name in history[-1] if isinstance(history[-1][name], (int, float))]
    plain = [name[4:] for name in names if name.startswith("val_")]
    for metric in [*dict.fromkeys(["loss", *plain])]:
        series = {
            label: [float(epoch[key]) for epoch in history if key in epoch]
            for label, key in (("train", metric), ("validation", f"val_{metric}"))
            if any(key in epoch for epoch in history)
        }
        if series:
            svgs.append(charts.curves(f"{_NICE.get(metric, metric)} by epoch", series, outcome.best_epoch))
    if "learning_rate" in names:
        rates = {"learning rate": [float(epoch["learning_rate"]) for epoch in history]}
        svgs.append(charts.curves("Learning rate by epoch", rates))
    return "<h2>Training</h2>" + _cards(svgs[:6])


def _binary(outcome: Outcome) -> list[str]:
    labels, scores, weights = outcome.labels, outcome.predictions, outcome.weights
    false_positive, true_positive, _ = figures.roc_curve(labels, scores, weights)
    recall, precision, _ = figures.precision_recall_curve(labels, scores, weights)
    predicted, observed, counts = figures.calibration_bins(labels, scores, weights, bins=15)
    base = float(np.average(labels, weights=weights))
    matrix = figures.confusion_matrix(labels, scores >= 0.5, 2, weights)
    auc = outcome.metrics.get(outcome.split, {}).get("auc", figures.rank_auc(labels, scores, weights))
    edges = np.linspace(0, 1, 41)
    shares = {}
    for value, name in enumerate(outcome.classes):
        part = weights * (labels == value)
        counted, _ = np.histogram(scores, bins=edges, weights=part)
        shares[f"true {name}"] = list(counted / max(part.sum(), 1e-12))
    return [
        charts.roc(list(false_positive), list(true_positive), auc),
        charts.precision_recall(list(recall), list(precision), base),
        charts.calibration(list(predicted), list(observed), list(counts)),
        charts.confusion(matrix.tolist(), list(outcome.classes), "threshold 0.5"),
        charts.histogram("Predictions by true class", list(edges), shares, "predicted probability"),
    ]


def _quality_section(outcome: Outcome, task: str) -> str:
    labels, predictions, weights = outcome.labels, outcome.predictions, outcome.weights
    if len(labels) == 0:
        return ""
    note = ""
    if task == "binary":
        if len(np.unique(labels[weights > 0])) < 2:
            text = f"The {outcome.split} split has one class only: no curves."
            return f'<h2>Quality</h2><p class="note">{text}</p>'
        svgs = _binary(outcome)
    elif task == "multiclass":
        matrix = figures.confusion_matrix(labels, predictions.argmax(axis=1), len(outcome.classes), weights)
        confidence = predictions.max(axis=1)
        right = (predictions.argmax(axis=1) == labels).astype(np.float32)
        predicted, observed, counts = figures.calibration_bins(right, confidence, weights, bins=15)
        svgs = [
            charts.confusion(matrix.tolist(), list(outcome.classes), "most probable class"),
            charts.calibration(list(predicted), list(observed), list(counts)),
        ]
        note = "Calibration: the probability of the most probable class against how often it is right."
    elif task == "multilabel":
        svgs = []
        for index, name in enumerate(outcome.classes[:6]):
            if len(np.unique(labels[:, index])) == 2:
                x, y, _ = figures.roc_curve(labels[:, index], predictions[:, index], weights)
                auc = figures.rank_auc(labels[:, index], predictions[:, index], weights)
                svgs.append(
                    charts.roc(list(x), list(y), auc).replace("ROC (", f"{html.escape(name)}: ROC (", 1)
                )
    else:
        step = max(1, len(labels) // 4000)  # a chart of more points shows no more
        svgs = [
            charts.scatter(
                "True and predicted", list(predictions[::step]), list(labels[::step]), "predicted", "true"
            ),
            charts.scatter(
                "Residuals",
                list(predictions[::step]),
                list((labels - predictions)[::step]),
                "predicted",
                "true - predicted",
                level=True,
            ),
        ]
    text = f"All charts are of the {outcome.split} split ({len(labels):,} rows). {note}"
    return f'<h2>Quality</h2><p class="note">{text}</p>' + _cards(svgs)


def _slices_section(outcome: Outcome) -> str:
    parts = []
    for column, rows in outcome.slices.items():
        if not rows:
            continue
        keys = [key for key in rows[0] if key != "value"]
        largest = max(row["rows"] for row in rows)
        cells = [
            [
                html.escape(str(row["value"])),
                *(_text(row[key]) for key in keys),
                f'<span class="bar" style="width:{80 * row["rows"] / largest:.0f}px"></span>',
            ]
            for row in rows
        ]
        header = [column, *(_NICE.get(key, key.replace("_", " ")) for key in keys), "share"]
        parts.append(f'<div class="card">{_table(header, cells)}</div>')
    if not parts:
        return ""
    note = f'<p class="note">{outcome.split} split, most frequent values first.</p>'
    return "<h2>Slices</h2>" + note + "<br>".join(parts)


def _importance_section(outcome: Outcome) -> str:
    if not outcome.importance:
        return ""
    ranked = sorted(outcome.importance.items(), key=lambda item: -item[1][0])[:25]
    metric = _NICE.get(outcome.importance_metric, outcome.importance_metric)
    change = "Rise" if outcome.importance_metric == "loss" else "Fall"
    chart = charts.bars(
        f"{change} of {metric} when the column is shuffled",
        {name: mean for name, (mean, _) in ranked},
        f"{change.lower()} of {metric}",
        [deviation for _, (_, deviation) in ranked],
    )
    note = (
        f"Each raw column of a sample of the {outcome.split} split is shuffled among the rows; "
        "the bar is what that costs. Columns that say the same thing share their importance."
    )
    return f'<h2>Permutation importance</h2><p class="note">{note}</p><div class="card">{chart}</div>'


def _time_section(outcome: Outcome) -> str:
    seconds = outcome.metrics.get("seconds") or {}
    parts = {name: value for name, value in seconds.items() if name != "total"}
    if not parts:
        return ""
    chart = charts.bars("Seconds by phase", dict(sorted(parts.items(), key=lambda item: -item[1])), "seconds")
    return f'<h2>Where the time went</h2><div class="card">{chart}</div>'


def _parity_section(outcome: Outcome) -> str:
    parity = outcome.parity
    if not parity:
        return ""
    mark = '<span class="ok">passed</span>' if parity.get("passed") else '<span class="bad">FAILED</span>'
    rows = [
        [html.escape(str(key)), _text(value)]
        for key, value in parity.items()
        if not isinstance(value, (dict, list))
    ]
    note = "A fresh process loads the exported model, feeds it raw rows, and compares with the trainer's."
    table = f'<div class="card">{_table(["", ""], rows)}</div>'
    return f'<h2>Parity gate: {mark}</h2><p class="note">{note}</p>{table}'


def _tiles(outcome: Outcome, task: str) -> str:
    final = outcome.metrics.get(outcome.split, {})
    head = {"binary": "auc", "multiclass": "accuracy", "regression": "rmse", "multilabel": "auc"}[task]
    tiles = [
        (_text(final.get(head)), f"{outcome.split} {_NICE.get(head, head)}"),
        (_text(final.get("loss")), f"{outcome.split} loss"),
    ]
    train = outcome.splits.get("train", {})
    tiles.append((_text(train.get("rows")), "training rows"))
    tiles.append((_text(outcome.metrics.get("steps")), "steps"))
    speed = outcome.metrics.get("examples_per_second")
    tiles.append((f"{speed:,.0f}" if speed else "–", "examples a second"))
    total = outcome.metrics.get("seconds", {}).get("total")
    tiles.append((f"{total:,.0f} s" if total else "–", "in all"))
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for value, name in tiles)
        + "</div>"
    )


def render(config: Config, outcome: Outcome, resolved_config: str) -> str:
    """Returns the page.

    Args:
        config: the run's config.
        outcome: what happened.
        resolved_config: text of the resolved config, shown folded.

    Returns:
        A whole HTML document that refers to nothing outside itself.
    """
    sections = [
        _tiles(outcome, config.task),
        _figures_section(outcome),
        _data_section(outcome),
        _training_section(outcome),
        _quality_section(outcome, config.task),
        _slices_section(outcome),
        _importance_section(outcome),
        _time_section(outcome),
        _parity_section(outcome),
        "<h2>Config</h2><details><summary>Resolved config</summary>"
        f"<pre>{html.escape(resolved_config)}</pre></details>",
    ]
    css = resources.files("trainer").joinpath("report.css").read_text("utf-8")
    # "</" inside the JSON would end the script element.
    embedded = json.dumps(outcome.metrics).replace("</", "<\\/")
    label = ", ".join([config.label.column] if isinstance(config.label.column, str) else config.label.column)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(config.name)}: training report</title>"
        # Without an icon a browser asks the server for one, and logs the refusal as an error.
        '<link rel="icon" href="data:,">'
        f"<style>{css}</style></head><body><main>"
        f"<h1>{html.escape(config.name)}</h1>"
        f'<div class="muted">{config.task} · label <b>{html.escape(label)}</b>'
        f" · model {html.escape(config.model.name)} · {len(config.features)} features</div>"
        + "".join(sections)
        + f'</main><script type="application/json" id="metrics">{embedded}</script></body></html>\n'
    )


def write(path: str, config: Config, outcome: Outcome, resolved_config: str) -> None:
    """Writes the page to a local or gs:// path."""
    storage.write_text(path, render(config, outcome, resolved_config))
