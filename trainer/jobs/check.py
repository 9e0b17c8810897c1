"""`python -m trainer check JOB.yaml`: what is wrong with a job, before it costs anything. Adopters: leave.

Everything is looked up in the job file, the run config that its arguments name, and the dated tables: no
account, no network, no TensorFlow.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence

import trainer
from trainer.errors import EXIT_FAILED, UserError
from trainer.flags import Option
from trainer.jobs import command, document, findings, hardware, loading, runconfig
from trainer.jobs.checks import images, machines, names, pools, reducers, resources, runs, scheduling, studies
from trainer.jobs.context import Context, Policy, region_of
from trainer.jobs.findings import Finding
from trainer.jobs.loading import Notes
from trainer.jobs.rules import RULES
from trainer.jobs.spec import Job

CHECKS = (pools, reducers, machines, runs, studies, scheduling, images, names, resources)
DEFAULT_POLICY = "configs/policy/default.yaml"
OPTIONS = {
    "config": Option("Check against this local config file, when the job's own is on gs://.", "FILE"),
    "region": Option(
        "Where the job is to run; default: where its resources are, else us-central1.", "REGION"
    ),
    "policy": Option(f"What the organisation asks of jobs; default: {DEFAULT_POLICY}, where it is.", "FILE"),
    "format": Option("text, json, or sarif (for code hosts).", "FORMAT"),
    "strict": Option("Exit with 1 on warnings too."),
    **command.ASSIGN,
}
_ABOUT = "Finds what is wrong with job files, offline. Exits with 1 when there is an error."
_SHAPE = (
    "unknown-field",
    "wrong-type",
    "unknown-value",
    "output-only",
    "one-of",
    "task-definition",
    "no-job",
)


def main(argv: Sequence[str]) -> int:
    """Checks job files, prints what is found, and returns 1 when that holds an error."""
    given = command.parse(
        argv, OPTIONS, "check", _ABOUT, "configs/jobs/custom_job.yaml --region=europe-west4"
    )
    form = given.choice("format", ("text", "json", "sarif"))
    found: list[Finding] = []
    facts: dict[str, list[str]] = {}
    for file in given.files:
        own, job_facts = check(
            file,
            region=given.get("region"),
            stand_in=given.get("config"),
            policy=read_policy(given.get("policy")),
            assignments=given.all("set"),
        )
        found += own
        facts[file] = job_facts
    if form == "json":
        print(findings.as_json(found, given.files, facts))
    elif form == "sarif":
        print(findings.as_sarif(found, RULES, trainer.__version__))
    else:
        print(findings.as_text(found, given.files, facts))
    bad = findings.count(found, "error") or (given.switch("strict") and found)
    return EXIT_FAILED if bad else 0


def check(
    file: str,
    *,
    region: str | None = None,
    stand_in: str | None = None,
    policy: Policy | None = None,
    assignments: Sequence[str] = (),
    today: datetime.date | None = None,
) -> tuple[list[Finding], list[str]]:
    """Returns what is wrong with a job file, in order of its lines, and what is good to know about it.

    Args:
        file: the job file.
        region: where it is to run; default: where its resources are.
        stand_in: local config file to check against in place of the job's own.
        policy: what the organisation asks for.
        assignments: `path=value` texts to lay over the file.
        today: date that images and accelerators are held against; default: today.

    Raises:
        UserError: a file that can't be read.
    """
    try:
        job, shape_findings = loading.read(file, assignments)
    except UserError as error:
        if str(error).startswith(f"{file}:"):  # not YAML: a finding like others
            return [_unreadable(file, str(error))], []
        raise
    if job is None:
        return shape_findings, []
    notes = Notes(file)
    run = runconfig.read(job, notes, stand_in)
    context = Context(
        job=job,
        notes=notes,
        run=run,
        region=region or region_of(job),
        today=today or datetime.date.today(),
        policy=policy or Policy(),
    )
    for subject in CHECKS:
        subject.check(context)
    wrong = [finding.field for finding in shape_findings if finding.rule in _SHAPE]
    wrong += [_meant(finding) for finding in shape_findings if finding.rule == "unknown-field"]
    rest = [finding for finding in notes.findings if not _follows(finding.field, wrong)]
    ordered = sorted(
        [*shape_findings, *rest], key=lambda finding: (finding.line, finding.column, finding.rule)
    )
    return ordered, _facts(context)


def _unreadable(file: str, message: str) -> Finding:
    line, _, why = message.removeprefix(f"{file}:").partition(": ")
    return Finding("wrong-type", "error", file, int(line), 1, "", why, "mend the YAML")


def _meant(finding: Finding) -> str:
    """Returns the field that an unknown one was meant to be, which is then missing, or ""."""
    parent, dot, _ = finding.field.rpartition(".")
    name = finding.instead.removeprefix("write ")
    return f"{parent}{dot}{name}" if finding.instead.startswith("write ") else ""


def _follows(field: str, wrong: Sequence[str]) -> bool:
    """Returns whether a field holds, or stands in, one whose shape was wrong: a mere consequence."""
    if not field:
        return False

    def under(part: str, whole: str) -> bool:
        return part == whole or part.startswith((f"{whole}.", f"{whole}["))

    return any(under(field, bad) or under(bad, field) for bad in wrong if bad)


def _facts(context: Context) -> list[str]:
    job: Job = context.job
    config = context.run.config
    facts = [f"{job.kind} {job.display_name!r} in {context.region}"]
    replicas = hardware.replicas(job, config.strategy.cpu_replicas if config else 1)
    if config is not None and job.pools[0].tunes:
        workers = job.workers - 1
        facts.append(f"{context.run.file}, a study by keras-tuner: {workers} trials at once")
    elif config is not None:
        batch = config.training.batch_size
        split = (
            f"; global batch {batch:,} = {replicas} x {batch // replicas:,}" if batch % replicas == 0 else ""
        )
        facts.append(f"{context.run.file} on {replicas} replica{'s' if replicas > 1 else ''}{split}")
    elif program := _stranger(job):
        facts.append(f"pool 0 runs {program!r} and not this trainer: its arguments are not looked at")
    study = job.study
    if study and study.max_trials and study.parallel_trials:
        facts.append(studies.blind(study.max_trials, study.parallel_trials))
    if wanted := resources.quotas(context):
        facts.append(f"quota in {context.region}: {', '.join(wanted)}")
    return facts


def _stranger(job: Job) -> str:
    """Returns the program of pool 0 when it is not this trainer, else ""."""
    chief = job.pools[0] if job.pools else None
    if chief is None or chief.runs_trainer or chief.tunes:
        return ""
    return chief.python_module or " ".join(chief.command)


def read_policy(file: str | None) -> Policy:
    """Returns the policy of a file; without a name that of configs/policy/default.yaml, where it is.

    Raises:
        UserError: the file can't be read, or has a key that a policy hasn't.
    """
    if file is None:
        if not os.path.exists(DEFAULT_POLICY):
            return Policy()
        file = DEFAULT_POLICY
    try:
        with open(file, encoding="utf-8") as stream:
            content = document.parse(stream.read(), file).plain or {}
    except OSError as error:
        raise UserError(f"--policy: {file} can't be read: {error.strerror or error}") from error
    known = {"cmek": bool, "perimeter": bool, "regions": list}
    for key, value in content.items():
        if key not in known or not isinstance(value, known[key]):
            raise UserError(
                f"{file}: {key}: expected cmek and perimeter (true or false) and regions (a list)"
            )
    regions = tuple(content.get("regions", ()))
    return Policy(content.get("cmek", False), content.get("perimeter", False), regions, file)
