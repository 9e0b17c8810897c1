"""Trials without training: a function of the values, written into hypertune's file as a trial would."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.tuning import spec, study_file
from trainer.tuning import trial as trials
from trainer.tuning.spec import Study
from trainer.tuning.trial import Trial

STUDY = """\
displayName: synthetic
maxTrialCount: 8
parallelTrialCount: 1
maxFailedTrialCount: 3
studySpec:
  metrics:
  - {metricId: val_auc, goal: MAXIMIZE}
  parameters:
  - parameterId: learning_rate
    scaleType: UNIT_LOG_SCALE
    doubleValueSpec: {minValue: 1.0e-4, maxValue: 1.0e-1}
  - parameterId: batch_size
    discreteValueSpec: {values: [64, 128, 256]}
  - parameterId: cross_layers
    integerValueSpec: {minValue: 1, maxValue: 4}
  - parameterId: optimizer
    categoricalValueSpec: {values: [adam, sgd]}
    conditionalParameterSpecs:
    - parentCategoricalValues: {values: [sgd]}
      parameterSpec:
        parameterId: momentum
        scaleType: UNIT_LINEAR_SCALE
        doubleValueSpec: {minValue: 0.0, maxValue: 0.95}
  measurementSelectionType: BEST_MEASUREMENT
trialJobSpec:
  workerPoolSpecs:
  - {machineSpec: {machineType: n1-standard-4}, replicaCount: 1, containerSpec: {imageUri: trainer}}
"""


CONFIG = """\
name: small
task: binary
data: {source: rows.csv, split: {by: hash, column: id}}
label: {column: y}
features: [{name: age, kind: numeric}]
"""


def study(folder: Path, **changes: str) -> Study:
    """Returns the study above as a random search, with `key: value` lines at its top changed."""
    return spec.override(study_file.load(str(write(folder, **changes)))[0], algorithm="random")


def write(folder: Path, text: str = STUDY, **changes: str) -> Path:
    """Writes the study above with `key: value` lines at its top changed."""
    for key, value in changes.items():
        text = "\n".join(
            f"{key}: {value}" if line.startswith(f"{key}:") else line for line in text.splitlines()
        )
    path = folder / "study.yaml"
    path.write_text(text + "\n")
    return path


class Ended:
    """A trial that has done its work; its exit code shows after some looks."""

    pid = 0

    def __init__(self, code: int = 0, looks: int = 1) -> None:
        self._codes = itertools.chain([None] * looks, itertools.repeat(code))

    def poll(self) -> int | None:
        return next(self._codes)

    def terminate(self) -> None:
        self._codes = itertools.repeat(143)

    def kill(self) -> None:
        self._codes = itertools.repeat(-9)


class Launcher:
    """Starts trials that measure `objective(values)`: a list of values by step, or an exit code.

    Attributes:
        started: numbers of the trials, in the order of their starts.
    """

    def __init__(
        self, objective: Callable[[dict[str, Any]], list[float] | int], metric: str = "val_auc"
    ) -> None:
        self.objective, self.metric = objective, metric
        self.started: list[int] = []
        self.looks: Callable[[Trial], int] = lambda trial: 1

    def metrics(self, trial: Trial, folder: str) -> str:
        return trials.metric_file(folder)

    def log(self, trial: Trial, folder: str) -> str:
        return ""

    def verdict(self, trial: Trial) -> str:
        return ""

    def __call__(self, trial: Trial, folder: str) -> Ended:
        self.started.append(trial.id)
        outcome = self.objective(trial.values)
        code = outcome if isinstance(outcome, int) else 0
        values = [] if isinstance(outcome, int) else outcome
        place = Path(trials.metric_file(folder))
        place.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            {"timestamp": trial.started + step, "trial": str(trial.id), "global_step": str(step),
             "checkpoint_path": "", self.metric: str(value)}
            for step, value in enumerate(values, 1)
        ]  # fmt: skip
        place.write_text("".join(json.dumps(line) + "\n" for line in lines))
        run = Path(folder)
        state = (
            {"state": "failed", "error": f"exit code {code} was asked for"}
            if code
            else {"state": "succeeded"}
        )
        (run / "status.json").write_text(json.dumps(state))
        (run / "config.yaml").write_text("name: small\noutput_dir: x\n")
        return Ended(code, self.looks(trial))
