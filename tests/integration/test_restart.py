"""Restart: the same command goes on at the exact step and row, whatever ended the process before."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest
import tensorflow as tf
from small_run import Small, end, start, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.faults]

FAST_SAVES = ("--checkpoint.every_steps=7", "--checkpoint.every_seconds=0", "--training.steps_per_call=3")


def weights(folder: Path) -> dict[str, bytes]:
    """The weights of the exported model, bit for bit."""
    reader = tf.train.load_checkpoint(str(folder / "model" / "variables" / "variables"))
    names = [name for name in reader.get_variable_to_shape_map() if "_CHECKPOINTABLE" not in name]
    return {name: reader.get_tensor(name).tobytes() for name in names}


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """A run of enough steps to be caught in the middle of."""
    return Small(tmp_path_factory.mktemp("long"), epochs=12, monitor="val_auc")


@pytest.fixture(scope="module")
def unbroken(long: Small) -> Path:
    done = long.forked("unbroken", *FAST_SAVES, program="short")
    assert done.returncode == 0, done.stdout + done.stderr
    return long.folder / "unbroken"


def test_killed_at_random_moments_and_rerun_gives_the_same_bits(long: Small, unbroken: Path) -> None:
    output = long.folder / "killed"
    command = long.command("killed", *FAST_SAVES)
    generator = random.Random(5)
    for least in sorted(generator.sample(range(20, 380), 2)):
        process = start(*command, cwd=long.folder, program="short")

        def far_enough(least: int = least) -> bool:
            done = [path.name for path in (output / "checkpoints").glob("*/manifest.json")]
            steps = [int(path.parent.name[:10]) for path in (output / "checkpoints").glob("*/manifest.json")]
            return bool(done) and max(steps) >= least

        wait_until(far_enough, process)
        end(process, signal.SIGKILL)
        assert json.loads((output / "status.json").read_text())["state"] == "running"
    last = long.forked("killed", *FAST_SAVES, program="short")
    assert last.returncode == 0, last.stdout + last.stderr
    assert "resuming" in last.stdout
    assert weights(output) == weights(unbroken)
    first, second = (json.loads((folder / "metrics.json").read_text()) for folder in (unbroken, output))
    assert first["test"] == second["test"]
    assert first["steps"] == second["steps"]
    assert (output / "epochs.csv").read_text() == (unbroken / "epochs.csv").read_text()


def test_sigterm_saves_and_exits_with_the_documented_code(long: Small, unbroken: Path) -> None:
    output = long.folder / "terminated"
    command = long.command("terminated", *FAST_SAVES)
    process = start(*command, cwd=long.folder, program="short")
    wait_until(lambda: any((output / "checkpoints").glob("*/manifest.json")), process)
    printed = end(process, signal.SIGTERM)
    assert process.returncode == 143, printed
    assert "Traceback" not in printed
    assert json.loads((output / "status.json").read_text())["state"] == "interrupted"
    again = long.forked("terminated", *FAST_SAVES, program="short")
    assert again.returncode == 0, again.stdout + again.stderr
    assert weights(output) == weights(unbroken)


def test_corrupt_last_checkpoint_falls_back_to_the_one_before(long: Small, unbroken: Path) -> None:
    output = long.folder / "corrupt"
    command = long.command("corrupt", *FAST_SAVES)
    process = start(*command, cwd=long.folder, program="short")
    wait_until(lambda: len(list((output / "checkpoints").glob("*/manifest.json"))) >= 2, process)
    end(process, signal.SIGKILL)
    newest = max((output / "checkpoints").glob("*/manifest.json")).parent
    part = next(newest.glob("variables.data*"))
    part.write_bytes(part.read_bytes()[:-100])
    again = long.forked("corrupt", *FAST_SAVES, program="short")
    assert again.returncode == 0, again.stdout + again.stderr
    assert newest.name in again.stderr
    assert "can't be used" in again.stderr
    assert weights(output) == weights(unbroken)


def test_same_seed_gives_the_same_bits_and_another_does_not(small: Small, finished: Path) -> None:
    same = small.forked("same-seed", program="short")
    assert same.returncode == 0, same.stderr
    assert weights(small.folder / "same-seed") == weights(finished)
    other = small.forked("other-seed", "--seed=2", program="short")
    assert other.returncode == 0, other.stderr
    assert weights(small.folder / "other-seed") != weights(finished)


def test_two_replicas_give_the_figures_of_one_device(small: Small) -> None:
    """Without dropout, whose masks are another draw on each replica."""
    figures = []
    for name, replicas in (("one-replica", 1), ("two-replicas", 2)):
        done = small.forked(name, f"--strategy.cpu_replicas={replicas}", "--model.dropout=0", program="short")
        assert done.returncode == 0, done.stdout + done.stderr
        figures.append(json.loads((small.folder / name / "metrics.json").read_text()))
    one, two = figures
    for split in ("train", "validation", "test"):
        assert two[split]["loss"] == pytest.approx(one[split]["loss"], abs=1e-5)
        assert two[split]["auc"] == pytest.approx(one[split]["auc"], abs=1e-4)
        assert two[split]["examples"] == one[split]["examples"]
