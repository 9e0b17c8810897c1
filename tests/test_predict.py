"""Predictions for files from the SavedModel alone."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import tensorflow as tf
from exported import exported, rig, table

from trainer import predict
from trainer.errors import UserError


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.parquet"
    pa.parquet.write_table(table(), path, row_group_size=16)
    return str(path)


def _run(task, rows, output, *more):
    assert (
        predict.main(["--model", exported(task), "--input", str(rows), "--output", str(output), *more]) == 0
    )


def test_parquet_has_key_probability_and_label(rows, tmp_path):
    _run("binary", rows, tmp_path / "out.parquet")
    out = pa.parquet.read_table(tmp_path / "out.parquet")
    assert out.column_names == ["row_id", "probability", "label"]
    assert out["row_id"].to_pylist() == table()["row_id"].to_pylist()
    expected = rig("binary").predict(table())
    np.testing.assert_allclose(out["probability"].to_numpy(), expected, atol=1e-5)
    assert out["label"].to_pylist() == ["yes" if p >= 0.5 else "no" for p in expected]


def test_csv_in_and_out_with_kept_columns(tmp_path):
    raw = table()
    lists = {
        name: [None if v is None else json.dumps(v) for v in raw[name].to_pylist()]
        for name in ("tags", "vector")
    }
    for name, values in lists.items():
        raw = raw.set_column(raw.column_names.index(name), name, pa.array(values, pa.string()))
    raw = raw.append_column("remark", pa.array([f"n. {i}, x" for i in range(raw.num_rows)]))
    pa.csv.write_csv(raw, tmp_path / "rows.csv")
    _run("multiclass", tmp_path / "rows.csv", tmp_path / "new" / "out.csv", "--keep", "remark, color,tags")
    out = pa.csv.read_csv(tmp_path / "new" / "out.csv")
    assert out.column_names == [
        "row_id", "remark", "color", "tags",
        "label", "probability_blue", "probability_green", "probability_red",
    ]  # fmt: skip
    assert out["remark"].to_pylist() == raw["remark"].to_pylist()
    assert out["color"].to_pylist() == raw["color"].to_pylist()
    expected = rig("multiclass").predict(table())
    got = np.stack([out[f"probability_{name}"].to_numpy() for name in ("blue", "green", "red")], axis=1)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_json_lines(rows, tmp_path):
    _run("multilabel", rows, tmp_path / "out.jsonl", "--keep=income")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert list(lines[0]) == ["row_id", "income", "probability_news", "probability_offers"]
    assert [line["income"] for line in lines] == table()["income"].to_pylist()
    got = [[line["probability_news"], line["probability_offers"]] for line in lines]
    np.testing.assert_allclose(got, rig("multilabel").predict(table()), atol=1e-5)


def test_rows_are_written_as_they_are_read(rows, tmp_path, monkeypatch):
    """The whole input is never in memory: a chunk is written before the next is predicted."""
    events = []
    frame, writer = predict.frame, pa.parquet.ParquetWriter.write_table
    monkeypatch.setattr(predict, "frame", lambda *a: (events.append("predict"), frame(*a))[1])
    monkeypatch.setattr(
        pa.parquet.ParquetWriter, "write_table", lambda *a, **k: (events.append("write"), writer(*a, **k))[1]
    )
    _run("regression", rows, tmp_path / "out.parquet")
    assert events == ["predict", "write"] * (len(events) // 2)
    assert len(events) >= 2
    assert pa.parquet.read_table(tmp_path / "out.parquet").num_rows == 60


def test_output_is_not_overwritten_unasked(rows, tmp_path):
    output = tmp_path / "out.csv"
    output.write_text("mine")
    with pytest.raises(UserError, match="is there already; --overwrite replaces it"):
        _run("binary", rows, output)
    assert output.read_text() == "mine"
    _run("binary", rows, output, "--overwrite")
    assert output.read_text().startswith('"row_id"')


def test_failure_leaves_no_output(tmp_path):
    raw = table().set_column(2, "age", pa.array(["old"] * 60))
    pa.parquet.write_table(raw, tmp_path / "rows.parquet")
    with pytest.raises(UserError, match="'age'"):
        _run("binary", tmp_path / "rows.parquet", tmp_path / "out.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.parquet"]


def test_missing_column_is_told_with_the_nearest(tmp_path):
    raw = table().rename_columns(["incom" if name == "income" else name for name in table().column_names])
    pa.parquet.write_table(raw, tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"no column 'income'.*did you mean 'incom'"):
        _run("binary", tmp_path / "rows.parquet", tmp_path / "out.csv")


def test_without_a_key(tmp_path):
    pa.parquet.write_table(table().drop_columns(["row_id", "bought"]), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match="no column 'row_id'"):
        _run("binary", tmp_path / "rows.parquet", tmp_path / "out.csv")
    _run("binary", tmp_path / "rows.parquet", tmp_path / "out.csv", "--no_key")
    assert pa.csv.read_csv(tmp_path / "out.csv").column_names == ["probability", "label"]


def test_kept_column_with_the_name_of_a_predicted_one(tmp_path):
    raw = table().append_column("label", pa.array(["x"] * 60))
    pa.parquet.write_table(raw, tmp_path / "rows.parquet")
    with pytest.raises(UserError, match="column 'label' has the name of a predicted column"):
        _run("binary", tmp_path / "rows.parquet", tmp_path / "out.csv", "--keep", "label")


def test_ending_of_the_output_and_folder_of_the_model(rows, tmp_path):
    with pytest.raises(UserError, match=r"ends in '\.xlsx', expected \.csv, \.jsonl or \.parquet"):
        _run("binary", rows, tmp_path / "out.xlsx")
    with pytest.raises(UserError, match=r"no saved_model\.pb"):
        predict.main(["--model", str(tmp_path), "--input", rows, "--output", str(tmp_path / "out.csv")])
    run = exported("binary").removesuffix("/model")
    assert predict.main(["--model", run, "--input", rows, "--output", str(tmp_path / "out.csv")]) == 0


def test_object_store_output(rows):
    _run("binary", rows, "ram://out/predictions.jsonl")
    with tf.io.gfile.GFile("ram://out/predictions.jsonl") as file:
        assert len(file.read().splitlines()) == 60


def test_examples_model_predicts_the_same(rows, tmp_path):
    _run("binary", rows, tmp_path / "one.parquet")
    model = exported("binary") + "_examples"
    predict.main(["--model", model, "--input", rows, "--output", str(tmp_path / "two.parquet")])
    one, two = (pa.parquet.read_table(tmp_path / f"{name}.parquet") for name in ("one", "two"))
    np.testing.assert_allclose(one["probability"].to_numpy(), two["probability"].to_numpy(), atol=1e-6)


def test_a_folder_that_is_not_there_and_one_that_holds_no_model(tmp_path):
    with pytest.raises(UserError, match="nowhere: no such folder"):
        predict.load(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"no saved_model\.pb in this folder"):
        predict.load(str(tmp_path))
