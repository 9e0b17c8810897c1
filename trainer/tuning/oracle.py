"""keras-tuner's oracles, which choose the values of each trial, made for a study. Adopters: leave.

What is added to them: values are rounded to be readable, a small space is not searched twice, the
measurement that the study selects is the score, and the state is one file that is written whole (keras-tuner
writes a file a trial and one of its own, and a kill between two of them tears a study).
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import keras_tuner
from keras_tuner import oracles
from sklearn.exceptions import ConvergenceWarning

from trainer import storage
from trainer.errors import UserError
from trainer.tuning import space
from trainer.tuning.spec import Algorithm, Study

STATE = "oracle.json"
_NEVER = 10**9  # the limit of failed trials is the study's, not keras-tuner's
_TRIES = 20  # values that were tried already are drawn again at most so many times


class _Ours:
    """What every oracle here does in its own way; mixed into keras-tuner's."""

    study: Study

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Chooses the values of a trial."""
        with warnings.catch_warnings():
            # The Gaussian process says so whenever few trials can't tell a parameter's length scale.
            warnings.simplefilter("ignore", ConvergenceWarning)
            chosen: dict[str, Any] = super().populate_space(trial_id)  # type: ignore[misc]
        if chosen.get("values"):
            own = {name: value for name, value in chosen["values"].items() if name.startswith("tuner/")}
            chosen["values"] = {**space.values_of(chosen["values"], self.study), **own}
        return chosen

    def score_trial(self, trial: Any) -> None:
        """Scores a trial by the measurement that the study selects."""
        name = self.study.metric
        if self.study.selection == "best":
            trial.score, trial.best_step = (
                trial.metrics.get_best_value(name),
                trial.metrics.get_best_step(name),
            )
        else:
            last = trial.metrics.get_history(name)[-1]
            trial.score, trial.best_step = last.mean(), last.step
        trial.score = float(trial.score)

    # --- one file instead of many -------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Returns everything that a later process needs to go on, as plain values."""
        return {
            "oracle": self.get_state(),  # type: ignore[attr-defined]
            "trials": [trial.get_state() for trial in self.trials.values()],  # type: ignore[attr-defined]
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Goes on from a snapshot; trials that were running still are."""
        from keras_tuner.engine import trial as trials

        made = [trials.Trial.from_state(state) for state in snapshot["trials"]]
        self.trials = {trial.trial_id: trial for trial in made}
        self.set_state(snapshot["oracle"])  # type: ignore[attr-defined]
        # They go on under the names of their tuners; keras-tuner's own reload would run them twice.

    def save(self) -> None:
        """Writes the state into the project's folder, if it has one."""
        if getattr(self, "_directory", None):
            folder = os.path.join(str(self._directory), str(self._project_name))  # type: ignore[attr-defined]
            storage.write_json(f"{folder}/{STATE}", self.snapshot())

    def _save_trial(self, trial: Any) -> None:
        """Leaves it to `save`, which keras-tuner calls next."""


class Bayesian(_Ours, oracles.BayesianOptimizationOracle):
    """Gaussian process with an upper confidence bound."""

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Chooses the values of a trial, never the same twice.

        Once the Gaussian process is sure of the best of a discrete space, it would measure that for ever.
        """
        chosen = super().populate_space(trial_id)
        for _ in range(_TRIES):
            if not chosen.get("values") or not self._duplicate(chosen["values"]):
                return chosen
            chosen = self._random_populate_space()
            if chosen.get("values"):
                chosen["values"] = space.values_of(chosen["values"], self.study)
        return {"status": "STOPPED", "values": None}


class Random(_Ours, oracles.RandomSearchOracle):
    """Uniform on each parameter's scale."""


class Grid(_Ours, oracles.GridSearchOracle):
    """Every combination, in the file's order; an integer on a log scale has ten values."""

    def get_state(self) -> dict[str, Any]:
        """Adds what keras-tuner leaves out: which combinations come next."""
        order = self._ordered_ids
        links = {
            "memory": order._memory,
            "data_to_index": order._data_to_index,
            "next_index": [[key, value] for key, value in order._next_index.items()],
            "last_index": order._last_index,
        }
        return {**super().get_state(), "ordered": links, "populate_next": list(self._populate_next)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from `get_state`."""
        super().set_state(state)
        order, links = self._ordered_ids, state["ordered"]
        order._memory, order._data_to_index = links["memory"], links["data_to_index"]
        order._next_index.update({key: value for key, value in links["next_index"]})
        order._last_index = links["last_index"]
        self._populate_next = list(state["populate_next"])

    def end_trial(self, trial: Any) -> None:
        """Ends a trial; keras-tuner saves before it has noted which combination comes next."""
        super().end_trial(trial)
        self.save()


class Hyperband(_Ours, oracles.HyperbandOracle):
    """Many trials for few epochs, the best of them for more."""


def initial_points(study: Study) -> int:
    """Returns how many trials a Bayesian search draws at random before it trusts its model.

    keras-tuner's own choice, three for each parameter, would be most of a small study.
    """
    dimensions = len(study.dimensions)
    return max(2, min(3 * dimensions, dimensions + 1, study.limits.max_trials // 3))


def make(study: Study, *, seed: int, epochs: int = 1, algorithm: Algorithm | None = None) -> Any:
    """Returns the oracle of a study.

    Args:
        study: the study.
        seed: seed of every choice.
        epochs: epochs of a whole trial, for Hyperband.
        algorithm: another one than the study's.

    Raises:
        UserError: Hyperband with too few epochs to tell trials apart.
    """
    common: dict[str, Any] = {
        "objective": keras_tuner.Objective(study.metric, direction=study.goal),
        "hyperparameters": space.hyperparameters(study),
        "allow_new_entries": False,
        "seed": seed or 1,  # keras-tuner takes 0 for none
        "max_consecutive_failed_trials": _NEVER,
    }
    chosen = algorithm or study.algorithm
    oracle: Any
    if chosen == "hyperband":
        if epochs < 3:
            raise UserError(
                f"hyperband: training.epochs is {epochs}, expected 3 or more: it gives bad trials a third of "
                "the epochs of good ones"
            )
        oracle = Hyperband(max_epochs=epochs, factor=3, **common)
        oracle.max_trials = study.limits.max_trials
    elif chosen == "random":
        oracle = Random(max_trials=study.limits.max_trials, **common)
    elif chosen == "grid":
        oracle = Grid(max_trials=study.limits.max_trials, **common)
    else:
        points = initial_points(study)
        oracle = Bayesian(max_trials=study.limits.max_trials, num_initial_points=points, **common)
    oracle.study = study
    oracle.verbose = 0
    oracle._directory = ""
    return oracle
