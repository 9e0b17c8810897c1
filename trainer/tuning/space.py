"""The study's hyperparameters as keras-tuner's, with scales and conditions. Adopters: leave."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import keras_tuner

from trainer.tuning.spec import Dimension, Study


def hyperparameters(study: Study) -> keras_tuner.HyperParameters:
    """Returns the search space of a study.

    A discrete parameter is a list of ordered values for keras-tuner, so that its scale is that of the list:
    512, 1024, 2048 lie evenly, as on a log scale. A parameter with one value only is fixed.
    """
    space = keras_tuner.HyperParameters()
    for dimension in study.dimensions:
        with ExitStack() as scopes:
            for parent, values in _ancestors(dimension, study):
                scopes.enter_context(space.conditional_scope(parent, list(values)))
            _add(space, dimension)
    return space


def _ancestors(dimension: Dimension, study: Study) -> list[tuple[str, tuple[Any, ...]]]:
    """Returns (parent, values) of every condition, the outermost first."""
    found: list[tuple[str, tuple[Any, ...]]] = []
    while dimension.parent:
        found.insert(0, (dimension.parent, dimension.parent_values))
        dimension = study.dimension(dimension.parent)
    return found


def _add(space: keras_tuner.HyperParameters, dimension: Dimension) -> None:
    if dimension.count == 1:
        only = dimension.values[0] if dimension.values else dimension.clean(dimension.low)
        space.Fixed(dimension.id, only)
    elif dimension.kind == "double":
        space.Float(dimension.id, dimension.low, dimension.high, sampling=dimension.scale)
    elif dimension.kind == "integer":
        space.Int(dimension.id, int(dimension.low), int(dimension.high), sampling=dimension.scale)
    else:
        space.Choice(dimension.id, list(dimension.values), ordered=dimension.kind == "discrete")


def values_of(trial_values: dict[str, Any], study: Study) -> dict[str, Any]:
    """Returns the values of a keras-tuner trial that are parameters of the study: active ones only.

    keras-tuner keeps notes of its own (`tuner/epochs`) beside them, and NumPy's floats among them.
    """
    return {
        dimension.id: dimension.clean(trial_values[dimension.id])
        for dimension in study.dimensions
        if dimension.id in trial_values
    }
