"""keras-tuner's variables from the cluster's, and what may take part."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import synthetic

from trainer import environment
from trainer.errors import UserError
from trainer.tuning import distributed

CLUSTER = {"chief": ["cmle-0:2222"], "worker": ["w-0:2222", "w-1:2222"]}


def variables(
    task: dict[str, object], cluster: dict[str, list[str]] = CLUSTER, **more: str
) -> dict[str, str]:
    environ = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task}), **more}
    return distributed.variables(environment.service(environ), environ)


def test_a_worker_finds_the_chief() -> None:
    assert variables({"type": "worker", "index": 1}) == {
        "KERASTUNER_TUNER_ID": "tuner1",
        "KERASTUNER_ORACLE_IP": "cmle-0",
        "KERASTUNER_ORACLE_PORT": "3222",  # 2222 is TensorFlow's
    }
    assert variables({"type": "worker", "index": 0})["KERASTUNER_TUNER_ID"] == "tuner0"


def test_the_chief_listens_everywhere() -> None:
    assert variables({"type": "chief", "index": 0}) == {
        "KERASTUNER_TUNER_ID": "chief",
        "KERASTUNER_ORACLE_IP": "0.0.0.0",
        "KERASTUNER_ORACLE_PORT": "3222",
    }


def test_cluster_spec_alone_will_do() -> None:
    spec = {
        "cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222", "c:2222"]},
        "task": {"type": "workerpool1", "index": 1},
        "environment": "cloud",
    }
    environ = {"CLUSTER_SPEC": json.dumps(spec)}
    found = distributed.variables(environment.service(environ), environ)
    assert (found["KERASTUNER_TUNER_ID"], found["KERASTUNER_ORACLE_IP"]) == ("tuner1", "a")


def test_ports() -> None:
    assert (
        variables({"type": "chief", "index": 0}, KERASTUNER_ORACLE_PORT="9000")["KERASTUNER_ORACLE_PORT"]
        == "9000"
    )
    high = {"chief": ["a:65000"], "worker": ["b:1"]}
    assert variables({"type": "chief", "index": 0}, high)["KERASTUNER_ORACLE_PORT"] == "64000"
    with pytest.raises(UserError, match=r"the chief's address 'a' is not host:port"):
        variables({"type": "chief", "index": 0}, {"chief": ["a"], "worker": ["b:1"]})


def test_tensorflow_sees_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in distributed.VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    config = json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 0}})
    monkeypatch.setenv("TF_CONFIG", config)
    distributed.enter(environment.service({"TF_CONFIG": config}))
    assert "TF_CONFIG" not in os.environ
    assert os.environ["KERASTUNER_ORACLE_IP"] == "cmle-0"


def test_one_machine_is_no_cluster() -> None:
    assert distributed.service({}) is None
    alone = {
        "CLUSTER_SPEC": json.dumps({"cluster": {"workerpool0": ["a:2222"]}, "task": {"type": "workerpool0"}})
    }
    assert distributed.service(alone) is None


def test_a_chief_that_was_killed_gives_a_running_trial_to_its_worker_again(tmp_path: Path) -> None:
    from trainer.tuning import oracle

    def made() -> Any:
        fresh = oracle.make(synthetic.study(tmp_path), seed=1)
        fresh._directory, fresh._project_name = str(tmp_path / "study"), ""
        return fresh

    chief = made()
    first, second = chief.create_trial("tuner0"), chief.create_trial("tuner1")
    chief.update_trial(first.trial_id, {"val_auc": 0.5}, step=1)
    first.status = "COMPLETED"
    chief.end_trial(first)
    again = made()
    again.restore(json.loads((tmp_path / "study" / oracle.STATE).read_text()))
    assert again.create_trial("tuner1").trial_id == second.trial_id
    third = again.create_trial("tuner0")
    assert third.trial_id not in (first.trial_id, second.trial_id)
    assert third.hyperparameters.values == made_after(chief)
    assert again.trials[first.trial_id].score == 0.5


def made_after(chief: Any) -> dict[str, Any]:
    """The values that the chief would have chosen next, had it lived."""
    values: dict[str, Any] = chief.create_trial("tuner0").hyperparameters.values
    return values
