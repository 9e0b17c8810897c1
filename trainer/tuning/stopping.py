"""The median rule: which running trials do too badly to go on. Adopters: leave.

The rule is the service's (`medianAutomatedStoppingSpec`): a trial is stopped when its best value so far is
strictly worse than the median, over all completed trials, of their average value up to the same point. The
trial itself asks, in a Keras callback at the end of each epoch, so that no epoch goes to waste and no clock
decides: the study keeps the curves of the completed trials in a file of the trial's folder.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LEAST_TRIALS = 3  # completed trials before a median says anything
CURVES = "TRAINER_STUDY_CURVES"  # variable that names the file
STOPPED = "stopped.json"  # written beside it by a trial that was stopped


@dataclass(frozen=True)
class Verdict:
    """What the rule says of a trial.

    Attributes:
        stop: whether it does too badly.
        median: what it was held against; None while too few trials are completed.
        trials: number of completed trials that had reported up to there.
    """

    stop: bool
    median: float | None = None
    trials: int = 0


def median_rule(
    own: Sequence[tuple[float, float]], others: Sequence[Sequence[tuple[float, float]]], goal: str
) -> Verdict:
    """Returns whether a trial should be stopped.

    Args:
        own: (step or seconds, value) of the trial so far.
        others: the same of each completed trial.
        goal: "max" or "min".
    """
    if not own:
        return Verdict(False)
    here = max(point for point, _ in own)
    averages = []
    for curve in others:
        values = [value for point, value in curve if point <= here]
        if values:
            averages.append(statistics.fmean(values))
    if len(averages) < LEAST_TRIALS:
        return Verdict(False, None, len(averages))
    median = statistics.median(averages)
    best = (max if goal == "max" else min)(value for _, value in own)
    worse = best < median if goal == "max" else best > median
    return Verdict(worse, median, len(averages))


def content(
    metric: str, goal: str, by_time: bool, started: float, curves: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """Returns what the file of a trial holds.

    Args:
        metric: the study's metric.
        goal: "max" or "min".
        by_time: compare at the same time instead of the same step.
        started: time at which this trial began.
        curves: measurements (`step`, `value`, `seconds`) of each completed trial.
    """
    return {
        "metric": metric,
        "goal": goal,
        "by_time": by_time,
        "started": started,
        "curves": [[[m.seconds if by_time else m.step, m.value] for m in curve] for curve in curves],
    }
