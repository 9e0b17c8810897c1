"""Reads a job file: form, field names, kinds of values, then the typed model. Adopters: leave."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from trainer import storage
from trainer.errors import UserError, nearest_file
from trainer.jobs import document, shape
from trainer.jobs.document import Value, joined
from trainer.jobs.findings import Finding
from trainer.jobs.rules import RULES
from trainer.jobs.spec import (
    CUSTOM_JOB,
    CUSTOM_TASK,
    PIPELINE,
    TUNING_JOB,
    TUNING_TASK,
    Job,
    Parameter,
    Pool,
    Scheduling,
    Study,
)

_ROOTS = {  # a field that only this kind of file has at its top
    "workerPoolSpecs": CUSTOM_JOB,
    "jobSpec": CUSTOM_JOB,
    "studySpec": TUNING_JOB,
    "trialJobSpec": TUNING_JOB,
    "trainingTaskInputs": PIPELINE,
    "trainingTaskDefinition": PIPELINE,
    "modelToUpload": PIPELINE,
    "inputDataConfig": PIPELINE,
}


class Notes:
    """Collects what is wrong with a file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.findings: list[Finding] = []

    def add(self, rule: str, at: Value, why: str, instead: str, field_name: str | None = None) -> None:
        """Adds a finding of a rule, which decides its severity.

        Args:
            rule: id in `rules.RULES`.
            at: the field, or what it should stand in.
            why: what is wrong.
            instead: what to write.
            field_name: the field's path, when it is not there yet.
        """
        path = at.path if field_name is None else field_name
        self.findings.append(Finding(rule, RULES[rule][0], self.file, at.line, at.column, path, why, instead))


def load(path: str, assignments: Sequence[str] = ()) -> Job:
    """Returns the job of a file whose shape is right.

    Args:
        path: a local file.
        assignments: `path=value` texts to lay over it, such as `workerPoolSpecs[0].replicaCount=1`.

    Raises:
        UserError: the file can't be read, or one line for each field that the API doesn't know or take.
    """
    job, findings = read(path, assignments)
    errors = [finding for finding in findings if finding.severity == "error"]
    if job is None or errors:
        raise UserError("\n".join(finding.sentence for finding in errors))
    return job


def read(path: str, assignments: Sequence[str] = ()) -> tuple[Job | None, list[Finding]]:
    """Returns the job of a file, and what is wrong with its shape; None when it is no job at all.

    Raises:
        UserError: the file can't be read or isn't YAML.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError as error:
        others = storage.listing(os.path.dirname(path) or ".")
        raise UserError(f"no such job file: {path}{nearest_file(path, others)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read: {error}") from error
    return parse(text, path, assignments)


def parse(text: str, path: str, assignments: Sequence[str] = ()) -> tuple[Job | None, list[Finding]]:
    """Does what `read` does, with a text; see there."""
    notes = Notes(path)
    root = document.lay(document.parse(text, path), assignments)
    form = _form(root, notes)
    if form is None:
        return None, notes.findings
    kind, message = form
    gcloud = message in ("CustomJobSpec", TUNING_JOB)
    if gcloud:
        _note_snake_case(root, notes)
    root = shape.canonical(root, message, notes.add)
    tuning: Value | None = root if kind == TUNING_JOB else None
    if kind == PIPELINE:
        root, tuning = _pipeline(root, notes)
        inputs = root.get("trainingTaskInputs") or root
        spec = inputs.get("trialJobSpec") or inputs if tuning is not None else inputs
    elif kind == TUNING_JOB:
        spec = root.get("trialJobSpec") or replace(root, data={})
    else:
        spec = root if message == "CustomJobSpec" else root.get("jobSpec") or replace(root, data={})
    pools = tuple(_pool(index, value) for index, value in enumerate(_items(spec.get("workerPoolSpecs"))))
    job = Job(
        file=path,
        kind=kind,
        gcloud=gcloud,
        root=root,
        spec=spec,
        pools=pools,
        scheduling=_scheduling(spec.get("scheduling")),
        study=None if tuning is None else _study(tuning),
    )
    return job, notes.findings


def _items(value: Value | None) -> list[Value]:
    return list(value.items()) if value is not None else []


def _form(root: Value, notes: Notes) -> tuple[str, str] | None:
    """Returns (kind, message at the top) by the fields at the top."""
    keys = list(root.data) if isinstance(root.data, dict) else []
    expected = (
        "write workerPoolSpecs (what gcloud takes), jobSpec (a CustomJob), studySpec and trialJobSpec (a "
        "tuning job), or trainingTaskDefinition and trainingTaskInputs (a training pipeline)"
    )
    if not keys:
        notes.add("no-job", root, "there is no job in it", expected)
        return None
    names = {shape.camel(key) for key in keys}
    meant = names | {found for key in names if (found := shape.close(key, _ROOTS))}
    for field_name, kind in reversed(_ROOTS.items()):  # a pipeline before what it may be mixed up with
        if field_name in meant:
            return kind, "CustomJobSpec" if field_name == "workerPoolSpecs" else kind
    notes.add("no-job", root, f"its fields ({', '.join(keys[:6])}) are those of no job", expected)
    return None


def _note_snake_case(root: Value, notes: Notes) -> None:
    """Notes the first key with underscores: the API takes them, gcloud doesn't."""
    waiting = [root]
    snakes: list[tuple[str, Value]] = []
    while waiting:
        value = waiting.pop()
        if isinstance(value.data, dict):
            for key, item in value.data.items():
                if "_" in key and not value.path.endswith("labels"):
                    snakes.append((key, item))
                waiting.append(item)
        elif isinstance(value.data, list):
            waiting += value.data
    if snakes:
        key, item = min(snakes, key=lambda pair: (pair[1].line, pair[1].column))
        more = f" (and {len(snakes) - 1} more)" if len(snakes) > 1 else ""
        notes.add(
            "snake-case",
            item,
            f"gcloud --config refuses keys with underscores{more}; submit takes them",
            f"write {shape.camel(key)}",
        )


def _pipeline(root: Value, notes: Notes) -> tuple[Value, Value | None]:
    """Returns the pipeline with typed task inputs, and those of a tuning task."""
    definition = root.of("trainingTaskDefinition", default="")
    inputs = root.get("trainingTaskInputs")
    if definition not in (CUSTOM_TASK, TUNING_TASK):
        keys = (
            {shape.camel(key) for key in inputs.data} if inputs and isinstance(inputs.data, dict) else set()
        )
        right = TUNING_TASK if keys & {"studySpec", "trialJobSpec"} else CUSTOM_TASK
        at = root.nearest("trainingTaskDefinition")
        why = f"{definition!r} is no definition of a custom task" if definition else "it is missing"
        notes.add("task-definition", at, why, f"write {right}", joined(root.path, "trainingTaskDefinition"))
        definition = right
    if inputs is None:
        notes.add(
            "no-job", root, "a training pipeline needs trainingTaskInputs", "write workerPoolSpecs in it"
        )
        return root, None
    message = "TuningTask" if definition == TUNING_TASK else "CustomJobSpec"
    typed = shape.canonical(inputs, message, notes.add)
    root = replace(root, data={**root.data, "trainingTaskInputs": typed})
    return root, typed if definition == TUNING_TASK else None


def _pool(index: int, value: Value) -> Pool:
    if not value.data:
        return Pool(index, value, empty=True, replicas=0)
    container = "pythonPackageSpec" if value.get("pythonPackageSpec") else "containerSpec"
    env = {
        str(item.of("name", default="")): str(item.of("value", default=""))
        for item in _items(value.get(container, "env"))
    }
    return Pool(
        index=index,
        value=value,
        machine_type=value.of("machineSpec", "machineType", default=""),
        accelerator_type=value.of("machineSpec", "acceleratorType", default="").replace(
            "ACCELERATOR_TYPE_UNSPECIFIED", ""
        ),
        accelerator_count=value.of("machineSpec", "acceleratorCount", default=0),
        tpu_topology=value.of("machineSpec", "tpuTopology", default=""),
        replicas=value.of("replicaCount", default=1),
        image=value.of(
            container, "executorImageUri" if container == "pythonPackageSpec" else "imageUri", default=""
        ),
        command=tuple(value.of(container, "command", default=())),
        args=tuple(value.of(container, "args", default=())),
        env=env,
        python_module=value.of(container, "pythonModule", default=""),
        package_uris=tuple(value.of(container, "packageUris", default=())),
        disk_type=value.of("diskSpec", "bootDiskType", default="pd-ssd"),
        disk_gb=value.of("diskSpec", "bootDiskSizeGb", default=100),
    )


def _scheduling(value: Value | None) -> Scheduling:
    if value is None:
        return Scheduling()
    timeout, wait = value.of("timeout", default=None), value.of("maxWaitDuration", default=None)
    return Scheduling(
        value=value,
        timeout=None if timeout is None else shape.seconds(timeout),
        restart_on_worker_restart=value.of("restartJobOnWorkerRestart", default=False),
        strategy=value.of("strategy", default="STANDARD").replace("STRATEGY_UNSPECIFIED", "STANDARD"),
        disable_retries=value.of("disableRetries", default=False),
        max_wait=None if wait is None else shape.seconds(wait),
    )


def _study(value: Value) -> Study:
    spec = value.get("studySpec") or replace(value, data={})
    return Study(
        value=spec,
        metrics=tuple(
            (item.of("metricId", default=""), item.of("goal", default=""), item)
            for item in _items(spec.get("metrics"))
        ),
        parameters=tuple(parameter(item) for item in _items(spec.get("parameters"))),
        algorithm=spec.of("algorithm", default="").replace("ALGORITHM_UNSPECIFIED", ""),
        max_trials=value.of("maxTrialCount"),
        parallel_trials=value.of("parallelTrialCount"),
        max_failed_trials=value.of("maxFailedTrialCount"),
        measurement=spec.of("measurementSelectionType", default=""),
    )


def parameter(value: Value) -> Parameter:
    """Returns the hyperparameter that a ParameterSpec describes, with those that depend on it."""
    kind = next(
        (name for name in ("double", "integer", "discrete", "categorical") if value.get(f"{name}ValueSpec")),
        "",
    )
    spec = f"{kind}ValueSpec"
    return Parameter(
        id=value.of("parameterId", default=""),
        value=value,
        kind=kind,
        low=value.of(spec, "minValue"),
        high=value.of(spec, "maxValue"),
        values=tuple(value.of(spec, "values", default=())),
        scale=value.of("scaleType", default="").replace("SCALE_TYPE_UNSPECIFIED", ""),
        children=tuple(
            parameter(child)
            for item in _items(value.get("conditionalParameterSpecs"))
            if (child := item.get("parameterSpec")) is not None
        ),
    )
