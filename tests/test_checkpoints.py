from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from loop_parts import config, mirrored

from trainer import checkpoints as module
from trainer.checkpoints import Checkpoints, NotFiniteError
from trainer.errors import TrainingError, UserError
from trainer.optimizer import Optimizer
from trainer.state import RunState, settings

pytestmark = pytest.mark.faults


def parts(units: int = 8, value: float = 1.0) -> tuple[keras.Model, Optimizer]:
    inputs = keras.Input((3,))
    start = keras.initializers.Constant(value)
    hidden = keras.layers.Dense(units, name="dense", kernel_initializer=start)(inputs)
    model = keras.Model(inputs, keras.layers.Dropout(0.5, name="dropout")(hidden))
    optimizer = Optimizer(config().training, 10)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def store(folder: Path, model: Any = None, optimizer: Any = None, **options: Any) -> Checkpoints:
    if model is None:
        model, optimizer = parts()
    return Checkpoints(str(folder), model, optimizer, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def save_steps(found: Checkpoints, model: keras.Model, *steps: int, **state: Any) -> None:
    for step in steps:
        for variable in model.trainable_variables:
            variable.assign(tf.fill(variable.shape, float(step)))
        found.save(RunState(step=step, **state), wait=True)


def test_everything_comes_back(tmp_path: Path) -> None:
    model, optimizer = parts()
    optimizer.apply([tf.ones(v.shape) for v in model.trainable_variables])
    optimizer.learning_rate = 0.25
    model(np.ones((2, 3), "float32"), training=True)  # moves the seed of the dropout
    state = RunState(step=7, epoch=2, loss_sum=0.1, loss_rows=3.0)
    state.history = {"loss": [1.0, 0.5]}
    state.callbacks = {"A": {"wait": 1}}
    state.best = {"step": 4, "epoch": 1, "monitor": "val_loss", "value": 0.3}
    store(tmp_path, model, optimizer).save(state, wait=True)

    other, other_optimizer = parts(value=9.0)
    restored = store(tmp_path, other, other_optimizer).restore()
    assert restored == state
    for a, b in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert int(other_optimizer.iterations) == 1
    assert float(other_optimizer.learning_rate) == 0.25
    for a, b in zip(optimizer.variables, other_optimizer.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert np.abs(optimizer.slots[0][0].numpy()).max() > 0  # there was something to restore


def test_nothing_to_restore(tmp_path: Path) -> None:
    assert store(tmp_path / "absent").restore() is None


def test_any_reader_of_tensorflow_can_read_it(tmp_path: Path) -> None:
    model, optimizer = parts()
    save_steps(store(tmp_path, model, optimizer), model, 1)
    reader = tf.train.load_checkpoint(str(tmp_path / "0000000001-0000" / "variables"))
    assert reader.get_variable_to_shape_map()["model/0000/dense/kernel"] == [3, 8]


def test_the_newest_are_kept_and_the_best(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "0000000001").mkdir()  # looks like one of ours, but isn't
    model, optimizer = parts()
    found = store(tmp_path, model, optimizer, keep=2)
    best = {"step": 2, "epoch": 0, "monitor": "val_loss", "value": 0.1}
    save_steps(found, model, 1)
    save_steps(found, model, 2, 3, 4, 5, best=best)
    kept = ["0000000002-0000", "0000000004-0000", "0000000005-0000"]
    assert names(tmp_path) == ["0000000001", *kept, "notes.txt"]
    assert found.load_best(RunState(best=best))
    assert float(model.trainable_variables[0].numpy()[0, 0]) == 2.0


def test_load_best_leaves_the_optimizer_alone(tmp_path: Path) -> None:
    model, optimizer = parts()
    found = store(tmp_path, model, optimizer)
    best = {"step": 1, "epoch": 0, "monitor": "val_loss", "value": 0.1}
    save_steps(found, model, 1, best=best)
    optimizer.iterations.assign(5)
    found.load_best(RunState(best=best))
    assert int(optimizer.iterations) == 5


def test_a_lost_best_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not store(tmp_path).load_best(RunState())
    assert not store(tmp_path).load_best(RunState(best={"step": 1, "epoch": 0}))
    assert "the best checkpoint (step 1) is gone: using the last weights" in caplog.text


def _truncate(folder: Path) -> None:
    file = next(folder.glob("variables.data*"))
    file.write_bytes(file.read_bytes()[:-10])


def _flip(folder: Path) -> None:
    file = next(folder.glob("variables.data*"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "its size is not as written": _truncate,
    "its checksum is not as written": _flip,
    "its presence is not as written": lambda folder: next(folder.glob("variables.index")).unlink(),
    "it was never completed": lambda folder: (folder / "manifest.json").unlink(),
    "manifest.json is damaged": lambda folder: (folder / "manifest.json").write_text('{"version": 1, "fil'),
    "state.json is damaged": lambda folder: (folder / "state.json").write_text("{}"),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_broken_one_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    model, optimizer = parts()
    save_steps(store(tmp_path, model, optimizer), model, 1, 2, 3)
    DAMAGES[reason](tmp_path / "0000000003-0000")
    found = store(tmp_path, model, optimizer)
    restored = found.restore()
    assert restored is not None
    assert restored.step == 2
    assert float(model.trainable_variables[0].numpy()[0, 0]) == 2.0
    assert "0000000003-0000 can't be used" in caplog.text
    assert reason in caplog.text
    # Reaching the step again writes a new folder, and that one counts from then on.
    save_steps(found, model, 3)
    assert "0000000003-0000-again1" in names(tmp_path)
    assert store(tmp_path, *parts()).restore().step == 3


def test_only_broken_ones_means_a_new_start(tmp_path: Path) -> None:
    model, optimizer = parts()
    save_steps(store(tmp_path, model, optimizer), model, 1)
    _truncate(tmp_path / "0000000001-0000")
    assert store(tmp_path).restore() is None


def test_another_shape_is_named(tmp_path: Path) -> None:
    model, optimizer = parts(8)
    save_steps(store(tmp_path, model, optimizer), model, 1)
    told = "checkpoint does not fit: dense/kernel 3x8, the model has 3x9 .*--fresh"
    with pytest.raises(UserError, match=told):
        store(tmp_path, *parts(9)).restore()


def test_another_optimizer_is_named(tmp_path: Path) -> None:
    model, optimizer = parts()
    save_steps(store(tmp_path, model, optimizer), model, 1)
    sgd = Optimizer(config(training__optimizer="sgd").training, 10)
    sgd.build(model.trainable_variables)
    with pytest.raises(UserError, match="checkpoint does not fit: "):
        store(tmp_path, model, sgd).restore()


def test_other_settings_are_named(tmp_path: Path) -> None:
    model, optimizer = parts()
    save_steps(store(tmp_path, model, optimizer, settings=settings(config())), model, 1)
    changed = settings(config(training__batch_size=64, training__epochs=9))
    with pytest.raises(UserError, match=r"training\.batch_size: .*was written with 32, this run has 64"):
        store(tmp_path, model, optimizer, settings=changed).restore()
    longer = settings(config(training__epochs=9, training__learning_rate=0.5, strategy__cpu_replicas=2))
    assert store(tmp_path, model, optimizer, settings=longer).restore() is not None


def test_other_features_are_named(tmp_path: Path) -> None:
    model, optimizer = parts()
    save_steps(store(tmp_path, model, optimizer, features_fingerprint="a"), model, 1)
    with pytest.raises(UserError, match="other feature statistics or vocabularies"):
        store(tmp_path, model, optimizer, features_fingerprint="b").restore()


def test_layer_names_that_keras_counts_up_do_not_matter(tmp_path: Path) -> None:
    def model() -> keras.Model:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])

    first, second = model(), model()
    assert first.variables[0].path != second.variables[0].path
    store(tmp_path, first).save(RunState(step=1), wait=True)
    assert store(tmp_path, second).restore() is not None
    np.testing.assert_array_equal(first.variables[0].numpy(), second.variables[0].numpy())


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    model, optimizer = parts()
    model.trainable_variables[1].assign([1.0] * 7 + [np.nan])
    with pytest.raises(NotFiniteError, match="the weights dense/bias are not finite"):
        store(tmp_path, model, optimizer).save(RunState(step=3))
    assert names(tmp_path) == []


def test_training_goes_on_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    go = threading.Event()
    real = module.storage.make_folder
    monkeypatch.setattr(module.storage, "make_folder", lambda path: (go.wait(10), real(path)))
    model, optimizer = parts(value=1.0)
    found = store(tmp_path, model, optimizer)
    found.save(RunState(step=1))  # returns at once, though the writing hasn't begun
    model.trainable_variables[0].assign(tf.fill([3, 8], 5.0))
    go.set()
    found.wait()
    other, other_optimizer = parts()
    store(tmp_path, other, other_optimizer).restore()
    assert float(other.trainable_variables[0].numpy()[0, 0]) == 1.0


def test_what_fails_in_the_thread_is_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = store(tmp_path / "file" / "below")
    found.save(RunState(step=1))
    with pytest.raises(TrainingError, match="file/below/0000000001-0000 can't be written: Not a directory"):
        found.wait()


def test_a_disk_that_fills_up_leaves_the_one_before(tmp_path: Path) -> None:
    model, optimizer = parts()
    found = store(tmp_path, model, optimizer)
    save_steps(found, model, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # the system refuses to write on
    try:
        with pytest.raises(TrainingError, match=r"can't be written: .*the ones before are whole"):
            save_steps(found, model, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store(tmp_path, model, optimizer).restore().step == 1
    again = store(tmp_path, model, optimizer)
    again.restore()
    save_steps(again, model, 2)
    assert store(tmp_path, model, optimizer).restore().step == 2


def test_the_same_state_is_written_once(tmp_path: Path) -> None:
    model, optimizer = parts()
    found = store(tmp_path, model, optimizer)
    save_steps(found, model, 4)
    save_steps(found, model, 4)
    again = store(tmp_path, model, optimizer)
    again.restore()
    save_steps(again, model, 4)
    assert names(tmp_path) == ["0000000004-0000"]
    found.save(RunState(step=4, epoch=1), wait=True)  # the epoch ended meanwhile
    assert store(tmp_path, model, optimizer).restore().epoch == 1


def test_a_write_that_dies_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = parts()
    found = store(tmp_path, model, optimizer)
    save_steps(found, model, 1)
    real = module.storage.write_text

    def dies(path: str, text: str) -> None:
        if path.endswith("manifest.json"):
            raise KeyboardInterrupt
        real(path, text)

    monkeypatch.setattr(module.storage, "write_text", dies)
    with pytest.raises(KeyboardInterrupt):
        save_steps(found, model, 2)
    monkeypatch.undo()
    assert store(tmp_path, model, optimizer).restore().step == 1


def test_an_object_store_works_alike() -> None:
    # ram:// goes through the same file-system interface as gs://.
    folder = "ram://checkpoints/test"
    model, optimizer = parts()
    found = Checkpoints(folder, model, optimizer, keep=2)
    save_steps(found, model, 1, 2, 3, 4)
    restored = Checkpoints(folder, *parts()).restore()
    assert restored is not None
    assert restored.step == 4
    left = sorted(name.rstrip("/") for name in tf.io.gfile.listdir(folder))
    assert left == ["0000000003-0000", "0000000004-0000"]


def test_a_mirrored_model_comes_back_on_every_replica(tmp_path: Path) -> None:
    strategy = mirrored()
    with strategy.scope():
        model, optimizer = parts()
    save_steps(store(tmp_path, model, optimizer), model, 3)
    model.trainable_variables[0].assign(tf.zeros([3, 8]))
    store(tmp_path, model, optimizer).restore()
    copies = strategy.experimental_local_results(model.trainable_variables[0].value)
    assert [float(copy.numpy()[0, 0]) for copy in copies] == [3.0, 3.0]


def test_the_manifest_tells_what_is_inside(tmp_path: Path) -> None:
    model, optimizer = parts()
    save_steps(store(tmp_path, model, optimizer), model, 1)
    manifest = json.loads((tmp_path / "0000000001-0000" / "manifest.json").read_text())
    assert {"variables.index", "variables.data-00000-of-00001", "state.json"} == set(manifest["files"])
    first = {"name": "model/0000/dense/kernel", "shape": [3, 8], "dtype": "float32"}
    assert manifest["variables"][0] == first
