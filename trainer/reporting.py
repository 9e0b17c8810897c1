"""The objective of a tuning study: told to the service by way of cloudml-hypertune. Adopters: leave.

The study reads one metric, by the exact name that its spec gives (`metricId`). It is reported once an
epoch, and once more at the end with the exported model's value, so that a study that takes the last
measurement and one that takes the best of them judge the model that it gets; `training.objective_last` asks
for another last value. A trial that has reported nothing fails: the study would show it green, without a
value.
"""

from __future__ import annotations

import collections
import json
import logging
import math
import os
import time
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any, Protocol

from trainer import metric_names
from trainer.config import Config
from trainer.environment import Service
from trainer.errors import TrainingError, UserError, nearest

log = logging.getLogger("trainer.reporting")

RESERVED = ("timestamp", "trial", "global_step", "checkpoint_path")  # fields that stand beside the metric
DEFAULT_FILE = "/tmp/hypertune/output.metrics"
KEPT_LINES = 100  # the service refuses more
TAG = "CLOUD_ML_HP_METRIC_TAG"  # some tools name the metric here


class _Writer(Protocol):
    def report_hyperparameter_tuning_metric(
        self, hyperparameter_metric_tag: str, metric_value: float, global_step: int
    ) -> None: ...


class FileWriter:
    """Writes the same file as cloudml-hypertune, for images without that package."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Makes one; the file's folder is made as well."""
        self._path = environ.get("CLOUD_ML_HP_METRIC_FILE", DEFAULT_FILE)
        self._trial = environ.get("CLOUD_ML_TRIAL_ID", "0")
        self._lines: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)

    def report_hyperparameter_tuning_metric(
        self, hyperparameter_metric_tag: str, metric_value: float, global_step: int
    ) -> None:
        """Adds one measurement and writes the file anew, whole or not at all."""
        entry = {
            "timestamp": time.time(),
            "trial": self._trial,
            hyperparameter_metric_tag: str(float(metric_value)),
            "global_step": str(int(global_step)),
            "checkpoint_path": "",
        }
        self._lines.append(json.dumps(entry, sort_keys=True))
        scratch = f"{self._path}.tmp-{os.getpid()}"
        with open(scratch, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in self._lines)
        os.replace(scratch, self._path)


# One for the process: each new instance begins with an empty history and wipes what is in the file.
_writer: _Writer | None = None


def _get_writer(environ: MutableMapping[str, str]) -> _Writer:
    global _writer
    if _writer is None:
        if name := environ.get("CLOUD_ML_HP_METRIC_FILE"):
            # cloudml-hypertune fails on a file name without a folder.
            environ["CLOUD_ML_HP_METRIC_FILE"] = os.path.abspath(name)
        try:
            import hypertune
        except ImportError:
            log.debug("cloudml-hypertune is not installed: writing its file without it")
            _writer = FileWriter(environ)
        else:
            _writer = hypertune.HyperTune()
    return _writer


class Reporter:
    """Reports one metric to the study that this process is a trial of; outside of a study it only checks.

    The checks are the same everywhere, so that a name that would leave a study without values fails on a
    laptop too.
    """

    def __init__(
        self,
        tag: str,
        service: Service,
        environ: MutableMapping[str, str] = os.environ,
        *,
        known: Collection[str] = (),
        mode: str = "max",
    ) -> None:
        """Makes one, before training.

        Args:
            tag: the metric's name, as the study's spec gives it.
            service: who this process is; only a trial's chief writes.
            environ: environment; the trial's id is put into it for cloudml-hypertune. With
                CLOUD_ML_HP_METRIC_TAG in it, that metric is reported too.
            known: names of the figures that the run will have; empty checks nothing.
            mode: "max" or "min": which of the reported values is the best.

        Raises:
            UserError: a name that can't be reported or that the run doesn't produce, or a metric file that
                can't be written.
        """
        self.tag = tag
        self._tags = list(dict.fromkeys([tag, *filter(None, [environ.get(TAG, "").strip()])]))
        self._mode = mode
        self.reported: list[tuple[int, float]] = []
        self._target: _Writer | None = None
        for name, origin in zip(self._tags, ("training.objective", TAG), strict=False):
            _check_name(name, origin, known)
        if service.trial_id is not None and service.is_chief:
            environ["CLOUD_ML_TRIAL_ID"] = service.trial_id  # it may come from CLUSTER_SPEC alone
            try:
                self._target = _get_writer(environ)
            except OSError as error:
                raise UserError(
                    f"CLOUD_ML_HP_METRIC_FILE: {error.filename} can't be made: {error.strerror}"
                ) from error

    def report(self, logs: Mapping[str, Any], step: int) -> float:
        """Reports the metric as it stands in `logs`: at the end of each epoch, and of the run.

        Args:
            logs: figures by name, of the epoch or of the exported model.
            step: optimizer steps done so far.

        Returns:
            The value.

        Raises:
            UserError: the metric is not in `logs`.
            TrainingError: it is not finite; nothing is reported then, and a trial that ends with an error
                is infeasible to the study.
        """
        values = {tag: self._value(tag, logs, step) for tag in self._tags}
        for tag, value in values.items():
            if self._target is not None:
                self._target.report_hyperparameter_tuning_metric(
                    hyperparameter_metric_tag=tag, metric_value=value, global_step=step
                )
                log.debug("reported %s=%s at step %d", tag, value, step)
        self.reported.append((step, values[self.tag]))
        return values[self.tag]

    def _value(self, tag: str, logs: Mapping[str, Any], step: int) -> float:
        if tag not in logs:
            raise UserError(
                f"objective {tag!r} is not among the figures [{', '.join(sorted(logs))}]{nearest(tag, logs)}"
            )
        value = float(logs[tag])
        if not math.isfinite(value):
            raise TrainingError(f"objective {tag!r} is {value} at step {step}: this trial has no result")
        return value

    def close(self, logs: Mapping[str, Any] | None, step: int, last: str = "final") -> None:
        """Reports what a study that takes the last measurement is to see, at the end of the run.

        Args:
            logs: figures of the exported model; None without a validation split.
            step: optimizer steps done.
            last: "final" reports the exported model's value, "best" the best of the epochs once more, "last"
                nothing, so that the last epoch's stays the last.

        Raises:
            TrainingError: a trial that has reported nothing at all, or a value that is not finite.
        """
        if last == "final" and logs is not None:
            self.report(logs, step)
        elif last == "best" and self.reported:
            best = (max if self._mode == "max" else min)(value for _, value in self.reported)
            self.report({**(logs or {}), self.tag: best}, step)
        if self._target is not None and not self.reported:
            raise TrainingError(f"the trial ends without having reported its objective {self.tag!r}")


def _check_name(tag: str, origin: str, known: Collection[str]) -> None:
    if not tag or any(letter.isspace() for letter in tag):
        raise UserError(f"{origin}: got {tag!r}, expected a metric's name without blanks")
    if tag in RESERVED:
        raise UserError(
            f"{origin}: {tag!r} is a field of the study's own and would be lost; "
            f"the others are {', '.join(name for name in RESERVED if name != tag)}"
        )
    if known and tag not in known:
        raise UserError(
            f"{origin}: this run has no figure {tag!r}{nearest(tag, known)}; it has {', '.join(known)}"
        )


def of_run(config: Config, monitor: str, me: Service, *, has_validation: bool = True) -> Reporter:
    """Returns the reporter of a run, once the objective is found among the figures that it will have.

    Args:
        config: the run's config; `training.objective`, else CLOUD_ML_HP_METRIC_TAG, else the monitor.
        monitor: what the run monitors.
        me: who this process is.
        has_validation: whether there is a validation split, without which there are no val_ figures.

    Raises:
        UserError: as `Reporter`.
    """
    known = metric_names.reported(config.task, len(config.label.classes) or 4)
    if not has_validation:
        known = tuple(name for name in known if not name.startswith("val_"))
    tag = config.training.objective or os.environ.get(TAG, "").strip() or monitor
    mode = config.training.monitor_mode
    if mode == "auto":
        mode = "min" if metric_names.direction(tag) == "min" else "max"
    if tag == config.training.monitor and metric_names.direction(tag) is None:
        known = (*known, tag)  # the adopter's own, with a mode that the config gives
    return Reporter(tag, me, known=known, mode=mode)


def report_again(told: Mapping[str, Any] | None, me: Service) -> None:
    """Reports what a finished trial had measured: on the machine of its restart the file is empty.

    Args:
        told: content of objective.json, or None.
        me: who this process is.
    """
    if me.trial_id is not None and told:
        reporter = Reporter(told["metric"], me)
        for step, value in told["reported"]:
            reporter.report({told["metric"]: value}, step)
