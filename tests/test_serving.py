"""Requests are decoded as the model server does, and raw rows become the same tensors as in training."""

from __future__ import annotations

import base64
import json

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from exported import exported, rig, table

from trainer.errors import UserError
from trainer.request import RequestError
from trainer.serving import Served

ROW = {
    "State": "CA", "age": 25, "income": 1000, "geo_lat": 37, "code": 3, "hour": 5, "member": True,
    "when": "2024-05-01T10:00:00Z", "tags": ["a", "b"], "vector": [1, 0.5, -1], "class_": "x", "row_id": 7,
}  # fmt: skip
RAW = {
    "State": "CA", "age": 25, "income": 1000.0, "geo.lat": 37.0, "code": 3, "hour": 5, "member": True,
    "when": "2024-05-01T10:00:00Z", "tags": ["a", "b"], "vector": [1, 0.5, -1], "class": "x", "row_id": 7,
}  # fmt: skip


@pytest.fixture(scope="module")
def served() -> Served:
    return Served(exported("binary"))


@pytest.fixture(scope="module")
def examples() -> Served:
    return Served(exported("binary") + "_examples")


def _body(*changes):
    return json.dumps({"instances": [{**ROW, **change} for change in (changes or ({},))]})


def _without(name):
    return json.dumps({"instances": [{key: value for key, value in ROW.items() if key != name}]})


# --- requests as a client writes them ---------------------------------------------------------------


def test_natural_row_with_integers_for_floats_answers_as_training_does(served):
    answer = served.predict_json(_body())
    (row,) = answer["predictions"]
    raw = pa.Table.from_pylist([{**RAW, "when": None}], schema=table().schema)
    raw = raw.set_column(raw.schema.names.index("when"), "when", pa.array([RAW["when"]]))
    assert row["probability"] == pytest.approx(float(rig("binary").predict(raw)[0]), abs=1e-5)
    assert row["row_id"] == 7
    assert row["label"] == ("yes" if row["probability"] >= 0.5 else "no")
    assert row["classes"] == ["no", "yes"]
    json.dumps(answer)


def test_missing_values_as_markers(served):
    marked = _body(
        {"income": -1e38},
        {"income": float("nan")},
        {"State": ""},
        {"code": -(2**63)},
        {"vector": [-1e38] * 3},
    )
    got = [row["probability"] for row in served.predict_json(marked)["predictions"]]
    nulls = [{**RAW, name: None} for name in ("income", "income", "State", "code", "vector")]
    np.testing.assert_allclose(got, served.predict(nulls)["probability"], atol=1e-6)


def test_single_output_answers_bare_values_and_columns_answer_columns():
    config = rig("regression").config
    served = Served(exported("regression"))
    body = {"inputs": {name: [value, value] for name, value in ROW.items()}}
    outputs = served.predict_json(body)["outputs"]
    assert outputs["row_id"] == [7, 7]
    assert config.data.key == "row_id"
    rows = served.predict_json(_body({}, {}))["predictions"]
    assert outputs["prediction"] == [row["prediction"] for row in rows]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            _body({"age": None}),
            r"'age': the JSON value null is no float32; write -1e\+38 for a missing",
        ),
        (_body({"member": None}), "input 'member': the JSON value null is no bool; write (true|false)"),
        (_body({"age": "25"}), 'the JSON value "25" is no float32'),
        (_body({"age": True}), "the JSON value true is no float32"),
        (_body({"State": 5}), "the JSON value 5 is no string"),
        (_body({"code": 3.0}), r"the JSON value 3\.0 is no int64"),
        (_body({"code": 2**63}), "is no int64"),
        (_body({"member": 1}), "the JSON value 1 is no bool"),
        (_body({"age": [25]}), r"input 'age': got a list of shape \[1\] in a row, expected a single value"),
        (_body({"age": 20_000_000}), r"write it with a decimal point \(20000000\.0\)"),
        (_body({"age": 1e39}), "does not fit float32"),
        (_body({"vector": [1, 2]}), r"got a list of shape \[2\] in a row, expected a list of 3"),
        (_body({"tags": "a"}), "got a single value in a row, expected a list of any length"),
        (
            _body({"tags": ["a"]}, {"tags": ["a", "b"]}),
            "'tags': all rows must have values of one shape",
        ),
        (_body({"row": 1}), "row 0: the model has no input 'row'; did you mean 'row_id'"),
        (_body({"incom": 1}), "the model has no input 'incom'; did you mean 'income'"),
        (_without("income"), r"the input 'income' is left out, .*; write -1e\+38 for a missing value"),
        (_without("State"), "the input 'State' is left out, .*; write \"\" for a missing value"),
        (_body({"State": {"b64": "!"}}), "expected an object with 'b64' alone"),
        ('{"instances": []}', "at least one row"),
        ('{"instances": [1]}', "must hold objects"),
        ('{"rows": []}', "'instances'"),
        ('{"instances": [{}], "inputs": {}}', "'instances'"),
        ("[1]", "expected a JSON object"),
        ("{", "not JSON"),
    ],
)
def test_what_the_server_refuses_is_refused(served, body, message):
    with pytest.raises(RequestError, match=message):
        served.predict_json(body)


def test_large_numbers_with_a_decimal_point_and_binary_text_pass(served):
    state = base64.b64encode(b"CA").decode()
    (one,) = served.predict_json(_body({"age": 20_000_000.0, "State": {"b64": state}}))["predictions"]
    (two,) = served.predict_json(_body({"age": 2e7}))["predictions"]
    assert one == two


def test_left_out_inputs_take_their_default_where_the_server_has_defaults(served):
    (got,) = served.predict_json(_without("income"), defaults=True)["predictions"]
    (marked,) = served.predict_json(_body({"income": -1e38}))["predictions"]
    assert got == marked
    mixed = {"instances": [ROW, {key: value for key, value in ROW.items() if key != "age"}]}
    with pytest.raises(RequestError, match="row 1: has other keys than row 0"):
        served.predict_json(mixed, defaults=True)


def test_order_of_keys_does_not_matter(served):
    turned = {"instances": [dict(reversed(ROW.items()))]}
    assert served.predict_json(turned) == served.predict_json(_body())


def test_tf_example_as_base64(served, examples):
    def record(**features):
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    def text(*values):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[v.encode() for v in values]))

    def floats(*values):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))

    def integers(*values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    full = {
        "State": text("CA"), "age": floats(25), "income": floats(1000), "geo.lat": floats(37),
        "code": integers(3), "hour": integers(5), "member": integers(1), "when": text(ROW["when"]),
        "tags": text("a", "b"), "vector": floats(1, 0.5, -1), "class": text("x"), "row_id": integers(7),
    }  # fmt: skip
    partial = {key: value for key, value in full.items() if key in ("State", "age", "row_id")}
    unseen = {**full, "State": text("TX")}
    body = {
        "instances": [
            {"b64": base64.b64encode(record(**features)).decode()} for features in (full, partial, unseen)
        ]
    }
    got = examples.predict_json(body)["predictions"]
    assert got[0]["probability"] == pytest.approx(
        served.predict_json(_body())["predictions"][0]["probability"], abs=1e-6
    )
    few = {key: RAW[key] for key in ("State", "age", "row_id")}
    expected = served.predict([RAW, few, {**RAW, "State": "TX"}])["probability"]
    np.testing.assert_allclose([row["probability"] for row in got], expected, atol=1e-6)
    wrong = {**full, "age": integers(25)}  # documented: an int64_list for a float input is refused
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"age|[Dd]ata types"):
        examples.predict_json({"instances": [{"b64": base64.b64encode(record(**wrong)).decode()}]})
    named = {"instances": [{"examples_bytes": body["instances"][0]}]}
    (again,) = examples.predict_json(named)["predictions"]
    assert again["probability"] == pytest.approx(got[0]["probability"], abs=1e-6)


# --- raw rows ---------------------------------------------------------------------------------------


def test_request_of_raw_rows_is_strict_json_that_decodes_to_their_tensors(served, examples):
    for model in (served, examples):
        body = json.loads(json.dumps(model.request(table()), allow_nan=False))
        got = model.run(model.decode(body))["probability"]
        np.testing.assert_allclose(got, rig("binary").predict(table()), atol=1e-5)


def test_tables_dicts_records_and_other_types_give_the_same(served):
    raw = table()
    expected = served.predict(raw)["probability"]
    np.testing.assert_array_equal(served.predict(raw.to_pylist())["probability"], expected)
    batches = served.predict(raw.to_batches()[0], batch_size=7)["probability"]
    np.testing.assert_allclose(batches, expected, atol=1e-6)
    cast = {
        "State": raw["State"].dictionary_encode(),
        "age": raw["age"].cast(pa.string()),
        "income": raw["income"].cast(pa.decimal128(30, 15), safe=False),
        "geo": pa.StructArray.from_arrays([raw["geo.lat"].combine_chunks()], ["lat"]),
        "code": raw["code"].cast(pa.float64()),
        "member": raw["member"].cast(pa.int8()),
        "row_id": raw["row_id"].cast(pa.int32()),
        "when": raw["when"].cast(pa.timestamp("ns", tz="Asia/Tokyo")),
        "comment": pa.array(["ignored"] * raw.num_rows),
    }
    other = pa.table({**cast, **{n: raw[n] for n in raw.column_names if n not in cast and n != "geo.lat"}})
    np.testing.assert_allclose(served.predict(other)["probability"], expected, atol=1e-6)


def test_no_rows_give_no_predictions(served):
    outputs = served.predict(table().slice(0, 0))
    assert outputs["probability"].shape == (0,)
    assert outputs["classes"].shape == (0, 2)


def test_a_column_of_the_wrong_type_is_named(served):
    with pytest.raises(UserError, match="'age'"):
        served.predict([{**RAW, "age": "old"}])
    with pytest.raises(UserError, match=r"'vector'.*expected 3"):
        served.predict([{**RAW, "vector": [1.0]}])
    with pytest.raises(UserError, match="'age' holds values of several types"):
        served.predict([RAW, {**RAW, "age": "x"}])


def test_other_folders_are_told(tmp_path):
    with pytest.raises(UserError, match=r"no saved_model\.pb in this folder"):
        Served(str(tmp_path))
    module = tf.Module()
    tf.saved_model.save(module, str(tmp_path / "other"))
    with pytest.raises(UserError, match="was not exported by this trainer"):
        Served(str(tmp_path / "other"))
