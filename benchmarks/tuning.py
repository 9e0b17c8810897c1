"""What a study finds: Bayesian and random search, trials at once, the example. Adopters: may be kept.

    python benchmarks/tuning.py [--study runs/bench-study] [--json PATH]

1. Bayesian and random search on a function of five mixed parameters whose optimum is known, by 20 trials and
   five seeds each: the mean of the best values. Nothing is trained.
2. The same Bayesian search with more trials at once: each is chosen knowing fewer finished ones.
3. The example: configs/jobs/hp_tuning.yaml on configs/flights.yaml, 20 trials of one epoch, beside the
   shipped settings at the same budget, by validation AUC. It takes some ten minutes on two cores; a study in
   the folder goes on, and one that is finished is read.
"""

from __future__ import annotations

import argparse
import heapq
import json
import logging
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainer import process
from trainer.tuning.spec import Study

process.prepare()
with process.quiet_import():  # keras-tuner brings TensorFlow
    from trainer.tuning import advice, oracle, spec, study_file

ROOT = Path(__file__).resolve().parents[1]
TRIALS, SEEDS, PARALLEL = 20, range(1, 6), (1, 2, 5, 10, 20)
STUDY = """\
maxTrialCount: 20
parallelTrialCount: 1
studySpec:
  metrics: [{metricId: val_auc, goal: MAXIMIZE}]
  parameters:
  - {parameterId: rate, scaleType: UNIT_LOG_SCALE, doubleValueSpec: {minValue: 1.0e-4, maxValue: 1.0e-1}}
  - {parameterId: batch, discreteValueSpec: {values: [64, 128, 256, 512]}}
  - {parameterId: layers, integerValueSpec: {minValue: 1, maxValue: 5}}
  - parameterId: optimizer
    categoricalValueSpec: {values: [adam, sgd]}
    conditionalParameterSpecs:
    - parentCategoricalValues: {values: [sgd]}
      parameterSpec: {parameterId: momentum, doubleValueSpec: {minValue: 0.0, maxValue: 0.95}}
  measurementSelectionType: BEST_MEASUREMENT
"""
QUICK = ("--report.importance_rows=0", "--export.parity_rows=64", "--export.examples_signature=false")


def objective(values: dict[str, Any]) -> float:
    """A smooth function with its optimum, 0.07, inside: sgd with momentum 0.95 at a rate of 10^-2.2."""
    score = -((math.log10(values["rate"]) + 2.2) ** 2)
    score -= 0.3 * abs(math.log2(values["batch"]) - 7) + 0.15 * abs(values["layers"] - 3)
    return score + (-0.5 + 0.6 * values["momentum"] if values["optimizer"] == "sgd" else 0.0)


def search(study: Study, seed: int, parallel: int = 1) -> float:
    """Returns the best value of a study whose trials take the same time, `parallel` of them at once."""
    made = oracle.make(study, seed=seed)
    running: list[tuple[int, str]] = []  # (when it ends, its place)
    best, clock = -math.inf, 0
    while True:
        place = f"tuner{clock % parallel}"
        if len(running) == parallel or len(made.trials) == TRIALS:
            if not running:
                return best
            _, place = heapq.heappop(running)
            trial = made.ongoing_trials[place]
            value = objective(trial.hyperparameters.values)
            best = max(best, value)
            made.update_trial(trial.trial_id, {"val_auc": value}, step=1)
            trial.status = "COMPLETED"
            made.end_trial(trial)
        if len(made.trials) < TRIALS:
            made.create_trial(place)
            heapq.heappush(running, (clock + parallel, place))
            clock += 1


def synthetic() -> list[dict[str, Any]]:
    """Returns the figures of the synthetic objective."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.yaml"
        path.write_text(STUDY)
        study = study_file.load(str(path))[0]
    random_best = [search(spec.override(study, algorithm="random"), seed) for seed in SEEDS]
    random_mean = statistics.mean(random_best)
    print(
        f"random search: mean of the best {random_mean:.4f} of {[round(v, 3) for v in random_best]}",
        flush=True,
    )
    means = {}
    for parallel in PARALLEL:
        values = [search(study, seed, parallel) for seed in SEEDS]
        means[parallel] = statistics.mean(values)
        known = sum(advice.known(TRIALS, parallel)) / TRIALS
        print(
            f"Bayesian, {parallel} at once, each knowing {known:.1f} finished ones on average: mean of the "
            f"best {means[parallel]:.4f} of {[round(v, 3) for v in values]}",
            flush=True,
        )
    detail = "; ".join(f"{parallel} at once {mean:.3f}" for parallel, mean in means.items())
    return [
        {
            "name": "tuning: Bayesian, mean best of 5 seeds, 20 trials",
            "value": round(means[1], 4),
            "goal": f"> {random_mean:.4f}",
            "holds": means[1] > random_mean,
            "detail": f"random {random_mean:.3f}; Bayesian: {detail}; the optimum is 0.07",
        }
    ]


def flights(folder: Path) -> list[dict[str, Any]]:
    """Returns the figures of the example; trains what isn't there yet."""
    common = ["--config=configs/flights.yaml", "--epochs=1", *QUICK]
    study = ["--study=configs/jobs/hp_tuning.yaml", f"--max_trial_count={TRIALS}", "--parallel_trial_count=1"]
    commands = {
        "tune": [*study, *common, f"--output_dir={folder}"],
        "train": [*common, f"--output_dir={folder}-defaults"],
    }
    for verb, flags in commands.items():
        subprocess.run([sys.executable, "-m", "trainer", verb, *flags], cwd=ROOT, check=True)
    trials = json.loads((ROOT / folder / "study.json").read_text())["trials"]
    best = max((trial for trial in trials if trial["value"] is not None), key=lambda trial: trial["value"])
    defaults = json.loads((ROOT / f"{folder}-defaults" / "metrics.json").read_text())["validation"]["auc"]
    print(f"shipped settings: validation AUC {defaults:.4f}")
    flags_of_best = " ".join(best["arguments"])
    print(f"best of {len(trials)} trials (trial {best['id']}): {best['value']:.4f} by {flags_of_best}")
    return [
        {
            "name": "tuning: flights, validation AUC of 20 trials",
            "value": round(best["value"], 4),
            "goal": f">= {defaults:.4f}",
            "holds": best["value"] >= defaults,
            "detail": f"shipped settings {defaults:.4f}; trial {best['id']}: {flags_of_best}; 1 epoch",
        }
    ]


def main() -> int:
    """Prints the figures; returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--study", type=Path, default=Path("runs/bench-study"), help="folder of the example's study"
    )
    parser.add_argument("--only", choices=("synthetic", "flights"), help="leave the other part out")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    logging.getLogger("trainer").setLevel(logging.WARNING)
    figures = synthetic() if options.only != "flights" else []
    figures += flights(options.study) if options.only != "synthetic" else []
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(figure["holds"] for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
