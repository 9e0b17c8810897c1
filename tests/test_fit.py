"""The course of a training: callbacks, restarts, going back, signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from loop_parts import ArrayPipeline, arrays, config, make_loop, mirrored, one_device, weights

from trainer import callbacks as own_callbacks
from trainer.checkpoints import Checkpoints
from trainer.errors import TrainingError, UserError
from trainer.interruption import Interrupted, Interruption

pytestmark = pytest.mark.faults

QUICK = {"model__name": "linear", "training__optimizer": "sgd", "checkpoint__every_seconds": 0}
ROWS = 100  # 4 steps of 32 an epoch


def quick(**changes: Any) -> Any:
    return config(**{**QUICK, **changes})


def run(settings: Any, folder: Path | None = None, strategy: Any = None, **options: Any) -> Any:
    """One start of a run: restores from `folder` if something is there, and trains."""
    callbacks = options.pop("callbacks", ())
    train = options.pop("train", None) or ArrayPipeline(arrays(ROWS), 32)
    validation = options.pop("validation", ArrayPipeline(arrays(50, seed=1), 32))
    loop = make_loop(settings, strategy or one_device(), rows=train.rows, **options)
    kept = Checkpoints(str(folder), loop.model, loop.optimizer) if folder else None
    state = kept.restore() if kept else None
    return loop, loop.fit(train, validation, callbacks, kept, state)


class Recorder(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.events.append("train begin")
        assert self.params["epochs"] == 2
        assert self.params["steps"] == 4

    def on_train_end(self, logs: Any = None) -> None:
        self.events.append("train end")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.events.append(("epoch begin", epoch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.events.append(("epoch end", epoch))
        assert all(type(value) is float for value in logs.values())
        assert {"loss", "val_loss", "val_auc", "learning_rate"} <= set(logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.events.append(("batch begin", batch))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.events.append(("batch end", batch))
        assert type(logs["loss"]) is float

    def on_test_begin(self, logs: Any = None) -> None:
        self.events.append("test begin")

    def on_test_end(self, logs: Any = None) -> None:
        self.events.append("test end")


def test_callbacks_are_called_in_keras_order() -> None:
    recorder = Recorder()
    run(quick(training__steps_per_call=3), callbacks=[recorder])

    def epoch(number: int) -> list[Any]:
        batches = [("batch begin", 0), ("batch end", 2), ("batch begin", 3), ("batch end", 3)]
        return [("epoch begin", number), *batches, "test begin", "test end", ("epoch end", number)]

    assert recorder.events == ["train begin", *epoch(0), *epoch(1), "train end"]


def test_the_length_of_calls_changes_no_number() -> None:
    settings = {"training__epochs": 3, "model__dropout": 0.4, "training__schedule__name": "cosine"}
    results = [run(config(**settings, training__steps_per_call=n)) for n in (1, 3, 0)]
    for loop, state in results[1:]:
        assert state.history == results[0][1].history
        for a, b in zip(weights(results[0][0]), weights(loop), strict=True):
            np.testing.assert_array_equal(a, b)
        assert loop.steps.train.experimental_get_tracing_count() == 1


class Crash(keras.callbacks.Callback):
    """Dies at the end of the call that reaches a step, as a process without any chance to tidy up."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step, self._epoch = step, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._epoch * 4 + batch + 1 >= self._step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("make", [one_device, pytest.param(mirrored, marks=pytest.mark.slow)])
def test_a_restarted_run_ends_with_the_same_bits(tmp_path: Path, make: Any) -> None:
    settings = config(
        training__epochs=5,
        training__steps_per_call=1,
        training__schedule__name="cosine",
        training__schedule__plateau_patience=1,
        training__early_stopping__patience=2,
        training__early_stopping__min_delta=0.02,
        model__dropout=0.3,
        model__batch_norm=True,
        checkpoint__every_steps=3,
        checkpoint__every_seconds=0,
    )

    def callbacks() -> list[Any]:
        options = {"monitor": "val_loss", "mode": "min"}
        return own_callbacks.standard(settings, logs="", table=str(tmp_path / "history.csv"), **options)

    whole, expected = run(settings, strategy=make(), callbacks=callbacks())
    table = (tmp_path / "history.csv").read_text()
    for step in (2, 7, 14):  # before the first checkpoint; in the middle of an epoch; in the fourth
        with pytest.raises(KeyboardInterrupt):
            run(settings, tmp_path / "kept", make(), callbacks=[*callbacks(), Crash(step)])
    loop, state = run(settings, tmp_path / "kept", make(), callbacks=callbacks())
    assert state.history == expected.history
    assert (state.step, state.epoch, state.stopped) == (expected.step, expected.epoch, expected.stopped)
    assert state.callbacks == own_callbacks.get_states(callbacks()) | state.callbacks
    for a, b in zip(whole.model.variables, loop.model.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.path)
    for a, b in zip(whole.optimizer.variables, loop.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert (tmp_path / "history.csv").read_text() == table


def test_a_finished_run_does_nothing_more(tmp_path: Path) -> None:
    first, state = run(quick(), tmp_path)
    recorder = Recorder()
    second, again = run(quick(), tmp_path, callbacks=[recorder])
    assert again == state
    assert recorder.events == []
    for a, b in zip(weights(first), weights(second), strict=True):
        np.testing.assert_array_equal(a, b)


def test_more_epochs_go_on_where_it_ended(tmp_path: Path) -> None:
    run(quick(training__epochs=1), tmp_path)
    longer, state = run(quick(training__epochs=3), tmp_path)
    whole, expected = run(quick(training__epochs=3))
    assert state.step == expected.step == 12
    assert state.history == expected.history
    for a, b in zip(weights(longer), weights(whole), strict=True):
        np.testing.assert_array_equal(a, b)


def test_checkpoints_come_at_their_steps_and_after_epochs(tmp_path: Path) -> None:
    run(quick(checkpoint__every_steps=3, training__epochs=2), tmp_path)
    steps = sorted(path.name for path in tmp_path.iterdir())
    assert steps == ["0000000004-0001", "0000000006-0001", "0000000008-0002"]  # 3 were thinned out


@pytest.mark.parametrize(("limit", "epochs"), [(6, 2), (4, 1), (100, 2)])
def test_max_steps_ends_the_run(limit: int, epochs: int) -> None:
    _, state = run(quick(training__max_steps=limit))
    assert state.step == min(limit, 8)
    assert state.epoch == epochs == len(state.history["val_loss"])


def test_an_epoch_may_be_longer_than_the_data() -> None:
    _, state = run(quick(training__steps_per_epoch=10, training__epochs=3))
    assert (state.step, state.epoch) == (30, 3)


class StopAt(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = epoch == 1


def test_a_callback_can_stop_the_run_for_good(tmp_path: Path) -> None:
    settings = quick(training__epochs=6)
    _, state = run(settings, tmp_path, callbacks=[StopAt()])
    assert state.epoch == 2
    assert state.stopped == "a callback stopped the training after epoch 2"
    assert run(settings, tmp_path)[1].epoch == 2


def test_keras_callbacks_work_as_they_are(tmp_path: Path) -> None:
    class Rates(keras.callbacks.Callback):
        seen: list[float] = []  # noqa: RUF012

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.seen.append(own_callbacks.learning_rate(self.model.optimizer))

    rates = Rates()
    loop, state = run(
        quick(training__epochs=4, training__learning_rate=0.5),
        callbacks=[
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch == 1 else rate),
            keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10, mode="min"),
            keras.callbacks.EarlyStopping("val_loss", patience=50, mode="min"),
            keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
            keras.callbacks.TensorBoard(str(tmp_path / "logs")),
            rates,
        ],
    )
    # Epoch 2 halves it by the schedule; epochs 2 and 3 bring no gain of 10, so the plateau halves it again.
    assert rates.seen == [0.5, 0.25, 0.125, 0.0625]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 5
    assert list((tmp_path / "logs").rglob("events.*"))
    assert "optimizer" not in vars(loop.model)  # it would be exported with the model
    assert state.epoch == 4


@pytest.mark.parametrize(("monitor", "pick"), [("val_loss", min), ("val_auc", max)])
def test_the_best_epoch_is_the_best(tmp_path: Path, monitor: str, pick: Any) -> None:
    settings = quick(training__epochs=6, training__monitor=monitor, training__learning_rate=20.0)
    loop, state = run(settings, tmp_path)
    values = state.history[monitor]
    assert state.best == {
        "monitor": monitor,
        "value": pick(values),
        "epoch": values.index(pick(values)) + 1,
        "step": 4 * (values.index(pick(values)) + 1),
    }
    assert len(set(values)) > 1
    assert Checkpoints(str(tmp_path), loop.model, loop.optimizer).load_best(state)
    figures = loop.evaluate(ArrayPipeline(arrays(50, seed=1), 32))
    np.testing.assert_allclose(figures[monitor[4:]], pick(values), rtol=1e-6)


def test_an_unknown_monitor_is_refused_before_training() -> None:
    with pytest.raises(UserError, match=r"training\.monitor"):
        run(quick(training__monitor="val_f1"))


# --- a loss that is not finite ------------------------------------------------------------------------


def spoiled(row: int, value: float) -> ArrayPipeline:
    data = arrays(ROWS)
    data["numeric"][row, 2] = value
    return ArrayPipeline(data, 32, shuffle=False)


@pytest.mark.parametrize("make", [one_device, mirrored])
def test_a_bad_loss_names_its_step_and_column(make: Any) -> None:
    told = r"the loss is nan at step 3 \(epoch 1\): in its batch column 'n2' has 1 value that is NaN"
    with pytest.raises(TrainingError, match=told) as caught:
        run(quick(training__steps_per_call=4), strategy=make(), train=spoiled(70, np.nan))
    assert caught.value.exit_code == 1


def test_huge_values_are_named() -> None:
    with pytest.raises(TrainingError, match="column 'n2' reaches 3e\\+38: mend the data"):
        run(quick(training__learning_rate=1e3), train=spoiled(1, 3e38))


def test_without_a_suspect_the_steps_are_too_long() -> None:
    settings = quick(task="regression", training__learning_rate=1e18, training__epochs=40)
    told = r"lower training\.learning_rate \(now 1e\+18\), or set training\.clip_norm"
    with pytest.raises(TrainingError, match=told):
        run(settings, classes=())


def test_nothing_bad_is_ever_saved(tmp_path: Path) -> None:
    with pytest.raises(TrainingError):
        run(quick(checkpoint__every_steps=1), tmp_path, train=spoiled(70, np.nan))
    loop = make_loop(quick(), one_device(), rows=ROWS)
    state = Checkpoints(str(tmp_path), loop.model, loop.optimizer).restore()
    assert state is not None
    assert state.step == 2
    assert all(np.isfinite(value).all() for value in weights(loop))


@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_going_back_passes_over_the_bad_batch(tmp_path: Path, steps_per_call: int) -> None:
    settings = quick(
        training__epochs=1, training__nonfinite_rollbacks=1, training__steps_per_call=steps_per_call
    )
    loop, state = run(settings, tmp_path, train=spoiled(70, np.nan))
    assert (state.step, state.epoch, state.skipped, state.rollbacks) == (4, 1, [2], 1)
    assert int(loop.optimizer.iterations) == 3

    # The same as training on the other three batches.
    class Three(ArrayPipeline):
        def training_numpy(self, start_step: int = 0) -> Iterator[dict[str, np.ndarray]]:
            for step, batch in enumerate(super().training_numpy(0)):
                if step != 2:
                    yield batch

    train = Three(arrays(ROWS), 32, shuffle=False)
    other, _ = run(quick(training__epochs=1, training__max_steps=3), train=train)
    for a, b in zip(weights(loop), weights(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_going_back_has_an_end(tmp_path: Path) -> None:
    data = arrays(ROWS)
    data["numeric"][:, 1] = np.nan
    with pytest.raises(TrainingError, match="the loss is nan"):
        run(quick(training__nonfinite_rollbacks=2), tmp_path, train=ArrayPipeline(data, 32))


# --- SIGTERM -------------------------------------------------------------------------------------------


class Terminate(keras.callbacks.Callback):
    """Asks this process to end, in training or in evaluation."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._where == "training" and batch == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_test_begin(self, logs: Any = None) -> None:
        if self._where == "evaluation":
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(("where", "step"), [("training", 2), ("evaluation", 4)])
def test_sigterm_saves_and_leaves(tmp_path: Path, where: str, step: int) -> None:
    settings = quick(training__steps_per_call=1)
    told = f"at step {step}, saved there; run the same command again"
    with Interruption() as stop, pytest.raises(Interrupted, match=told):
        run(settings, tmp_path, stop=stop, callbacks=[Terminate(where)])
    loop, state = run(settings, tmp_path)
    whole, expected = run(settings)
    assert state.history == expected.history
    for a, b in zip(weights(loop), weights(whole), strict=True):
        np.testing.assert_array_equal(a, b)


# --- what is measured ----------------------------------------------------------------------------------


def test_progress_and_timing_tell_the_truth() -> None:
    import time

    class Slow(ArrayPipeline):
        def training_numpy(self, start_step: int = 0) -> Iterator[dict[str, np.ndarray]]:
            for batch in super().training_numpy(start_step):
                time.sleep(0.03)
                yield batch

    class Told:
        updates: list[dict[str, Any]] = []  # noqa: RUF012
        epochs: list[int] = []  # noqa: RUF012

        def update(self, step: int, **figures: Any) -> None:
            self.updates.append({"step": step, **figures})

        def epoch(self, epoch: int, logs: Any) -> None:
            self.epochs.append(epoch)

    told = Told()
    loop, _ = run(quick(training__epochs=5), train=Slow(arrays(ROWS), 32), progress=told)
    assert told.epochs == [1, 2, 3, 4, 5]
    assert told.updates[-1]["step"] == 20
    assert told.updates[-1]["eta"] == 0
    assert "val_loss" in told.updates[-1]["metrics"]
    # The source gives a batch every 30 ms and a step takes next to nothing: the loop mostly waits.
    assert told.updates[-1]["input_share"] > 0.6
    timing = loop.timing
    assert timing["steps"] == 20
    assert timing["examples"] == 500
    assert 0.3 < timing["input_seconds"] < timing["train_seconds"]
    assert 0 < timing["first_call_seconds"] < timing["train_seconds"]
    assert timing["evaluate_seconds"] > 0
