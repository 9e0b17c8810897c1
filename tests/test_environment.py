"""What the service's variables mean: folders, cluster, trial."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trainer import environment
from trainer.config import Config
from trainer.environment import Paths, Service
from trainer.errors import UserError


def _config(output_dir: str = "") -> Config:
    return Config.model_validate(
        {
            "name": "demo",
            "task": "binary",
            "output_dir": output_dir,
            "data": {"source": "a.csv", "split": {"by": "hash", "column": "id"}},
            "label": {"column": "y"},
            "features": [{"name": "a", "kind": "numeric"}],
        }
    )


def _tf_config(task: Any = None, **cluster: Any) -> dict[str, str]:
    value: dict[str, Any] = {"cluster": cluster}
    if task is not None:
        value["task"] = task
    return {"TF_CONFIG": json.dumps(value)}


def _pools(pool: str, index: int = 0, **pools: list[str]) -> dict[str, str]:
    return {"CLUSTER_SPEC": json.dumps({"cluster": pools, "task": {"type": pool, "index": index}})}


# --- folders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "names", "expected"),
    [
        ("a", ("b",), "a/b"),
        ("a/", ("b",), "a/b"),
        ("a//", ("/b/", "c"), "a/b/c"),
        ("/", ("a",), "/a"),
        ("gs://b", ("x",), "gs://b/x"),
        ("gs://b/x:y-00:35.308/model/", ("z",), "gs://b/x:y-00:35.308/model/z"),
        ("/gcs/b/", ("x", "y.json"), "/gcs/b/x/y.json"),
        ("a", (), "a"),
    ],
)
def test_join(folder: str, names: tuple[str, ...], expected: str) -> None:
    assert environment.join(folder, *names) == expected


_AIP = {
    "AIP_MODEL_DIR": "gs://b/p-2023-07-05-14:35:00.308/model/",
    "AIP_CHECKPOINT_DIR": "gs://b/p-2023-07-05-14:35:00.308/checkpoints/",
    "AIP_TENSORBOARD_LOG_DIR": "gs://b/p-2023-07-05-14:35:00.308/logs/",
}
_P = "gs://b/p-2023-07-05-14:35:00.308"


@pytest.mark.parametrize(
    ("output_dir", "environ", "expected"),
    [
        ("", {}, Paths("runs/demo", "runs/demo/model", "runs/demo/checkpoints", "runs/demo/logs")),
        ("out/", {}, Paths("out", "out/model", "out/checkpoints", "out/logs")),
        ("/", {}, Paths("/", "/model", "/checkpoints", "/logs")),
        ("gs://b/x//", {}, Paths("gs://b/x", "gs://b/x/model", "gs://b/x/checkpoints", "gs://b/x/logs")),
        ("", _AIP, Paths(_P, f"{_P}/model", f"{_P}/checkpoints", f"{_P}/logs")),
        ("gs://c/x", _AIP, Paths("gs://c/x", f"{_P}/model", f"{_P}/checkpoints", f"{_P}/logs")),
        (
            "",
            {"AIP_MODEL_DIR": "/tmp/m/"},
            Paths("runs/demo", "/tmp/m", "runs/demo/checkpoints", "runs/demo/logs"),
        ),
        (
            "",
            {"AIP_MODEL_DIR": " "},
            Paths("runs/demo", "runs/demo/model", "runs/demo/checkpoints", "runs/demo/logs"),
        ),
        (
            "",
            {"AIP_CHECKPOINT_DIR": "/gcs/b/p/checkpoints/"},
            Paths("/gcs/b/p", "/gcs/b/p/model", "/gcs/b/p/checkpoints", "/gcs/b/p/logs"),
        ),
        (  # a trial's variables hold its id: it isn't added again
            "",
            {"CLOUD_ML_TRIAL_ID": "3", "AIP_MODEL_DIR": "gs://b/p/3/model/"},
            Paths("gs://b/p/3", "gs://b/p/3/model", "gs://b/p/3/checkpoints", "gs://b/p/3/logs"),
        ),
        (  # a flag is the same for all trials: each gets a folder of its own
            "gs://b/x",
            {"CLOUD_ML_TRIAL_ID": "3"},
            Paths("gs://b/x/3", "gs://b/x/3/model", "gs://b/x/3/checkpoints", "gs://b/x/3/logs"),
        ),
        (
            "",
            {"CLOUD_ML_TRIAL_ID": "12"},
            Paths("runs/demo/12", "runs/demo/12/model", "runs/demo/12/checkpoints", "runs/demo/12/logs"),
        ),
    ],
)
def test_folders_of_a_run(output_dir: str, environ: Mapping[str, str], expected: Paths) -> None:
    assert environment.paths(_config(output_dir), environ) == expected


def test_each_folder_knows_what_named_it() -> None:
    origins = environment.paths(_config(), {"AIP_MODEL_DIR": "/tmp/m"}).origins
    assert origins == {
        "output": "output_dir",
        "model": "AIP_MODEL_DIR",
        "checkpoints": "output_dir",
        "logs": "output_dir",
    }
    assert environment.paths(_config(), _AIP).origins["output"] == "AIP_MODEL_DIR"
    assert environment.paths(_config("o"), {}).file("metrics.json") == "o/metrics.json"


def test_a_writable_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b:c"
    environment.check_writable(str(folder), "output_dir")
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_names_its_variable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        environment.check_writable(str(tmp_path / "file" / "model"), "AIP_MODEL_DIR")
    assert str(caught.value) == f"AIP_MODEL_DIR: can't write to {tmp_path}/file/model: Not a directory"


def test_folders_on_an_object_store_are_tried_too() -> None:
    import tensorflow as tf  # its ram:// files go the way of gs://

    environment.check_writable("ram://environment/model", "AIP_MODEL_DIR")
    assert not tf.io.gfile.exists("ram://environment/model")  # where there are no folders, nothing is left
    with pytest.raises(
        UserError, match=r"^AIP_MODEL_DIR: can't write to nowhere://b/model: File system scheme"
    ):
        environment.check_writable("nowhere://b/model", "AIP_MODEL_DIR")


def test_all_folders_of_a_run_are_tried(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folders = environment.paths(
        _config(str(tmp_path / "out")), {"AIP_TENSORBOARD_LOG_DIR": f"{tmp_path}/file/x/"}
    )
    with pytest.raises(UserError, match=r"^AIP_TENSORBOARD_LOG_DIR: can't write"):
        environment.check_paths(folders)
    assert (tmp_path / "out" / "checkpoints").is_dir()


def test_files_that_go_with_the_machine_are_warned_of() -> None:
    on, off = Service(on_service=True), Service()
    local = environment.paths(_config(), {})
    assert environment.lost_with_machine(local, off) is None
    assert "baseOutputDirectory" in str(environment.lost_with_machine(local, on))
    given = {name: f"/somewhere/{name}/" for name in ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR")}
    assert "output folder" in str(environment.lost_with_machine(environment.paths(_config(), given), on))
    given["AIP_MODEL_DIR"] = "/somewhere/model/"  # the output folder is the one above it
    assert environment.lost_with_machine(environment.paths(_config(), given), on) is None
    for folder in ("gs://b/x", "/gcs/b/x", "/mnt/nfs/x"):
        assert environment.lost_with_machine(environment.paths(_config(folder), {}), on) is None


# --- the cluster ------------------------------------------------------------------------------------

_CHIEF = {"type": "chief", "index": 0}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Service()),
        ({"TF_CONFIG": ""}, Service()),
        ({"TF_CONFIG": "  "}, Service()),
        ({"TF_CONFIG": "{}"}, Service()),
        ({"TF_CONFIG": "null"}, Service()),
        ({"TF_CONFIG": '{"cluster": {}, "task": {}}'}, Service()),
        (_tf_config({"type": "chief", "index": "0"}, chief=["h:1"]), Service(hosts=("h:1",))),
        (_tf_config({"type": "chief"}, chief=["h:1"]), Service(hosts=("h:1",))),
        (_tf_config({"type": "worker", "index": 0}, worker=["h:1"]), Service(role="worker", hosts=("h:1",))),
        (
            {
                "TF_CONFIG": '{"cluster":{"chief":["h:1"]},"task":{"type":"chief","index":0,"trial":"4"},'
                '"environment":"cloud","job":"{}"}'
            },
            Service(on_service=True, trial_id="4", hosts=("h:1",)),
        ),
        (
            _tf_config(_CHIEF, chief=["a:1"], worker=["b:1", "c:1"]),
            Service(workers=3, hosts=("a:1", "b:1", "c:1")),
        ),
        (
            _tf_config({"type": "worker", "index": 1}, chief=["a:1"], worker=["b:1", "c:1"]),
            Service(role="worker", worker_index=2, is_chief=False, workers=3, hosts=("a:1", "b:1", "c:1")),
        ),
        (
            _tf_config({"type": "worker", "index": "1"}, worker=["b:1", "c:1"]),
            Service(role="worker", worker_index=1, is_chief=False, workers=2, hosts=("b:1", "c:1")),
        ),
        (
            _tf_config({"type": "master", "index": 0}, master=["a:1"], worker=["b:1"]),
            Service(workers=2, hosts=("a:1", "b:1")),
        ),
        (  # reduction servers in the place of parameter servers change nothing
            _tf_config(_CHIEF, chief=["a:1"], worker=["b:1"], ps=["c:1", "d:1"]),
            Service(workers=2, hosts=("a:1", "b:1")),
        ),
        (
            _tf_config({"type": "evaluator", "index": 0}, chief=["a:1"], worker=["b:1"]),
            Service(role="evaluator", worker_index=-1, is_chief=False, workers=2, hosts=("a:1", "b:1")),
        ),
        (
            _tf_config({"type": "ps", "index": 0}, chief=["a:1"], worker=["b:1"], ps=["c:1"]),
            Service(role="ps", worker_index=-1, is_chief=False, workers=2, hosts=("a:1", "b:1")),
        ),
        (
            {
                "CLUSTER_SPEC": json.dumps(
                    {
                        "cluster": {"workerpool0": ["cmle-training-workerpool0-1d969d3ba6-0:2222"]},
                        "environment": "cloud",
                        "task": {"type": "workerpool0", "index": 0, "trial": "7"},
                        "job": '{"python_module":"","package_uris":[],"job_args":[]}',
                        "open_ports": [3333],
                    }
                ),
                "CLOUD_ML_JOB_ID": "123",
            },
            Service(on_service=True, job_id="123", trial_id="7"),
        ),
        (  # reduction servers are pool 2: two machines train
            {
                **_pools(
                    "workerpool0", workerpool0=["h0:1"], workerpool1=["h1:1"], workerpool2=["h2:1", "h3:1"]
                ),
                **_tf_config(_CHIEF, chief=["h0:1"], worker=["h1:1"]),
            },
            Service(workers=2, hosts=("h0:1", "h1:1")),
        ),
        (  # without TF_CONFIG the pools say the same
            _pools(
                "workerpool1", 1, workerpool0=["h0:1"], workerpool1=["h1:1", "h2:1"], workerpool2=["h3:1"]
            ),
            Service(role="worker", worker_index=2, is_chief=False, workers=3, hosts=("h0:1", "h1:1", "h2:1")),
        ),
        (
            _pools(
                "workerpool3",
                0,
                workerpool0=["h0:1"],
                workerpool1=["h1:1"],
                workerpool2=[],
                workerpool3=["h3:1"],
            ),
            Service(role="evaluator", worker_index=-1, is_chief=False, workers=2, hosts=("h0:1", "h1:1")),
        ),
        ({"CLUSTER_SPEC": "not json"}, Service()),
        ({"CLOUD_ML_TRIAL_ID": "9", "CLOUD_ML_PROJECT_ID": "42"}, Service(on_service=True, trial_id="9")),
    ],
)
def test_who_this_process_is(environ: dict[str, str], expected: Service) -> None:
    assert environment.service(environ) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{cluster:",
            "TF_CONFIG is not JSON: Expecting property name enclosed in double quotes at character 1 of",
        ),
        ("[1]", "TF_CONFIG: expected a JSON object, got '[1]'"),
        ('{"cluster": ["a"]}', "TF_CONFIG: cluster: expected an object of address lists, got ['a']"),
        (
            '{"cluster": {"chief": "a:1"}}',
            "TF_CONFIG: cluster.chief: expected a list of host:port texts, got 'a:1'",
        ),
        (
            '{"cluster": {"worker": [1]}}',
            "TF_CONFIG: cluster.worker: expected a list of host:port texts, got [1]",
        ),
        ('{"cluster": {"worker": ["h:1"]}}', "TF_CONFIG: task.type is missing; expected one of worker"),
        (
            '{"cluster": {"worker": ["h:1"]}, "task": 3}',
            "TF_CONFIG: task: expected an object with type and index, got 3",
        ),
        (
            '{"cluster": {"worker": ["h:1"]}, "task": {"type": "worker"}}',
            "TF_CONFIG: task.index is missing; it says",
        ),
        (
            '{"cluster": {"worker": ["h:1"]}, "task": {"type": "worker", "index": 3}}',
            "TF_CONFIG: task.index: got 3, expected 0 to 0: cluster.worker has 1",
        ),
        (
            '{"cluster": {"worker": ["h:1"]}, "task": {"type": "worker", "index": "one"}}',
            "TF_CONFIG: task.index: got 'one', expected a whole number",
        ),
        (
            '{"cluster": {"chief": ["a:1"], "worker": ["h:1"]}, "task": {"type": "chef", "index": 0}}',
            "TF_CONFIG: task.type: got 'chef', expected one of chief, worker",
        ),
        (
            '{"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 0}}',
            "TF_CONFIG: cluster: expected one chief, got 2 (a:1, b:1)",
        ),
    ],
)
def test_a_broken_tf_config_names_the_wrong_part(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        environment.service({"TF_CONFIG": text})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "trial"),
    [
        ({}, None),
        ({"CLOUD_ML_TRIAL_ID": ""}, None),
        ({"CLOUD_ML_TRIAL_ID": "1", "CLUSTER_SPEC": '{"task": {"trial": "2"}}'}, "1"),
        ({"CLUSTER_SPEC": '{"task": {"trial": "2"}}', "TF_CONFIG": '{"task": {"trial": "3"}}'}, "2"),
        ({"CLUSTER_SPEC": '{"task": {}}', "TF_CONFIG": '{"task": {"trial": 3}}'}, "3"),
        ({"CLUSTER_SPEC": "{", "TF_CONFIG": '{"task": []}'}, None),
    ],
)
def test_the_trial_is_looked_up_in_order(environ: dict[str, str], trial: str | None) -> None:
    assert environment.trial_id(environ) == trial


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"CLOUD_ML_JOB": "{}"}, True),
        ({"CLOUD_ML_JOB_ID": "1"}, True),
        ({"CLOUD_ML_PROJECT_ID": "1"}, True),
        ({"CLOUD_ML_JOB_ID": ""}, False),
        ({"CLUSTER_SPEC": '{"environment": "cloud"}'}, True),
        ({"CLUSTER_SPEC": '{"environment": "local"}'}, False),
        ({"TF_CONFIG": '{"environment": "cloud"}'}, True),
        ({"TF_CONFIG": "{cluster:", "AIP_MODEL_DIR": "/tmp/m"}, False),
    ],
)
def test_on_service(environ: dict[str, str], expected: bool) -> None:
    assert environment.on_service(environ) is expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"TF_CONFIG": ""}, None),
        (_tf_config(_CHIEF, chief=["h:1"]), None),
        (
            _tf_config({"type": "worker", "index": 1}, chief=["a:1"], worker=["b:1", "c:1"], ps=["d:1"]),
            {"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}},
        ),
        (
            _tf_config({"type": "master", "index": "0"}, master=["a:1"], worker=["b:1"]),
            {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "chief", "index": 0}},
        ),
        (
            _tf_config({"type": "worker", "index": 1}, worker=["b:1", "c:1"]),
            {"cluster": {"worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}},
        ),
        (
            _pools("workerpool1", 0, workerpool0=["a:1"], workerpool1=["b:1"], workerpool2=["c:1"]),
            {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}},
        ),
    ],
)
def test_tensorflow_gets_only_what_trains(environ: dict[str, str], expected: dict[str, Any] | None) -> None:
    environ = dict(environ)
    before = environment.service(environ)
    environment.clean_tf_config(environ)
    assert (json.loads(environ["TF_CONFIG"]) if "TF_CONFIG" in environ else None) == expected
    after = environment.service(environ)
    assert (after.worker_index, after.is_chief, after.workers) == (
        before.worker_index,
        before.is_chief,
        before.workers,
    )
    again = dict(environ)
    environment.clean_tf_config(again)
    assert again == environ


def test_cleaning_keeps_the_trial_and_the_service() -> None:
    environ = {"TF_CONFIG": json.dumps({"environment": "cloud", "task": {"trial": "4"}})}
    environment.clean_tf_config(environ)
    me = environment.service(environ)
    assert (me.trial_id, me.on_service) == ("4", True)


def test_a_parameter_server_is_refused_with_the_way_out() -> None:
    environ = _tf_config({"type": "ps", "index": 0}, chief=["a:1"], worker=["b:1"], ps=["c:1"])
    with pytest.raises(UserError, match=r"'ps' of the cluster.*take pool 2 out of the job, or give it"):
        environment.clean_tf_config(environ)


def test_an_evaluator_keeps_no_cluster_that_tensorflow_would_wait_for() -> None:
    environ = _tf_config({"type": "evaluator", "index": 0}, chief=["a:1"], worker=["b:1"])
    environment.clean_tf_config(environ)
    assert "TF_CONFIG" not in environ


@pytest.mark.parametrize(
    ("service", "label"),
    [
        (Service(), ""),
        (Service(workers=2), "chief"),
        (Service(workers=2, role="worker", worker_index=1, is_chief=False), "worker 1"),
        (Service(workers=2, role="evaluator", worker_index=-1, is_chief=False), "evaluator"),
        (Service(role="evaluator", worker_index=-1, is_chief=False), "evaluator"),
    ],
)
def test_labels(service: Service, label: str) -> None:
    assert service.label == label


def test_the_default_environment_is_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_ML_TRIAL_ID", "5")
    assert environment.service().trial_id == "5"
    assert "CLOUD_ML_TRIAL_ID" in os.environ
