"""What to know before a study starts: its cost in trials, what parallelism costs. Adopters: leave."""

from __future__ import annotations

import math

from trainer.tuning.spec import Study

PER_PARAMETER = 10  # trials; the service's own advice for a search that learns


def known(trials: int, parallel: int) -> list[int]:
    """Returns how many finished trials the search knows when it chooses each trial.

    Trials of equal length, a new one whenever one ends: trial n knows all but those that run beside it.
    """
    return [max(0, number - min(parallel, trials)) for number in range(1, trials + 1)]


def lines(study: Study, epochs: int, points: int, fewer_by: str = "--parallel_trial_count={}") -> list[str]:
    """Returns advice, one sentence each.

    Args:
        study: the study.
        epochs: epochs of a trial.
        points: trials that a Bayesian search draws at random.
        fewer_by: how fewer trials at once are asked for, with `{}` for their number.
    """
    limits = study.limits
    trials, parallel = limits.max_trials, min(limits.parallel, limits.max_trials)
    found = [_cost(study, epochs)]
    if study.algorithm == "bayesian":
        side = known(trials, parallel)
        alone = known(trials, 1)
        mean, most = sum(side) / trials, sum(alone) / trials
        blind = sum(count < points for count in side)
        loss = f"{1 - mean / most:.0%} fewer than one at a time" if most else "nothing to know"
        found.append(
            f"{parallel} at once: each is chosen knowing {mean:.1f} finished ones on average"
            + (f" ({loss})" if parallel > 1 else "")
            + f"; {blind} of {trials} are drawn at random, before it knows {points}"
        )
        if blind * 2 > trials and parallel > 1:
            fewer = max(1, trials // 5)
            found.append(
                f"more than half of the trials learn nothing from the others: {fewer_by.format(fewer)} "
                f"would leave {sum(count < points for count in known(trials, fewer))} at random"
            )
        wanted = PER_PARAMETER * len(study.dimensions)
        if trials < wanted:
            found.append(
                f"{trials} trials for {len(study.dimensions)} parameters are few: {PER_PARAMETER} for each "
                f"would be {wanted}"
            )
    elif study.algorithm in ("random", "grid"):
        found.append(f"{parallel} at once cost nothing in quality: a {study.algorithm} search learns nothing")
    if not study.selection_given:
        found.append(
            "measurementSelectionType is not set, which is LAST_MEASUREMENT in a file (taken here) and "
            "BEST_MEASUREMENT in the Python SDK: write it out, so that both mean the same"
        )
    return found


def _cost(study: Study, epochs: int) -> str:
    trials = study.limits.max_trials
    if study.algorithm == "hyperband":
        return f"the study costs at most {trials} trials of 1 to {epochs} epochs"
    text = f"the study costs {trials} trials of {epochs} epoch{'s' if epochs > 1 else ''}"
    text += f", {trials * epochs:,} epochs in all" if epochs > 1 else ""
    count = math.prod(d.count for d in study.dimensions if not d.parent)
    if math.isinf(count):
        return text
    if study.algorithm == "grid" and count > trials:
        return f"{text}: the first of a grid of {count:,.0f} or more, whose rest is never tried"
    return f"{text}: there are {count:,.0f} combinations" + (" or more" if _has_children(study) else "")


def _has_children(study: Study) -> bool:
    return any(dimension.parent for dimension in study.dimensions)
