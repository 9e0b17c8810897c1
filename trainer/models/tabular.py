"""The architectures: linear, dnn, wide and deep, deep and cross. Adopters: change.

A model is a function from a `Parts` (the inputs, ready for use) to logits [batch, outputs]. To add one, say a
factorisation machine (Rendle 2010), in three edits:

1. Write the function, in this file or in one of its own:

       def factorization_machine(parts: Parts) -> Tensor:
           embeddings = parts.embeddings(16)                       # [batch, features, 16]
           square_of_sum = keras.ops.square(keras.ops.sum(embeddings, axis=1))
           sum_of_squares = keras.ops.sum(keras.ops.square(embeddings), axis=1)
           pairs = 0.5 * (square_of_sum - sum_of_squares)          # [batch, 16]
           return linear(parts) + parts.output(pairs)

2. Name it in `MODELS` below.
3. Add the name to `ModelConfig.name` in `config.py` (and any setting of its own next to it), then run with
   `--model.name=factorization_machine`.

Nothing else has to know: training, several devices, mixed precision, export and the report go by the inputs
and the logits alone. Layers that keep a name of their own (`name=`) keep their checkpoints readable.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras

from trainer.models.embedding import FusedEmbedding
from trainer.models.start import Start, start_of

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.features import LabelSpec, Layout

Tensor = Any  # a Keras tensor: symbolic while the model is built


def build(config: Config, layout: Layout, outputs: int, label: LabelSpec | None = None) -> keras.Model:
    """Builds the model that `model.name` asks for.

    Args:
        config: The run config; its `model`, `seed` and `training.mixed_precision` are used.
        layout: The encoded inputs: which column is what.
        outputs: Width of the logits: 1 (binary, regression), the number of classes, or of labels.
        label: What the train split taught about the label: the output starts there (see `start.py`). Without
            it the output starts at zero.

    Returns:
        A functional model from {"numeric": float32 [batch, N], "categorical": int32 [batch, C]} to float32
        logits [batch, outputs]. N or C may be 0. The same config gives the same starting weights.
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(config.training.mixed_precision)  # every layer made below follows it
    try:
        begin = start_of(label, config.training.class_weights) if label else Start((0.0,) * outputs)
        parts = Parts(config, layout, outputs, begin.bias)
        logits = MODELS[config.model.name](parts)
        if (begin.scale, begin.offset) != (1.0, 0.0):  # the layers learn a standardised label
            logits = keras.layers.Rescaling(begin.scale, begin.offset, name="label_units", dtype="float32")(
                logits
            )
        return keras.Model(parts.inputs, logits, name=config.model.name)
    finally:
        keras.config.set_dtype_policy(before)


# --- architectures ----------------------------------------------------------------------------------


def linear(parts: Parts) -> Tensor:
    """A weight for each number and one for each category: (logistic or softmax) regression."""
    terms = []
    if parts.has_categories:
        weights = parts.embeddings(parts.outputs, name="wide_table", initial_range=0.0)
        terms.append(keras.ops.cast(keras.ops.sum(weights, axis=1), "float32"))
    if parts.has_numbers or not terms:
        # From zero: a convex problem needs no random start, and a large one takes long to unlearn.
        terms.append(parts.output(parts.numbers, name="wide_numbers", kernel_initializer="zeros"))
    return terms[0] if len(terms) == 1 else keras.layers.Add(name="linear", dtype="float32")(terms)


def dnn(parts: Parts) -> Tensor:
    """Embeddings and numbers, side by side, through hidden layers."""
    return parts.output(parts.hidden(parts.together()))


def wide_deep(parts: Parts) -> Tensor:
    """The sum of `linear` and `dnn`, trained together (Cheng et al. 2016, "Wide & Deep Learning")."""
    return keras.layers.Add(name="wide_and_deep", dtype="float32")([linear(parts), dnn(parts)])


def dcn(parts: Parts) -> Tensor:
    """Cross layers beside hidden layers (Wang et al. 2021, "DCN V2", the parallel structure)."""
    start = parts.together()
    crossed = start
    for i in range(parts.config.model.cross_layers):
        crossed = Cross(parts.dense(start.shape[-1], name=f"cross_{i}_kernel"), name=f"cross_{i}")(
            [start, crossed]
        )
    return parts.output(keras.layers.Concatenate(name="crossed_and_deep")([crossed, parts.hidden(start)]))


MODELS: dict[str, Callable[[Parts], Tensor]]


class Cross(keras.layers.Layer):
    """One full-rank cross layer: x0 * (W x + b) + x, equation 1 of Wang et al. 2021 (arXiv:2008.13535).

    Args:
        dense: The layer that computes W x + b, as wide as x0.
        **kwargs: Of `keras.layers.Layer`.
    """

    def __init__(self, dense: keras.layers.Dense, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dense = dense

    def call(self, inputs: list[Tensor]) -> Tensor:
        """Returns the crossed features [batch, width] of [x0, x], each [batch, width]."""
        start, x = inputs
        return start * self.dense(x) + x


# --- what architectures are made of -----------------------------------------------------------------


class Parts:
    """The inputs of a model and the pieces that architectures share.

    Attributes:
        config: The run config.
        inputs: The model's inputs by name.
        numbers: float32 [batch, dense]: the columns of `numeric` that dense layers may read.
        outputs: Width of the logits.
    """

    def __init__(self, config: Config, layout: Layout, outputs: int, bias: Sequence[float] = ()) -> None:
        self.config = config
        self.outputs = outputs
        self._bias = list(bias or (0.0,) * outputs)
        self._layout = layout
        width = sum(slot.width for slot in layout.slots)
        self.inputs = {
            "numeric": keras.Input((len(layout.numeric),), dtype="float32", name="numeric"),
            "categorical": keras.Input((width,), dtype="int32", name="categorical"),
        }
        self.has_numbers = layout.dense > 0
        self.has_categories = bool(layout.slots)
        self.numbers = self.inputs["numeric"][:, : layout.dense]  # bag weights stand behind them

    def seed(self, name: str) -> int:
        """Returns a seed for the layer `name`: the same whatever else is built, and in whatever order."""
        return zlib.crc32(f"{self.config.seed}/{name}".encode()) & 0x7FFFFFFF

    def embeddings(self, dim: int, *, name: str = "table", initial_range: float = 0.05) -> Tensor:
        """Returns [batch, features, dim] from a table of its own; bags come as weighted means."""
        layer = FusedEmbedding(
            self._layout,
            dim,
            initial_range=initial_range,
            row_l2=self.config.model.embedding_l2,
            seed=self.seed(name),
            name=name,
        )
        return layer(self.inputs["categorical"], self.inputs["numeric"])

    def together(self) -> Tensor:
        """Returns all features side by side: [batch, features * embedding_dim + dense]."""
        parts = []
        if self.has_categories:
            dim = self.config.model.embedding_dim
            parts.append(keras.layers.Flatten(name="embeddings")(self.embeddings(dim)))
        if self.has_numbers or not parts:
            parts.append(self.numbers)
        return parts[0] if len(parts) == 1 else keras.layers.Concatenate(name="together")(parts)

    def dense(self, units: int, *, name: str, **kwargs: Any) -> keras.layers.Dense:
        """Returns a dense layer with the configured penalty and a start of its own."""
        l2 = self.config.model.l2
        kwargs.setdefault("kernel_initializer", keras.initializers.GlorotUniform(seed=self.seed(name)))
        return keras.layers.Dense(
            units,
            kernel_regularizer=keras.regularizers.L2(l2) if l2 else None,
            name=name,
            **kwargs,
        )

    def hidden(self, x: Tensor) -> Tensor:
        """Returns `x` after the configured hidden layers."""
        model = self.config.model
        for i, units in enumerate(model.hidden_units):
            x = self.dense(units, name=f"hidden_{i}", use_bias=not model.batch_norm)(x)
            if model.batch_norm:
                # Synchronized: statistics of the global batch, so the number of replicas is no setting.
                x = keras.layers.BatchNormalization(synchronized=True, name=f"norm_{i}")(x)
            x = keras.layers.Activation(model.activation, name=f"activation_{i}")(x)
            if model.dropout:
                name = f"dropout_{i}"
                x = keras.layers.Dropout(model.dropout, seed=self.seed(name), name=name)(x)
        return x

    def output(self, x: Tensor, *, name: str = "logits", **kwargs: Any) -> Tensor:
        """Returns logits [batch, outputs]; always in float32, whatever the layers before compute in."""
        bias = keras.initializers.Constant(self._bias)
        self._bias = [0.0] * self.outputs  # the sum of two outputs starts there, not each of them
        return self.dense(self.outputs, name=name, dtype="float32", bias_initializer=bias, **kwargs)(x)


MODELS = {"linear": linear, "dnn": dnn, "wide_deep": wide_deep, "dcn": dcn}
