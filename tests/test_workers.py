"""Two workers in two processes: the numbers of one, the same decisions, and an end for both."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm
from loop_parts import ArrayPipeline, arrays, config, make_loop, one_device, weights
from worker_processes import free_addresses

from trainer.errors import EXIT_INTERRUPTED

pytestmark = [pytest.mark.slow, pytest.mark.faults]
ROWS, SETTINGS = 1001, {"training__epochs": 2, "checkpoint__every_seconds": 0.2}

RUN = """
import json, sys, time
import numpy as np
from loop_parts import ArrayPipeline, arrays, config, make_loop
from trainer import strategy
from trainer.checkpoints import Checkpoints
from trainer.errors import UserError
from trainer.interruption import Interruption

worker, folder, rows = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
settings = config(**json.loads(sys.argv[4]))

class Part(ArrayPipeline):
    '''This worker's half of each batch; worker 1 is the slower one, so the two keep another pace.'''

    def _batch(self, rows):
        half = self.batch_size // 2
        time.sleep(0.02 * worker)
        return {k: v[worker * half : (worker + 1) * half] for k, v in super()._batch(rows).items()}

class Told:
    def update(self, step, **figures):
        print("step", step, flush=True)

    def epoch(self, epoch, logs):
        pass

devices = strategy.create(settings)
with Interruption() as stop:
    loop = make_loop(settings, devices, rows=rows, stop=stop, progress=Told())
    kept = Checkpoints(folder, loop.model, loop.optimizer, writes=worker == 0)
    try:
        validation = Part(arrays(333, 1), 32)
        state = loop.fit(Part(arrays(rows), 32), validation, (), kept, kept.restore())
    except UserError as error:
        print(error, flush=True)
        sys.exit(error.exit_code)
np.savez(f"{folder}/worker{worker}.npz", *loop.model.get_weights(), history=json.dumps(state.history))
"""


def start(folder: Path) -> list[warm.Process]:
    ports = free_addresses(2)
    here = os.path.dirname(__file__)
    made = []
    for worker, role in enumerate(("chief", "worker")):
        task = {"type": role, "index": 0}
        cluster = {"chief": ports[:1], "worker": ports[1:]}
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([here, os.path.dirname(here)]),
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
        }
        command = ["-c", RUN, worker, folder, ROWS, json.dumps(SETTINGS)]
        made.append(warm.Process(command, environ))
    return made


def finish(processes: list[warm.Process], code: int) -> list[str]:
    try:
        told = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()  # SIGTERM would be swallowed
    assert [process.returncode for process in processes] == [code, code], told
    return told


def same(folder: Path, expected: tuple[Any, Any]) -> None:
    loop, state = expected
    for worker in range(2):
        found = np.load(folder / f"worker{worker}.npz")
        for i, value in enumerate(weights(loop)):
            np.testing.assert_allclose(found[f"arr_{i}"], value, atol=1e-5)
        history = json.loads(str(found["history"]))
        for name in state.history:
            np.testing.assert_allclose(history[name], state.history[name], atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def expected() -> tuple[Any, Any]:
    loop = make_loop(config(**SETTINGS), one_device(), rows=ROWS)
    return loop, loop.fit(ArrayPipeline(arrays(ROWS), 32), ArrayPipeline(arrays(333, 1), 32))


def test_two_workers_train_as_one_process(tmp_path: Path, expected: tuple[Any, Any]) -> None:
    finish(start(tmp_path), 0)
    same(tmp_path, expected)


def test_sigterm_to_one_worker_ends_both_and_loses_nothing(tmp_path: Path, expected: tuple[Any, Any]) -> None:
    processes = start(tmp_path)
    for line in processes[1].stdout:
        if line.startswith("step") and int(line.split()[1]) >= 10:
            break
    processes[1].send_signal(signal.SIGTERM)  # not to the chief
    told = finish(processes, EXIT_INTERRUPTED)
    assert all("stopped by SIGTERM at step" in text for text in told)
    finish(start(tmp_path), 0)
    same(tmp_path, expected)
