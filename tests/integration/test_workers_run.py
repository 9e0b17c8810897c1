"""Whole runs of several workers by their command: the files of one process, and what if one dies."""

from __future__ import annotations

import csv
import json
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import warm
from small_run import Small, clean_environment, wait_until
from worker_processes import free_addresses

pytestmark = [pytest.mark.slow, pytest.mark.faults]

FAST = (
    "--checkpoint.every_steps=7",
    "--checkpoint.every_seconds=0",
    "--training.steps_per_call=3",
    "--report.importance_rows=0",
    "--export.examples_signature=false",
)
LIMIT = 300


class Job:
    """The processes of one job on loopback."""

    def __init__(
        self,
        small: Small,
        output: str,
        count: int,
        *more: object,
        without: Sequence[int] = (),
        evaluator: bool = False,
    ) -> None:
        hosts = free_addresses(count)
        self.hosts = hosts
        self.folder = small.folder / output
        self.before = self.checkpoints()
        cluster = {"chief": hosts[:1], "worker": hosts[1:]}
        tasks = [("chief", 0), *(("worker", index) for index in range(count - 1))]
        if evaluator:
            tasks.append(("evaluator", 0))
        self.processes: dict[int, warm.Process] = {}
        for rank, (kind, index) in enumerate(tasks):
            if rank in without:
                continue
            config = {"cluster": cluster, "task": {"type": kind, "index": index}}
            self.processes[rank] = warm.Process(
                ["-m", "trainer.task", "--config", small.config, f"--output_dir={self.folder}", *FAST, *more],
                {**clean_environment(), "TF_CONFIG": json.dumps(config)},
                small.folder,
            )

    def ends(self, limit: float = LIMIT) -> tuple[list[int], list[str]]:
        """Waits for all; returns exit codes and what each printed."""
        try:
            printed = [process.communicate(timeout=limit)[0] for process in self.processes.values()]
        finally:
            for process in self.processes.values():
                process.kill()
        return [process.returncode for process in self.processes.values()], printed

    def until_steps(self, count: int) -> None:
        """Waits for a checkpoint that this start has made, at least so many steps after the newest before."""
        goal = max(self.before, default=0) + count
        self.until(lambda: any(step >= goal for step in self.checkpoints() - self.before))

    def checkpoints(self) -> set[int]:
        """Returns the steps that there are complete checkpoints of."""
        done = (self.folder / "checkpoints").glob("*/manifest.json")
        return {int(path.parent.name[:10]) for path in done}

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that the chief does."""
        try:
            wait_until(condition, self.processes[0], LIMIT)
        except BaseException:
            self.ends(0.1)
            raise

    def status(self) -> dict[str, Any]:
        return json.loads((self.folder / "status.json").read_text())  # type: ignore[no-any-return]


def weights(folder: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(folder / "model" / "variables" / "variables"))
    names = [name for name in reader.get_variable_to_shape_map() if "_CHECKPOINTABLE" not in name]
    return {name: reader.get_tensor(name) for name in names}


def close(folder: Path, other: Path, tolerance: float) -> None:
    mine, theirs = weights(folder), weights(other)
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(value, theirs[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(tmp_path_factory.mktemp("workers"), epochs=10)


@pytest.fixture(scope="module")
def alone(small: Small) -> Path:
    """The run of one process."""
    done = small.forked("alone", *FAST, "--model.dropout=0")
    assert done.returncode == 0, done.stdout + done.stderr
    return small.folder / "alone"


@pytest.fixture(scope="module")
def two(small: Small) -> Path:
    """The unbroken run of two workers, with an evaluator beside them."""
    job = Job(small, "two", 2, "--model.dropout=0", evaluator=True)
    codes, printed = job.ends()
    assert codes == [0, 0, 0], "\n".join(printed)
    assert all("Traceback" not in text for text in printed)
    assert "parity gate passed" in printed[0]
    assert printed[1].count("\n") < 10, printed[1]  # the chief tells how it goes
    return job.folder


def test_two_workers_end_as_one_process(alone: Path, two: Path) -> None:
    close(two, alone, 1e-5)
    one, other = (json.loads((folder / "metrics.json").read_text()) for folder in (alone, two))
    for split in ("train", "validation", "test"):
        assert other[split]["loss"] == pytest.approx(one[split]["loss"], abs=1e-6)
        assert other[split]["examples"] == one[split]["examples"]
    assert other["steps"] == one["steps"]
    files = [sorted(path.name for path in folder.iterdir()) for folder in (alone, two)]
    assert [name for name in files[1] if name != "evaluator.csv"] == files[0], "the files of a run, once"
    assert {path.name for path in (two / "logs").iterdir()} == {"train", "validation", "evaluator"}


def test_the_evaluator_has_figures_of_the_checkpoints(two: Path) -> None:
    rows = list(csv.DictReader((two / "evaluator.csv").open()))
    epochs = list(csv.DictReader((two / "epochs.csv").open()))
    ends = {int(row["step"]): row for row in rows}
    assert len(ends) == len(rows) >= 2
    per_epoch = 34  # 2,137 rows in batches of 64
    compared = 0
    for row in epochs:
        if (found := ends.get((int(row["epoch"]) + 1) * per_epoch)) is not None:
            compared += 1
            assert float(found["loss"]) == pytest.approx(float(row["val_loss"]), abs=1e-6)
            assert float(found["auc"]) == pytest.approx(float(row["val_auc"]), abs=1e-6)
    assert compared or max(ends) < 10 * per_epoch


def test_killed_and_interrupted_workers_and_the_same_command_again(small: Small, two: Path) -> None:
    """kill -9 of a worker, of the chief, of all, of the chief that exports; SIGTERM and SIGSTOP of a worker:
    the last start ends as the unbroken run."""
    steps = [random.Random(time.time_ns()).randrange(1, 25) for _ in range(5)]
    print("steps", steps)

    job = Job(small, "broken", 2, "--model.dropout=0")
    job.until_steps(steps[0])
    job.processes[1].kill()
    codes, printed = job.ends()
    assert codes == [134, -signal.SIGKILL], printed
    assert f"worker 1 at {job.hosts[1]} is lost" in printed[0]
    assert "Traceback" not in printed[0]
    assert job.status()["state"] == "failed"

    job = Job(small, "broken", 2, "--model.dropout=0")
    job.until_steps(steps[1])
    job.processes[0].kill()
    codes, printed = job.ends()
    assert codes == [-signal.SIGKILL, 134], printed
    assert f"the chief at {job.hosts[0]} is lost" in printed[1]
    assert "resuming at epoch" in printed[0]

    job = Job(small, "broken", 2, "--model.dropout=0")
    job.until_steps(steps[2])
    for process in job.processes.values():
        process.kill()
    assert job.ends()[0] == [-signal.SIGKILL] * 2

    job = Job(small, "broken", 2, "--model.dropout=0")
    job.until_steps(steps[3])
    job.processes[1].terminate()  # the chief gets no signal
    codes, printed = job.ends()
    assert codes == [143, 143], printed
    assert all("stopped by SIGTERM at step" in text for text in printed)
    assert job.status()["state"] == "interrupted"

    job = Job(small, "broken", 2, "--model.dropout=0", "--strategy.lost_seconds=15")
    job.until_steps(steps[4])
    job.processes[1].send_signal(signal.SIGSTOP)  # a machine that hangs: its connections stay open
    job.processes[0].wait(LIMIT)
    job.processes[1].kill()
    codes, printed = job.ends()
    assert codes == [134, -signal.SIGKILL], printed
    assert f"worker 1 at {job.hosts[1]} is lost: no sign of life for" in printed[0]

    job = Job(small, "broken", 2, "--model.dropout=0")
    job.until((job.folder / "objective.json").exists)
    job.processes[0].kill()
    codes, printed = job.ends()
    assert codes == [-signal.SIGKILL, 134], printed
    assert not (job.folder / "metrics.json").exists()

    job = Job(small, "broken", 2, "--model.dropout=0")
    codes, printed = job.ends()
    assert codes == [0, 0], printed
    close(job.folder, two, 0)
    first, second = (json.loads((folder / "metrics.json").read_text()) for folder in (two, job.folder))
    assert [first[key] for key in ("train", "test", "steps")] == [
        second[key] for key in ("train", "test", "steps")
    ]
    assert (job.folder / "epochs.csv").read_text() == (two / "epochs.csv").read_text()


def test_a_finished_run_and_a_missing_worker(small: Small, two: Path) -> None:
    """Neither starts TensorFlow's exchange: a finished run is shown, and who does not come is named."""
    again = Job(small, "two", 2, "--model.dropout=0")
    missing = Job(small, "missing", 3, "--strategy.join_seconds=8", without=[2])
    codes, printed = again.ends()
    assert codes == [0, 0], printed
    assert "this run is finished" in printed[0]
    codes, printed = missing.ends()
    assert codes == [134, 134], printed
    assert all(f"worker 2 at {missing.hosts[2]} did not join in 8 s" in text for text in printed)
    assert not missing.folder.exists()
