"""Job files as a typed model: forms, spellings, places, and the request that they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.errors import UserError
from trainer.jobs import document, loading
from trainer.jobs.spec import CUSTOM_JOB, PIPELINE, TUNING_JOB

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "configs" / "jobs"


def test_multi_worker_pools() -> None:
    job = loading.load(str(JOBS / "multi_worker.yaml"))
    assert (job.kind, job.gcloud, job.display_name, job.workers) == (CUSTOM_JOB, True, "multi_worker", 4)
    chief, worker = job.pools
    assert (chief.role, chief.name, chief.replicas) == ("chief", "workerpool0", 1)
    assert (worker.role, worker.name, worker.replicas) == ("worker", "workerpool1", 3)
    assert (chief.machine_type, chief.accelerator_type, chief.accelerator_count) == (
        "n1-standard-16", "NVIDIA_TESLA_T4", 2,
    )  # fmt: skip
    assert chief.args[0] == "--config=configs/flights.yaml"
    assert (chief.disk_type, chief.disk_gb) == ("pd-ssd", 100)
    assert job.base_output == "gs://my-bucket/runs/flights-multi-worker"
    assert job.scheduling.timeout == 14400
    assert job.scheduling.restarts


def test_reducers_and_empty_pools_keep_their_place() -> None:
    job = loading.load(str(JOBS / "multi_worker_reduction_server.yaml"))
    assert [pool.role for pool in job.pools] == ["chief", "worker", "reducer"]
    assert job.workers == 4
    assert [pool.index for pool in job.training_pools] == [0, 1]
    text = (
        (JOBS / "custom_job.yaml").read_text().replace("workerPoolSpecs:\n", "workerPoolSpecs:\n- {}\n- {}\n")
    )
    job, findings = loading.parse(text, "job.yaml")
    assert job is not None
    assert not findings
    assert [pool.empty for pool in job.pools] == [True, True, False]
    assert [pool.index for pool in job.active_pools] == [2]


def test_tuning_job() -> None:
    job = loading.load(str(JOBS / "hp_tuning.yaml"))
    study = job.study
    assert study is not None
    assert (job.kind, job.gcloud, job.display_name) == (TUNING_JOB, True, "flights-study")
    assert (study.max_trials, study.parallel_trials, study.max_failed_trials) == (50, 5, 5)
    assert [(name, goal) for name, goal, _ in study.metrics] == [("val_auc", "MAXIMIZE")]
    rate, batch, layers, optimizer = study.parameters
    assert (rate.kind, rate.low, rate.high, rate.scale) == ("double", 1e-4, 1e-2, "UNIT_LOG_SCALE")
    assert (batch.kind, batch.values) == ("discrete", (512.0, 1024.0, 2048.0, 4096.0))
    assert (layers.kind, layers.low, layers.high) == ("integer", 1, 5)
    assert (optimizer.kind, optimizer.values) == ("categorical", ("adam", "adamw"))
    assert job.pools[0].accelerator_count == 1


def test_pipeline_has_its_job_in_the_task_inputs() -> None:
    job = loading.load(str(JOBS / "pipeline.yaml"))
    assert (job.kind, job.gcloud) == (PIPELINE, False)
    assert job.base_output == "gs://my-bucket/runs/flights-pipeline"
    assert job.pools[0].value.path == "trainingTaskInputs.workerPoolSpecs[0]"


def test_snake_case_reads_the_same() -> None:
    text = (JOBS / "private_network.yaml").read_text()
    snake = text
    for name in (
        "displayName", "encryptionSpec", "kmsKeyName", "jobSpec", "workerPoolSpecs", "machineSpec",
        "machineType", "replicaCount", "containerSpec", "imageUri", "reservedIpRanges",
        "serviceAccount", "baseOutputDirectory", "outputUriPrefix", "enableWebAccess",
    ):  # fmt: skip
        small = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
        assert name in snake
        snake = snake.replace(f"{name}:", f"{small}:")
    assert "machineType" not in snake
    camel_job, camel_findings = loading.parse(text, "job.yaml")
    snake_job, snake_findings = loading.parse(snake, "job.yaml")
    assert camel_findings == snake_findings == []  # a whole CustomJob is nothing that gcloud takes
    assert camel_job is not None
    assert snake_job is not None
    assert snake_job.request() == camel_job.request()


def test_request_wraps_what_gcloud_takes() -> None:
    request = loading.load(str(JOBS / "custom_job.yaml")).request()
    assert set(request) == {"displayName", "jobSpec"}
    assert request["jobSpec"]["scheduling"] == {"timeout": "7200s"}
    assert request["jobSpec"]["workerPoolSpecs"][0]["replicaCount"] == 1
    pipeline = loading.load(str(JOBS / "pipeline_managed_dataset.yaml")).request()
    assert pipeline["inputDataConfig"]["datasetId"] == "1234567890123456789"
    assert pipeline["trainingTaskInputs"]["workerPoolSpecs"]


def test_every_field_has_its_line() -> None:
    path = JOBS / "multi_worker.yaml"
    lines = path.read_text().splitlines()
    job = loading.load(str(path))
    value = job.pools[1].at("machineSpec", "acceleratorCount")
    assert value.path == "workerPoolSpecs[1].machineSpec.acceleratorCount"
    assert lines[value.line - 1].strip() == "acceleratorCount: 2"
    assert lines[value.line - 1].index("acceleratorCount") == value.column - 1
    argument = job.pools[1].at("containerSpec", "args", 3)
    assert "--batch_size" in lines[argument.line - 1]
    missing = job.pools[1].at("diskSpec", "bootDiskType")  # not there: what it would stand in
    assert missing.path == "workerPoolSpecs[1]"


def test_load_tells_every_mistake_at_once(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = (JOBS / "custom_job.yaml").read_text()
    path.write_text(text.replace("replicaCount", "replicas").replace("timeout: 7200s", "timeout: soon"))
    with pytest.raises(UserError) as caught:
        loading.load(str(path))
    first, second = str(caught.value).splitlines()
    assert "write replicaCount" in first
    assert "got 'soon'" in second


def test_values_are_laid_over_a_file() -> None:
    job = loading.load(
        str(JOBS / "multi_worker.yaml"),
        [
            "workerPoolSpecs[1].replicaCount=7",
            "scheduling.strategy=SPOT",
            "workerPoolSpecs[0].containerSpec.args[6]=--seed=2",
        ],
    )
    assert job.pools[1].replicas == 7
    assert job.scheduling.strategy == "SPOT"
    assert job.scheduling.timeout == 14400
    assert job.pools[0].args[-1] == "--seed=2"
    with pytest.raises(UserError, match="has 2 items"):
        loading.load(str(JOBS / "multi_worker.yaml"), ["workerPoolSpecs[4].replicaCount=7"])
    with pytest.raises(UserError, match="PATH=VALUE"):
        loading.load(str(JOBS / "multi_worker.yaml"), ["replicaCount"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\na: 2\n", "job.yaml:2: the field 'a' is given twice"),
        ("a: [1\n", "job.yaml:2: not valid YAML"),
        ("a: !!python/name:os.system x\n", "has no meaning"),
        ("x: &x {a: 1}\ny:\n  <<: *x\n", "not understood by gcloud"),
        ("? [a]\n: 1\n", "single word"),
        ("a: 2026-13-45T99:00:00\n" * 1 + "b: " + "[" * 60 + "]" * 60, "nested more than"),
    ],
)
def test_what_gcloud_would_not_read(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says.replace("[", r"\[")):
        document.parse(text, "job.yaml")


def test_yaml_kinds_are_kept() -> None:
    value = document.parse("a: 3\nb: '3'\nc: yes\nd: 2026-01-31\ne:\nf: 1e-5\ng: 1.5\n", "job.yaml")
    kinds = {key: item.kind for key, item in value.data.items()}
    assert kinds == {
        "a": "int", "b": "str", "c": "bool", "d": "timestamp", "e": "null", "f": "str", "g": "float",
    }  # fmt: skip
    assert value.plain == {"a": 3, "b": "3", "c": True, "d": "2026-01-31", "e": None, "f": "1e-5", "g": 1.5}
