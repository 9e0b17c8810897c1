"""A connection that carries whole JSON messages between two processes of a job. Adopters: leave."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from types import TracebackType
from typing import Any

from trainer.errors import UserError
from trainer.interruption import Interruption

log = logging.getLogger("trainer")

_MAGIC = b"trainer/1\n"  # first bytes from both ends: TensorFlow's server, or a stranger, says something else
_HELLO_SECONDS = 10.0
_MOST_BYTES = 1 << 31


def address(host: str) -> tuple[str, int]:
    """Returns (name, port) of a host:port text of TF_CONFIG.

    Raises:
        UserError: there is no port.
    """
    name, _, port = host.removeprefix("grpc://").rpartition(":")
    if not name or not port.isdigit():
        raise UserError(f"TF_CONFIG: cluster: got the address {host!r}, expected host:port")
    return name.strip("[]"), int(port)


class Line:
    """One connection. `send` may be called from any thread, `receive` from one.

    Attributes:
        rank: of the process at the other end.
        heard: when the last message came (monotonic seconds).
        closed: whether either end has closed it.
        why: why this end closed it.
    """

    def __init__(self, connection: socket.socket, rank: int = 0) -> None:
        self.rank, self.heard, self.closed = rank, time.monotonic(), False
        self.why = "its connection broke off"
        self._socket = connection
        self._sending = threading.Lock()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, **message: Any) -> None:
        """Sends a message; does nothing once the connection is gone, which `receive` tells."""
        data = json.dumps(message).encode()
        with self._sending:
            if self.closed:
                return
            try:
                self._socket.sendall(len(data).to_bytes(8, "big") + data)
            except OSError:
                self._shut()

    def receive(self) -> dict[str, Any] | None:
        """Returns the next message, or None when the connection is gone."""
        size = self._exactly(8)
        if size is None or (length := int.from_bytes(size, "big")) > _MOST_BYTES:
            return None
        data = self._exactly(length)
        try:
            message = None if data is None else json.loads(data)
        except ValueError:
            return None
        return message if isinstance(message, dict) and "kind" in message else None

    def _exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self._socket.recv(min(1 << 20, count - len(parts)))
            except OSError:
                part = b""
            if not part:
                return None
            self.heard = time.monotonic()  # a large document is a sign of life too
            parts += part
        return bytes(parts)

    def greet(self) -> bool:
        """Exchanges the first bytes; returns whether the other end is a process of this trainer."""
        try:
            self._socket.settimeout(_HELLO_SECONDS)
            self._socket.sendall(_MAGIC)
            return self._exactly(len(_MAGIC)) == _MAGIC
        except OSError:
            return False

    def ready(self) -> None:
        """Lets `receive` wait as long as it takes from now on."""
        self._socket.settimeout(None)

    def close(self) -> None:
        """Closes the connection; a `receive` or `send` in another thread returns."""
        self._shut()

    def _shut(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):  # it was gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Listener:
    """The chief's open port; a context manager that closes it."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        server.settimeout(0.1)

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    def accept(self) -> Line | None:
        """Returns a connection of a process of this trainer, or None after a short while."""
        try:
            connection, _ = self._server.accept()
        except OSError:
            return None
        line = Line(connection)
        if not line.greet():
            line.close()
            return None
        return line


def listen(host: str, deadline: float, stop: Interruption) -> Listener:
    """Opens the port of an address; waits while a process that is ending still has it.

    Raises:
        UserError: it is taken.
    """
    _, port = address(host)
    told = False
    while True:
        stop.check("before the other workers came")
        try:
            return Listener(socket.create_server(("", port)))
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"TF_CONFIG: cluster: port {port} of the chief can't be opened: {error.strerror}; end "
                    "the process that has it, or give the cluster other ports"
                ) from error
        if not told:
            log.info("port %d is taken: waiting for it", port)
            told = True
        time.sleep(0.5)


def connect(host: str, hello: dict[str, Any]) -> Line | None:
    """Connects to an address and says hello; returns None if nobody of this trainer listens there."""
    try:
        connection = socket.create_connection(address(host), timeout=5.0)
    except OSError:
        return None
    line = Line(connection)
    if not line.greet():
        line.close()
        return None
    line.ready()
    line.send(**hello)
    return line
