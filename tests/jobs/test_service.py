"""The service's API against a local server with the real types: refusals as sentences, nothing made twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.aiplatform_v1", reason="google-cloud-aiplatform is not installed")

import grpc
from google.cloud.aiplatform_v1 import types

from tests.servers.vertex import Fault, VertexServer, disabled, invalid, quota
from trainer.errors import EXIT_FAILED, EXIT_USER_ERROR, UserError
from trainer.jobs import calls, loading
from trainer.jobs.calls import Call, Target
from trainer.jobs.refusals import RefusedError
from trainer.jobs.service import Service

ROOT = Path(__file__).parents[2]
FILE = "configs/jobs/multi_gpu.yaml"
LABELS = {"submission": "fedcba9876543210"}
Code = grpc.StatusCode


@pytest.fixture
def server() -> Iterator[VertexServer]:
    with VertexServer() as made:
        yield made


def call_for(server: VertexServer, name: str = "multi_gpu") -> Call:
    job = loading.load(str(ROOT / "configs" / "jobs" / f"{name}.yaml"))
    return calls.build(job, Target("p-local", "us-central1", server.address), labels=LABELS)


def service_for(server: VertexServer, name: str = "multi_gpu") -> Service:
    return Service(call_for(server, name), FILE)


REFUSALS = {
    "quota": (
        quota("custom_model_training_nvidia_l4_gpus"),
        EXIT_FAILED,
        (
            "project p-local has too little quota of custom_model_training_nvidia_l4_gpus in us-central1",
            "the job asks for 1 x g2-standard-48 with 4 NVIDIA_L4",
            "https://console.cloud.google.com/iam-admin/quotas?project=p-local",
        ),
    ),
    "rate": (
        Fault(Code.RESOURCE_EXHAUSTED, "Too many requests, slow down."),
        EXIT_FAILED,
        ("a quota or limit of project p-local in us-central1 is used up (Too many requests, slow down)",),
    ),
    "permission": (
        Fault(
            Code.PERMISSION_DENIED,
            "Permission 'aiplatform.customJobs.create' denied on resource "
            "'//aiplatform.googleapis.com/projects/p-local/locations/us-central1' (or it may not exist).",
        ),
        EXIT_USER_ERROR,
        ("lacks the permission aiplatform.customJobs.create in project p-local", "roles/aiplatform.user"),
    ),
    "act-as": (
        Fault(
            Code.PERMISSION_DENIED,
            "You do not have permission to act as service account: "
            "trainer@my-project.iam.gserviceaccount.com (or it may not exist).",
        ),
        EXIT_USER_ERROR,
        (
            "you may not start jobs as trainer@my-project.iam.gserviceaccount.com",
            "roles/iam.serviceAccountUser",
        ),
    ),
    "api-off": (
        disabled("p-local"),
        EXIT_USER_ERROR,
        ("gcloud services enable aiplatform.googleapis.com --project=p-local",),
    ),
    "argument": (
        invalid(
            "custom_job.job_spec.worker_pool_specs[0].machine_spec.machine_type",
            "Machine type is not supported.",
        ),
        EXIT_USER_ERROR,
        (" field: line 5: workerPoolSpecs[0].machineSpec.machineType: Machine type is not supported.",),
    ),
    "argument-bare": (
        Fault(Code.INVALID_ARGUMENT, "Unable to parse image URI."),
        EXIT_USER_ERROR,
        ("the service refuses a field: Unable to parse image URI",),
    ),
    "credentials": (
        Fault(Code.UNAUTHENTICATED, "Request had invalid authentication credentials."),
        EXIT_USER_ERROR,
        ("gcloud auth application-default login",),
    ),
    "not-found": (
        Fault(Code.NOT_FOUND, "The PersistentResource does not exist."),
        EXIT_USER_ERROR,
        ("project p-local, region us-central1", "The PersistentResource does not exist"),
    ),
    "precondition": (
        Fault(Code.FAILED_PRECONDITION, "Service agents are being provisioned."),
        EXIT_USER_ERROR,
        ("the project is not ready", "Service agents are being provisioned"),
    ),
    "exists": (
        Fault(Code.ALREADY_EXISTS, "There is one."),
        EXIT_USER_ERROR,
        ("ALREADY_EXISTS: There is one",),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_is_a_sentence(name: str, server: VertexServer) -> None:
    fault, exit_code, words = REFUSALS[name]
    server.faults["CreateCustomJob"] = [fault]
    with pytest.raises(RefusedError) as caught:
        service_for(server).create(pause=lambda _: pytest.fail("this is not worth another try"))
    told = str(caught.value)
    assert told.startswith(f"{FILE}: {fault.code.name}: ")
    assert "\n" not in told
    for word in words:
        assert word in told
    assert caught.value.exit_code == exit_code
    assert not server.jobs


def test_unavailable_is_tried_again(server: VertexServer) -> None:
    server.faults["CreateCustomJob"] = [Fault(Code.UNAVAILABLE, "try again")] * 3
    waits: list[float] = []
    name = service_for(server).create(pause=waits.append)
    assert list(server.jobs) == [name]
    assert waits == [2.0, 4.0, 8.0]


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.INTERNAL])
@pytest.mark.parametrize("job", ["multi_gpu", "hp_tuning", "pipeline"])
def test_a_lost_answer_makes_no_second_job(code: Code, job: str, server: VertexServer) -> None:
    """The job is made, the answer gets lost: it is found by its label, and not paid for twice."""
    service = service_for(server, job)
    method = f"Create{service.call.kind}"
    server.faults[method] = [Fault(code, "the connection broke", after=True)]
    name = service.create(pause=lambda _: None)
    assert list(server.jobs) == [name]
    assert len(server.called(method)) == 1


def test_the_job_of_another_submission_is_not_taken_for_ones_own(server: VertexServer) -> None:
    other = service_for(server).create()
    call = call_for(server)
    call.body["labels"] = {"submission": "0000000000000000"}
    server.faults["CreateCustomJob"] = [Fault(Code.UNAVAILABLE, "try again")]
    assert Service(call, FILE).create(pause=lambda _: None) != other
    assert len(server.jobs) == 2


def test_never_available_ends_in_a_sentence(server: VertexServer) -> None:
    server.faults["CreateCustomJob"] = [Fault(Code.UNAVAILABLE, "the connection broke")] * 9
    with pytest.raises(
        RefusedError, match=r"UNAVAILABLE: 127\.0\.0\.1:\d+ can't be reached .* and run"
    ) as caught:
        service_for(server).create(pause=lambda _: None)
    assert caught.value.exit_code == EXIT_FAILED
    assert len(server.called("CreateCustomJob")) == 5


def test_request_that_the_types_refuse(server: VertexServer) -> None:
    call = call_for(server)
    call.body["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]["acceleratorCount"] = "four"
    with pytest.raises(UserError, match="the API's own types refuse it"):
        Service(call, FILE).create()


def test_states_are_words(server: VertexServer) -> None:
    service = service_for(server)
    name = service.create()
    seen = [service.status(name) for _ in range(5)]
    assert [status.state for status in seen] == ["QUEUED", "PENDING", "RUNNING", "RUNNING", "SUCCEEDED"]
    assert [status.is_done for status in seen] == [False] * 4 + [True]
    assert seen[-1].succeeded
    assert seen[0].started is None
    assert seen[-1].started is not None
    assert seen[-1].ended is not None
    assert seen[-1].log_jobs == (name.rpartition("/")[2],)


def test_failed_says_why(server: VertexServer) -> None:
    server.states = ["FAILED"]
    service = service_for(server)
    status = service.status(service.create())
    assert (status.state, status.succeeded) == ("FAILED", False)
    assert "non-zero status of 1" in status.error


def test_a_short_outage_while_waiting_is_borne(server: VertexServer) -> None:
    service = service_for(server)
    name = service.create()
    server.faults["GetCustomJob"] = [Fault(Code.UNAVAILABLE, "try again")]
    assert service.status(name).state == "QUEUED"


def test_a_job_that_is_gone(server: VertexServer) -> None:
    with pytest.raises(RefusedError, match="NOT_FOUND"):
        service_for(server).status("projects/p-local/locations/us-central1/customJobs/1")


def test_study_tells_its_trials_and_the_best(server: VertexServer) -> None:
    def trials(job: Any) -> None:
        states = types.Trial.State
        job.trials = [
            types.Trial(
                id=str(i),
                state=states.SUCCEEDED if i < 4 else states.ACTIVE,
                final_measurement=types.Measurement(
                    metrics=[types.Measurement.Metric(metric_id="val_auc", value=0.6 + i / 100)]
                    if i < 4
                    else []
                ),
            )
            for i in range(1, 6)
        ]

    server.on_get = trials
    service = service_for(server, "hp_tuning")
    status = service.status(service.create())
    assert status.trials == {"SUCCEEDED": 3, "ACTIVE": 2}
    assert status.best is not None
    assert (status.best[0], pytest.approx(0.63), status.best[2]) == ("val_auc", status.best[1], "3")


def test_pipeline_tells_its_backing_job_and_its_model(server: VertexServer) -> None:
    service = service_for(server, "pipeline")
    name = service.create()
    seen = [service.status(name) for _ in range(5)]
    assert [status.state for status in seen][-2:] == ["RUNNING", "SUCCEEDED"]
    (backing,) = seen[0].log_jobs
    assert backing != name.rpartition("/")[2]
    assert seen[-1].model == "projects/p-local/locations/us-central1/models/77@1"


def test_no_credentials_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    job = loading.load(str(ROOT / FILE))
    call = calls.build(job, Target("p-local", "us-central1"))
    with pytest.raises(UserError, match=r"no credentials .*gcloud auth application-default login"):
        Service(call, FILE)
