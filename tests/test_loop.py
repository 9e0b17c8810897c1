"""Evaluation and prediction, and the whole loop in processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm
from loop_parts import ArrayPipeline, arrays, config, make_loop, mirrored, one_device
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from trainer.errors import EXIT_INTERRUPTED, UserError
from trainer.interruption import Interrupted, Interruption

STRATEGIES = [one_device, mirrored]


@pytest.fixture(scope="module", params=STRATEGIES)
def loop(request: pytest.FixtureRequest) -> Any:
    made = make_loop(config(training__epochs=1), request.param(), rows=320)
    made.fit(ArrayPipeline(arrays(320), 32))
    return made


@pytest.mark.parametrize("rows", [333, 32, 9, 1])
def test_figures_are_those_of_all_rows(loop: Any, rows: int) -> None:
    """333: an odd end. 9 and 1: less than a batch, so a replica has no row at all."""
    data = arrays(rows, seed=5)
    pipeline = ArrayPipeline(data, 32)
    figures, p = loop.evaluate(pipeline), loop.predict(pipeline)
    y, w = data["label"], data["weight"]
    np.testing.assert_allclose(
        figures["loss"], log_loss(y, p.astype(np.float64), sample_weight=w, labels=[0, 1]), rtol=1e-5
    )
    np.testing.assert_allclose(figures["accuracy"], np.average((p > 0.5) == (y > 0), weights=w), rtol=1e-6)
    if rows > 1:
        exact = roc_auc_score(y, p, sample_weight=w), average_precision_score(y, p, sample_weight=w)
        np.testing.assert_allclose([figures["auc"], figures["pr_auc"]], exact, atol=1e-4)  # of bins


def test_a_second_evaluation_starts_anew(loop: Any) -> None:
    pipeline = ArrayPipeline(arrays(50, seed=6), 32)
    assert loop.evaluate(pipeline) == loop.evaluate(pipeline)
    assert loop.steps.evaluate.experimental_get_tracing_count() == 1


def test_predictions_come_in_order_and_without_padding(loop: Any) -> None:
    data = arrays(77, seed=7)
    p = loop.predict(ArrayPipeline(data, 32))
    logits = loop.model({"numeric": data["numeric"], "categorical": data["categorical"]}, training=False)
    np.testing.assert_allclose(p, 1 / (1 + np.exp(-logits.numpy()[:, 0])), rtol=1e-5)
    assert p.shape == (77,)


def test_no_weight_at_all_is_told(loop: Any) -> None:
    data = arrays(10)
    data["weight"][:] = 0
    with pytest.raises(UserError, match="every row has weight 0"):
        loop.evaluate(ArrayPipeline(data, 32))


def test_one_and_two_replicas_report_the_same() -> None:
    data, validation = arrays(1001), arrays(333, seed=1)
    histories = []
    for make in STRATEGIES:
        made = make_loop(config(), make(), rows=1001)
        histories.append(made.fit(ArrayPipeline(data, 32), ArrayPipeline(validation, 32)).history)
    assert set(histories[0]) == set(histories[1])
    assert "val_pr_auc" in histories[0]
    for name in histories[0]:
        np.testing.assert_allclose(histories[0][name], histories[1][name], atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("task", "classes", "shape"),
    [
        ("multiclass", ("a", "b", "c"), (40, 3)),
        pytest.param("regression", (), (40,), marks=pytest.mark.slow),
        pytest.param("multilabel", ("a", "b"), (40, 2), marks=pytest.mark.slow),
    ],
)
def test_every_task_trains_and_predicts(task: str, classes: tuple[str, ...], shape: tuple[int, ...]) -> None:
    data = arrays(40)
    if task == "multiclass":
        data["label"] = (data["categorical"][:, 0] % 3).astype(np.int32)
    elif task == "multilabel":
        data["label"] = (data["numeric"][:, :2] > 0).astype(np.float32)
    label = {"label__column": ("y", "z")} if task == "multilabel" else {}
    settings = config(task=task, training__epochs=2, model__name="linear", **label)
    made = make_loop(settings, mirrored(), rows=40, classes=classes)
    pipeline = ArrayPipeline(data, 32)
    state = made.fit(pipeline, pipeline)
    assert state.history["val_loss"][1] < state.history["val_loss"][0]
    p = made.predict(pipeline)
    assert p.shape == shape
    if task == "multiclass":
        np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)


def test_sigterm_ends_evaluation_and_prediction() -> None:
    with Interruption() as stop:
        made = make_loop(config(model__name="linear"), one_device(), stop=stop)
        pipeline = ArrayPipeline(arrays(100), 32)
        made.evaluate(pipeline)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted, match="during evaluation; run the same command again") as caught:
            made.evaluate(pipeline)
        with pytest.raises(Interrupted, match="during prediction"):
            made.predict(pipeline)
    assert caught.value.exit_code == EXIT_INTERRUPTED == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# --- processes that are killed ----------------------------------------------------------------------

RUN = """
import json, os, sys, time
import numpy as np
from loop_parts import ArrayPipeline, arrays, config, make_loop
from trainer import callbacks, strategy
from trainer.checkpoints import Checkpoints
from trainer.errors import UserError
from trainer.interruption import Interruption

folder, pause = sys.argv[1], float(sys.argv[2])
settings = config(
    training__epochs=4, training__steps_per_call=int(sys.argv[3]), model__dropout=0.3,
    training__schedule__name="cosine", training__schedule__warmup_steps=5,
    training__early_stopping__patience=3, checkpoint__every_steps=5, checkpoint__every_seconds=0,
)
devices = strategy.create(settings)

class Slow(ArrayPipeline):
    def training_numpy(self, start_step=0):
        for batch in super().training_numpy(start_step):
            time.sleep(pause)
            yield batch

class Told:
    def update(self, step, **figures):
        print(step, flush=True)

    def epoch(self, epoch, logs):
        pass

with Interruption() as stop:
    loop = make_loop(settings, devices, rows=500, stop=stop, progress=Told())
    kept = Checkpoints(folder, loop.model, loop.optimizer)
    state = kept.restore()
    print("restored", state.step if state else None, flush=True)
    table = folder + "/history.csv"
    made = callbacks.standard(settings, logs="", table=table, monitor="val_loss", mode="min")
    try:
        end = loop.fit(Slow(arrays(500), 32), ArrayPipeline(arrays(100, 1), 32), made, kept, state)
    except UserError as error:
        print(error)
        sys.exit(error.exit_code)
np.savez(folder + "/final.npz", *loop.model.get_weights(), history=json.dumps(end.history))
"""


def _start(folder: Path, pause: float = 0.0, steps_per_call: int = 0) -> warm.Process:
    here = os.path.dirname(__file__)
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join([here, os.path.dirname(here)])
    return warm.Process(["-c", RUN, folder, pause, steps_per_call], {**os.environ, "PYTHONPATH": path})


def _kill_after(process: warm.Process, step: int, number: int) -> str:
    """Sends a signal once `step` was reached; returns all output."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.strip().isdigit() and int(line) >= step:
            process.send_signal(number)
            break
    lines.append(process.stdout.read())
    process.wait(60)
    return "".join(lines)


@pytest.mark.slow
@pytest.mark.faults
def test_killed_runs_end_with_the_very_same_numbers(tmp_path: Path) -> None:
    """kill -9 in epoch 2, SIGTERM in epoch 3, other lengths of calls: bit for bit the undisturbed run."""
    whole = _start(tmp_path / "whole")
    _kill_after(whole, 10**6, 0)
    assert whole.returncode == 0

    folder = tmp_path / "broken"
    first = _start(folder, pause=0.02)
    _kill_after(first, 21, signal.SIGKILL)
    assert first.returncode == -signal.SIGKILL

    second = _start(folder, pause=0.02, steps_per_call=3)
    began = time.monotonic()
    told = _kill_after(second, 37, signal.SIGTERM)
    assert second.returncode == EXIT_INTERRUPTED
    assert time.monotonic() - began < 60
    assert "restored 20" in told or "restored 15" in told
    assert "stopped by SIGTERM at step" in told

    third = _start(folder, steps_per_call=7)
    told = _kill_after(third, 10**6, 0)
    assert third.returncode == 0
    restored = int(told.split("restored ")[1].split()[0])
    assert 37 <= restored < 64  # the very step of the SIGTERM, not the last multiple of 5

    a, b = np.load(tmp_path / "whole" / "final.npz"), np.load(folder / "final.npz")
    for name in a.files:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    assert json.loads(str(a["history"]))["loss"]
    tables = [(path / "history.csv").read_text() for path in (tmp_path / "whole", folder)]
    assert tables[0] == tables[1]
