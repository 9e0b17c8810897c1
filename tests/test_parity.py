"""The parity gate passes a true export and stops a false one, naming the row and the column."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pyarrow as pa
import pytest
from exported import exported, rig, table

from trainer import export, parity, probes, storage
from trainer.errors import TrainingError
from trainer.export import Staged
from trainer.serving import Served


def _staged(task: str) -> Staged:
    folder = exported(task)
    return Staged(os.path.dirname(folder), folder, f"{folder}_examples")


@pytest.fixture
def in_this_process(monkeypatch):
    """Runs the comparison here instead of in a fresh process: loading TensorFlow anew takes seconds."""

    def run(command):
        assert command[:3] == [sys.executable, "-m", "trainer.parity"]
        return parity.main(command[3:]), ""

    monkeypatch.setattr(parity, "_run", run)


@pytest.mark.slow
def test_gate_passes_in_a_fresh_process(tmp_path):
    one = rig("binary")
    report = parity.run_gate(
        one.config, one.features, _staged("binary"), table(), one.predict, f"{tmp_path}/"
    )
    assert report["passed"]
    assert report == storage.read_json(str(tmp_path / "parity.json"))
    assert report["rows"] == 60 + report["probes"]
    assert report["probes"] > 25
    assert set(report["signatures"]) == {"columns", "tf.Example"}
    assert report["max_abs_difference"] <= 1e-5
    request = storage.read_json(str(tmp_path / "request.json"))
    answer = Served(exported("binary")).predict_json(request)["predictions"]
    np.testing.assert_allclose(
        [row["probability"] for row in answer], one.predict(table().slice(0, 3)), atol=1e-5
    )


@pytest.mark.parametrize("task", ["multiclass", "regression", "multilabel"])
def test_gate_passes_for_every_task(task, tmp_path, in_this_process):
    one = rig(task)
    report = parity.run_gate(one.config, one.features, _staged(task), table(), one.predict, str(tmp_path))
    assert report["passed"]


def test_a_column_that_is_imputed_in_another_way_is_named(tmp_path, in_this_process):
    one = rig("binary")

    def predict(raw: pa.Table) -> np.ndarray:
        """Training that fills missing incomes with 1, which the exported graph does not."""
        place = raw.schema.names.index("income")
        return one.predict(raw.set_column(place, "income", raw["income"].fill_null(1.0)))

    with pytest.raises(TrainingError) as caught:
        parity.run_gate(one.config, one.features, _staged("binary"), table(), predict, str(tmp_path))
    message = str(caught.value)
    assert caught.value.exit_code == 1
    assert message.startswith(
        "parity gate: the exported model (columns) does not predict what training predicts"
    )
    assert "income missing" in message
    assert '"income": null' in message  # the raw values of the worst row
    report = storage.read_json(str(tmp_path / "parity.json"))
    assert not report["passed"]
    worst = report["signatures"]["columns"]["worst_row"]
    assert worst["values"]["income"] is None
    assert abs(worst["expected"] - worst["got"]) == pytest.approx(report["max_abs_difference"], rel=1e-3)
    differing = [origin for origin in report["signatures"]["columns"]["suspects"]]
    assert not any(text.startswith("age missing") for text in differing)


def test_other_weights_are_found(tmp_path, in_this_process):
    one = rig("regression")
    with pytest.raises(TrainingError, match=r"differ by up to .* in \d+ of \d+ rows; worst is"):
        parity.run_gate(
            one.config, one.features, _staged("regression"), table(), lambda raw: one.predict(raw) + 1e-3,
            str(tmp_path),
        )  # fmt: skip


def test_large_regression_values_are_compared_by_their_relative_difference():
    served = Served(exported("regression"))
    raw = table().select([item.name for item in rig("regression").features.raw_inputs])
    expected = rig("regression").predict(raw)
    origins = [f"row {i}" for i in range(len(expected))]
    exact = parity.compare(served, raw, expected, [], origins, 1e-5)
    assert exact["passed"]
    served.run = lambda tensors: {"prediction": 1e6 * Served.run(served, tensors)["prediction"]}
    scaled = parity.compare(served, raw, 1e6 * expected * (1 + 5e-6), [], origins, 1e-5)
    assert scaled["passed"]
    assert not parity.compare(served, raw, 1e6 * expected * (1 + 1e-3), [], origins, 1e-5)["passed"]


def test_classes_are_matched_by_name_and_not_by_place():
    served = Served(exported("multiclass"))
    raw = table().select([item.name for item in rig("multiclass").features.raw_inputs])
    expected = rig("multiclass").predict(raw)
    origins = [f"row {i}" for i in range(len(expected))]
    turned = parity.compare(served, raw, expected[:, ::-1], ["red", "green", "blue"], origins, 1e-5)
    assert turned["passed"]
    wrong = parity.compare(served, raw, expected, ["red", "green", "blue"], origins, 1e-5)
    assert not wrong["passed"]
    assert wrong["labels_differing"] > 0


def test_labels_that_are_swapped_are_found():
    served = Served(exported("binary"))
    raw = table().select([item.name for item in rig("binary").features.raw_inputs])
    expected = rig("binary").predict(raw)
    origins = [f"row {i}" for i in range(len(expected))]

    def run(tensors):
        outputs = Served.run(served, tensors)
        return {**outputs, "label": np.where(outputs["label"] == "yes", "no", "yes").astype(object)}

    served.run = run
    result = parity.compare(served, raw, expected, ["no", "yes"], origins, 1e-5)
    assert result["max_abs_difference"] <= 1e-5
    assert result["labels_differing"] == len(expected)
    report = {"tolerance": 1e-5, "rows": len(expected), "signatures": {"columns": result}}
    assert "rows get another label" in parity.complaint(report)


def test_model_that_does_not_answer_fails_the_gate(tmp_path, in_this_process):
    one = rig("binary")
    staged = Staged(str(tmp_path), str(tmp_path / "nothing"), None)
    with pytest.raises(TrainingError, match=r"can't answer: .*no such folder"):
        parity.run_gate(one.config, one.features, staged, table(), one.predict, str(tmp_path))


def test_process_that_breaks_down_fails_the_gate(tmp_path, monkeypatch):
    monkeypatch.setattr(parity, "_run", lambda command: (-11, "Segmentation fault"))
    one = rig("binary")
    with pytest.raises(TrainingError, match="ended with code -11: Segmentation fault"):
        parity.run_gate(one.config, one.features, _staged("binary"), table(), one.predict, str(tmp_path))


def test_no_rows_are_told(tmp_path):
    one = rig("binary")
    with pytest.raises(TrainingError, match="no rows to compare"):
        parity.run_gate(
            one.config, one.features, _staged("binary"), table().slice(0, 0), one.predict, str(tmp_path)
        )


@pytest.mark.slow
def test_command_line_compares_again_and_tells_what_it_needs(tmp_path, in_this_process, capsys):
    assert parity.main(["--run", str(tmp_path)]) == 2
    assert "reached its parity gate" in capsys.readouterr().err
    one = rig("binary")
    parity.run_gate(one.config, one.features, _staged("binary"), table(), one.predict, str(tmp_path))
    export.export(one.copy, one.features, str(tmp_path / "model"), one.config, key="int64", examples=table())
    capsys.readouterr()
    assert parity.main(["--run", f"{tmp_path}/"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("parity gate passed: ")
    assert set(json.loads((tmp_path / "parity.json").read_text())["signatures"]) == {"columns", "tf.Example"}


def test_probes_cover_each_column():
    features = rig("binary").features
    rows, origins = probes.sample(features, table(), 10)
    assert rows.num_rows == len(origins)
    assert [origin for origin in origins if origin.startswith("row")][:3] == [
        f"row {place} of the sample" for place in (0, 6, 13)
    ]
    by_origin = dict(zip(origins, rows.to_pylist(), strict=True))
    for raw in features.raw_inputs:
        assert by_origin[f"probe: {raw.name} missing"][raw.name] is None
    assert by_origin["probe: State empty"]["State"] == ""
    assert by_origin["probe: tags with unseen entries"]["tags"].count(None) > 1
    assert all(value is None for value in by_origin["probe: all columns missing"].values())
