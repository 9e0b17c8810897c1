"""study.html of a study without training, in a browser; importance; what else a study leaves behind."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic
import yaml
from synthetic import Launcher

from trainer.errors import TrainingError
from trainer.interruption import Interrupted
from trainer.tuning import charts, command, importance, results, session
from trainer.tuning.record import Record

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from test_report_page import browser  # noqa: F401

CONFIG = {
    "name": "small",
    "task": "binary",
    "data": {"source": "rows.csv", "split": {"by": "hash", "column": "id"}},
    "label": {"column": "y"},
    "features": [{"name": "age", "kind": "numeric"}],
}


def score(values: dict[str, Any]) -> list[float] | int:
    if values["cross_layers"] == 4:
        return 1
    return [0.9 - 0.1 * (math.log10(values["learning_rate"]) + 2) ** 2 - 0.01 * k for k in (3, 2, 0, 1)]


class Exporting(Launcher):
    """Leaves a model and a config as a trial does."""

    def __call__(self, trial: Any, folder: str) -> Any:
        made = super().__call__(trial, folder)
        place = Path(folder)
        config = {**CONFIG, "training": {"learning_rate": trial.values["learning_rate"]}, "output_dir": "x"}
        (place / "config.yaml").write_text(yaml.safe_dump(config))
        for name in ("model", "model_examples"):
            (place / name).mkdir()
            (place / name / "saved_model.pb").write_text(f"model of trial {trial.id}")
        return made


def a_plan(folder: Path, *more: str, **changes: str) -> command.Plan:
    (folder / "small.yaml").write_text(yaml.safe_dump(CONFIG))
    text = synthetic.STUDY.replace("displayName: synthetic", "displayName: <b>synthetic & co</b>")
    path = synthetic.write(folder, text, maxFailedTrialCount="8", **changes)
    made = command.prepare(
        [f"--study={path}", f"--config={folder / 'small.yaml'}", f"--output_dir={folder / 'out'}", *more]
    )
    assert made is not None
    return made


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    plan = a_plan(folder, "--algorithm=random", maxTrialCount="14", parallelTrialCount="2")
    session.run(plan, Exporting(score))
    return folder / "out"


def test_what_a_study_leaves_behind(study: Path) -> None:
    told = json.loads((study / "study.json").read_text())
    values = {trial["id"]: trial["value"] for trial in told["trials"] if trial["value"] is not None}
    best = max(values, key=lambda number: values[number])
    assert (study / "model" / "saved_model.pb").read_text() == f"model of trial {best}"
    assert (study / "model_examples" / "saved_model.pb").read_text() == f"model of trial {best}"
    config = yaml.safe_load((study / "best.yaml").read_text())
    assert config["name"] == f"small-trial-{best}"
    assert config["output_dir"] == ""
    chosen = next(trial for trial in told["trials"] if trial["id"] == best)
    assert config["training"]["learning_rate"] == chosen["values"]["learning_rate"]
    assert told["seconds"] > 0
    assert len((study / "trials.csv").read_text().splitlines()) == 15
    assert not list(study.glob("*.tmp-*"))


def test_the_learning_rate_is_found_to_matter_most(study: Path, tmp_path: Path) -> None:
    plan = a_plan(tmp_path, "--algorithm=random", maxTrialCount="14", parallelTrialCount="2")
    config = {**plan.config.model_dump(mode="json"), "output_dir": ""}
    record = Record(str(study), plan.study, config, 1)
    shares = importance.importance(plan.study, record.counted)
    assert next(iter(shares)) == "learning_rate"
    assert shares["learning_rate"] > 0.7
    assert sum(shares.values()) == pytest.approx(1)
    assert importance.importance(plan.study, record.counted[:5]) == {}


def test_an_earlier_model_is_moved_aside_not_lost(tmp_path: Path) -> None:
    session.run(a_plan(tmp_path, "--algorithm=random", "--max_trial_count=2"), Exporting(lambda v: [0.5]))
    before = (tmp_path / "out" / "model" / "saved_model.pb").read_text()
    session.run(a_plan(tmp_path, "--algorithm=random", "--max_trial_count=3"), Exporting(lambda v: [0.9]))
    assert (tmp_path / "out" / "model" / "saved_model.pb").read_text() == "model of trial 3"
    (aside,) = (tmp_path / "out").glob("model.old-*")
    assert (aside / "saved_model.pb").read_text() == before


def test_fresh_moves_the_whole_study_aside(tmp_path: Path) -> None:
    session.run(a_plan(tmp_path, "--algorithm=random", "--max_trial_count=2"), Exporting(lambda v: [0.5]))
    launch = Exporting(lambda v: [0.5])
    session.run(a_plan(tmp_path, "--algorithm=random", "--fresh", "--max_trial_count=2"), launch)
    assert launch.started == [1, 2]
    assert len(list(tmp_path.glob("out.old-*"))) == 1


def test_a_study_without_values_has_a_page_and_no_model(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no trial finished with a finite val_auc"):
        session.run(a_plan(tmp_path, "--algorithm=random", "--max_trial_count=3"), Exporting(lambda v: 1))
    assert "exit code 1 was asked for" in (tmp_path / "out" / results.PAGE).read_text()
    assert not (tmp_path / "out" / "model").exists()
    assert not (tmp_path / "out" / "best.yaml").exists()


@pytest.mark.parametrize("goal", ["max", "min"])
def test_a_trial_that_went_wrong_does_not_press_the_others_into_a_line(tmp_path: Path, goal: str) -> None:
    study = replace(synthetic.study(tmp_path), goal=goal)
    sign = 1 if goal == "max" else -1
    values = [sign * value for value in (0.7, 0.1, 0.69, 0.71, 0.72)]
    with charts.drawing("") as (_, axes):
        axes.plot(values)
        charts._focus(axes, study, values)
        low, high = sorted(sign * limit for limit in axes.get_ylim())
        assert 0.5 < low < 0.69
        assert high > 0.72
        assert axes.texts[0].get_text() == "1 value off the scale"
    with charts.drawing("") as (_, axes):
        charts._focus(axes, study, [0.7, 0.7, 0.7, 0.7])
        assert not axes.texts


class Training:
    """Stands for the process that trains the best config: it is asked once whether it has ended."""

    commands: list[list[str]]
    environs: list[dict[str, str]]

    def __init__(self, code: int = 0) -> None:
        self.commands, self.environs, self.code, self.asked = [], [], code, False

    def __call__(self, command: list[str], env: dict[str, str], **more: Any) -> Training:
        self.commands.append(command)
        self.environs.append(env)
        folder = Path(command[-1].partition("=")[2])
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text((folder.parent / "best.yaml").read_text())
        told = {"metric": "val_auc", "reported": [[10, 0.4], [20, 0.25]]}
        (folder / "objective.json").write_text(json.dumps(told))
        return self

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.asked = True

    def wait(self) -> int:
        return 143


@pytest.mark.parametrize("code", [0, 1])
def test_retraining_runs_the_best_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    training = Training(code)
    monkeypatch.setattr(results.subprocess, "Popen", training)
    caplog.set_level("INFO", "trainer")
    plan = a_plan(tmp_path, "--algorithm=random", "--best=retrain", "--max_trial_count=2")
    for name in ("CLUSTER_SPEC", "TF_CONFIG", "AIP_MODEL_DIR", "KERASTUNER_TUNER_ID"):
        monkeypatch.setenv(name, "x")
    launch = Exporting(lambda v: [0.5])
    if code:
        with pytest.raises(TrainingError, match="training the best config failed: exit code 1"):
            session.run(plan, launch)
    else:
        session.run(plan, launch)
        assert "val_auc 0.4, in the study 0.5" in caplog.text
    out = tmp_path / "out"
    assert [c[1:] for c in training.commands] == [
        ["-m", "trainer.task", f"--config={out / 'best.yaml'}", f"--output_dir={out / 'best'}"]
    ]
    assert not (out / "model").exists()
    # It is no machine of the study's job, and ends with it.
    assert {"CLUSTER_SPEC", "TF_CONFIG", "AIP_MODEL_DIR", "KERASTUNER_TUNER_ID"}.isdisjoint(
        training.environs[0]
    )
    assert training.environs[0]["TRAINER_PARENT"] == str(os.getpid())


def test_retraining_for_a_new_best_moves_the_earlier_one_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results.subprocess, "Popen", Training())
    plan = ["--algorithm=random", "--best=retrain"]
    session.run(a_plan(tmp_path, *plan, "--max_trial_count=2"), Exporting(lambda v: [0.5]))
    session.run(a_plan(tmp_path, *plan, "--max_trial_count=2"), Exporting(lambda v: [0.5]))
    assert not list((tmp_path / "out").glob("best.old-*"))  # the same trial: its training goes on
    session.run(a_plan(tmp_path, *plan, "--max_trial_count=3"), Exporting(lambda v: [0.9]))
    (aside,) = (tmp_path / "out").glob("best.old-*")
    assert yaml.safe_load((aside / "config.yaml").read_text())["name"] == "small-trial-1"
    name = yaml.safe_load((tmp_path / "out" / "best" / "config.yaml").read_text())["name"]
    assert name == "small-trial-3"


def test_sigterm_while_the_best_is_trained_reaches_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training()
    training.poll = lambda: os.kill(os.getpid(), signal.SIGTERM)  # type: ignore[method-assign]
    monkeypatch.setattr(results.subprocess, "Popen", training)
    plan = a_plan(tmp_path, "--algorithm=random", "--best=retrain", "--max_trial_count=2")
    with pytest.raises(Interrupted, match="while the best config was trained; run the same command again"):
        session.run(plan, Exporting(lambda v: [0.5]))
    assert training.asked


@pytest.mark.slow
def test_the_page_opens_clean_and_shows_the_trials(browser: Any, study: Path) -> None:  # noqa: F811
    browser.get((study / "study.html").as_uri())
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    told = json.loads((study / "study.json").read_text())["trials"]
    assert browser.execute_script("return document.querySelector('h1').innerText") == "<b>synthetic & co</b>"
    rows = browser.execute_script(
        "return [...document.querySelectorAll('table')[0].rows].map(r => [...r.cells].map(c => c.innerText))"
    )
    assert len(rows) == 1 + len(told)
    for row, trial in zip(rows[1:], told, strict=True):
        shown = dict(zip(rows[0], row, strict=True))
        assert shown["trial"].split(" ")[0] == str(trial["id"])
        assert shown["val_auc"] == ("–" if trial["value"] is None else f"{trial['value']:.6g}")
        assert shown["state"] == trial["state"]
    headings = browser.execute_script("return [...document.querySelectorAll('h2')].map(h => h.innerText)")
    assert headings[:3] == ["Values and metric", "Course of the study", "Importance of the parameters"]
    embedded = browser.execute_script(
        "return JSON.parse(document.getElementById('study').innerText).trials.length"
    )
    assert embedded == len(told)
    for width in (1280, 400):
        browser.set_window_size(width, 900)
        sizes = browser.execute_script(
            "return [...document.querySelectorAll('svg')].map(s => {const b = s.getBoundingClientRect();"
            " return [b.width, b.height]})"
        )
        assert len(sizes) == 5
        assert all(w > 100 and h > 40 for w, h in sizes), sizes
        spill = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert spill <= 0, f"the page is {spill} pixels wider than a window of {width}"
