"""Packages, configs and buckets, looked for before a job is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("google.cloud.aiplatform_v1", reason="google-cloud-aiplatform is not installed")

from tests.jobs.test_submit import mine
from tests.servers.vertex import VertexServer
from trainer.jobs import calls, loading, objects, submit
from trainer.jobs.calls import Call, Target
from trainer.jobs.objects import Storage

ROOT = Path(__file__).parents[2]
PACKAGE = "gs://b-local/packages/trainer-0.1.0.tar.gz"
CONFIG = "gs://b-local/configs/flights.yaml"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[VertexServer]:
    monkeypatch.chdir(ROOT)
    with VertexServer() as made:
        made.buckets = {"b-local": "us-central1"}
        made.objects = {PACKAGE: 200, CONFIG: 200}
        yield made


def call_of(path: str) -> Call:
    return calls.build(loading.load(path), Target("p-local", "us-central1"))


def problems(server: VertexServer, path: str) -> list[tuple[bool, str]]:
    found = Storage(server.logging_address).problems(call_of(path), path)
    return [(problem.is_error, problem.text) for problem in found]


@pytest.mark.parametrize(
    "name", ["prebuilt_custom_job", "prebuilt_hp_tuning", "prebuilt_pipeline", "custom_job"]
)
def test_all_there(name: str, server: VertexServer, tmp_path: Path) -> None:
    assert problems(server, mine(tmp_path, name)) == []


@pytest.mark.parametrize("name", ["prebuilt_custom_job", "prebuilt_hp_tuning", "prebuilt_pipeline"])
def test_a_package_that_is_not_there(name: str, server: VertexServer, tmp_path: Path) -> None:
    path = mine(tmp_path, name)
    del server.objects[PACKAGE]
    ((is_error, text),) = problems(server, path)
    line = next(i for i, row in enumerate(Path(path).read_text().splitlines(), 1) if "packageUris" in row)
    assert is_error
    assert text.startswith(f"{path}:{line}: ")
    assert f"workerPoolSpecs[0].pythonPackageSpec.packageUris[0]: {PACKAGE} is not there" in text


def test_a_config_that_is_not_there_is_told_once_for_all_pools(server: VertexServer, tmp_path: Path) -> None:
    del server.objects[CONFIG]
    ((is_error, text),) = problems(server, mine(tmp_path, "prebuilt_multi_worker"))
    assert is_error
    assert f"args[0]: {CONFIG} is not there" in text


def test_a_config_in_two_words(server: VertexServer, tmp_path: Path) -> None:
    path = mine(tmp_path, "prebuilt_custom_job", (f"- --config={CONFIG}", f"- --config\n    - {CONFIG}"))
    found = [item.uri for item in objects.named(call_of(path))]
    assert found == [PACKAGE, CONFIG, "gs://b-local/runs/flights"]


def test_no_bucket(server: VertexServer, tmp_path: Path) -> None:
    server.buckets = {}
    ((is_error, text),) = problems(server, mine(tmp_path))
    assert is_error
    assert "baseOutputDirectory.outputUriPrefix: there is no bucket b-local" in text


@pytest.mark.parametrize(
    ("location", "words"),
    [
        (
            "us-central1,us-east1",
            "is dual-region (us-central1,us-east1), which the training service doesn't support",
        ),
        ("europe-west4", "is in europe-west4 and the job in us-central1"),
    ],
)
def test_a_bucket_elsewhere_is_a_warning(
    location: str, words: str, server: VertexServer, tmp_path: Path
) -> None:
    server.buckets["b-local"] = location
    ((is_error, text),) = problems(server, mine(tmp_path))
    assert not is_error
    assert words in text


def test_what_may_not_be_read_stops_nothing(server: VertexServer, tmp_path: Path) -> None:
    server.objects[PACKAGE] = 403
    ((is_error, text),) = problems(server, mine(tmp_path, "prebuilt_custom_job"))
    assert not is_error
    assert "can't be looked up (403)" in text


def test_nobody_answers(tmp_path: Path) -> None:
    path = mine(tmp_path, "prebuilt_custom_job")
    found = Storage("http://127.0.0.1:1").problems(call_of(path), path)
    assert found
    assert not any(problem.is_error for problem in found)


def test_submit_sends_nothing_that_can_not_start(
    server: VertexServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    del server.objects[PACKAGE]
    argv = [mine(tmp_path, "prebuilt_custom_job"), "--project=p-local", f"--endpoint={server.address}"]
    argv.append(f"--storage_endpoint={server.logging_address}")
    assert submit.main(argv) == 1
    assert "nothing was sent" in caplog.text
    assert not server.jobs
    server.objects[PACKAGE] = 200
    assert submit.main(argv) == 0
    assert len(server.jobs) == 1
