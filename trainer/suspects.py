"""Which columns may have made a loss that isn't finite. Adopters: leave."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from trainer.config import Config

HUGE = 1e6  # encoded numbers are about 1 in size


def suspects(pipeline: Any, features: Any, step: int, config: Config) -> str:
    """Looks at the batches of step `step` and the one before, and says what stands out in them.

    The batch before counts too: its update may have broken the weights that the loss was computed with.

    Args:
        pipeline: The training pipeline; gives `training_numpy(start_step)`.
        features: Fitted features; `layout.numeric` names the columns.
        step: The step, from 0.
        config: The run's config.

    Returns:
        A clause that ends the sentence "the loss is nan at step 12: ...".
    """
    found: dict[str, str] = {}
    start = max(0, step - 1)
    for batch in itertools.islice(pipeline.training_numpy(start), step - start + 1):
        numeric = np.asarray(batch["numeric"])
        columns = [(f"column {name!r}", numeric[:, i]) for i, name in enumerate(features.layout.numeric)]
        columns += [("the label", batch["label"]), ("the row weight", batch["weight"])]
        for name, values in columns:
            remark = _remark(np.asarray(values))
            if remark:
                found[name] = remark
    if found:
        shown = [
            f"{name if ' ' in name else repr(name)} {remark}" for name, remark in list(found.items())[:5]
        ]
        more = f" and {len(found) - 5} more columns" if len(found) > 5 else ""
        return (
            f"in its batch {'; '.join(shown)}{more}: mend the data, or set the feature's normalize or impute"
        )
    clip = "" if config.training.clip_norm else ", or set training.clip_norm"
    return (
        "no column of its batch stands out, so the steps may be too long: lower training.learning_rate "
        f"(now {config.training.learning_rate:g}){clip}"
    )


def _remark(values: np.ndarray) -> str:
    values = values.astype(np.float64).ravel()
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        return f"has {bad} value{'s' if bad > 1 else ''} that {'are' if bad > 1 else 'is'} NaN or infinite"
    largest = float(np.abs(values).max(initial=0.0))
    return f"reaches {largest:.3g}" if largest > HUGE else ""
