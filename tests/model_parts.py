"""Small configs, layouts and data that the tests of models, losses and the optimizer share."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.config import Config
from trainer.features import Layout, Slot

# Two plain categories, a bag of up to three, one more plain category behind it.
SLOTS = (
    Slot("color", 0, 1, 0, 10, -1),
    Slot("shape", 1, 1, 10, 20, -1),
    Slot("tags", 2, 3, 30, 10, 2),
    Slot("place", 5, 1, 40, 5, -1),
)
LAYOUT = Layout(("a", "b", "tags:0", "tags:1", "tags:2"), 2, SLOTS, 45)
NO_NUMBERS = Layout((), 0, SLOTS[:2], 30)
NO_CATEGORIES = Layout(("a", "b"), 2, (), 0)


def config(task: str = "binary", **changes: Any) -> Config:
    """A small run; keys are dotted with two underscores: training__epochs=3."""
    plain: dict[str, Any] = {
        "name": "t",
        "task": task,
        "data": {"source": ["unused"], "split": {"by": "hash", "column": "id"}},
        "label": {"column": ["y", "z"] if task == "multilabel" else "y"},
        "features": [{"name": "a", "kind": "numeric"}],
        "model": {"hidden_units": [16, 8], "embedding_dim": 4},
        "training": {"batch_size": 64, "learning_rate": 0.02},
    }
    for key, value in changes.items():
        *path, leaf = key.split("__")
        place = plain
        for part in path:
            place = place.setdefault(part, {})
        place[leaf] = value
    return Config.model_validate(plain)


def inputs(layout: Layout, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random rows of a layout; about a quarter of the entries of bags have weight 0."""
    random = np.random.default_rng(seed)
    numeric = random.normal(size=(rows, len(layout.numeric))).astype(np.float32)
    categorical = np.zeros((rows, sum(slot.width for slot in layout.slots)), np.int32)
    for slot in layout.slots:
        shape = (rows, slot.width)
        ids = random.integers(slot.offset, slot.offset + slot.rows, shape)
        if slot.weight_start >= 0:
            weights = random.uniform(0.5, 2, shape) * (random.uniform(size=shape) > 0.25)
            numeric[:, slot.weight_start : slot.weight_start + slot.width] = weights
        categorical[:, slot.start : slot.start + slot.width] = ids
    return {"numeric": numeric, "categorical": categorical}


def labels(task: str, data: dict[str, np.ndarray]) -> np.ndarray:
    """Labels that follow from the first number and the first category."""
    score = np.zeros(len(data["numeric"]), np.float32)
    if data["numeric"].shape[1]:
        score += data["numeric"][:, 0]
    if data["categorical"].shape[1]:
        score += (data["categorical"][:, 0] % 2) * 2.0 - 1.0
    if task == "multiclass":
        return np.digitize(score, [-0.8, 0.0, 0.8]).astype(np.int32)
    if task == "multilabel":
        return np.stack([score > 0, score > 1], 1).astype(np.float32)
    return score if task == "regression" else (score > 0).astype(np.float32)
