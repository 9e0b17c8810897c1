"""What the service answers when it refuses a job, as a sentence that says what to do. Adopters: leave."""

from __future__ import annotations

import re
from typing import Any

from trainer.errors import EXIT_FAILED, UserError
from trainer.jobs.calls import Call

_METRIC = re.compile(
    r"(?:aiplatform\.googleapis\.com/)?(custom_model_training_\w+|[\w-]+_(?:cpus|gpus|tpus)\w*)"
)
_PERMISSION = re.compile(r"\b([a-z][A-Za-z]+\.[a-zA-Z]+\.[a-zA-Z]+)\b(?!\.)")


class RefusedError(UserError):
    """The service said no, or nothing.

    Attributes:
        code: name of the gRPC status, such as RESOURCE_EXHAUSTED.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
        if code in (
            "UNAVAILABLE",
            "DEADLINE_EXCEEDED",
            "INTERNAL",
            "UNKNOWN",
            "ABORTED",
            "RESOURCE_EXHAUSTED",
        ):
            self.exit_code = (
                EXIT_FAILED  # nothing is wrong with the job: the same command may go through later
            )


def refused(error: Any, call: Call, file: str) -> RefusedError:
    """Returns what to tell of an error of the API.

    Args:
        error: a google.api_core.exceptions.GoogleAPICallError.
        call: the call that was answered so.
        file: the job file.
    """
    code = error.grpc_status_code.name if error.grpc_status_code is not None else "UNKNOWN"
    said = re.sub(r"\s+", " ", error.message or "").strip().rstrip(".")
    tell = _SENTENCES.get(code, _other)
    return RefusedError(f"{file}: {tell(error, said, call)}", code)


def _details(error: Any, name: str) -> list[Any]:
    """Returns the details of one type, such as QuotaFailure, that the answer carries."""
    return [detail for detail in (error.details or ()) if type(detail).__name__ == name]


def _quota(error: Any, said: str, call: Call) -> str:
    target = call.target
    texts = [said]
    for failure in _details(error, "QuotaFailure"):
        texts += [f"{violation.subject} {violation.description}" for violation in failure.violations]
    metrics = sorted({match[1] for text in texts for match in _METRIC.finditer(text)})
    if not metrics:
        return (
            f"RESOURCE_EXHAUSTED: a quota or limit of project {target.project} in {target.region} is used up "
            f"({said}); wait and run the same command again"
        )
    where = f"https://console.cloud.google.com/iam-admin/quotas?project={target.project}"
    return (
        f"RESOURCE_EXHAUSTED: project {target.project} has too little quota of {', '.join(metrics)} in "
        f"{target.region}, and the job asks for {_machines(call)}; ask for more at {where}, write fewer or "
        "other machines, or wait until other jobs end"
    )


def _machines(call: Call) -> str:
    wanted = []
    for pool in call.spec.get("workerPoolSpecs", ()):
        machine = pool.get("machineSpec", {})
        if machine:
            count = machine.get("acceleratorCount", 0)
            more = f" with {count} {machine['acceleratorType']}" if machine.get("acceleratorType") else ""
            wanted.append(f"{pool.get('replicaCount', 1)} x {machine.get('machineType', '?')}{more}")
    return " and ".join(wanted) or "machines"


def _permission(error: Any, said: str, call: Call) -> str:
    target = call.target
    for info in _details(error, "ErrorInfo"):
        if info.reason == "SERVICE_DISABLED":
            api = info.metadata.get("service", "aiplatform.googleapis.com")
            return (
                f"PERMISSION_DENIED: {api} is off in project {target.project}; "
                f"gcloud services enable {api} --project={target.project}"
            )
    account = call.spec.get("serviceAccount", "")
    if "actAs" in said or "serviceAccountUser" in said or (account and account in said):
        return (
            f"PERMISSION_DENIED: you may not start jobs as {account or 'that service account'}; ask for "
            f"roles/iam.serviceAccountUser on it ({said})"
        )
    permission = _PERMISSION.search(said.replace("googleapis.com", ""))
    what = f"the permission {permission[1]}" if permission else "a permission"
    return (
        f"PERMISSION_DENIED: your account lacks {what} in project {target.project}; ask for "
        f"roles/aiplatform.user there, or name another project by --project ({said})"
    )


def _argument(error: Any, said: str, call: Call) -> str:
    problems = []
    for request in _details(error, "BadRequest"):
        for violation in request.field_violations:
            line = call.line(violation.field)
            at = f"line {line}: " if line else ""
            problems.append(f"{at}{call.own_path(violation.field)}: {violation.description}")
    told = "; ".join(problems) or said
    return f"INVALID_ARGUMENT: the service refuses a field: {told}"


def _credentials(error: Any, said: str, call: Call) -> str:
    return f"UNAUTHENTICATED: your credentials are not valid; gcloud auth application-default login ({said})"


def _not_found(error: Any, said: str, call: Call) -> str:
    return (
        f"NOT_FOUND: project {call.target.project}, region {call.target.region}, or something that the job "
        f"names is not there ({said})"
    )


def _precondition(error: Any, said: str, call: Call) -> str:
    return f"FAILED_PRECONDITION: the project is not ready for this job ({said})"


def _silent(error: Any, said: str, call: Call) -> str:
    code = error.grpc_status_code.name
    return (
        f"{code}: {call.target.host} can't be reached or gives no answer; check the network and --region, "
        f"and run the same command again ({said})"
    )


def _other(error: Any, said: str, call: Call) -> str:
    code = error.grpc_status_code.name if error.grpc_status_code is not None else "error"
    return f"{code}: {said}"


_SENTENCES = {
    "RESOURCE_EXHAUSTED": _quota,
    "PERMISSION_DENIED": _permission,
    "INVALID_ARGUMENT": _argument,
    "UNAUTHENTICATED": _credentials,
    "NOT_FOUND": _not_found,
    "FAILED_PRECONDITION": _precondition,
    "UNAVAILABLE": _silent,
    "DEADLINE_EXCEEDED": _silent,
}
