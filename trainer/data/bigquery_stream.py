"""One stream of a read session as Arrow record batches, resumed where it broke. Adopters: leave.

The official client moves its offset on before a message has been used and tries for ever; here the offset is
that of the last row handed on, and a stream that gives nothing for long is given up with its name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from trainer.data.bigquery_client import CALL_SECONDS, CallError, Client, rpc_failure
from trainer.errors import UserError

_LOG = logging.getLogger("trainer")
_AT_ONCE = 0.01  # seconds before the first try: most streams break because a server is replaced
_FIRST_WAIT = 0.1  # before the second, and 1.3 times more each time, as in the official client
_FIRST_WAIT_EXHAUSTED = 1.0
_GROWTH = 1.3
_LONGEST_WAIT = 20.0
# Numbers of the fields of a ReadRowsResponse, and of the ArrowRecordBatch in it.
_ARROW_RECORD_BATCH, _ROW_COUNT = 4, 6
_SERIALIZED_RECORD_BATCH = 1


@dataclass
class Patience:
    """How long a call is tried again.

    Attributes:
        seconds: time without a new row, waits included, after which it is given up.
        sleep: waits that many seconds.
    """

    seconds: float
    sleep: Callable[[float], Any] = time.sleep
    _spent: float = 0.0
    _tries: int = 0

    def anew(self) -> Patience:
        """Returns the same patience, with nothing of it spent."""
        return replace(self, _spent=0.0, _tries=0)

    def wait(self, failure: CallError, what: str, began: float) -> None:
        """Waits before the next try: as long as the service asks, else longer each time.

        Args:
            failure: what went wrong.
            what: start of the sentence that gives up.
            began: `time.monotonic()` when the failed try began.

        Raises:
            UserError: it went on for too long.
        """
        exhausted = failure.code == "RESOURCE_EXHAUSTED"
        first = _FIRST_WAIT_EXHAUSTED if exhausted else _FIRST_WAIT
        delay = failure.retry_delay
        if delay is None and self._tries == 0 and not exhausted:
            delay = _AT_ONCE
        elif delay is None:
            tries = self._tries if exhausted else self._tries - 1
            delay = min(_LONGEST_WAIT, first * _GROWTH**tries)
        self._tries += 1
        self._spent += time.monotonic() - began
        if self._spent + delay > self.seconds:
            raise UserError(
                f"{what}: given up after {self._tries} tries and {self._spent:.0f} s without a row "
                f"(data.retry_seconds={self.seconds:g}); the last answer was {failure}"
            )
        level = logging.INFO if self._tries < 3 else logging.WARNING
        _LOG.log(level, "%s: %s; trying again in %.1f s", what, failure, delay)
        self.sleep(delay)
        self._spent += delay


class ExpiredError(Exception):
    """The stream's session is at the end of its life."""


# --- messages ---------------------------------------------------------------------------------------


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7


def _fields(data: memoryview, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yields (field number, first, last) of a protobuf message; for a number, `first` is its value.

    Source: the wire format in the Protocol Buffers documentation ("Encoding").
    """
    while place < end:
        tag, place = _varint(data, place)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield number, value, value
        elif kind == 2:
            size, place = _varint(data, place)
            if place + size > end:
                raise IndexError("a field ends beyond its message")
            yield number, place, place + size
            place += size
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        else:
            raise IndexError(f"field {number} is of the unknown kind {kind}")


def arrow_part(response: bytes) -> tuple[pa.Buffer | None, int]:
    """Returns the Arrow message in a serialized ReadRowsResponse, without a copy, and its number of rows."""
    data = memoryview(response)
    message: pa.Buffer | None = None
    rows = 0
    for number, first, last in _fields(data, 0, len(data)):
        if number == _ROW_COUNT:
            rows = first
        elif number == _ARROW_RECORD_BATCH:
            for inner, low, high in _fields(data, first, last):
                if inner == _SERIALIZED_RECORD_BATCH:
                    message = pa.py_buffer(response).slice(low, high - low)
    return message, rows


def decode(response: bytes, schema: pa.Schema) -> pa.RecordBatch | None:
    """Returns the rows of a serialized ReadRowsResponse, or None if it has none.

    Raises:
        CallError: the response is damaged; asking for it again may help.
    """
    try:
        message, _ = arrow_part(response)
        if message is None:
            return None
        batch = pa.ipc.read_record_batch(message, schema)
    except (IndexError, pa.ArrowException, OSError) as error:
        raise CallError("ABORTED", f"a damaged response ({error})") from error
    return batch if batch.num_rows else None


# --- reading ----------------------------------------------------------------------------------------


class Place(Protocol):
    """Where a stream is: `name` may change when its session is renewed."""

    @property
    def name(self) -> str:
        """The stream's name in the session of now."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        ...


@dataclass
class FixedPlace:
    """A stream of a session that is not renewed."""

    name: str
    schema: pa.Schema


def batches(
    client: Client,
    place: Place,
    offset: int,
    patience: Patience,
    failed: Callable[[CallError], UserError],
    what: str,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields (offset of the first row, rows) of a stream, each row once, whatever fails on the way.

    Args:
        client: the connections.
        place: the stream.
        offset: rows to leave out.
        patience: how long failures are waited out.
        failed: makes the error of a failure that does not pass.
        what: what messages call the stream.

    Raises:
        ExpiredError: the session's life is over; rows up to the last one yielded were given.
        UserError: the stream can't be read, or gave nothing for too long.
    """
    import grpc

    patience = patience.anew()
    start = offset
    while True:
        began = time.monotonic()
        call = client.read(place.name, offset, min(CALL_SECONDS, patience.seconds / 3))
        try:
            for response in call:
                batch = decode(response, place.schema)
                if batch is None:
                    continue
                patience = patience.anew()
                yield offset, batch
                offset += batch.num_rows
                began = time.monotonic()  # the time that the rows were in use doesn't count
            return
        except grpc.RpcError as error:
            failure = rpc_failure(error)
        except CallError as damaged:
            failure = damaged
        finally:
            call.cancel()
        if failure.expired:
            raise ExpiredError
        if failure.code == "OUT_OF_RANGE" and offset > start:
            return  # it broke after the last row and there is nothing behind it
        if not failure.passing:
            raise failed(failure)
        patience.wait(failure, f"{what}, row {offset:,}", began)


def first_rows(
    client: Client,
    stream: str,
    schema: pa.Schema,
    patience: Patience,
    failed: Callable[[CallError], UserError],
) -> pa.RecordBatch | None:
    """Returns the first rows of a stream, or None if it is empty."""
    reading = batches(client, FixedPlace(stream, schema), 0, patience, failed, stream)
    try:
        return next((batch for _, batch in reading), None)
    finally:
        reading.close()  # type: ignore[attr-defined]  # a generator
