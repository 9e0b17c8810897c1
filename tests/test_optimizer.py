"""The optimizer on one device: formulas against NumPy and Keras, rows, schedules, float16, restoring."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from model_parts import config

from trainer.errors import UserError
from trainer.optimizer import Optimizer, is_table, merge_rows, sum_parts

ROWS, DIM = 12, 3
RANDOM = np.random.default_rng(0)


def dense(shape: Sequence[int] = (4, 3)) -> tf.Variable:
    return tf.Variable(RANDOM.normal(size=shape).astype(np.float32))


def table(l2: float = 0.0) -> tf.Variable:
    variable = dense((ROWS, DIM))
    variable.updated_by_row, variable.row_l2 = True, l2
    return variable


def slices(rows: Sequence[int], values: np.ndarray | None = None) -> tf.IndexedSlices:
    values = RANDOM.normal(size=(len(rows), DIM)) if values is None else values
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(rows), tf.constant([ROWS, DIM]))


def make(
    variables: Sequence[tf.Variable], total: int = 100, static: bool = False, **changes: Any
) -> Optimizer:
    settings = {f"training__{key}": value for key, value in changes.items()}
    optimizer = Optimizer(config(**settings).training, total, static_shapes=static)
    optimizer.build(variables)
    return optimizer


# --- dense variables --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        ({"optimizer": "adam"}, lambda: keras.optimizers.Adam(0.02)),
        (
            {"optimizer": "adamw", "weight_decay": 0.1},
            lambda: keras.optimizers.AdamW(0.02, weight_decay=0.1),
        ),
        ({"optimizer": "sgd"}, lambda: keras.optimizers.SGD(0.02)),
        ({"optimizer": "sgd", "momentum": 0.9}, lambda: keras.optimizers.SGD(0.02, 0.9)),
        ({"optimizer": "adagrad"}, lambda: keras.optimizers.Adagrad(0.02)),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_dense_formulas_are_those_of_keras(settings: dict[str, Any], reference: Any) -> None:
    ours = dense()
    theirs = keras.Variable(ours.numpy())
    optimizer, other = make([ours], **settings), reference()
    for _ in range(5):
        gradient = tf.constant(RANDOM.normal(size=(4, 3)), tf.float32)
        optimizer.apply([gradient])
        other.apply([gradient], [theirs])
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_weight_decay_spares_biases() -> None:
    kernel, bias = dense(), dense((3,))
    before = kernel.numpy(), bias.numpy()
    make([kernel, bias], optimizer="adamw", weight_decay=0.1).apply([tf.zeros([4, 3]), tf.zeros([3])])
    np.testing.assert_allclose(kernel.numpy(), before[0] * (1 - 0.02 * 0.1), rtol=1e-6)
    np.testing.assert_array_equal(bias.numpy(), before[1])


def test_no_gradient_leaves_the_variable_alone() -> None:
    first, second = dense(), dense()
    before = first.numpy()
    optimizer = make([first, second])
    optimizer.apply([None, tf.ones([4, 3])])
    np.testing.assert_array_equal(first.numpy(), before)
    assert int(optimizer.iterations) == 1


def test_sparse_gradient_of_an_unmarked_variable_is_dense_adam() -> None:
    ours = dense((ROWS, DIM))
    theirs = keras.Variable(ours.numpy())
    optimizer, other = make([ours]), keras.optimizers.Adam(0.02)
    for rows in ([1, 1, 3], [5, 3, 5]):
        gradient = slices(rows)
        optimizer.apply([gradient])
        other.apply([tf.convert_to_tensor(gradient)], [theirs])
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


# --- tables -----------------------------------------------------------------------------------------


class Reference:
    """Lazy Adam, row Adagrad and SGD, written row by row in float64."""

    def __init__(self, name: str, start: np.ndarray, rate: float = 0.02, l2: float = 0.0) -> None:
        self.name, self.rate, self.l2, self.step = name, rate, l2, 0
        self.w = start.astype(np.float64)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.accumulator = np.full_like(self.w, 0.1)

    def apply(self, gradient: tf.IndexedSlices) -> None:
        self.step += 1
        rows, values = gradient.indices.numpy(), gradient.values.numpy().astype(np.float64)
        for row in np.unique(rows):
            g = values[rows == row].sum(0) + 2 * self.l2 * self.w[row]
            if self.name == "adagrad":
                self.accumulator[row] += g**2
                self.w[row] -= self.rate * g / np.sqrt(self.accumulator[row] + 1e-7)
            elif self.name == "sgd":
                self.w[row] -= self.rate * g
            else:
                self.m[row] = 0.9 * self.m[row] + 0.1 * g
                self.v[row] = 0.999 * self.v[row] + 0.001 * g**2
                correction = np.sqrt(1 - 0.999**self.step) / (1 - 0.9**self.step)
                self.w[row] -= self.rate * correction * self.m[row] / (np.sqrt(self.v[row]) + 1e-7)


BATCHES = ([1, 4, 1, 1], [4, 7, 7, 2], [0, 11, 0, 5], [1, 1, 1, 1])


@pytest.mark.parametrize("static", [False, True], ids=["unique", "sorted"])
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("name", ["adam", "adamw", "adagrad", "sgd"])
def test_rows_follow_the_reference(name: str, l2: float, static: bool) -> None:
    variable = table(l2)
    reference = Reference(name, variable.numpy(), l2=l2)
    optimizer = make([variable], static=static, optimizer=name)
    step = tf.function(lambda gradient: optimizer.apply([gradient]))
    for rows in BATCHES:
        gradient = slices(rows)
        step(gradient)
        reference.apply(gradient)
    np.testing.assert_allclose(variable.numpy(), reference.w, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("static", [False, True], ids=["unique", "sorted"])
@pytest.mark.parametrize("settings", [{}, {"clip_norm": 0.1}, {"optimizer": "adagrad"}])
def test_rows_that_are_not_in_the_batch_keep_every_bit(settings: dict[str, Any], static: bool) -> None:
    variable = table(l2=0.1)
    optimizer = make([variable], static=static, **settings)
    optimizer.apply([slices(range(ROWS))])  # so that no moment is zero
    before = [variable.numpy(), *(slot.numpy() for slot in optimizer.slots[0])]
    optimizer.apply([slices([3, 8, 3])])
    after = [variable.numpy(), *(slot.numpy() for slot in optimizer.slots[0])]
    others = [row for row in range(ROWS) if row not in (3, 8)]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old[others], new[others])
        assert (old[[3, 8]] != new[[3, 8]]).all()


def test_a_dense_gradient_of_a_table_touches_all_rows() -> None:
    variable = table()
    reference = Reference("adam", variable.numpy())
    gradient = RANDOM.normal(size=(ROWS, DIM)).astype(np.float32)
    make([variable]).apply([tf.constant(gradient)])
    reference.apply(slices(range(ROWS), gradient))
    np.testing.assert_allclose(variable.numpy(), reference.w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("static", [False, True], ids=["unique", "sorted"])
def test_merge_rows(static: bool) -> None:
    gradient = slices([5, 2, 5, 9, 2, 5])
    rows, values, once = merge_rows(gradient, static)
    expected = np.zeros((ROWS, DIM))
    np.add.at(expected, gradient.indices.numpy(), gradient.values.numpy())
    np.testing.assert_allclose(values.numpy(), expected[rows.numpy()], rtol=1e-6, atol=1e-7)
    if static:
        assert sorted(rows.numpy()[once.numpy() == 1]) == [2, 5, 9]
    else:
        assert sorted(rows.numpy()) == [2, 5, 9]


@pytest.mark.parametrize("static", [False, True], ids=["unique", "sorted"])
def test_clipping_is_by_the_norm_of_everything_with_each_row_once(static: bool) -> None:
    variable, kernel = table(), dense()
    before = variable.numpy(), kernel.numpy()
    sparse, other = slices([3, 3, 3, 1]), tf.constant(RANDOM.normal(size=(4, 3)), tf.float32)
    full = tf.convert_to_tensor(sparse).numpy()
    norm = np.sqrt((full**2).sum() + (other.numpy() ** 2).sum())
    optimizer = make([variable, kernel], static=static, optimizer="sgd", clip_norm=norm / 4)
    optimizer.apply([sparse, other])
    np.testing.assert_allclose(variable.numpy(), before[0] - 0.02 * full / 4, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(kernel.numpy(), before[1] - 0.02 * other.numpy() / 4, rtol=1e-5, atol=1e-6)


def test_small_gradients_are_not_clipped() -> None:
    kernel = dense()
    before = kernel.numpy()
    make([kernel], optimizer="sgd", clip_norm=1e6).apply([tf.ones([4, 3])])
    np.testing.assert_allclose(kernel.numpy(), before - 0.02, rtol=1e-6, atol=1e-7)


def test_the_whole_step_compiles() -> None:
    compiled, kernel = table(l2=0.1), dense((DIM, 1))
    plain, plain_kernel = table(l2=0.1), tf.Variable(kernel)
    plain.assign(compiled)

    def step(optimizer: Optimizer, rows: tf.Variable, weights: tf.Variable, ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(rows, ids) @ weights)
        optimizer.apply(tape.gradient(loss, [rows, weights]))

    first = make([compiled, kernel], static=True, clip_norm=1.0)
    second = make([plain, plain_kernel], clip_norm=1.0)
    fast = tf.function(lambda ids: step(first, compiled, kernel, ids), jit_compile=True)
    for batch in BATCHES:
        fast(tf.constant(batch))
        step(second, plain, plain_kernel, tf.constant(batch))
    np.testing.assert_allclose(compiled.numpy(), plain.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(kernel.numpy(), plain_kernel.numpy(), rtol=1e-5, atol=1e-6)


def test_parts_of_a_batch_add_up() -> None:
    parts = [[slices([1, 2]), tf.constant(1.0), None], [slices([2, 2]), None, tf.constant(3.0)]]
    total = None
    for part in parts:
        total = sum_parts(total, part)
    assert isinstance(total[0], tf.IndexedSlices)
    assert (float(total[1]), float(total[2])) == (1.0, 3.0)
    expected = tf.convert_to_tensor(parts[0][0]) + tf.convert_to_tensor(parts[1][0])
    np.testing.assert_allclose(tf.convert_to_tensor(total[0]), expected, rtol=1e-6, atol=1e-7)
    mixed = sum_parts([slices([1])], [tf.ones([ROWS, DIM])])
    assert not isinstance(mixed[0], tf.IndexedSlices)


def test_a_table_takes_the_fast_scatter_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TF_DISABLE_SCATTER_OP_DETERMINISM"
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)
    make([dense()])
    assert name not in os.environ
    make([table()])
    assert os.environ[name] == "true"
    monkeypatch.setenv(name, "false")
    make([table()])
    assert os.environ[name] == "false"


def test_marks() -> None:
    assert is_table(table())
    assert not is_table(dense())


# --- learning rate ----------------------------------------------------------------------------------


def test_the_schedule_drives_the_step() -> None:
    kernel = dense()
    before = kernel.numpy()
    optimizer = make([kernel], optimizer="sgd", schedule={"warmup_steps": 4})
    step = tf.function(lambda: optimizer.apply([tf.ones([4, 3])]))
    for _ in range(3):
        step()
    np.testing.assert_allclose(kernel.numpy(), before - 0.02 * (0.25 + 0.5 + 0.75), rtol=1e-5, atol=1e-7)


class Holder(keras.Model):
    """A model that has an optimizer, as callbacks see it."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__()
        vars(self)["optimizer"] = optimizer


def test_keras_callbacks_set_the_rate() -> None:
    kernel = dense()
    optimizer = make([kernel], optimizer="sgd", schedule={"name": "linear"})
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_lr=1e-6)
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 4)
    for callback in (plateau, scheduler):
        callback.set_model(Holder(optimizer))
        callback.on_train_begin()
    for epoch in range(2):
        plateau.on_epoch_end(epoch, logs := {"loss": 1.0})
    assert float(optimizer.learning_rate) == pytest.approx(0.01)
    assert "learning_rate" in logs
    scheduler.on_epoch_begin(0)
    assert float(optimizer.learning_rate) == pytest.approx(0.0025)
    before = kernel.numpy()
    optimizer.iterations.assign(50)
    optimizer.apply([tf.ones([4, 3])])
    np.testing.assert_allclose(kernel.numpy(), before - 0.0025 / 2, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": {"name": "exponential"}}, "final_fraction: got 0"),
        ({"weight_decay": 0.1}, "weight_decay: got 0.1 with optimizer 'adam'"),
        ({"momentum": 0.9}, "momentum: got 0.9 with optimizer 'adam'"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make([dense()], **settings)


# --- float16 ----------------------------------------------------------------------------------------


def test_loss_scale_cancels_out() -> None:
    kernel, rows = dense(), table()
    before = kernel.numpy(), rows.numpy()
    optimizer = make([kernel, rows], optimizer="sgd", mixed_precision="mixed_float16", clip_norm=1e9)
    scale = float(optimizer.scaled_loss(tf.constant(1.0)))
    assert scale == 2.0**15
    gradient = slices([2, 2])
    optimizer.apply([tf.fill([4, 3], scale), tf.IndexedSlices(gradient.values * scale, gradient.indices)])
    np.testing.assert_allclose(kernel.numpy(), before[0] - 0.02, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(
        rows.numpy()[2], before[1][2] - 0.02 * gradient.values.numpy().sum(0), rtol=1e-4
    )


def test_without_float16_nothing_is_scaled() -> None:
    optimizer = make([dense()], mixed_precision="mixed_bfloat16")
    assert float(optimizer.scaled_loss(tf.constant(3.0))) == 3.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("static", [False, True], ids=["unique", "sorted"])
@pytest.mark.parametrize("name", ["adam", "adagrad", "sgd"])
def test_a_step_that_is_not_finite_changes_no_weight_and_halves_the_scale(
    name: str, static: bool, bad: float
) -> None:
    kernel, rows = dense(), table(l2=0.1)
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    optimizer = make(
        [kernel, rows],
        static=static,
        optimizer=name,
        mixed_precision="mixed_float16",
        clip_norm=1.0,
        **momentum,
    )
    optimizer.apply([tf.ones([4, 3]), slices([1, 2, 1])])
    state = [kernel, rows, *optimizer.slots[0], *optimizer.slots[1]]
    before = [variable.numpy() for variable in state]
    broken = np.ones((4, 3), np.float32)
    broken[1, 1] = bad
    optimizer.apply([tf.constant(broken), slices([1, 2, 1])])
    for variable, old in zip(state, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), old)
    assert float(optimizer.loss_scale) == 2.0**14
    assert (int(optimizer.iterations), int(optimizer.skipped), int(optimizer.finite_steps)) == (2, 1, 0)


def test_skipped_steps_do_not_count_in_the_bias_correction() -> None:
    ours = dense()
    theirs = keras.Variable(ours.numpy())
    optimizer, other = make([ours], mixed_precision="mixed_float16"), keras.optimizers.Adam(0.02)
    for factor in (1.0, float("nan"), 2.0):
        scale = float(optimizer.loss_scale)
        optimizer.apply([tf.fill([4, 3], factor * scale)])
        if np.isfinite(factor):
            other.apply([tf.fill([4, 3], factor)], [theirs])
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-7)


def test_the_scale_grows_after_many_finite_steps() -> None:
    optimizer = make([dense()], mixed_precision="mixed_float16")
    optimizer.finite_steps.assign(1998)
    for expected in (2.0**15, 2.0**16, 2.0**16):
        optimizer.apply([tf.ones([4, 3])])
        assert float(optimizer.loss_scale) == expected
    assert int(optimizer.finite_steps) == 1


# --- state ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adam", "sgd", "adagrad"])
def test_a_restored_optimizer_goes_on_bit_for_bit(name: str, tmp_path: Any) -> None:
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    settings = {"optimizer": name, "mixed_precision": "mixed_float16", **momentum}
    gradients = [[tf.constant(RANDOM.normal(size=(4, 3)), tf.float32), slices(rows)] for rows in BATCHES]
    kernel, rows = dense(), table()
    optimizer = make([kernel, rows], **settings)
    for gradient in gradients[:2]:
        optimizer.apply(gradient)
    optimizer.apply([tf.fill([4, 3], float("nan")), slices([1])])
    optimizer.learning_rate = 0.005
    path = tf.train.Checkpoint(kernel=kernel, rows=rows, optimizer=optimizer).save(str(tmp_path / "c"))
    for gradient in gradients[2:]:
        optimizer.apply(gradient)

    again_kernel, again_rows = dense(), table()
    again = make([again_kernel, again_rows], **settings)
    checkpoint = tf.train.Checkpoint(kernel=again_kernel, rows=again_rows, optimizer=again)
    checkpoint.restore(path).assert_consumed()
    assert float(again.learning_rate) == pytest.approx(0.005)
    assert float(again.loss_scale) == 2.0**14
    for gradient in gradients[2:]:
        again.apply(gradient)
    for mine, other in zip(
        [kernel, rows, *optimizer.variables], [again_kernel, again_rows, *again.variables], strict=True
    ):
        np.testing.assert_array_equal(mine.numpy(), other.numpy())


def test_misuse_is_an_error() -> None:
    optimizer = make([dense()])
    with pytest.raises(ValueError, match="called twice"):
        optimizer.build([dense()])
    with pytest.raises(ValueError, match="2 gradients for 1 variables"):
        optimizer.apply([tf.ones([4, 3]), tf.ones([4, 3])])
