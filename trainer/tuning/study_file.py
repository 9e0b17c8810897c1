"""The study of a file, which is that of the service: `studySpec` and the counts beside it. Adopters: leave.

What the local search can't do in the service's way is refused in words. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trainer.errors import UserError, nearest
from trainer.jobs import loading, shape
from trainer.jobs.document import Value
from trainer.jobs.spec import TUNING_JOB, Job, Parameter
from trainer.tuning.spec import Algorithm, Dimension, Limits, Study

_OF_SERVICE: dict[str, Algorithm] = {"": "bayesian", "GRID_SEARCH": "grid", "RANDOM_SEARCH": "random"}
_SCALES = {"": "linear", "UNIT_LINEAR_SCALE": "linear", "UNIT_LOG_SCALE": "log"}
_SCALES["UNIT_REVERSE_LOG_SCALE"] = "reverse_log"
_RESERVED = ("timestamp", "trial", "global_step", "checkpoint_path")  # fields beside the metric in its file


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
        # More failures than trials never come: no mistake where `--set=maxTrialCount=2` cuts a study short.
        if counts["parallelTrialCount"] > most >= 1:
            self.note(
                root.nearest("parallelTrialCount"),
                f"parallelTrialCount: got {counts['parallelTrialCount']}, expected at most maxTrialCount, "
                f"{most}",
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
