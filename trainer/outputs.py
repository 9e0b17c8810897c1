"""The output folder of a run: whose it is, how far it got, and what may be written. Adopters: leave."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator
from typing import Any, Literal

import yaml

from trainer import storage
from trainer.config import Config
from trainer.environment import Paths
from trainer.errors import UserError

log = logging.getLogger("trainer")

# Keys that may change between two starts of one run: they alter speed or form, never the weights.
FREE_KEYS = (
    "output_dir",
    "checkpoint",
    "export",
    "report",
    "strategy",
    "data.cache_dir",
    "data.project",
    "data.compression",
    "data.retry_seconds",
    "training.steps_per_call",
)

State = Literal["new", "started", "finished"]


def resolved_yaml(config: Config) -> str:
    """Returns the whole config as YAML that loads to an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100)


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def differing_keys(old: dict[str, Any], new: dict[str, Any], free: tuple[str, ...] = FREE_KEYS) -> list[str]:
    """Returns `key: old -> new` for each key that two configs differ in and that matters to the weights.

    Args:
        old: a config as plain values.
        new: another.
        free: keys and sections that may differ.
    """
    before, after = dict(_leaves(old)), dict(_leaves(new))
    starts = tuple(f"{key}." for key in free)
    return [
        f"{key}: {before.get(key)!r} -> {after.get(key)!r}"
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key) and not f"{key}.".startswith(starts)
    ]


def completed(old: Any) -> dict[str, Any]:
    """Returns a config that an earlier start wrote, with the defaults of keys that came to be since then."""
    if not isinstance(old, dict):
        return {}
    try:
        return Config(**old).model_dump(mode="json")
    except ValueError:  # keys that are no more: the comparison names them
        return old


class RunFolder:
    """The output folder of one run.

    Attributes:
        paths: where its parts are.
        state: "new", "started" (an earlier start did not finish) or "finished".
    """

    def __init__(self, paths: Paths, config: Config, fresh: bool = False) -> None:
        """Looks at the folder and, unless it belongs to another config, writes config.yaml into it.

        Args:
            paths: folders of the run.
            config: this run's config.
            fresh: move what an earlier run left aside and start over.

        Raises:
            UserError: the folder holds a run of another config.
        """
        self.paths = paths
        self._config = config
        if fresh:
            self._set_aside()
        status = storage.read_json(paths.file("status.json")) or {}
        self.state: State = "new"
        if storage.exists(paths.file("study.json")):
            raise UserError(
                f"{paths.output}: holds a study; choose another output_dir, or --fresh to move it aside"
            )
        if storage.exists(paths.file("config.yaml")):
            if self._has_work():  # a run that ended on a mistake before its first checkpoint holds nothing
                self._refuse_other_config()
                self.state = "finished" if status.get("state") == "succeeded" else "started"
        elif self.has_model():
            raise UserError(
                f"{paths.model}: holds a saved_model.pb of something else, which would be overwritten; "
                "choose another output_dir, or --fresh to move it aside"
            )
        self.attempt = int(status.get("attempt", 0)) + 1

    def _has_work(self) -> bool:
        return self.has_model() or bool(storage.listing(self.paths.checkpoints))

    def _set_aside(self) -> None:
        parts = [self.paths.output, self.paths.model, self.paths.checkpoints, self.paths.logs]
        parts += [f"{self.paths.model}_examples"]
        inside = f"{self.paths.output}/"
        for part in parts:
            if part != self.paths.output and part.startswith(inside):
                continue  # moved with the folder it lies in
            if aside := storage.move_aside(part):
                log.info("--fresh: moved %s to %s", part, aside)

    def _refuse_other_config(self) -> None:
        path = self.paths.file("config.yaml")
        try:
            old = yaml.safe_load(storage.read_text(path))
        except yaml.YAMLError as error:
            raise UserError(f"{path}: is no YAML any more; --fresh moves this run aside") from error
        changed = differing_keys(completed(old), self._config.model_dump(mode="json"))
        if changed:
            shown = "; ".join(changed[:5]) + (f"; and {len(changed) - 5} more" if len(changed) > 5 else "")
            raise UserError(
                f"{self.paths.output}: holds a run of another config ({shown}); choose another --output_dir, "
                "give the old values to go on with that run, or --fresh to move it aside and start over"
            )

    def claim(self) -> None:
        """Marks the folder as this run's: config.yaml and status.json."""
        storage.write_text(self.paths.file("config.yaml"), resolved_yaml(self._config))
        self.status("running")

    def status(self, state: str, **more: Any) -> None:
        """Writes status.json: `state` is running, interrupted, failed or succeeded."""
        content = {
            "state": state,
            "attempt": self.attempt,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **more,
        }
        storage.write_json(self.paths.file("status.json"), content)

    def failed(self, error: BaseException) -> None:
        """Writes the failure with its traceback, for whoever looks at the folder alone."""
        text = "".join(traceback.format_exception(error))
        self.status("failed", error=str(error) or type(error).__name__, traceback=text)

    def write_json(self, name: str, value: Any) -> None:
        """Writes a JSON file at the top of the folder."""
        storage.write_json(self.paths.file(name), value)

    def write_text(self, name: str, text: str) -> None:
        """Writes a text file at the top of the folder."""
        storage.write_text(self.paths.file(name), text)

    def read_text(self, name: str) -> str | None:
        """Reads a text file at the top of the folder; None when it isn't there."""
        path = self.paths.file(name)
        return storage.read_text(path) if storage.exists(path) else None

    def has_model(self) -> bool:
        """Returns whether the model is where this run would put it."""
        return storage.exists(f"{self.paths.model}/saved_model.pb")

    def read_json(self, name: str) -> Any:
        """Reads a JSON file at the top of the folder; None when it isn't there."""
        return storage.read_json(self.paths.file(name))
