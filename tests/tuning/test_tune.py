"""Real trials of a few hundred rows: tune with a kill in the middle, local on the file, a worker pool."""

from __future__ import annotations

import csv
import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from small_run import Small, end, start, trainer, wait_until

from trainer.tuning import stopping
from trainer.tuning.measurements import Measurement
from trainer.tuning.trial import OTHERS, inherit

pytestmark = pytest.mark.slow

QUICK = ("--report.importance_rows=0", "--data.limit_rows=600", "--export.examples_signature=false")
STUDY = """\
displayName: small-study
maxTrialCount: 2
parallelTrialCount: 1
maxFailedTrialCount: 1
studySpec:
  metrics: [{metricId: val_auc, goal: MAXIMIZE}]
  parameters:
  - parameterId: learning_rate
    scaleType: UNIT_LOG_SCALE
    doubleValueSpec: {minValue: 1.0e-3, maxValue: 1.0e-1}
  - {parameterId: batch_size, discreteValueSpec: {values: [32, 64]}}
  - parameterId: optimizer
    categoricalValueSpec: {values: [adam, adamw]}
    conditionalParameterSpecs:
    - parentCategoricalValues: {values: [adamw]}
      parameterSpec:
        parameterId: weight_decay
        scaleType: UNIT_LOG_SCALE
        doubleValueSpec: {minValue: 1.0e-3, maxValue: 1.0}
  - {parameterId: batch_norm, categoricalValueSpec: {values: ["true", "false"]}}
  medianAutomatedStoppingSpec: {}
  measurementSelectionType: BEST_MEASUREMENT
trialJobSpec:
  workerPoolSpecs:
  - machineSpec: {machineType: n1-standard-4, acceleratorType: NVIDIA_TESLA_T4, acceleratorCount: 1}
    replicaCount: 1
    containerSpec:
      imageUri: us-docker.pkg.dev/p/r/trainer:1
      args: [--config=CONFIG, --training.objective=val_auc, MORE]
  baseOutputDirectory: {outputUriPrefix: gs://bucket/runs/small-study}
"""
POOL = """\
workerPoolSpecs:
- &pool
  machineSpec: {machineType: n1-standard-4}
  replicaCount: 1
  containerSpec:
    imageUri: us-docker.pkg.dev/p/r/trainer:1
    command: [python, -m, trainer, tune]
    args: [--study=STUDY, --config=CONFIG, MORE]
- machineSpec: {machineType: n1-standard-4}
  replicaCount: 1
  containerSpec:
    imageUri: us-docker.pkg.dev/p/r/trainer:1
    command: [python, -m, trainer, tune]
    args: [--study=STUDY, --config=CONFIG, MORE]
baseOutputDirectory: {outputUriPrefix: gs://bucket/runs/small-pool}
""".replace("- &pool\n  machineSpec", "- machineSpec")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    made = Small(tmp_path_factory.mktemp("small"), epochs=4, monitor="val_auc")
    text = STUDY.replace("CONFIG", str(made.config)).replace("MORE", ", ".join(QUICK))
    (made.folder / "study.yaml").write_text(text)
    return made


def trials_of(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "study.json").read_text())["trials"])


def test_killed_in_a_trial_it_goes_on_from_that_trials_checkpoint(small: Small) -> None:
    output = small.folder / "study"
    saves = ("--checkpoint.every_steps=2", "--training.steps_per_call=1", "--checkpoint.every_seconds=0")
    flags = (f"--output_dir={output}", *QUICK, *saves)
    command = ("tune", f"--study={small.folder / 'study.yaml'}", f"--config={small.config}", *flags)
    process = start(*command, cwd=small.folder)
    wait_until(lambda: any((output / "1" / "checkpoints").glob("*/manifest.json")), process)
    pid = trials_of(output)[0]["pid"]
    end(process, signal.SIGKILL)
    limit = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < limit:  # it must not train on unseen
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()
    before = trials_of(output)
    assert [trial["state"] for trial in before] == ["running"]

    done = trainer(*command, "--best=retrain", cwd=small.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = trials_of(output)
    assert [(trial["id"], trial["state"]) for trial in trials] == [(1, "completed"), (2, "completed")]
    assert trials[0]["values"] == before[0]["values"]
    assert [trial["starts"] for trial in trials] == [2, 1]
    assert "resuming" in (output / "1" / "trial.log").read_text()
    for trial in trials:
        folder = output / str(trial["id"])
        assert (folder / "model" / "saved_model.pb").exists()
        reported = json.loads((folder / "objective.json").read_text())["reported"]
        assert [value for _, value in reported] == [m["value"] for m in trial["measurements"]]
        assert trial["value"] == max(value for _, value in reported)
        assert len(reported) == 5  # four epochs and the exported model: none twice after the restart
    rows = list(csv.DictReader((output / "trials.csv").read_text().splitlines()))
    assert [row["batch_norm"] in ("true", "false") for row in rows] == [True, True]
    assert (output / "study.html").exists()
    best = max(trials, key=lambda trial: trial["value"])
    told = [json.loads((output / name / "objective.json").read_text()) for name in ("best", str(best["id"]))]
    assert told[0] == told[1]  # best.yaml reproduces it, epoch by epoch
    assert f"val_auc {best['value']:.6g}, in the study {best['value']:.6g}" in done.stdout + done.stderr
    assert (output / "best" / "model" / "saved_model.pb").exists()
    assert not (output / "model").exists()


def test_hyperbands_next_bracket_goes_on_from_a_checkpoint_and_the_median_stops_it(small: Small) -> None:
    """Two trials as a study starts them; what decides on them is in test_study.py."""
    short, long = (str(small.folder / "bracket" / number) for number in "12")
    first = small.train("bracket/1", *QUICK, "--epochs=1", "--checkpoint.every_steps=1")
    assert first.returncode == 0, first.stderr
    inherit(short, long)
    curves = [[Measurement(1, 0.0), Measurement(20, 2.0)]] * 3  # no AUC is as good from step 20 on
    place = small.folder / "bracket" / "2" / OTHERS
    place.write_text(json.dumps(stopping.content("val_auc", "max", False, 0.0, curves)))
    variables = {stopping.CURVES: str(place)}
    done = small.train("bracket/2", *QUICK, "--epochs=4", "--training.objective=val_auc", **variables)
    assert done.returncode == 0, done.stderr
    assert "resuming at epoch 1, step 10" in done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert "stopping early: val_auc is worse than the median (1) of 3 completed trials" in said
    assert json.loads((place.parent / stopping.STOPPED).read_text())["epoch"] == 2
    before, after = (
        list(csv.DictReader((Path(f) / "epochs.csv").read_text().splitlines())) for f in (short, long)
    )
    assert [row["epoch"] for row in after] == ["0", "1"]
    assert after[0] == before[0]
    reported = json.loads((Path(long) / "objective.json").read_text())["reported"]
    assert [step for step, _ in reported] == [10, 20, 20]  # two epochs and the exported model
    assert (Path(long) / "model" / "saved_model.pb").exists()


def test_local_runs_the_study_as_the_service_does(small: Small) -> None:
    """Trials of two machines each; the first trial loses one, and starts again as the file asks for."""
    text = (small.folder / "study.yaml").read_text()
    (pool,) = re.findall(r"^  - machineSpec.*?(?=^  baseOutput)", text, re.M | re.S)
    text = text.replace(pool, f"{pool}{pool}  scheduling: {{restartJobOnWorkerRestart: true}}\n")
    (small.folder / "two.yaml").write_text(text)
    more = ("--kill=worker1@epoch 1/2", "--", "--epochs=2", "--checkpoint.every_steps=1")
    done = trainer("local", "two.yaml", "--output=work", *more, cwd=small.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    output, replicas = small.folder / "work" / "output", small.folder / "work" / "replicas"
    trials = trials_of(output)
    assert [(trial["state"], trial["starts"]) for trial in trials] == [("completed", 1)] * 2
    outcomes = [json.loads((replicas / number / "outcome.json").read_text()) for number in "12"]
    assert [outcome["starts"] for outcome in outcomes] == [
        {"chief": 2, "worker1": 2},
        {"chief": 1, "worker1": 1},
    ]
    assert "worker1 was killed: restartJobOnWorkerRestart starts all again" in done.stdout
    assert "trial 1 chief    | resuming" in done.stdout
    for trial in trials:
        metrics = replicas / str(trial["id"]) / "metrics" / "chief" / "output.metrics"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        assert {line["trial"] for line in lines} == {str(trial["id"])}
        assert [float(line["val_auc"]) for line in lines] == [m["value"] for m in trial["measurements"]]
        assert len(lines) == 3  # two epochs and the exported model
        assert (output / str(trial["id"]) / "model" / "saved_model.pb").exists()
    for name in ("study.html", "trials.csv", "best.yaml", "model/saved_model.pb"):
        assert (output / name).exists()


def test_keras_tuner_over_a_worker_pool(small: Small) -> None:
    text = POOL.replace("CONFIG", str(small.config)).replace("STUDY", str(small.folder / "study.yaml"))
    job = small.folder / "pool.yaml"
    job.write_text(text.replace("MORE", ", ".join([*QUICK, "--epochs=1"])))
    done = trainer("local", job, "--output=pool", "--kill=worker1@trial 1:", cwd=small.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    output = small.folder / "pool" / "output"
    trials = trials_of(output)
    assert [(trial["id"], trial["state"]) for trial in trials] == [(1, "completed"), (2, "completed")]
    assert trials[0]["starts"] == 2  # its machine was lost, and the next one took it up
    assert "trial 1 goes on: " in done.stdout
    assert "the oracle listens at 0.0.0.0:" in done.stdout
    assert "no further trial: the study is at its end" in done.stdout
    for name in ("study.html", "trials.csv", "best.yaml", "model/saved_model.pb"):
        assert (output / name).exists()
