"""The service's answer to each way in which a replica can end."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.jobs import cluster, loading
from trainer.jobs.restarts import MOST_RESTARTS, Step, Tries, exit_code, next_step
from trainer.jobs.spec import Job

JOBS = Path(__file__).parents[2] / "configs" / "jobs"


def _job(*own: str) -> Job:
    return loading.load(str(JOBS / "multi_worker.yaml"), own)


ALONE = "scheduling.restartJobOnWorkerRestart=false"
NEVER = "scheduling.disableRetries=true"
SPOT = "scheduling.strategy=SPOT"


@pytest.mark.parametrize(
    ("own", "name", "code", "lost", "step", "says"),
    [
        ((), "chief", 0, "", Step.SUCCEEDED, "exit code 0"),
        ((), "chief", 0, "preempted", Step.SUCCEEDED, "exit code 0"),
        ((), "worker1", 0, "", Step.FINISHED, "exit code 0"),
        ((), "worker1", 1, "", Step.FAILED, "an error of the program"),
        ((), "chief", 2, "", Step.FAILED, "not worth a retry"),
        ((), "chief", 137, "", Step.FAILED, "out of memory"),
        ((), "worker2", 134, "", Step.RETRY, "retry 1 of 3"),
        ((), "worker2", 139, "", Step.RETRY, "retry 1 of 3"),
        ((NEVER,), "worker2", 139, "", Step.FAILED, "disableRetries"),
        ((), "worker1", 137, "killed", Step.RESTART_ALL, "restart 1 of 5"),
        ((), "worker1", 143, "preempted", Step.RESTART_ALL, "restartJobOnWorkerRestart"),
        ((), "worker1", 0, "preempted", Step.RESTART_ALL, "restart 1 of 5"),
        ((), "worker1", 143, "", Step.RESTART_ALL, "exit code 143"),
        ((ALONE,), "worker1", 143, "", Step.RESTART, "it starts again"),
        ((ALONE,), "worker1", 137, "killed", Step.RESTART, "it starts again"),
        ((NEVER,), "worker1", 137, "killed", Step.FAILED, "undoes restartJobOnWorkerRestart"),
        ((NEVER, ALONE), "worker1", 137, "killed", Step.FAILED, "has disableRetries"),
        ((SPOT, ALONE), "chief", 143, "preempted", Step.RETRY, "retry 1 of 6"),
        ((SPOT, NEVER), "chief", 143, "preempted", Step.FAILED, "disableRetries"),
        ((SPOT, ALONE), "chief", 137, "killed", Step.RESTART, "it starts again"),
    ],
)
def test_next_step(own: tuple[str, ...], name: str, code: int, lost: str, step: Step, says: str) -> None:
    job = _job(*own)
    replica = next(replica for replica in cluster.replicas(job) if replica.name == name)
    found, reason = next_step(job, replica, code, lost, Tries({}))
    assert found is step
    assert reason.startswith(name)
    assert says in reason


def test_tries_come_to_an_end() -> None:
    job = _job(ALONE)
    chief, worker = cluster.replicas(job)[:2]
    tries = Tries({})
    steps = [next_step(job, worker, 143, "", tries)[0] for _ in range(4 * (MOST_RESTARTS + 1))]
    once = [Step.RESTART] * MOST_RESTARTS
    assert steps == [*once, Step.RETRY, *once, Step.RETRY, *once, Step.RETRY, *once, Step.FAILED]
    assert next_step(job, chief, 139, "", Tries({}, 3))[0] is Step.FAILED
    spot = _job(SPOT)
    tries = Tries({})
    steps = [next_step(spot, chief, 143, "preempted", tries)[0] for _ in range(7)]
    assert steps == [Step.RETRY] * 6 + [Step.FAILED]


def test_exit_codes_as_the_service_sees_them() -> None:
    assert [exit_code(code) for code in (0, 1, 143, -15, -9, -11, -6)] == [0, 1, 143, 143, 137, 139, 134]
