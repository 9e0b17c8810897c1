"""Charts of study.html, in the report's looks. Adopters: leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from trainer.charts import COLORS, INK, MUTED, as_svg, drawing
from trainer.tuning.importance import position
from trainer.tuning.spec import Dimension, Study
from trainer.tuning.trial import Trial

_ABSENT = -0.12  # where a line passes the axis of a parameter that took no part
_MOST_TICKS = 8
_FAR = 4.0  # times the distance from the best to the quarter mark: what lies farther is off the scale
_SMALL: dict[str, float] = {"width": 3.9, "height": 2.75}  # three stand side by side, with legible text
# A mark on an axis stands on a patch of white, so that lines don't strike it out.
_mark: dict[str, Any] = {
    "xytext": (4, 2), "textcoords": "offset points", "fontsize": 8, "color": INK, "zorder": 5,
    "bbox": {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6},
}  # fmt: skip


def _ticks(dimension: Dimension) -> list[tuple[float, str]]:
    """Returns (position, text) of the marks on a parameter's axis."""
    if dimension.kind in ("discrete", "categorical"):
        every = max(1, len(dimension.values) // _MOST_TICKS)
        marks = [(position(dimension, v), v) for v in dimension.values[::every]]
        return [(at, f"{v:g}" if isinstance(v, float) else str(v)[:14]) for at, v in marks]
    low, high = dimension.low, dimension.high
    if low == high:
        return [(0.5, f"{low:g}")]
    if dimension.kind == "integer" and dimension.count <= _MOST_TICKS:
        return [(position(dimension, v), f"{v}") for v in range(int(low), int(high) + 1)]
    if dimension.scale == "linear":
        middle = (low + high) / 2
    else:
        middle = (low * high) ** 0.5 if dimension.scale == "log" else low + high - (low * high) ** 0.5
    middle = round(middle) if dimension.kind == "integer" else middle
    return [(position(dimension, v), f"{v:.3g}") for v in (low, middle, high)]


def parallel_coordinates(study: Study, trials: Sequence[Trial]) -> str:
    """Draws one line a trial across one axis a parameter, and the metric's axis at the right."""
    values = [float(trial.value) for trial in trials if trial.value is not None]
    low, high = min(values), max(values)
    best = study.best(values)
    ranks = sorted(values, reverse=study.goal == "min")

    # On white: the best dark, the worst pale, but not too pale to be seen. By rank, so that one trial that
    # went wrong doesn't make all others alike.
    def color(value: float) -> Any:
        share = ranks.index(value) / max(1, len(ranks) - 1)
        return mpl.colormaps["viridis_r"](0.12 + 0.88 * share)

    axes_count = len(study.dimensions) + 1
    with drawing("", width=max(9.0, 1.7 * axes_count), height=3.9) as (figure, axes):
        # The best on top: it is drawn last.
        for trial in sorted(trials, key=lambda t: (t.value or 0.0) * (1 if study.goal == "max" else -1)):
            assert trial.value is not None
            heights = [
                position(d, trial.values[d.id]) if d.id in trial.values else _ABSENT for d in study.dimensions
            ]
            heights.append(0.5 if high == low else (trial.value - low) / (high - low))
            is_best = trial.value == best
            axes.plot(
                range(axes_count), heights, color=color(trial.value), alpha=1.0 if is_best else 0.7,
                linewidth=2.8 if is_best else 1.2, marker="o", markersize=3.5 if is_best else 2,
            )  # fmt: skip
        names = [d.id for d in study.dimensions]
        for index, dimension in enumerate(study.dimensions):
            axes.axvline(index, color=INK, linewidth=0.8)
            for at, text in _ticks(dimension):
                axes.annotate(text, (index, at), **_mark)
        axes.axvline(axes_count - 1, color=INK, linewidth=0.8)
        for at, value in ((0.0, low), (1.0, high)):
            axes.annotate(f"{value:.4g}", (axes_count - 1, at), **_mark)
        axes.set_xticks(range(axes_count), [*names, study.metric])
        axes.set_yticks([])
        axes.set_xlim(-0.15, axes_count - 0.6)
        axes.grid(False)
        axes.spines[["left", "bottom"]].set_visible(False)
        return as_svg(figure, "Parallel coordinates")


def _focus(axes: Axes, study: Study, values: Sequence[float]) -> None:
    """Cuts the scale where a few trials that went wrong would press all others into one line."""
    worst_first = sorted(values, reverse=study.goal == "min")
    best, usual = worst_first[-1], worst_first[len(values) // 4]
    edge = best - _FAR * (best - usual)
    if len(values) < 4 or usual == best or not study.better(edge, worst_first[0]):
        return
    off = sum(study.better(edge, value) for value in values)
    if study.goal == "max":
        axes.set_ylim(bottom=edge)
    else:
        axes.set_ylim(top=edge)
    text = f"{off} value{'s' if off > 1 else ''} off the scale"
    axes.annotate(text, (0.98, 0.02 if study.goal == "max" else 0.94), xycoords="axes fraction", ha="right",
                  fontsize=7.5, color=MUTED)  # fmt: skip


def best_so_far(study: Study, trials: Sequence[Trial], title: str) -> str:
    """Draws each trial's value and the best so far, in the order in which they ended."""
    values = [float(trial.value) for trial in trials if trial.value is not None]
    best = [study.best(values[: n + 1]) for n in range(len(values))]
    with drawing(title, **_SMALL) as (figure, axes):
        places = range(1, len(values) + 1)
        axes.scatter(places, values, s=14, color=MUTED, label="trial")
        axes.plot(places, best, color=COLORS[0], linewidth=1.8, drawstyle="steps-post", label="best so far")
        _focus(axes, study, values)
        axes.set_xlabel("finished trials")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
        return as_svg(figure, "Best so far")


def curves(study: Study, trials: Sequence[Trial], best: int) -> str:
    """Draws the measurements of each trial over its steps; the best trial stands out."""
    shown: list[float] = []
    with drawing(f"{study.metric} by step", **_SMALL) as (figure, axes):
        for trial in sorted(trials, key=lambda t: t.id == best):
            first: dict[int, float] = {}  # the exported model's value stands at the last epoch's step again
            for measurement in trial.curve:
                first.setdefault(measurement.step, measurement.value)
            points = sorted(first.items())
            shown += first.values()
            is_best, early = trial.id == best, trial.state == "stopped"
            axes.plot(
                [step for step, _ in points], [value for _, value in points],
                color=COLORS[0] if is_best else COLORS[1] if early else MUTED, alpha=1.0 if is_best else 0.45,
                linewidth=2.2 if is_best else 1.0, marker="o", markersize=3,
            )  # fmt: skip
        axes.plot([], [], color=COLORS[0], label=f"trial {best}, the best")
        if any(trial.state == "stopped" and trial.id != best for trial in trials):
            axes.plot([], [], color=COLORS[1], label="stopped early")
        axes.plot([], [], color=MUTED, label="others")
        _focus(axes, study, shown)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.legend()
        return as_svg(figure, "Curve of each trial")


def known(trials: Sequence[Trial]) -> str:
    """Draws how many finished trials the search knew when it chose each one, beside one at a time."""
    with drawing("What the search knew", **_SMALL) as (figure, axes):
        places = [trial.id for trial in trials]
        axes.plot(places, [place - 1 for place in places], color=MUTED, linestyle=":", label="one at a time")
        axes.plot(
            places,
            [t.seen for t in trials],
            color=COLORS[0],
            linewidth=1.8,
            drawstyle="steps-mid",
            label="here",
        )
        axes.set(xlabel="trial", ylabel="finished trials known")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
        return as_svg(figure, "What the search knew")
