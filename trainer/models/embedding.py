"""One embedding table for all categorical features of a model. Adopters: leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from trainer.strategy import own_copy

if TYPE_CHECKING:
    from trainer.features import Layout


class FusedEmbedding(keras.layers.Layer):
    """Looks up all categorical features in one table.

    One lookup instead of one for each feature is faster, and so is the one sparse gradient that comes out of
    it. The ids are rows of this table already: each feature owns a range of rows of its own.

    The table is marked so that the optimizer updates only the rows of a batch (see `trainer/optimizer.py`).
    It stays float32 under mixed precision; what comes out has the layer's compute dtype.

    Args:
        layout: Which columns of the inputs belong to which feature.
        dim: Width of the table.
        initial_range: Rows start uniform in plus/minus this; 0 starts at zero. It does not depend on the
            table's shape: rules made for kernels (Glorot, He) would take a million rows for a million inputs
            and start the rows at nearly nothing.
        row_l2: L2 penalty on the rows that a batch uses, added to their gradients by the optimizer.
        seed: Seed of the rows' start.
        **kwargs: Of `keras.layers.Layer`.
    """

    def __init__(
        self,
        layout: Layout,
        dim: int,
        *,
        initial_range: float = 0.05,
        row_l2: float = 0.0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        # No autocast: bag weights and ids must not pass through float16 before they are used.
        super().__init__(autocast=False, **kwargs)
        self._slots = tuple(layout.slots)
        self._rows = layout.table_rows
        self._dim = dim
        self._range = initial_range
        self._row_l2 = row_l2
        self._seed = seed

    def build(self, *_: Any) -> None:
        """Makes the table, [table_rows, dim]."""
        initializer = (
            keras.initializers.RandomUniform(-self._range, self._range, seed=self._seed)
            if self._range
            else keras.initializers.Zeros()
        )
        self.table = self.add_weight(
            name="table",
            shape=(self._rows, self._dim),
            dtype="float32",
            initializer=initializer,
            autocast=False,
        )
        # On both, as a training loop may hold either: Keras's variable and TensorFlow's behind it.
        for variable in (self.table, self.table.value):
            variable.updated_by_row = True
            variable.row_l2 = self._row_l2
        self.built = True

    def call(self, categorical: tf.Tensor, numeric: tf.Tensor) -> tf.Tensor:
        """Looks rows up and pools bags.

        Args:
            categorical: int32 [batch, sum of slot widths], rows of the table.
            numeric: float32 [batch, N]; its last columns hold the weights of the bags.

        Returns:
            [batch, slots, dim]. A bag gives sum(weight * row) / sum(weight), zeros if no weight is above 0.
        """
        # tf.gather on the variable itself reads only these rows, and its gradient is sparse.
        found = tf.cast(tf.gather(own_copy(self.table.value), categorical), self.compute_dtype)
        if all(slot.width == 1 and slot.weight_start < 0 for slot in self._slots):
            return found
        parts = []
        for first, last in _runs(self._slots):
            slot = self._slots[first]
            block = found[:, slot.start : self._slots[last].start + self._slots[last].width]
            if slot.weight_start >= 0:
                weights = numeric[:, slot.weight_start : slot.weight_start + slot.width]
                total = tf.reduce_sum(weights, 1, keepdims=True)
                share = tf.cast(tf.math.divide_no_nan(weights, total), self.compute_dtype)
                block = tf.reduce_sum(block * share[:, :, tf.newaxis], 1, keepdims=True)
            parts.append(block)
        return tf.concat(parts, 1)

    def compute_output_shape(self, categorical_shape: Any, *_: Any) -> tuple[int | None, int, int]:
        """Returns (batch, slots, dim)."""
        return (categorical_shape[0], len(self._slots), self._dim)


def _runs(slots: tuple[Any, ...]) -> list[tuple[int, int]]:
    """Cuts the slots into bags (alone) and runs of neighbouring plain ones (first, last)."""
    runs: list[tuple[int, int]] = []
    for i, slot in enumerate(slots):
        plain = slot.weight_start < 0
        if plain and runs and slots[runs[-1][1]].weight_start < 0 and slots[i - 1].start + 1 == slot.start:
            runs[-1] = (runs[-1][0], i)
        else:
            runs.append((i, i))
    return runs
