"""Several iterators run ahead in threads, and their items come out in order. Adopters: leave."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


_END = object()


class _Lane(Generic[T]):
    """One iterator, run by one thread into a bounded queue."""

    def __init__(self, start: Callable[[], Iterator[T]], depth: int) -> None:
        self._start = start
        self._items: queue.Queue[object] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def _put(self, item: object) -> bool:
        while not self._stop.is_set():
            try:
                self._items.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def _run(self) -> None:
        try:
            iterator = self._start()
            for item in iterator:
                if not self._put(item):
                    close = getattr(iterator, "close", None)
                    if close is not None:
                        close()
                    return
            self._put(_END)
        except BaseException as error:  # whatever it is, it belongs to the consumer
            self._put(_Failure(error))

    def __iter__(self) -> Iterator[T]:
        while True:
            item = self._items.get()
            if item is _END:
                return
            if isinstance(item, _Failure):
                raise item.error
            yield item  # type: ignore[misc]

    def stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join()


def ordered(starts: Sequence[Callable[[], Iterator[T]]], threads: int, depth: int = 2) -> Iterator[T]:
    """Yields all items of the iterators, in order, while the next ones are already running.

    Args:
        starts: functions that each begin an iterator; called in a thread of their own.
        threads: iterators that run at once.
        depth: items that each may be ahead; so at most `threads * (depth + 1)` items are held.

    Raises:
        Whatever an iterator raises, at its place in the order.
    """
    waiting = deque(starts)
    if not waiting:
        return
    running: deque[_Lane[T]] = deque()
    try:
        while waiting or running:
            while waiting and len(running) < threads:
                running.append(_Lane(waiting.popleft(), depth))
            yield from running[0]
            running.popleft().join()
    finally:
        for lane in running:
            lane.stop()
        for lane in running:
            lane.join()
