"""The model that a job puts into the registry when it is done: `submit --model ...`. Adopters: leave.

Only a training pipeline uploads a model by itself, so a custom job or a study with `--model` is sent as a
pipeline around it, which takes what the job leaves in AIP_MODEL_DIR (of a study: the best trial's).
"""

from __future__ import annotations

import re
from typing import Any

from trainer.config import Config
from trainer.config_features import CrossFeature, NumericFeature, VectorFeature
from trainer.errors import UserError
from trainer.flags import Option
from trainer.jobs.command import Command
from trainer.jobs.spec import CUSTOM_JOB, CUSTOM_TASK, PIPELINE, TUNING_TASK, Job

OPTIONS = {
    "model": Option("Put the model into the registry under this name; needs --serving_image.", "NAME"),
    "serving_image": Option("Image that serves the model; needs --model.", "IMAGE"),
    "serving_env": Option("Environment variable of the serving image; may be given again.", "NAME=VALUE"),
    "alias": Option("Alias of the model's version, such as candidate; may be given again.", "ALIAS"),
    "parent_model": Option(
        "Make it a new version of this model of the registry, by id or whole name.", "MODEL"
    ),
    "explain": Option(
        "Give the model an explanation: what each column adds to the probability of each class, by sampled "
        "Shapley with this many paths.",
        "PATHS",
    ),
}
_ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")
_MISSING_NUMBER = -1e38  # what a request writes for a missing number: trainer/request.py
_TUNING = ("studySpec", "trialJobSpec", "maxTrialCount", "parallelTrialCount", "maxFailedTrialCount")


def assignments(given: Command, job: Job, config: Config | None) -> dict[str, Any]:
    """Returns the modelToUpload that the options ask for; empty without any of them.

    Args:
        given: the command line.
        job: the job.
        config: its run config, or None; `--explain` needs it.

    Raises:
        UserError: options that need each other, or values that the registry refuses.
    """
    name, image = given.get("model"), given.get("serving_image")
    extra = [option for option in OPTIONS if given.get(option) is not None]
    has_model = job.root.get("modelToUpload") is not None
    if not extra:
        return {}
    if not has_model and (name is None or image is None):
        missing = "--serving_image" if name is not None else "--model"
        raise UserError(
            f"--{extra[0]} needs {missing}: --model NAME and --serving_image IMAGE go together, and put the "
            "model into the registry"
        )
    model: dict[str, Any] = {}
    if name is not None:
        model["displayName"] = name
    container: dict[str, Any] = {"imageUri": image} if image is not None else {}
    if given.all("serving_env"):
        container["env"] = [_variable(text) for text in given.all("serving_env")]
    if container:
        model["containerSpec"] = container
    if given.all("alias"):
        model["versionAliases"] = [_alias(text) for text in given.all("alias")]
    if (paths := given.number("explain")) is not None:
        if config is None:
            raise UserError("--explain needs the run's config: name a local copy, --config FILE")
        model["explanationSpec"] = explanation(config, int(paths))
    return model


def _variable(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise UserError(f"Invalid --serving_env: got {text!r}, expected NAME=VALUE")
    return {"name": name, "value": value}


def _alias(text: str) -> str:
    if not _ALIAS.fullmatch(text):
        raise UserError(
            f"Invalid --alias: got {text!r}, expected 2 to 128 letters, digits and dashes that begin with a "
            "lower-case letter, such as candidate"
        )
    return text


def explanation(config: Config, paths: int) -> dict[str, Any]:
    """Returns the ExplanationSpec of a run's exported model, with the labels' names.

    The baseline of a number is a missing one, that of all else is left to the service (empty text): what a
    column adds is told against a row that lacks it.

    Args:
        config: the run's config.
        paths: paths of sampled Shapley; the service takes 1 to 50.

    Raises:
        UserError: another number of paths.
    """
    if not 1 <= paths <= 50:
        raise UserError(f"Invalid --explain: got {paths}, expected 1 to 50")
    from trainer.signatures import signature_name  # it imports NumPy

    inputs: dict[str, Any] = {}
    for feature in config.features:
        if isinstance(feature, CrossFeature):
            continue
        name = signature_name(feature.source_column)
        inputs[name] = {"inputTensorName": name}
        if isinstance(feature, NumericFeature):
            inputs[name]["inputBaselines"] = [_MISSING_NUMBER]
        elif isinstance(feature, VectorFeature):
            inputs[name]["inputBaselines"] = [[_MISSING_NUMBER] * feature.length]
    if config.task == "regression":
        outputs: dict[str, Any] = {"prediction": {"outputTensorName": "prediction"}}
    else:
        shown: dict[str, Any] = {"outputTensorName": "probabilities"}
        names = config.label.column if config.task == "multilabel" else config.label.classes
        if names:
            shown["indexDisplayNameMapping"] = list(names)
        else:  # known when training has seen the rows: the model names them beside its probabilities
            shown["displayNameMappingKey"] = "classes"
        outputs = {"probabilities": shown}
    return {
        "parameters": {"sampledShapleyAttribution": {"pathCount": paths}},
        "metadata": {"inputs": inputs, "outputs": outputs},
    }


def as_pipeline(job: Job, model: dict[str, Any], parent: str | None) -> dict[str, Any]:
    """Returns a job as a training pipeline that uploads a model.

    Args:
        job: a job of any kind; a pipeline keeps its own modelToUpload where `model` says nothing.
        model: what `assignments` returned.
        parent: resource name of the model that it becomes a version of, or None.

    Raises:
        UserError: the job has no base output directory, where the model would be looked for.
    """
    whole = job.request()
    if not job.base_output:
        raise UserError(
            f"{job.file}: --model needs baseOutputDirectory: the model is taken from its model/ folder"
        )
    if job.kind == PIPELINE:
        body = dict(whole)
    else:
        own = ("displayName", "labels", "encryptionSpec")
        body = {key: whole[key] for key in own if key in whole}
        body["trainingTaskDefinition"] = CUSTOM_TASK if job.kind == CUSTOM_JOB else TUNING_TASK
        if job.kind == CUSTOM_JOB:
            body["trainingTaskInputs"] = whole["jobSpec"]
        else:
            body["trainingTaskInputs"] = {key: whole[key] for key in _TUNING if key in whole}
    before = body.get("modelToUpload", {})
    container = {**before.get("containerSpec", {}), **model.get("containerSpec", {})}
    body["modelToUpload"] = {**before, **model, **({"containerSpec": container} if container else {})}
    if parent is not None:
        body["parentModel"] = parent
    return body
