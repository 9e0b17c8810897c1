"""One training run of the loop: epochs, callbacks, checkpoints, signals, going back. Adopters: leave."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from trainer import callbacks as callback_tools
from trainer.checkpoints import Checkpoints, NotFiniteError
from trainer.errors import TrainingError, UserError
from trainer.interruption import Interrupted
from trainer.pace import Pace
from trainer.state import RunState
from trainer.steps import distribute
from trainer.strategy import total_steps
from trainer.suspects import suspects

if TYPE_CHECKING:
    from trainer.loop import Loop

log = logging.getLogger(__name__)


class Fit:
    """One call of `Loop.fit`."""

    def __init__(
        self,
        loop: Loop,
        train: Any,
        validation: Any,
        callbacks: Sequence[keras.callbacks.Callback],
        checkpoints: Checkpoints | None,
        state: RunState,
    ) -> None:
        self.loop, self.config, self.model = loop, loop.config, loop.model
        self.train, self.validation, self.checkpoints, self.state = train, validation, checkpoints, state
        self.callbacks = list(callbacks)
        self.steps_per_epoch = self.config.training.steps_per_epoch or train.steps_per_epoch
        self.total = total_steps(self.config, self.steps_per_epoch)
        self.pace = Pace(self.config.training.steps_per_call)
        self.saved_at = time.monotonic()
        self.latest: dict[str, float] = {}
        self.stopping = False  # a callback, of any worker, has asked for it
        classes = len(loop.features.label.classes)
        self.monitor, self.mode = callback_tools.monitor_of(
            self.config, has_validation=validation is not None, classes=classes
        )

    # --- the course of a run ------------------------------------------------------------------------

    def run(self) -> RunState:
        state, model = self.state, self.model
        if self._done():
            return state
        self.iterator = self._stream()
        # Not through Keras's attribute tracking: the optimizer is no part of the model that gets exported.
        before = vars(model).get("optimizer")
        if not self.loop.steps.trains_itself:
            vars(model)["optimizer"] = self.loop.optimizer
        try:
            model.stop_training = False
            self.hooks = keras.callbacks.CallbackList(
                self.callbacks,
                model=model,
                epochs=self.config.training.epochs,
                steps=self.steps_per_epoch,
                verbose=0,
            )
            self.hooks.on_train_begin()
            callback_tools.set_states(self.callbacks, state.callbacks)
            if self.config.training.nonfinite_rollbacks and state.step == 0:
                self._save(wait=True)  # something to go back to
            while not self._done():
                self._epoch()
            self.hooks.on_train_end(dict(self.latest))
            self._meet()
        finally:
            if not self.loop.steps.trains_itself:
                vars(model).pop("optimizer", None)
                if before is not None:
                    vars(model)["optimizer"] = before
            if self.checkpoints is not None:
                self.checkpoints.wait()
        return self.state

    def _done(self) -> bool:
        state = self.state
        return (
            bool(state.stopped)
            or (state.step >= self.total and state.epoch * self.steps_per_epoch >= self.total)
            or state.epoch >= self.config.training.epochs
        )

    def _stream(self) -> Any:
        """The training stream from the current step on: one iterator serves all epochs."""
        return iter(distribute(self.loop.strategy, self.train.training(self.state.step)))

    def _epoch(self) -> None:
        epoch = self.state.epoch
        end = min((epoch + 1) * self.steps_per_epoch, self.total)
        if self.loop.steps.trains_itself:
            self.model.reset_metrics()
        self.hooks.on_epoch_begin(epoch)
        while self.state.step < end and not self.stopping:
            self._leave_if_asked()
            if self.state.step in self.state.skipped:
                next(self.iterator)
                self.state.step += 1
                continue
            if not self._call(end):
                return  # gone back to a checkpoint, perhaps of an earlier epoch
        self._leave_if_asked()
        self._end_epoch()

    def _end_epoch(self) -> None:
        state = self.state
        logs = {"loss": state.loss_sum / max(state.loss_rows, 1.0)}
        if self.loop.steps.trains_itself:
            logs.update({k: float(v) for k, v in self.model.get_metrics_result().items()})
        if self.validation is not None:
            self.hooks.on_test_begin()
            try:
                figures = self.loop.evaluate(self.validation)
            except Interrupted:
                self._leave_if_asked()  # saves what was trained; the next start evaluates again
                raise
            logs.update({f"val_{name}": value for name, value in figures.items()})
            self.hooks.on_test_end(dict(figures))
        if hasattr(self.loop.optimizer, "learning_rate"):
            logs["learning_rate"] = callback_tools.learning_rate(self.loop.optimizer)
        self.latest = logs
        for name, value in logs.items():
            state.history.setdefault(name, []).append(value)
        self._note_best(logs)
        if self.loop.progress is not None:
            self.loop.progress.epoch(state.epoch + 1, logs)
        self.hooks.on_epoch_end(state.epoch, dict(logs))
        state.epoch += 1
        state.loss_sum = state.loss_rows = 0.0
        self.stopping = self.loop.settle(0.0, stopping=self.stopping or self.model.stop_training)[2]
        if self.stopping:
            state.stopped = f"a callback stopped the training after epoch {state.epoch}"
            log.info(state.stopped)
        try:
            self._save()
        except NotFiniteError as error:
            self._go_back(state.step - 1, str(error))

    def _note_best(self, logs: dict[str, float]) -> None:
        if self.monitor not in logs:
            raise UserError(
                f"training.monitor: the run has no figure {self.monitor!r}; it has {', '.join(logs)}"
            )
        state, value = self.state, logs[self.monitor]
        if callback_tools.improved(value, state.best["value"] if state.best else None, self.mode):
            state.best = {
                "step": state.step,
                "epoch": state.epoch + 1,  # as the checkpoint is named: epochs that ended
                "monitor": self.monitor,
                "value": value,
            }

    # --- one call of the graph ----------------------------------------------------------------------

    def _call(self, end: int) -> bool:
        """Runs some steps, none beyond `end`; returns False if the run went back to a checkpoint."""
        state, timing = self.state, self.loop.timing
        first_of_epoch = state.epoch * self.steps_per_epoch
        count = self.pace.steps(self._limit(end))
        self.hooks.on_train_batch_begin(state.step - first_of_epoch)
        began = time.perf_counter()
        with self.train.errors():
            totals, loss, done, waited = self.loop.steps.train(
                self.iterator, tf.constant(count), tf.constant([state.loss_sum, state.loss_rows], tf.float64)
            )
            loss, done, waited = float(loss), int(done), float(waited)
        seconds = time.perf_counter() - began
        if not timing["steps"]:
            timing["first_call_seconds"] = seconds
        if not math.isfinite(loss):
            self._go_back(state.step + done - 1, f"the loss is {loss:g}")
            return False
        rows = float(totals[1]) - state.loss_rows
        state.loss_sum, state.loss_rows = (float(value) for value in totals.numpy())
        state.step += done
        # What callbacks asked for after the call before: all workers must end on the same step.
        agreed, due, self.stopping = self.loop.settle(seconds, self._due(), self.model.stop_training)
        self.pace.took(done, agreed)
        state.seconds += seconds
        timing["train_seconds"] += seconds
        timing["input_seconds"] += waited
        timing["steps"] += done
        timing["examples"] += rows
        self.hooks.on_train_batch_end(state.step - first_of_epoch - 1, {"loss": loss})
        if not self.loop.steps.several_workers:
            self.stopping = self.model.stop_training
        if self.loop.progress is not None:
            self.loop.progress.update(
                state.step,
                loss=state.loss_sum / max(state.loss_rows, 1.0),
                metrics={k: v for k, v in self.latest.items() if k.startswith("val_")},
                examples_per_second=rows / seconds,
                input_share=min(1.0, waited / seconds),
                eta=(self.total - state.step) * seconds / done,
            )
        if due and state.step < end:
            try:
                self._save()
            except NotFiniteError as error:
                self._go_back(state.step - 1, str(error))
                return False
        return True

    def _limit(self, end: int) -> int:
        """Steps until something has to happen between two calls."""
        step, every = self.state.step, self.config.checkpoint.every_steps
        stops = [end, *(skipped for skipped in self.state.skipped if skipped > step)]
        if every and self.checkpoints is not None:
            stops.append((step // every + 1) * every)
        return min(stops) - step

    # --- saving and going back ----------------------------------------------------------------------

    def _due(self) -> bool:
        settings = self.config.checkpoint
        if self.checkpoints is None:
            return False
        by_steps = settings.every_steps and self.state.step % settings.every_steps == 0
        by_time = settings.every_seconds and time.monotonic() - self.saved_at >= settings.every_seconds
        return bool(by_steps or by_time)

    def _save(self, *, wait: bool = False) -> None:
        if self.checkpoints is None:
            return
        began = time.perf_counter()
        self.state.callbacks = callback_tools.get_states(self.callbacks)
        self.checkpoints.save(self.state, wait=wait)
        self.saved_at = time.monotonic()
        self.loop.timing["checkpoint_seconds"] += time.perf_counter() - began

    def _meet(self) -> None:
        """Waits until the chief has written its checkpoint: the other workers may read it next."""
        if self.checkpoints is not None:
            self.checkpoints.wait()
        self.loop.steps.agree(0.0)

    def _leave_if_asked(self) -> None:
        if self.loop.leaving:
            self._save(wait=True)
            where = "" if self.checkpoints is None else ", saved there"
            self.loop.stop.check(f"at step {self.state.step:,}{where}")

    def _go_back(self, bad_step: int, what: str) -> None:
        """Goes back to the last checkpoint and will pass over the batch of `bad_step`, or gives up.

        The batch must be passed over: from the same weights the same batch gives the same loss.
        """
        state = self.state
        if self.checkpoints is None or state.rollbacks >= self.config.training.nonfinite_rollbacks:
            raise TrainingError(self._explain(bad_step, what))
        log.warning(self._explain(bad_step, what))
        self._meet()
        restored = self.checkpoints.restore()
        if restored is None:
            raise TrainingError(self._explain(bad_step, what))
        restored.rollbacks = state.rollbacks + 1
        restored.skipped = sorted({*state.skipped, bad_step})
        log.warning(
            "went back to step %s (%d of %d times); the batch of step %s is passed over",
            f"{restored.step:,}",
            restored.rollbacks,
            self.config.training.nonfinite_rollbacks,
            f"{bad_step + 1:,}",
        )
        self.state = restored
        self.model.stop_training = self.stopping = False
        callback_tools.set_states(self.callbacks, restored.callbacks)
        self.iterator = self._stream()

    def _explain(self, bad_step: int, what: str) -> str:
        return (
            f"{what} at step {bad_step + 1:,} (epoch {bad_step // self.steps_per_epoch + 1}): "
            f"{suspects(self.train, self.loop.features, bad_step, self.config)}"
        )
