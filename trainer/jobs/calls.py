"""The API call that a job file becomes, word for word, without the service's SDK. Adopters: leave.

A call is a gRPC method and its request as the API's own JSON: what `submit --dry_run` prints and what
`submit` sends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.errors import UserError
from trainer.jobs import shape
from trainer.jobs.document import Value
from trainer.jobs.spec import CUSTOM_JOB, PIPELINE, TUNING_JOB, Job

_PACKAGE = "google.cloud.aiplatform.v1"
# By kind: service, the field of the request that holds the job, the name of the collection.
_METHODS = {
    CUSTOM_JOB: ("JobService", "customJob", "customJobs"),
    TUNING_JOB: ("JobService", "hyperparameterTuningJob", "hyperparameterTuningJobs"),
    PIPELINE: ("PipelineService", "trainingPipeline", "trainingPipelines"),
}


@dataclass(frozen=True)
class Target:
    """Where a job goes.

    Attributes:
        project: id or number of the project.
        region: such as us-central1.
        endpoint: host of the API, with `http://` before it for one without TLS; "" for the region's own.
    """

    project: str
    region: str
    endpoint: str = ""

    @property
    def parent(self) -> str:
        """The resource that jobs are made under."""
        return f"projects/{self.project}/locations/{self.region}"

    @property
    def host(self) -> str:
        """Host and port of the API."""
        return self.endpoint.removeprefix("http://") or f"{self.region}-aiplatform.googleapis.com"

    @property
    def is_plain(self) -> bool:
        """Whether the endpoint has no TLS and takes no credentials: a local server."""
        return self.endpoint.startswith("http://")


@dataclass(frozen=True)
class Call:
    """One call that makes a job.

    Attributes:
        kind: CustomJob, HyperparameterTuningJob or TrainingPipeline.
        target: where it goes.
        body: the job, as the API's JSON.
        hidden: field of the body that the file leaves out: gcloud's form is what stands below jobSpec.
        source: the job as it stands in its file, for the lines of fields; None where no file has it so.
    """

    kind: str
    target: Target
    body: dict[str, Any]
    hidden: str = ""
    source: Value | None = None

    @property
    def method(self) -> str:
        """Full name of the gRPC method."""
        return f"{_PACKAGE}.{_METHODS[self.kind][0]}/Create{self.kind}"

    @property
    def field(self) -> str:
        """The field of the request that holds the job."""
        return _METHODS[self.kind][1]

    @property
    def collection(self) -> str:
        """Name of the collection that the job becomes part of."""
        return _METHODS[self.kind][2]

    @property
    def request(self) -> dict[str, Any]:
        """The whole request."""
        return {"parent": self.target.parent, self.field: self.body}

    @property
    def spec(self) -> dict[str, Any]:
        """The CustomJobSpec in it."""
        keys = {CUSTOM_JOB: "jobSpec", TUNING_JOB: "trialJobSpec", PIPELINE: "trainingTaskInputs"}
        found: dict[str, Any] = self.body.get(keys[self.kind], {})
        return found.get("trialJobSpec", found)

    def own_path(self, path: str) -> str:
        """Returns a field of the request, `custom_job.job_spec.x`, as the file has it: `jobSpec.x` or `x`."""
        words = [re.sub(r"_([a-z])", lambda match: match[1].upper(), word) for word in path.split(".")]
        for own in (self.field, self.hidden):
            if len(words) > 1 and words[0] == own:
                words = words[1:]
        return ".".join(words)

    def line(self, path: str) -> int | None:
        """Returns the line of a field of the request in the job's file, or of the last part that is there."""
        if self.source is None:
            return None
        keys = [int(key) if key.isdigit() else key for key in re.findall(r"\w+", self.own_path(path))]
        return self.source.nearest(*keys).line

    def as_json(self) -> dict[str, Any]:
        """Returns method, endpoint and request as plain values."""
        return {"method": self.method, "endpoint": self.target.host, "request": self.request}


def build(
    job: Job, target: Target, *, name: str | None = None, labels: Mapping[str, str] | None = None
) -> Call:
    """Returns the call that makes a job.

    Args:
        job: the job.
        target: where it goes.
        name: display name in place of the job's own.
        labels: added to the job's own, which win; a pipeline's model gets them too.

    Raises:
        UserError: more labels than the service takes.
    """
    body = wire(job.request(), job.kind)
    if name is not None:
        body["displayName"] = name
    _label(body, labels or {}, job.file)
    if "modelToUpload" in body:
        _label(body["modelToUpload"], labels or {}, job.file)
    hidden = "jobSpec" if job.gcloud and job.kind == CUSTOM_JOB else ""
    return Call(job.kind, target, body, hidden, job.root)


def _label(holder: dict[str, Any], labels: Mapping[str, str], file: str) -> None:
    every = {**labels, **holder.get("labels", {})}
    if len(every) > 64:
        raise UserError(f"{file}: labels: got {len(every)} with those of submit, expected at most 64")
    if every:
        holder["labels"] = dict(sorted(every.items()))


def wire(value: Any, message: str) -> Any:
    """Returns a message's plain values as the API's JSON has them: int64 as text, fields in its order.

    Args:
        value: plain values with JSON names, as `loading` reads them.
        message: name of the message's type.
    """
    known = shape.fields(message)
    return {name: _wired(value[name], kind) for name, kind in known.items() if name in value}


def _wired(value: Any, kind: str) -> Any:
    if kind.endswith("[]"):
        return [_wired(item, kind[:-2]) for item in value]
    if kind.startswith("msg:"):
        return wire(value, kind[4:])
    return str(value) if kind == "int64" else value
