"""Processes that meet, hand documents on and hear of each other; here they are threads of one process."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from loop_parts import config
from meeting import SETTINGS, meet, services, start, together

from trainer import agreement, rendezvous
from trainer.data import background
from trainer.environment import Service
from trainer.errors import EXIT_INTERRUPTED, EXIT_LOST, LostError, UserError
from trainer.interruption import Interrupted, Interruption
from trainer.lines import Line, address, connect
from trainer.peers import Peers

pytestmark = pytest.mark.faults


def dial(chief: Service, hello: dict[str, Any]) -> Line:
    """A worker's connection to a chief that may not listen yet."""
    limit = time.monotonic() + 30
    while (line := connect(chief.hosts[0], hello)) is None:
        assert time.monotonic() < limit
        time.sleep(0.05)
    return line


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[UserError]:
    """Processes that were ended from a thread, by the error they ended with."""
    told: list[UserError] = []
    monkeypatch.setattr(rendezvous, "_LEAVE_SECONDS", 1.0)
    monkeypatch.setattr(Peers, "end_now", lambda self, error: told.append(error))
    return told


def test_a_process_alone_makes_its_documents_itself() -> None:
    alone = rendezvous.join(SETTINGS, Service())
    assert alone.hand("a", lambda: {"x": 1}) == {"x": 1}
    assert alone.explain(ValueError("x")).args == ("x",)
    alone.release()
    alone.finish()
    alone.failed(ValueError("x"))


def test_documents_go_from_the_chief_to_all_in_order() -> None:
    peers = meet(3)
    made = []

    def hand(one: Peers) -> list[Any]:
        return [
            one.hand("even" if i % 2 == 0 else "odd", lambda i=i: made.append(i) or {"i": i})
            for i in range(5)
        ]

    results = together([lambda one=one: hand(one) for one in peers])
    assert results == [[{"i": i} for i in range(5)]] * 3
    assert made == list(range(5)), "made once, by the chief"
    together([one.finish for one in peers])


def test_documents_of_all_come_to_the_chief_by_rank() -> None:
    peers = meet(3)

    def gather(one: Peers) -> list[Any]:
        return [one.gather("n", lambda i=i: [one.rank, one.count, i]) for i in range(3)]

    results = together([lambda one=one: gather(one) for one in peers])
    assert results == [[[[rank, 3, i] for rank in range(3)] for i in range(3)], [[]] * 3, [[]] * 3]
    together([one.finish for one in peers])
    alone = rendezvous.join(SETTINGS, Service())
    assert alone.gather("n", lambda: {"x": 1}) == [{"x": 1}]


def test_who_is_lost_before_its_part_is_named(ended: list[UserError]) -> None:
    """The chief waits for the parts of all; a worker that has given its own waits for what comes of them."""
    chief, first, second = meet(3)

    def follow() -> None:
        first.gather("statistics", dict)
        first.hand("statistics of all", dict)

    waiting = [background.start(lambda: chief.gather("statistics", dict)), background.start(follow)]
    second._leaving.set()  # as if killed: nothing of it goes on
    second._line.close()
    for one, future in zip((chief, first), waiting, strict=True):
        with pytest.raises(LostError, match=rf"worker 2 at {chief._me.hosts[2]} is lost") as caught:
            future.result(60)
        background.start(one.failed, caught.value)
    assert not ended


def test_a_large_document_arrives_whole() -> None:
    chief, worker = meet(2)
    text = "äx" * 4_000_000
    assert together([lambda: chief.hand("t", lambda: text), lambda: worker.hand("t", str)]) == [text, text]
    together([chief.finish, worker.finish])


def test_late_workers_are_waited_for_and_strangers_are_not_let_in() -> None:
    chief, first, second = services(3)
    waiting = start(chief)
    early = start(first)
    dial(chief, {"kind": "who are you?"}).close()
    with socket.create_connection(address(chief.hosts[0]), timeout=30) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        late = start(second)
        peers = [future.result(60) for future in (waiting, early, late)]
    together([one.finish for one in peers])


def test_who_does_not_come_is_named_to_all() -> None:
    chief, worker, _ = services(3)
    settings = config(strategy__join_seconds=3)
    both = start(chief, settings), start(worker, settings)
    for future in both:
        with pytest.raises(LostError, match=rf"worker 2 at {chief.hosts[2]} did not join in 3 s") as caught:
            future.result(60)
        assert caught.value.exit_code == EXIT_LOST


def test_a_chief_that_does_not_answer_is_named() -> None:
    _, worker = services(2)
    with pytest.raises(LostError, match=rf"the chief at {worker.hosts[0]} did not answer in 1 s"):
        start(worker, config(strategy__join_seconds=1)).result(60)


def test_a_port_that_is_taken_is_an_error() -> None:
    chief, _ = services(2)
    with (
        socket.create_server(("", address(chief.hosts[0])[1])),
        pytest.raises(UserError, match="can't be opened"),
    ):
        start(chief, config(strategy__join_seconds=0.2)).result(60)


def test_a_worker_may_come_again_while_others_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    greet, greeted = rendezvous.Chief._greet, threading.Event()
    monkeypatch.setattr(rendezvous.Chief, "_greet", lambda *args: (greet(*args), greeted.set()))
    chief, first, second = services(3)
    waiting = start(chief)
    stop = Interruption()
    gone = start(first, stop=stop)
    assert greeted.wait(60)
    stop.requested = True  # it leaves while it waits
    with pytest.raises(Interrupted):
        gone.result(60)
    # The chief was told why it left, and stops too: all leave together.
    with pytest.raises(UserError, match=r"worker 1 at .* stopped: stopped by SIGTERM") as caught:
        waiting.result(60)
    assert caught.value.exit_code == EXIT_INTERRUPTED
    again = start(chief)
    greeted.clear()
    dropped = dial(chief, agreement.hello(SETTINGS, first))
    assert greeted.wait(60)
    dropped.close()  # as if killed
    peers = [future.result(60) for future in (again, start(second), start(first))]
    together([one.finish for one in peers])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seed": 5}, r"worker 1 at \S+ was started with another config than the chief \(seed: 1 -> 5\)"),
        ({"hosts": 1}, r"TF_CONFIG: cluster: worker 1 at \S+ has "),
        ({"rank": 1}, r"two processes say that they are worker 1"),
    ],
)
def test_contradictions_end_all(change: dict[str, Any], sentence: str) -> None:
    chief, first, second = services(3)
    settings, wrong = SETTINGS, first
    if "seed" in change:
        settings = config(strategy__join_seconds=30, strategy__lost_seconds=20, seed=5)
    elif "hosts" in change:
        wrong = replace(first, hosts=(*first.hosts[:2], "elsewhere:1"))
    futures = (
        [start(chief), start(first), start(first)]
        if "rank" in change
        else [start(chief), start(wrong, settings)]
    )
    for future in futures:
        with pytest.raises(UserError, match=sentence) as caught:
            future.result(60)
        assert caught.value.exit_code == 2
    assert second.worker_index == 2


def test_output_folders_may_differ() -> None:
    chief, worker = services(2)
    other = config(strategy__join_seconds=30, strategy__lost_seconds=20, output_dir="/elsewhere")
    both = [start(chief), start(worker, other)]
    together([future.result(60).finish for future in both])


def test_why_one_fails_is_told_to_all(ended: list[UserError]) -> None:
    chief, first, second = meet(3)
    waits = background.start(second.hand, "never", dict)
    first.failed(UserError("rows.csv: line 7 is no number"))
    with pytest.raises(
        UserError, match=r"^worker 1 at \S+ stopped: rows.csv: line 7 is no number$"
    ) as caught:
        waits.result(60)
    assert caught.value.exit_code == 2
    with pytest.raises(UserError, match="worker 1 at"):
        chief.hand("x", dict)
    chief.failed(caught.value)
    assert ended == []


def test_why_the_chief_fails_is_told_to_all(ended: list[UserError]) -> None:
    chief, worker = meet(2)
    waits = background.start(worker.finish)
    time.sleep(0.2)
    chief.failed(KeyError("x"))
    with pytest.raises(UserError, match=r"^the chief at \S+ stopped: KeyError: 'x' \(a bug") as caught:
        waits.result(60)
    assert caught.value.exit_code == 1
    assert ended == []


def test_whoever_is_stuck_is_ended(ended: list[UserError]) -> None:
    chief, first, second = meet(3, grace=0.2)
    first._line.close()  # type: ignore[attr-defined]  # as if killed
    limit = time.monotonic() + 30
    while len(ended) < 3 and time.monotonic() < limit:
        time.sleep(0.05)
    texts = sorted(map(str, ended))
    assert sum("worker 1 at" in text and "is lost: its connection broke off" in text for text in texts) == 2
    assert all(error.exit_code == EXIT_LOST for error in ended)
    for one in (chief, second):
        one.failed(ended[0])


def test_silence_is_loss(ended: list[UserError]) -> None:
    settings = config(strategy__join_seconds=30, strategy__lost_seconds=2.5)
    me, other = services(2)
    waiting = start(me, settings, grace=0.2)
    silent = dial(me, agreement.hello(settings, other))  # it joins and says no more
    chief = waiting.result(60)
    with pytest.raises(
        LostError, match=r"worker 1 at \S+ is lost: no sign of life for \d+ s \(strategy.lost_seconds"
    ):
        chief.release()
    chief.failed(LostError("x"))
    silent.close()


def test_the_chief_waits_for_the_others_and_leaves_last() -> None:
    chief, worker = meet(2)
    order: list[str] = []

    def lead() -> None:
        chief.release()
        time.sleep(0.3)
        order.append("written")
        chief.finish()
        order.append("chief")

    def follow() -> None:
        worker.finish()
        order.append("worker")

    together([lead, follow])
    assert order[0] == "written"
    assert set(order[1:]) == {"worker", "chief"}


def test_what_becomes_of_a_worker_that_is_done_is_no_matter(ended: list[UserError]) -> None:
    chief, worker = meet(2, grace=0.2)
    background.start(worker.finish)
    chief.release()
    worker._line.close()  # type: ignore[attr-defined]
    time.sleep(0.5)
    chief.hand("more", dict)
    chief.finish()
    assert [error for error in ended if "worker 1" in str(error)] == []


def test_an_orderly_end_of_all_waits_for_what_the_chief_saves(ended: list[UserError]) -> None:
    chief, worker = meet(2, grace=0.2)
    chief.stop.requested = worker.stop.requested = True  # agreed over TensorFlow
    leaves = background.start(worker.failed, Interrupted("stopped by SIGTERM at step 7"))
    time.sleep(0.6)
    assert not leaves.done(), "the chief is still saving"
    chief.failed(Interrupted("stopped by SIGTERM at step 7"))
    leaves.result(60)
    assert ended == []


def test_errors_of_an_exchange_are_explained_by_what_happened() -> None:
    import tensorflow as tf

    chief, worker = meet(2, grace=4)
    threading.Timer(0.3, worker.failed, [UserError("its disk is full")]).start()
    told = chief.explain(tf.errors.UnavailableError(None, None, "recvmsg: Connection reset"))
    assert "stopped: its disk is full" in str(told)
    own = ValueError("x")
    assert chief.explain(own) is own
    chief.failed(told)


def test_addresses() -> None:
    assert address("cmle-training-workerpool0-ab-0:2222") == ("cmle-training-workerpool0-ab-0", 2222)
    assert address("grpc://[::1]:80") == ("::1", 80)
    with pytest.raises(UserError, match=r"TF_CONFIG: cluster: got the address 'host', expected host:port"):
        address("host")
