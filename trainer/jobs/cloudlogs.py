"""A job's log entries from Cloud Logging, newest last. Adopters: leave.

Entries arrive late and out of order, so each look goes back a little and leaves out what was seen.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.errors import UserError

ENDPOINT = "https://logging.googleapis.com"
_BACK = datetime.timedelta(seconds=60)
_PAGE = 1000
_SECONDS = 30


@dataclass(frozen=True)
class Entry:
    """One log entry.

    Attributes:
        replica: such as workerpool0-0, "service" for the service itself; in a study with its trial before it.
        severity: such as INFO.
        message: its text.
    """

    replica: str
    severity: str
    message: str


class LogsError(UserError):
    """The logs can't be read; the job goes on all the same."""


class CloudLogs:
    """The logs of a project's jobs.

    Args:
        project: id or number of the project.
        endpoint: where the API is; with `http://` no credentials are used.
    """

    def __init__(self, project: str, endpoint: str = "") -> None:
        from google.auth import credentials, default
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession

        self._endpoint = (endpoint or ENDPOINT).rstrip("/")
        self._project = project
        if self._endpoint.startswith("http://"):
            found: Any = credentials.AnonymousCredentials()
        else:
            try:
                found, _ = default(scopes=["https://www.googleapis.com/auth/logging.read"])
            except GoogleAuthError as error:
                raise LogsError(f"no credentials for the logs: {error}") from error
        self._session: Any = AuthorizedSession(found)
        self._seen: set[str] = set()
        self._newest: datetime.datetime | None = None

    def new(self, job_ids: Sequence[str]) -> Iterator[Entry]:
        """Yields the entries of jobs that were not there at the last look.

        Raises:
            LogsError: the API can't be reached or refuses to tell.
        """
        if not job_ids:
            return
        wanted = " OR ".join(f'"{job}"' for job in job_ids)
        body: dict[str, Any] = {
            "resourceNames": [f"projects/{self._project}"],
            "filter": f'resource.type="ml_job" AND resource.labels.job_id=({wanted})',
            "orderBy": "timestamp asc",
            "pageSize": _PAGE,
        }
        if self._newest is not None:
            since = (self._newest - _BACK).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            body["filter"] += f' AND timestamp>="{since}"'
        while True:
            page = self._post(body)
            for entry in page.get("entries", ()):
                mark = f"{entry.get('insertId')} {entry.get('timestamp')}"
                if mark in self._seen:
                    continue
                self._seen.add(mark)
                self._newest = max(
                    filter(None, (self._newest, _moment(entry.get("timestamp", "")))), default=None
                )
                yield _entry(entry)
            if not page.get("nextPageToken"):
                return
            body["pageToken"] = page["nextPageToken"]

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        import requests
        from google.auth.exceptions import GoogleAuthError

        try:
            answer = self._session.post(f"{self._endpoint}/v2/entries:list", json=body, timeout=_SECONDS)
            content: dict[str, Any] = answer.json() if answer.content else {}
        except (requests.RequestException, GoogleAuthError, ValueError) as error:
            raise LogsError(f"the logs can't be read: {error}") from error
        if answer.status_code != 200:
            why = content.get("error", {}).get("message", answer.reason)
            raise LogsError(f"the logs can't be read ({answer.status_code}): {why}")
        return content


def _moment(text: str) -> datetime.datetime | None:
    """Reads a timestamp, whose nanoseconds Python doesn't know."""
    head, _, tail = text.rstrip("Z").partition(".")
    try:
        whole = datetime.datetime.fromisoformat(head)
    except ValueError:
        return None
    return whole.replace(microsecond=int(tail[:6].ljust(6, "0")) if tail.isdigit() else 0)


def _entry(entry: dict[str, Any]) -> Entry:
    resource = entry.get("resource", {}).get("labels", {})
    labels = entry.get("labels", {})
    replica = resource.get("task_name") or labels.get("ml.googleapis.com/task_name") or "job"
    trial = labels.get("ml.googleapis.com/trial_id")
    payload = entry.get("jsonPayload", {})
    message = entry.get("textPayload") or payload.get("message") or (str(payload) if payload else "")
    return Entry(
        f"trial {trial} {replica}" if trial else str(replica),
        str(entry.get("severity", "DEFAULT")),
        str(message).rstrip("\n"),
    )
