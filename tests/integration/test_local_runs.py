"""`local` with real training: shipped job files, a preempted machine, a killed worker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_run import ROOT, Small, trainer

pytestmark = pytest.mark.slow

CUT = ("--training.epochs=1", "--training.max_steps=2", "--data.limit_rows=600", "--report.importance_rows=0")
IMAGE = "us-central1-docker.pkg.dev/my-project/trainer/trainer-cpu:0.1.0"


def write_job(small: Small, path: Path, *arguments: str, workers: int = 0, **scheduling: Any) -> Path:
    """Writes a job file that trains the small table."""
    pool = {
        "machineSpec": {"machineType": "n1-standard-8"},
        "containerSpec": {"imageUri": IMAGE, "args": [f"--config={small.config}", *arguments]},
    }
    pools = [{**pool, "replicaCount": 1}, *([{**pool, "replicaCount": workers}] if workers else [])]
    spec = {
        "workerPoolSpecs": pools,
        "scheduling": {"timeout": "3600s", **scheduling},
        "baseOutputDirectory": {"outputUriPrefix": "gs://my-bucket/runs/small"},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(spec))
    return path


def outcome(work: Path) -> dict[str, Any]:
    """How a local job ended."""
    found: dict[str, Any] = json.loads((work / "replicas" / "outcome.json").read_text())
    return found


# Of each kind of replacement one: accelerators; a package, and a pipeline's model. All: make stress.
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("tpu", "prebuilt_pipeline") else pytest.param(name, marks=pytest.mark.stress)
        for name in sorted(path.stem for path in (ROOT / "configs" / "jobs").glob("*.yaml"))
        if name != "distributed_tuning"  # tests/tuning has it
    ],
)
def test_shipped_job_runs_here(name: str, tmp_path: Path) -> None:
    flights = ROOT / "data" / "flights"
    if not flights.is_dir():
        pytest.skip("data/flights is not there: make data")
    study = "tuning" in name
    few = ("--set=maxTrialCount=2", "--set=parallelTrialCount=1") if study else ()
    done = trainer(
        "local", ROOT / "configs" / "jobs" / f"{name}.yaml", f"--output={tmp_path}/work",
        f"--map=gs://my-bucket/flights={flights}", *few, "--", *CUT, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    output = tmp_path / "work" / "output"
    assert (output / "model" / "saved_model.pb").is_file()
    if not study:
        assert outcome(tmp_path / "work")["state"] == "SUCCEEDED"
        assert json.loads((output / "metrics.json").read_text())["steps"] > 0
    expected = {
        "multi_gpu": r"Global batch 4,096 = 1 worker x 4 replicas x 1,024 rows",
        "multi_worker": r"Global batch 8,192 = 4 workers x 1 replica x 2,048 rows",
        "multi_worker_reduction_server": r"13 reduction servers are not run",
        "tpu": r"Global batch 8,192 = 1 worker x 4 replicas x 2,048 rows",
        "prebuilt_pipeline": r"the service would upload .*work/output/model now",
    }.get(name, "")
    assert re.search(expected, done.stdout), done.stdout


def test_preempted_spot_machine_goes_on_from_its_checkpoint(small: Small, tmp_path: Path) -> None:
    job = write_job(small, tmp_path / "spot.yaml", "--checkpoint.every_steps=5", strategy="SPOT")
    done = trainer("local", job, f"--output={tmp_path}/work", "--preempt=chief@epoch 1/3", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = outcome(tmp_path / "work")
    assert ended["codes"] == {"chief": [143, 0]}
    assert "retry 1 of 6" in done.stdout
    assert "resuming" in done.stdout
    epochs = (tmp_path / "work" / "output" / "epochs.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in epochs[1:]] == ["0", "1", "2"]


@pytest.mark.parametrize("losses", [("--kill=worker1@epoch 1/3", "--preempt=chief@epoch 2/3")], ids=["both"])
def test_two_workers_lose_a_machine_each(
    losses: tuple[str, ...], small: Small, finished: Path, tmp_path: Path
) -> None:
    """The worker is killed, then the chief preempted; each time all start again from the last checkpoint."""
    more = ("--checkpoint.every_steps=5", "--training.batch_size=64")
    job = write_job(small, tmp_path / "two.yaml", *more, workers=1, restartJobOnWorkerRestart=True)
    done = trainer("local", job, f"--output={tmp_path}/work", *losses, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = outcome(tmp_path / "work")
    assert ended["starts"] == {"chief": 3, "worker1": 3}
    assert ended["codes"]["worker1"][0] == 137
    assert ended["codes"]["chief"][1:] == [143, 0]
    output = tmp_path / "work" / "output"
    assert done.stdout.count("resuming") >= 2
    assert "Global batch 64 = 2 workers x 1 replica x 32 rows" in done.stdout
    epochs = (output / "epochs.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in epochs[1:]] == ["0", "1", "2"]
    assert (output / "model" / "saved_model.pb").is_file()
    parallel = json.loads((output / "metrics.json").read_text())
    lone = json.loads((finished / "metrics.json").read_text())
    assert parallel["steps"] == lone["steps"]
    for split in ("train", "validation", "test"):
        assert parallel[split]["examples"] == lone[split]["examples"]
        assert parallel[split]["auc"] == pytest.approx(lone[split]["auc"], abs=0.05)
