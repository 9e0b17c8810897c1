"""keras-tuner's oracles, which choose the values of each trial, made for a study. Adopters: leave.

What is added to them: values are rounded to be readable, a small space is not searched twice, the
measurement that the study selects is the score, the model of the Bayesian search is asked in another way (see
`Bayesian`), and the state is one file that is written whole (keras-tuner
writes a file a trial and one of its own, and a kill between two of them tears a study).
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import keras_tuner
import numpy as np
from keras_tuner import oracles
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from trainer import storage
from trainer.environment import join
from trainer.tuning import fitting, space
from trainer.tuning.spec import Algorithm, Study

STATE = "oracle.json"
_NEVER = 10**9  # the limit of failed trials is the study's, not keras-tuner's
_CANDIDATES = 1500  # points of the space that the model is asked about, before each trial
_TRIES = 20  # values that were tried already are drawn again at most so many times


class _Ours:
    """What every oracle here does in its own way; mixed into keras-tuner's."""

    study: Study
    ongoing_trials: dict[str, Any]

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Chooses the values of a trial."""
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
        # They go on under the names of their tuners; keras-tuner's own reload would run them twice. It saves
        # a trial that ends while it still counts as running.
        running = self.ongoing_trials.items()
        self.ongoing_trials = {name: trial for name, trial in running if trial.status == "RUNNING"}

    def save(self) -> None:
        """Writes the state into the project's folder, if it has one."""
        if getattr(self, "_directory", None):
            storage.write_json(join(str(self._directory), STATE), self.snapshot())  # type: ignore[attr-defined]

    def _save_trial(self, trial: Any) -> None:
        """Saves everything: what a trial reported must outlive the chief that was told."""
        self.save()

    def end_trial(self, trial: Any) -> None:
        """Ends a trial, once: a worker that got no answer says it again."""
        if any(running.trial_id == trial.trial_id for running in self.ongoing_trials.values()):
            super().end_trial(trial)  # type: ignore[misc]


class Bayesian(_Ours, oracles.BayesianOptimizationOracle):
    """keras-tuner's Gaussian process, with a length scale a parameter, asked for the expected improvement.

    keras-tuner itself descends 50 times from random points by finite differences, which takes seconds a
    trial, and rounds the end to a value that exists: with discrete parameters often one that was tried. Here
    only points that exist and are new are looked at, a few thousand in one call of the model.
    """

    def _make_gpr(self) -> GaussianProcessRegressor:
        sizes = np.ones(len(self._nonfixed_space()))
        shape = ConstantKernel(1.0, (0.05, 20.0)) * Matern(sizes, (0.15, 8.0), nu=2.5)
        noise = WhiteKernel(1e-3, (1e-6, 0.2))
        return GaussianProcessRegressor(
            shape + noise, alpha=1e-8, normalize_y=True, n_restarts_optimizer=2, random_state=self.seed
        )

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Chooses the values of a trial, never the same twice."""
        done = [trial for trial in self.trials.values() if trial.status == "COMPLETED"]
        if len(done) < self.num_initial_points or not self._nonfixed_space():
            return self._draw()
        with warnings.catch_warnings():
            # Few trials can't tell the length scale of every parameter; it is said each time.
            warnings.simplefilter("ignore", ConvergenceWarning)
            best = self._model(done)
        # Seeded by the number of trials, so that a study that was resumed chooses as one that ran through.
        generator = np.random.default_rng([self.seed, len(self.trials)])
        found = self._candidates(generator, done)
        if not found:
            return self._draw()
        mean, deviation = self.gpr.predict(np.array([point for point, _ in found]), return_std=True)
        gain = best - mean
        scaled = gain / np.maximum(deviation, 1e-12)
        expected = gain * norm.cdf(scaled) + deviation * norm.pdf(scaled)
        return {"status": "RUNNING", "values": found[int(np.argmax(expected))][1]}

    def _draw(self) -> dict[str, Any]:
        for _ in range(_TRIES):
            values = self._random_values()
            if values is None:
                break
            values = space.values_of(values, self.study)
            if not self._duplicate(values):
                return {"status": "RUNNING", "values": values}
        return {"status": "STOPPED", "values": None}

    def _model(self, done: list[Any]) -> float:
        """Fits the process to what is known, and returns the best value, the lower the better.

        Running trials are in it with a pessimistic guess, so that none beside them gets nearly the same
        values; the guess needs a process that was fitted without them. A failed trial is in it as the worst
        that has a value: without it, the search would come back to its neighbourhood for ever.
        """
        failed = [trial for trial in self.trials.values() if trial.status == "FAILED"]
        ongoing: dict[str, Any] = self.ongoing_trials
        self.ongoing_trials = {}
        running = [trial for trial in self.trials.values() if trial.status == "RUNNING"]
        for trial in running:
            trial.status = "FAILED"  # keras-tuner leaves these out
        try:
            points, values = self._vectorize_trials()
            self._fit(points, values, failed)
        finally:
            self.ongoing_trials = ongoing
            for trial in running:
                trial.status = "RUNNING"
        if ongoing:
            points, with_guesses = self._vectorize_trials()
            self._fit(points, with_guesses, failed)
        return float(np.min(values))

    def _fit(self, points: np.ndarray, values: np.ndarray, failed: list[Any]) -> None:
        if failed:
            lost = np.array([self._point(trial.hyperparameters.values) for trial in failed])
            points = np.concatenate([points, lost])
            values = np.concatenate([values, np.full(len(lost), np.max(values))])
        self.gpr.fit(points, values)

    def _candidates(
        self, generator: np.random.Generator, done: list[Any]
    ) -> list[tuple[np.ndarray, dict[str, Any]]]:
        """Returns (point, values) of new combinations: all over the space, and near the best trials."""
        size = len(self._nonfixed_space())
        points = generator.random((_CANDIDATES, size))
        sign = -1 if self.objective.direction == "max" else 1
        best = sorted(done, key=lambda trial: sign * trial.score)[:3]
        near = np.repeat([self._point(t.hyperparameters.values) for t in best], _CANDIDATES // 6, axis=0)
        moved = generator.random(near.shape) < 0.5
        near = np.clip(near + moved * generator.normal(0, 0.12, near.shape), 0, 1 - 1e-9)
        found: dict[str, tuple[np.ndarray, dict[str, Any]]] = {}
        for point in np.concatenate([points, near]):
            values = space.values_of(self._vector_to_values(point), self.study)
            key = self._compute_values_hash(values)
            if key not in found and key not in self._tried_so_far:
                found[key] = (self._point(values), values)
        return list(found.values())

    def _point(self, values: dict[str, Any]) -> np.ndarray:
        """Returns where values lie in the unit cube; what takes no part lies at its default."""
        return np.array([hp.value_to_prob(values.get(hp.name, hp.default)) for hp in self._nonfixed_space()])


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
        # keras-tuner counts up from its seed, so neighbours would draw nearly the same trials, and takes 0
        # for none.
        "seed": seed * 7919 + 1,
        "max_consecutive_failed_trials": _NEVER,
    }
    chosen = algorithm or study.algorithm
    fitting.check_epochs(replace(study, algorithm=chosen), epochs)
    oracle: Any
    if chosen == "hyperband":
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
