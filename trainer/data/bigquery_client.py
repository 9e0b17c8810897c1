"""The connection to the BigQuery Storage Read API, and its errors in a sentence. Adopters: leave.

BIGQUERY_STORAGE_EMULATOR_HOST=localhost:PORT reaches a local server instead, without credentials.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.errors import UserError

EMULATOR = "BIGQUERY_STORAGE_EMULATOR_HOST"
SCHEMES = ("bigquery://", "bq://")  # the second is how the training service writes it
_HOST = "bigquerystorage.googleapis.com:443"
_READ_ROWS = "/google.cloud.bigquery.storage.v1.BigQueryRead/ReadRows"
_MOST_CONNECTIONS = 4  # one carries some 100 MB/s and more; a few let several streams run side by side
_CREATE_SECONDS = 120.0
# A call ends after this long and is resumed where it was: a connection that went silent is noticed so.
CALL_SECONDS = 300.0

SESSION_USER = "BigQuery Read Session User (roles/bigquery.readSessionUser)"
DATA_VIEWER = "BigQuery Data Viewer (roles/bigquery.dataViewer)"


@dataclass(frozen=True)
class Table:
    """The name of a table."""

    project: str
    dataset: str
    table: str

    @property
    def path(self) -> str:
        """The name as the API wants it."""
        return f"projects/{self.project}/datasets/{self.dataset}/tables/{self.table}"

    def __str__(self) -> str:
        return f"bigquery://{self.project}.{self.dataset}.{self.table}"


def is_bigquery(source: str) -> bool:
    """Returns whether a data source names a BigQuery table."""
    return source.startswith(SCHEMES)


def parse_table(source: str) -> Table:
    """Reads bigquery://project.dataset.table.

    Raises:
        UserError: it is none, or names what the Storage Read API can't read.
    """
    name = source.partition("://")[2].strip().replace("`", "").rstrip("/")
    parts = name.rsplit(".", 2)
    if len(parts) != 3 or not all(parts) or "/" in name:
        raise UserError(
            f"data source {source!r}: expected bigquery://project.dataset.table, "
            f"got {name.count('.') + 1 if name else 0} part(s)"
        )
    for sign, what in (("*", "a wildcard table"), ("$", "a partition"), ("@", "a table at a time")):
        if sign in parts[2]:
            raise UserError(
                f"data source {source!r}: {what} can't be read by the Storage Read API; name the table and "
                "choose rows with data.row_restriction (data.snapshot reads an earlier state)"
            )
    return Table(*parts)


def billing_project(asked: str | None, table: Table, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the billed project: `asked` (data.project), what the service says, or the table's."""
    for value in (asked, environ.get("GOOGLE_CLOUD_PROJECT"), environ.get("CLOUD_ML_PROJECT_ID")):
        if value and value.strip():
            return value.strip()
    return table.project


@dataclass
class CallError(Exception):
    """An answer of the service that is an error.

    Attributes:
        code: name of the gRPC status, such as UNAVAILABLE.
        message: its text.
        retry_delay: seconds that the service asks to wait, or None.
    """

    code: str
    message: str
    retry_delay: float | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    @property
    def expired(self) -> bool:
        """Whether it says that a read session's life is over."""
        return self.code in ("FAILED_PRECONDITION", "NOT_FOUND") and "session expired" in self.message.lower()

    @property
    def credentials(self) -> bool:
        """Whether no token could be had: mostly a setting, but in the middle of a run a hiccup."""
        return "metadata from plugin failed" in self.message

    @property
    def passing(self) -> bool:
        """Whether trying again may help."""
        if self.code == "INTERNAL":  # a reset connection also comes as this one
            return any(sign in self.message for sign in ("RST_STREAM", "Received unexpected EOS", "GOAWAY"))
        return self.code in (
            "UNAVAILABLE",
            "UNKNOWN",
            "ABORTED",
            "DEADLINE_EXCEEDED",
            "RESOURCE_EXHAUSTED",
            "CANCELLED",
        )


class Client:
    """A few connections to the service. Safe to use from threads; connects when first used."""

    def __init__(self, connections: int = 1) -> None:
        """Makes a client.

        Args:
            connections: connections over which streams are spread, at most 4.
        """
        self.account = ""
        self._count = max(1, min(connections, _MOST_CONNECTIONS))
        self._lock = threading.Lock()
        self._transports: list[Any] = []
        self._calls: Sequence[Any] = ()
        self._turn = itertools.count()

    @property
    def local(self) -> bool:
        """Whether a local server is asked and not BigQuery."""
        return bool(os.environ.get(EMULATOR, "").strip())

    def _connected(self) -> None:
        with self._lock:
            if self._transports:
                return
            os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # each closed connection is a line otherwise
            local = os.environ.get(EMULATOR, "").strip()
            transports = self._local(local) if local else self._cloud()
            self._calls = [
                # Responses stay bytes: most of one is the Arrow message, which needs no copy.
                one.grpc_channel.unary_stream(
                    _READ_ROWS, request_serializer=_serialize, response_deserializer=None
                )
                for one in transports
            ]
            self._transports = transports

    def _options(self) -> list[tuple[str, Any]]:
        return [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.use_local_subchannel_pool", 1),  # else all channels share one connection
        ]

    def _local(self, host: str) -> list[Any]:
        import grpc
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.bigquery_storage_v1.services.big_query_read.transports import (
            BigQueryReadGrpcTransport,
        )

        self.account = "nobody (a local server)"
        options = [*self._options(), ("grpc.enable_http_proxy", 0)]
        return [
            BigQueryReadGrpcTransport(
                channel=grpc.insecure_channel(host, options=options), credentials=AnonymousCredentials()
            )
            for _ in range(self._count)
        ]

    def _cloud(self) -> list[Any]:
        import google.auth
        from google.auth import exceptions
        from google.cloud.bigquery_storage_v1.services.big_query_read.transports import (
            BigQueryReadGrpcTransport,
        )

        scopes = (
            "https://www.googleapis.com/auth/bigquery",
            "https://www.googleapis.com/auth/cloud-platform",
        )
        try:
            credentials, _ = google.auth.default(scopes=scopes)
        except exceptions.GoogleAuthError as error:
            raise no_credentials(error) from error
        self.account = str(getattr(credentials, "service_account_email", None) or "the signed-in user")
        return [
            BigQueryReadGrpcTransport(
                channel=BigQueryReadGrpcTransport.create_channel(
                    _HOST, credentials=credentials, scopes=scopes, options=self._options()
                )
            )
            for _ in range(self._count)
        ]

    def create(self, request: Any) -> Any:
        """Opens a read session.

        Raises:
            CallError: the service refuses, or can't be reached.
            UserError: there are no credentials.
        """
        self._connected()
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError
        from google.cloud.bigquery_storage_v1 import BigQueryReadClient

        try:
            client = BigQueryReadClient(transport=self._transports[0])
            return client.create_read_session(request=request, retry=None, timeout=_CREATE_SECONDS)
        except exceptions.GoogleAPICallError as error:
            raise _api_failure(error) from error
        except exceptions.RetryError as error:
            raise CallError("UNAVAILABLE", str(error)) from error
        except GoogleAuthError as error:
            raise no_credentials(error) from error

    def read(self, stream: str, offset: int, seconds: float) -> Any:
        """Starts to read a stream.

        Args:
            stream: name of the stream.
            offset: rows of it to leave out.
            seconds: time after which the call ends, done or not.

        Returns:
            A gRPC call that yields the responses as bytes.
        """
        self._connected()
        from google.cloud.bigquery_storage_v1 import types

        call = self._calls[next(self._turn) % len(self._calls)]
        metadata = (("x-goog-request-params", f"read_stream={stream}"),)
        request = types.ReadRowsRequest(read_stream=stream, offset=offset)
        return call(request, timeout=seconds, metadata=metadata)


def _serialize(request: Any) -> bytes:
    return type(request).serialize(request)  # type: ignore[no-any-return]


def _api_failure(error: Any) -> CallError:
    status = getattr(error, "grpc_status_code", None)
    code = status.name if status is not None else type(error).__name__
    return CallError(code, str(error.message), _delay(error.details))


def rpc_failure(error: Any) -> CallError:
    """Returns what went wrong in a call made with `Client.read` (a grpc.RpcError)."""
    details: Sequence[Any] = ()
    try:
        from grpc_status import rpc_status

        status = rpc_status.from_call(error)
        details = status.details if status is not None else ()
    except (ImportError, ValueError, AttributeError):
        pass  # details only say how long to wait
    return CallError(error.code().name, error.details() or "", _delay(details))


def _delay(details: Sequence[Any]) -> float | None:
    from google.rpc import error_details_pb2

    for detail in details or ():
        info = error_details_pb2.RetryInfo()
        if isinstance(detail, error_details_pb2.RetryInfo):
            info = detail
        elif not (hasattr(detail, "Unpack") and detail.Unpack(info)):
            continue
        return float(info.retry_delay.seconds + info.retry_delay.nanos * 1e-9)
    return None


def no_credentials(error: Exception) -> UserError:
    """Returns the error for credentials that can't be had, with the places that were looked at."""
    given = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    file = os.path.join(
        os.environ.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud"),
        "application_default_credentials.json",
    )
    tried = f"GOOGLE_APPLICATION_CREDENTIALS ({given or 'not set'}), {file} "
    tried += f"({'there' if os.path.exists(file) else 'not there'}) and the metadata server of Google Cloud"
    return UserError(
        f"BigQuery: no usable Google credentials; tried {tried}; "
        f"`gcloud auth application-default login` makes them ({_line(error)})"
    )


def _line(error: object) -> str:
    return re.sub(r"\s+", " ", str(error)).strip()[:300]


def explain(
    failure: CallError,
    *,
    what: str,
    table: Table,
    billing: str,
    account: str,
    restriction: str = "",
    reading: bool = False,
) -> UserError:
    """Returns the error for an answer that trying again can't mend.

    Args:
        failure: the answer.
        what: what messages call the table or stream.
        table: the table.
        billing: the billing project.
        account: whom the service took us for.
        restriction: the row filter that was sent.
        reading: whether rows were being read; else a session was being opened.
    """
    message = failure.message
    rules: list[tuple[Callable[[], bool], Callable[[], str]]] = [
        (
            lambda: "non-table entities" in message,
            lambda: (
                "is a view or an external table, and the Storage Read API reads stored tables only; write "
                f"its rows to a table (CREATE TABLE {table.dataset}.{table.table}_rows AS SELECT * FROM "
                f"`{table.project}.{table.dataset}.{table.table}`) and name that one"
            ),
        ),
        (
            lambda: bool(restriction) and re.search("row filter|row_restriction", message, re.I) is not None,
            lambda: (
                f"the filter {restriction!r} (data.row_restriction and the split) was refused; expected a "
                "condition as in WHERE, without sub-queries or aggregates"
            ),
        ),
        (
            lambda: "snapshot" in message.lower() or "time travel" in message.lower(),
            lambda: (
                "the table can't be read as it was at that moment (BigQuery keeps 7 days unless the "
                "dataset says otherwise); start anew with --fresh or set data.snapshot"
            ),
        ),
        (
            lambda: failure.code == "PERMISSION_DENIED",
            lambda: _denied(message, table, billing, account, reading),
        ),
        (
            lambda: failure.code == "NOT_FOUND",
            lambda: (
                f"not found (billing project {billing}); check project, dataset, table and, for a table in "
                "another region or project, that the account may see it"
            ),
        ),
        (
            lambda: failure.credentials,
            lambda: (
                f"no token for {account}; check the credentials (`gcloud auth application-default login`)"
            ),
        ),
        (lambda: failure.code == "UNAUTHENTICATED", lambda: f"the credentials of {account} were refused"),
    ]
    for applies, tell in rules:
        if applies():
            return UserError(f"{what}: {tell()} ({failure.code}: {_line(message)})")
    return UserError(f"{what}: can't be read, billing project {billing} ({failure.code}: {_line(message)})")


def _denied(message: str, table: Table, billing: str, account: str, reading: bool) -> str:
    if "has not been used" in message or "is disabled" in message or "SERVICE_DISABLED" in message:
        return f"the BigQuery Storage API is off in the billing project {billing}; enable it there"
    found = re.search(r"bigquery\.[a-z]+\.[a-zA-Z]+", message)
    needed = found[0] if found else f"bigquery.readsessions.{'getData' if reading else 'create'}"
    role, where = SESSION_USER, f"the billing project {billing}"
    if needed.startswith("bigquery.tables"):
        role, where = DATA_VIEWER, f"the table {table.project}.{table.dataset}.{table.table} or its dataset"
    return (
        f"permission {needed} is missing for {account}; ask for the role {role} on {where}"
        f"{'' if billing in where else f' (billing project {billing})'}"
    )
