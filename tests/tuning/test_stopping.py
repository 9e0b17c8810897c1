"""Reading measurements, choosing the one that counts, and the median rule."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from trainer import callbacks
from trainer.tuning import measurements, stopping
from trainer.tuning.measurements import Measurement


def test_the_file_is_read_as_the_service_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "output.metrics"
    lines = [
        ("val_auc", "0.5", "10"),
        ("auc", "0.9", "10"),
        ("val_auc", "nan", "20"),
        ("val_auc", "0.75", "30"),
    ]
    text = [
        json.dumps({name: value, "global_step": step, "timestamp": 100.0 + int(step), "trial": "1"})
        for name, value, step in lines
    ]
    path.write_text("\n".join([*text, '{"val_auc": ']) + "\n")
    found, others = measurements.read(str(path), "val_auc", started=100.0)
    assert found == [Measurement(10, 0.5, 10.0), Measurement(30, 0.75, 30.0)]
    assert others == ["'auc'", "val_auc=nan", "a line that is none: '{\"val_auc\": '"]
    assert measurements.read(str(tmp_path / "none"), "val_auc") == ([], [])


def test_the_measurement_that_counts() -> None:
    found = [Measurement(1, 0.5), Measurement(2, 0.9), Measurement(3, 0.7), Measurement(3, 0.9)]
    assert measurements.select(found, "best", "max") == found[1]
    assert measurements.select(found, "best", "min") == found[0]
    assert measurements.select(found, "last", "max") == found[3]
    assert measurements.select([], "last", "max") is None
    assert measurements.by_step(found, "last", "max") == [found[0], found[1], found[3]]


@pytest.mark.parametrize(("value", "stop"), [(0.4, True), (0.6, False), (0.5, False)])
def test_the_median_of_the_averages_up_to_here(value: float, stop: bool) -> None:
    # Averages up to step 1: 0.4, 0.5, 0.9; the later values of the others don't count yet.
    others = [[(1, 0.4), (2, 1.0)], [(1, 0.5), (2, 1.0)], [(1, 0.9), (2, 1.0)]]
    assert stopping.median_rule([(1, value)], others, "max") == stopping.Verdict(stop, 0.5, 3)


def test_the_best_value_so_far_is_held_against_it() -> None:
    others = [[(1, 0.1), (2, 0.5)], [(1, 0.2), (2, 0.6)], [(1, 0.3), (2, 0.7)]]
    assert not stopping.median_rule([(1, 0.45), (2, 0.0)], others, "max").stop  # 0.45 > 0.4
    assert stopping.median_rule([(1, 0.35), (2, 0.0)], others, "max").stop
    assert stopping.median_rule([(1, 0.45), (2, 0.5)], others, "min").stop


def test_few_trials_say_nothing() -> None:
    assert not stopping.median_rule([(1, 0.0)], [[(1, 1.0)]] * 2, "max").stop
    assert not stopping.median_rule([(1, 0.0)], [[(5, 1.0)]] * 9, "max").stop  # none had come so far
    assert not stopping.median_rule([], [[(1, 1.0)]] * 9, "max").stop


def test_the_callback_stops_the_model_and_leaves_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "others.json"
    curves = [[Measurement(step, 0.7 + 0.01 * step) for step in (10, 20, 30)]] * 3
    path.write_text(json.dumps(stopping.content("val_auc", "max", False, 0.0, curves)))
    callback = callbacks.StopBadTrial(str(path))
    model = SimpleNamespace(stop_training=False, optimizer=SimpleNamespace(iterations=np.array(10)))
    model.optimizer.iterations = SimpleNamespace(numpy=lambda: 10)
    hooks = keras.callbacks.CallbackList([callback], epochs=3)
    callback.set_model(model)
    hooks.on_train_begin()
    hooks.on_epoch_end(0, {"val_auc": 0.9})
    assert not model.stop_training
    again = callbacks.StopBadTrial(str(path))  # a restarted trial
    again.set_model(model)
    again.set_params({"epochs": 3})
    again.set_state(callback.get_state())
    again.on_epoch_end(1, {"val_auc": 0.1})
    assert not model.stop_training  # its best, 0.9, is from before the restart
    fresh = callbacks.StopBadTrial(str(path))
    fresh.set_model(model)
    fresh.set_params({"epochs": 3})
    fresh.on_epoch_end(0, {"val_auc": 0.1})
    assert model.stop_training
    mark = json.loads((tmp_path / "stopped.json").read_text())
    assert mark["epoch"] == 1
    assert mark["median"] == pytest.approx(0.8)


def test_only_a_trial_of_a_local_study_has_the_callback() -> None:
    assert callbacks.of_study({}) == []
    assert [type(c).__name__ for c in callbacks.of_study({stopping.CURVES: "x"})] == ["StopBadTrial"]
