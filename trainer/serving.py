"""Predictions from an exported SavedModel alone, in Python or as a model server would give. Adopters: leave.

Nothing of the training code is needed but this module: `Served` goes by the SavedModel and by the
`assets.extra/metadata.json` that the export put into it. Reading JSON needs TensorFlow and NumPy only, so
the module also works beside a much older TensorFlow, such as a serving image has.

What a request looks like, and how a missing value is written, is told in `request.py`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer import storage
from trainer.errors import UserError
from trainer.request import (
    EXAMPLES_INPUT,
    MISSING_INTEGER,
    NUMPY,
    Input,
    as_bytes,
    decode,
    json_output,
    json_value,
    objects,
    parse,
)

if TYPE_CHECKING:
    import pyarrow as pa

Body = str | bytes | Mapping[str, Any]
METADATA = "assets.extra/metadata.json"
SIGNATURE = "serving_default"


class Served:
    """A SavedModel that `export` wrote.

    Attributes:
        folder: Where it lies.
        metadata: The content of its metadata.json.
        inputs: Inputs by their name in a request, the key column among them.
        takes_examples: Whether it takes serialized tf.Example records.
    """

    def __init__(self, folder: str) -> None:
        """Loads a SavedModel.

        Args:
            folder: The folder with saved_model.pb, local or gs://.

        Raises:
            UserError: There is no such model, or another program wrote it.
        """
        import tensorflow as tf

        self.folder = folder.rstrip("/")
        if not storage.exists(f"{self.folder}/saved_model.pb"):
            if not storage.exists(self.folder) and not storage.is_remote(self.folder):
                raise UserError(f"{self.folder}: no such folder; expected that of a run, or its model/")
            raise UserError(
                f"{self.folder}: no saved_model.pb in this folder; expected the model/ folder of a run"
            )
        metadata = storage.read_json(f"{self.folder}/{METADATA}")
        if not metadata:
            raise UserError(f"{self.folder}: no {METADATA}: this SavedModel was not exported by this trainer")
        self.metadata: dict[str, Any] = metadata
        self.inputs = {
            name: Input(name, spec["column"], spec["dtype"], tuple(spec["shape"]), spec["missing"])
            for name, spec in metadata["inputs"].items()
        }
        self.takes_examples = metadata["takes_examples"]
        self._loaded = tf.saved_model.load(self.folder)  # kept: it owns the variables of the function
        self._function = self._loaded.signatures[SIGNATURE]

    @property
    def task(self) -> str:
        """Task of the model."""
        return str(self.metadata["task"])

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes (or labels) in output order."""
        return tuple(self.metadata["label"]["classes"])

    @property
    def columns(self) -> tuple[str, ...]:
        """Source columns that the model reads, without the key."""
        key = (self.metadata["key"] or {}).get("column")
        return tuple(spec.column for spec in self.inputs.values() if spec.column != key)

    @property
    def output_specs(self) -> dict[str, dict[str, Any]]:
        """Type, and shape of one row, of each output."""
        return {
            name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()[1:]}
            for name, spec in sorted(self._function.structured_outputs.items())
        }

    # --- tensors ------------------------------------------------------------------------------------

    def run(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls the signature once.

        Args:
            tensors: [rows, *shape] by name of the input; one that is left out takes its default.

        Returns:
            Outputs by name, [rows, ...]; text as str.
        """
        import tensorflow as tf

        if self.takes_examples:
            given = {EXAMPLES_INPUT: tf.constant(tensors[EXAMPLES_INPUT], tf.string)}
        else:
            rows = max((len(value) for value in tensors.values()), default=1)
            given = {}
            for name, spec in self.inputs.items():
                value = tensors[name] if name in tensors else spec.filled(rows)
                given[name] = tf.constant(value, spec.dtype, shape=np.shape(value))
        outputs = {name: value.numpy() for name, value in self._function(**given).items()}
        return {name: _decoded(value) for name, value in outputs.items()}

    def predict(
        self, rows: pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]], batch_size: int = 4096
    ) -> dict[str, np.ndarray]:
        """Predicts raw rows as they come from a source.

        Args:
            rows: A table, or dicts. Nulls and columns that are absent count as missing values, columns that
                the model doesn't know are left alone, types are cast as for training.
            batch_size: Rows of one call.

        Returns:
            Outputs by name, [rows, ...].

        Raises:
            UserError: A column of a type that can't be cast.
        """
        tensors = self.tensors(rows)
        count = _rows(rows)
        if self.takes_examples:
            tensors = {EXAMPLES_INPUT: objects(self.serialize(tensors, count))}
        starts = range(0, count, batch_size) if count else [0]
        parts = [
            self.run({name: value[start : start + batch_size] for name, value in tensors.items()})
            for start in starts
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def tensors(self, rows: pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Turns raw rows into the tensors of all inputs, with missing values in place of nulls.

        Args:
            rows: As for `predict`.

        Returns:
            [rows, *shape] by name of the input.
        """
        table, count = _table(rows), _rows(rows)
        return {name: _tensor(table, spec, count) for name, spec in self.inputs.items()}

    def serialize(self, tensors: Mapping[str, np.ndarray], rows: int) -> list[bytes]:
        """Turns tensors into serialized tf.Example records, which leave missing values out."""
        import tensorflow as tf

        records = []
        for row in range(rows):
            example = tf.train.Example()
            for name, value in tensors.items():
                spec = self.inputs[name]
                values = _present(value[row], spec)
                if not values:
                    continue
                feature = example.features.feature[spec.column]
                if spec.dtype == "string":
                    feature.bytes_list.value.extend(as_bytes(item) for item in values)
                elif spec.dtype == "float32":
                    feature.float_list.value.extend(values)
                else:
                    feature.int64_list.value.extend(int(item) for item in values)
            records.append(example.SerializeToString())
        return records

    # --- JSON ---------------------------------------------------------------------------------------

    def request(self, rows: pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the body of a request for raw rows: every input in every row, markers for missing values.

        The body is strict JSON (no NaN), in row format.
        """
        tensors = self.tensors(rows)
        count = _rows(rows)
        if self.takes_examples:
            records = self.serialize(tensors, count)
            return {"instances": [{"b64": base64.b64encode(record).decode()} for record in records]}
        return {
            "instances": [
                {name: json_value(value[row], self.inputs[name]) for name, value in tensors.items()}
                for row in range(count)
            ]
        }

    def decode(
        self, body: str | bytes | Mapping[str, Any], *, defaults: bool = False
    ) -> dict[str, np.ndarray]:
        """Decodes the body of a predict request as the model server does, as strict about types and keys.

        Args:
            body: JSON text, or the value it stands for.
            defaults: Accept rows without some of the inputs, which the REST interface refuses; they are then
                missing in all rows, as over gRPC.

        Returns:
            [rows, ...] by name of the input.

        Raises:
            RequestError: The server would refuse it.
        """
        specs = self.inputs
        if self.takes_examples:
            specs = {EXAMPLES_INPUT: Input(EXAMPLES_INPUT, "", "string", (), "")}
        return decode(body, specs, defaults=defaults)

    def predict_json(
        self, body: str | bytes | Mapping[str, Any], *, defaults: bool = False
    ) -> dict[str, Any]:
        """Answers a predict request as the model server does.

        Args:
            body: As for `decode`.
            defaults: As for `decode`.

        Returns:
            {"predictions": [one object (or the bare value of a single output) a row]}; for a request in
            column format {"outputs": ...}.

        Raises:
            RequestError: The server would refuse it.
        """
        value = body if isinstance(body, Mapping) else parse(body)
        outputs = {
            name: json_output(result, name)
            for name, result in self.run(self.decode(value, defaults=defaults)).items()
        }
        if "inputs" in value:
            return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}
        if len(outputs) == 1:
            return {"predictions": next(iter(outputs.values()))}
        rows = len(next(iter(outputs.values())))
        return {
            "predictions": [{name: result[row] for name, result in outputs.items()} for row in range(rows)]
        }


# --- raw rows -> tensors ----------------------------------------------------------------------------


def _rows(rows: Any) -> int:
    return int(rows.num_rows) if hasattr(rows, "num_rows") else len(rows)


def _table(rows: Any) -> pa.Table:
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return rows
    names = list(dict.fromkeys(name for row in rows for name in row))
    arrays = []
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserError(f"rows: column {name!r} holds values of several types ({error})") from error
    return pa.Table.from_arrays(arrays, names=names)


def _tensor(table: pa.Table, spec: Input, rows: int) -> np.ndarray:
    """Reads one column as training reads it: the same module says what missing is and what text form is."""
    from trainer.data import columns, nested

    if spec.column in table.schema.names:
        source = columns.column(table, spec.column, f"input {spec.name!r}")
    else:
        batch = table.combine_chunks()
        try:
            array = nested.column(batch.to_batches()[0], spec.column) if batch.num_rows else None
        except (KeyError, IndexError):
            array = None
        if array is None:
            return spec.filled(rows)
        source = columns.Column(array, spec.column, f"input {spec.name!r}")
    return _lists(source, spec) if spec.shape else _scalars(source, spec)


def _scalars(source: Any, spec: Input) -> np.ndarray:
    from trainer.data import columns

    if spec.dtype == "float32":
        return columns.float32(source)
    if spec.dtype == "int64":
        values, absent = columns.int64(source)
        return np.where(absent, MISSING_INTEGER, values)
    if spec.dtype == "bool":
        flags = columns.boolean(source)
        return np.where(flags < 0, bool(spec.missing), flags > 0)
    texts = columns.text(source)
    distinct = np.array([*(text or "" for text in texts.texts.to_pylist()), ""], np.object_)
    return distinct[texts.indices]  # index -1, a null, takes the last


def _lists(source: Any, spec: Input) -> np.ndarray:
    import pyarrow as pa

    from trainer.data import columns

    if pa.types.is_null(source.array.type):
        return spec.filled(len(source.array))
    expected = "lists of numbers" if spec.dtype == "float32" else "lists of text or integers"
    lists = columns.lists(source, expected)
    length = spec.shape[0]
    if length is None:
        length = int(lists.lengths.max(initial=0))
    else:
        wrong = np.flatnonzero((lists.lengths != length) & (lists.lengths != 0))
        if len(wrong):
            raise UserError(
                f"input {spec.name!r}: row {int(wrong[0])} of column {spec.column!r} has "
                f"{int(lists.lengths[wrong[0]])} entries, expected {length}"
            )
    result: np.ndarray = np.full((len(lists.lengths), length), spec.absent, NUMPY[spec.dtype])
    entries = columns.Column(lists.values, source.name, source.owner)
    result[lists.row, lists.place] = _scalars(entries, Input(spec.name, "", spec.dtype, (), spec.missing))
    return result


def _is_missing(value: Any, spec: Input) -> bool:
    if spec.dtype == "float32":
        return bool(np.isnan(value))
    return spec.dtype != "bool" and value in (spec.missing, b"")


def _present(value: Any, spec: Input) -> list[Any]:
    """Returns the values of one row for a tf.Example: nothing for a missing one, lists without padding."""
    if not spec.shape:
        return [] if _is_missing(value, spec) else [value]
    items = list(value)
    if spec.shape[0] is None:
        while items and _is_missing(items[-1], spec):
            items.pop()
    return [] if all(_is_missing(item, spec) for item in items) else items


def _decoded(value: np.ndarray) -> np.ndarray:
    if value.dtype != np.object_:
        return value
    flat = [item.decode(errors="replace") if isinstance(item, bytes) else item for item in value.ravel()]
    return objects(flat).reshape(value.shape)
