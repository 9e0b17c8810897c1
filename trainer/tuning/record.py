"""study.json: all that a study knows, in one file that is written whole. Adopters: leave.

A trial is in the file before its process starts, with the values that it got and with the search's state
after choosing them. So whenever the study is killed, the next start finds every trial once.
"""

from __future__ import annotations

from typing import Any

from trainer import storage
from trainer.environment import join
from trainer.errors import UserError
from trainer.outputs import completed, differing_keys
from trainer.tuning.spec import Study
from trainer.tuning.trial import Trial

FILE = "study.json"
_FORMAT = 1


class Record:
    """The file of one study.

    Attributes:
        folder: the study's output folder.
        trials: every trial, by number.
        seconds: time that the study has taken, over all starts, when it was last saved.
        outcome: why it ended, or "".
    """

    def __init__(
        self, folder: str, study: Study, config: dict[str, Any], seed: int, *, empty: bool = False
    ) -> None:
        """Reads the file, if there is one.

        Args:
            folder: the study's output folder.
            study: the study.
            config: the resolved config that all trials share.
            seed: seed of the search.
            empty: don't read it.

        Raises:
            UserError: the folder holds another study.
        """
        self.folder, self._study, self._config, self._seed = folder, study, config, seed
        self.trials: list[Trial] = []
        self.seconds = 0.0
        self.outcome = ""
        self.oracle: dict[str, Any] | None = None
        found = None if empty else storage.read_json(self.path)
        if found is not None:
            self._take(found)

    @property
    def path(self) -> str:
        """Where the file is."""
        return join(self.folder, FILE)

    @property
    def ended(self) -> list[Trial]:
        """The trials that are done, in the order of their ends."""
        return sorted((t for t in self.trials if t.state != "running"), key=lambda trial: trial.ended)

    @property
    def counted(self) -> list[Trial]:
        """The trials that have a value, by number."""
        return [trial for trial in self.trials if trial.counts]

    @property
    def failed(self) -> list[Trial]:
        """The trials that failed, by number."""
        return [trial for trial in self.trials if trial.state == "failed"]

    def best(self) -> Trial | None:
        """Returns the trial with the best value, the earliest of equals; None without any."""
        best: Trial | None = None
        for trial in self.counted:
            assert trial.value is not None
            if self._study.better(trial.value, best.value if best else None):
                best = trial
        return best

    def folder_of(self, trial: Trial | int) -> str:
        """Returns a trial's own folder: the study's with its number, as on the service."""
        return join(self.folder, str(trial if isinstance(trial, int) else trial.id))

    def _take(self, found: dict[str, Any]) -> None:
        changed = differing_keys(found.get("study", {}), self._study.fingerprint())
        changed += differing_keys(completed(found.get("config", {})), self._config)
        if found.get("format") != _FORMAT or changed or found.get("seed") != self._seed:
            shown = "; ".join(changed[:5]) or f"seed: {found.get('seed')} -> {self._seed}"
            raise UserError(
                f"{self.folder}: holds another study ({shown}); choose another --output_dir, give the old "
                "values to go on with that study, or --fresh to move it aside and start over"
            )
        self.trials = [Trial(**entry) for entry in found["trials"]]
        self.seconds = float(found["seconds"])
        self.oracle = found["oracle"]

    def save(self, oracle: dict[str, Any], seconds: float) -> None:
        """Writes the file.

        Args:
            oracle: snapshot of the search.
            seconds: time that the study has taken, over all starts.
        """
        self.oracle, self.seconds = oracle, seconds
        storage.write_json(
            self.path,
            {
                "format": _FORMAT,
                "file": self._study.file,
                "study": self._study.fingerprint(),
                "config": self._config,
                "seed": self._seed,
                "seconds": round(seconds, 3),
                "outcome": self.outcome,
                "trials": [trial.plain() for trial in self.trials],
                "oracle": oracle,
            },
        )
