"""What a trial has reported, read from hypertune's file as the service reads it. Adopters: leave."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainer import storage


@dataclass(frozen=True)
class Measurement:
    """One report of the metric.

    Attributes:
        step: optimizer steps done (`global_step`).
        value: the metric; always finite.
        seconds: since the trial's first start.
    """

    step: int
    value: float
    seconds: float = 0.0

    def plain(self) -> dict[str, Any]:
        """Returns it as plain values."""
        return asdict(self)


def read(path: str, metric: str, started: float = 0.0) -> tuple[list[Measurement], list[str]]:
    """Returns the finite measurements in a trial's file, in order, and what was found there but can't count.

    Args:
        path: the file; one that isn't there holds nothing.
        metric: name of the study's metric, compared exactly.
        started: time (of the epoch) at which the trial began.
    """
    found: list[Measurement] = []
    others: dict[str, None] = {}
    text = storage.read_text(path) if storage.exists(path) else ""
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            if metric not in entry:
                names = set(entry) - {"timestamp", "trial", "global_step", "checkpoint_path"}
                others.update({f"{name!r}": None for name in sorted(names)})
                continue
            value, step = float(entry[metric]), int(float(entry["global_step"]))
            seconds = max(0.0, float(entry["timestamp"]) - started)
        except (ValueError, KeyError, TypeError):
            others[f"a line that is none: {line[:60]!r}"] = None
            continue
        if math.isfinite(value):
            found.append(Measurement(step, value, seconds))
        else:
            others[f"{metric}={value}"] = None
    return found, list(others)


def select(measurements: Sequence[Measurement], selection: str, goal: str) -> Measurement | None:
    """Returns the measurement that counts: the best one, or the last; None without any.

    Args:
        measurements: of one trial, in the order of its file.
        selection: "best" or "last".
        goal: "max" or "min".
    """
    if not measurements:
        return None
    if selection == "last":
        return measurements[-1]
    return (max if goal == "max" else min)(measurements, key=lambda m: m.value)


def by_step(measurements: Sequence[Measurement], selection: str, goal: str) -> list[Measurement]:
    """Returns one measurement a step, in order of steps: of several the one that `select` would take.

    keras-tuner would take the mean of those of one step: the last epoch's and the exported model's.
    """
    steps: dict[int, list[Measurement]] = {}
    for measurement in measurements:
        steps.setdefault(measurement.step, []).append(measurement)
    chosen = [select(group, selection, goal) for _, group in sorted(steps.items())]
    return [measurement for measurement in chosen if measurement is not None]
