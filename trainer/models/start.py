"""Where a model's output starts: at what the labels of the train split say by themselves. Adopters: leave.

A model that starts at the share of each class has nothing to unlearn in its first steps, and one that starts
at the mean of a label of 250,000 does not need ten thousand steps to get there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.features import LabelSpec


@dataclass(frozen=True)
class Start:
    """What is known of the output before any step.

    Attributes:
        bias: First bias of the output layer, one number an output.
        scale: Regression: the output layer's values are multiplied by this (the label's standard deviation),
        offset: and this is added (its mean). 1 and 0 for the other tasks.
    """

    bias: tuple[float, ...]
    scale: float = 1.0
    offset: float = 0.0


def start_of(label: LabelSpec, class_weights: Mapping[str, float] | None = None) -> Start:
    """Returns the start for a label.

    Binary and multilabel: the log odds of the train share. Multiclass: the logarithms of the shares. Each is
    the constant with the smallest cross-entropy. Regression: no bias, because the layers give standardised
    values there. One row is added to each count, so that a class without rows stays finite.

    Args:
        label: The label, with what the train split taught about it.
        class_weights: `training.class_weights`: the loss counts each row of a class that often.
    """
    if label.task == "regression":
        scale = float(label.summary.get("std", 0.0))
        offset = float(label.summary.get("mean", 0.0))
        usable = math.isfinite(scale) and scale > 0 and math.isfinite(offset)
        return Start((0.0,), scale, offset) if usable else Start((0.0,))
    weights = class_weights or {}
    counts = [(label.counts.get(name, 0) + 1.0) * weights.get(str(name), 1.0) for name in label.classes]
    if not label.counts or min(counts, default=0.0) <= 0:
        return Start((0.0,) * label.outputs)
    if label.task == "multilabel":
        rows = float(label.summary.get("rows", 0.0)) + 2.0
        return Start(
            tuple(_log_odds(count / rows) for count in counts) if rows > 2 else (0.0,) * label.outputs
        )
    if label.task == "binary":
        return Start((_log_odds(counts[1] / sum(counts)),))
    return Start(tuple(_log_shares(counts)))


def _log_odds(share: float) -> float:
    inside = min(max(share, 1e-6), 1 - 1e-6)
    return math.log(inside) - math.log1p(-inside)


def _log_shares(counts: Sequence[float]) -> list[float]:
    total = sum(counts)
    return [math.log(count / total) for count in counts]
