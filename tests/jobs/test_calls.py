"""The request of every shipped job file: the expected text, and word for word a message of the API."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainer.errors import UserError
from trainer.jobs import calls, loading, submit
from trainer.jobs.calls import Target
from trainer.jobs.command import Command
from trainer.jobs.spec import CUSTOM_JOB

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "submit"
SHIPPED = sorted((ROOT / "configs" / "jobs").glob("*.yaml"))
LABELS = {"config_hash": "0123456789abcdef", "git_commit": "0123456789ab", "submission": "fedcba9876543210"}
TARGET = Target("my-project", "us-central1")


def has_sdk() -> bool:
    try:
        return importlib.util.find_spec("google.cloud.aiplatform_v1") is not None
    except ModuleNotFoundError:
        return False


def call_of(path: Path) -> calls.Call:
    call = submit.prepare(
        str(path.relative_to(ROOT)), Command(values={"project": ("my-project",)}), labels=LABELS, environ={}
    )
    assert call is not None, "check refuses it"
    return call


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_request_of_shipped_job(path: Path) -> None:
    text = json.dumps(call_of(path).as_json(), indent=2, ensure_ascii=False) + "\n"
    golden = GOLDEN / f"{path.stem}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), "make golden writes it anew: look at the diff"


def test_every_golden_has_its_job_file() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == {path.stem for path in SHIPPED}


def without_defaults(value: Any) -> Any:
    """Leaves out `false`, which the API's own JSON doesn't write."""
    if isinstance(value, dict):
        return {key: without_defaults(item) for key, item in value.items() if item is not False}
    return [without_defaults(item) for item in value] if isinstance(value, list) else value


@pytest.mark.skipif(
    not has_sdk(), reason="google-cloud-aiplatform is not installed: pip install 'trainer[submit]'"
)
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_golden_is_what_the_api_reads_and_writes(path: Path) -> None:
    """Read by the API's types and written by them again, nothing is lost and nothing is another word."""
    from google.cloud import aiplatform_v1
    from google.protobuf import json_format

    call = call_of(path)
    message = getattr(aiplatform_v1, f"Create{call.kind}Request")
    parsed = json_format.ParseDict(call.request, message.pb(message()))
    assert json_format.MessageToDict(parsed) == without_defaults(call.request)


def test_int64_is_a_text_and_int32_a_number() -> None:
    body = call_of(ROOT / "configs/jobs/hp_tuning.yaml").body
    assert body["trialJobSpec"]["workerPoolSpecs"][0]["replicaCount"] == "1"
    assert body["studySpec"]["parameters"][2]["integerValueSpec"] == {"minValue": "1", "maxValue": "5"}
    assert body["maxTrialCount"] == 50


def test_empty_pools_keep_their_place() -> None:
    text = (ROOT / "configs/jobs/custom_job.yaml").read_text()
    job, _ = loading.parse(text.replace("scheduling:", "- {}\nscheduling:"), "job.yaml")
    assert job is not None
    assert calls.build(job, TARGET).body["jobSpec"]["workerPoolSpecs"][1] == {}


def test_own_labels_win_and_the_model_gets_them_too() -> None:
    job = loading.load("configs/jobs/pipeline.yaml", ["labels.git_commit=mine"])
    body = calls.build(job, TARGET, labels=LABELS).body
    assert body["labels"] == {**LABELS, "app": "flights", "git_commit": "mine"}
    assert body["modelToUpload"]["labels"] == LABELS


def test_too_many_labels() -> None:
    job = loading.load(
        "configs/jobs/pipeline.yaml", [f"labels={json.dumps({f'k{i}': 'v' for i in range(63)})}"]
    )
    with pytest.raises(UserError, match="got 66 with those of submit, expected at most 64"):
        calls.build(job, TARGET, labels=LABELS)


@pytest.mark.parametrize(
    ("endpoint", "host", "plain"),
    [
        ("", "us-central1-aiplatform.googleapis.com", False),
        ("aiplatform.p.example.com", "aiplatform.p.example.com", False),
        ("http://localhost:9060", "localhost:9060", True),
    ],
)
def test_endpoint(endpoint: str, host: str, plain: bool) -> None:
    target = Target("p", "us-central1", endpoint)
    assert (target.host, target.is_plain) == (host, plain)


def test_spec_of_each_kind() -> None:
    for name in ("custom_job", "hp_tuning", "pipeline"):
        call = call_of(ROOT / f"configs/jobs/{name}.yaml")
        assert call.spec["workerPoolSpecs"], call.kind
    assert call_of(ROOT / "configs/jobs/custom_job.yaml").kind == CUSTOM_JOB
