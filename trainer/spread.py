"""The chief's variables to every worker, over TensorFlow's own exchange. Adopters: leave.

The chief alone reads and writes the folders of a run: no other worker needs to see them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_CHUNK = 1 << 20  # numbers in one message


class Spread:
    """Copies variables from the chief to the others.

    Args:
        strategy: the strategy.
        is_chief: whether this process is the one whose values count.
    """

    def __init__(self, strategy: tf.distribute.Strategy, is_chief: bool) -> None:
        self._strategy, self._is_chief = strategy, is_chief
        self._sum = tf.function(self._sum_over_workers, autograph=False)

    def __call__(self, variables: Sequence[tf.Variable]) -> None:
        """Gives every worker the chief's values, bit for bit. All workers must call it."""
        values = [np.array(variable.numpy()) for variable in variables]
        words = [_words(value) for value in values if value.size]
        starts = np.cumsum([0, *(len(part) for part in words)])
        total = int(starts[-1])
        size = min(_CHUNK, total)  # one shape, so that the function is traced once
        for first in range(0, total, size or 1):
            cut = [
                part[max(0, first - start) : first + size - start]
                for part, start in zip(words, starts, strict=False)
                if start < first + size and start + len(part) > first
            ]
            sent = np.zeros(size, np.int64)
            if self._is_chief:
                chunk = np.concatenate(cut)
                sent[: len(chunk)] = chunk
            received, place = self._sum(tf.constant(sent)).numpy(), 0
            for part in cut:
                part[:] = received[place : place + len(part)]
                place += len(part)
        if not self._is_chief:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

    def _sum_over_workers(self, words: tf.Tensor) -> tf.Tensor:
        def replica(local: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            first = tf.cast(tf.equal(context.replica_id_in_sync_group, 0), local.dtype)  # the chief's first
            return context.all_reduce(tf.distribute.ReduceOp.SUM, local * first)

        sums = self._strategy.run(replica, args=(words,))
        return self._strategy.experimental_local_results(sums)[0]


def _words(value: np.ndarray) -> np.ndarray:
    """Returns a flat view of an array; floats as their bits: a sum of floats would turn -0.0 into 0.0."""
    flat = value.reshape(-1)
    return flat.view(np.int32) if value.dtype == np.float32 else flat
