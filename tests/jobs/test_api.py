"""The table of the API's types against the real ones, where google-cloud-aiplatform is installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from trainer.jobs import loading, tables
from trainer.jobs.spec import CUSTOM_JOB, PIPELINE, TUNING_JOB

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "configs" / "jobs").glob("*.yaml"))


def _has_sdk() -> bool:
    try:
        return importlib.util.find_spec("google.cloud.aiplatform_v1") is not None
    except ModuleNotFoundError:
        return False


needs_sdk = pytest.mark.skipif(
    not _has_sdk(), reason="google-cloud-aiplatform is not installed: pip install 'trainer[submit]'"
)


@needs_sdk
def test_table_is_what_the_package_says() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    import job_api

    made, kept = job_api.build(), tables.load("api")
    for part in ("messages", "enums", "oneofs"):
        assert made[part] == kept[part], "run scripts/job_api.py and look at the diff"


@needs_sdk
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_request_is_a_message_of_the_api(path: Path) -> None:
    from google.cloud import aiplatform_v1
    from google.protobuf import json_format

    job = loading.load(str(path))
    message = {
        CUSTOM_JOB: aiplatform_v1.CustomJob,
        TUNING_JOB: aiplatform_v1.HyperparameterTuningJob,
        PIPELINE: aiplatform_v1.TrainingPipeline,
    }[job.kind]
    parsed = json_format.ParseDict(job.request(), message.pb(message()))  # raises on any field or value
    assert parsed.display_name == job.display_name
    if job.kind == PIPELINE:  # the task's inputs are free JSON to the API: they are a message of their own
        spec = aiplatform_v1.CustomJobSpec
        json_format.ParseDict(json.loads(json.dumps(job.spec.plain)), spec.pb(spec()))


def test_table_has_what_the_checks_read() -> None:
    messages = tables.load("api")["messages"]
    assert messages["CustomJobSpec"]["workerPoolSpecs"] == "msg:WorkerPoolSpec[]"
    assert messages["MachineSpec"]["acceleratorType"] == "enum:AcceleratorType"
    assert messages["CustomJob"]["state"].startswith("-")
    assert "NVIDIA_TESLA_T4" in tables.load("api")["enums"]["AcceleratorType"]
