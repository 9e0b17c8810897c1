"""Cloud Logging against a local server: pages, late entries, nothing twice, refusals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("google.cloud.aiplatform_v1", reason="google-cloud-aiplatform is not installed")

from tests.servers.vertex import Log, VertexServer
from trainer.jobs import cloudlogs
from trainer.jobs.cloudlogs import CloudLogs, Entry, LogsError

T = 1_790_000_000.25


@pytest.fixture
def server() -> Iterator[VertexServer]:
    with VertexServer() as made:
        yield made


def logs_of(server: VertexServer) -> CloudLogs:
    return CloudLogs("p-local", server.logging_address)


def test_entries_of_the_job_alone_each_once(server: VertexServer) -> None:
    logs = logs_of(server)
    server.logs = [Log("1", "a", time=T), Log("2", "of another job", time=T)]
    assert list(logs.new(["1"])) == [Entry("workerpool0-0", "INFO", "a")]
    assert list(logs.new(["1"])) == []
    server.logs.append(Log("1", "b", "WARNING", "workerpool1-2", time=T + 5))
    assert list(logs.new(["1"])) == [Entry("workerpool1-2", "WARNING", "b")]
    body = server.called("entries:list")[-1]
    assert body["resourceNames"] == ["projects/p-local"]
    assert 'timestamp>="' in body["filter"]


def test_an_entry_that_comes_late_is_not_lost(server: VertexServer) -> None:
    logs = logs_of(server)
    server.logs = [Log("1", "second", time=T + 30)]
    assert [entry.message for entry in logs.new(["1"])] == ["second"]
    server.logs.append(Log("1", "first, but late", time=T))
    assert [entry.message for entry in logs.new(["1"])] == ["first, but late"]


def test_pages(server: VertexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudlogs, "_PAGE", 7)
    server.logs = [Log("1", str(i), time=T + i) for i in range(40)]
    assert [entry.message for entry in logs_of(server).new(["1"])] == [str(i) for i in range(40)]
    assert len(server.called("entries:list")) == 6


def test_trials_are_named_and_jobs_may_be_several(server: VertexServer) -> None:
    server.logs = [Log("1", "a", trial="3", time=T), Log("2", "b", task="service", time=T + 1)]
    assert [entry.replica for entry in logs_of(server).new(["1", "2"])] == [
        "trial 3 workerpool0-0",
        "service",
    ]


def test_without_jobs_nothing_is_asked(server: VertexServer) -> None:
    assert list(logs_of(server).new([])) == []
    assert not server.requests


def test_refused_and_gone(server: VertexServer) -> None:
    logs = logs_of(server)
    server.log_status = 403
    with pytest.raises(LogsError, match=r"\(403\): Permission denied"):
        list(logs.new(["1"]))
    gone = CloudLogs("p-local", "http://127.0.0.1:1")
    with pytest.raises(LogsError, match="can't be read"):
        list(gone.new(["1"]))
