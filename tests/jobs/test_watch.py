"""Waiting for a job: states, logs, the end. The service is played by a list of states."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from trainer.jobs import calls, links, loading, watch
from trainer.jobs.calls import Target
from trainer.jobs.cloudlogs import Entry, LogsError
from trainer.jobs.service import Status

ROOT = Path(__file__).parents[2]
NAME = "projects/p/locations/us-central1/customJobs/4200"


class Played:
    """A service that tells one state after the other, and a clock that goes with it."""

    def __init__(self, *states: Status) -> None:
        self.states = list(states)
        self.now = 0.0
        self.asked = 0

    def status(self, name: str) -> Status:
        assert name == NAME
        self.asked += 1
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


class Logs:
    """Log entries by look; an exception is raised."""

    def __init__(self, *looks: list[Entry] | Exception) -> None:
        self.looks = list(looks)

    def new(self, job_ids: Sequence[str]) -> Iterator[Entry]:
        look = self.looks.pop(0) if self.looks else []
        if isinstance(look, Exception):
            raise look
        yield from look


def call(name: str = "custom_job") -> calls.Call:
    return calls.build(loading.load(str(ROOT / f"configs/jobs/{name}.yaml")), Target("p", "us-central1"))


def wait(played: Played, logs: Logs | None = None, **kwargs: object) -> int:
    return watch.wait(played, call(), NAME, logs, pause=played.pause, clock=played.clock, **kwargs)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trainer")


def test_each_state_once_and_exit_code(caplog: pytest.LogCaptureFixture) -> None:
    played = Played(Status("PENDING"), Status("RUNNING"), Status("RUNNING"), Status("SUCCEEDED"))
    assert wait(played, poll=60) == 0
    assert [record.getMessage().split()[0] for record in caplog.records] == [
        "PENDING",
        "RUNNING",
        "SUCCEEDED:",
    ]
    assert "RUNNING 00:01:00" in caplog.text


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED"])
def test_what_is_no_success_exits_with_1(state: str, caplog: pytest.LogCaptureFixture) -> None:
    done = Status(state, error="out of memory", started=0.0, ended=90.0, log_jobs=("4200",))
    assert wait(Played(done)) == 1
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage().startswith(f"{state} after 1.5 minutes: out of memory; logs: https://")
    assert "4200" in record.getMessage()


def test_a_file_hears_now_and_then_that_nothing_has_changed(caplog: pytest.LogCaptureFixture) -> None:
    played = Played(*[Status("RUNNING")] * 180, Status("SUCCEEDED"))  # an hour, at 20 s each
    wait(played, poll=20)
    assert sum("RUNNING" in record.getMessage() for record in caplog.records) == 6


def test_logs_with_their_severity(caplog: pytest.LogCaptureFixture) -> None:
    logs = Logs(
        [Entry("workerpool0-0", "INFO", "epoch 1/3"), Entry("workerpool1-0", "ERROR", "no disk left")],
        [Entry("service", "WARNING", "preempted")],
    )
    wait(Played(Status("RUNNING"), Status("SUCCEEDED")), logs)
    found = {record.getMessage(): record.levelname for record in caplog.records}
    assert found["workerpool0-0 | epoch 1/3"] == "INFO"
    assert found["workerpool1-0 | no disk left"] == "ERROR"
    assert found["service | preempted"] == "WARNING"


def test_logs_that_are_refused_end_nothing(caplog: pytest.LogCaptureFixture) -> None:
    logs = Logs(LogsError("the logs can't be read (403): Permission denied."), [Entry("x", "INFO", "later")])
    assert wait(Played(Status("RUNNING"), Status("RUNNING"), Status("SUCCEEDED")), logs) == 0
    assert caplog.text.count("the logs can't be read (403)") == 1
    assert "later" not in caplog.text


def test_ctrl_c_leaves_the_job_and_says_how_to_end_it(caplog: pytest.LogCaptureFixture) -> None:
    played = Played(Status("RUNNING"))

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    assert watch.wait(played, call(), NAME, None, pause=interrupted, clock=played.clock) == 130
    assert "gcloud ai custom-jobs cancel 4200 --region=us-central1 --project=p" in caplog.text


def test_ctrl_c_on_a_study_and_a_pipeline() -> None:
    assert watch.cancel_command(call("hp_tuning"), NAME).startswith("gcloud ai hp-tuning-jobs cancel 4200")
    assert watch.cancel_command(call("pipeline"), NAME).startswith("https://console.cloud.google.com/")


def test_progress_of_a_study() -> None:
    status = Status("RUNNING", trials={"SUCCEEDED": 3, "ACTIVE": 2}, best=("val_auc", 0.7061, "3"))
    assert watch.progress(status, 3723) == (
        "RUNNING 01:02:03 · 3 of 5 trials done (2 active, 3 succeeded) · best val_auc 0.7061 (trial 3)"
    )


def test_shells_and_model_are_told(caplog: pytest.LogCaptureFixture) -> None:
    running = Status("RUNNING", web_access={"workerpool0-0": "https://shell.example"})
    wait(Played(running, running, Status("SUCCEEDED", model="projects/p/locations/r/models/77@2")))
    assert caplog.text.count("shell of workerpool0-0: https://shell.example") == 1
    assert "models/77/versions/2?project=p" in caplog.text


def test_a_terminal_gets_one_line_that_is_written_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    wait(Played(Status("RUNNING"), Status("RUNNING"), Status("SUCCEEDED")), poll=15)
    err = capsys.readouterr().err
    assert "\r\x1b[KRUNNING 00:00:15" in err
    assert err.endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("job", "where"),
    [
        (
            "private_network",
            "https://us-central1.tensorboard.googleusercontent.com/experiment/projects+123456789012+locations+"
            "us-central1+tensorboards+1234567890123456789+experiments+4200",
        ),
        ("custom_job", "tensorboard --logdir gs://my-bucket/runs/flights/logs"),
        ("pipeline", "tensorboard --logdir gs://my-bucket/runs/flights-pipeline/logs"),
        ("hp_tuning", "tensorboard --logdir gs://my-bucket/runs/flights-study"),
    ],
)
def test_where_the_curves_are(job: str, where: str) -> None:
    assert links.tensorboard(call(job), NAME) == where


def test_console_links() -> None:
    assert links.console(call(), NAME) == (
        "https://console.cloud.google.com/agent-platform/locations/us-central1/training/4200?project=p"
    )
    assert "resource.labels.job_id%3D%224200%22" in links.logs(call(), "4200")
