"""Runs one job on this machine, a process a replica, by the service's rules of restart. Adopters: leave.

`run` is what `local` and the trials of a local study use: it takes a job and how it runs here, and returns
how it ended. It prints nothing and installs no signal handler; several may run at once in threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import IO

from trainer import storage
from trainer.errors import UserError
from trainer.jobs import cluster, restarts
from trainer.jobs import here as placing
from trainer.jobs.cluster import Identity, Replica
from trainer.jobs.here import Here
from trainer.jobs.keeper import Keeper
from trainer.jobs.restarts import Step, Tries
from trainer.jobs.running import Running
from trainer.jobs.spec import WEEK, Job

Show = Callable[[str, str], None]  # (who: a replica's name, or "local"; a line)

EXIT_CANCELLED = 130
EXIT_TIMEOUT = 124
_TICK = 0.1  # seconds between two looks at clocks
_SHUT_DOWN_SECONDS = 10.0  # for replicas that are ended because another has ended


class Stop(threading.Event):
    """Asks running jobs to end. With `now` set, they are killed instead of asked."""

    def __init__(self) -> None:
        super().__init__()
        self.now = False


@dataclass
class Loss:
    """A machine that will be lost.

    Attributes:
        replica: its name.
        how: "preempted" (SIGTERM, then -9 after the grace) or "killed" (-9 at once).
        after: seconds after the job's start, or None.
        text: else: the text in any replica's log that sets it off.
        done: whether it has happened.
    """

    replica: str
    how: str
    after: float | None = None
    text: str = ""
    done: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        state: SUCCEEDED, FAILED, CANCELLED or TIMEOUT.
        exit_code: 0, or that of the replica that ended the job.
        reason: why, in one line.
        seconds: how long it took.
        starts: how often each replica was started, by name.
        codes: every exit code of each replica, in order.
        base: the job's base output folder here (of a trial: below the study's).
        logs: folder with a log file of each replica.
        metric_file: where a trial's chief reported its metrics, or "".
    """

    state: str
    exit_code: int
    reason: str
    seconds: float
    starts: Mapping[str, int]
    codes: Mapping[str, Sequence[int]]
    base: str
    logs: str
    metric_file: str = ""


def run(
    job: Job,
    here: Here,
    *,
    trial: str = "",
    tuned: Sequence[str] = (),
    losses: Sequence[Loss] = (),
    stop: Stop | None = None,
    show: Show | None = None,
    job_id: str = "",
) -> Outcome:
    """Runs a job, or one trial of a study, until it has succeeded or failed for good.

    Args:
        job: the job; of a study, what `trialJobSpec` asks for is run once.
        here: how it runs on this machine.
        trial: the trial's id ("1", "2", ...); its folders are below it, as on the service.
        tuned: the trial's flags, `--parameterId=value`, which follow the file's own.
        losses: machines to lose on the way.
        stop: set it from another thread, or a signal handler, to end the job.
        show: called with (replica, line) for everything that is written; from several threads, one at a time.
        job_id: the job's id; made up by default.

    Returns:
        How it ended.

    Raises:
        UserError: a program or a config file isn't here, or a loss names no replica.
    """
    return _Run(job, here, trial, tuple(tuned), list(losses), stop or Stop(), show, job_id).run()


def check_losses(job: Job, losses: Sequence[Loss]) -> None:
    """Checks that each machine to be lost is one of the job's that run here.

    Raises:
        UserError: it is none.
    """
    names = [replica.name for replica in cluster.replicas(job) if placing.runs_here(replica)]
    for loss in losses:
        if loss.replica not in names:
            raise UserError(f"no replica {loss.replica!r} here; expected one of {', '.join(names)}")


def hosts(job: Job) -> dict[int, list[str]]:
    """Returns a free loopback address for each replica, by pool."""
    found: dict[int, list[str]] = {}
    taken: set[int] = set()
    for replica in cluster.replicas(job):
        port = free_port(taken)
        taken.add(port)
        found.setdefault(replica.pool.index, []).append(f"127.0.0.1:{port}")
    return found


def free_port(taken: Collection[int] = ()) -> int:
    """Returns a port that nobody listens at, and none of `taken`.

    It lies below the range from which the system takes ports for outgoing connections, so that none takes it
    between now and the moment that the replica listens.
    """
    high = _ephemeral()
    for _ in range(1000):
        port = random.randrange(10_000, high)
        if port not in taken and _is_free(port):
            return port
    raise UserError(f"no free port on this machine between 10,000 and {high:,}")


def _ephemeral() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            first = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768
    return first if first > 12_000 else 65_000


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@dataclass
class _Run:
    job: Job
    here: Here
    trial: str
    tuned: tuple[str, ...]
    losses: list[Loss]
    stop: Stop
    show: Show | None
    job_id: str
    alive: dict[str, Running] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    codes: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: queue.SimpleQueue[Running] = queue.SimpleQueue()
        self._tries = Tries({})
        self._due: set[int] = set()  # losses whose text was heard; `losses` may be shared with other trials
        self._replicas = [r for r in cluster.replicas(self.job) if placing.runs_here(r)]
        check_losses(self.job, self.losses)
        self.logs = os.path.join(os.path.abspath(self.here.folder), "replicas", *filter(None, [self.trial]))
        self._metrics = os.path.join(self.logs, "metrics", "{}", "output.metrics") if self.trial else ""
        self.who = Identity(
            base=self.here.base(self.job),
            job_id=self.job_id or str(random.randrange(10**18, 9 * 10**18)),
            project=cluster.project_number(self.job),
            trial=self.trial,
            dataset=self.here.dataset if cluster.reads_dataset(self.job) else None,
        )

    # --- what is said ---

    def _say(self, text: str) -> None:
        if self.show is not None:
            with self._lock:
                self.show("local", text)

    def _heard(self, replica: Replica, line: str) -> None:
        with self._lock:
            self._due |= {n for n, loss in enumerate(self.losses) if loss.text and loss.text in line}
            if self.show is not None:
                self.show(replica.name, line)

    # --- the job ---

    def run(self) -> Outcome:
        began = time.monotonic()
        limit = self.job.scheduling.timeout or WEEK
        storage.make_folder(self.logs)
        commands = {r.name: placing.command(self.job, r, self.here, self.tuned) for r in self._replicas}
        with contextlib.ExitStack() as stack:
            keeper = stack.enter_context(Keeper())
            files = {
                replica.name: stack.enter_context(open(os.path.join(self.logs, f"{replica.name}.log"), "ab"))
                for replica in self._replicas
            }
            while True:
                state, code, reason = self._attempt(keeper, files, commands, began, limit)
                if state != "AGAIN":
                    break
                self._say(reason)
        for loss in self.losses:
            if not loss.done:
                when = f"after {loss.after:g} s" if loss.after is not None else f"at {loss.text!r}"
                self._say(f"{loss.replica} was to be {loss.how} {when}, but the job had ended by then")
        outcome = Outcome(
            state=state,
            exit_code=code,
            reason=reason,
            seconds=round(time.monotonic() - began, 3),
            starts=self.starts,
            codes=self.codes,
            base=self.who.folder,
            logs=self.logs,
            metric_file=self._metrics.format("chief"),
        )
        storage.write_text(
            os.path.join(self.logs, "outcome.json"), json.dumps(asdict(outcome), indent=1) + "\n"
        )
        return outcome

    def _attempt(
        self,
        keeper: Keeper,
        files: Mapping[str, IO[bytes]],
        commands: Mapping[str, Sequence[str]],
        began: float,
        limit: float,
    ) -> tuple[str, int, str]:
        """Starts all replicas and returns (state, exit code, reason) when the job ends or starts over."""
        addresses = hosts(self.job)
        start = lambda replica: self._start(replica, addresses, keeper, files[replica.name], commands)  # noqa: E731
        waiting: list[Running] = []  # ended while another's machine was being lost: judged after that one
        try:
            for replica in self._replicas:
                start(replica)
            while True:
                self._lose(time.monotonic() - began)
                for running in list(self.alive.values()):
                    running.expire()
                if self.stop.is_set():
                    return "CANCELLED", EXIT_CANCELLED, "ended from outside"
                if time.monotonic() - began > limit:
                    return "TIMEOUT", EXIT_TIMEOUT, f"scheduling.timeout: {limit:g} s are over"
                with contextlib.suppress(queue.Empty):
                    waiting.append(self._note(self._ended.get(timeout=_TICK)))
                while waiting and not any(running.lost for running in self.alive.values()):
                    waiting.sort(
                        key=lambda running: not running.lost
                    )  # what was lost is the cause of the rest
                    ended = waiting.pop(0)
                    assert ended.code is not None
                    step, reason = restarts.next_step(
                        self.job, ended.replica, ended.code, ended.lost, self._tries
                    )
                    if step is Step.SUCCEEDED:
                        return "SUCCEEDED", 0, reason
                    if step is Step.FAILED:
                        return "FAILED", ended.code or 1, reason
                    if step in (Step.RETRY, Step.RESTART_ALL):
                        return "AGAIN", 0, reason
                    if step is Step.RESTART:
                        self._say(reason)
                        start(ended.replica)
        finally:
            self._end_all()

    def _start(
        self,
        replica: Replica,
        addresses: cluster.Hosts,
        keeper: Keeper,
        log: IO[bytes],
        commands: Mapping[str, Sequence[str]],
    ) -> None:
        who = self.who
        if self.job.tensorboard:
            who = replace(who, profiler_ports=(free_port(), free_port()))
        if self._metrics:
            who = replace(who, metric_file=self._metrics.format(replica.name))
            storage.make_folder(os.path.dirname(who.metric_file))
        count = self.starts[replica.name] = self.starts.get(replica.name, 0) + 1
        if count > 1:
            log.write(f"--- start {count} ---\n".encode())
        environ = placing.environ(self.job, replica, addresses, who, self.here, len(self._replicas))
        argv = commands[replica.name]
        try:
            self.alive[replica.name] = Running(
                replica, argv, environ, folder=os.getcwd(), log=log, keeper=keeper,
                heard=self._heard, ended=self._ended.put,
            )  # fmt: skip
        except OSError as error:
            raise UserError(
                f"{self.job.file}: {replica.name}: {argv[0]!r} can't be started: {error.strerror or error}"
            ) from error

    def _note(self, ended: Running) -> Running:
        name = ended.replica.name
        assert ended.code is not None
        if self.alive.get(name) is ended:
            del self.alive[name]
        self.codes.setdefault(name, []).append(ended.code)
        return ended

    def _lose(self, elapsed: float) -> None:
        for number, loss in enumerate(self.losses):
            with self._lock:
                due = number in self._due or (loss.after is not None and elapsed >= loss.after)
            running = self.alive.get(loss.replica)
            if loss.done or not due or running is None or running.lost:
                continue
            loss.done = True
            running.lost = loss.how
            self._say(f"{loss.replica} is {loss.how} now")
            if loss.how == "preempted":
                running.end(self.here.grace)
            else:
                running.kill()

    def _end_all(self) -> None:
        """Ends every replica that still runs, as the service shuts machines down, and waits for each."""
        for running in self.alive.values():
            running.kill() if self.stop.now else running.end(min(self.here.grace, _SHUT_DOWN_SECONDS))
        while self.alive:
            for running in list(self.alive.values()):
                running.kill() if self.stop.now else running.expire()
            with contextlib.suppress(queue.Empty):
                self._note(self._ended.get(timeout=_TICK))
