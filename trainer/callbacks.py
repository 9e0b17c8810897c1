"""Callbacks whose state survives a restart, and the files they write. Adopters: add your own beside them.

Any `keras.callbacks.Callback` works with the loop. One that counts across epochs should also have
`get_state() -> dict` (plain JSON values) and `set_state(dict)`: the state is saved in each checkpoint and put
back after `on_train_begin`. Keras's own EarlyStopping has neither and starts to count anew after a restart.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer import metrics, storage
from trainer.config import Config
from trainer.errors import UserError, nearest
from trainer.reporting import Reporter
from trainer.tuning import stopping

log = logging.getLogger("trainer")


def monitor_of(config: Config, *, has_validation: bool = True, classes: int = 4) -> tuple[str, str]:
    """Returns the metric that says which epoch is best, and its direction "min" or "max".

    Call it before data is read: a wrong name or an unknown direction is a mistake of the config.

    Args:
        config: The run's config.
        has_validation: Whether there is a validation split; the default val_loss becomes loss without it.
        classes: Number of classes, if known; it decides which metrics exist.

    Raises:
        UserError: No such metric, or one whose direction isn't known and isn't given.
    """
    name, mode = config.training.monitor, config.training.monitor_mode
    if not has_validation and name == "val_loss":
        name = "loss"
    known = ["loss"]
    if has_validation:
        known += ["val_loss", *(f"val_{metric}" for metric in metrics.names(config.task, classes))]
    if mode == "auto":
        found = metrics.direction(name)
        if found is None:
            raise UserError(
                f"training.monitor: whether a higher or a lower {name!r} is better is not known, so set "
                f"training.monitor_mode to max or min{nearest(name, known)}"
            )
        if name not in known:
            raise UserError(
                f"training.monitor: task {config.task} has no metric {name!r}; it has {', '.join(known)}"
                f"{nearest(name, known)}"
            )
        mode = "max" if found == "max" else "min"
    return name, mode


def improved(value: float, best: float | None, mode: str, min_delta: float = 0.0) -> bool:
    """Returns whether `value` is better than `best` by more than `min_delta`; NaN never is."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return value > best + min_delta if mode == "max" else value < best - min_delta


def learning_rate(optimizer: Any) -> float:
    """Returns the learning rate of this trainer's optimizer or of a Keras one, on any strategy."""
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


def get_states(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Returns the state of each callback that has some, by class name and place among its like."""
    return {
        key: callback.get_state() for key, callback in _keyed(callbacks) if hasattr(callback, "get_state")
    }


def set_states(callbacks: Iterable[Any], states: dict[str, Any]) -> None:
    """Puts states from `get_states` back; callbacks without one keep what they have."""
    for key, callback in _keyed(callbacks):
        if key in states and hasattr(callback, "set_state"):
            callback.set_state(states[key])


def standard(
    config: Config, *, logs: str, table: str, monitor: str, mode: str
) -> list[keras.callbacks.Callback]:
    """Makes the callbacks that the config asks for.

    Args:
        config: The run's config.
        logs: Folder of TensorBoard events; "" writes none.
        table: CSV file with a row an epoch; "" writes none.
        monitor: Metric, from `monitor_of`.
        mode: "min" or "max", from `monitor_of`.
    """
    training = config.training
    made: list[keras.callbacks.Callback] = []
    if training.schedule.plateau_patience:
        made.append(
            ReduceOnPlateau(
                monitor, mode, training.schedule.plateau_patience, training.schedule.plateau_factor
            )
        )
    if training.early_stopping.patience:
        stopping = training.early_stopping
        made.append(EarlyStopping(monitor, mode, stopping.patience, stopping.min_delta))
    if logs:
        made.append(Scalars(logs))
    if table:
        made.append(EpochTable(table))
    return made


class EarlyStopping(keras.callbacks.Callback):
    """Stops when `monitor` hasn't improved for `patience` epochs; its count survives a restart.

    The best weights come from the best checkpoint, so none are kept in memory here.
    """

    def __init__(self, monitor: str, mode: str, patience: int, min_delta: float = 0.0) -> None:
        super().__init__()
        self.monitor, self.mode, self.patience, self.min_delta = monitor, mode, patience, min_delta
        self.best: float | None = None
        self.wait = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts to count anew, so that one instance can serve several runs."""
        self.best, self.wait = None, 0

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the epoch."""
        value = _value(logs, self.monitor)
        if improved(value, self.best, self.mode, self.min_delta):
            self.best, self.wait = value, 0
            return
        self.wait += 1
        if self.wait >= self.patience:
            log.info("early stopping: %s has not improved for %d epoch(s)", self.monitor, self.wait)
            self.model.stop_training = True

    def get_state(self) -> dict[str, Any]:
        """Returns what has been counted."""
        return {"best": self.best, "wait": self.wait}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from `get_state`."""
        self.best, self.wait = state["best"], state["wait"]


class ReduceOnPlateau(EarlyStopping):
    """Multiplies the learning rate by `factor` after `patience` epochs without improvement."""

    def __init__(self, monitor: str, mode: str, patience: int, factor: float) -> None:
        super().__init__(monitor, mode, patience)
        self.factor = factor

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the epoch and lowers the rate when it is time."""
        value = _value(logs, self.monitor)
        if improved(value, self.best, self.mode, self.min_delta):
            self.best, self.wait = value, 0
            return
        self.wait += 1
        if self.wait >= self.patience:
            optimizer = self.model.optimizer
            optimizer.learning_rate = learning_rate(optimizer) * self.factor
            self.wait = 0


class Scalars(keras.callbacks.Callback):
    """Writes the figures of each epoch for TensorBoard: `train` and `validation` as two runs, by step."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes and flushes, so that a job that is killed loses no epoch."""
        for name, value in (logs or {}).items():
            run, name = ("validation", name[4:]) if name.startswith("val_") else ("train", name)
            if run not in self._writers:
                self._writers[run] = tf.summary.create_file_writer(f"{self._folder}/{run}")
            with self._writers[run].as_default():
                tf.summary.scalar(f"epoch_{name}", value, step=epoch)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Closes the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


class EpochTable(keras.callbacks.Callback):
    """Writes a CSV file with a row an epoch.

    The file is written whole each time, from rows that are part of the checkpoint: after a restart no epoch
    is missing and none is there twice, as they are with `keras.callbacks.CSVLogger(append=True)`.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._rows: list[dict[str, float]] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts an empty table."""
        self._rows = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the epoch and writes the table."""
        self._rows.append({"epoch": epoch, **{name: float(value) for name, value in (logs or {}).items()}})
        text = io.StringIO()
        columns = list(dict.fromkeys(name for row in self._rows for name in row))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        storage.write_text(self._path, text.getvalue())

    def get_state(self) -> dict[str, Any]:
        """Returns the rows so far."""
        return {"rows": self._rows}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from `get_state`."""
        self._rows = list(state["rows"])


class Objective(keras.callbacks.Callback):
    """Reports the objective of a tuning study after each epoch, as far as this process is a trial's chief.

    A restarted trial reports what it had reported again: its new process begins with an empty file.
    """

    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter = reporter
        self._reported: list[tuple[dict[str, float], int]] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts an empty history."""
        self._reported = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reports the epoch."""
        step = int(self.model.optimizer.iterations.numpy())  # the first replica's copy
        figures = {name: float(value) for name, value in (logs or {}).items()}
        self._reporter.report(figures, step)
        self._reported.append((figures, step))

    def get_state(self) -> dict[str, Any]:
        """Returns what was reported."""
        return {"reported": [[figures, step] for figures, step in self._reported]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Reports it again."""
        self._reported = [(figures, step) for figures, step in state["reported"]]
        for figures, step in self._reported:
            self._reporter.report(figures, step)


class StopBadTrial(keras.callbacks.Callback):
    """Stops a trial that does worse than the median of the completed ones, as the study's file tells.

    The study writes that file and names it in TRAINER_STUDY_CURVES; see `trainer.tuning.stopping`. The run
    goes on as after early stopping: its best epoch is evaluated and exported, and its value counts.
    """

    def __init__(self, curves: str) -> None:
        super().__init__()
        self._path = curves
        self._own: list[list[float]] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts an empty curve."""
        self._own = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Holds the epoch against the completed trials."""
        study = storage.read_json(self._path)
        if not study:
            return
        by_time = study["by_time"]
        point = time.time() - study["started"] if by_time else int(self.model.optimizer.iterations.numpy())
        self._own.append([float(point), _value(logs, study["metric"])])
        own = [(point, value) for point, value in self._own]
        verdict = stopping.median_rule(own, study["curves"], study["goal"])
        if not verdict.stop or epoch + 1 >= self.params.get("epochs", 0):
            return
        log.info(
            "stopping early: %s is worse than the median (%.6g) of %d completed trials",
            *(study["metric"], verdict.median, verdict.trials),
        )
        mark = {"epoch": epoch + 1, "value": self._own[-1][1], "median": verdict.median}
        storage.write_json(f"{self._path.rpartition('/')[0]}/{stopping.STOPPED}", mark)
        self.model.stop_training = True

    def get_state(self) -> dict[str, Any]:
        """Returns the curve so far."""
        return {"own": self._own}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from `get_state`."""
        self._own = [list(point) for point in state["own"]]


def of_study(environ: Mapping[str, str] = os.environ) -> list[keras.callbacks.Callback]:
    """Returns the callbacks that a local study asks of its trials."""
    curves = environ.get(stopping.CURVES, "")
    return [StopBadTrial(curves)] if curves else []


def _keyed(callbacks: Iterable[Any]) -> Sequence[tuple[str, Any]]:
    seen: dict[str, int] = {}
    pairs = []
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] = seen.get(name, 0) + 1
        pairs.append((name if seen[name] == 1 else f"{name}-{seen[name]}", callback))
    return pairs


def _value(logs: dict[str, Any] | None, monitor: str) -> float:
    if monitor not in (logs or {}):
        raise UserError(
            f"training.monitor: the run has no figure {monitor!r}; it has {', '.join(sorted(logs or {}))}"
            f"{nearest(monitor, logs or {})}"
        )
    return float((logs or {})[monitor])
