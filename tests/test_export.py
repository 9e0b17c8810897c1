"""The exported SavedModel: its folder, signature, names, and that it predicts what training predicts."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from exported import exported, rig, table
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import saved_model_pb2

from trainer import export, serving, signatures, storage
from trainer import strategy as strategies
from trainer.config import Config
from trainer.errors import TrainingError, UserError
from trainer.serving import Served

TASKS = ("binary", "multiclass", "regression", "multilabel")


def _meta_graph(folder: str):
    with open(f"{folder}/saved_model.pb", "rb") as file:
        return saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs[0]


def test_saved_model_lies_directly_in_the_folder_with_one_signature():
    folder = exported("binary")
    assert {"saved_model.pb", "variables", "assets.extra"} <= set(os.listdir(folder))
    assert os.path.exists(f"{folder}_examples/saved_model.pb")
    for path in (folder, f"{folder}_examples"):
        assert list(tf.saved_model.load(path).signatures) == ["serving_default"]
    assert sorted(os.listdir(os.path.dirname(folder))) == ["model", "model_examples"]  # no scratch left


def test_inputs_are_the_raw_columns_by_name_and_natural_type():
    inputs = _meta_graph(exported("binary")).signature_def["serving_default"].inputs
    found = {
        name: (tf.as_dtype(info.dtype).name, [d.size for d in info.tensor_shape.dim])
        for name, info in inputs.items()
    }
    assert found == {
        "State": ("string", [-1]),
        "age": ("float32", [-1]),
        "income": ("float32", [-1]),
        "geo_lat": ("float32", [-1]),
        "code": ("int64", [-1]),
        "hour": ("int64", [-1]),
        "member": ("bool", [-1]),
        "when": ("string", [-1]),
        "tags": ("string", [-1, -1]),
        "vector": ("float32", [-1, 3]),
        "class_": ("string", [-1]),
        "row_id": ("int64", [-1]),
    }
    inputs = _meta_graph(exported("binary") + "_examples").signature_def["serving_default"].inputs
    assert list(inputs) == ["examples_bytes"]


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("binary", {"probability": [], "probabilities": [2], "label": [], "classes": [2]}),
        ("multiclass", {"probabilities": [3], "label": [], "classes": [3]}),
        ("regression", {"prediction": []}),
        ("multilabel", {"probabilities": [2], "classes": [2]}),
    ],
)
def test_outputs_by_name(task, names):
    for folder in (exported(task), exported(task) + "_examples"):
        served = Served(folder)
        rows = table().slice(0, 7)
        outputs = served.predict(rows)
        assert set(outputs) == {*names, "row_id"}
        for name, shape in names.items():
            assert list(outputs[name].shape) == [7, *shape]
            assert outputs[name].dtype == (object if name in ("label", "classes") else np.float32)
        assert outputs["row_id"].tolist() == rows["row_id"].to_pylist()


@pytest.mark.parametrize("task", TASKS)
def test_every_row_predicts_what_training_predicts(task):
    one = rig(task)
    expected = one.predict(table())
    name = {"binary": "probability", "regression": "prediction"}.get(task, "probabilities")
    assert np.ptp(expected, axis=0).min() > 0.05  # the rows really differ
    for folder in (exported(task), exported(task) + "_examples"):
        got = Served(folder).predict(table(), batch_size=17)
        np.testing.assert_allclose(got[name], expected, atol=1e-5, rtol=0)
        if task == "binary":
            assert got["label"].tolist() == ["yes" if p >= 0.5 else "no" for p in expected]
            np.testing.assert_allclose(got["probabilities"][:, 1], expected, atol=1e-5)
            np.testing.assert_allclose(got["probabilities"].sum(1), 1, atol=1e-6)
        if task == "multiclass":
            classes = ["blue", "green", "red"]
            assert got["classes"].tolist() == [classes] * len(expected)
            assert got["label"].tolist() == [classes[i] for i in expected.argmax(1)]


def test_unseen_empty_and_missing_values_go_the_way_of_training():
    base = table().slice(3, 1).to_pylist()[0]
    rows = [
        {**base, "State": "TX"},
        {**base, "State": ""},
        {**base, "State": None},
        {**base, "income": None},
        {**base, "income": float("nan")},
        {**base, "code": 77},
        {**base, "hour": 99},
        {**base, "member": None},
        {**base, "when": None},
        {**base, "tags": []},
        {**base, "tags": ["a", "unseen", "b", "c", "a", "b"]},
        {**base, "vector": None},
    ]
    raw = pa.Table.from_pylist(rows, schema=table().schema)
    expected = rig("binary").predict(raw)
    got = Served(exported("binary")).predict(raw)["probability"]
    np.testing.assert_allclose(got, expected, atol=1e-5, rtol=0)
    assert expected[1] == expected[2]  # empty text is missing
    assert expected[3] == expected[4]
    assert abs(expected[0] - expected[1]) > 1e-3  # unseen and missing are told apart


def test_column_left_out_is_missing_in_every_row():
    served = Served(exported("binary"))
    raw = table()
    without = raw.drop_columns(["income", "State"])
    nulls = raw.set_column(3, "income", pa.nulls(raw.num_rows, pa.float64()))
    nulls = nulls.set_column(1, "State", pa.nulls(raw.num_rows, pa.string()))
    np.testing.assert_array_equal(
        served.predict(without)["probability"], served.predict(nulls)["probability"]
    )
    assert not np.allclose(served.predict(without)["probability"], served.predict(raw)["probability"])


def test_signature_carries_the_missing_markers_as_defaults():
    graph = _meta_graph(exported("binary"))
    signature = graph.signature_def["serving_default"]
    assert set(signature.defaults) == set(signature.inputs)
    value = {name: tf.make_ndarray(proto) for name, proto in signature.defaults.items()}
    assert value["State"].tolist() == [b""]
    assert np.isnan(value["income"]).tolist() == [True]
    assert value["code"].tolist() == [-(2**63)]
    assert value["tags"].shape == (1, 0)
    assert np.isnan(value["vector"]).all()
    assert value["vector"].shape == (1, 3)
    ops = {node.name: node.op for node in graph.graph_def.node}
    assert {ops[info.name.split(":")[0]] for info in signature.inputs.values()} == {"PlaceholderWithDefault"}


def test_session_with_two_inputs_of_many_takes_the_defaults():
    """A session run is what the model server does; the feeds that are left out take their default."""
    rows = table().slice(0, 5)
    expected = Served(exported("binary")).predict(rows.select(["age", "State"]))["probability"]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], exported("binary"))
        signature = loaded.signature_def["serving_default"]
        tensors = Served(exported("binary")).tensors(rows)
        feeds = {signature.inputs[name].name: tensors[name] for name in ("age", "State")}
        got = session.run(signature.outputs["probability"].name, feeds)
    np.testing.assert_array_equal(got, expected)


def test_one_value_is_stretched_to_the_batch_and_other_lengths_are_refused():
    served = Served(exported("binary"))
    tensors = served.tensors(table().slice(0, 4))
    stretched = served.run({**tensors, "age": tensors["age"][:1]})
    repeated = served.run({**tensors, "age": np.repeat(tensors["age"][:1], 4)})
    np.testing.assert_array_equal(stretched["probability"], repeated["probability"])
    with pytest.raises(tf.errors.InvalidArgumentError):
        served.run({**tensors, "age": tensors["age"][:3]})


@pytest.mark.slow
def test_mixed_precision_leaves_the_signature_and_the_predictions_float32():
    precision = "mixed_float16"
    folder = exported("binary", precision)
    signature = _meta_graph(folder).signature_def["serving_default"]
    types = {tf.as_dtype(i.dtype) for i in (*signature.inputs.values(), *signature.outputs.values())}
    assert types == {tf.float32, tf.string, tf.int64, tf.bool}
    half = Served(folder).predict(table())["probability"]
    full = Served(exported("binary")).predict(table())["probability"]
    np.testing.assert_array_equal(half, full)  # same weights, computed in float32 alike
    assert Served(folder).metadata["trained_in"] == precision


def test_metadata_tells_versions_schema_and_classes():
    metadata = storage.read_json(f"{exported('multiclass')}/{serving.METADATA}")
    assert metadata["tensorflow"] == tf.__version__
    assert metadata["label"] == {"columns": ["color"], "classes": ["blue", "green", "red"]}
    assert metadata["inputs"]["geo_lat"] == {
        "column": "geo.lat", "dtype": "float32", "shape": [], "missing": -1e38,
    }  # fmt: skip
    assert metadata["outputs"] == {
        "classes": {"dtype": "string", "shape": [3]},
        "label": {"dtype": "string", "shape": []},
        "probabilities": {"dtype": "float32", "shape": [3]},
        "row_id": {"dtype": "int64", "shape": []},
    }
    assert metadata["fingerprint"] == rig("multiclass").features.fingerprint
    assert Config(**metadata["config"]) == rig("multiclass").config
    served = Served(exported("multiclass"))
    answer = served.predict_json(metadata["example_request"])["predictions"]
    np.testing.assert_allclose(
        [row["probabilities"] for row in answer], rig("multiclass").predict(table().slice(0, 3)), atol=1e-5
    )


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("distance", "distance"),
        ("Age", "Age"),
        ("geo.lat", "geo_lat"),
        ("capital-gain", "capital_gain"),
        ("2nd", "column_2nd"),
        ("_hidden", "column_hidden"),
        ("class", "class_"),
        ("é", "column_"),
    ],
)
def test_signature_name(column, name):
    assert signatures.signature_name(column) == name


def _features_of(*columns: str):
    class Fake:
        raw_inputs = tuple(
            type("Raw", (), {"name": c, "dtype": "float32", "shape": (), "default": float("nan")})
            for c in columns
        )

    return Fake()


def test_columns_with_one_name_are_told():
    with pytest.raises(UserError, match=r"'geo\.lat' and 'geo_lat' would both be called 'geo_lat'"):
        signatures.signature_inputs(_features_of("geo.lat", "geo_lat"), rig("binary").config)
    with pytest.raises(UserError, match="'Age' and 'age'"):
        signatures.signature_inputs(_features_of("Age", "age"), rig("binary").config)


def test_key_with_the_name_of_an_output_is_told():
    data = rig("binary").config.data.model_copy(update={"key": "label"})
    config = rig("binary").config.model_copy(update={"data": data})
    with pytest.raises(UserError, match=r"data\.key: the column 'label' has the name of an output"):
        signatures.signature_inputs(_features_of("age"), config)


def test_key_type_goes_by_the_schema():
    config = rig("binary").config
    assert signatures.key_type(pa.schema([("row_id", pa.int32())]), config) == "int64"
    assert signatures.key_type(pa.schema([("row_id", pa.string())]), config) == "string"


def _without_examples(config: Config) -> Config:
    return config.model_copy(
        update={"export": config.export.model_copy(update={"examples_signature": False})}
    )


def test_weights_that_are_not_finite_are_not_exported(tmp_path):
    one = rig("regression")
    weights = one.copy.get_weights()
    try:
        one.copy.weights[-1].assign(np.full_like(weights[-1], np.nan))
        with pytest.raises(TrainingError, match="'prediction' is not finite"):
            export.export(
                one.copy,
                one.features,
                str(tmp_path / "model"),
                _without_examples(one.config),
                examples=table(),
            )
    finally:
        one.copy.set_weights(weights)
    assert os.listdir(tmp_path) == []


def test_another_model_is_not_overwritten_and_the_own_is(tmp_path):
    folder = str(tmp_path / "model")
    one, other = rig("binary"), rig("regression")
    plain = _without_examples(one.config)
    export.export(one.copy, one.features, folder, plain)
    (tmp_path / "model" / "config").mkdir()
    (tmp_path / "model" / "config" / "batching_parameters_config").write_text("x")
    before = storage.read_text(f"{folder}/{serving.METADATA}")
    with pytest.raises(UserError, match="holds another model"):
        export.export(other.copy, other.features, folder, _without_examples(other.config))
    assert storage.read_text(f"{folder}/{serving.METADATA}") == before
    export.export(one.copy, one.features, folder, plain, key="int64", examples=table())
    assert Served(folder).metadata["inputs"]["row_id"]["dtype"] == "int64"  # the new one
    assert (tmp_path / "model" / "config" / "batching_parameters_config").read_text() == "x"
    assert sorted(os.listdir(tmp_path)) == ["model"]


def test_object_store_gets_the_files_with_saved_model_last(monkeypatch):
    folder = "ram://bucket/model"  # TensorFlow's file system in memory: no open(), no rename of folders
    copied = []
    copy = tf.io.gfile.copy
    monkeypatch.setattr(tf.io.gfile, "copy", lambda a, b, **k: (copied.append(b), copy(a, b, **k)))
    one = rig("binary")
    export.export(one.copy, one.features, folder + "/", one.config, key="int64", examples=table())
    own = [path for path in copied if path.startswith(f"{folder}/")]
    assert own[-1] == f"{folder}/saved_model.pb"
    assert tf.io.gfile.exists("ram://bucket/model_examples/saved_model.pb")
    np.testing.assert_allclose(
        Served(folder).predict(table())["probability"], one.predict(table()), atol=1e-5, rtol=0
    )


def test_distributed_variables_become_plain_ones():
    from trainer.models import tabular

    one = rig("binary")
    strategy = strategies.mirrored(("CPU:0", "CPU:1"))
    layout, outputs = one.features.layout, one.features.label.outputs
    with strategy.scope():
        mirrored = tabular.build(one.config, layout, outputs)
    mirrored.set_weights(one.model.get_weights())
    copy = export.inference_copy(mirrored, one.config, lambda c: tabular.build(c, layout, outputs))
    assert not any("Mirrored" in type(weight.value).__name__ for weight in copy.weights)
    for new, old in zip(copy.get_weights(), one.model.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old)


def _prediction_log():
    """Returns the message class tensorflow.serving.PredictionLog, with the fields that warm-up needs."""
    file = descriptor_pb2.FileDescriptorProto(name="log.proto", package="t", syntax="proto3")
    file.dependency.append("tensorflow/core/framework/tensor.proto")
    kind = descriptor_pb2.FieldDescriptorProto

    def message(name, *fields):
        made = file.message_type.add(name=name)
        for number, field, type_name, repeated in fields:
            made.field.add(
                name=field,
                number=number,
                type=kind.TYPE_MESSAGE if type_name else kind.TYPE_STRING,
                label=kind.LABEL_REPEATED if repeated else kind.LABEL_OPTIONAL,
                **({"type_name": type_name} if type_name else {}),
            )
        return made

    message("ModelSpec", (1, "name", "", False), (3, "signature_name", "", False))
    request = message(
        "PredictRequest",
        (1, "model_spec", ".t.ModelSpec", False),
        (2, "inputs", ".t.PredictRequest.In", True),
    )
    entry = request.nested_type.add(name="In")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    entry.field.add(
        name="value", number=2, type=kind.TYPE_MESSAGE, type_name=".tensorflow.TensorProto",
        label=kind.LABEL_OPTIONAL,
    )  # fmt: skip
    message("PredictLog", (1, "request", ".t.PredictRequest", False))
    message("PredictionLog", (6, "predict_log", ".t.PredictLog", False))
    assert tensor_pb2.DESCRIPTOR.pool is descriptor_pool.Default()
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName("t.PredictionLog"))


def test_warm_up_requests_are_what_the_server_reads():
    log = _prediction_log()
    for folder in (exported("binary"), exported("binary") + "_examples"):
        records = tf.data.TFRecordDataset(f"{folder}/assets.extra/tf_serving_warmup_requests")
        sizes = []
        for record in records:
            request = log.FromString(record.numpy()).predict_log.request
            assert request.model_spec.signature_name == "serving_default"
            tensors = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
            outputs = Served(folder).run(tensors)
            sizes.append(len(outputs["probability"]))
            expected = rig("binary").predict(table().slice(0, sizes[-1]))
            np.testing.assert_allclose(outputs["probability"], expected, atol=1e-5)
        assert sizes == [1, 8]
