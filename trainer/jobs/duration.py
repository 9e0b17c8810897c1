"""How long a job will take, from a run that was measured. Adopters: leave."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any

from trainer.config import Config
from trainer.errors import UserError
from trainer.jobs import document


@dataclass(frozen=True)
class Estimate:
    """Hours of one job (of one trial, in a study).

    Attributes:
        hours: the hours.
        how: how they were found, in words.
    """

    hours: float
    how: str


def from_metrics(
    path: str,
    config: Config | None,
    *,
    steps: float | None = None,
    rows: float | None = None,
    speedup: float = 1.0,
) -> Estimate:
    """Returns the hours of a job from the metrics.json of a measured run of the same config.

    Training goes with the rows that pass through it, steps x batch; reading, statistics, evaluation and the
    rest go with the rows of the train split. Both are divided by `speedup`.

    Args:
        path: metrics.json; the config.yaml beside it tells its batch size.
        config: the job's run config, for epochs and batch size; None takes both from the measured run.
        steps: steps of the job; default: as its config says.
        rows: rows of the job's train split; default: as many as were measured.
        speedup: how many times as fast the job's machines are as the measured one.

    Raises:
        UserError: the file is none of a finished run.
    """
    figures = _read(path)
    try:
        measured_steps, seconds = float(figures["steps"]), figures["seconds"]
        train_seconds, total = float(seconds["train"]), float(seconds["total"])
        measured_rows, epochs = float(figures["train"]["examples"]), float(figures["epochs"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"--measured: {path} is no metrics.json of a finished run: {error} is missing"
        ) from error
    if not (measured_steps and measured_rows and total):
        raise UserError(f"--measured: {path} is of a run that trained nothing")
    measured_batch = _batch(path) or (config.training.batch_size if config else None) or 1
    batch = config.training.batch_size if config else measured_batch
    job_rows = rows or measured_rows
    if steps is None:
        per_epoch = math.ceil(job_rows / batch)
        if config is None:
            steps = per_epoch * epochs
        else:
            steps = config.training.epochs * (config.training.steps_per_epoch or per_epoch)
            steps = min(steps, config.training.max_steps or steps)
    train_ratio = steps * batch / (measured_steps * measured_batch)
    rows_ratio = job_rows / measured_rows
    hours = (train_seconds * train_ratio + (total - train_seconds) * rows_ratio) / speedup / 3600
    how = (
        f"{path}: {measured_steps:,.0f} steps of {measured_batch:,} rows took {train_seconds:,.0f} s and the "
        f"rest {total - train_seconds:,.0f} s; {steps:,.0f} steps of {batch:,} rows are {train_ratio:.3g} "
        "times the training"
    )
    how += f" and {rows_ratio:.3g} times the rest" if rows_ratio != 1 else ""
    if speedup == 1:
        how += ", on machines as fast as the measured one (--speedup says otherwise)"
    else:
        how += f", on machines {speedup:g} times as fast"
    return Estimate(hours, how)


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            figures = json.load(file)
    except OSError as error:
        raise UserError(f"--measured: {path} can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"--measured: {path} is not JSON: {error}") from error
    if not isinstance(figures, dict):
        raise UserError(f"--measured: {path} is no metrics.json of a finished run")
    return figures


def _batch(path: str) -> int | None:
    """Returns the batch size of the measured run, from the config.yaml beside its metrics.json."""
    config = os.path.join(os.path.dirname(path), "config.yaml")
    if not os.path.exists(config):
        return None
    with open(config, encoding="utf-8") as file:
        found = document.parse(file.read(), config).of("training", "batch_size")
    return found if isinstance(found, int) else None
