"""A study as its file describes it, typed and checked against the trainer's own flags. Adopters: leave.

The file is that of the service (`studySpec` and the counts beside it); what the local search can't do in
the service's way is refused in words. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trainer import flags, metric_names
from trainer.config import Config
from trainer.errors import UserError, nearest
from trainer.jobs import loading, shape
from trainer.jobs.document import Value
from trainer.jobs.spec import TUNING_JOB, Job, Parameter

Algorithm = Literal["bayesian", "random", "grid", "hyperband"]
ALGORITHMS: tuple[Algorithm, ...] = ("bayesian", "random", "grid", "hyperband")
_OF_SERVICE: dict[str, Algorithm] = {"": "bayesian", "GRID_SEARCH": "grid", "RANDOM_SEARCH": "random"}
_SCALES = {"": "linear", "UNIT_LINEAR_SCALE": "linear", "UNIT_LOG_SCALE": "log"}
_SCALES["UNIT_REVERSE_LOG_SCALE"] = "reverse_log"
_RESERVED = ("timestamp", "trial", "global_step", "checkpoint_path")  # fields beside the metric in its file


@dataclass(frozen=True)
class Dimension:
    """One hyperparameter.

    Attributes:
        id: the flag's name, word for word.
        kind: double, integer, discrete or categorical.
        low, high: bounds of a double or integer, both included.
        values: values of a discrete (floats) or categorical (texts), in the file's order.
        scale: linear, log or reverse_log.
        parent: id of the hyperparameter that it depends on, or "".
        parent_values: it takes part only while the parent has one of these.
        where: `file:line` for messages.
    """

    id: str
    kind: str
    low: float = 0.0
    high: float = 0.0
    values: tuple[Any, ...] = ()
    scale: str = "linear"
    parent: str = ""
    parent_values: tuple[Any, ...] = ()
    where: str = ""

    def text(self, value: Any) -> str:
        """Returns the value as the service writes it into a trial's arguments: `64.0` for a discrete 64."""
        if self.kind == "integer":
            return str(int(value))
        return str(value) if self.kind == "categorical" else repr(float(value))

    def clean(self, value: Any) -> Any:
        """Returns a value of the search as this kind's own type; a double keeps six digits."""
        if self.kind == "integer":
            return int(value)
        if self.kind == "double":
            return min(max(float(f"{float(value):.6g}"), self.low), self.high)
        return float(value) if self.kind == "discrete" else str(value)

    @property
    def count(self) -> float:
        """Number of different values; infinite for a double."""
        if self.kind == "double":
            return 1 if self.low == self.high else math.inf
        return self.high - self.low + 1 if self.kind == "integer" else len(self.values)

    def extremes(self) -> list[Any]:
        """Returns the values that a key of the config may refuse: both bounds, or all values."""
        return [self.low, self.high] if self.kind in ("double", "integer") else list(self.values)


@dataclass(frozen=True)
class Limits:
    """When a study ends.

    Attributes:
        max_trials: trials in all.
        parallel: trials at once.
        max_failed: failed trials that end the study; 0 leaves it to us: the first one, or three in a row.
        min_trials: trials before the next two may end it.
        no_progress_trials: end after so many trials without a better one; 0 never.
        no_progress_seconds: the same in seconds.
        max_seconds: end after so many seconds.
        stop_running: end the running trials too, at once, instead of waiting for them.
    """

    max_trials: int
    parallel: int = 1
    max_failed: int = 0
    min_trials: int = 0
    no_progress_trials: int = 0
    no_progress_seconds: float = math.inf
    max_seconds: float = math.inf
    stop_running: bool = False


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes:
        file: the study file.
        name: its display name.
        metric: name of the metric, as trials report it.
        goal: "max" or "min".
        dimensions: the hyperparameters, each parent before what depends on it.
        algorithm: how the next values are chosen.
        selection: which measurement of a trial counts: "best" or "last".
        selection_given: whether the file says so.
        stopping: "" or "median": how trials that do badly are ended early.
        stopping_by_time: compare trials at the same time instead of the same step.
        limits: when it ends.
        metric_where: `file:line` of the metric, for messages.
    """

    file: str
    name: str
    metric: str
    goal: str
    dimensions: tuple[Dimension, ...]
    algorithm: Algorithm = "bayesian"
    selection: str = "last"
    selection_given: bool = False
    stopping: str = ""
    stopping_by_time: bool = False
    limits: Limits = field(default_factory=lambda: Limits(1))
    metric_where: str = ""

    def dimension(self, name: str) -> Dimension:
        """Returns a hyperparameter by its id."""
        return next(dimension for dimension in self.dimensions if dimension.id == name)

    def better(self, value: float, other: float | None) -> bool:
        """Returns whether a value of the metric is better than another; anything is better than none."""
        return other is None or (value > other if self.goal == "max" else value < other)

    def best(self, values: Sequence[float]) -> float:
        """Returns the best of some values."""
        return max(values) if self.goal == "max" else min(values)

    def arguments(self, values: dict[str, Any]) -> list[str]:
        """Returns the flags of a trial, `--id=value`, in the file's order."""
        return [
            f"--{dimension.id}={dimension.text(values[dimension.id])}"
            for dimension in self.dimensions
            if dimension.id in values
        ]

    def fingerprint(self) -> dict[str, Any]:
        """Returns what makes trials of one study comparable, as plain values."""
        return {
            "metric": self.metric,
            "goal": self.goal,
            "selection": self.selection,
            "algorithm": self.algorithm,
            "parameters": {
                d.id: [d.kind, d.low, d.high, list(d.values), d.scale, d.parent, list(d.parent_values)]
                for d in self.dimensions
            },
        }


# --- reading ----------------------------------------------------------------------------------------


def load(path: str, assignments: Sequence[str] = (), stopping: str | None = None) -> tuple[Study, Job]:
    """Returns the study of a file, and the whole job that it stands in.

    Args:
        path: the study file: a HyperparameterTuningJob, or what gcloud takes for one.
        assignments: `path=value` texts to lay over it.
        stopping: "median" or "none", in place of what the file says.

    Raises:
        UserError: no study, or one line for each mistake in it.
    """
    return of_job(loading.load(path, assignments), stopping)


def of_job(job: Job, stopping: str | None = None) -> tuple[Study, Job]:
    """Does what `load` does, with a job that was read; see there."""
    if job.study is None or job.kind != TUNING_JOB:
        raise UserError(
            f"{job.file}: is a {job.kind}, expected a study: a file with studySpec, such as "
            "configs/jobs/hp_tuning.yaml"
        )
    return _Reader(job, stopping).study(), job


class _Reader:
    def __init__(self, job: Job, stopping: str | None) -> None:
        self.job = job
        self.wanted = stopping
        self.problems: list[str] = []

    def note(self, at: Value, problem: str) -> None:
        self.problems.append(f"{self.job.file}:{at.line}: {problem}")

    def study(self) -> Study:
        job, spec = self.job, self.job.study
        assert spec is not None
        metric, goal = "", "max"
        if not spec.metrics:
            self.note(spec.value, "studySpec.metrics is missing: name what to make better")
        else:
            metric, written, at = spec.metrics[0]
            if len(spec.metrics) > 1:
                self.note(
                    spec.metrics[1][2], "metrics: a trial reports one metric; keep the one that decides"
                )
            if not metric or any(letter.isspace() for letter in metric) or metric in _RESERVED:
                self.note(at, f"metricId: {metric!r} can't be reported; expected a name without blanks")
            if written not in ("MAXIMIZE", "MINIMIZE"):
                self.note(at, f"goal: got {written or 'nothing'}, expected MAXIMIZE or MINIMIZE")
            goal = "min" if written == "MINIMIZE" else "max"
        dimensions: list[Dimension] = []
        for parameter in spec.parameters:
            self._parameter(parameter, None, (), dimensions)
        if not spec.parameters:
            self.note(spec.value, "studySpec.parameters is missing: there is nothing to try")
        stopping, by_time = self._stopping(spec.value)
        limits = self._limits(spec.value)
        algorithm = _OF_SERVICE[spec.algorithm]
        for dimension in dimensions:
            if algorithm == "grid" and dimension.kind == "double":
                self.problems.append(
                    f"{dimension.where}: {dimension.id}: GRID_SEARCH can't take a double, which has no "
                    "steps; write discreteValueSpec, or leave algorithm out"
                )
        if self.problems:
            raise UserError("\n".join(self.problems))
        return Study(
            file=job.file,
            name=job.display_name,
            metric=metric,
            goal=goal,
            dimensions=tuple(dimensions),
            algorithm=algorithm,
            selection="best" if spec.measurement == "BEST_MEASUREMENT" else "last",
            selection_given=spec.measurement in ("BEST_MEASUREMENT", "LAST_MEASUREMENT"),
            stopping=stopping,
            stopping_by_time=by_time,
            limits=limits,
            metric_where=f"{job.file}:{spec.metrics[0][2].line}" if spec.metrics else "",
        )

    # --- parameters ---------------------------------------------------------------------------------

    def _parameter(
        self, parameter: Parameter, parent: Dimension | None, values: tuple[Any, ...], found: list[Dimension]
    ) -> None:
        at = parameter.value.nearest("parameterId")
        name = parameter.id
        if not name or not parameter.kind:
            what = "doubleValueSpec, integerValueSpec, discreteValueSpec or categoricalValueSpec"
            self.note(at, f"{name or 'a parameter'}: expected a parameterId and one of {what}")
            return
        if any(name == other.id for other in found):
            self.note(at, f"{name}: it is there twice; each parameterId is one flag")
            return
        if parameter.scale not in _SCALES:
            self.note(at, f"{name}: scaleType {parameter.scale} has no meaning here")
            return
        dimension = Dimension(
            id=name,
            kind=parameter.kind,
            low=float(parameter.low) if parameter.low is not None else 0.0,
            high=float(parameter.high) if parameter.high is not None else 0.0,
            values=tuple(
                float(value) if parameter.kind == "discrete" else str(value) for value in parameter.values
            ),
            scale=_SCALES[parameter.scale],
            parent=parent.id if parent else "",
            parent_values=values,
            where=f"{self.job.file}:{at.line}",
        )
        if not self._range(parameter, dimension, at):
            return
        found.append(dimension)
        for item in parameter.value.nearest("conditionalParameterSpecs").items():
            self._child(item, dimension, found)

    def _range(self, parameter: Parameter, dimension: Dimension, at: Value) -> bool:
        name, kind = dimension.id, dimension.kind
        if kind in ("double", "integer"):
            if parameter.low is None or parameter.high is None or dimension.low > dimension.high:
                self.note(at, f"{name}: expected minValue and maxValue, the smaller first")
                return False
            lowest = dimension.low
        else:
            if not dimension.values or len(set(dimension.values)) < len(dimension.values):
                self.note(at, f"{name}: expected a list of different values")
                return False
            if kind == "categorical":
                return True
            if list(dimension.values) != sorted(dimension.values):
                self.note(at, f"{name}: discrete values must increase")
                return False
            lowest = dimension.values[0]
        if dimension.scale != "linear" and lowest <= 0:
            self.note(at, f"{name}: {parameter.scale} needs values above 0, and the lowest is {lowest:g}")
            return False
        return True

    def _child(self, item: Value, parent: Dimension, found: list[Dimension]) -> None:
        field_of = {
            "integer": ("parentIntValues", int),
            "discrete": ("parentDiscreteValues", float),
            "categorical": ("parentCategoricalValues", str),
        }
        if parent.kind == "double":
            self.note(item, f"no parameter can depend on values of {parent.id}, a double")
            return
        key, kind = field_of[parent.kind]
        given = item.of(key, "values", default=None)
        spec = item.get("parameterSpec")
        if not given or spec is None:
            self.note(
                item, f"below {parent.id}, a {parent.kind}: expected parameterSpec and {key}: {{values}}"
            )
            return
        values = tuple(kind(value) for value in given)
        for value in values:
            inside = (
                parent.low <= value <= parent.high if parent.kind == "integer" else value in parent.values
            )
            if not inside:
                hint = nearest(str(value), map(str, parent.values))
                self.note(item, f"{key}: {parent.id} never is {value}{hint}")
                return
        self._parameter(loading.parameter(spec), parent, values, found)

    # --- stopping and limits ------------------------------------------------------------------------

    def _stopping(self, spec: Value) -> tuple[str, bool]:
        for key in ("decayCurveStoppingSpec", "convexAutomatedStoppingSpec"):
            if (at := spec.get(key)) is not None and self.wanted is None:
                self.note(
                    at,
                    f"{key}: the service's model of learning curves is not to be had on this machine; write "
                    "medianAutomatedStoppingSpec, or say --stopping=median or --stopping=none here",
                )
        median = spec.get("medianAutomatedStoppingSpec")
        if self.wanted == "none" or (median is None and self.wanted is None):
            return "", False
        return "median", median is not None and bool(median.of("useElapsedDuration"))

    def _limits(self, spec: Value) -> Limits:
        root = self.job.root
        counts = {}
        for key in ("maxTrialCount", "parallelTrialCount"):
            counts[key] = int(root.of(key, default=0) or 0)
            if counts[key] < 1:
                got = "nothing" if root.get(key) is None else counts[key]
                self.note(root.nearest(key), f"{key}: got {got}, expected 1 or more")
        most = counts["maxTrialCount"]
        counts["maxFailedTrialCount"] = int(root.of("maxFailedTrialCount", default=0) or 0)
        if counts["maxFailedTrialCount"] < 0:
            self.note(
                root.nearest("maxFailedTrialCount"),
                f"maxFailedTrialCount: got {counts['maxFailedTrialCount']}, expected 0 or more",
            )
        for key in ("parallelTrialCount", "maxFailedTrialCount"):
            if counts[key] > most >= 1:
                self.note(
                    root.nearest(key), f"{key}: got {counts[key]}, expected at most maxTrialCount, {most}"
                )
        config = spec.get("studyStoppingConfig")
        limits = Limits(
            max_trials=most,
            parallel=counts["parallelTrialCount"],
            max_failed=counts["maxFailedTrialCount"],
        )
        if config is None:
            return limits
        for path in (("minimumRuntimeConstraint",), ("maximumRuntimeConstraint", "endTime")):
            if (at := config.get(*path)) is not None:
                self.note(
                    at, f"studyStoppingConfig.{'.'.join(path)}: not known here; maximumRuntimeConstraint."
                    "maxDuration, minNumTrials, maxNumTrials and the NoProgress limits are"
                )  # fmt: skip
        most = min(most, int(config.of("maxNumTrials", default=most)))
        return replace(
            limits,
            max_trials=most,
            parallel=min(most, limits.parallel),
            min_trials=int(config.of("minNumTrials", default=0)),
            no_progress_trials=int(config.of("maxNumTrialsNoProgress", default=0)),
            no_progress_seconds=_seconds(config.of("maxDurationNoProgress")),
            max_seconds=_seconds(config.of("maximumRuntimeConstraint", "maxDuration")),
            stop_running=bool(config.of("shouldStopAsap", default=False)),
        )


def _seconds(text: Any) -> float:
    found = None if text is None else shape.seconds(text)
    return math.inf if found is None else found


# --- against the run config -------------------------------------------------------------------------


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


def override(study: Study, **changes: Any) -> Study:
    """Returns the study with limits or other fields set by the command line; None leaves a field as it is."""
    given = {name: value for name, value in changes.items() if value is not None}
    limits = {name: given.pop(name) for name in ("max_trials", "parallel", "max_failed") if name in given}
    new = replace(study.limits, **limits)
    # Fewer trials than the file says may be fewer than it runs at once.
    return replace(study, **given, limits=replace(new, parallel=min(new.parallel, new.max_trials)))


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
