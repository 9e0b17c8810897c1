"""How the processes of a job meet, hand documents on and learn of each other's end. Adopters: leave.

TensorFlow's collectives say nothing about who is missing, wait for ever for a worker that never comes, and
can't carry a document. So the processes keep a connection of their own to the chief, from before TensorFlow
starts until the last one leaves: the chief listens at its address of TF_CONFIG, waits for everyone, and stops
listening, so that TensorFlow can take the port (the connections stay). Over it go

* documents: `peers.hand(name, make)` calls `make` on the chief alone and returns its value everywhere,
  `peers.gather(name, make)` calls it everywhere and returns all values on the chief;
* signs of life: a process that falls silent for `strategy.lost_seconds`, or whose connection breaks, is lost;
* the end: whoever fails tells why, and all stop with that sentence; whoever is done waits for the chief.

A process that is stuck inside TensorFlow is ended from a thread, once its files are in order.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from trainer import agreement
from trainer.config import Config
from trainer.environment import Service
from trainer.errors import EXIT_INTERRUPTED, UserError
from trainer.interruption import Interruption
from trainer.lines import Line, connect, listen
from trainer.peers import Peers

log = logging.getLogger("trainer")

GRACE_SECONDS = 15.0  # for the main thread to notice that the job is over, before it is ended
_LEAVE_SECONDS = 20.0  # for the others to leave first
_POLL = 0.1
_AGAIN = "the same command goes on from the last checkpoint"


def join(
    config: Config, me: Service, stop: Interruption | None = None, grace: float = GRACE_SECONDS
) -> Peers:
    """Meets the other processes of the job and returns the connection to them.

    Call it before TensorFlow makes a strategy, whose server takes the chief's port.

    Args:
        config: the run's config; all processes must have the same.
        me: who this process is.
        stop: SIGTERM as a flag.
        grace: seconds that the main thread gets to notice that the job is over.

    Raises:
        LostError: someone did not come within strategy.join_seconds.
        UserError: the processes contradict each other, or the chief's port is taken.
        Interrupted: SIGTERM came.
    """
    if me.workers == 1:
        return Peers()
    made: _Connected = Chief(config, me, grace) if me.is_chief else Worker(config, me, grace)
    made.stop = stop or Interruption()
    try:
        made.meet()
    except BaseException as error:
        made.failed(error)
        raise
    return made


class _Connected(Peers, ABC):
    """What the chief and the workers have in common."""

    def __init__(self, config: Config, me: Service, grace: float) -> None:
        super().__init__(me.worker_index, me.workers)
        self._config, self._me, self._grace = config, me, grace
        self._limit = config.strategy.join_seconds
        self._lost = config.strategy.lost_seconds
        self._changed = threading.Condition()
        self._verdict: UserError | None = None  # why everyone must stop
        self._leaving = threading.Event()  # the main thread knows
        self._closing = False
        self._documents: dict[str, deque[Any]] = defaultdict(deque)

    @abstractmethod
    def meet(self) -> None:
        """Waits for the others."""

    def _name(self, rank: int) -> str:
        return f"{'the chief' if rank == 0 else f'worker {rank}'} at {self._me.hosts[rank]}"

    # --- threads

    def _attend(self, line: Line) -> None:
        """Starts to listen to a connection, and to give signs of life on it."""
        line.heard = time.monotonic()
        for target in (self._read, self._beat):
            threading.Thread(target=target, args=(line,), name=f"line-{line.rank}", daemon=True).start()

    def _read(self, line: Line) -> None:
        while (message := line.receive()) is not None:
            self._message(line, message)
        self._gone(line)

    def _beat(self, line: Line) -> None:
        every = min(5.0, self._lost / 6)
        while not line.closed:
            line.send(kind="beat")
            time.sleep(every)
            silent = time.monotonic() - line.heard
            if silent > self._lost and not line.closed:
                line.why = f"no sign of life for {silent:.0f} s (strategy.lost_seconds)"
                line.close()  # which the thread that reads will notice

    @abstractmethod
    def _message(self, line: Line, message: dict[str, Any]) -> None:
        """Takes a message of another process."""

    @abstractmethod
    def _gone(self, line: Line) -> None:
        """Hears that a connection has ended."""

    def _judge(self, verdict: UserError) -> None:
        """Notes why everyone must stop, and ends this process if its main thread doesn't notice in time."""
        with self._changed:
            if self._verdict is not None or self._closing:
                return
            self._verdict = verdict
            self._changed.notify_all()
        threading.Thread(target=self._end_if_stuck, name="end", daemon=True).start()

    def _end_if_stuck(self) -> None:
        assert self._verdict is not None
        if not self._leaving.wait(self._grace):
            self.end_now(self._verdict)

    # --- the main thread

    def _check(self) -> None:
        """Raises the verdict, if there is one."""
        if self._verdict is not None:
            self._leaving.set()
            raise self._verdict

    def _wait_for(self, ready: Callable[[], bool], what: str) -> None:
        """Waits until `ready` (called under the lock), a verdict, or SIGTERM."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: ready() or self._verdict is not None, _POLL)
                if ready():
                    return
                self._check()
            self.stop.check(f"while waiting for {what}")

    def explain(self, error: BaseException) -> BaseException:
        if not agreement.is_exchange(error):
            return error
        with self._changed:
            self._changed.wait_for(lambda: self._verdict is not None, self._grace / 2)
            if self._verdict is not None:
                self._leaving.set()
                return self._verdict
        return error

    def end_now(self, error: UserError) -> None:
        self._tell(error)
        super().end_now(error)

    @abstractmethod
    def _tell(self, error: BaseException) -> None:
        """Tells the others why everyone must stop."""


class Chief(_Connected):
    """The chief's end of the connections."""

    def __init__(self, config: Config, me: Service, grace: float) -> None:
        super().__init__(config, me, grace)
        self._lines: dict[int, Line] = {}
        self._done: set[int] = set()
        self._parts: dict[tuple[str, int], deque[Any]] = defaultdict(deque)  # by name and rank
        self._met = False

    def meet(self) -> None:
        """Waits until every worker has come."""
        deadline = time.monotonic() + self._limit
        log.info("waiting for %d worker(s): %s", self._me.workers - 1, ", ".join(self._me.hosts[1:]))
        with listen(self._me.hosts[0], deadline, self.stop) as listener:
            while len(self._lines) < self._me.workers - 1:
                self.stop.check("while waiting for the other workers")
                self._check()
                if time.monotonic() > deadline:
                    missing = [r for r in range(1, self._me.workers) if r not in self._lines]
                    names = " and ".join(self._name(rank) for rank in missing)
                    raise agreement.lost(f"{names} did not join in {self._limit:g} s (strategy.join_seconds)")
                if (line := listener.accept()) is not None:
                    self._greet(line)
        self._met = True
        for line in self._lines.values():
            line.send(kind="welcome")

    def _greet(self, line: Line) -> None:
        hello = line.receive()
        line.ready()
        if hello is None or hello.get("kind") != "hello":
            line.close()  # a stranger
            return
        rank = hello["rank"]
        problem = agreement.contradiction(self._name(rank), hello, agreement.hello(self._config, self._me))
        if rank in self._lines:
            problem = f"two processes say that they are {self._name(rank)}: TF_CONFIG: task is wrong in one"
        if problem:
            line.rank = -1 - rank
            self._lines[line.rank] = line  # it is told like the others
            self._attend(line)
            raise UserError(problem)
        line.rank = rank
        self._lines[rank] = line
        self._attend(line)
        log.debug("%s has joined", self._name(rank))

    def hand(self, name: str, make: Callable[[], Any]) -> Any:
        value = make()
        with self._changed:
            self._check()
        for line in self._lines.values():
            line.send(kind="document", name=name, value=value)
        return value

    def gather(self, name: str, make: Callable[[], Any]) -> list[Any]:
        parts = [make()]
        for rank in range(1, self.count):
            queue = self._parts[name, rank]
            self._wait_for(lambda queue=queue: bool(queue), f"{name} from {self._name(rank)}")  # type: ignore[misc]
            parts.append(queue.popleft())
        return parts

    def _message(self, line: Line, message: dict[str, Any]) -> None:
        if message["kind"] == "part":
            with self._changed:
                self._parts[message["name"], line.rank].append(message["value"])
                self._changed.notify_all()
        if message["kind"] == "done":
            with self._changed:
                self._done.add(line.rank)
                self._changed.notify_all()
        if message["kind"] == "failed" and line.rank not in self._done:
            if message["code"] == EXIT_INTERRUPTED and self.stop.requested:
                return  # all leave together, and the chief when its checkpoint is written
            self._stop_all(
                agreement.failure(f"{self._name(line.rank)} stopped: {message['message']}", message["code"])
            )

    def _gone(self, line: Line) -> None:
        line.close()
        with self._changed:
            if not self._met and self._verdict is None:  # it may come again
                self._lines = {rank: other for rank, other in self._lines.items() if other is not line}
                return
            self._changed.notify_all()
        if line.rank not in self._done and not self._closing:
            self._stop_all(agreement.lost(f"{self._name(line.rank)} is lost: {line.why}; {_AGAIN}"))

    def _stop_all(self, verdict: UserError) -> None:
        if self._closing or self._verdict is not None:
            return
        self._judge(verdict)
        self._tell(verdict)

    def _tell(self, error: BaseException) -> None:
        for line in list(self._lines.values()):
            line.send(**agreement.told(error))

    def release(self) -> None:
        everyone = set(range(1, self._me.workers))
        self._wait_for(lambda: self._done >= everyone, "the other workers")

    def finish(self) -> None:
        """Tells the others that all is written, and lets them go first."""
        self.release()
        self._close(kind="end")

    def failed(self, error: BaseException) -> None:
        self._leaving.set()
        self._close(**agreement.told(error))

    def _close(self, **message: Any) -> None:
        with self._changed:
            self._closing = True
        for line in self._lines.values():
            line.send(**message)
        limit = time.monotonic() + _LEAVE_SECONDS
        while time.monotonic() < limit and not all(line.closed for line in self._lines.values()):
            time.sleep(_POLL / 2)
        for line in self._lines.values():
            line.close()


class Worker(_Connected):
    """A worker's end of the connection."""

    def __init__(self, config: Config, me: Service, grace: float) -> None:
        super().__init__(config, me, grace)
        self._line: Line | None = None
        self._welcome = self._ended = False

    def meet(self) -> None:
        """Finds the chief and waits until it has everyone."""
        chief = self._name(0)
        deadline = time.monotonic() + self._limit
        while not self._welcome:
            self.stop.check(f"while waiting for {chief}")
            if self._line is not None:
                with self._changed:
                    self._check()
                    self._changed.wait(_POLL)
                if self._line.closed and self._verdict is None:  # another chief comes in its place, perhaps
                    self._line, deadline = None, time.monotonic() + self._limit
            elif time.monotonic() > deadline:
                raise agreement.lost(f"{chief} did not answer in {self._limit:g} s (strategy.join_seconds)")
            elif (line := connect(self._me.hosts[0], agreement.hello(self._config, self._me))) is not None:
                self._line = line
                self._attend(line)
            else:
                time.sleep(2 * _POLL)

    def hand(self, name: str, make: Callable[[], Any]) -> Any:
        queue = self._documents[name]
        self._wait_for(lambda: bool(queue), f"{name} from the chief")
        return queue.popleft()

    def gather(self, name: str, make: Callable[[], Any]) -> list[Any]:
        assert self._line is not None
        self._line.send(kind="part", name=name, value=make())
        return []

    def _message(self, line: Line, message: dict[str, Any]) -> None:
        with self._changed:
            if message["kind"] == "document":
                self._documents[message["name"]].append(message["value"])
            self._welcome |= message["kind"] == "welcome"
            self._ended |= message["kind"] == "end"
            self._changed.notify_all()
        if message["kind"] == "failed":
            # What befell another worker, the chief has put into words; what befell itself it tells bare.
            start = "" if message["whole"] else f"{self._name(0)} stopped: "
            self._judge(agreement.failure(start + message["message"], message["code"]))

    def _gone(self, line: Line) -> None:
        line.close()
        with self._changed:
            self._changed.notify_all()
        if self._welcome and not self._ended:
            self._judge(agreement.lost(f"{self._name(0)} is lost: {line.why}; {_AGAIN}"))

    def _tell(self, error: BaseException) -> None:
        if self._line is not None:
            self._line.send(**agreement.told(error))

    def finish(self) -> None:
        """Says that this worker is done, and waits until the chief has written everything."""
        assert self._line is not None
        self._line.send(kind="done")
        self._wait_for(lambda: self._ended, "the chief to write the model and the report")
        self._closing = True
        self._line.close()

    def failed(self, error: BaseException) -> None:
        self._leaving.set()
        if self._line is None:
            return
        self._tell(error)
        # The chief answers, or goes: a worker that leaves at once would break off what the chief is saving.
        interrupted = isinstance(error, UserError) and error.exit_code == EXIT_INTERRUPTED
        limit = time.monotonic() + (self._lost if interrupted else _LEAVE_SECONDS)
        with self._changed:
            while self._verdict is None and not self._line.closed and time.monotonic() < limit:
                self._changed.wait(_POLL)
            self._closing = True
        self._line.close()
