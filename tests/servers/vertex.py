"""A local server that speaks the training service's API. Adopters: use it in your tests, or to try submit.

    python -m tests.servers.vertex --port 9060
    python -m trainer submit JOB.yaml --project=p-local --endpoint=http://localhost:9060 --wait \
        --logging_endpoint=http://localhost:9061

CreateCustomJob, GetCustomJob, ListCustomJobs, CancelCustomJob, the same of tuning jobs, and of training
pipelines, version 1, over real gRPC with the service's own types. On the next port the entries:list of Cloud
Logging, and what Cloud Storage tells of buckets and objects. A job goes one state further each time it is
asked for. Errors on demand, with the details that the service sends.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import grpc
from google.cloud.aiplatform_v1 import types
from google.protobuf import any_pb2, timestamp_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

_PARENT = re.compile(r"^projects/([^/]+)/locations/([a-z0-9-]+)$")
_LABEL = re.compile(r"^labels\.([\w-]+)=([\w-]+)$")
KINDS = {
    "CustomJob": ("JobService", "customJobs"),
    "HyperparameterTuningJob": ("JobService", "hyperparameterTuningJobs"),
    "TrainingPipeline": ("PipelineService", "trainingPipelines"),
}
STATES = ("QUEUED", "PENDING", "RUNNING", "RUNNING", "SUCCEEDED")


@dataclass
class Fault:
    """One answer that is an error.

    Attributes:
        code: gRPC status.
        message: its text.
        details: messages of google.rpc that come with it.
        after: whether the job is made all the same, so that only the answer is lost.
    """

    code: grpc.StatusCode
    message: str
    details: Sequence[Any] = ()
    after: bool = False


def quota(metric: str) -> Fault:
    """Returns what the service answers when there is too little quota."""
    text = f"The following quota metrics exceed quota limits: aiplatform.googleapis.com/{metric}"
    violation = error_details_pb2.QuotaFailure.Violation(subject=f"aiplatform.googleapis.com/{metric}")
    return Fault(
        grpc.StatusCode.RESOURCE_EXHAUSTED, text, [error_details_pb2.QuotaFailure(violations=[violation])]
    )


def invalid(field_name: str, why: str) -> Fault:
    """Returns what the service answers to a field that it refuses."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=field_name, description=why)
    details = [error_details_pb2.BadRequest(field_violations=[violation])]
    return Fault(grpc.StatusCode.INVALID_ARGUMENT, "List of found errors:\t1.Field: ...", details)


def disabled(project: str) -> Fault:
    """Returns what the service answers in a project where its API is off."""
    info = error_details_pb2.ErrorInfo(
        reason="SERVICE_DISABLED",
        domain="googleapis.com",
        metadata={"service": "aiplatform.googleapis.com", "consumer": f"projects/{project}"},
    )
    text = f"Vertex AI API has not been used in project {project} before or it is disabled."
    return Fault(grpc.StatusCode.PERMISSION_DENIED, text, [info])


@dataclass
class Log:
    """One entry of Cloud Logging."""

    job: str
    message: str
    severity: str = "INFO"
    task: str = "workerpool0-0"
    trial: str = ""
    time: float = field(default_factory=time.time)


class VertexServer:
    """The server, in threads of this process; `with` starts and stops it.

    Attributes:
        address: http://host:port of the API, once it is started.
        logging_address: of Cloud Logging.
        faults: errors to come by method, such as CreateCustomJob: each is answered once.
        states: the states that a job goes through, one at each Get; the last stays.
        error: message of a job that ends as FAILED.
        requests: (method, request) of all calls so far.
        jobs: by resource name.
        logs: entries of Cloud Logging; job "*" is any.
        log_status: HTTP status of Cloud Logging.
        buckets: location of each bucket; one with a comma is dual-region.
        objects: HTTP status by gs:// path; others are not there.
        on_get: called with each job before it is answered, to change it.
    """

    def __init__(self, states: Sequence[str] = STATES, port: int = 0) -> None:
        self.faults: dict[str, list[Fault]] = {}
        self.states = list(states)
        self.error = "Replica workerpool0-0 exited with a non-zero status of 1."
        self.requests: list[tuple[str, Any]] = []
        self.jobs: dict[str, Any] = {}
        self.logs: list[Log] = []
        self.log_status = 200
        self.buckets: dict[str, str] = {}
        self.objects: dict[str, int] = {}
        self.on_get: Callable[[Any], None] = lambda job: None
        self._port = port
        self._ids = itertools.count(4200000000000000001)
        self._steps: dict[str, int] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> VertexServer:
        self._grpc = grpc.server(futures.ThreadPoolExecutor(4))
        for service in ("JobService", "PipelineService"):
            handlers = {
                f"{verb}{kind}{many}": self._handler(verb, kind, many)
                for kind, (own, _) in KINDS.items()
                if own == service
                for verb, many in (("Create", ""), ("Get", ""), ("List", "s"), ("Cancel", ""))
            }
            name = f"google.cloud.aiplatform.v1.{service}"
            self._grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])
        port = self._grpc.add_insecure_port(f"127.0.0.1:{self._port}")
        assert port
        self._grpc.start()
        self._http = ThreadingHTTPServer(("127.0.0.1", port + 1 if self._port else 0), _handler_of(self))
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.address = f"http://127.0.0.1:{port}"
        self.logging_address = f"http://127.0.0.1:{self._http.server_address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._grpc.stop(None).wait()

    def called(self, method: str) -> list[Any]:
        """Returns the requests of a method so far."""
        return [request for name, request in self.requests if name == method]

    # --- the API ------------------------------------------------------------------------------------

    def _handler(self, verb: str, kind: str, many: str) -> Any:
        request = getattr(types, f"{verb}{kind}{many}Request")
        answers = {"Create": kind, "Get": kind, "List": f"List{kind}sResponse"}
        answer = getattr(types, answers.get(verb, kind))
        serialize = answer.serialize if verb in answers else (lambda _: b"")

        def handle(message: Any, context: grpc.ServicerContext) -> Any:
            return self._answer(verb, kind, f"{verb}{kind}{many}", message, context)

        return grpc.unary_unary_rpc_method_handler(
            handle, request_deserializer=request.deserialize, response_serializer=serialize
        )

    def _answer(self, verb: str, kind: str, method: str, message: Any, context: Any) -> Any:
        with self._lock:
            self.requests.append((method, message))
            waiting = self.faults.get(method, [])
            fault = waiting.pop(0) if waiting else None
            if fault is not None and not fault.after:
                _abort(context, fault)
            made = getattr(self, f"_{verb.lower()}")(kind, message, context)
            if fault is not None:
                _abort(context, fault)
            return made

    def _create(self, kind: str, message: Any, context: Any) -> Any:
        if not _PARENT.match(message.parent):
            _abort(context, invalid("parent", f"{message.parent!r} is no location"))
        word = "".join(f"_{c.lower()}" if c.isupper() else c for c in kind).strip("_")
        given = getattr(message, word)
        if not given.display_name:
            _abort(context, invalid(f"{word}.display_name", "Required field is not set."))
        job = type(given)(given)
        job.name = f"{message.parent}/{KINDS[kind][1]}/{next(self._ids)}"
        job.create_time = _now()
        if kind == "TrainingPipeline":
            backing = (
                "customJobs" if "workerPoolSpecs" in job.training_task_inputs else "hyperparameterTuningJobs"
            )
            key = "backingCustomJob" if backing == "customJobs" else "backingHyperparameterTuningJob"
            job.training_task_metadata = {key: f"{message.parent}/{backing}/{next(self._ids)}"}
        self.jobs[job.name] = job
        self._steps[job.name] = 0
        _set_state(job, self.states[0])
        return job

    def _get(self, kind: str, message: Any, context: Any) -> Any:
        job = self.jobs.get(message.name)
        if job is None:
            _abort(context, Fault(grpc.StatusCode.NOT_FOUND, f"{message.name} is not found."))
        step = min(self._steps[message.name], len(self.states) - 1)
        self._steps[message.name] += 1
        state = self.states[step]
        _set_state(job, state)
        if state == "RUNNING" and "start_time" not in job:
            job.start_time = _now()
        if state in ("SUCCEEDED", "FAILED", "CANCELLED"):
            job.end_time = _now()
            if "start_time" not in job:
                job.start_time = job.end_time
        if state == "FAILED":
            job.error = status_pb2.Status(code=3, message=self.error)
        if state == "SUCCEEDED" and kind == "TrainingPipeline" and job.model_to_upload.display_name:
            job.model_to_upload.name = f"{message.name.rpartition('/trainingPipelines')[0]}/models/77"
            job.model_to_upload.version_id = "1"
        self.on_get(job)
        return job

    def _list(self, kind: str, message: Any, context: Any) -> Any:
        answer = getattr(types, f"List{kind}sResponse")()
        match = _LABEL.match(message.filter)
        if message.filter and match is None:
            _abort(context, invalid("filter", f"{message.filter!r} is not understood by this server"))
        found = [
            job
            for name, job in self.jobs.items()
            if name.startswith(f"{message.parent}/{KINDS[kind][1]}/")
            and (match is None or job.labels.get(match[1]) == match[2])
        ]
        name = next(iter(type(answer).pb(answer).DESCRIPTOR.fields_by_name))
        setattr(answer, name, found)
        return answer

    def _cancel(self, kind: str, message: Any, context: Any) -> None:
        self.states = ["CANCELLED"]

    # --- Cloud Storage ------------------------------------------------------------------------------

    def stored(self, path: str) -> tuple[int, dict[str, Any]]:
        """Answers GET of a bucket or an object: (HTTP status, content)."""
        match = re.match(r"^/storage/v1/b/([^/]+)(?:/o/([^/]+))?$", path)
        bucket = match[1] if match else ""
        if match is None or bucket not in self.buckets:
            return 404, {"error": {"message": "Not Found"}}
        if match[2] is None:
            place = self.buckets[bucket]
            kind = "dual-region" if "," in place else "region"
            return 200, {"name": bucket, "location": place.upper(), "locationType": kind}
        status = self.objects.get(f"gs://{bucket}/{unquote(match[2])}", 404)
        return status, {"name": unquote(match[2])} if status == 200 else {"error": {"message": "refused"}}

    # --- Cloud Logging ------------------------------------------------------------------------------

    def entries(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers entries:list: jobs by id, entries since a time, in pages."""
        wanted = re.search(r'resource\.labels\.job_id=\(?((?:"\d+"(?: OR )?)+)\)?', body["filter"])
        jobs = re.findall(r'"(\d+)"', wanted[1]) if wanted else []
        since = re.search(r'timestamp>="([^"]+)"', body["filter"])
        found = [
            (log, number)
            for number, log in enumerate(self.logs)
            if log.job in ("*", *jobs) and (since is None or _stamp(log.time) >= since[1])
        ]
        start = int(body.get("pageToken") or 0)
        end = start + min(body.get("pageSize", 50), 1000)
        answer: dict[str, Any] = {"entries": [_entry(log, number, jobs) for log, number in found[start:end]]}
        if end < len(found):
            answer["nextPageToken"] = str(end)
        return answer


def _abort(context: Any, fault: Fault) -> None:
    packed: Iterable[any_pb2.Any] = []
    packed = [any_pb2.Any() for _ in fault.details]
    for holder, detail in zip(packed, fault.details, strict=True):
        holder.Pack(detail)
    status = status_pb2.Status(code=fault.code.value[0], message=fault.message, details=packed)
    context.abort_with_status(rpc_status.to_status(status))


def _set_state(job: Any, state: str) -> None:
    enum = type(job.state)
    prefix = "PIPELINE_STATE_" if "PIPELINE_STATE_RUNNING" in enum.__members__ else "JOB_STATE_"
    job.state = enum[f"{prefix}{state}"]


def _now() -> timestamp_pb2.Timestamp:
    made = timestamp_pb2.Timestamp()
    made.GetCurrentTime()
    return made


def _stamp(moment: float) -> str:
    whole, part = divmod(moment, 1)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int(part * 1e9):09d}Z"


def _entry(log: Log, number: int, jobs: Sequence[str]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "insertId": f"id{number}",
        "timestamp": _stamp(log.time),
        "severity": log.severity,
        "resource": {
            "type": "ml_job",
            "labels": {"job_id": jobs[0] if log.job == "*" else log.job, "task_name": log.task},
        },
        "jsonPayload": {"message": log.message},
    }
    if log.trial:
        entry["labels"] = {"ml.googleapis.com/trial_id": log.trial}
    return entry


def _handler_of(server: VertexServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.requests.append(("entries:list", body))
            if self.path != "/v2/entries:list":
                content, status = {"error": {"message": "not found"}}, 404
            elif server.log_status != 200:
                content, status = {"error": {"message": "Permission denied."}}, server.log_status
            else:
                content, status = server.entries(body), 200
            self._answer(status, content)

        def do_GET(self) -> None:
            server.requests.append(("storage", self.path))
            self._answer(*server.stored(self.path))

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def main() -> None:
    """Serves until it is interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=9060, help="Cloud Logging gets the next one")
    with VertexServer(port=parser.parse_args().port) as server:
        server.logs.append(Log("*", "epoch 1/3 loss 0.52"))
        print(f"API {server.address}, logs {server.logging_address}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("stopped")


if __name__ == "__main__":
    main()
