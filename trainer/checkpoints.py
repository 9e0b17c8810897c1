"""Checkpoints: atomic, verified, kept N and the best, restored to the exact step. Adopters: leave.

A checkpoint is a folder `<step>-<epochs done>` with the variables (TensorFlow's own file format: any
`tf.train.load_checkpoint` reads it), `state.json` and `manifest.json`. The manifest holds sizes and checksums
and is written last, so a folder without one never counts. That is as good as a rename on a local disk, and on
an object store, where a rename is a copy and a delete, it is the only way.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import storage
from trainer.errors import TrainingError, UserError
from trainer.peers import Peers
from trainer.spread import Spread
from trainer.state import RunState

log = logging.getLogger(__name__)

_FOLDER = re.compile(r"^(\d{10})-(\d{4,})(?:-again(\d+))?$")
_PREFIX, _STATE, _MANIFEST = "variables", "state.json", "manifest.json"


class NotFiniteError(TrainingError):
    """The weights that were to be saved hold NaN or infinity."""


class Checkpoints:
    """Saves and restores a model, its optimizer and the state of the run.

    Args:
        folder: Where checkpoints go (local or gs://). Only folders that this class made are ever deleted.
        model: A built `keras.Model`; all of its variables are saved, also the seeds of dropout.
        optimizer: Anything with `.variables`, built; None saves none.
        keep: Newest checkpoints kept, besides the best one.
        settings: From `settings(config)`.
        features_fingerprint: `Features.fingerprint`.
        asynchronous: Write in a thread, from a copy of the variables, while training goes on.
        writes: False on workers that aren't the chief: they write nothing, and read nothing with `spread`.
        peers: the processes of the job.
        spread: copies variables from the chief to the other workers; None for a process alone.
    """

    def __init__(
        self,
        folder: str,
        model: Any,
        optimizer: Any = None,
        *,
        keep: int = 3,
        settings: dict[str, Any] | None = None,
        features_fingerprint: str = "",
        asynchronous: bool = True,
        writes: bool = True,
        peers: Peers | None = None,
        spread: Spread | None = None,
    ) -> None:
        self.folder = folder.rstrip("/")
        self._model, self._optimizer = model, optimizer
        self._keep = keep
        self._settings = settings or {}
        self._fingerprint = features_fingerprint
        self._asynchronous = asynchronous
        self._writes = writes
        self._peers, self._spread = peers or Peers(), spread
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._last: tuple[int, int] | None = None  # (step, epoch) of the newest one of this process

    # --- save ---------------------------------------------------------------------------------------

    def save(self, state: RunState, *, wait: bool = False) -> None:
        """Saves the variables as they are now, with `state`.

        Args:
            state: Where the run stands.
            wait: Return only when the checkpoint is complete.

        Raises:
            NotFiniteError: A weight is NaN or infinite; nothing was written.
        """
        self.wait()
        if (state.step, state.epoch) == self._last:
            return
        names, values = [], []
        for name, variable in self._variables():
            value = variable.numpy()  # a copy: training goes on while it is written
            if name.startswith("model/") and _is_float(value) and not np.isfinite(value).all():
                raise NotFiniteError(
                    f"the weights {_readable(name)} are not finite (NaN or infinity) at step {state.step:,}"
                )
            names.append(name)
            values.append(value)
        content = json.dumps(dataclasses.asdict(state))
        self._last = (state.step, state.epoch)
        if not self._writes:
            return
        if self._asynchronous and not wait:
            self._thread = threading.Thread(
                target=self._write_in_thread,
                args=(state.step, state.epoch, names, values, content, state.best),
            )
            self._thread.start()
        else:
            self._write(state.step, state.epoch, names, values, content, state.best)

    def wait(self) -> None:
        """Returns when nothing is being written any more; raises what went wrong in the writing."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._last = None
            raise failure

    def _write_in_thread(self, *args: Any) -> None:
        try:
            self._write(*args)
        except BaseException as error:
            self._failure = error

    def _write(
        self,
        step: int,
        epoch: int,
        names: list[str],
        values: list[Any],
        content: str,
        best: dict[str, Any] | None,
    ) -> None:
        name = self._free_name(step, epoch)
        folder = f"{self.folder}/{name}"
        try:
            self._write_to(folder, step, epoch, names, values, content)
        except (OSError, tf.errors.OpError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise TrainingError(
                f"the checkpoint {folder} can't be written: {reason}; the ones before are whole, and the "
                "same command goes on from them"
            ) from error
        self._retain(best)

    def _write_to(
        self, folder: str, step: int, epoch: int, names: list[str], values: list[Any], content: str
    ) -> None:
        storage.make_folder(folder)
        with tf.device("/CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=f"{folder}/{_PREFIX}",
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=values,
            )
        storage.write_text(f"{folder}/{_STATE}", content)
        manifest = {
            "version": 1,
            "step": step,
            "epoch": epoch,
            "features": self._fingerprint,
            "settings": self._settings,
            "variables": [
                {"name": n, "shape": list(v.shape), "dtype": tf.as_dtype(v.dtype).name}
                for n, v in zip(names, values, strict=True)
            ],
            "files": {file: _measure(f"{folder}/{file}") for file in storage.listing(folder)},
        }
        storage.write_text(f"{folder}/{_MANIFEST}", json.dumps(manifest, indent=1))

    def _free_name(self, step: int, epoch: int) -> str:
        """A folder is written once: a broken one of the same step stays as it is until it is retired."""
        base = f"{step:010d}-{epoch:04d}"
        taken = set(storage.listing(self.folder))
        name, again = base, 0
        while name in taken:
            again += 1
            name = f"{base}-again{again}"
        return name

    def _retain(self, best: dict[str, Any] | None) -> None:
        newest_first = self._names()
        complete = [n for n in newest_first if storage.exists(f"{self.folder}/{n}/{_MANIFEST}")]
        kept = set(complete[: self._keep])
        if best is not None:
            kept.update([n for n in complete if _order(n)[:2] == (best["step"], best["epoch"])][:1])
        for name in newest_first:
            if name not in kept:
                # The manifest first: a folder that is half gone must not look complete.
                path = f"{self.folder}/{name}"
                if tf.io.gfile.exists(f"{path}/{_MANIFEST}"):
                    tf.io.gfile.remove(f"{path}/{_MANIFEST}")
                tf.io.gfile.rmtree(path)

    # --- restore ------------------------------------------------------------------------------------

    def restore(self) -> RunState | None:
        """Puts the newest complete checkpoint into the variables.

        A broken one is passed over with a warning that says which and why, and the one before is taken.

        Returns:
            Its state, or None if there is none (the variables keep their values).

        Raises:
            UserError: The checkpoint belongs to another model or to other settings.
        """
        self.wait()
        found = self._peers.hand("checkpoint", lambda: _as_dict(self._restore_newest()))
        if found is None:
            return None
        self._from_chief(self._variables())
        state = RunState(**found)
        self._last = (state.step, state.epoch)
        return state

    def _restore_newest(self) -> RunState | None:
        for name in self._names():
            manifest = self._verified(name)
            if manifest is None:
                continue
            self._check_fit(name, manifest)
            self._check_settings(name, manifest)
            self._load(name, manifest, with_optimizer=True)
            state = RunState(**json.loads(storage.read_text(f"{self.folder}/{name}/{_STATE}")))
            log.info("resuming at epoch %d, step %s, from %s", state.epoch, f"{state.step:,}", name)
            return state
        return None

    def load_best(self, state: RunState) -> bool:
        """Puts the weights (not the optimizer) of the best epoch into the model.

        Returns:
            Whether it did; False, with the weights as they were, if no best checkpoint is there.
        """
        self.wait()
        best = state.best
        if best is None or not self._peers.hand("best", lambda: self._load_best(best)):
            return False
        self._from_chief([(name, v) for name, v in self._variables() if name.startswith("model/")])
        self._last = None  # the weights are no longer those of the newest checkpoint
        return True

    def complete(self) -> list[str]:
        """Returns the names of the complete checkpoints, oldest first."""
        return [n for n in reversed(self._names()) if storage.exists(f"{self.folder}/{n}/{_MANIFEST}")]

    def load(self, name: str) -> RunState | None:
        """Puts the weights of one checkpoint into the model.

        Returns:
            Its state; None, with the weights as they were, if it is damaged or gone.

        Raises:
            UserError: It belongs to another model or to other settings.
        """
        manifest = self._verified(name)
        if manifest is None:
            return None
        manifest["variables"] = [v for v in manifest["variables"] if v["name"].startswith("model/")]
        self._check_fit(name, manifest, with_optimizer=False)
        self._check_settings(name, manifest)
        try:
            self._load(name, manifest, with_optimizer=False)
            return RunState(**json.loads(storage.read_text(f"{self.folder}/{name}/{_STATE}")))
        except (OSError, tf.errors.OpError):  # it was retired under our eyes
            return None

    def _load_best(self, best: dict[str, Any]) -> bool:
        for name in self._names():
            if _order(name)[:2] == (best["step"], best["epoch"]):
                manifest = self._verified(name)
                if manifest is not None:
                    self._load(name, manifest, with_optimizer=False)
                    return True
        log.warning("the best checkpoint (step %s) is gone: using the last weights", best["step"])
        return False

    def _from_chief(self, variables: list[tuple[str, tf.Variable]]) -> None:
        """Gives the other workers what the chief has loaded: they need not see its folder."""
        if self._spread is not None:
            self._spread([variable for _, variable in variables])

    def _names(self) -> list[str]:
        """Folders of checkpoints, newest first, complete or not."""
        return sorted((n for n in storage.listing(self.folder) if _FOLDER.match(n)), key=_order, reverse=True)

    def _verified(self, name: str) -> dict[str, Any] | None:
        """Returns the manifest if every file is as it says, else None after a warning."""
        folder = f"{self.folder}/{name}"
        try:
            if not storage.exists(f"{folder}/{_MANIFEST}"):
                reason = "it was never completed"
            else:
                manifest = json.loads(storage.read_text(f"{folder}/{_MANIFEST}"))
                wrong = [
                    f"{file} is damaged (its {what} is not as written)"
                    for file, written in manifest["files"].items()
                    if (what := _difference(f"{folder}/{file}", written))
                ]
                if not wrong:
                    return manifest
                reason = wrong[0]
        except (ValueError, KeyError, TypeError, AttributeError):
            reason = f"{_MANIFEST} is damaged"
        log.warning("checkpoint %s can't be used: %s; trying the one before", folder, reason)
        return None

    def _variables(self) -> list[tuple[str, tf.Variable]]:
        """Everything to save. The names' numbers tell variables apart, not Keras's automatic layer names."""
        model = [_inner(v) for v in self._model.variables]
        known = {id(variable) for variable in model}
        state = [v for v in getattr(self._optimizer, "variables", ()) if id(_inner(v)) not in known]
        parts = (("model", self._model.variables), ("optimizer", state))
        return [
            (f"{part}/{i:04d}/{getattr(v, 'path', v.name).split(':')[0]}", _inner(v))
            for part, variables in parts
            for i, v in enumerate(variables)
        ]

    def _check_fit(self, name: str, manifest: dict[str, Any], with_optimizer: bool = True) -> None:
        mine = [v for v in self._variables() if with_optimizer or v[0].startswith("model/")]
        saved = manifest["variables"]
        problem = ""
        for (own, variable), entry in zip(mine, saved, strict=False):
            same_part = _part(own) == _part(entry["name"])
            if not same_part or list(variable.shape) != entry["shape"]:
                problem = (
                    f"{_readable(entry['name'])} {_times(entry['shape'])}, "
                    f"{'the model has' if same_part else 'this run has ' + _readable(own)} "
                    f"{_times(variable.shape)}"
                )
                break
        if not problem and len(mine) != len(saved):
            problem = f"it has {len(saved)} variables, the model and its optimizer have {len(mine)}"
        if problem:
            raise UserError(
                f"checkpoint does not fit: {problem} (in {self.folder}/{name}); undo the change of the "
                "model, or start anew with --fresh or another output_dir"
            )

    def _check_settings(self, name: str, manifest: dict[str, Any]) -> None:
        theirs = manifest["settings"]
        for key in [*self._settings, *(key for key in theirs if key not in self._settings)]:
            if theirs.get(key) != self._settings.get(key):
                raise UserError(
                    f"{key}: the checkpoint {self.folder}/{name} was written with {theirs.get(key)!r}, this "
                    f"run has {self._settings.get(key)!r}; put it back, or start anew with --fresh or "
                    "another output_dir"
                )
        if manifest["features"] != self._fingerprint:
            raise UserError(
                f"the checkpoint {self.folder}/{name} was written with other feature statistics or "
                "vocabularies (features.json of this run is not the one it was trained with): start anew "
                "with --fresh or another output_dir"
            )

    def _load(self, name: str, manifest: dict[str, Any], *, with_optimizer: bool) -> None:
        chosen = [
            (entry, variable)
            for entry, (_, variable) in zip(manifest["variables"], self._variables(), strict=False)
            if with_optimizer or entry["name"].startswith("model/")
        ]
        with tf.device("/CPU:0"):
            values = tf.raw_ops.RestoreV2(
                prefix=f"{self.folder}/{name}/{_PREFIX}",
                tensor_names=[entry["name"] for entry, _ in chosen],
                shape_and_slices=[""] * len(chosen),
                dtypes=[tf.as_dtype(entry["dtype"]) for entry, _ in chosen],
            )
        for value, (_, variable) in zip(values, chosen, strict=True):
            variable.assign(tf.cast(value, variable.dtype))


# --- small helpers ----------------------------------------------------------------------------------


def _as_dict(state: RunState | None) -> dict[str, Any] | None:
    return None if state is None else dataclasses.asdict(state)


def _order(name: str) -> tuple[int, int, int]:
    match = _FOLDER.match(name)
    if match is None:
        raise ValueError(name)
    return int(match[1]), int(match[2]), int(match[3] or 0)


def _inner(variable: Any) -> tf.Variable:
    """The TensorFlow variable behind a Keras variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _is_float(value: Any) -> bool:
    return bool(tf.as_dtype(value.dtype).is_floating)


def _measure(path: str) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while block := file.read(8 << 20):
            digest.update(block)
            size += len(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _difference(path: str, written: dict[str, Any]) -> str:
    """What is wrong with a file: '' or the name of the property that differs."""
    if not storage.exists(path):
        return "presence"
    if tf.io.gfile.stat(path).length != written["bytes"]:
        return "size"
    return "" if _measure(path) == written else "checksum"


def _part(name: str) -> str:
    return name.split("/", 1)[0]


def _readable(name: str) -> str:
    """model/0003/dense/kernel -> dense/kernel; optimizer/0007/momentum -> optimizer/momentum."""
    part, _, rest = name.split("/", 2)
    return rest if part == "model" else f"{part}/{rest}"


def _times(shape: Sequence[int | None]) -> str:
    return "x".join(str(size) for size in shape) or "scalar"
