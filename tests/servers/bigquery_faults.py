"""What goes wrong on purpose in the local BigQuery server. Adopters: leave."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import grpc


@dataclass
class Fault:
    """An error that the server answers with.

    Attributes:
        code: gRPC status.
        message: its text.
        at: "create" (CreateReadSession) or "read" (ReadRows).
        after_row: read: rows of the stream that are sent before; None: at the start, whatever the offset.
        stream: read: number of the stream in its session; None: any.
        times: how often it happens; -1: always.
        retry_delay: seconds in a google.rpc.RetryInfo; None: without one.
        stall: read: no error, but silence until the caller gives up.
    """

    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    message: str = "injected"
    at: str = "read"
    after_row: int | None = None
    stream: int | None = None
    times: int = 1
    retry_delay: float | None = None
    stall: bool = False


@dataclass
class Faults:
    """The faults of a server; safe to use from threads."""

    planned: list[Fault] = field(default_factory=list)
    happened: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *faults: Fault) -> None:
        """Plans more faults."""
        with self._lock:
            self.planned.extend(faults)

    def take_create(self) -> Fault | None:
        """Returns the fault of this CreateReadSession, if there is one."""
        return self._take(lambda fault: fault.at == "create")

    def take_read(self, stream: int, offset: int) -> Fault | None:
        """Returns the fault that happens at a row of a stream, if there is one."""
        return self._take(
            lambda fault: (
                fault.at == "read" and fault.stream in (None, stream) and fault.after_row in (None, offset)
            )
        )

    def next_stop(self, stream: int, offset: int) -> int | None:
        """Returns the first row after `offset` at which a fault is planned for a stream."""
        with self._lock:
            rows = [
                fault.after_row
                for fault in self.planned
                if fault.at == "read"
                and fault.stream in (None, stream)
                and fault.after_row is not None
                and fault.after_row > offset
            ]
        return min(rows, default=None)

    def _take(self, fits: Any) -> Fault | None:
        with self._lock:
            for fault in self.planned:
                if fits(fault):
                    self.happened.append(fault)
                    fault.times -= 1
                    if fault.times == 0:
                        self.planned.remove(fault)
                    return fault
        return None


def answer(context: grpc.ServicerContext, fault: Fault) -> None:
    """Ends a call with a fault; does not return."""
    if fault.retry_delay is None:
        context.abort(fault.code, fault.message)
    from google.protobuf import any_pb2, duration_pb2
    from google.rpc import code_pb2, error_details_pb2, status_pb2
    from grpc_status import rpc_status

    seconds = int(fault.retry_delay or 0)
    delay = duration_pb2.Duration(seconds=seconds, nanos=int(((fault.retry_delay or 0) - seconds) * 1e9))
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(
        code=code_pb2.Code.Value(fault.code.name), message=fault.message, details=[detail]
    )
    context.abort_with_status(rpc_status.to_status(status))
