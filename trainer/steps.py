"""The graph side of the loop: what one call of TensorFlow does, on every strategy. Adopters: leave.

One call runs many steps, because entering and leaving a graph costs about a millisecond. The number of steps
of a call is a tensor, so no length of call traces the graph again, and it changes no number: sums go on from
call to call in the same order.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainer import losses
from trainer.config import Config
from trainer.errors import UserError
from trainer.optimizer import sum_parts
from trainer.strategy import local_replicas, uses_jit

NOT_INPUTS = ("label", "weight", "valid")


def overrides(model: keras.Model, name: str) -> bool:
    """Returns whether the model's class has a method of its own in place of Keras's."""
    for cls in type(model).__mro__:
        if name in vars(cls):
            return cls.__module__.split(".")[0] != "keras"
    return False


def distribute(strategy: tf.distribute.Strategy, dataset: tf.data.Dataset) -> Any:
    """Cuts each batch of `dataset` into equal parts, one a replica of this process, in row order.

    The cut is made here and not by `experimental_distribute_dataset`, whose rebatching may lose the static
    shapes that XLA needs. With one replica on the CPU the dataset itself is returned: nothing is to be moved.
    """
    replicas = local_replicas(strategy)
    if strategy.num_replicas_in_sync == 1:
        on_cpu = all("CPU" in device for device in strategy.extended.worker_devices)
        return dataset if on_cpu else strategy.experimental_distribute_dataset(dataset)

    def cut(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {
            name: tf.reshape(value, [replicas, value.shape[0] // replicas, *value.shape[1:]])
            for name, value in batch.items()
        }

    parts = dataset.map(cut).unbatch().prefetch(2 * replicas)
    return strategy.distribute_datasets_from_function(lambda context: parts)


class Steps:
    """Compiled functions that train, evaluate and predict with one model.

    Args:
        config: The run's config.
        model: Built in the strategy's scope; gives logits float32 [b, outputs].
        features: Fitted features, for class names.
        strategy: The strategy.
        optimizer: As in `trainer/optimizer.py`, built; None if nothing is trained.
        loss: (labels, logits) -> loss of each row, float32 [b]; default by task.
        metrics: By name, made in the strategy's scope.
    """

    def __init__(
        self,
        config: Config,
        model: keras.Model,
        features: Any,
        strategy: tf.distribute.Strategy,
        optimizer: Any,
        loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None,
        metrics: dict[str, Any],
    ) -> None:
        self._task = config.task
        self._model, self._strategy, self._optimizer, self._metrics = model, strategy, optimizer, metrics
        self._loss = loss or losses.loss_function(config, features)
        self._class_weights = losses.class_weights(config, features)
        self._has_class_weights = bool(config.training.class_weights)
        self._parts = config.training.accumulate
        self._replicas = strategy.num_replicas_in_sync
        self._now: Callable[[], tf.Tensor] = tf.timestamp
        if config.strategy.deterministic and tf.config.list_logical_devices("GPU"):
            # TensorFlow refuses its own clock when it is asked for the same bits in each run.
            self._now = lambda: tf.py_function(time.perf_counter, [], tf.float64)
        self._own_step = overrides(model, "train_step")
        self._own_loss = overrides(model, "compute_loss")
        if self._own_step and self._parts > 1:
            raise UserError(
                f"training.accumulate: got {self._parts}, expected 1: the model has a train_step of its own"
            )
        if self._own_step and getattr(model, "optimizer", None) is None:
            raise UserError("a model with a train_step of its own needs an optimizer: call model.compile")
        self._share: Callable[..., Any] = self._gradients
        if uses_jit(config, strategy):
            self._share = tf.function(self._gradients, jit_compile=True, autograph=False)
        # The length of a call is a tensor and all batches have one shape: each is traced once a run. Without
        # AutoGraph, which would take seconds to rewrite code that needs no rewriting.
        self.train = tf.function(self._train, autograph=False)
        self.evaluate = tf.function(self._evaluate, autograph=False)
        self.predict = tf.function(self._predict, autograph=False)
        self.several_workers = self._replicas > local_replicas(strategy)
        self._mean = tf.function(self._mean_over_workers, autograph=False)

    @property
    def trains_itself(self) -> bool:
        """Whether the model has a `train_step` of its own."""
        return self._own_step

    def agree(self, *values: float) -> list[float]:
        """Returns the means of numbers over all workers: the same on each. All workers must call it.

        What workers decide by themselves must not differ. The number of steps of a call is such a thing:
        TensorFlow knows a sum over workers by its place in the loop, so two workers that had cut the same
        steps into other calls would wait for each other for ever.
        """
        if not self.several_workers:
            return list(values)
        return [float(value) for value in self._mean(tf.constant(values, tf.float32))]

    def _mean_over_workers(self, values: tf.Tensor) -> tf.Tensor:
        def replica(local: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            # identity: a sum over workers needs a tensor that lives on the replica's device.
            return context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.identity(local))

        means = self._strategy.run(replica, args=(values,))
        return self._strategy.experimental_local_results(means)[0]

    # --- training -----------------------------------------------------------------------------------

    def _train(self, iterator: Any, steps: tf.Tensor, totals: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Runs up to `steps` steps; ends early after one whose loss is not finite.

        Args:
            iterator: Over the distributed training stream.
            steps: int32 scalar.
            totals: float64 [2]: sum of loss times rows, and rows, of the epoch so far.

        Returns:
            (totals, loss of the last step float32, steps done int32, seconds spent waiting for batches
            float64). The update of a step with a bad loss has been made: the weights are lost.
        """

        def going(done: tf.Tensor, loss: tf.Tensor, totals: tf.Tensor, waited: tf.Tensor) -> tf.Tensor:
            return (done < steps) & tf.math.is_finite(loss)

        def step(
            done: tf.Tensor, loss: tf.Tensor, totals: tf.Tensor, waited: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            with tf.control_dependencies([loss, totals]):
                begin = self._now()
            with tf.control_dependencies([begin]):
                batch = next(iterator)
            with tf.control_dependencies(self._leaves(batch)):
                waited += self._now() - begin
            shares, counts = self._strategy.run(self._train_replica, args=(batch,))
            loss = self._strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)
            rows = tf.cast(self._strategy.experimental_local_results(counts)[0], tf.float64)
            totals += tf.stack([tf.cast(loss, tf.float64) * rows, rows])
            return done + 1, loss, totals, waited

        start = (tf.constant(0), tf.constant(0.0), totals, tf.constant(0.0, tf.float64))
        # One step at a time: side by side they would wait for each other's variables anyway, and the time
        # spent waiting for a batch could not be told from the time of the step before.
        done, loss, totals, waited = tf.while_loop(going, step, start, parallel_iterations=1)
        return totals, loss, done, waited

    def _leaves(self, batch: Any) -> list[tf.Tensor]:
        return [leaf for value in batch.values() for leaf in self._strategy.experimental_local_results(value)]

    def _train_replica(self, batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """One step of one replica: returns its share of the loss and the rows of the global batch."""
        context = tf.distribute.get_replica_context()
        count = tf.reduce_sum(batch["valid"])
        if self._replicas > 1:
            # Before the model is called: a replica's graph must not be left between a call and its losses.
            count = context.all_reduce(tf.distribute.ReduceOp.SUM, count)
        inputs, label = _inputs(batch), batch["label"]
        weight = batch["weight"] * self._class_weights(label) if self._has_class_weights else batch["weight"]
        if self._own_step:
            logs = self._model.train_step((inputs, label, weight))
            return tf.cast(logs["loss"], tf.float32) / self._replicas, count
        loss, gradients = self._accumulated(inputs, label, weight, count)
        self._optimizer.apply(gradients)
        if self._replicas > 1:
            self._agree(context)
        return loss, count

    def _accumulated(
        self, inputs: dict[str, tf.Tensor], label: tf.Tensor, weight: tf.Tensor, count: tf.Tensor
    ) -> tuple[tf.Tensor, list[Any]]:
        """Loss and gradients of this replica's rows, one part of them after the other."""
        if self._parts == 1:
            return self._share(inputs, label, weight, count)
        size = label.shape[0] // self._parts
        loss, total, before = tf.constant(0.0), None, [count]
        for i in range(self._parts):
            # Parts that run side by side would need the memory that cutting is meant to save.
            with tf.control_dependencies(before):
                part = tf.nest.map_structure(
                    functools.partial(_rows, i * size, size), (inputs, label, weight)
                )
            part_loss, gradients = self._share(*part, count)
            total = sum_parts(total, gradients)
            loss += part_loss
            before = [
                part_loss,
                *tf.nest.flatten([g for g in total if g is not None], expand_composites=True),
            ]
        return loss, total or []

    def _gradients(
        self, inputs: dict[str, tf.Tensor], label: tf.Tensor, weight: tf.Tensor, count: tf.Tensor
    ) -> tuple[tf.Tensor, list[Any]]:
        """This replica's share of the loss and its gradient: their sums over replicas and parts are whole."""
        pieces = self._replicas * self._parts
        with tf.GradientTape() as tape:
            logits = self._model(inputs, training=True)
            if self._own_loss:
                # A mean over the rows it was given, as Keras asks; regularisers are its own business then.
                loss = tf.cast(self._call_own_loss(inputs, label, logits, weight), tf.float32) / pieces
            else:
                rows = self._loss(label, logits)
                # A row of weight 0 counts nothing, whatever its loss.
                loss = tf.reduce_sum(tf.math.multiply_no_nan(rows, weight)) / tf.maximum(count, 1.0)
                if self._model.losses:
                    loss += tf.add_n([tf.cast(extra, tf.float32) for extra in self._model.losses]) / pieces
            scaled = self._optimizer.scaled_loss(loss)
        return loss, tape.gradient(scaled, self._model.trainable_variables)

    def _call_own_loss(
        self, inputs: Any, label: tf.Tensor, logits: tf.Tensor, weight: tf.Tensor
    ) -> tf.Tensor:
        arguments = {"x": inputs, "y": label, "y_pred": logits, "sample_weight": weight, "training": True}
        accepted = inspect.signature(self._model.compute_loss).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            arguments = {name: value for name, value in arguments.items() if name in accepted}
        return self._model.compute_loss(**arguments)

    def _agree(self, context: tf.distribute.ReplicaContext) -> None:
        """Averages what layers count by themselves (batch normalisation) over the replicas.

        Keras 3 leaves each replica with moving averages of its own, and a checkpoint would keep one of them.
        """
        moving = [v for v in self._model.non_trainable_variables if tf.as_dtype(v.dtype).is_floating]
        if moving:
            # identity: a sum over workers needs tensors that live on the replica's device.
            values = [tf.identity(tf.convert_to_tensor(v)) for v in moving]
            means = context.all_reduce(tf.distribute.ReduceOp.MEAN, values)
            for variable, mean in zip(moving, means, strict=True):
                variable.assign(mean)

    # --- evaluation and prediction ------------------------------------------------------------------

    def _evaluate(self, iterator: Any, steps: tf.Tensor, totals: tf.Tensor) -> tf.Tensor:
        """Adds `steps` batches to the metrics and to `totals`, the sums of weight * loss and of weight."""

        def step(done: tf.Tensor, totals: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            sums = self._strategy.run(self._evaluate_replica, args=(next(iterator),))
            return done + 1, totals + self._strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

        start = (tf.constant(0), totals)
        return tf.while_loop(lambda done, _: done < steps, step, start, parallel_iterations=1)[1]

    def _evaluate_replica(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        label, weight = batch["label"], batch["weight"]
        logits = self._model(_inputs(batch), training=False)
        rows = tf.cast(tf.math.multiply_no_nan(self._loss(label, logits), weight), tf.float64)
        predictions = losses.predictions(self._task, logits)
        for metric in self._metrics.values():
            metric.update_state(label, predictions, weight)
        return tf.stack([tf.reduce_sum(rows), tf.reduce_sum(tf.cast(weight, tf.float64))])

    def _predict(self, iterator: Any) -> tuple[tuple[tf.Tensor, ...], tuple[tf.Tensor, ...]]:
        """Returns the predictions and the valid flags of the next batch, a tensor a local replica each."""

        def replica(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
            logits = self._model(_inputs(batch), training=False)
            return losses.predictions(self._task, logits), batch["valid"]

        predictions, valid = self._strategy.run(replica, args=(next(iterator),))
        local = self._strategy.experimental_local_results
        return local(predictions), local(valid)


def _rows(first: int, count: int, value: tf.Tensor) -> tf.Tensor:
    return tf.identity(value[first : first + count])


def _inputs(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {name: value for name, value in batch.items() if name not in NOT_INPUTS}
