"""The newest standard serving image has TensorFlow 2.15: the export must load there and predict the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from exported import exported, rig, table

from trainer.serving import Served

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("TRAINER_SERVING_PYTHON") or str(ROOT / ".venv-serving" / "bin" / "python")

# What a server does, with nothing of ours: load, find the signature, feed columns, read outputs by name.
PLAIN = """
import json, sys
import numpy as np, tensorflow as tf
requests = json.load(sys.stdin)
answers = {"version": tf.__version__, "keras": "keras" in sys.modules and sys.modules["keras"].__version__}
for folder, columns in requests.items():
    signature = tf.saved_model.load(folder).signatures["serving_default"]
    specs = signature.structured_input_signature[1]
    given = {name: tf.constant(columns[name], spec.dtype) for name, spec in specs.items()}
    outputs = {name: value.numpy() for name, value in signature(**given).items()}
    answers[folder] = {name: v.tolist() for name, v in outputs.items() if v.dtype == np.float32}
json.dump(answers, sys.stdout)
"""

# The same model through our own module, which must not need anything newer than the server's TensorFlow.
OURS = """
import json, sys
from trainer.serving import Served
requests = json.load(sys.stdin)
answers = {folder: Served(folder).predict_json(body)["predictions"] for folder, body in requests.items()}
json.dump(answers, sys.stdout)
"""


def _python(code: str, given: object) -> dict:
    if not os.path.exists(PYTHON):
        pytest.skip(f"no Python with TensorFlow 2.15 at {PYTHON}; set TRAINER_SERVING_PYTHON to one")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [PYTHON, "-c", code], input=json.dumps(given), capture_output=True, text=True, env=environ,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_export_loads_and_predicts_the_same_in_2_15():
    requests = {}
    for task in ("binary", "multiclass", "regression", "multilabel"):
        body = Served(exported(task)).request(table())
        requests[exported(task)] = {
            name: [row[name] for row in body["instances"]] for name in body["instances"][0]
        }
    answers = _python(PLAIN, requests)
    assert answers["version"].startswith("2.15")
    assert not answers["keras"] or not str(answers["keras"]).startswith("3")
    for task in ("binary", "multiclass", "regression", "multilabel"):
        output = {"binary": "probability", "regression": "prediction"}.get(task, "probabilities")
        got = np.array(answers[exported(task)][output])
        np.testing.assert_allclose(got, rig(task).predict(table()), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_requests_are_answered_alike_in_2_15():
    folders = [exported("binary"), exported("binary") + "_examples"]
    requests = {folder: Served(folder).request(table()) for folder in folders}
    answers = _python(OURS, requests)
    for folder in folders:
        here = Served(folder).predict_json(requests[folder])["predictions"]
        assert len(here) == 60
        for one, two in zip(answers[folder], here, strict=True):
            assert one["label"] == two["label"]
            assert one["row_id"] == two["row_id"]
            assert one["probability"] == pytest.approx(two["probability"], abs=1e-5)
