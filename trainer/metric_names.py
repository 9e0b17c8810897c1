"""Names of the metrics that the trainer reports, and which way is better. Adopters: add yours here too.

Kept apart from `metrics.py` so that a job file can be checked without importing TensorFlow.
"""

from __future__ import annotations

DIRECTIONS = {
    "loss": "min",
    "auc": "max",
    "pr_auc": "max",
    "accuracy": "max",
    "precision": "max",
    "recall": "max",
    "brier": "min",
    "top_3_accuracy": "max",
    "macro_f1": "max",
    "rmse": "min",
    "mae": "min",
    "r2": "max",
}
PREFIXES = ("train_", "val_", "validation_", "test_")


def names(task: str, classes: int) -> tuple[str, ...]:
    """Returns the names that `metrics.make` gives a task with that many classes."""
    return {
        "binary": ("auc", "pr_auc", "accuracy", "precision", "recall", "brier"),
        "multiclass": ("accuracy", "macro_f1", *(("top_3_accuracy",) if classes > 3 else ())),
        "regression": ("rmse", "mae", "r2"),
        "multilabel": ("auc", "accuracy"),
    }[task]


def reported(task: str, classes: int) -> tuple[str, ...]:
    """Returns the names of all figures of an epoch: of the training rows and, with val_, of validation."""
    own = ("loss", *names(task, classes))
    return (*own, *(f"val_{name}" for name in own))


def direction(name: str) -> str | None:
    """Returns "max" or "min", whichever is better for the metric `name`; None for an unknown metric.

    A prefix that names the split (val_, train_, test_) is allowed.
    """
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return DIRECTIONS.get(name)
