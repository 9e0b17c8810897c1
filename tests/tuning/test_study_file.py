# ruff: noqa: E501 - a mistake and what is said of it stand in one line
"""A study file as it is read, and what is said of a wrong one before anything runs."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic
from synthetic import CONFIG, STUDY

from trainer.errors import UserError
from trainer.tuning import advice, command, fitting, spec, study_file
from trainer.tuning.trial import Trial

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(CONFIG)
    return tmp_path / "small.yaml"


def load(folder: Path, *changes: tuple[str, str], text: str = STUDY) -> spec.Study:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return study_file.load(str(synthetic.write(folder, text)))[0]


def test_what_is_read(tmp_path: Path) -> None:
    study = load(tmp_path)
    assert (study.metric, study.goal, study.selection, study.selection_given) == (
        "val_auc",
        "max",
        "best",
        True,
    )
    assert (study.limits.max_trials, study.limits.parallel, study.limits.max_failed) == (8, 1, 3)
    rate, batch, layers, optimizer, momentum = study.dimensions
    assert (rate.kind, rate.low, rate.high, rate.scale) == ("double", 1e-4, 1e-1, "log")
    assert (batch.kind, batch.values) == ("discrete", (64.0, 128.0, 256.0))
    assert (layers.kind, layers.count) == ("integer", 4)
    assert (optimizer.kind, optimizer.values) == ("categorical", ("adam", "sgd"))
    assert (momentum.parent, momentum.parent_values) == ("optimizer", ("sgd",))


def test_arguments_as_the_service_writes_them(tmp_path: Path) -> None:
    study = load(tmp_path)
    values = {"optimizer": "adam", "batch_size": 64.0, "cross_layers": 3, "learning_rate": 0.001}
    assert study.arguments(values) == [
        "--learning_rate=0.001", "--batch_size=64.0", "--cross_layers=3", "--optimizer=adam",
    ]  # fmt: skip
    assert study.arguments({**values, "optimizer": "sgd", "momentum": 0.5})[-1] == "--momentum=0.5"


def test_unset_measurement_selection_is_the_last_and_is_told(tmp_path: Path) -> None:
    study = load(tmp_path, ("  measurementSelectionType: BEST_MEASUREMENT\n", ""))
    assert (study.selection, study.selection_given) == ("last", False)
    assert any("measurementSelectionType is not set" in line for line in advice.lines(study, 1, 4))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("goal: MAXIMIZE", "goal: MINIMIZE", r"metricId val_auc: expected goal: MAXIMIZE"),
        ("metricId: val_auc", "metricId: val_AUC", r"reports no 'val_AUC'; did you mean 'val_auc'\?; it reports loss, "),
        ("metricId: val_auc", "metricId: val auc", r"metricId: 'val auc' can't be reported"),
        ("parameterId: learning_rate", "parameterId: learn_rate", r"study.yaml:9: parameterId: unknown flag --learn_rate"),
        ("parameterId: cross_layers", "parameterId: batch_size", r"batch_size: it is there twice"),
        ("parameterId: cross_layers", "parameterId: training.batch_size",
         r"training.batch_size sets training.batch_size like batch_size"),
        ("values: [adam, sgd]", "values: [adam, lamb]", r"parentCategoricalValues: optimizer never is sgd"),
        ("{minValue: 1, maxValue: 4}", "{minValue: 1, maxValue: 40}", r"a trial with --cross_layers=40 would fail: "),
        ("values: [64, 128, 256]", "values: [64, 128.5]", r"a trial with --batch_size=128.5 would fail: .*whole"),
        ("values: [64, 128, 256]", "values: [128, 64]", r"batch_size: discrete values must increase"),
        ("minValue: 1.0e-4", "minValue: 0", r"learning_rate: UNIT_LOG_SCALE needs values above 0, and the lowest is 0"),
        ("  metrics:", "  decayCurveStoppingSpec: {}\n  metrics:",
         r"decayCurveStoppingSpec: the service's model of learning curves is not to be had .*--stopping=median"),
        ("  metrics:", "  convexAutomatedStoppingSpec: {}\n  metrics:", r"convexAutomatedStoppingSpec: the service's"),
        ("  metrics:", "  algorithm: GRID_SEARCH\n  metrics:", r"learning_rate: GRID_SEARCH can't take a double"),
        ("maxTrialCount: 8\n", "", r"maxTrialCount: got nothing, expected 1 or more"),
        ("parallelTrialCount: 1", "parallelTrialCount: 0", r"yaml:3: parallelTrialCount: got 0, expected 1 or more"),
        ("parallelTrialCount: 1", "parallelTrialCount: 9", r"parallelTrialCount: got 9, expected at most maxTrialCount, 8"),
        ("FailedTrialCount: 3", "FailedTrialCount: -1", r"maxFailedTrialCount: got -1, expected 0 or more"),
        ("scaleType: UNIT_LOG", "scaletype: UNIT_LOG", r"yaml:\d+: .*scaletype: no such field in ParameterSpec; write scaleType"),
        ("values: [sgd]", "values: [lion]", r"parentCategoricalValues: optimizer never is lion"),
        ("  - parameterId: learning_rate\n    scaleType: UNIT_LOG_SCALE\n",
         "  - parameterId: learning_rate\n    conditionalParameterSpecs:\n    - parentDiscreteValues: {values: [1]}\n"
         "      parameterSpec: {parameterId: dropout, discreteValueSpec: {values: [0.1, 0.2]}}\n",
         r"no parameter can depend on values of learning_rate, a double"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, config: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fitting.check_against(load(tmp_path, (old, new)), [str(config)], [])


def test_a_job_without_a_study() -> None:
    with pytest.raises(UserError, match=r"custom_job.yaml: is a CustomJob, expected a study"):
        study_file.load(str(ROOT / "configs" / "jobs" / "custom_job.yaml"))


def test_stopping_by_the_command_line(tmp_path: Path) -> None:
    text = STUDY.replace("  metrics:", "  decayCurveStoppingSpec: {}\n  metrics:")
    path = str(synthetic.write(tmp_path, text))
    assert study_file.load(path, stopping="none")[0].stopping == ""
    assert study_file.load(path, stopping="median")[0].stopping == "median"
    by_time = STUDY.replace(
        "  metrics:", "  medianAutomatedStoppingSpec: {useElapsedDuration: true}\n  metrics:"
    )
    study = study_file.load(str(synthetic.write(tmp_path, by_time)))[0]
    assert (study.stopping, study.stopping_by_time) == ("median", True)


def test_more_failures_than_trials_may_be_allowed(tmp_path: Path) -> None:
    """As in `local hp_tuning.yaml --set=maxTrialCount=2`."""
    study = study_file.load(str(synthetic.write(tmp_path, maxFailedTrialCount="9")))[0]
    assert (study.limits.max_trials, study.limits.max_failed) == (8, 9)


def test_the_shipped_study_fits_the_shipped_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    plan = command.prepare(
        ["--study=configs/jobs/hp_tuning.yaml", "--config=configs/flights.yaml", "--max_trial_count=7"]
    )
    assert plan is not None
    assert plan.study.limits.max_trials == 7
    assert plan.study.limits.parallel == 5
    assert plan.folder == "runs/flights-study"
    assert "--training.objective=val_auc" in plan.base


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--algorithm=bayes"], r"Invalid --algorithm: got 'bayes', expected bayesian, .*did you mean 'bayesian'"),
        (["--algorithm=grid"], r"learning_rate: a grid search can't take a double"),
        (["--parallel_trial_count=9"], r"Invalid --parallel_trial_count: got 9, expected at most 8, the trials in all"),
        (["--max_trial_count=2", "--max_failed_trial_count=3"], r"--max_failed_trial_count: got 3, expected at most 2"),
        (["--algorithm=hyperband", "--epochs=2"], r"hyperband: training.epochs is 2, expected 3 or more"),
        (["--training.learning_rate=0.1"], r"--training.learning_rate=0.1: the study tries values of learning_rate"),
        (["--max_trial_count=0"], r"Invalid --max_trial_count: got '0', expected a whole number from 1"),
        (["--best=all"], r"Invalid --best: got 'all', expected copy, retrain, none"),
        (["--training.objective=val_loss"], r"--training.objective=val_loss: the study's metricId is val_auc"),
        (["--strategy.name=multi_worker_mirrored"], r"multi_worker_mirrored: a trial of tune is one process"),
        (["--output_dir=gs://bucket/x"], r"output_dir: got gs://bucket/x, expected a local folder"),
        (["--no_such=1"], r"unknown flag --no_such"),
    ],
)  # fmt: skip
def test_mistakes_on_the_command_line(tmp_path: Path, config: Path, more: list[str], said: str) -> None:
    path = synthetic.write(tmp_path)
    with pytest.raises(UserError, match=said):
        command.prepare([f"--study={path}", f"--config={config}", *more])


def test_fewer_trials_than_the_file_runs_at_once(tmp_path: Path, config: Path) -> None:
    path = synthetic.write(tmp_path, parallelTrialCount="5")
    made = command.prepare([f"--study={path}", f"--config={config}", "--max_trial_count=2"])
    assert made is not None
    assert (made.study.limits.max_trials, made.study.limits.parallel) == (2, 2)


HOLDING = {  # what the output folder holds, by name and content; flags; what is said
    "a run": (
        "config.yaml",
        "name: small",
        (),
        r"out: holds a run and no study; choose another --output_dir",
    ),
    "another study": ("study.json", None, ("--seed=2",), r"out: holds another study \(seed: 1 -> 2\)"),
    "more trials": (
        "study.json",
        None,
        ("--max_trial_count=2",),
        r"out: the study has 3 trials already, got 2 as",
    ),
}


@pytest.mark.parametrize("case", ["no folder", *HOLDING])
def test_mistakes_are_told_without_tensorflow(tmp_path: Path, config: Path, case: str) -> None:
    """In a second, that is, and with the exit code of a mistake."""
    output = tmp_path / "out"
    name, text, more, said = HOLDING.get(case, ("", None, (), r"study.yaml:\d+: parameterId: unknown flag"))
    study = STUDY if name else STUDY.replace("learning_rate", "learn_rate")
    argv = [
        "tune",
        f"--study={synthetic.write(tmp_path, study)}",
        f"--config={config}",
        f"--output_dir={output}",
    ]
    if name == "study.json":
        plan = command.prepare(argv[1:])
        assert plan is not None
        record = plan.record()
        record.trials = [Trial(number, str(number), {}) for number in (1, 2, 3)]
        record.save({}, 1.0)
    elif text:
        output.mkdir()
        (output / name).write_text(text)
    code = (
        "import sys; from trainer.__main__ import main\n"
        f"sys.argv = {['trainer', *argv, *more]!r}\n"
        "code = main()\n"
        "print(code, [m for m in ('tensorflow', 'keras_tuner', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().endswith("2 []"), done.stdout + done.stderr
    assert re.search(said, done.stderr), done.stderr
    assert done.stderr.count("error:") == 1


@pytest.mark.parametrize(
    ("trials", "parallel", "mean", "blind"),
    [(20, 1, 9.5, 6), (20, 5, 6.0, 10), (20, 20, 0.0, 20), (1, 1, 0.0, 1)],
)
def test_what_parallelism_costs(tmp_path: Path, trials: int, parallel: int, mean: float, blind: int) -> None:
    known = advice.known(trials, parallel)
    assert sum(known) / trials == mean
    study = spec.override(load(tmp_path), max_trials=trials, parallel=parallel)
    lines = "\n".join(advice.lines(study, 2, 6))
    assert f"the study costs {trials} trials of 2 epochs" in lines
    assert f"knowing {mean:.1f} finished ones on average" in lines
    assert f"{blind} of {trials} are drawn at random" in lines


def test_clean_values() -> None:
    dimension = spec.Dimension("x", "double", low=1e-4, high=1e-2)
    assert dimension.clean(0.00123456789) == 0.00123457
    assert dimension.clean(0.0100000004) == 1e-2  # stays inside
    assert math.isinf(dimension.count)
