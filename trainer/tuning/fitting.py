"""Whether the parameters of a study fit the run config that its trials train. Adopters: leave."""

from __future__ import annotations

from collections.abc import Sequence

from trainer import flags, metric_names
from trainer.config import Config
from trainer.errors import UserError, nearest
from trainer.tuning.spec import Dimension, Study


def check_against(study: Study, files: Sequence[str], overrides: Sequence[str]) -> Config:
    """Returns the run config of a trial without its parameters, once every parameter fits it.

    Args:
        study: the study.
        files: config files of the trials.
        overrides: flags of every trial.

    Raises:
        UserError: a config that is wrong itself, a metric that trials don't report, a parameter that is no
            flag, or a value that its key refuses; one line each.
    """
    config = flags.load(files, overrides)
    where = study.metric_where or study.file
    known = metric_names.reported(config.task, len(config.label.classes) or 4)
    if study.metric not in known:
        raise UserError(
            f"{where}: metricId: task {config.task} reports no {study.metric!r}"
            f"{nearest(study.metric, known)}; it reports {', '.join(known)}"
        )
    better = metric_names.direction(study.metric)
    if better is not None and better != study.goal:
        right = "MAXIMIZE" if better == "max" else "MINIMIZE"
        raise UserError(
            f"{study.metric_where or study.file}: metricId {study.metric}: expected goal: {right}"
        )
    problems: list[str] = []
    seen: dict[str, str] = {}
    for dimension in study.dimensions:
        problems += _misfits(dimension, study, files, overrides, seen)
    if problems:
        raise UserError("\n".join(problems))
    return config


def _misfits(
    dimension: Dimension, study: Study, files: Sequence[str], overrides: Sequence[str], seen: dict[str, str]
) -> list[str]:
    if not dimension.id.startswith("features."):
        try:
            path = flags.find(dimension.id, flags.TRAIN).path
        except UserError as error:
            return [f"{dimension.where}: parameterId: {error}"]
        if path in seen:
            return [f"{dimension.where}: {dimension.id} sets {path} like {seen[path]}; keep one of them"]
        seen[path] = dimension.id
    ancestors: list[str] = []
    above = dimension
    while above.parent:
        parent = study.dimension(above.parent)
        ancestors.append(f"--{parent.id}={parent.text(above.parent_values[0])}")
        above = parent
    for value in dimension.extremes():
        text = f"--{dimension.id}={dimension.text(value)}"
        try:
            flags.load(files, [*overrides, *ancestors, text])
        except UserError as error:
            return [f"{dimension.where}: a trial with {text} would fail: {str(error).splitlines()[0]}"]
    return []


def check_epochs(study: Study, epochs: int) -> None:
    """Checks that the epochs of a whole trial are enough for the search to tell trials apart by fewer.

    Raises:
        UserError: Hyperband with less than three.
    """
    if study.algorithm == "hyperband" and epochs < 3:
        raise UserError(
            f"hyperband: training.epochs is {epochs}, expected 3 or more: it gives bad trials a third of the "
            "epochs of good ones"
        )
