"""The training service's API: makes jobs and asks after them, by the SDK's own clients. Adopters: leave.

The SDK takes seconds to import, so it is imported when a call is made and not before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trainer.errors import UserError
from trainer.jobs import refusals
from trainer.jobs.calls import Call
from trainer.jobs.origin import SUBMISSION
from trainer.jobs.spec import CUSTOM_JOB, TUNING_JOB

log = logging.getLogger("trainer")

MISSING = (
    "submit needs google-cloud-aiplatform, which is not installed: pip install 'trainer[submit]' (or, in a "
    "checkout, pip install --require-hashes -r requirements/submit.txt); --dry_run works without it"
)
_TRIES = 5
_RPC_SECONDS = 60.0
# A call that may or may not have arrived: the job is looked for before it is made again.
_UNSURE = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN", "ABORTED")
_DONE = ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED")


@dataclass(frozen=True)
class Status:
    """How a job is doing.

    Attributes:
        state: such as RUNNING, without the enum's prefix.
        error: why it failed, in the service's words; "" as long as it has not.
        started, ended: Unix times; None before.
        log_jobs: ids of the jobs whose logs are its own.
        trials: trials of a study by state.
        best: (metric, value, trial id) of the best trial so far, or None.
        web_access: addresses of interactive shells by replica.
        model: resource name of the uploaded model, with its version; "" without.
    """

    state: str
    error: str = ""
    started: float | None = None
    ended: float | None = None
    log_jobs: tuple[str, ...] = ()
    trials: dict[str, int] = field(default_factory=dict)
    best: tuple[str, float, str] | None = None
    web_access: dict[str, str] = field(default_factory=dict)
    model: str = ""

    @property
    def is_done(self) -> bool:
        """Whether it will not change any more."""
        return self.state in _DONE

    @property
    def succeeded(self) -> bool:
        """Whether it ended well."""
        return self.state == "SUCCEEDED"


class Service:
    """The API of one region.

    Args:
        call: the call that makes the job; says of which kind it is and where it goes.
        file: the job file, for messages.

    Raises:
        UserError: the SDK isn't installed.
    """

    def __init__(self, call: Call, file: str) -> None:
        try:
            from google.api_core import exceptions
            from google.cloud import aiplatform_v1
        except ImportError as error:
            raise UserError(MISSING) from error
        self.call = call
        self.file = file
        self._api: Any = aiplatform_v1
        self._errors: Any = exceptions
        kind = "Job" if call.kind in (CUSTOM_JOB, TUNING_JOB) else "Pipeline"
        self._client = self._make(kind)
        # CreateCustomJob, custom_job, CreateCustomJobRequest, create_custom_job
        self._word = "".join(f"_{c.lower()}" if c.isupper() else c for c in call.kind).strip("_")

    def _make(self, kind: str) -> Any:
        make = getattr(self._api, f"{kind}ServiceClient")
        target = self.call.target
        if not target.is_plain:
            with self._plainly():
                return make(client_options={"api_endpoint": target.host})
        import grpc

        channel = grpc.insecure_channel(target.host)
        return make(transport=make.get_transport_class("grpc")(channel=channel))

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        """Turns what the API answers into a sentence."""
        import google.auth.exceptions

        try:
            yield
        except self._errors.GoogleAPICallError as error:
            raise refusals.refused(error, self.call, self.file) from error
        except google.auth.exceptions.GoogleAuthError as error:
            raise UserError(
                f"no credentials for the service: gcloud auth application-default login ({error})"
            ) from error

    # --- making a job -------------------------------------------------------------------------------

    def create(self, pause: Callable[[float], None] = time.sleep) -> str:
        """Makes the job and returns its resource name.

        A call that failed on its way may have arrived: the job is looked for by its label before it is made
        again, so that no job is paid for twice.

        Args:
            pause: waits between two tries.

        Raises:
            UserError: the service refused it, or could not be reached.
        """
        from google.protobuf import json_format

        message = getattr(self._api, f"Create{self.call.kind}Request")
        try:
            request = message.wrap(json_format.ParseDict(self.call.request, message.pb(message())))
        except json_format.ParseError as error:
            raise UserError(f"{self.file}: the API's own types refuse it: {error}") from error
        create = getattr(self._client, f"create_{self._word}")
        for attempt in range(1, _TRIES + 1):
            try:
                with self._plainly():
                    made: str = create(request=request, timeout=_RPC_SECONDS, retry=None).name
                return made
            except refusals.RefusedError as error:
                if error.code not in _UNSURE:
                    raise
                found = self._find()
                if found is not None:
                    log.warning("the answer was lost (%s), but the job is there", error.code)
                    return found
                if attempt == _TRIES:
                    raise
                seconds = min(30.0, 2.0**attempt)
                told = (error.code, self.call.target.host, seconds, attempt + 1, _TRIES)
                log.warning("%s from %s: trying again in %.0f s (%d of %d)", *told)
                pause(seconds)
        raise AssertionError("not reached")

    def _find(self) -> str | None:
        """Returns the job of this submission; None when there is none, or when nobody answers."""
        mark = self.call.body.get("labels", {}).get(SUBMISSION)
        if mark is None:
            return None
        request = {"parent": self.call.target.parent, "filter": f"labels.{SUBMISSION}={mark}"}
        try:
            found = getattr(self._client, f"list_{self._word}s")(request=request, timeout=_RPC_SECONDS)
            return next((job.name for job in found), None)
        except self._errors.GoogleAPICallError:
            return None

    # --- asking after it ----------------------------------------------------------------------------

    def status(self, name: str) -> Status:
        """Returns how a job is doing.

        Raises:
            UserError: the service refuses to tell, or could not be reached for ten minutes.
        """
        from google.api_core.retry import Retry, if_exception_type

        retry = Retry(
            if_exception_type(
                self._errors.ServiceUnavailable,
                self._errors.DeadlineExceeded,
                self._errors.InternalServerError,
                self._errors.TooManyRequests,
            ),
            initial=1.0,
            maximum=30.0,
            timeout=600.0,
        )
        with self._plainly():
            get = getattr(self._client, f"get_{self._word}")
            try:
                job = get(name=name, timeout=_RPC_SECONDS, retry=retry)
            except self._errors.RetryError as error:
                raise error.cause or error from error
        return self._read(job)

    def _read(self, job: Any) -> Status:
        own = job.name.rpartition("/")[2]
        common = {
            "state": job.state.name.removeprefix("JOB_STATE_").removeprefix("PIPELINE_STATE_"),
            "error": job.error.message if "error" in job else "",
            "started": _time(job, "start_time"),
            "ended": _time(job, "end_time"),
        }
        if self.call.kind == CUSTOM_JOB:
            return Status(**common, log_jobs=(own,), web_access=dict(job.web_access_uris))
        if self.call.kind == TUNING_JOB:
            return Status(**common, log_jobs=(own,), trials=_trials(job), best=_best(job))
        metadata: Any = job.training_task_metadata or {}
        backing = [metadata.get(key) for key in ("backingCustomJob", "backingHyperparameterTuningJob")]
        model = job.model_to_upload.name
        if model and job.model_to_upload.version_id:
            model = f"{model}@{job.model_to_upload.version_id}"
        log_jobs = tuple(str(name).rpartition("/")[2] for name in backing if name)
        return Status(**common, log_jobs=log_jobs, model=model)


def _time(job: Any, name: str) -> float | None:
    return getattr(job, name).timestamp() if name in job else None


def _trials(job: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for trial in job.trials:
        counts[trial.state.name] = counts.get(trial.state.name, 0) + 1
    return counts


def _best(job: Any) -> tuple[str, float, str] | None:
    """Returns the best final measurement by the study's first metric."""
    if not job.study_spec.metrics:
        return None
    wanted = job.study_spec.metrics[0]
    found = [
        (float(metric.value), str(trial.id))
        for trial in job.trials
        if trial.state.name == "SUCCEEDED"
        for metric in trial.final_measurement.metrics
        if metric.metric_id == wanted.metric_id
    ]
    if not found:
        return None
    value, trial = (min if wanted.goal.name == "MINIMIZE" else max)(found)
    return wanted.metric_id, value, trial
