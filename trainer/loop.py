"""The one train, evaluate and predict loop, for every strategy. Adopters: leave.

The course of a training (epochs, callbacks, checkpoints, signals) is in `fit.py`, what runs inside TensorFlow
in `steps.py`. The loop uses public API only and drives ordinary Keras callbacks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import metrics as metric_tools
from trainer.checkpoints import Checkpoints
from trainer.config import Config
from trainer.errors import UserError
from trainer.fit import Fit
from trainer.interruption import Interruption
from trainer.logs import Progress
from trainer.pace import Pace
from trainer.state import RunState
from trainer.steps import Steps, distribute
from trainer.watchdog import Watchdog


class Loop:
    """Trains, evaluates and predicts with one model.

    Args:
        config: The run's config.
        model: `keras.Model` made in the strategy's scope; gives logits float32 [b, outputs]. A `train_step`
            or `compute_loss` of its own is used.
        features: Fitted features (`layout`, `label.classes`).
        strategy: From `strategy.create`.
        optimizer: From `trainer.optimizer`, built in the scope; None to evaluate and predict alone. A model
            with a `train_step` of its own uses the optimizer that it was compiled with.
        progress: Shows the run; None shows nothing.
        stop: An entered `Interruption`; None ignores SIGTERM.
        loss: (labels, logits) -> loss of each row float32 [b]; default by task.
        watch: Ends the process when no step finishes for too long; None lets it wait.

    Attributes:
        timing: Seconds and counts by phase: train_seconds (all calls), input_seconds (of them waiting for
            batches), first_call_seconds (of them tracing), evaluate_seconds, checkpoint_seconds (the loop was
            blocked), steps, examples.
    """

    def __init__(
        self,
        config: Config,
        model: keras.Model,
        features: Any,
        strategy: tf.distribute.Strategy,
        optimizer: Any = None,
        *,
        progress: Progress | None = None,
        stop: Interruption | None = None,
        loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
        watch: Watchdog | None = None,
    ) -> None:
        self.config, self.model, self.features, self.strategy = config, model, features, strategy
        self.progress = progress
        self.stop = stop or Interruption()
        self.watch = watch or Watchdog()
        with strategy.scope():
            self._metrics = metric_tools.make(config.task, features.label.classes)
        self.steps = Steps(config, model, features, strategy, optimizer, loss, self._metrics)
        self._optimizer = optimizer
        if self.steps.trains_itself:
            self._optimizer = model.optimizer
            with strategy.scope():
                if not self._optimizer.built:
                    self._optimizer.build(model.trainable_variables)
        self._agreed_to_leave = False
        self._distributed: dict[int, tuple[Any, Any]] = {}
        self.timing: dict[str, float] = dict.fromkeys(
            (
                "train_seconds",
                "input_seconds",
                "first_call_seconds",
                "evaluate_seconds",
                "checkpoint_seconds",
            ),
            0.0,
        )
        self.timing.update(steps=0, examples=0)

    @property
    def optimizer(self) -> Any:
        """The optimizer that trains the model: what a checkpoint must hold."""
        return self._optimizer

    @property
    def leaving(self) -> bool:
        """Whether SIGTERM came, to this process or (known after the next call) to another worker."""
        return self._agreed_to_leave if self.steps.several_workers else self.stop.requested

    def settle(self, seconds: float, due: bool = False, stopping: bool = False) -> tuple[float, bool, bool]:
        """Brings the workers to one view after a call of the graph: they must go on in the same way.

        Args:
            seconds: What the call took here.
            due: Whether a checkpoint is due here.
            stopping: Whether a callback has asked here for training to stop.

        Returns:
            What the call took on average, whether a checkpoint is due for anyone, and whether a callback of
            anyone wants to stop.
        """
        self.watch.feed()
        seconds, asked, anyone, stop = self.steps.agree(
            seconds, float(self.stop.requested), float(due), float(stopping)
        )
        if asked > 0 and self.steps.several_workers:
            self._agreed_to_leave = self.stop.requested = True
        return seconds, anyone > 0, stop > 0

    # --- training -----------------------------------------------------------------------------------

    def fit(
        self,
        train: Any,
        validation: Any = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        checkpoints: Checkpoints | None = None,
        state: RunState | None = None,
    ) -> RunState:
        """Trains until the epochs or steps of the config are done, or a callback stops it.

        Args:
            train: Training `Pipeline`.
            validation: Evaluated after each epoch; None leaves it out.
            callbacks: Keras callbacks. `on_train_batch_*` are called once a call of the graph, with the index
                of its last step in the epoch.
            checkpoints: Where to save; None saves nothing.
            state: From `Checkpoints.restore`, to go on from there; None starts anew.

        Returns:
            The state at the end; `history` has a list a figure.

        Raises:
            TrainingError: The loss isn't finite.
            Interrupted: SIGTERM came; a checkpoint was saved.
        """
        with self.watch.armed("training"):
            return Fit(self, train, validation, callbacks, checkpoints, state or RunState()).run()

    # --- evaluation and prediction ------------------------------------------------------------------

    def evaluate(self, pipeline: Any) -> dict[str, float]:
        """Returns the loss, sum(weight * loss) / sum(weight), and the metrics over all rows of a pipeline.

        Raises:
            UserError: All rows have weight 0.
            Interrupted: SIGTERM came.
        """
        with self.watch.armed("evaluation"):
            return self._evaluate(pipeline)

    def _evaluate(self, pipeline: Any) -> dict[str, float]:
        began = time.perf_counter()
        for metric in self._metrics.values():
            metric.reset_state()
        dataset = self._spread(pipeline.evaluation())
        totals = tf.zeros([2], tf.float64)
        left, pace = pipeline.steps_per_epoch, Pace(self.config.training.steps_per_call)
        with pipeline.errors():
            iterator = iter(dataset)
            while left:
                if self.leaving:
                    self.stop.check("during evaluation")
                steps = pace.steps(left)
                call = time.perf_counter()
                totals = self.steps.evaluate(iterator, tf.constant(steps), totals)
                totals.numpy()
                pace.took(steps, self.settle(time.perf_counter() - call)[0])
                left -= steps
        loss, weight = totals.numpy()
        if not weight > 0:
            raise UserError("evaluation: every row has weight 0, so there is nothing to average over")
        figures = {"loss": float(loss / weight)}
        figures.update({name: float(metric.result()) for name, metric in self._metrics.items()})
        self.timing["evaluate_seconds"] += time.perf_counter() - began
        return figures

    def predict(self, pipeline: Any) -> np.ndarray:
        """Returns the predictions of all rows of a pipeline, in its order, padding removed.

        With several workers: those of this worker's rows.

        Returns:
            float32 [rows] (binary: probability of `classes[1]`; regression: value) or [rows, outputs].
        """
        dataset = self._spread(pipeline.evaluation())
        parts: list[np.ndarray] = []
        with pipeline.errors():
            iterator = iter(dataset)
            for _ in range(pipeline.steps_per_epoch):
                if self.leaving:
                    self.stop.check("during prediction")
                predictions, valid = self.steps.predict(iterator)
                kept = np.concatenate([flag.numpy() for flag in valid]) > 0
                parts.append(np.concatenate([part.numpy() for part in predictions])[kept])
        return np.concatenate(parts)

    def _spread(self, dataset: Any) -> Any:
        """The dataset over the replicas; one object for one dataset, so that epochs leave nothing behind."""
        if id(dataset) not in self._distributed:
            self._distributed[id(dataset)] = (dataset, distribute(self.strategy, dataset))
        return self._distributed[id(dataset)][1]
