"""Tables and the plot of benchmarks/input.py."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

BEGIN, END = "<!-- benchmarks/input.py writes from here -->", "<!-- to here -->"


@dataclass
class Line:
    """A figure beside its goal."""

    name: str
    value: float
    goal: float
    at_least: bool
    detail: str

    @property
    def holds(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal


class Growth(NamedTuple):
    """What a row costs with 13 numbers, 26 texts, both (39), or four times both (156), and a vocabulary.

    Attributes:
        columns: features of a row.
        vocabulary: distinct values of the largest text columns.
        streamed: rows a second from Parquet to batches.
        cached: rows a second of a later epoch from memory.
        streamed_cpu: CPU microseconds a row, all threads together.
        cached_cpu: the same from memory.
    """

    columns: int
    vocabulary: int
    streamed: float
    cached: float
    streamed_cpu: float
    cached_cpu: float


def markdown(tensorflow: str, variants: Sequence[Any], lines: Sequence[Line], grown: Sequence[Growth]) -> str:
    """Returns the tables."""
    text = [
        f"TensorFlow {tensorflow}, Python {platform.python_version()}, two cores; samples in which other "
        "processes took more than 0.15 cores are left out where at least three are left.",
        "",
        "| ratio | value | goal | holds | of |",
        "|---|---|---|---|---|",
    ]
    for line in lines:
        goal = f"{'>=' if line.at_least else '<='} {line.goal:g}"
        text.append(
            f"| {line.name} | {line.value:.3g} | {goal} | {'yes' if line.holds else 'NO'} | {line.detail} |"
        )
    text += [
        "",
        "| variant | rows/s (median) | range | CPU us/row | samples disturbed |",
        "|---|---|---|---|---|",
    ]
    for variant in variants:
        kept = variant.kept()
        text.append(
            f"| {variant.name} | {variant.rate:,.0f} | {min(kept):,.0f}-{max(kept):,.0f} | "
            f"{statistics.median(variant.cpu):.2f} | {variant.disturbed} of {len(variant.samples)} |"
        )
    if grown:
        text += [
            "",
            "| columns | largest vocabulary | Parquet: CPU us/row | rows/s | memory: CPU us/row | rows/s |",
            "|---|---|---|---|---|---|",
        ]
        text += [
            f"| {g.columns} | {g.vocabulary:,} | {g.streamed_cpu:.2f} | {g.streamed:,.0f} | "
            f"{g.cached_cpu:.2f} | {g.cached:,.0f} |"
            for g in grown
        ]
    return "\n".join(text)


def insert(page: Path, text: str) -> None:
    """Puts the tables between the two marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def plot(path: Path, grown: Sequence[Growth]) -> None:
    """Draws rows a second of CPU time, which other processes move little, by columns and vocabularies."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "input"  # the same figures make the same file
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
    by_columns = sorted(g for g in grown if g.vocabulary == 10_000)
    by_vocabulary = sorted((g for g in grown if g.columns == 39), key=lambda g: g.vocabulary)
    for axes, points, key, title in (
        (left, by_columns, "columns", "columns: 13 numbers, 26 texts, both, 4 x both"),
        (right, by_vocabulary, "vocabulary", "largest vocabulary (39 columns)"),
    ):
        places = [getattr(point, key) for point in points]
        axes.plot(places, [1 / point.streamed_cpu for point in points], "o-", label="Parquet to batches")
        axes.plot(places, [1 / point.cached_cpu for point in points], "s--", label="second epoch from memory")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(title)
        axes.grid(alpha=0.3)
    left.set_ylabel("million rows a second of CPU time")
    left.legend()
    figure.savefig(path, metadata={"Date": None})
