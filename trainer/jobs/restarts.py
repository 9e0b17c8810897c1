"""What the service does when a machine of a job ends, by exit code and scheduling. Adopters: leave.

Exit codes decide: an exception in the program (1 to 127) and a process that ran out of memory (137) are not
worth a retry; aborts and segmentation faults (134, 139) may be, so the whole job is tried again; what else a
signal ended starts again on its machine. A machine that was lost is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trainer.jobs.cluster import Replica
from trainer.jobs.spec import Job

MOST_RESTARTS = 5  # of one replica; then the whole job is tried again
MOST_RETRIES = 3  # of the whole job
MOST_SPOT_RETRIES = 6  # of the whole job, on spot machines that were taken away
_CRASHES = (134, 139)  # SIGABRT, SIGSEGV
_OUT_OF_MEMORY = 137


class Step(Enum):
    """What comes next."""

    SUCCEEDED = "the job is done"
    FINISHED = "this replica is done, the job goes on"
    RESTART = "start this replica again"
    RESTART_ALL = "start all replicas again"
    RETRY = "try the whole job again"
    FAILED = "the job has failed"


@dataclass
class Tries:
    """What was tried so far; each try counts itself in.

    Attributes:
        restarts: starts again, by replica.
        retries: tries of the whole job after the first.
    """

    restarts: dict[str, int]
    retries: int = 0


def exit_code(code: int) -> int:
    """Returns an exit code as the service sees it: 128 + the signal's number for a killed process."""
    return 128 - code if code < 0 else code


def next_step(job: Job, replica: Replica, code: int, lost: str, tries: Tries) -> tuple[Step, str]:
    """Returns what the service does after a replica has ended, and why.

    Args:
        job: the job; its scheduling decides.
        replica: what ended.
        code: its exit code, as `exit_code` returns it.
        lost: how its machine was lost ("preempted", "killed"), or "".
        tries: what was tried so far; the step that is returned is counted.
    """
    scheduling = job.scheduling
    how = f"{replica.name} was {lost}" if lost else f"{replica.name} ended with exit code {code}"
    if code == 0 and replica.pool.index == 0:
        return Step.SUCCEEDED, f"{replica.name} ended with exit code 0"
    if code == 0 and not lost:
        return Step.FINISHED, f"{replica.name} ended with exit code 0"
    if not lost and (code < 128 or code == _OUT_OF_MEMORY):
        why = "out of memory, or killed from outside" if code == _OUT_OF_MEMORY else "an error of the program"
        return Step.FAILED, f"{how} ({why}): not worth a retry"
    if scheduling.disable_retries:
        undone = ", which undoes restartJobOnWorkerRestart" if scheduling.restart_on_worker_restart else ""
        return Step.FAILED, f"{how}, and the job has disableRetries{undone}"
    if code in _CRASHES and not lost:
        return _retry(how, tries, MOST_RETRIES)
    if lost == "preempted" and scheduling.strategy == "SPOT":
        return _retry(how, tries, MOST_SPOT_RETRIES)
    done = tries.restarts.get(replica.name, 0)
    if done >= MOST_RESTARTS:
        tries.restarts.clear()
        return _retry(f"{how}, after {done} restarts", tries, MOST_RETRIES)
    tries.restarts[replica.name] = done + 1
    count = f"restart {done + 1} of {MOST_RESTARTS}"
    if scheduling.restarts:
        return Step.RESTART_ALL, f"{how}: restartJobOnWorkerRestart starts all again ({count})"
    return Step.RESTART, f"{how}: it starts again ({count})"


def _retry(how: str, tries: Tries, most: int) -> tuple[Step, str]:
    if tries.retries >= most:
        return Step.FAILED, f"{how}, and the job was tried again {tries.retries} times"
    tries.retries += 1
    return Step.RETRY, f"{how}: the whole job is tried again (retry {tries.retries} of {most})"
