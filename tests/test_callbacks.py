from __future__ import annotations

import csv
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf
from loop_parts import config

from trainer import callbacks
from trainer.errors import UserError


@pytest.mark.parametrize(
    ("monitor", "mode", "expected"),
    [
        ("val_loss", "auto", ("val_loss", "min")),
        ("val_auc", "auto", ("val_auc", "max")),
        ("val_pr_auc", "auto", ("val_pr_auc", "max")),
        ("val_loss", "max", ("val_loss", "max")),
        ("val_mine", "max", ("val_mine", "max")),  # an adopter's own figure
    ],
)
def test_the_direction_is_known_or_given(monitor: str, mode: str, expected: tuple[str, str]) -> None:
    assert callbacks.monitor_of(config(training__monitor=monitor, training__monitor_mode=mode)) == expected


def test_an_unknown_metric_needs_a_mode() -> None:
    with pytest.raises(UserError, match=r"whether .*'val_f1' is better is not known.*training\.monitor_mode"):
        callbacks.monitor_of(config(training__monitor="val_f1"))


def test_a_metric_of_another_task_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="task binary has no metric 'val_rmse'"):
        callbacks.monitor_of(config(training__monitor="val_rmse"))
    with pytest.raises(UserError, match="did you mean 'val_accuracy'"):
        callbacks.monitor_of(config(training__monitor="accuracy"))


def test_without_validation_the_default_is_the_loss() -> None:
    assert callbacks.monitor_of(config(), has_validation=False) == ("loss", "min")
    with pytest.raises(UserError, match="no metric 'val_auc'; it has loss"):
        callbacks.monitor_of(config(training__monitor="val_auc"), has_validation=False)


def test_improvement_is_strict_and_nan_is_none() -> None:
    assert callbacks.improved(1.0, None, "min")
    assert callbacks.improved(0.9, 1.0, "min")
    assert not callbacks.improved(1.0, 1.0, "min")
    assert not callbacks.improved(0.95, 1.0, "min", min_delta=0.1)
    assert callbacks.improved(1.1, 1.0, "max")
    assert not callbacks.improved(math.nan, None, "max")


def _run(callback: keras.callbacks.Callback, values: list[float], model: Any, first: int = 0) -> None:
    for epoch, value in enumerate(values, first):
        callback.on_epoch_end(epoch, {"val_loss": value})
        if model.stop_training:
            return


def _with_model(callback: keras.callbacks.Callback, rate: float = 1.0) -> Any:
    model = SimpleNamespace(stop_training=False, optimizer=SimpleNamespace(learning_rate=rate))
    callback.set_model(model)
    callback.on_train_begin()
    return model


def test_early_stopping_waits_for_its_patience() -> None:
    callback = callbacks.EarlyStopping("val_loss", "min", 2)
    model = _with_model(callback)
    _run(callback, [1.0, 0.9, 0.95, 0.9], model)
    assert model.stop_training
    assert callback.get_state() == {"best": 0.9, "wait": 2}


def test_early_stopping_goes_on_from_its_state() -> None:
    values = [1.0, 0.9, 0.95, 0.89, 0.9, 0.9, 0.5]
    whole = callbacks.EarlyStopping("val_loss", "min", 2)
    model = _with_model(whole)
    _run(whole, values, model)
    first, second = (callbacks.EarlyStopping("val_loss", "min", 2) for _ in range(2))
    _run(first, values[:3], _with_model(first))
    model = _with_model(second)
    second.set_state(first.get_state())
    _run(second, values[3:], model, 3)
    assert model.stop_training
    assert second.get_state() == whole.get_state() == {"best": 0.89, "wait": 2}


def test_plateau_lowers_the_rate_and_counts_anew() -> None:
    callback = callbacks.ReduceOnPlateau("val_loss", "min", 2, 0.5)
    model = _with_model(callback)
    _run(callback, [1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.9], model)
    assert model.optimizer.learning_rate == 0.25
    assert callback.get_state() == {"best": 0.9, "wait": 1}
    assert not model.stop_training


def test_a_missing_figure_is_named() -> None:
    callback = callbacks.EarlyStopping("val_mine", "max", 2)
    _with_model(callback)
    with pytest.raises(UserError, match="the run has no figure 'val_mine'; it has val_loss"):
        callback.on_epoch_end(0, {"val_loss": 1.0})


def test_the_table_survives_a_restart_without_doubles(tmp_path: Path) -> None:
    path = str(tmp_path / "history.csv")
    first = callbacks.EpochTable(path)
    first.on_train_begin()
    first.on_epoch_end(0, {"loss": 1.0})
    state = first.get_state()
    state = {"rows": [dict(row) for row in state["rows"]]}  # as a checkpoint keeps it
    first.on_epoch_end(1, {"loss": 0.7})  # ends, but is killed before its checkpoint
    second = callbacks.EpochTable(path)
    second.on_train_begin()
    second.set_state(state)
    second.on_epoch_end(1, {"loss": 0.7, "val_loss": 0.8})
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert [row["loss"] for row in rows] == ["1.0", "0.7"]
    assert [row["val_loss"] for row in rows] == ["", "0.8"]


def test_scalars_can_be_read_back(tmp_path: Path) -> None:
    callback = callbacks.Scalars(str(tmp_path))
    callback.on_epoch_end(0, {"loss": 0.5, "val_auc": 0.75})
    found = {}
    for file in tmp_path.rglob("events.*"):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                found[file.parent.name, value.tag] = float(tf.make_ndarray(value.tensor))
    callback.on_train_end()
    assert found == {("train", "epoch_loss"): 0.5, ("validation", "epoch_auc"): 0.75}


def test_states_go_back_to_their_own_callbacks() -> None:
    early = callbacks.EarlyStopping
    made = [early("a", "min", 1), keras.callbacks.Callback(), early("b", "max", 1)]
    made[0].best, made[2].best = 1.0, 2.0
    states = callbacks.get_states(made)
    assert list(states) == ["EarlyStopping", "EarlyStopping-2"]
    fresh = [early("a", "min", 1), early("b", "max", 1)]
    callbacks.set_states(fresh, states)
    assert [callback.best for callback in fresh] == [1.0, 2.0]


def test_standard_callbacks_follow_the_config(tmp_path: Path) -> None:
    kinds = lambda made: [type(callback).__name__ for callback in made]  # noqa: E731
    options = {"monitor": "val_loss", "mode": "min"}
    assert kinds(callbacks.standard(config(), logs="", table="", **options)) == []
    settings = config(training__early_stopping__patience=2, training__schedule__plateau_patience=1)
    made = callbacks.standard(settings, logs=str(tmp_path), table=str(tmp_path / "h.csv"), **options)
    assert kinds(made) == ["ReduceOnPlateau", "EarlyStopping", "Scalars", "EpochTable"]
