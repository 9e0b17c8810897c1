"""Jobs of real processes: addresses, restarts, exit codes, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer.errors import UserError
from trainer.jobs import loading, processes
from trainer.jobs.here import Here
from trainer.jobs.processes import Loss, Outcome, Stop

STAND_IN = Path(__file__).parent / "stand_in.py"
ROOT = STAND_IN.parents[2]


def write_job(folder: Path, *steps: str, workers: int = 0, **scheduling: Any) -> Path:
    """Writes a job file whose replicas are stand-ins that do these steps."""
    pool = {
        "machineSpec": {"machineType": "n1-standard-8"},
        "containerSpec": {
            "imageUri": "us-central1-docker.pkg.dev/my-project/x/y:1",
            "command": ["python", str(STAND_IN)],
            "args": list(steps),
            "env": [{"name": "MY_FOLDER", "value": str(folder)}],
        },
    }
    pools = [{**pool, "replicaCount": 1}, *([{**pool, "replicaCount": workers}] if workers else [])]
    path = folder / "job.yaml"
    spec = {
        "workerPoolSpecs": pools,
        "scheduling": {"timeout": "600s", **scheduling},
        "baseOutputDirectory": {"outputUriPrefix": "gs://my-bucket/runs/x"},
    }
    path.write_text(yaml.safe_dump(spec))
    return path


def run(
    folder: Path, *steps: str, workers: int = 0, more: dict[str, Any] | None = None, **scheduling: Any
) -> tuple[Outcome, str]:
    """Runs such a job and returns how it ended, and all that was shown."""
    path = write_job(folder, *steps, workers=workers, **scheduling)
    lines: list[str] = []
    outcome = processes.run(
        loading.load(str(path)),
        Here(str(folder / "work"), grace=20),
        show=lambda name, line: lines.append(f"{name}: {line}"),
        **(more or {}),
    )
    return outcome, "\n".join(lines)


def is_alive(pid: int) -> bool:
    """Returns whether a process lives; one that has ended but was not fetched yet doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Waits until a condition is true; a hang is a failure."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition never came true"
        time.sleep(0.02)


RESTARTS = {"restartJobOnWorkerRestart": True}


def test_replicas_find_each_other_and_the_chief_ends_the_job(tmp_path: Path) -> None:
    steps = (
        "--chief=env,meet,await:first,await:second",
        "--worker0=env,meet,mark:first,sleep:600",
        "--worker1=env,meet,mark:second,sleep:600",
    )
    outcome, shown = run(tmp_path, *steps, workers=2)
    assert (outcome.state, outcome.exit_code) == ("SUCCEEDED", 0)
    assert outcome.codes["chief"] == [0]
    assert outcome.codes["worker1"] == outcome.codes["worker2"] == [143]
    assert "worker1: met 3" in shown
    assert "met 3" in (Path(outcome.logs) / "worker2.log").read_text()
    told = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("chief", "worker0", "worker1")]
    configs = [json.loads(each["env"]["TF_CONFIG"]) for each in told]
    assert configs[0]["cluster"] == configs[1]["cluster"] == configs[2]["cluster"]
    assert [config["task"]["type"] for config in configs] == ["chief", "worker", "worker"]
    assert [config["task"]["index"] for config in configs] == [0, 0, 1]
    ports = [address.rpartition(":")[2] for hosts in configs[0]["cluster"].values() for address in hosts]
    assert len(set(ports)) == 3
    assert len({each["env"]["CLOUD_ML_JOB_ID"] for each in told}) == 1
    assert json.loads((Path(outcome.logs) / "outcome.json").read_text())["state"] == "SUCCEEDED"


def test_error_of_a_program_ends_the_job_with_its_exit_code(tmp_path: Path) -> None:
    outcome, _ = run(
        tmp_path, "--chief=sleep:600", "--worker1=exit:3", "--worker0=sleep:600", workers=2, **RESTARTS
    )
    assert (outcome.state, outcome.exit_code) == ("FAILED", 3)
    assert outcome.reason.startswith("worker2 ended with exit code 3")
    assert outcome.starts == {"chief": 1, "worker1": 1, "worker2": 1}


def test_crash_is_tried_again(tmp_path: Path) -> None:
    steps = ("--chief=say:hello,first:signal:11",)
    outcome, shown = run(tmp_path, *steps)
    assert (outcome.state, outcome.codes) == ("SUCCEEDED", {"chief": [139, 0]})
    assert "retry 1 of 3" in shown
    log = (Path(outcome.logs) / "chief.log").read_text()
    assert log == "hello\n--- start 2 ---\nhello\n"
    again, _ = run(tmp_path, "--chief=signal:6")
    assert (again.state, again.exit_code, again.codes["chief"]) == ("FAILED", 134, [134] * 4)
    never, _ = run(tmp_path, "--chief=signal:6", disableRetries=True)
    assert never.codes["chief"] == [134]


def test_killed_worker_restarts_all_or_itself_alone(tmp_path: Path) -> None:
    steps = ("--chief=meet,say:met all,first:sleep:600", "--worker=meet,sleep:600")
    loss = lambda: {"losses": [Loss("worker2", "killed", text="met all")]}  # noqa: E731
    outcome, shown = run(tmp_path, *steps, workers=2, more=loss(), **RESTARTS)
    assert outcome.state == "SUCCEEDED", shown
    assert outcome.starts == {"chief": 2, "worker1": 2, "worker2": 2}
    assert outcome.codes["worker2"] == [137, 143]
    assert "worker2 is killed now" in shown
    for path in tmp_path.glob("*.starts"):
        path.unlink()
    steps = (
        "--chief=meet,say:met all,again:worker1",
        "--worker0=meet,sleep:600",
        "--worker1=first:meet,sleep:600",
    )
    alone, shown = run(tmp_path, *steps, workers=2, more=loss())
    assert alone.state == "SUCCEEDED", shown
    assert alone.starts == {"chief": 1, "worker1": 1, "worker2": 2}
    failed, _ = run(
        tmp_path,
        *("--chief=meet,say:met all,sleep:600", "--worker0=meet,sleep:600"),
        "--worker1=meet,sleep:600",
        workers=2,
        more=loss(),
        **RESTARTS,
        disableRetries=True,
    )
    assert (failed.state, failed.exit_code) == ("FAILED", 137)


def test_preempted_machine_gets_sigterm_and_what_follows_is_not_blamed(tmp_path: Path) -> None:
    """The peer of a lost machine ends with 1 before the machine itself does: no error of the program."""
    steps = (
        "--chief=trap:143,say:ready,mark:ready,first:sleep:600",
        "--worker=first:await:ready,first:sleep:1,first:exit:1,sleep:600",
    )
    more = {"losses": [Loss("chief", "preempted", text="ready")]}
    slow = ("--chief=deaf,say:ready,mark:ready,first:sleep:600", steps[1])
    outcome, shown = run(tmp_path, *steps, workers=1, more=more, **RESTARTS)
    assert outcome.state == "SUCCEEDED", shown
    assert outcome.codes["chief"] == [143, 0]
    for path in (*tmp_path.glob("*.starts"), tmp_path / "ready"):
        path.unlink()
    path = write_job(tmp_path, *slow, workers=1, **RESTARTS)
    deaf = processes.run(
        loading.load(str(path)),
        Here(str(tmp_path / "work"), grace=3),
        losses=[Loss("chief", "preempted", text="ready")],
    )
    assert (deaf.state, deaf.codes["chief"]) == ("SUCCEEDED", [137, 0])
    assert deaf.codes["worker1"][0] == 1


def test_timeout_of_the_spec_and_a_stop_from_outside(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, "--chief=sleep:600", timeout="1s")
    assert (outcome.state, outcome.exit_code) == ("TIMEOUT", processes.EXIT_TIMEOUT)
    stop = Stop()
    threading.Timer(1.0, stop.set).start()
    outcome, _ = run(tmp_path, "--chief=sleep:600", more={"stop": stop})
    assert (outcome.state, outcome.codes["chief"]) == ("CANCELLED", [143])
    stop = Stop()
    stop.now = True
    stop.set()
    outcome, _ = run(tmp_path, "--chief=deaf,sleep:600", more={"stop": stop})
    assert (outcome.state, outcome.codes["chief"]) == ("CANCELLED", [137])


def test_trial_has_its_id_flags_folder_and_metric_file(tmp_path: Path) -> None:
    more = {"trial": "7", "tuned": ["--learning_rate=0.5"]}
    outcome, _ = run(tmp_path, "--chief=env", more=more)
    told = json.loads((tmp_path / "chief.json").read_text())
    assert told["argv"] == ["--chief=env", "--learning_rate=0.5"]
    assert told["env"]["CLOUD_ML_TRIAL_ID"] == "7"
    assert told["env"]["AIP_MODEL_DIR"] == f"{tmp_path}/work/output/7/model/"
    assert json.loads(told["env"]["CLUSTER_SPEC"])["task"]["trial"] == "7"
    assert "TF_CONFIG" not in told["env"]
    assert told["env"]["CLOUD_ML_HP_METRIC_FILE"] == outcome.metric_file
    assert Path(outcome.metric_file).parent.is_dir()
    assert outcome.base == f"{tmp_path}/work/output/7"


def test_arguments_arrive_as_they_stand_in_the_file(tmp_path: Path) -> None:
    words = ["--chief=env", "--hidden=64,32", "--text=a \"b\" 'c' = $HOME *", "--empty=", "--last"]
    run(tmp_path, *words)
    assert json.loads((tmp_path / "chief.json").read_text())["argv"] == words


def test_jobs_run_beside_each_other_in_threads(tmp_path: Path) -> None:
    ends: list[Outcome] = []
    folders = [tmp_path / name for name in "abc"]

    def one(folder: Path) -> None:
        ends.append(run(folder, "--chief=meet", "--worker=meet,sleep:600", workers=1)[0])

    for folder in folders:
        folder.mkdir()
    threads = [threading.Thread(target=one, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [outcome.state for outcome in ends] == ["SUCCEEDED"] * 3


def test_what_a_replica_started_ends_with_it(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, "--chief=child")
    assert outcome.state == "SUCCEEDED"
    assert not is_alive(int((tmp_path / "chief.child").read_text()))


def test_programs_and_replicas_that_are_not_there(tmp_path: Path) -> None:
    path = write_job(tmp_path, "--chief=exit:0")
    job = loading.load(str(path), ["workerPoolSpecs[0].containerSpec.command[0]=no-such-program"])
    with pytest.raises(UserError, match=r"chief: 'no-such-program' can't be started: No such file"):
        processes.run(job, Here(str(tmp_path / "work")))
    with pytest.raises(UserError, match=r"no replica 'worker9' here; expected one of chief"):
        processes.run(job, Here(str(tmp_path / "work")), losses=[Loss("worker9", "killed", after=1)])


# --- the process that runs them ends --------------------------------------------------------------------


def start_local(folder: Path, *steps: str, workers: int = 1) -> subprocess.Popen[str]:
    """Starts `python -m trainer local` as a user does."""
    path = write_job(folder, *steps, workers=workers)
    return subprocess.Popen(
        [sys.executable, "-m", "trainer", "local", str(path), f"--output={folder}/work"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def pids_of(folder: Path) -> list[int]:
    """Returns the processes that the stand-ins wrote down."""
    files = [*folder.glob("*.pid"), *folder.glob("*.child")]
    return [int(path.read_text()) for path in files if path.read_text()]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGHUP, 130)],
)
def test_nothing_is_left_when_it_is_ended(number: int, code: int, tmp_path: Path) -> None:
    process = start_local(tmp_path, "--chief=child,deaf,sleep:600", "--worker=child,sleep:600")
    try:
        wait_for(lambda: len(pids_of(tmp_path)) == 4)
        found = pids_of(tmp_path)
        assert all(map(is_alive, found))
        process.send_signal(number)
        if number != signal.SIGKILL:  # the chief is deaf: the second signal kills
            wait_for(lambda: not is_alive(int((tmp_path / "worker0.pid").read_text())))
            process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == code
        wait_for(lambda: not any(map(is_alive, found)), 10)
    finally:
        process.kill()
        process.communicate()
