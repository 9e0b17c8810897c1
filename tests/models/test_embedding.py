"""The fused embedding: rows, bags and gradients against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from model_parts import LAYOUT, NO_NUMBERS, inputs

from trainer.features import Layout, Slot
from trainer.models.embedding import FusedEmbedding


def expected(table: np.ndarray, layout: Layout, data: dict[str, np.ndarray]) -> np.ndarray:
    found = []
    for slot in layout.slots:
        rows = table[data["categorical"][:, slot.start : slot.start + slot.width]]
        if slot.weight_start < 0:
            found.append(rows[:, 0])
            continue
        weights = data["numeric"][:, slot.weight_start : slot.weight_start + slot.width]
        total = weights.sum(1, keepdims=True)
        share = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        found.append((rows * share[:, :, None]).sum(1))
    return np.stack(found, 1)


@pytest.mark.parametrize("layout", [LAYOUT, NO_NUMBERS], ids=["bags", "plain"])
def test_rows_and_bags(layout: Layout) -> None:
    data = inputs(layout, 50)
    if layout is LAYOUT:
        data["numeric"][3, 2:] = 0  # an empty bag
    layer = FusedEmbedding(layout, 4, seed=3)
    out = layer(data["categorical"], data["numeric"]).numpy()
    assert out.shape == (50, len(layout.slots), 4)
    np.testing.assert_allclose(out, expected(layer.table.numpy(), layout, data), rtol=1e-6, atol=1e-7)
    if layout is LAYOUT:
        assert not out[3, 2].any()


def test_a_bag_beside_bags_and_first() -> None:
    slots = (Slot("x", 0, 2, 0, 5, 0), Slot("y", 2, 2, 5, 5, 2), Slot("c", 4, 1, 10, 5, -1))
    layout = Layout(("x0", "x1", "y0", "y1"), 0, slots, 15)
    data = inputs(layout, 20)
    layer = FusedEmbedding(layout, 3)
    out = layer(data["categorical"], data["numeric"]).numpy()
    np.testing.assert_allclose(out, expected(layer.table.numpy(), layout, data), rtol=1e-6, atol=1e-7)


def test_bag_of_one_entry_still_has_a_weight() -> None:
    layout = Layout(("w",), 0, (Slot("x", 0, 1, 0, 5, 0),), 5)
    layer = FusedEmbedding(layout, 3)
    out = layer(np.array([[2], [2]], np.int32), np.array([[0.5], [0.0]], np.float32)).numpy()
    np.testing.assert_allclose(out[0, 0], layer.table.numpy()[2], rtol=1e-6)
    assert not out[1].any()


def test_the_gradient_is_sparse() -> None:
    data = inputs(LAYOUT, 8)
    layer = FusedEmbedding(LAYOUT, 4)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(data["categorical"], data["numeric"]))
    gradient = tape.gradient(loss, layer.table.value)
    assert isinstance(gradient, tf.IndexedSlices)
    assert gradient.values.shape == (8 * 6, 4)


def test_half_precision_leaves_table_ids_and_weights_alone() -> None:
    layout = Layout(("w0", "w1"), 0, (Slot("x", 0, 2, 0, 70_000, 0),), 70_000)
    layer = FusedEmbedding(layout, 2, dtype="mixed_float16", initial_range=1.0)
    ids = np.array([[69_999, 3]], np.int32)  # neither id nor weight fits float16
    out = layer(ids, np.array([[300_000.0, 100_000.0]], np.float32))
    assert out.dtype == tf.float16
    assert layer.table.dtype == "float32"
    table = layer.table.numpy()
    np.testing.assert_allclose(out.numpy()[0, 0], 0.75 * table[69_999] + 0.25 * table[3], atol=2e-3)


def test_start_depends_on_the_seed_alone_and_not_on_the_size() -> None:
    def start(seed: int, rows: int = 30) -> np.ndarray:
        layer = FusedEmbedding(Layout((), 0, NO_NUMBERS.slots, rows), 4, seed=seed)
        layer.build()
        return layer.table.numpy()

    np.testing.assert_array_equal(start(1), start(1))
    assert (start(1) != start(2)).any()
    # Uniform in +-0.05 has a standard deviation of 0.0289, whatever the number of rows.
    assert start(1, 30_000).std() == pytest.approx(0.0289, rel=0.02)
    assert start(1, 300).std() == pytest.approx(0.0289, rel=0.1)
