"""Hyperparameter studies: what is searched, what is measured, how many trials. Adopters: leave."""

from __future__ import annotations

from collections.abc import Container

from trainer import flags, metric_names, schema
from trainer.errors import UserError, nearest
from trainer.jobs import hardware
from trainer.jobs.checks.runs import batch_problem
from trainer.jobs.context import Context
from trainer.jobs.runconfig import mismatch
from trainer.jobs.spec import Parameter, Study

_RESERVED = ("timestamp", "trial", "global_step", "checkpoint_path")  # fields beside the metric in its file
_TRIALS_PER_PARAMETER = 10  # the service's own advice
_UNSUPPORTED = ("defaultValue", "observationNoise")  # for studies without tuning jobs


def check(context: Context) -> None:
    """Notes what is wrong with the study of a tuning job."""
    study = context.job.study
    if study is None:
        return
    if context.job.is_tpu:
        context.add(
            "tuning-tpu", study.value, "tuning jobs can't use TPUs", "tune on GPUs, or one job a trial"
        )
    _metrics(context, study)
    _parameters(context, study)
    _trials(context, study)
    if study.metrics and study.measurement in ("", "MEASUREMENT_SELECTION_TYPE_UNSPECIFIED"):
        context.add_in(
            "measurement-default",
            study.value,
            ("measurementSelectionType",),
            "unset, a trial counts by its last report; the same study from the SDK counts by its best",
            "write BEST_MEASUREMENT or LAST_MEASUREMENT",
        )
    if study.value.get("observationNoise") is not None:
        context.add_in(
            "study-unsupported",
            study.value,
            ("observationNoise",),
            "tuning jobs don't take it",
            "leave it out",
        )


# --- metrics ----------------------------------------------------------------------------------------


def _metrics(context: Context, study: Study) -> None:
    if not study.metrics:
        context.add_in(
            "metric-missing",
            study.value,
            ("metrics",),
            "the study has nothing to make better",
            "write [{metricId: val_loss, goal: MINIMIZE}]",
        )
        return
    if len(study.metrics) > 1:
        context.add(
            "metric-several",
            study.metrics[1][2],
            "a trial of this trainer reports one metric, its objective",
            "keep the one that decides",
        )
    name, goal, value = study.metrics[0]
    at = value.nearest("metricId")
    if not name or any(letter.isspace() for letter in name) or name in _RESERVED:
        context.add(
            "metric-name",
            at,
            f"{name!r} can't be reported",
            "write a metric's name without blanks, such as val_loss",
        )
        return
    config = context.run.config
    if config is not None:
        known = metric_names.reported(config.task, len(config.label.classes) or 4)
        if name not in known:
            why = f"task {config.task} reports no {name!r}{nearest(name, known)}"
            context.add("metric-unknown", at, why, f"write one of {', '.join(known)}")
            return
        objective = config.training.objective or config.training.monitor
        if name != objective:
            context.add(
                "metric-objective",
                at,
                f"a trial reports {objective!r} (training.objective, else training.monitor), and the study "
                "would wait for another name",
                f"add --training.objective={name} to the args, or write {objective}",
            )
            return
    better = metric_names.direction(name)
    if better is not None and goal != ("MAXIMIZE" if better == "max" else "MINIMIZE"):
        word = "higher" if better == "max" else "lower"
        context.add(
            "metric-goal",
            value.nearest("goal"),
            f"a {word} {name} is better, got {goal or 'no goal'}",
            f"write {'MAXIMIZE' if better == 'max' else 'MINIMIZE'}",
        )


# --- parameters -------------------------------------------------------------------------------------


def _parameters(context: Context, study: Study) -> None:
    if not study.parameters:
        context.add_in(
            "parameters-missing",
            study.value,
            ("parameters",),
            "the study has nothing to try",
            "write a list of parameters, each with a parameterId that is a key of the config",
        )
    seen: dict[str, str] = {}
    for parameter in study.every_parameter:
        _parameter(context, study, parameter, seen)


def _parameter(context: Context, study: Study, parameter: Parameter, seen: dict[str, str]) -> None:
    value = parameter.value
    at = value.nearest("parameterId")
    if not parameter.kind:
        context.add(
            "parameter-spec",
            at,
            f"{parameter.id or 'it'} has no values to try",
            "write doubleValueSpec, integerValueSpec, discreteValueSpec or categoricalValueSpec",
        )
        return
    spec = value.nearest(f"{parameter.kind}ValueSpec")
    if spec.get("defaultValue") is not None:
        context.add(
            "study-unsupported",
            spec.nearest("defaultValue"),
            "tuning jobs don't take a default",
            "leave it out",
        )
    if parameter.children and parameter.kind == "double":
        context.add(
            "parameter-parent",
            value.nearest("conditionalParameterSpecs"),
            f"no parameter can depend on values of {parameter.id}, a double",
            "make the parent discrete or categorical",
        )
    _conditions(context, parameter)
    if parameter.kind == "double" and study.algorithm == "GRID_SEARCH" and not context.noted("grid-double"):
        context.add(
            "grid-double",
            spec,
            "grid search can't take a double, which has no steps",
            "write discreteValueSpec, or leave algorithm out",
        )
    if not _range_is_right(context, parameter):
        return
    leaf = _leaf(context, parameter)
    if leaf is None:
        return
    if leaf.path in seen:
        context.add("parameter-twice", at, f"it sets {leaf.path} like {seen[leaf.path]}", "keep one of them")
        return
    seen[leaf.path] = parameter.id
    _values_fit(context, parameter, leaf)


def _conditions(context: Context, parameter: Parameter) -> None:
    """Notes parameters that hang on values which their parent hasn't."""
    right = {"integer": "parentIntValues", "discrete": "parentDiscreteValues"}
    key = right.get(parameter.kind, "parentCategoricalValues")
    under = parameter.value.get("conditionalParameterSpecs")
    for item in under.items() if under and parameter.kind != "double" else ():
        wanted = item.get(key, "values")
        has: Container[object] = parameter.values
        if parameter.low is not None and parameter.high is not None:
            has = range(int(parameter.low), int(parameter.high) + 1)
        if wanted is None:
            why = f"{parameter.id} is {parameter.kind}, and its values for this parameter aren't told"
            context.add("parameter-parent", item, why, f"write {key}: {{values: [...]}}")
        elif strange := [value.data for value in wanted.items() if value.data not in has]:
            context.add(
                "parameter-parent",
                wanted,
                f"{parameter.id} is never {strange[0]}",
                "write values that it takes",
            )


def _leaf(context: Context, parameter: Parameter) -> schema.Leaf | None:
    chief = context.job.pools[0] if context.job.pools else None
    if chief is None or not chief.runs_trainer:
        return None
    try:
        return flags.find(parameter.id)
    except UserError as error:
        why, _, hint = str(error).partition("; ")
        context.add(
            "parameter-unknown",
            parameter.value.nearest("parameterId"),
            f"a trial is started with it word for word: {why}",
            hint.replace("'--", "'") or "write the full name of one key",
        )
        return None


def _range_is_right(context: Context, parameter: Parameter) -> bool:
    value, low, high = parameter.value, parameter.low, parameter.high
    spec = value.nearest(f"{parameter.kind}ValueSpec")
    if parameter.kind in ("double", "integer"):
        if low is None or high is None or low > high:
            got = f"{low} to {high}" if low is not None and high is not None else "one bound alone"
            context.add(
                "parameter-range", spec, f"got {got}", "write minValue and maxValue, the smaller first"
            )
            return False
    elif not parameter.values:
        context.add("parameter-range", spec, "there are no values", "write values: [...]")
        return False
    elif parameter.kind == "discrete" and any(
        after <= before for before, after in zip(parameter.values, parameter.values[1:], strict=False)
    ):
        context.add(
            "parameter-range",
            spec.nearest("values"),
            "discrete values must increase",
            f"write [{', '.join(f'{v:g}' for v in sorted(set(parameter.values)))}]",
        )
        return False
    elif len(set(parameter.values)) < len(parameter.values):
        context.add("parameter-range", spec.nearest("values"), "a value is given twice", "keep each one once")
        return False
    lowest = low if low is not None else min(parameter.values, default=None)
    at = value.nearest("scaleType")
    if parameter.kind == "categorical" and parameter.scale:
        context.add("parameter-scale", at, "categories have no scale", "leave scaleType out")
    elif "LOG" in parameter.scale and (lowest is None or lowest <= 0):
        context.add(
            "parameter-scale",
            at,
            f"{parameter.scale} needs values above 0, and the lowest is {lowest:g}",
            "write UNIT_LINEAR_SCALE, or a lowest value above 0",
        )
    return True


def _values_fit(context: Context, parameter: Parameter, leaf: schema.Leaf) -> None:
    """Notes values that the key would refuse, as the trial would get them."""
    members = schema.members(leaf.annotation)
    spec = parameter.value.nearest(f"{parameter.kind}ValueSpec")
    if parameter.kind == "double" and float not in members:
        right = "integerValueSpec" if int in members else "categoricalValueSpec"
        context.add(
            "parameter-type",
            spec,
            f"{leaf.path} is {leaf.expected}, and a double gives it fractions",
            f"write {right}",
        )
        return
    texts: list[str]
    if parameter.kind in ("double", "integer"):
        texts = [f"{value:.17g}" for value in (parameter.low, parameter.high) if value is not None]
    elif parameter.kind == "discrete":
        texts = [repr(float(value)) for value in parameter.values]
    else:
        texts = list(parameter.values)
    for text in texts:
        if problem := mismatch(leaf, text):
            context.add("parameter-value", spec, f"a trial would fail: {problem}", f"keep to {leaf.expected}")
            return
    _batches_divide(context, parameter, leaf)


def _batches_divide(context: Context, parameter: Parameter, leaf: schema.Leaf) -> None:
    config = context.run.config
    if leaf.path != "training.batch_size" or config is None:
        return
    replicas = hardware.replicas(context.job, config.strategy.cpu_replicas)
    unit = replicas * config.training.accumulate
    spec = parameter.value.nearest(f"{parameter.kind}ValueSpec")
    if parameter.kind == "integer" and unit > 1:
        context.add(
            "parameter-batch",
            spec,
            f"most whole numbers don't divide over {replicas} replicas",
            f"write discreteValueSpec with multiples of {unit}",
        )
    for text in parameter.values:
        if problem := batch_problem(int(float(text)), replicas, config.training.accumulate):
            context.add("parameter-batch", spec, problem[0], f"write {problem[1]} in its place")
            return


# --- trials -----------------------------------------------------------------------------------------


def _trials(context: Context, study: Study) -> None:
    root = context.job.root
    if context.job.root.get("trainingTaskInputs") is not None:
        root = context.job.root.nearest("trainingTaskInputs")
    most, parallel = study.max_trials, study.parallel_trials
    for key, count in (("maxTrialCount", most), ("parallelTrialCount", parallel)):
        if not count or count < 1:
            context.add_in(
                "trials-missing",
                root,
                (key,),
                f"got {count if count is not None else 'nothing'}",
                "write 1 or more",
            )
            return
    assert most is not None
    assert parallel is not None
    learns = study.algorithm not in ("GRID_SEARCH", "RANDOM_SEARCH")
    if parallel > most or (parallel == most and most > 1 and learns):
        context.add_in(
            "trials-parallel",
            root,
            ("parallelTrialCount",),
            f"{parallel} at once of {most} trials: none would know another's result",
            f"write {max(1, most // 5)}: {blind(most, max(1, most // 5))}",
        )
    elif learns and parallel * 4 > most > 4:
        context.add_in(
            "trials-blind",
            root,
            ("parallelTrialCount",),
            blind(most, parallel),
            f"write {max(1, most // 5)} or fewer, or more trials",
        )
    wanted = _TRIALS_PER_PARAMETER * len(study.every_parameter)
    if learns and study.parameters and most < wanted:
        context.add_in(
            "trials-few",
            root,
            ("maxTrialCount",),
            f"{most} trials for {len(study.every_parameter)} parameters: the service advises ten for each",
            f"write {wanted} or more, or search fewer parameters",
        )
    failed = study.max_failed_trials
    if not failed:
        context.add_in(
            "trials-failed",
            root,
            ("maxFailedTrialCount",),
            "unset, the service decides when failed trials end the study, and a failing first one does",
            f"write a number such as {max(1, most // 10)}",
        )
    elif failed > most:
        context.add_in(
            "trials-failed-many",
            root,
            ("maxFailedTrialCount",),
            f"{failed} of {most} trials",
            f"write {most} or less",
        )


def blind(trials: int, parallel: int) -> str:
    """Returns what running trials at once costs a search that learns from results."""
    rounds = -(-trials // parallel)
    return (
        f"{trials} trials, {parallel} at once: {rounds} rounds, the first {min(parallel, trials)} chosen "
        f"without any result and each later one without those of the {parallel - 1} beside it"
    )
