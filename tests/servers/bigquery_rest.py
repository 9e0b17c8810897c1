"""The jobs of the BigQuery REST API, as far as a query needs them. Adopters: use it in your tests.

SELECT * FROM `project.dataset.table` [WHERE condition] is all the SQL that it knows. Its results become
tables of the local Storage server.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa

from tests.servers import bigquery_filter
from tests.servers.bigquery import BigQueryServer

_SQL = re.compile(r"^\s*SELECT\s+\*\s+FROM\s+`([^`]+)`(?:\s+WHERE\s+(.*))?\s*;?\s*$", re.I | re.S)


class RestServer:
    """Answers jobs.insert and jobs.get; `with` starts and stops it.

    Attributes:
        url: what BIGQUERY_EMULATOR_HOST must be.
        queries: the statements that were run, without dry runs.
        failures: (status, reason) that the next calls are answered with.
        polls: times that a job is shown as running before it is done.
        forbidden: whether every statement is refused for want of a permission.
    """

    def __init__(self, storage: BigQueryServer, polls: int = 2) -> None:
        self.storage = storage
        self.queries: list[str] = []
        self.failures: list[tuple[int, str]] = []
        self.polls = polls
        self.forbidden = False
        self.jobs: dict[str, dict[str, Any]] = {}
        self.waits: dict[str, int] = {}
        self.lock = threading.Lock()

    def __enter__(self) -> RestServer:
        rest = self

        class Handler(_Handler):
            server_of = rest

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def insert(self, project: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Answers jobs.insert."""
        asked = body["configuration"]
        sql = asked["query"]["query"]
        name = body["jobReference"]["jobId"]
        if name in self.jobs:
            return refusal(409, "duplicate", f"Already Exists: Job {project}:{name}")
        if self.forbidden:
            return refusal(
                403, "accessDenied", f"User does not have bigquery.jobs.create permission in {project}"
            )
        kind = sql.split(None, 1)[0].upper()
        job: dict[str, Any] = {
            "jobReference": {"projectId": project, "jobId": name, "location": "US"},
            "configuration": asked,
            "statistics": {"totalBytesProcessed": "12345", "query": {"statementType": kind}},
            "status": {"state": "RUNNING"},
        }
        if asked.get("dryRun"):
            if kind == "SELECT" and _SQL.match(sql) is None:
                return refusal(400, "invalidQuery", "Syntax error: Unexpected end of statement at [1:8]")
            return 200, job | {"status": {"state": "DONE"}}
        self.queries.append(sql)
        self.jobs[name], self.waits[name] = job, self.polls
        return 200, job

    def get(self, name: str) -> tuple[int, dict[str, Any]]:
        """Answers jobs.get."""
        job = self.jobs[name]
        self.waits[name] -= 1
        if self.waits[name] > 0:
            return 200, job
        if job["status"]["state"] != "DONE":
            self._finish(job)
        return 200, job

    def _finish(self, job: dict[str, Any]) -> None:
        match = _SQL.match(job["configuration"]["query"]["query"])
        assert match is not None
        job["status"] = {"state": "DONE"}
        stored = self.storage.tables.get(match[1])
        if stored is None:
            job["status"]["errorResult"] = {"reason": "notFound", "message": f"Not found: Table {match[1]}"}
            return
        version = stored.at(None)
        assert version is not None
        rows = pa.concat_tables([bigquery_filter.apply(block, match[2] or "") for block in version.blocks])
        about = job["jobReference"]
        table = {
            "projectId": about["projectId"],
            "datasetId": "_0a1b2c",
            "tableId": f"anon{about['jobId'][8:]}",
        }
        self.storage.write(".".join(table.values()), rows)
        job["configuration"]["query"]["destinationTable"] = table


def refusal(status: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    """Returns an error in the form of the API."""
    return status, {"error": {"code": status, "message": message, "errors": [{"reason": reason}]}}


class _Handler(BaseHTTPRequestHandler):
    server_of: RestServer

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(lambda: self.server_of.insert(self.path.split("/")[4], body))

    def do_GET(self) -> None:
        self._answer(lambda: self.server_of.get(self.path.split("/")[6].partition("?")[0]))

    def _answer(self, make: Any) -> None:
        rest = self.server_of
        with rest.lock:
            status, body = refusal(*rest.failures.pop(0), "injected") if rest.failures else make()
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
