"""The optimizer: exact dense updates, row-by-row updates of embedding tables. Adopters: leave.

A Keras optimizer updates every row of an embedding table at every step, also the rows that no example of the
batch used: with a million rows that costs many times what the rest of the step does. Here the variables that
`FusedEmbedding` marked get an update that reads and writes the rows of the batch alone.

Distributed training: each replica calls `apply` with *its share* of the gradient (its loss is divided by the
rows of the global batch, not of its own part). `apply` sums the shares over the replicas, then clips, then
updates, so one device and many give the same weights.

Callbacks: `learning_rate` can be read and set as on a Keras optimizer, so that ReduceLROnPlateau and
LearningRateScheduler of Keras work through `model.optimizer`. It is the *peak* rate: the schedule's shape
(warm-up and decay, from 0 to 1) multiplies it; `current_learning_rate()` is the rate of the next step.

All state is in `tf.Variable`s of this module, made by `build`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer.config import TrainingConfig
from trainer.errors import UserError
from trainer.schedule import schedule_factor
from trainer.strategy import own_copy

Gradient = Any  # tf.Tensor, tf.IndexedSlices or None

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-7  # the defaults of Keras
_ADAGRAD_START = 0.1  # as in Keras: first steps of a rare row stay small
_FIRST_LOSS_SCALE, _GROWTH_STEPS = 2.0**15, 2000


def sum_parts(total: Sequence[Gradient] | None, part: Sequence[Gradient]) -> list[Gradient]:
    """Adds the gradients of one part of a batch to `total` (None before the first part).

    Sparse gradients are put one behind the other, so they stay sparse.
    """
    if total is None:
        return list(part)
    return [_add(old, new) for old, new in zip(total, part, strict=True)]


def _add(old: Gradient, new: Gradient) -> Gradient:
    if old is None or new is None:
        return new if old is None else old
    if isinstance(old, tf.IndexedSlices) and isinstance(new, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([old.values, new.values], 0), tf.concat([old.indices, new.indices], 0), old.dense_shape
        )
    return tf.convert_to_tensor(old) + tf.convert_to_tensor(new)


def is_table(variable: Any) -> bool:
    """Tells whether `variable` is an embedding table that is updated row by row."""
    return bool(getattr(variable, "updated_by_row", False))


def merge_rows(gradient: tf.IndexedSlices, static: bool) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Sums the parts of a sparse gradient that belong to the same row.

    Args:
        gradient: Values [n, dim] of the rows `indices` [n], in which a row may stand several times.
        static: Whether all shapes must be known when the graph is built, as XLA asks.

    Returns:
        Rows [u], their summed gradients [u, dim], and None. With `static`, u is n: a row that stood k times
        still stands k times, each time with the whole sum, so writing it k times writes the same numbers;
        the third value [n] is then 1 at one place of each row and 0 elsewhere.
    """
    if not static:
        rows, place = tf.unique(gradient.indices)
        return rows, tf.math.unsorted_segment_sum(gradient.values, place, tf.size(rows)), None
    # tf.unique has no static output shape, so sort instead and sum each run of equal rows.
    order = tf.argsort(gradient.indices, stable=True)
    rows = tf.gather(gradient.indices, order)
    first = tf.concat([tf.ones([1], tf.bool), rows[1:] != rows[:-1]], 0)
    run = tf.cumsum(tf.cast(first, tf.int32)) - 1
    sums = tf.math.unsorted_segment_sum(tf.gather(gradient.values, order), run, tf.size(run))
    return rows, tf.gather(sums, run), tf.cast(first, tf.float32)


class Optimizer(tf.Module):
    """Adam, AdamW, SGD with momentum or Adagrad, with row-by-row updates of embedding tables.

    Formulas: Adam (Kingma & Ba 2015, algorithm 1, with the bias correction folded into the rate), AdamW's
    decoupled decay (Loshchilov & Hutter 2019) of variables with two or more axes (kernels, not biases), SGD
    with momentum as in Keras, Adagrad (Duchi et al. 2011). Tables: lazy Adam (moments of a row move only in
    steps that use the row; the bias correction counts all steps), exact Adagrad by row, plain SGD; no
    momentum and no decoupled decay.

    Args:
        training: The `training` section of the config.
        total_steps: Steps of the whole run, for the schedule.
        static_shapes: Whether `apply` will be compiled by XLA, which can't have shapes that depend on the
            batch; default: with a strategy for TPUs. (The loop compiles only the gradients elsewhere.)
        exchange_in: Number format in which gradients cross between replicas; the sum is rounded to it, so
            bfloat16 halves the traffic and costs about 3 digits.

    Raises:
        UserError: Settings that contradict each other.
    """

    def __init__(
        self,
        training: TrainingConfig,
        total_steps: int,
        static_shapes: bool | None = None,
        exchange_in: str = "float32",
    ) -> None:
        super().__init__(name="optimizer")
        _check(training)
        self._config = training
        self._total_steps = total_steps
        if static_shapes is None:
            static_shapes = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
        self._static = static_shapes
        self._exchange = tf.as_dtype(exchange_in)
        self._scales_loss = training.mixed_precision == "mixed_float16"
        self._variables: list[tf.Variable] = []
        self._tables: list[bool] = []
        self._row_l2: list[float] = []
        self.slots: list[list[tf.Variable]] = []

    # --- state --------------------------------------------------------------------------------------

    def build(self, variables: Sequence[Any]) -> None:
        """Makes all state. Call it once, in the strategy's scope, before the first `apply`.

        Args:
            variables: `model.trainable_variables` (Keras variables, or the `tf.Variable`s behind them), in
                the order in which `apply` will get their gradients.
        """
        if self._variables:
            raise ValueError("Optimizer.build was called twice")
        self.iterations = _scalar(0, tf.int64, "iterations")
        self.skipped = _scalar(0, tf.int64, "skipped")
        self.scale = _scalar(1.0, tf.float32, "scale")
        self.loss_scale = _scalar(_FIRST_LOSS_SCALE if self._scales_loss else 1.0, tf.float32, "loss_scale")
        self.finite_steps = _scalar(0, tf.int64, "finite_steps")
        self._tables = [is_table(variable) for variable in variables]
        self._row_l2 = [float(getattr(variable, "row_l2", 0.0)) for variable in variables]
        if any(self._tables):
            # Where TensorFlow is told to be deterministic, scatter on a GPU copies the *whole* table to the
            # host and back, because rows that stand twice would be written in any order. Ours stand once (or
            # are written the same), so the fast way gives the same bits.
            os.environ.setdefault("TF_DISABLE_SCATTER_OP_DETERMINISM", "true")
        for variable, table in zip(variables, self._tables, strict=True):
            inner = variable if isinstance(variable, tf.Variable) else variable.value
            self._variables.append(inner)
            self.slots.append(self._new_slots(inner, table))

    def _new_slots(self, variable: tf.Variable, table: bool) -> list[tf.Variable]:
        name = self._config.optimizer
        shape = variable.shape.as_list()
        if name == "adagrad":
            return [_zeros(shape, "accumulator", _ADAGRAD_START)]
        if name == "sgd":
            return [] if table or not self._config.momentum else [_zeros(shape, "momentum")]
        if table:
            # Both moments of a row side by side: one read and one write of memory far away instead of two.
            return [_zeros([shape[0], 2 * shape[1]], "moments")]
        return [_zeros(shape, "first_moment"), _zeros(shape, "second_moment")]

    # --- learning rate ------------------------------------------------------------------------------

    @property
    def learning_rate(self) -> Any:
        """The peak learning rate, float32; assign a number to change it from the next step on."""
        return self._config.learning_rate * self.scale

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        # A factor is kept, not the rate: a resumed run with another `learning_rate` follows the new one.
        self.scale.assign(tf.cast(value, tf.float32) / self._config.learning_rate)

    def current_learning_rate(self) -> tf.Tensor:
        """Returns the rate of the next step (float32 scalar): peak times the schedule's factor."""
        factor = schedule_factor(self._config.schedule, self.iterations, self._total_steps)
        return self._config.learning_rate * self.scale * factor

    # --- one step -----------------------------------------------------------------------------------

    def scaled_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns the loss to differentiate: scaled up under mixed_float16, else unchanged.

        Small gradients would be zero in float16 (Micikevicius et al. 2018); `apply` divides them again.
        """
        return loss * tf.cast(self.loss_scale, loss.dtype) if self._scales_loss else loss

    def apply(self, gradients: Sequence[Gradient]) -> None:
        """Does one step. Call it in replica context, on every replica, with this replica's share.

        Args:
            gradients: One for each variable of `build`, in that order: a tensor, `tf.IndexedSlices` (kept
                sparse for embedding tables) or None (the variable is left alone). They are the gradients of
                `scaled_loss` of a loss already divided by the rows of the global batch.
        """
        if len(gradients) != len(self._variables):
            raise ValueError(f"{len(gradients)} gradients for {len(self._variables)} variables")
        used = [i for i, gradient in enumerate(gradients) if gradient is not None]
        summed = self._sum_over_replicas([self._as_update(i, gradients[i]) for i in used])

        rows: list[tf.Tensor | None] = []
        values: list[tf.Tensor] = []
        norms: list[tf.Tensor] = []  # of squares, each row once
        for i, gradient in zip(used, summed, strict=True):
            where, value, once = None, gradient, None
            if self._tables[i]:
                where, value, once = merge_rows(gradient, self._static)
            value = tf.cast(value, tf.float32) / self.loss_scale if self._scales_loss else value
            if self._row_l2[i]:
                value += 2.0 * self._row_l2[i] * tf.gather(own_copy(self._variables[i]), where)
            square = tf.square(value) if once is None else tf.square(value) * once[:, tf.newaxis]
            norms.append(tf.reduce_sum(square))
            rows.append(where)
            values.append(value)

        finite = None
        norm = tf.sqrt(tf.add_n(norms)) if norms else tf.constant(0.0)
        if self._scales_loss:
            finite = tf.math.is_finite(norm)
        if self._config.clip_norm is not None:
            # As tf.clip_by_global_norm; once, on the sum over replicas, so that their number is no setting.
            factor = self._config.clip_norm / tf.maximum(norm, self._config.clip_norm)
            values = [value * factor for value in values]

        tf.distribute.get_replica_context().merge_call(
            self._update_all, args=(used, rows, values, finite, self._step_numbers())
        )

    def _as_update(self, index: int, gradient: Gradient) -> Gradient:
        """Sparse for tables, dense for all others (an adopter's own Embedding layer: exact Adam)."""
        if not self._tables[index]:
            return tf.convert_to_tensor(gradient)
        if isinstance(gradient, tf.IndexedSlices):
            return gradient
        rows = tf.range(tf.shape(gradient)[0])  # the table was used as a whole, so all of its rows were
        return tf.IndexedSlices(gradient, rows, tf.shape(gradient))

    def _sum_over_replicas(self, gradients: list[Gradient]) -> list[Gradient]:
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync == 1:
            return gradients
        given = [g.dtype for g in gradients]
        gradients = [_cast(g, self._exchange) if g.dtype == tf.float32 else g for g in gradients]
        dense = [g for g in gradients if not isinstance(g, tf.IndexedSlices)]
        # One call for all dense gradients: they are packed into few messages.
        dense_sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, dense) if dense else [])
        sums = [
            self._sum_slices(context, g) if isinstance(g, tf.IndexedSlices) else next(dense_sums)
            for g in gradients
        ]
        return [_cast(g, dtype) for g, dtype in zip(sums, given, strict=True)]

    def _sum_slices(
        self, context: tf.distribute.ReplicaContext, gradient: tf.IndexedSlices
    ) -> tf.IndexedSlices:
        """The sum of sparse gradients over replicas: their rows one behind the other."""
        if not self._static:
            if gradient.dtype != tf.bfloat16:
                return context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
            # Rows are only put together, which TensorFlow does not do for bfloat16: so under another name.
            disguised = tf.IndexedSlices(
                tf.identity(tf.bitcast(gradient.values, tf.float16)), gradient.indices, gradient.dense_shape
            )
            found = context.all_reduce(tf.distribute.ReduceOp.SUM, disguised)
            return tf.IndexedSlices(tf.bitcast(found.values, tf.bfloat16), found.indices, found.dense_shape)
        # The same rows, by a way that XLA takes: every replica has as many.
        indices = context.all_gather(gradient.indices, 0)
        return tf.IndexedSlices(context.all_gather(gradient.values, 0), indices, gradient.dense_shape)

    def _step_numbers(self) -> dict[str, tf.Tensor]:
        """Numbers that all updates of this step share."""
        numbers = {"rate": self.current_learning_rate()}
        if self._config.optimizer in ("adam", "adamw"):
            # Skipped steps changed no moment, so the bias correction must not count them.
            step = tf.cast(self.iterations - self.skipped + 1, tf.float32)
            first, second = tf.pow(_BETA_1, step), tf.pow(_BETA_2, step)
            numbers |= {"first_power": first, "second_power": second}
            numbers["adam_rate"] = numbers["rate"] * tf.sqrt(1.0 - second) / (1.0 - first)
        return numbers

    def _update_all(
        self,
        strategy: tf.distribute.Strategy,
        used: list[int],
        rows: list[Any],
        values: list[Any],
        finite: Any,
        numbers: dict[str, Any],
    ) -> None:
        """Updates every variable's copy on every replica (cross-replica context)."""
        update = strategy.extended.update
        for i, where, value in zip(used, rows, values, strict=True):
            function = self._update_rows if self._tables[i] else self._update_dense
            update(self._variables[i], function, args=(where, value, finite, numbers, *self.slots[i]))
        if finite is not None:
            update(self.loss_scale, self._update_loss_scale, args=(finite, self.finite_steps))
            update(self.skipped, lambda v, f: v.assign_add(tf.cast(~f, v.dtype)), args=(finite,))
        update(self.iterations, lambda v: v.assign_add(1))

    # --- formulas -----------------------------------------------------------------------------------

    def _update_dense(
        self,
        variable: tf.Variable,
        _: None,
        gradient: tf.Tensor,
        finite: tf.Tensor | None,
        numbers: dict[str, tf.Tensor],
        *slots: tf.Variable,
    ) -> None:
        decay = self._config.weight_decay if len(variable.shape) > 1 else 0.0
        if "first_power" in numbers and finite is None:
            # The same formula in one kernel: one pass over memory instead of a dozen.
            if decay:
                variable.assign_sub(numbers["rate"] * decay * variable)
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=slots[0].handle,
                v=slots[1].handle,
                beta1_power=numbers["first_power"],
                beta2_power=numbers["second_power"],
                lr=numbers["rate"],
                beta1=_BETA_1,
                beta2=_BETA_2,
                epsilon=_EPSILON,
                grad=gradient,
            )
            return
        step, new_slots = self._formula(gradient, [slot.value() for slot in slots], numbers)
        new = variable - step
        if decay:
            new -= numbers["rate"] * decay * variable
        for target, value in zip((*slots, variable), (*new_slots, new), strict=True):
            target.assign(value if finite is None else tf.where(finite, value, target))

    def _update_rows(
        self,
        table: tf.Variable,
        rows: tf.Tensor,
        gradient: tf.Tensor,
        finite: tf.Tensor | None,
        numbers: dict[str, tf.Tensor],
        *slots: tf.Variable,
    ) -> None:
        # Reads before writes: scatter changes the table in place, and `rows` alone are ever touched.
        before = [tf.gather(own_copy(slot), rows) for slot in slots]
        adam = self._config.optimizer in ("adam", "adamw")
        state = list(tf.split(before[0], 2, axis=1)) if adam else before
        step, new_state = self._formula(gradient, state, numbers)
        after = [tf.concat(new_state, 1)] if adam else new_state
        if finite is not None:
            step = tf.where(finite, step, tf.zeros_like(step))
            after = [tf.where(finite, new, old) for new, old in zip(after, before, strict=True)]
        old_rows = tf.gather(own_copy(table), rows)
        for target, value in zip((*slots, table), (*after, old_rows - step), strict=True):
            target.scatter_update(tf.IndexedSlices(value, rows))

    def _formula(
        self, gradient: tf.Tensor, state: list[tf.Tensor], numbers: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns what to subtract from the weights, and the new state. Shapes are the gradient's."""
        name = self._config.optimizer
        if name == "adagrad":
            accumulator = state[0] + tf.square(gradient)
            return numbers["rate"] * gradient / tf.sqrt(accumulator + _EPSILON), [accumulator]
        if name == "sgd":
            if not state:
                return numbers["rate"] * gradient, []
            velocity = self._config.momentum * state[0] + numbers["rate"] * gradient
            return velocity, [velocity]
        first = state[0] + (gradient - state[0]) * (1.0 - _BETA_1)
        second = state[1] + (tf.square(gradient) - state[1]) * (1.0 - _BETA_2)
        return numbers["adam_rate"] * first / (tf.sqrt(second) + _EPSILON), [first, second]

    @staticmethod
    def _update_loss_scale(scale: tf.Variable, finite: tf.Tensor, finite_steps: tf.Variable) -> None:
        """Doubles the scale after many finite steps, halves it after one that was not."""
        grow = finite & (finite_steps + 1 >= _GROWTH_STEPS)
        shrunk = tf.maximum(scale * 0.5, 1.0)
        scale.assign(tf.where(finite, tf.where(grow, scale * 2.0, scale), shrunk))
        finite_steps.assign(tf.where(finite & ~grow, finite_steps + 1, tf.zeros_like(finite_steps)))


def _check(training: TrainingConfig) -> None:
    schedule = training.schedule
    if schedule.name == "exponential" and schedule.final_fraction <= 0:
        raise UserError(
            "training.schedule.final_fraction: got 0, expected more than 0 for an exponential schedule "
            "(0.01 ends at a hundredth of the rate)"
        )
    if training.weight_decay and training.optimizer != "adamw":
        raise UserError(
            f"training.weight_decay: got {training.weight_decay:g} with optimizer {training.optimizer!r}, "
            "which has none; did you mean optimizer 'adamw'?"
        )
    if training.momentum and training.optimizer != "sgd":
        raise UserError(
            f"training.momentum: got {training.momentum:g} with optimizer {training.optimizer!r}, "
            "which has none; did you mean optimizer 'sgd'?"
        )


def _cast(gradient: Gradient, dtype: tf.DType) -> Gradient:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.cast(gradient.values, dtype), gradient.indices, gradient.dense_shape)
    return tf.cast(gradient, dtype)


def _scalar(value: float, dtype: tf.DType, name: str) -> tf.Variable:
    return tf.Variable(value, dtype=dtype, trainable=False, name=name)


def _zeros(shape: list[int], name: str, value: float = 0.0) -> tf.Variable:
    return tf.Variable(lambda: tf.fill(shape, value), dtype=tf.float32, trainable=False, name=name)
