"""The door of the local Cloud Storage: a proxy that lets TensorFlow and Arrow in, or fails. Adopters: leave.

A process of its own (`gcs.py` starts it): Arrow holds Python's lock while it opens an object, so a proxy in
the process of the client could not answer it.
"""

from __future__ import annotations

import datetime
import http.client
import json
import re
import socket
import socketserver
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

HOSTS = ("www.googleapis.com", "storage.googleapis.com")
CONTROL = "/_proxy"  # what is asked of the proxy itself


@dataclass
class Fault:
    """An answer in place of the storage's.

    Attributes:
        status: HTTP status; 0 closes the connection without an answer; -1 passes the request on, late.
        match: regular expression that "METHOD path?query" must hold.
        times: how often it happens; -1: always.
        skip: matching requests that go through before.
        cut: bytes of the storage's own answer that are sent before the connection closes; None: none.
        seconds: time before the answer.
    """

    status: int = 503
    match: str = ""
    times: int = 1
    skip: int = 0
    cut: int | None = None
    seconds: float = 0.0


@dataclass
class _Log:
    faults: list[Fault] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def control(self, asked: dict[str, Any]) -> dict[str, list[str]]:
        """Plans `faults`, tells what happened so far, and forgets all where asked to `clear`."""
        with self.lock:
            self.faults.extend(Fault(**fault) for fault in asked.get("faults", ()))
            told = {"requests": list(self.requests), "happened": list(self.happened)}
            if asked.get("clear"):
                for known in (self.faults, self.happened, self.requests):
                    known.clear()
        return told

    def take(self, about: str) -> Fault | None:
        with self.lock:
            self.requests.append(about)
            for fault in self.faults:
                if not re.search(fault.match, about):
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                if fault.times == 0:
                    self.faults.remove(fault)
                self.happened.append(about)
                return fault
        return None


class _Proxy(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def set_up(self, storage: str, log: _Log, certificate: Path, key: Path) -> None:
        self.storage, self.log = storage, log
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate, key)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that hang up are no news


class _Handler(BaseHTTPRequestHandler):
    """Hands requests on to the storage, whether they came through a tunnel or not."""

    protocol_version = "HTTP/1.1"
    server: _Proxy
    _onward: http.client.HTTPConnection | None = None

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *args: object) -> None:
        pass

    def do_CONNECT(self) -> None:
        host = self.path.partition(":")[0]
        if host not in HOSTS:  # nothing else is to be reached from here
            self.send_error(502, f"{host} is not served here")
            return
        self.send_response(200, "Connection established")
        self.end_headers()
        self.wfile.flush()
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")  # type: ignore[assignment]
        self.wfile = self.connection.makefile("wb", 0)  # type: ignore[assignment]
        self.close_connection = False

    def _pass_on(self) -> None:
        body = self._body()
        if self.path == CONTROL:
            told = self.server.log.control(json.loads(body or b"{}"))
            self._answer(200, "OK", {}, json.dumps(told).encode())
            return
        fault = self.server.log.take(f"{self.command} {self.path}")
        if fault is not None:
            time.sleep(fault.seconds)
        if fault is not None and fault.cut is None and fault.status >= 0:
            if fault.status == 0:
                self.close_connection = True
                return
            self._answer(fault.status, "injected", {}, b'{"error": {"message": "injected"}}')
            return
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("transfer-encoding", "content-length", "expect", "connection")
        }
        if self._onward is None:
            self._onward = http.client.HTTPConnection(self.server.storage, timeout=600)
        # The storage answers 501 to bodies in chunks; so all go on in one piece.
        self._onward.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
        answer = self._onward.getresponse()
        content = answer.read()
        kept = {
            name: value
            for name, value in answer.getheaders()
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "date")
        }
        for name in kept:  # where an upload goes on: through the tunnel again
            if name.lower() == "location":
                kept[name] = kept[name].replace("http://", "https://", 1)
        if fault is not None and fault.cut is not None:
            self._answer(answer.status, answer.reason, kept, content, cut=fault.cut)
            return
        if answer.status == 416 and self.headers.get("Range", "").startswith("bytes=0-"):
            # Google gives an empty object whole where a range of it is asked for.
            self._answer(200, "OK", {}, b"")
            return
        self._answer(answer.status, answer.reason, kept, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _pass_on  # noqa: N815

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _answer(
        self, status: int, reason: str, headers: Mapping[str, str], content: bytes, cut: int | None = None
    ) -> None:
        self.send_response(status, reason)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content if cut is None else content[:cut])
        if cut is not None:
            self.close_connection = True


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Makes a certificate (certificate.pem) for Google's hosts, which only this test trusts, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "local storage of a test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return paths


def main(storage: str, folder: str) -> None:
    """Answers for a storage at host:port until the standard input ends; prints the port."""
    certificate, key = _certificate(Path(folder))
    proxy = _Proxy(("127.0.0.1", 0), _Handler)
    proxy.set_up(storage, _Log(), certificate, key)
    threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
    print(proxy.server_address[1], flush=True)
    sys.stdin.read()  # ends with the process that started this one, however that ends


if __name__ == "__main__":
    main(*sys.argv[1:])
