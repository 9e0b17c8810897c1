"""What a job names on Cloud Storage, looked for before it is sent. Adopters: leave.

A package or a config that isn't there is found out by a machine that is paid for; a bucket of several regions
is refused by the training service when the job starts. What can't be looked up (no permission to read, no
network) is told and stops nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from trainer.jobs.calls import Call

ENDPOINT = "https://storage.googleapis.com"
_SECONDS = 20


@dataclass(frozen=True)
class Named:
    """A gs:// path in a job.

    Attributes:
        field: where it stands, in the request's spelling.
        uri: the path.
        is_file: whether a file must be there; else a folder that the job will write.
    """

    field: str
    uri: str
    is_file: bool

    @property
    def bucket(self) -> str:
        """Its bucket."""
        return self.uri.removeprefix("gs://").partition("/")[0]

    @property
    def name(self) -> str:
        """Its name in the bucket."""
        return self.uri.removeprefix("gs://").partition("/")[2]


@dataclass(frozen=True)
class Problem:
    """What is wrong with one of them: an error stops the job, anything else is a warning."""

    is_error: bool
    text: str


def named(call: Call) -> Iterator[Named]:
    """Yields the files that a job needs when it starts, and the folder that it writes to."""
    spec, place = call.spec, _place(call)
    for i, pool in enumerate(spec.get("workerPoolSpecs", ())):
        at = f"{place}workerPoolSpecs[{i}]"
        for j, uri in enumerate(pool.get("pythonPackageSpec", {}).get("packageUris", ())):
            yield Named(f"{at}.pythonPackageSpec.packageUris[{j}]", uri, True)
        for kind in ("containerSpec", "pythonPackageSpec"):
            args = pool.get(kind, {}).get("args", [])
            for j, text in enumerate(args):
                value = (
                    args[j + 1]
                    if text == "--config" and j + 1 < len(args)
                    else text.removeprefix("--config=")
                )
                if value.startswith("gs://") and text.startswith("--config"):
                    yield Named(f"{at}.{kind}.args[{j}]", value, True)
    base = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "")
    if base.startswith("gs://"):
        yield Named(f"{place}baseOutputDirectory.outputUriPrefix", base, False)


def _place(call: Call) -> str:
    """Returns the path of the job's spec in the request."""
    outer = {"CustomJob": "jobSpec.", "HyperparameterTuningJob": "trialJobSpec."}.get(
        call.kind, "trainingTaskInputs."
    )
    inner = call.body.get("trainingTaskInputs", {})
    return f"{outer}trialJobSpec." if "trialJobSpec" in inner else outer


class Storage:
    """Cloud Storage as a job's owner sees it.

    Args:
        endpoint: where the API is; with `http://` no credentials are used.

    Raises:
        google.auth.exceptions.GoogleAuthError: no credentials.
    """

    def __init__(self, endpoint: str = "") -> None:
        from google.auth import credentials, default
        from google.auth.transport.requests import AuthorizedSession

        self._endpoint = (endpoint or ENDPOINT).rstrip("/")
        found: Any = credentials.AnonymousCredentials()
        if not self._endpoint.startswith("http://"):
            found, _ = default(scopes=["https://www.googleapis.com/auth/devstorage.read_only"])
        self._session: Any = AuthorizedSession(found)

    def problems(self, call: Call, file: str) -> list[Problem]:
        """Returns what is wrong with the files and buckets of a job, each told once."""
        found: list[Problem] = []
        asked: dict[str, tuple[int, dict[str, Any]]] = {}
        for item in named(call):
            line = call.line(item.field)
            at = f"{file}:{line}" if line else file
            where = f"{at}: {call.own_path(item.field)}"
            bucket = f"b/{item.bucket}"
            is_new = bucket not in asked
            if is_new:
                asked[bucket] = self._get(bucket)
            status, content = asked[bucket]
            if is_new and status == 200:
                found += _place_of_bucket(content, item, call, where)
            if is_new and status == 404:
                found.append(
                    Problem(True, f"{where}: there is no bucket {item.bucket}; make it, or name another")
                )
            if status == 404 or not item.is_file:
                continue
            path = f"{bucket}/o/{quote(item.name, safe='')}"
            if path in asked:
                continue
            status, content = asked[path] = self._get(path)
            if status == 404:
                found.append(
                    Problem(True, f"{where}: {item.uri} is not there; copy it there, or mend the path")
                )
            elif status != 200:
                why = content.get("error", {}).get("message", "no answer")
                found.append(Problem(False, f"{where}: {item.uri} can't be looked up ({status or why})"))
        return found

    def _get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Returns (HTTP status, content); status 0 when nobody answers."""
        import requests
        from google.auth.exceptions import GoogleAuthError

        try:
            answer = self._session.get(f"{self._endpoint}/storage/v1/{path}", timeout=_SECONDS)
            content = answer.json() if answer.status_code == 200 else {}
            return answer.status_code, content if isinstance(content, dict) else {}
        except (requests.RequestException, GoogleAuthError, ValueError) as error:
            return 0, {"error": {"message": str(error)}}


def _place_of_bucket(content: dict[str, Any], item: Named, call: Call, where: str) -> list[Problem]:
    kind, location = content.get("locationType", "region"), str(content.get("location", "")).lower()
    region = call.target.region
    if kind != "region":
        text = f"bucket {item.bucket} is {kind} ({location}), which the training service doesn't support"
        return [Problem(False, f"{where}: {text}; use one of {region} alone")]
    if location and location != region:
        text = (
            f"bucket {item.bucket} is in {location} and the job in {region}: slower, and paid for by the byte"
        )
        return [Problem(False, f"{where}: {text}; use one of {region}")]
    return []
