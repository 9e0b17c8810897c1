"""Where a job is seen in a browser: console, logs, TensorBoard, model registry. Adopters: leave."""

from __future__ import annotations

from urllib.parse import quote

from trainer.jobs.calls import Call

_CONSOLE = "https://console.cloud.google.com"
_LOGS = 'resource.type="ml_job" resource.labels.job_id="{}"'


def console(call: Call, name: str) -> str:
    """Returns the console's page of a job, by its resource name."""
    return (
        f"{_CONSOLE}/agent-platform/locations/{call.target.region}/training/{name.rpartition('/')[2]}"
        f"?project={call.target.project}"
    )


def logs(call: Call, job_id: str) -> str:
    """Returns the console's page of a job's logs."""
    return f"{_CONSOLE}/logs/query;query={quote(_LOGS.format(job_id))}?project={call.target.project}"


def model(call: Call, name: str) -> str:
    """Returns the console's page of a model, by its resource name with or without `@version`."""
    own, _, version = name.rpartition("/")[2].partition("@")
    more = f"/versions/{version}" if version else ""
    return (
        f"{_CONSOLE}/agent-platform/models/locations/{call.target.region}/models/{own}{more}"
        f"?project={call.target.project}"
    )


def tensorboard(call: Call, name: str) -> str | None:
    """Returns where a job's curves are: the managed TensorBoard's page, or the command for its log folder.

    None for a job without a base output directory.
    """
    managed = str(call.spec.get("tensorboard", ""))
    if managed:
        experiment = f"{managed}/experiments/{name.rpartition('/')[2]}".replace("/", "+")
        return f"https://{call.target.region}.tensorboard.googleusercontent.com/experiment/{experiment}"
    base = str(call.spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "")).rstrip("/")
    if not base:
        return None
    folder = f"{base}/logs" if call.kind == "CustomJob" or "trialJobSpec" not in call.body else base
    return f"tensorboard --logdir {folder}"
