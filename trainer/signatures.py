"""The serving signature: names and types of raw columns, and the graph from them to outputs. Adopters: leave.

Names in a signature are letters, digits and underscores: `geo.lat` becomes `geo_lat` (see `signature_name`).

Inputs that are left out: the signature carries the missing-value marker of each input as its default
(SignatureDef.defaults, and a placeholder with default in the graph). TensorFlow Serving puts it in for inputs
that a gRPC Predict request leaves out (`GetInputValues` in its predict_util.cc); its REST interface and
`tf.saved_model.load` ask for every input. A default is one value for all rows: in the graph an input of one
value is stretched to the batch.

Outputs (float32, text as string; the first dimension of each is the batch, as the server asks):
    binary       probability [None] of classes[1], probabilities [None, 2], label [None], classes [None, 2]
    multiclass   probabilities [None, K], label [None], classes [None, K]
    regression   prediction [None]
    multilabel   probabilities [None, K], classes [None, K]
    and with data.key the key column, handed through under its own name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trainer.errors import UserError
from trainer.request import EXAMPLES_INPUT, MISSING_INTEGER, MISSING_NUMBER, Input

if TYPE_CHECKING:
    import pyarrow as pa
    import tensorflow as tf

    from trainer.config import Config
    from trainer.features import Features

KeyType = Literal["string", "int64"]
OUTPUTS = {
    "binary": ("probability", "probabilities", "label", "classes"),
    "multiclass": ("probabilities", "label", "classes"),
    "regression": ("prediction",),
    "multilabel": ("probabilities", "classes"),
}
_KEYWORDS = frozenset(  # of every Python that may load the model, so not those of the one at hand
    (
        *("False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue"),
        *("def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in"),
        *(
            "is",
            "lambda",
            "nonlocal",
            "not",
            "or",
            "pass",
            "raise",
            "return",
            "try",
            "while",
            "with",
            "yield",
        ),
    )
)


def signature_name(column: str) -> str:
    """Returns the name of a source column in the signature.

    Everything but ASCII letters, digits and underscores becomes an underscore (`geo.lat` -> `geo_lat`); a
    name that doesn't start with a letter gets `column_` before it, a Python keyword an underscore behind it.
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", column)
    if not name[:1].isalpha():
        name = f"column_{name.lstrip('_')}"
    return f"{name}_" if name in _KEYWORDS else name


def signature_inputs(features: Features, config: Config, key_type: KeyType = "string") -> dict[str, Input]:
    """Returns the inputs of the signature by name: the raw columns and the key.

    Args:
        features: The fitted features.
        config: The run config; its `data.key` is handed through.
        key_type: Type of the key column.

    Raises:
        UserError: Two columns get the same name (TensorFlow doesn't tell upper from lower case here), or the
            key has the name of an output.
    """
    inputs: dict[str, Input] = {}
    for raw in features.raw_inputs:
        missing = MISSING_NUMBER if raw.dtype == "float32" else raw.default
        name = signature_name(raw.name)
        inputs[name] = Input(name, raw.name, raw.dtype, tuple(raw.shape), missing)
    key = config.data.key
    if key is not None and key not in [raw.name for raw in features.raw_inputs]:
        name = signature_name(key)
        missing = MISSING_INTEGER if key_type == "int64" else ""
        inputs.setdefault(name, Input(name, key, key_type, (), missing))
    columns = [raw.name for raw in features.raw_inputs] + ([key] if key else [])
    taken: dict[str, str] = {}
    for column in dict.fromkeys(columns):
        name = signature_name(column)
        if (other := taken.setdefault(name.lower(), column)) != column:
            raise UserError(
                f"serving signature: the columns {other!r} and {column!r} would both be called {name!r} in a "
                "request; rename one of them in the source"
            )
    if key is not None and signature_name(key) in OUTPUTS[config.task]:
        raise UserError(
            f"data.key: the column {key!r} has the name of an output of task {config.task}; "
            "rename it in the source"
        )
    return inputs


def key_type(schema: pa.Schema, config: Config) -> KeyType:
    """Returns the type of the key column in requests: integers stay integers, all else is text."""
    import pyarrow as pa

    key = config.data.key
    if key is None or key not in schema.names:
        return "string"
    return "int64" if pa.types.is_integer(schema.field(key).type) else "string"


def graph(
    model: Any, features: Features, config: Config, inputs: Mapping[str, Input]
) -> tuple[tf.Module, Callable[[Mapping[str, tf.Tensor]], dict[str, tf.Tensor]]]:
    """Returns the module that owns all state, and the function from batched inputs (by name) to outputs."""
    import tensorflow as tf

    from trainer import losses
    from trainer.preprocess import Preprocess

    task, names = features.label.task, list(features.label.classes)
    module = tf.Module(name="exported")
    module.preprocess = Preprocess(features)
    # The variables and not the model: a Keras model in the object graph would need Keras to load.
    module.model_variables = [variable.value for variable in model.weights]
    key = config.data.key

    def outputs(tensors: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        raw = {}
        for name, spec in inputs.items():
            value = tensors[name]
            if spec.dtype == "float32":
                value = tf.where(value <= MISSING_NUMBER, np.float32(np.nan), value)
            raw[spec.column] = value
        handed = raw[key] if key is not None else None
        wanted = {item.name for item in features.raw_inputs}
        encoded = module.preprocess({name: value for name, value in raw.items() if name in wanted})
        logits = model({name: encoded[name] for name in ("numeric", "categorical")}, training=False)
        result = _named(task, names, tf.cast(losses.predictions(task, logits), tf.float32))
        if key is not None:
            result[signature_name(key)] = tf.identity(handed)
        return result

    return module, outputs


def _named(task: str, names: list[str], values: tf.Tensor) -> dict[str, tf.Tensor]:
    import tensorflow as tf

    if task == "regression":
        return {"prediction": values}
    classes = tf.constant(names, tf.string)
    every_row = tf.tile(classes[tf.newaxis], [tf.shape(values)[0], 1])
    if task == "binary":
        label = tf.gather(classes, tf.cast(values >= 0.5, tf.int32))
        both = tf.stack([1.0 - values, values], axis=-1)
        return {"probability": values, "probabilities": both, "label": label, "classes": every_row}
    if task == "multiclass":
        label = tf.gather(classes, tf.argmax(values, axis=-1))
        return {"probabilities": values, "label": label, "classes": every_row}
    return {"probabilities": values, "classes": every_row}


def columns_signature(inputs: Mapping[str, Input], outputs: Callable[..., Any]) -> Any:
    """Returns the tf.function of `serving_default`, with defaults for inputs that a request leaves out."""
    import tensorflow as tf

    specs = list(inputs.values())

    def serve(*values: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.reduce_max(tf.stack([tf.shape(value)[0] for value in values]))
        stretched = {}
        for spec, value in zip(specs, values, strict=True):  # one value counts for every row
            shape = tf.concat([[rows], tf.shape(value)[1:]], axis=0)
            stretched[spec.name] = tf.ensure_shape(tf.broadcast_to(value, shape), [None, *spec.shape])
        return outputs(stretched)

    # TensorFlow takes the defaults of Python parameters as those of the signature. The parameters' own names
    # don't matter, as the TensorSpecs carry the names; they must be sorted to stay in step with the specs.
    serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                f"input_{number:05d}",
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=tf.constant(spec.filled(1), spec.dtype),
            )
            for number, spec in enumerate(specs)
        ]
    )
    signature = [tf.TensorSpec([None, *spec.shape], spec.dtype, name=spec.name) for spec in specs]
    return tf.function(serve, input_signature=signature, autograph=False)


def examples_signature(inputs: Mapping[str, Input], outputs: Callable[..., Any]) -> Any:
    """Returns the tf.function that parses serialized tf.Example records in the graph."""
    import tensorflow as tf

    wanted: dict[str, Any] = {}
    for spec in inputs.values():
        kind = tf.int64 if spec.dtype == "bool" else tf.as_dtype(spec.dtype)
        if spec.shape and spec.shape[0] is None:
            wanted[spec.column] = tf.io.RaggedFeature(kind)
        else:
            default = spec.filled(1)[0].tolist() if spec.shape else spec.absent
            wanted[spec.column] = tf.io.FixedLenFeature(spec.shape, kind, default_value=default)

    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(examples, wanted)
        tensors = {}
        for spec in inputs.values():
            value = parsed[spec.column]
            if isinstance(value, tf.RaggedTensor):
                value = value.to_tensor(default_value=tf.constant(spec.absent, value.dtype))
            tensors[spec.name] = tf.cast(value, tf.bool) if spec.dtype == "bool" else value
        return outputs(tensors)

    signature = [tf.TensorSpec([None], tf.string, name=EXAMPLES_INPUT)]
    return tf.function(serve, input_signature=signature, autograph=False)
