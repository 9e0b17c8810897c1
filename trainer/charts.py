"""Charts of the report as inline SVG, drawn with matplotlib. Adopters: leave.

Every function takes plain sequences and returns the text of one `<svg>` element that scales with its box.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen in a job

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
COLORS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#dc2626", "#0891b2", "#ca8a04", "#64748b")

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "svg.fonttype": "path",  # the page looks alike on machines without the font
    "svg.hashsalt": "trainer",  # the same figures give the same bytes
}


@contextmanager
def _axes(title: str, width: float = 4.6, height: float = 3.0) -> Iterator[tuple[Figure, Axes]]:
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
        axes.set_title(title)
        yield figure, axes
        plt.close(figure)


def _svg(figure: Figure, label: str) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # A fixed size would not shrink on a phone; the viewBox keeps the proportions.
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    prefix = re.sub(r"\W+", "-", label.lower())
    # Ids of two charts on one page must not meet: a clip path of the first would cut the second.
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def curves(title: str, series: Mapping[str, Sequence[float]], best: int | None = None) -> str:
    """Draws values by epoch, one line a name; `best` marks the epoch (from 1) whose weights were kept."""
    with _axes(title) as (figure, axes):
        for color, (name, values) in zip(COLORS, series.items(), strict=False):
            epochs = range(1, len(values) + 1)
            marker = "o" if len(values) < 30 else None
            axes.plot(epochs, values, color=color, label=name, linewidth=1.8, marker=marker, markersize=3.5)
        if best is not None:
            axes.axvline(best, color=MUTED, linewidth=1, linestyle=":")
            axes.annotate(
                "best", (best, 1), xycoords=("data", "axes fraction"), xytext=(3, -9),
                textcoords="offset points", color=MUTED, fontsize=8,
            )  # fmt: skip
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
        return _svg(figure, title)


def roc(false_positive: Sequence[float], true_positive: Sequence[float], auc: float) -> str:
    """Draws the ROC curve; both rates run from 0 to 1."""
    with _axes(f"ROC (AUC {auc:.4f})") as (figure, axes):
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=":")
        axes.fill_between(false_positive, true_positive, color=COLORS[0], alpha=0.08, linewidth=0)
        axes.plot(false_positive, true_positive, color=COLORS[0], linewidth=1.8)
        axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1.01))
        return _svg(figure, "ROC curve")


def precision_recall(recall: Sequence[float], precision: Sequence[float], base: float) -> str:
    """Draws precision over recall; `base` is the share of positives, what guessing would reach."""
    with _axes("Precision and recall") as (figure, axes):
        axes.axhline(base, color=MUTED, linewidth=1, linestyle=":")
        axes.plot(recall, precision, color=COLORS[0], linewidth=1.8)
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.01))
        return _svg(figure, "Precision-recall curve")


def calibration(predicted: Sequence[float], observed: Sequence[float], counts: Sequence[float]) -> str:
    """Draws the observed share of positives over the predicted probability, one point a bin of rows."""
    with _axes("Calibration") as (figure, axes):
        top = max([*predicted, *observed, 1e-9]) * 1.08
        axes.plot([0, top], [0, top], color=MUTED, linewidth=1, linestyle=":")
        largest = max([*counts, 1])
        axes.plot(predicted, observed, color=COLORS[0], linewidth=1.2, alpha=0.6)
        axes.scatter(predicted, observed, s=[12 + 60 * count / largest for count in counts], color=COLORS[0])
        axes.set(xlabel="predicted probability", ylabel="observed share", xlim=(0, top), ylim=(0, top))
        return _svg(figure, "Calibration")


def confusion(matrix: Sequence[Sequence[float]], classes: Sequence[str], note: str) -> str:
    """Draws counts by true class (rows) and predicted class (columns), shaded by share of the row."""
    size = len(classes)
    with _axes(f"Confusion ({note})", height=3.0 if size <= 6 else 4.4) as (figure, axes):
        totals = [max(sum(row), 1e-12) for row in matrix]
        shares = [[value / total for value in row] for row, total in zip(matrix, totals, strict=True)]
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.grid(False)
        if size <= 12:
            for i, row in enumerate(matrix):
                for j, value in enumerate(row):
                    color = "white" if shares[i][j] > 0.55 else INK
                    axes.text(
                        j,
                        i,
                        f"{value:,.0f}\n{shares[i][j]:.1%}",
                        ha="center",
                        va="center",
                        color=color,
                        fontsize=8,
                    )
        ticks = range(size)
        axes.set_xticks(ticks, classes, rotation=0 if size <= 6 else 60)
        axes.set_yticks(ticks, classes)
        axes.set(xlabel="predicted", ylabel="true")
        return _svg(figure, "Confusion matrix")


def bars(title: str, values: Mapping[str, float], unit: str = "", errors: Sequence[float] = ()) -> str:
    """Draws one horizontal bar a name, in the given order from the top."""
    names = list(values)
    with _axes(title, width=10.0, height=max(1.2, 0.6 + 0.24 * len(names))) as (figure, axes):
        axes.barh(names[::-1], [values[name] for name in names[::-1]], color=COLORS[0], height=0.65,
                  xerr=list(errors)[::-1] or None, ecolor=MUTED)  # fmt: skip
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(unit)
        axes.tick_params(axis="y", length=0)
        return _svg(figure, title)


def scatter(
    title: str, x: Sequence[float], y: Sequence[float], xlabel: str, ylabel: str, level: bool = False
) -> str:
    """Draws points with the line where x = y, or with `level` the line where y = 0."""
    with _axes(title) as (figure, axes):
        if level:
            axes.axhline(0, color=MUTED, linewidth=1, linestyle=":")
        else:
            ends = [min([*x, *y]), max([*x, *y])]
            axes.plot(ends, ends, color=MUTED, linewidth=1, linestyle=":")
        axes.scatter(x, y, s=4, alpha=0.25, color=COLORS[0], linewidths=0, rasterized=True)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        return _svg(figure, title)


def histogram(title: str, edges: Sequence[float], groups: Mapping[str, Sequence[float]], xlabel: str) -> str:
    """Draws shares of rows by bin, one outline a group; `edges` has one entry more than each group."""
    with _axes(title) as (figure, axes):
        for color, (name, shares) in zip(COLORS, groups.items(), strict=False):
            axes.stairs(shares, edges, color=color, label=name, linewidth=1.6)
            axes.stairs(shares, edges, color=color, alpha=0.08, fill=True)
        axes.set(xlabel=xlabel, ylabel="share of rows")
        axes.legend()
        return _svg(figure, title)


drawing, as_svg = _axes, _svg  # for the charts of other pages
