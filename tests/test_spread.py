"""The chief's values arrive at the other workers bit for bit, in pieces of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from loop_parts import mirrored, one_device

from trainer import spread as module
from trainer.spread import Spread


def variables(strategy: tf.distribute.Strategy, fill: bool) -> list[tf.Variable]:
    random = np.random.default_rng(0)
    floats = random.normal(size=(7, 3)).astype(np.float32)
    floats[0] = [-0.0, 1e-42, np.finfo(np.float32).max]  # a sum of floats would lose the first
    values = [
        floats,
        np.array(2**40 + 1, np.int64),
        np.zeros((0, 3), np.float32),
        np.arange(5, dtype=np.float32),
    ]
    with strategy.scope():
        return [tf.Variable(value if fill else np.zeros_like(value)) for value in values]


@pytest.mark.parametrize("chunk", [4, 1 << 20])
@pytest.mark.parametrize("replicas", [1, 2])
def test_every_bit_arrives(chunk: int, replicas: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    strategy = one_device() if replicas == 1 else mirrored()
    chief, worker = Spread(strategy, True), Spread(strategy, False)
    sent: list[Any] = []
    real = chief._sum

    def record(words: tf.Tensor) -> tf.Tensor:
        sent.append(real(words))
        return sent[-1]

    chief._sum = record
    worker._sum = lambda words: sent.pop(0) if not np.any(words) else pytest.fail("a worker sends nothing")
    mine, theirs = variables(strategy, True), variables(strategy, False)
    before = [value.numpy().tobytes() for value in mine]
    chief(mine)
    assert len({tuple(piece.shape) for piece in sent}) == 1, "one shape: one trace"
    worker(theirs)
    assert [value.numpy().tobytes() for value in theirs] == before
    assert [value.numpy().tobytes() for value in mine] == before
    assert sent == []
