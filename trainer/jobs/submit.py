"""`python -m trainer submit JOB.yaml`: checks a job file and sends it to the service. Adopters: leave.

A mistake that `check` finds stops it before anything is sent. The request is made without the service's SDK,
so `--dry_run` shows it anywhere; sending needs the extra `trainer[submit]`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from trainer.errors import EXIT_FAILED, UserError
from trainer.flags import Option
from trainer.jobs import calls, check, command, findings, links, loading, origin, registry, runconfig
from trainer.jobs.calls import Call, Target
from trainer.jobs.context import DEFAULT_REGION, resources
from trainer.jobs.loading import Notes
from trainer.jobs.runconfig import RunConfig
from trainer.jobs.spec import Job

log = logging.getLogger("trainer")

OPTIONS = {
    "project": Option("Project, by id or number; default: GOOGLE_CLOUD_PROJECT.", "PROJECT"),
    "region": Option(
        "Where it is to run; default: where its resources are, else GOOGLE_CLOUD_REGION, else us-central1.",
        "REGION",
    ),
    "name": Option("Display name; default: the file's displayName, else its name.", "NAME"),
    "dry_run": Option("Print the exact request as JSON and send nothing."),
    "wait": Option("Wait for the end, with state and logs; exit with 1 when the job fails."),
    "logs": Option("With --wait: print the job's logs (default; --logs=false leaves them out)."),
    "poll": Option("With --wait: seconds between two looks; default 15.", "SECONDS"),
    "config": Option("Check against this local config file, when the job's own is on gs://.", "FILE"),
    "policy": Option(
        f"What the organisation asks of jobs; default: {check.DEFAULT_POLICY}, where it is.", "FILE"
    ),
    **registry.OPTIONS,
    **command.ASSIGN,
    "endpoint": Option("Host of the API, such as a private endpoint; http:// for one without TLS.", "HOST"),
    "logging_endpoint": Option("The same for Cloud Logging.", "URL"),
    "storage_endpoint": Option(
        "The same for Cloud Storage, where packages and configs are looked for.", "URL"
    ),
}
_ABOUT = "Checks a job file and sends it to the training service."
_EXAMPLE = "configs/jobs/custom_job.yaml --project=PROJECT --region=us-central1 --wait"
_PROJECTS = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
_REGIONS = ("GOOGLE_CLOUD_REGION", "CLOUDSDK_AI_REGION", "CLOUD_ML_REGION")


def main(argv: Sequence[str]) -> int:
    """Checks and sends a job; returns 1 when check finds an error or, with --wait, when the job fails."""
    given = command.parse(argv, OPTIONS, "submit", _ABOUT, _EXAMPLE)
    if len(given.files) > 1:
        raise UserError(f"submit takes one job file, got {len(given.files)}: {', '.join(given.files)}")
    (file,) = given.files
    poll = given.number("poll") or 15.0
    call = prepare(file, given)
    if call is None:
        return EXIT_FAILED
    if given.switch("dry_run"):
        print(json.dumps(call.as_json(), indent=2, ensure_ascii=False))
        return 0
    refuse_placeholders(call, file)

    from trainer.jobs.service import Service

    service = Service(call, file)
    if not files_are_there(call, file, given.get("storage_endpoint") or ""):
        log.error("%s: nothing was sent: what it names on Cloud Storage is not there", file)
        return EXIT_FAILED
    name = service.create()
    log.info("made %s", name)
    log.info("console: %s", links.console(call, name))
    if curves := links.tensorboard(call, name):
        log.info("curves: %s", curves)
    if not given.switch("wait"):
        print(name)
        return 0
    from trainer.jobs import watch
    from trainer.jobs.cloudlogs import CloudLogs, LogsError

    logs = None
    if given.get("logs") != "false":
        try:
            logs = CloudLogs(call.target.project, given.get("logging_endpoint") or "")
        except LogsError as error:
            log.warning("%s; waiting without them", error)
    return watch.wait(service, call, name, logs, poll=poll)


def prepare(
    file: str,
    given: command.Command,
    *,
    labels: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Call | None:
    """Checks a job file and returns the call that it becomes, or None when check finds an error.

    Args:
        file: the job file.
        given: the command line.
        labels: labels in place of those that tell where the job came from.
        environ: where the project and the region are looked for.

    Raises:
        UserError: options that don't fit, no project.
    """
    job = _checked(file, given, environ)
    if job is None:
        return None
    run = runconfig.read(job, Notes(file), given.get("config"))
    model = registry.assignments(given, job, run.config)
    job = _with_model(job, model, given, target(job, given, environ))
    if job is None:
        return None
    if labels is None:
        labels = origin.labels(run.config)
        _tell_unhashed(run, file)
    call = calls.build(job, target(job, given, environ), name=given.get("name"), labels=labels)
    return replace(call, source=None) if model else call  # with a model, the job is not the file's own


def _checked(file: str, given: command.Command, environ: Mapping[str, str]) -> Job | None:
    """Runs check, tells what it finds, and returns the job unless it found an error."""
    job, _ = loading.read(file, given.all("set"))
    found, facts = check.check(
        file,
        region=region_for(job, given, environ) if job else None,
        stand_in=given.get("config"),
        policy=check.read_policy(given.get("policy")),
        assignments=given.all("set"),
    )
    return job if _told(found, file, facts) else None


def _told(found: Sequence[findings.Finding], file: str, facts: Sequence[str]) -> bool:
    """Tells findings; returns whether none is an error."""
    for finding in found:
        level = logging.ERROR if finding.severity == "error" else logging.WARNING
        at = f"{finding.file}:{finding.line}: {finding.field}".removesuffix(": ")
        log.log(level, "%s: %s; %s [%s]", at, finding.why, finding.instead, finding.rule)
    errors = findings.count(found, "error")
    if errors:
        log.error("%s: nothing was sent: check found %d error%s", file, errors, "s" if errors > 1 else "")
        return False
    for fact in facts:
        log.debug("%s", fact)
    return True


def _with_model(job: Job, model: dict[str, Any], given: command.Command, to: Target) -> Job | None:
    """Returns the job with the model that the options ask for, or None when check refuses it."""
    if not model:
        return job
    parent = given.get("parent_model")
    if parent and "/" not in parent:  # an id: the API takes the whole name
        parent = f"{to.parent}/models/{parent}"
    body = registry.as_pipeline(job, model, parent)
    with tempfile.TemporaryDirectory() as folder:
        whole = os.path.join(folder, os.path.basename(job.file))
        with open(whole, "w", encoding="utf-8") as out:
            yaml.safe_dump(body, out)  # not JSON: to YAML, JSON's 1e+38 is a text
        found, _ = check.check(
            whole, region=given.get("region"), policy=check.read_policy(given.get("policy"))
        )
        made = loading.load(whole)
    # The rest of it was checked in the file, where lines can be named.
    own = [finding for finding in found if finding.field.startswith(("modelToUpload", "parentModel"))]
    for finding in own:
        level = logging.ERROR if finding.severity == "error" else logging.WARNING
        log.log(level, "%s: %s; %s [%s]", finding.field, finding.why, finding.instead, finding.rule)
    if findings.count(own, "error"):
        log.error("%s: nothing was sent: check refuses its model", job.file)
        return None
    return made


def _tell_unhashed(run: RunConfig, file: str) -> None:
    if run.config is None:
        log.warning(
            "%s: its config isn't here, so the job gets no label config_hash; name a copy: --config", file
        )


def target(job: Job, given: command.Command, environ: Mapping[str, str] = os.environ) -> Target:
    """Returns where a job goes: by flags, by its own resources, by the environment.

    Raises:
        UserError: no project is named anywhere.
    """
    project = given.get("project") or next((environ[name] for name in _PROJECTS if environ.get(name)), "")
    if not project:
        raise UserError(f"no project: give --project PROJECT, or set {_PROJECTS[0]}")
    if not re.fullmatch(r"[a-z][a-z0-9.:-]{4,61}[a-z0-9]|\d+", project):
        raise UserError(
            f"Invalid project: got {project!r}, expected an id such as my-project-123, or a number"
        )
    region = region_for(job, given, environ)
    return Target(project, region, (given.get("endpoint") or "").rstrip("/"))


def region_for(job: Job, given: command.Command, environ: Mapping[str, str]) -> str:
    """Returns where a job is to run: by --region, by its own resources, by the environment."""
    places = [given.get("region"), *(place for _, place in resources(job)), *map(environ.get, _REGIONS)]
    return next(filter(None, places), DEFAULT_REGION)


def files_are_there(call: Call, file: str, endpoint: str) -> bool:
    """Tells what is wrong with a job's files and buckets; returns whether it can be sent all the same."""
    if call.target.is_plain and not endpoint:  # a local server has no Cloud Storage behind it
        return True
    from trainer.jobs.objects import Storage

    problems = Storage(endpoint).problems(call, file)
    for problem in problems:
        log.log(logging.ERROR if problem.is_error else logging.WARNING, "%s", problem.text)
    return not any(problem.is_error for problem in problems)


def refuse_placeholders(call: Call, file: str) -> None:
    """Raises a UserError when a request still holds what the shipped files leave to be filled in."""
    places = sorted(set(_placeholders(call.request, "")))
    if places:
        more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
        path, text = places[0]
        raise UserError(
            f"{file}: {call.own_path(path.lstrip('.'))}{more} still says {text!r}: put "
            "in your own project and bucket, in the file or by --set PATH=VALUE"
        )


def _placeholders(value: Any, path: str) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in _placeholders(item, f"{path}.{key}")]
    if isinstance(value, list):
        return [found for i, item in enumerate(value) for found in _placeholders(item, f"{path}[{i}]")]
    return [(path, value)] if isinstance(value, str) and command.PLACEHOLDER.search(value) else []
