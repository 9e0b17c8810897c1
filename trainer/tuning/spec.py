"""A study: its hyperparameters, its metric and its limits. Adopters: leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Algorithm = Literal["bayesian", "random", "grid", "hyperband"]
ALGORITHMS: tuple[Algorithm, ...] = ("bayesian", "random", "grid", "hyperband")


@dataclass(frozen=True)
class Dimension:
    """One hyperparameter.

    Attributes:
        id: the flag's name, word for word.
        kind: double, integer, discrete or categorical.
        low, high: bounds of a double or integer, both included.
        values: values of a discrete (floats) or categorical (texts), in the file's order.
        scale: linear, log or reverse_log.
        parent: id of the hyperparameter that it depends on, or "".
        parent_values: it takes part only while the parent has one of these.
        where: `file:line` for messages.
    """

    id: str
    kind: str
    low: float = 0.0
    high: float = 0.0
    values: tuple[Any, ...] = ()
    scale: str = "linear"
    parent: str = ""
    parent_values: tuple[Any, ...] = ()
    where: str = ""

    def text(self, value: Any) -> str:
        """Returns the value as the service writes it into a trial's arguments: `64.0` for a discrete 64."""
        if self.kind == "integer":
            return str(int(value))
        return str(value) if self.kind == "categorical" else repr(float(value))

    def clean(self, value: Any) -> Any:
        """Returns a value of the search as this kind's own type; a double keeps six digits."""
        if self.kind == "integer":
            return int(value)
        if self.kind == "double":
            return min(max(float(f"{float(value):.6g}"), self.low), self.high)
        return float(value) if self.kind == "discrete" else str(value)

    @property
    def count(self) -> float:
        """Number of different values; infinite for a double."""
        if self.kind == "double":
            return 1 if self.low == self.high else math.inf
        return self.high - self.low + 1 if self.kind == "integer" else len(self.values)

    def extremes(self) -> list[Any]:
        """Returns the values that a key of the config may refuse: both bounds, or all values."""
        return [self.low, self.high] if self.kind in ("double", "integer") else list(self.values)


@dataclass(frozen=True)
class Limits:
    """When a study ends.

    Attributes:
        max_trials: trials in all.
        parallel: trials at once.
        max_failed: failed trials that end the study; 0 leaves it to us: the first one, or three in a row.
        min_trials: trials before the next two may end it.
        no_progress_trials: end after so many trials without a better one; 0 never.
        no_progress_seconds: the same in seconds.
        max_seconds: end after so many seconds.
        stop_running: end the running trials too, at once, instead of waiting for them.
    """

    max_trials: int
    parallel: int = 1
    max_failed: int = 0
    min_trials: int = 0
    no_progress_trials: int = 0
    no_progress_seconds: float = math.inf
    max_seconds: float = math.inf
    stop_running: bool = False


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes:
        file: the study file.
        name: its display name.
        metric: name of the metric, as trials report it.
        goal: "max" or "min".
        dimensions: the hyperparameters, each parent before what depends on it.
        algorithm: how the next values are chosen.
        selection: which measurement of a trial counts: "best" or "last".
        selection_given: whether the file says so.
        stopping: "" or "median": how trials that do badly are ended early.
        stopping_by_time: compare trials at the same time instead of the same step.
        limits: when it ends.
        metric_where: `file:line` of the metric, for messages.
    """

    file: str
    name: str
    metric: str
    goal: str
    dimensions: tuple[Dimension, ...]
    algorithm: Algorithm = "bayesian"
    selection: str = "last"
    selection_given: bool = False
    stopping: str = ""
    stopping_by_time: bool = False
    limits: Limits = field(default_factory=lambda: Limits(1))
    metric_where: str = ""

    def dimension(self, name: str) -> Dimension:
        """Returns a hyperparameter by its id."""
        return next(dimension for dimension in self.dimensions if dimension.id == name)

    def better(self, value: float, other: float | None) -> bool:
        """Returns whether a value of the metric is better than another; anything is better than none."""
        return other is None or (value > other if self.goal == "max" else value < other)

    def best(self, values: Sequence[float]) -> float:
        """Returns the best of some values."""
        return max(values) if self.goal == "max" else min(values)

    def arguments(self, values: dict[str, Any]) -> list[str]:
        """Returns the flags of a trial, `--id=value`, in the file's order."""
        return [
            f"--{dimension.id}={dimension.text(values[dimension.id])}"
            for dimension in self.dimensions
            if dimension.id in values
        ]

    def fingerprint(self) -> dict[str, Any]:
        """Returns what makes trials of one study comparable, as plain values."""
        return {
            "metric": self.metric,
            "goal": self.goal,
            "selection": self.selection,
            "algorithm": self.algorithm,
            "parameters": {
                d.id: [d.kind, d.low, d.high, list(d.values), d.scale, d.parent, list(d.parent_values)]
                for d in self.dimensions
            },
        }


def override(study: Study, **changes: Any) -> Study:
    """Returns the study with limits or other fields set by the command line; None leaves a field as it is."""
    given = {name: value for name, value in changes.items() if value is not None}
    limits = {name: given.pop(name) for name in ("max_trials", "parallel", "max_failed") if name in given}
    new = replace(study.limits, **limits)
    # Fewer trials than the file says may be fewer than it runs at once.
    return replace(study, **given, limits=replace(new, parallel=min(new.parallel, new.max_trials)))
