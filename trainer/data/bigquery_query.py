"""A query as a source: run once, its result read like a table. Adopters: leave.

Three calls of the BigQuery REST API (v2, jobs) with the credentials and the HTTP client that come with the
Storage client; so no further package is needed. BigQuery keeps the result of a query for 24 hours, in a table
without a name of its own, which the account that ran it may read.
BIGQUERY_EMULATOR_HOST=http://localhost:PORT reaches a local server instead, without credentials.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import os
import time
import uuid
from collections.abc import Mapping
from typing import Any

from trainer.data.bigquery_client import CallError, Table, no_credentials
from trainer.data.bigquery_ledger import Ledger
from trainer.data.bigquery_stream import Patience
from trainer.errors import UserError

_LOG = logging.getLogger("trainer")
_UTC = datetime.timezone.utc
EMULATOR = "BIGQUERY_EMULATOR_HOST"  # as in Google's own client
_HOST = "https://bigquery.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/bigquery"
_KEPT = datetime.timedelta(hours=24)  # how long the service keeps results
_CALL_SECONDS = 60.0
_PASSING_REASONS = (
    "rateLimitExceeded",
    "backendError",
    "internalError",
    "jobBackendError",
    "jobInternalError",
)
_JOB_USER = "BigQuery Job User (roles/bigquery.jobUser)"


def result_of(query: str, project: str | None, ledger: Ledger, patience: Patience) -> Table:
    """Returns the table with a query's result: executed once a run; its restarts and workers share it.

    Args:
        query: a SELECT statement in GoogleSQL.
        project: data.project, the one that is billed.
        ledger: where the run keeps what it made.
        patience: how long failures are waited out.

    Raises:
        UserError: the query is refused, fails, or ran so long ago that its result is gone.
    """
    key = hashlib.sha256(query.encode()).hexdigest()[:24]
    entry = ledger.shared("queries", key, _is_kept, lambda: _run(query, _billed(project), patience))
    return Table(*entry["table"])


def _is_kept(entry: Mapping[str, Any]) -> bool:
    if datetime.datetime.fromisoformat(entry["until"]) <= datetime.datetime.now(_UTC):
        raise UserError(
            "data.query: its result was kept for 24 hours, which are over; start anew with --fresh, or write "
            "the rows to a table of yours (CREATE TABLE ... AS SELECT) and name that in data.source"
        )
    return True


def _billed(project: str | None, environ: Mapping[str, str] = os.environ) -> str:
    for value in (project, environ.get("GOOGLE_CLOUD_PROJECT"), environ.get("CLOUD_ML_PROJECT_ID")):
        if value and value.strip():
            return value.strip()
    raise UserError(
        "data.query: set data.project (or GOOGLE_CLOUD_PROJECT), the project that is billed for it"
    )


class _Service:
    """The jobs of a project."""

    def __init__(self, project: str, patience: Patience) -> None:
        self._project = project
        self._patience = patience
        local = os.environ.get(EMULATOR, "").strip().rstrip("/")
        self._jobs = f"{local or _HOST}/bigquery/v2/projects/{project}/jobs"
        self._session = _session(local=bool(local))

    def insert(self, query: str, **more: Any) -> dict[str, Any]:
        """Starts a query and returns its job; a second try finds the job of the first."""
        name = f"trainer_{uuid.uuid4().hex}"
        body = {
            "jobReference": {"projectId": self._project, "jobId": name},
            "configuration": {"query": {"query": query, "useLegacySql": False}, **more},
        }
        return self._call("POST", self._jobs, json=body)

    def get(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a job as it is now."""
        about = job["jobReference"]
        location = {"location": about["location"]} if about.get("location") else {}
        return self._call("GET", f"{self._jobs}/{about['jobId']}", params=location)

    def _call(self, method: str, url: str, **more: Any) -> dict[str, Any]:
        import requests
        from google.auth.exceptions import GoogleAuthError

        patience = self._patience.anew()
        while True:
            began = time.monotonic()
            try:
                answer = self._session.request(method, url, timeout=_CALL_SECONDS, **more)
            except GoogleAuthError as error:
                raise no_credentials(error) from error
            except requests.RequestException as error:
                patience.wait(CallError("UNAVAILABLE", str(error)), "data.query", began)
                continue
            if answer.ok:
                return dict(answer.json())
            reason, message = _refusal(answer)
            if answer.status_code == 409 and method == "POST":  # an earlier try had arrived
                return self.get({"jobReference": more["json"]["jobReference"]})
            if answer.status_code == 429 or answer.status_code >= 500 or reason in _PASSING_REASONS:
                patience.wait(CallError(str(answer.status_code), message), "data.query", began)
                continue
            raise _explain(answer.status_code, message, self._project)


def _session(local: bool) -> Any:
    import requests

    if local:
        made = requests.Session()
        made.trust_env = False  # no proxy stands before this machine itself
        return made
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession

    try:
        credentials, _ = google.auth.default(scopes=(_SCOPE,))
    except GoogleAuthError as error:
        raise no_credentials(error) from error
    return AuthorizedSession(credentials)


def _refusal(answer: Any) -> tuple[str, str]:
    try:
        error = answer.json()["error"]
        return str((error.get("errors") or [{}])[0].get("reason", "")), str(error.get("message", ""))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return "", str(answer.text)[:300]


def _explain(status: int, message: str, project: str) -> UserError:
    if status == 403:
        return UserError(
            f"data.query: permission denied; running a query needs the role {_JOB_USER} on the billed "
            f"project {project}, and BigQuery Data Viewer (roles/bigquery.dataViewer) on its tables "
            f"({message})"
        )
    return UserError(f"data.query: refused, billed project {project} ({message})")


def _run(query: str, project: str, patience: Patience) -> dict[str, Any]:
    """Runs a query and returns its entry for the ledger."""
    service = _Service(project, patience)
    plan = service.insert(query, dryRun=True)["statistics"]
    kind = plan["query"].get("statementType", "SELECT")
    if kind != "SELECT":  # known before it has done anything
        raise UserError(f"data.query: expected a SELECT statement, got {kind}")
    _LOG.info(
        "data.query: reads %s bytes, billed to %s", f"{int(plan.get('totalBytesProcessed', 0)):,}", project
    )
    began, wait = datetime.datetime.now(_UTC), 0.1
    job = service.insert(query)
    while job["status"]["state"] != "DONE":
        patience.sleep(wait)
        wait = min(wait * 1.5, 10.0)
        job = service.get(job)
    if failed := job["status"].get("errorResult"):
        raise UserError(f"data.query: failed, billed project {project} ({failed.get('message')})")
    table = job["configuration"]["query"]["destinationTable"]
    made = Table(table["projectId"], table["datasetId"], table["tableId"])
    _LOG.info("data.query: its result is %s, kept for 24 hours", made)
    return {"table": [made.project, made.dataset, made.table], "until": (began + _KEPT).isoformat()}
