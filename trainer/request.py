"""The body of a predict request: what it looks like, decoded as the model server does. Adopters: leave.

Row format, one object a row, keys are the signature's inputs:

    {"instances": [{"carrier": "UA", "distance": 1400}, {"carrier": "", "distance": -1e38}]}

The rules are those of TensorFlow Serving's REST interface (`tensorflow_serving/util/json_tensor.cc`), which
the platform's prebuilt serving containers run; `decode` follows that source:

- Each row names every input and nothing else; `null` is refused, and so are a list of one for a single value
  and a number in quotes.
- An input may be left out only over gRPC: there the server puts in the signature's default, for all rows.
- So a missing value is written as the input's marker: "" for text and times, -1e38 (or any number below, or
  a bare NaN where the client can write one) for numbers, -9223372036854775808 for integers, the imputed
  value for booleans. `metadata.json` names the marker of each input, `request` puts them in.
- Whole numbers need no decimal point, but one beyond 16,777,215 for a float input needs it (`20000000.0`):
  the server refuses integers that float32 might round.
- All lists of one input have the same length within a request; pad with the marker.
- The model for tf.Example records has one input, `examples_bytes`:
  {"instances": [{"b64": "<base64 of a serialized tf.Example>"}]}. Keys of the record are source columns; a
  missing value is left out; a number must be in a float_list (an int64_list is refused for it).
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.errors import UserError, nearest

EXAMPLES_INPUT = "examples_bytes"
MISSING_NUMBER = -1e38  # numbers from here down mean missing: strict JSON has no NaN
MISSING_INTEGER = -(2**63)
_LARGEST_WHOLE = 2**24 - 1  # of a float32 input, where JSON writes it without a decimal point
NUMPY = {"float32": np.float32, "int64": np.int64, "bool": np.bool_, "string": np.object_}


class RequestError(UserError):
    """A request that the server would refuse."""


@dataclass(frozen=True)
class Input:
    """One input of the signature.

    Attributes:
        name: Its name in a request.
        column: The source column.
        dtype: "string", "float32", "int64" or "bool".
        shape: Of one row: (), (length,) or (None,) for lists of any length.
        missing: What a request writes for a missing value (JSON-safe).
    """

    name: str
    column: str
    dtype: str
    shape: tuple[int | None, ...]
    missing: Any

    @property
    def absent(self) -> Any:
        """What a missing value is in a tensor."""
        return math.nan if self.dtype == "float32" else self.missing

    def filled(self, rows: int) -> np.ndarray:
        """Returns [rows, *shape] of missing values (lists of any length: empty)."""
        shape = tuple(0 if size is None else size for size in self.shape)
        return np.full((rows, *shape), self.absent, NUMPY[self.dtype])


def decode(
    body: str | bytes | Mapping[str, Any], specs: Mapping[str, Input], *, defaults: bool = False
) -> dict[str, np.ndarray]:
    """Decodes the body of a predict request as the model server does, as strict about types and keys.

    Args:
        body: JSON text, or the value it stands for.
        specs: The inputs of the signature.
        defaults: Accept rows without some of the inputs, which the REST interface refuses.

    Returns:
        [rows, ...] by name of the input.

    Raises:
        RequestError: The server would refuse it.
    """
    value = body if isinstance(body, Mapping) else parse(body)
    if ("instances" in value) == ("inputs" in value):
        raise RequestError("request: expected one of the keys 'instances' (rows) and 'inputs' (columns)")
    if "inputs" in value:
        return _decode_columns(value["inputs"], specs, defaults)
    return _decode_rows(value["instances"], specs, defaults)


def as_bytes(value: Any) -> bytes:
    """Returns text as UTF-8."""
    return value if isinstance(value, bytes) else str(value).encode()


def objects(values: Sequence[Any]) -> np.ndarray:
    """Returns an object array [n]; NumPy alone would make a matrix of lists."""
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array


def json_value(value: Any, spec: Input) -> Any:
    """Returns what a request writes for one row of a tensor."""
    if spec.shape:
        return [json_value(item, Input(spec.name, "", spec.dtype, (), spec.missing)) for item in value]
    if spec.dtype == "float32":
        return float(str(np.float32(value))) if np.isfinite(value) else spec.missing
    if spec.dtype == "string":
        return value.decode() if isinstance(value, bytes) else value
    return bool(value) if spec.dtype == "bool" else int(value)


def json_output(value: np.ndarray, name: str) -> list[Any]:
    """Returns what an answer holds for an output [rows, ...]."""
    if value.dtype == np.object_ and name.endswith("_bytes"):  # such text leaves the server as base64
        flat = [{"b64": base64.b64encode(as_bytes(item)).decode()} for item in value.ravel()]
        value = objects(flat).reshape(value.shape)
    if value.dtype == np.float32:
        value = np.array([float(str(item)) for item in value.ravel()]).reshape(value.shape)
    return value.tolist()


def parse(body: str | bytes) -> dict[str, Any]:
    """Parses the text of a request.

    Raises:
        RequestError: Not JSON, or no object.
    """
    try:
        value = json.loads(body)
    except ValueError as error:
        raise RequestError(f"request: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise RequestError("request: expected a JSON object with the key 'instances'")
    return value


def _is_binary(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str)


def _decode_rows(instances: Any, specs: Mapping[str, Input], defaults: bool) -> dict[str, np.ndarray]:
    if not isinstance(instances, list) or not instances:
        raise RequestError("request: 'instances' must be a list with at least one row")
    objects = isinstance(instances[0], dict) and not _is_binary(instances[0])
    if not objects and len(specs) > 1:
        raise RequestError(
            f"request: 'instances' must hold objects, as the model has the inputs {', '.join(specs)}"
        )
    only = next(iter(specs))
    rows = []
    for number, row in enumerate(instances):
        if objects != (isinstance(row, dict) and not _is_binary(row)):
            raise RequestError(f"request: row {number}: objects and bare values are mixed")
        rows.append(row if objects else {only: row})
        _check_keys(rows[-1], specs, f"row {number}", defaults)
        if set(rows[-1]) != set(rows[0]):
            raise RequestError(f"request: row {number}: has other keys than row 0")
    return {
        name: _array([row[name] for row in rows], spec) for name, spec in specs.items() if name in rows[0]
    }


def _decode_columns(inputs: Any, specs: Mapping[str, Input], defaults: bool) -> dict[str, np.ndarray]:
    if not isinstance(inputs, dict) or _is_binary(inputs):
        if len(specs) > 1:
            raise RequestError("request: 'inputs' must be an object, as the model has several inputs")
        inputs = {next(iter(specs)): inputs}
    known = {name: value for name, value in inputs.items() if name in specs}  # others are passed over
    _check_keys(known, specs, "'inputs'", defaults)
    return {name: _array(value, specs[name]) for name, value in known.items()}


def _check_keys(row: Mapping[str, Any], specs: Mapping[str, Input], where: str, defaults: bool) -> None:
    for name in row:
        if name not in specs:
            raise RequestError(f"request: {where}: the model has no input {name!r}{nearest(name, specs)}")
    absent = [name for name in specs if name not in row]
    if absent and not defaults:
        marker = json.dumps(specs[absent[0]].missing)
        raise RequestError(
            f"request: {where}: the input {absent[0]!r} is left out, which the REST interface refuses; "
            f"write {marker} for a missing value"
        )


def _array(value: Any, spec: Input) -> np.ndarray:
    """Turns nested lists into a tensor of the shape that the JSON has, and compares it with the signature."""
    shape: list[int] = []
    level = value
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    flat = list(_leaves(value, shape, 0, spec))
    wanted = len(spec.shape) + 1
    if len(shape) != wanted or any(w not in (None, g) for w, g in zip(spec.shape, shape[1:], strict=True)):
        got = "a single value" if len(shape) < 2 else f"a list of shape {shape[1:]}"
        size = "of any length" if spec.shape and spec.shape[0] is None else f"of {(*spec.shape, 0)[0]}"
        raise RequestError(
            f"request: input {spec.name!r}: got {got} in a row, "
            f"expected {f'a list {size}' if spec.shape else 'a single value'}"
        )
    if spec.dtype == "string":
        return objects(flat).reshape(shape)
    return np.array(flat, NUMPY[spec.dtype]).reshape(shape)


def _leaves(value: Any, shape: list[int], level: int, spec: Input) -> Iterator[Any]:
    if isinstance(value, list):
        if level >= len(shape) or len(value) != shape[level]:
            raise RequestError(f"request: input {spec.name!r}: all rows must have values of one shape")
        for item in value:
            yield from _leaves(item, shape, level + 1, spec)
    elif level != len(shape):
        raise RequestError(f"request: input {spec.name!r}: all rows must have values of one shape")
    else:
        yield _leaf(value, spec)


def _leaf(value: Any, spec: Input) -> Any:
    """Checks and converts one JSON value; the rules are `AddValueToTensor` of json_tensor.cc."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if spec.dtype == "string":
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict):
            try:
                return base64.b64decode(value["b64"], validate=True)
            except (KeyError, TypeError, binascii.Error):
                raise RequestError(
                    f"request: input {spec.name!r}: expected an object with 'b64' alone"
                ) from None
    elif spec.dtype == "float32" and number:
        if isinstance(value, int) and abs(value) > _LARGEST_WHOLE:
            raise RequestError(
                f"request: input {spec.name!r}: the integer {value} may lose digits in float32; "
                f"write it with a decimal point ({float(value)!r})"
            )
        if math.isfinite(value) and abs(value) > float(np.finfo(np.float32).max):
            raise RequestError(f"request: input {spec.name!r}: {value!r} does not fit float32")
        return value
    elif spec.dtype == "int64":
        if number and isinstance(value, int) and -(2**63) <= value < 2**63:
            return value
    elif spec.dtype == "bool" and isinstance(value, bool):
        return value
    hint = f"; write {json.dumps(spec.missing)} for a missing value" if value is None else ""
    raise RequestError(
        f"request: input {spec.name!r}: the JSON value {json.dumps(value)} is no {spec.dtype}{hint}"
    )
