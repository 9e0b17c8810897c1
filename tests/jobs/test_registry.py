"""The model that a job puts into the registry: which options need each other, and the pipeline they make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.test_calls import has_sdk
from trainer import flags
from trainer.errors import UserError
from trainer.jobs import registry, submit

ROOT = Path(__file__).parents[2]
IMAGE = "us-docker.pkg.dev/vertex-ai-restricted/prediction/tf_opt-cpu.nightly:latest"
MODEL = ["--model=flights", f"--serving_image={IMAGE}"]


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def sent(capsys: pytest.CaptureFixture[str], job: str, *argv: str) -> dict[str, Any]:
    code = submit.main([f"configs/jobs/{job}.yaml", "--project=p-local", "--dry_run", *argv])
    assert code == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["method"].endswith("PipelineService/CreateTrainingPipeline")
    body: dict[str, Any] = found["request"]["trainingPipeline"]
    return body


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["--model=flights"],
            "--model needs --serving_image: --model NAME and --serving_image IMAGE go together",
        ),
        ([f"--serving_image={IMAGE}"], "--serving_image needs --model"),
        (["--alias=candidate"], "--alias needs --model"),
        ([*MODEL, "--alias=9lives"], "Invalid --alias: got '9lives'"),
        ([*MODEL, "--serving_env=A"], "Invalid --serving_env: got 'A', expected NAME=VALUE"),
        ([*MODEL, "--explain=0.5"], "Invalid --explain: got 0, expected 1 to 50"),
    ],
)
def test_options_that_need_each_other(argv: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        submit.main(["configs/jobs/custom_job.yaml", "--project=p-local", *argv])
    assert words in str(caught.value)


def test_custom_job_becomes_a_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    body = sent(
        capsys, "custom_job", *MODEL, "--serving_env=TF_NUM_INTEROP_THREADS=2", "--serving_env=A=b=c",
        "--alias=candidate", "--parent_model=77",
    )  # fmt: skip
    assert body["trainingTaskDefinition"].endswith("custom_task_1.0.0.yaml")
    spec = body["trainingTaskInputs"]
    assert spec["workerPoolSpecs"][0]["machineSpec"] == {"machineType": "n1-standard-8"}
    assert spec["baseOutputDirectory"] == {"outputUriPrefix": "gs://my-bucket/runs/flights"}
    model = body["modelToUpload"]
    assert model["displayName"] == "flights"
    assert model["versionAliases"] == ["candidate"]
    assert model["containerSpec"] == {
        "imageUri": IMAGE,
        "env": [{"name": "TF_NUM_INTEROP_THREADS", "value": "2"}, {"name": "A", "value": "b=c"}],
    }
    assert body["parentModel"] == "projects/p-local/locations/us-central1/models/77"
    assert body["displayName"] == "custom_job"
    assert model["labels"] == body["labels"]
    assert "artifactUri" not in model, "the service takes AIP_MODEL_DIR"


def test_key_and_labels_move_to_the_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    body = sent(capsys, "private_network", *MODEL)
    assert body["encryptionSpec"]["kmsKeyName"].endswith("cryptoKeys/jobs")
    assert body["labels"]["app"] == "flights"
    assert body["trainingTaskInputs"]["network"].endswith("networks/training")


def test_study_becomes_a_tuning_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    body = sent(capsys, "hp_tuning", *MODEL)
    assert body["trainingTaskDefinition"].endswith("hyperparameter_tuning_task_1.0.0.yaml")
    inputs = body["trainingTaskInputs"]
    assert (inputs["maxTrialCount"], inputs["parallelTrialCount"]) == (50, 5)
    assert inputs["trialJobSpec"]["workerPoolSpecs"]
    assert inputs["studySpec"]["metrics"] == [{"metricId": "val_auc", "goal": "MAXIMIZE"}]


def test_pipeline_keeps_what_the_options_leave(capsys: pytest.CaptureFixture[str]) -> None:
    body = sent(capsys, "pipeline", "--alias=golden", "--serving_env=A=b")
    model = body["modelToUpload"]
    assert model["displayName"] == "flights"
    assert model["versionAliases"] == ["golden"]
    assert model["containerSpec"]["imageUri"].endswith("tf_opt-cpu.nightly:latest")
    assert model["containerSpec"]["env"] == [{"name": "A", "value": "b"}]


def test_a_server_that_is_older_than_the_model_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    argv = ["--model=flights", "--serving_image=us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-99:latest"]
    assert submit.main(["configs/jobs/custom_job.yaml", "--project=p-local", "--dry_run", *argv]) == 1
    assert "modelToUpload.containerSpec.imageUri" in caplog.text
    assert "nothing was sent" in caplog.text


def test_without_a_base_output_directory_there_is_no_model() -> None:
    argv = [
        "--set=baseOutputDirectory=",
        "--set=workerPoolSpecs[0].containerSpec.args[3]=--output_dir=gs://b/x",
    ]
    argv += ["--set=workerPoolSpecs[0].containerSpec.args[4]=--data.shuffle=true"]
    with pytest.raises(UserError, match="--model needs baseOutputDirectory"):
        submit.main(["configs/jobs/custom_job.yaml", "--project=p-local", "--dry_run", *argv, *MODEL])


def test_explanation_names_inputs_outputs_and_labels(capsys: pytest.CaptureFixture[str]) -> None:
    spec = sent(capsys, "custom_job", *MODEL, "--explain=10")["modelToUpload"]["explanationSpec"]
    assert spec["parameters"] == {"sampledShapleyAttribution": {"pathCount": 10}}
    inputs = spec["metadata"]["inputs"]
    assert inputs["carrier"] == {"inputTensorName": "carrier"}
    assert inputs["distance"] == {"inputTensorName": "distance", "inputBaselines": [-1e38]}
    assert "flight_id" not in inputs, "the key is no feature"
    assert spec["metadata"]["outputs"] == {
        "probabilities": {"outputTensorName": "probabilities", "displayNameMappingKey": "classes"}
    }


def test_explanation_names_known_classes() -> None:
    config = flags.load("configs/flights.yaml", ["--label.classes=on_time,late"])
    (shown,) = registry.explanation(config, 5)["metadata"]["outputs"].values()
    assert shown["indexDisplayNameMapping"] == ["on_time", "late"]


@pytest.mark.skipif(not has_sdk(), reason="google-cloud-aiplatform is not installed")
def test_pipeline_is_a_message_of_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    from google.cloud.aiplatform_v1 import types
    from google.protobuf import json_format

    body = sent(capsys, "hp_tuning", *MODEL, "--alias=candidate", "--explain=10", "--serving_env=A=b")
    message = types.TrainingPipeline
    parsed = json_format.ParseDict(body, message.pb(message()))
    assert json_format.MessageToDict(parsed) == body
