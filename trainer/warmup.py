"""Requests that a model server answers while it loads a model, before it takes traffic. Adopters: leave.

The first call of a loaded model is many times slower than the next; TensorFlow Serving makes it by itself
when `assets.extra/tf_serving_warmup_requests` holds example requests.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.request import EXAMPLES_INPUT
from trainer.serving import SIGNATURE, Served

FILE = "assets.extra/tf_serving_warmup_requests"
SIZES = (1, 8)  # rows of the requests


def write(served: Served, rows: Any, path: str) -> None:
    """Writes the warm-up requests of a model.

    The file holds a TFRecord of `tensorflow.serving.PredictionLog` a request. That message is not part of
    TensorFlow; the few fields that are needed are written by hand here, by the numbers of
    `tensorflow_serving/apis/{prediction_log,predict,model}.proto`.

    Args:
        served: The loaded model.
        rows: Raw rows.
        path: The file to write.
    """
    import tensorflow as tf

    tensors = served.tensors(rows)
    count = len(rows) if isinstance(rows, list) else rows.num_rows
    if served.takes_examples:
        tensors = {EXAMPLES_INPUT: np.array(served.serialize(tensors, count), np.object_)}
    with tf.io.TFRecordWriter(path) as writer:
        for size in dict.fromkeys(min(size, count) for size in SIZES):
            request = _field(1, _field(3, SIGNATURE.encode()))  # PredictRequest.model_spec.signature_name
            for name, value in tensors.items():
                kind = None if value.dtype == np.object_ else value.dtype
                tensor = tf.make_tensor_proto(value[:size], tf.string if kind is None else kind)
                entry = _field(1, name.encode()) + _field(2, tensor.SerializeToString())
                request += _field(2, entry)  # PredictRequest.inputs
            writer.write(_field(6, _field(1, request)))  # PredictionLog.predict_log.request


def _field(number: int, payload: bytes) -> bytes:
    """Encodes a length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
