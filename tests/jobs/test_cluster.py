"""Variables of replicas that no shipped job file has: empty pools, evaluators, trials, `env` of the spec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from trainer import environment
from trainer.jobs import cluster, loading
from trainer.jobs.cluster import Identity
from trainer.jobs.spec import Job

POOL = {
    "machineSpec": {"machineType": "n1-standard-8"},
    "replicaCount": 1,
    "containerSpec": {"imageUri": "us-central1-docker.pkg.dev/my-project/x/y:1"},
}


def _job(folder: Path, pools: list[dict], **spec: object) -> Job:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({"workerPoolSpecs": pools, **spec}))
    return loading.load(str(path))


def _hosts(job: Job) -> dict[int, list[str]]:
    return {
        pool.index: [f"h{pool.index}{index}:2222" for index in range(pool.replicas)]
        for pool in job.active_pools
    }


def test_an_empty_pool_keeps_the_place_of_those_behind_it(tmp_path: Path) -> None:
    job = _job(tmp_path, [POOL, {**POOL, "replicaCount": 2}, {}, POOL])
    replicas = cluster.replicas(job)
    assert [replica.name for replica in replicas] == ["chief", "worker1", "worker2", "evaluator0"]
    found = cluster.variables(job, replicas[-1], _hosts(job), Identity())
    assert json.loads(found["TF_CONFIG"]) == {
        "cluster": {"chief": ["h00:2222"], "worker": ["h10:2222", "h11:2222"]},  # never an evaluator
        "environment": "cloud",
        "job": {},
        "task": {"type": "evaluator", "index": 0, "cloud": "local"},
    }
    spec = json.loads(found["CLUSTER_SPEC"])
    assert spec["cluster"]["workerpool3"] == ["h30:2222"]
    assert spec["task"] == {"type": "workerpool3", "index": 0}
    assert environment.service(found).role == "evaluator"


def test_reduction_servers_change_neither_roles_nor_the_number_of_workers(tmp_path: Path) -> None:
    reducers = {
        "machineSpec": {"machineType": "n1-highcpu-16"},
        "replicaCount": 2,
        "containerSpec": {
            "imageUri": "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
        },
    }
    job = _job(tmp_path, [POOL, POOL, reducers])
    chief, worker, *others = cluster.replicas(job)
    assert [replica.name for replica in others] == ["reducer0", "reducer1"]
    for replica, rank in ((chief, 0), (worker, 1)):
        found = cluster.variables(job, replica, _hosts(job), Identity())
        assert json.loads(found["TF_CONFIG"])["cluster"]["ps"] == ["h20:2222", "h21:2222"]
        me = environment.service(found)
        assert (me.workers, me.worker_index, me.on_service) == (2, rank, True)
        environment.clean_tf_config(found)  # what TensorFlow gets
        assert set(json.loads(found["TF_CONFIG"])["cluster"]) == {"chief", "worker"}


def test_a_lone_machine_has_no_tf_config_and_no_folders_without_output(tmp_path: Path) -> None:
    job = _job(tmp_path, [POOL])
    found = cluster.variables(job, cluster.replicas(job)[0], _hosts(job), Identity())
    assert sorted(found) == ["CLOUD_ML_JOB_ID", "CLOUD_ML_PROJECT_ID", "CLUSTER_SPEC"]


def test_a_trial_has_its_id_everywhere_and_once_in_its_folders(tmp_path: Path) -> None:
    job = _job(tmp_path, [POOL, POOL])
    who = Identity(base="gs://b/p", trial="4", metric_file="/m/output.metrics")
    found = cluster.variables(job, cluster.replicas(job)[1], _hosts(job), who)
    assert found["AIP_CHECKPOINT_DIR"] == "gs://b/p/4/checkpoints/"
    assert found["CLOUD_ML_TRIAL_ID"] == "4"
    assert found["CLOUD_ML_HP_METRIC_FILE"] == "/m/output.metrics"
    assert json.loads(found["TF_CONFIG"])["task"]["trial"] == "4"
    assert json.loads(found["CLUSTER_SPEC"])["task"]["trial"] == "4"


def test_env_of_the_spec_refers_to_what_stands_before(tmp_path: Path) -> None:
    env = [
        {"name": "A", "value": "$(AIP_MODEL_DIR)x"},
        {"name": "B", "value": "$(A)/$$(A)/$(LATER)"},
        {"name": "CLOUD_ML_JOB_ID", "value": "mine"},
        {"name": "LATER", "value": "z"},
    ]
    pool = {**POOL, "containerSpec": {**POOL["containerSpec"], "env": env}}
    job = _job(tmp_path, [pool])
    who = Identity(base="gs://b/p", job_id="77")
    found = cluster.environment(job, cluster.replicas(job)[0], _hosts(job), who)
    assert found["A"] == "gs://b/p/model/x"
    assert found["B"] == "gs://b/p/model/x/$(A)/$(LATER)"
    assert found["LATER"] == "z"
    assert found["CLOUD_ML_JOB_ID"] == "77"  # the service's own; check refuses it


@pytest.mark.parametrize(
    ("spec", "number"),
    [
        ({}, cluster.PROJECT_NUMBER),
        ({"network": "projects/42/global/networks/n"}, "42"),
        ({"network": "projects/by-id/global/networks/n"}, cluster.PROJECT_NUMBER),
        ({"tensorboard": "projects/43/locations/us-central1/tensorboards/1"}, "43"),
    ],
)
def test_project_number(spec: dict[str, str], number: str, tmp_path: Path) -> None:
    assert cluster.project_number(_job(tmp_path, [POOL], **spec)) == number


def test_experiments_are_named(tmp_path: Path) -> None:
    name = "projects/1/locations/us-central1/metadataStores/default/contexts/e"
    job = _job(tmp_path, [POOL], experiment=name, experimentRun=f"{name}-r1")
    found = cluster.variables(job, cluster.replicas(job)[0], _hosts(job), Identity())
    assert found["AIP_EXPERIMENT_NAME"] == name
    assert found["AIP_EXPERIMENT_RUN_NAME"] == f"{name}-r1"
