"""Figures of an exported model are those of the training path."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import tensorflow as tf
from exported import exported, rig, table

from trainer import evaluate, losses, metrics
from trainer.data.encode import Encoder
from trainer.errors import UserError


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.parquet"
    pa.parquet.write_table(table(), path)
    return str(path)


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression", "multilabel"])
def test_figures_are_those_of_the_training_path(task, rows, tmp_path, capsys):
    output = tmp_path / "figures.json"
    assert evaluate.main(["--model", exported(task), "--input", rows, "--output", str(output)]) == 0
    figures = json.loads(output.read_text())[rows]
    assert json.loads(capsys.readouterr().out) == figures

    one = rig(task)
    blocks = Encoder(one.features)(table())
    logits = one.copy({"numeric": blocks.numeric, "categorical": blocks.categorical}, training=False)
    loss = losses.loss_function(one.config, one.features)(tf.constant(blocks.label), logits)
    assert figures["loss"] == pytest.approx(float(tf.reduce_mean(loss)), rel=1e-4)
    assert figures["examples"] == 60
    expected = metrics.make(task, one.features.label.classes)
    assert set(figures) == {"loss", "examples", *expected}
    for name, metric in expected.items():
        metric.update_state(tf.constant(blocks.label), losses.predictions(task, logits), tf.ones(60))
        assert figures[name] == pytest.approx(float(metric.result()), abs=1e-5), name


def test_weights_count(tmp_path, rows):
    one = rig("regression")
    served = evaluate.load(exported("regression"))
    data = one.config.data.model_copy(update={"weight": "w"})
    config = one.config.model_copy(update={"data": data})
    weight = np.arange(60, dtype=np.float32)
    weighted = table().append_column("w", pa.array(weight))
    figures = evaluate.evaluate(served, config, weighted.to_batches(max_chunksize=13))
    squared = (one.predict(table()) - table()["amount"].to_numpy()) ** 2
    assert figures["loss"] == pytest.approx(float((squared * weight).sum() / weight.sum()), rel=1e-4)
    zero = table().append_column("w", pa.array(np.zeros(60)))
    with pytest.raises(UserError, match="every row has weight 0"):
        evaluate.evaluate(served, config, zero.to_batches())


def test_key_is_not_needed(tmp_path, capsys):
    pa.parquet.write_table(table().drop_columns(["row_id"]), tmp_path / "rows.parquet")
    assert evaluate.main(["--model", exported("binary"), "--input", str(tmp_path / "rows.parquet")]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 60


def test_unknown_class_is_told(tmp_path):
    raw = table().set_column(table().column_names.index("bought"), "bought", pa.array(["no"] * 59 + ["yess"]))
    pa.parquet.write_table(raw, tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"'yess' .*did you mean 'yes'"):
        evaluate.main(["--model", exported("binary"), "--input", str(tmp_path / "rows.parquet")])


def test_split_of_the_runs_own_data(rows, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # the config names rows.parquet
    total = 0
    for split in ("train", "validation", "test"):
        assert evaluate.main(["--model", exported("binary"), "--split", split]) == 0
        total += json.loads(capsys.readouterr().out)["examples"]
    assert total == 60


def test_output_is_not_overwritten_unasked(rows, tmp_path):
    output = tmp_path / "figures.json"
    output.write_text("{}")
    arguments = ["--model", exported("binary"), "--input", rows, "--output", str(output)]
    with pytest.raises(UserError, match="--overwrite replaces it"):
        evaluate.main(arguments)
    assert output.read_text() == "{}"
    assert evaluate.main([*arguments, "--overwrite"]) == 0
    assert "loss" in output.read_text()
