"""How much each parameter mattered, from the trials alone. Adopters: leave."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from trainer.tuning.spec import Dimension, Study
from trainer.tuning.trial import Trial

LEAST_TRIALS = 6
_TREES = 200
_REPEATS = 20


def position(dimension: Dimension, value: Any) -> float:
    """Returns where a value lies on its parameter's axis, from 0 to 1, on the parameter's scale."""
    if dimension.kind in ("discrete", "categorical"):
        return dimension.values.index(value) / max(1, len(dimension.values) - 1)
    low, high = dimension.low, dimension.high
    if low == high:
        return 0.5
    if dimension.scale == "log":
        return math.log(value / low) / math.log(high / low)
    if dimension.scale == "reverse_log":
        return 1 - math.log((high + low - value) / low) / math.log(high / low)
    return float((value - low) / (high - low))


def importance(study: Study, trials: list[Trial]) -> dict[str, float]:
    """Returns the share of each parameter in what a model of the metric explains, the largest first.

    A random forest learns the metric from the values; a parameter's importance is what the forest loses when
    the parameter's column is shuffled (Breiman, Random Forests, 2001), here on the trials themselves, of
    which there are too few to keep some back. Shares add up to 1.

    Args:
        study: the study.
        trials: those that have a value.

    Returns:
        Nothing with fewer than six trials or when the metric is the same in all.
    """
    values = np.array([trial.value for trial in trials], np.float64)
    if len(trials) < LEAST_TRIALS or np.ptp(values) == 0:
        return {}
    columns: list[np.ndarray] = []
    owners: list[str] = []
    for dimension in study.dimensions:
        given = [trial.values.get(dimension.id) for trial in trials]
        if dimension.kind == "categorical":
            for value in dimension.values:
                columns.append(np.array([item == value for item in given], np.float64))
                owners.append(dimension.id)
            continue
        columns.append(np.array([-1.0 if v is None else position(dimension, v) for v in given]))
        owners.append(dimension.id)
    rows = np.stack(columns, axis=1)
    forest = RandomForestRegressor(_TREES, min_samples_leaf=2, max_features=None, random_state=0).fit(
        rows, values
    )
    error = _error(forest, rows, values)
    generator = np.random.default_rng(0)
    lost: dict[str, float] = {}
    for name in dict.fromkeys(owners):
        own = [index for index, owner in enumerate(owners) if owner == name]
        rises = []
        for _ in range(_REPEATS):
            mixed = rows.copy()
            mixed[:, own] = rows[generator.permutation(len(rows))][:, own]
            rises.append(_error(forest, mixed, values) - error)
        lost[name] = max(0.0, float(np.mean(rises)))
    total = sum(lost.values())
    if total == 0:
        return {}
    return {name: value / total for name, value in sorted(lost.items(), key=lambda item: -item[1])}


def _error(forest: RandomForestRegressor, rows: np.ndarray, values: np.ndarray) -> float:
    return float(np.mean((forest.predict(rows) - values) ** 2))
