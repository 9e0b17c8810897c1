"""The objective of a tuning study: told to the service by way of cloudml-hypertune. Adopters: leave.

The study reads one metric, by the exact name that its spec gives (`metricId`). It is reported once an
epoch, and once more at the end with the exported model's value, so that a study that takes the last
measurement and one that takes the best of them judge the model that it gets.
"""

from __future__ import annotations

import collections
import json
import logging
import math
import os
import time
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol

from trainer.environment import Service
from trainer.errors import TrainingError, UserError, nearest

log = logging.getLogger("trainer.reporting")

RESERVED = ("timestamp", "trial", "global_step", "checkpoint_path")  # fields that stand beside the metric
DEFAULT_FILE = "/tmp/hypertune/output.metrics"
KEPT_LINES = 100  # the service refuses more


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

    def __init__(self, tag: str, service: Service, environ: MutableMapping[str, str] = os.environ) -> None:
        """Makes one, before training.

        Args:
            tag: the metric's name, as the study's spec gives it.
            service: who this process is; only a trial's chief writes.
            environ: environment; the trial's id is put into it for cloudml-hypertune.

        Raises:
            UserError: a name that can't be reported, or a metric file that can't be written.
        """
        if not tag or any(letter.isspace() for letter in tag):
            raise UserError(f"training.objective: got {tag!r}, expected a metric's name without blanks")
        if tag in RESERVED:
            raise UserError(
                f"training.objective: {tag!r} is a field of the study's own and would be lost; "
                f"the others are {', '.join(name for name in RESERVED if name != tag)}"
            )
        self._tag = tag
        self._target: _Writer | None = None
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
        if self._tag not in logs:
            raise UserError(
                f"objective {self._tag!r} is not among the figures [{', '.join(sorted(logs))}]"
                f"{nearest(self._tag, logs)}"
            )
        value = float(logs[self._tag])
        if not math.isfinite(value):
            raise TrainingError(
                f"objective {self._tag!r} is {value} at step {step}: this trial has no result"
            )
        if self._target is not None:
            self._target.report_hyperparameter_tuning_metric(
                hyperparameter_metric_tag=self._tag, metric_value=value, global_step=step
            )
            log.debug("reported %s=%s at step %d", self._tag, value, step)
        return value
