"""The SavedModel: raw columns in, predictions by name out, ready for a model server. Adopters: leave.

`export` does all of it; a run takes the steps apart, so that nothing is published that fails the parity gate:

    copy = export.inference_copy(model, config, build)     # float32, on the CPU
    staged = export.stage(copy, features, config, paths.model, examples=rows)
    parity.run_gate(config, features, staged, rows, predict, ...)
    export.publish(staged, paths.model)

`<folder>/saved_model.pb` has one signature, `serving_default`, with an input for each source column (see
`signatures.py`). `<folder>_examples` is the same model for serialized tf.Example records: a folder of its
own, because clients of the platform can't choose another signature of a model. Both have an `assets.extra/`
with `metadata.json`, which `serving.Served` goes by, and warm-up requests for the server.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import trainer
from trainer import signatures, storage, warmup
from trainer.errors import TrainingError, UserError
from trainer.request import Input
from trainer.serving import METADATA, SIGNATURE, Served

if TYPE_CHECKING:
    import keras
    import pyarrow as pa

    from trainer.config import Config
    from trainer.features import Features
    from trainer.signatures import KeyType

_ENTRIES = ("saved_model.pb", "fingerprint.pb", "variables", "assets", "assets.extra")


@dataclass(frozen=True)
class Staged:
    """A finished export that nobody serves yet.

    Attributes:
        folder: Local folder that holds it; `discard` removes it.
        model: The SavedModel for raw columns.
        examples: The SavedModel for tf.Example records; None without.
    """

    folder: str
    model: str
    examples: str | None

    def discard(self) -> None:
        """Removes what was staged."""
        shutil.rmtree(self.folder, ignore_errors=True)


def inference_copy(model: keras.Model, config: Config, build: Callable[[Config], keras.Model]) -> keras.Model:
    """Returns a float32 copy of a trained model with plain variables on the CPU.

    Serving must not depend on how the model was trained: mixed precision would round differently on the
    server's hardware, and variables of a distribution strategy or of a TPU don't belong in a SavedModel.

    Args:
        model: The trained model.
        config: The run config.
        build: Builds the model of a config, with the same weights in the same order.
    """
    import tensorflow as tf

    plain = config.training.model_copy(update={"mixed_precision": "float32"})
    with tf.device("CPU:0"):
        copy = build(config.model_copy(update={"training": plain}))
        for new, old in zip(copy.weights, model.weights, strict=True):
            if tuple(new.shape) != tuple(old.shape):
                raise TrainingError(f"export: weight {old.path} is {old.shape}, its copy {new.shape}")
            new.assign(tf.identity(old.value))
    return copy


def stage(
    model: keras.Model,
    features: Features,
    config: Config,
    folder: str,
    *,
    key: KeyType = "string",
    examples: pa.Table | None = None,
) -> Staged:
    """Writes the SavedModels to a local scratch folder, loads them and scores rows.

    Args:
        model: {"numeric", "categorical"} -> logits; best an `inference_copy`.
        features: The fitted features.
        config: The run config.
        folder: Where the model will be published: a local scratch folder lies beside it.
        key: Type of the key column (see `signatures.key_type`).
        examples: A few raw rows, for the example request and the warm-up; without, rows of missing values.

    Returns:
        What was staged; `publish` moves it, `discard` removes it.

    Raises:
        UserError: Column names that a signature can't have.
        TrainingError: The model that was written doesn't load, or its predictions are not finite.
    """
    import tensorflow as tf

    inputs = signatures.signature_inputs(features, config, key)
    module, outputs = signatures.graph(model, features, config, inputs)
    scratch = _scratch(folder)
    staged = Staged(
        scratch,
        os.path.join(scratch, "model"),
        os.path.join(scratch, "model_examples") if config.export.examples_signature else None,
    )
    try:
        for path, function, takes_examples in (
            (staged.model, signatures.columns_signature(inputs, outputs), False),
            (staged.examples, signatures.examples_signature(inputs, outputs), True),
        ):
            if path is None:
                continue
            tf.saved_model.save(module, path, signatures={SIGNATURE: function})
            metadata = _metadata(features, config, inputs, takes_examples)
            storage.write_json(os.path.join(path, METADATA), metadata)
            _prove(path, metadata, examples)
    except BaseException:
        staged.discard()
        raise
    return staged


def export(
    model: keras.Model,
    features: Features,
    folder: str,
    config: Config,
    *,
    key: KeyType = "string",
    examples: pa.Table | None = None,
) -> None:
    """Exports a model without the parity gate: `stage`, then `publish`.

    Args:
        model: As for `stage`.
        features: The fitted features.
        folder: Folder that gets saved_model.pb; `<folder>_examples` gets the model for tf.Example records.
        config: The run config.
        key: As for `stage`.
        examples: As for `stage`.
    """
    staged = stage(model, features, config, folder, key=key, examples=examples)
    try:
        publish(staged, folder)
    finally:
        staged.discard()


def publish(staged: Staged, folder: str) -> None:
    """Moves what was staged to its place; saved_model.pb comes last, so nobody loads half a model.

    Args:
        staged: The staged export.
        folder: Local or gs:// folder. An earlier export of the same run in it is replaced; other files in it
            stay.

    Raises:
        UserError: Another model lies there.
    """
    folder = folder.rstrip("/")
    moves = [(staged.model, folder)]
    if staged.examples:
        moves.append((staged.examples, f"{folder}_examples"))
    for source, target in moves:
        _refuse_other(source, target)
    for source, target in moves:
        if _renames(target) and not storage.listing(target):
            if os.path.isdir(target):
                os.rmdir(target)
            storage.move(source, target, last="saved_model.pb")
        else:
            _copy(source, target)


def _scratch(folder: str) -> str:
    """Returns a fresh local scratch folder, on the disk of `folder` where that allows renaming."""
    folder = folder.rstrip("/")
    if not _renames(folder):
        return tempfile.mkdtemp(prefix="export-")
    parent, name = os.path.split(os.path.abspath(folder))
    os.makedirs(parent, exist_ok=True)
    return tempfile.mkdtemp(prefix=f".{name}-", dir=parent)


def _renames(folder: str) -> bool:
    """Whether whole folders can be renamed there: not on gs://, nor in a mounted bucket."""
    return not storage.is_remote(folder) and not storage.is_bucket_mount(folder)


def _refuse_other(source: str, target: str) -> None:
    if not storage.exists(f"{target}/saved_model.pb"):
        return
    new = storage.read_json(f"{source}/{METADATA}")
    old = storage.read_json(f"{target}/{METADATA}") or {}
    if any(old.get(name) != new[name] for name in ("name", "fingerprint", "takes_examples")):
        raise UserError(f"{target}: holds another model, which would be overwritten; choose another folder")


def _copy(source: str, target: str) -> None:
    import tensorflow as tf

    gfile = tf.io.gfile
    if gfile.exists(f"{target}/saved_model.pb"):
        gfile.remove(f"{target}/saved_model.pb")  # first, so that old and new are never mixed
    for name in _ENTRIES:
        path = f"{target}/{name}"
        if gfile.isdir(path):
            gfile.rmtree(path)
    files = [
        os.path.relpath(os.path.join(base, name), source)
        for base, _, names in os.walk(source)
        for name in names
    ]
    for name in sorted(files, key=lambda name: name == "saved_model.pb"):
        gfile.makedirs(os.path.dirname(f"{target}/{name}"))
        gfile.copy(os.path.join(source, name), f"{target}/{name}", overwrite=True)
        if not gfile.exists(f"{target}/{name}"):
            raise TrainingError(f"{target}/{name}: was written and is not there")


def _metadata(
    features: Features, config: Config, inputs: Mapping[str, Input], takes_examples: bool
) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    key = config.data.key
    return {
        "format": 1,
        "name": config.name,
        "template": trainer.__version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "python": platform.python_version(),
        "exported": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "trained_in": config.training.mixed_precision,
        "task": features.label.task,
        "label": {"columns": list(features.label.columns), "classes": list(features.label.classes)},
        "key": {"column": key, "name": signatures.signature_name(key)} if key is not None else None,
        "fingerprint": features.fingerprint,
        "takes_examples": takes_examples,
        "inputs": {
            name: {
                "column": spec.column,
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "missing": spec.missing,
            }
            for name, spec in inputs.items()
        },
        "config": config.model_dump(mode="json"),
    }


def _prove(path: str, metadata: dict[str, Any], examples: pa.Table | None) -> None:
    """Loads a SavedModel, scores rows, and adds an example request and warm-up requests to it."""
    try:
        served = Served(path)
        rows: Any = examples.slice(0, max(warmup.SIZES)) if examples is not None and len(examples) else [{}]
        outputs = served.predict(rows)
        body = served.request(rows.slice(0, 3) if hasattr(rows, "slice") else rows)
        served.decode(body)
    except UserError:
        raise
    except Exception as error:
        raise TrainingError(f"export: the SavedModel was written but can't be used: {error}") from error
    for name, value in outputs.items():
        if value.dtype == np.float32 and not np.isfinite(value).all():
            raise TrainingError(f"export: the model's output {name!r} is not finite for the example rows")
    added = {"outputs": served.output_specs, "example_request": body}
    storage.write_json(os.path.join(path, METADATA), {**metadata, **added})
    warmup.write(served, rows, os.path.join(path, warmup.FILE))
