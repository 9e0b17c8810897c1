"""The parity gate: the exported model, loaded afresh, must predict what training predicts. Adopters: leave.

Training encodes rows with NumPy, the SavedModel with TensorFlow ops. The gate holds the two together in
every run: `run_gate` saves raw rows and the training path's predictions for them, and starts

    python -m trainer.parity --run DIR

a process that never sees the training model. It loads the SavedModel, sends it the rows as JSON requests (and
as tf.Example records), and compares row by row. The rows are a sample of the validation split and probes made
from it: each column missing, values never seen, empty text, a row with only some columns.

Two predictions agree when |a - b| <= tolerance * max(1, |b|): probabilities are compared as they are, large
values of a regression by their relative difference.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer import probes, storage
from trainer.errors import TrainingError, UserError
from trainer.serving import Served

if TYPE_CHECKING:
    import pyarrow as pa

    from trainer.config import Config
    from trainer.data.encode import Encoder
    from trainer.export import Staged
    from trainer.features import Features

FOLDER = "parity"  # in the run's folder
ROWS, EXPECTED, REPORT, REQUEST = "rows.parquet", "expected.npz", "parity.json", "request.json"
_TIMEOUT = 900.0  # seconds for the fresh process: it loads TensorFlow and a model
_BATCH = 128  # rows of a request
_WITHOUT = ("TF_CONFIG", "CLUSTER_SPEC", "TF_XLA_FLAGS")  # the gate is one process, not a worker of the job


# --- in the training process ------------------------------------------------------------------------


def training_path(
    encoder: Encoder, model: Any, task: str, batch_size: int = 1024
) -> Callable[[pa.Table], np.ndarray]:
    """Returns the function from raw rows to the predictions of training: encode, model, predictions.

    Args:
        encoder: Encodes features without label.
        model: {"numeric", "categorical"} -> logits; with mixed precision the `export.inference_copy`, because
            half precision alone differs by more than the tolerance.
        task: The task.
        batch_size: Rows of one call.
    """
    import tensorflow as tf

    from trainer import losses

    def predict(table: pa.Table) -> np.ndarray:
        blocks = encoder(table)
        parts = []
        for start in range(0, table.num_rows, batch_size):
            rows = slice(start, start + batch_size)
            inputs = {
                "numeric": tf.constant(blocks.numeric[rows]),
                "categorical": tf.constant(blocks.categorical[rows]),
            }
            parts.append(losses.predictions(task, model(inputs, training=False)).numpy())
        return np.concatenate(parts)

    return predict


def run_gate(
    config: Config,
    features: Features,
    staged: Staged,
    rows: pa.Table,
    predict: Callable[[pa.Table], np.ndarray],
    folder: str,
) -> dict[str, Any]:
    """Compares an export with the training path, in a fresh process.

    Args:
        config: The run config; `export.parity_rows` and `export.parity_tolerance` are used.
        features: The fitted features.
        staged: The export, not published yet.
        rows: Raw rows of the validation split with the columns of the features.
        predict: Raw rows -> predictions of the training path (see `training_path`).
        folder: The run's folder; gets parity.json, request.json (an example of a request), and parity/ with
            the rows, for another look later.

    Returns:
        The content of parity.json: "rows", "max_abs_difference", "passed", "signatures" and more.

    Raises:
        TrainingError: The gate failed or could not run; the sentence names the worst row.
    """
    import pyarrow.parquet as pq
    import tensorflow as tf

    table, origins = probes.sample(features, rows, config.export.parity_rows)
    with tf.device("CPU:0"):  # the fresh process has no accelerator, whose rounding differs
        expected = predict(table)
    folder = folder.rstrip("/")
    file = io.BytesIO()
    pq.write_table(table, file)
    _write(f"{folder}/{FOLDER}/{ROWS}", file.getvalue())
    file = io.BytesIO()
    np.savez(
        file,
        predictions=expected,
        origins=np.array(origins),
        classes=np.array(features.label.classes, dtype=str),
        tolerance=np.array(config.export.parity_tolerance),
    )
    _write(f"{folder}/{FOLDER}/{EXPECTED}", file.getvalue())
    command = [sys.executable, "-m", "trainer.parity", "--run", folder, "--model", staged.model]
    if staged.examples:
        command += ["--examples", staged.examples]
    code, output = _run(command)
    report = storage.read_json(f"{folder}/{REPORT}") if code in (0, TrainingError.exit_code) else None
    if report is None:
        raise TrainingError(
            f"parity gate: the fresh process ended with code {code}: {output[-2000:].strip()}"
        )
    if not report["passed"]:
        raise TrainingError(complaint(report))
    return report


def _write(path: str, data: bytes) -> None:
    if storage.is_remote(path):
        import tensorflow as tf

        with tf.io.gfile.GFile(path, "wb") as file:
            file.write(data)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def _run(command: Sequence[str]) -> tuple[int, str]:
    environ = {name: value for name, value in os.environ.items() if name not in _WITHOUT}
    environ["CUDA_VISIBLE_DEVICES"] = ""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (home, environ.get("PYTHONPATH", ""))))
    with tempfile.TemporaryFile() as output:
        try:
            code = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, env=environ, timeout=_TIMEOUT, check=False
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise TrainingError(f"parity gate: the fresh process took over {_TIMEOUT:.0f} seconds") from error
        output.seek(0)
        return code, output.read().decode(errors="replace")


def complaint(report: dict[str, Any]) -> str:
    """Returns the sentence that tells why the gate failed."""
    name, worst = next((name, part) for name, part in report["signatures"].items() if not part["passed"])
    if worst.get("error"):
        return f"parity gate: the exported model ({name}) can't answer: {worst['error']}"
    if worst["labels_differing"] and worst["max_abs_difference"] <= report["tolerance"]:
        what = f"{worst['labels_differing']} rows get another label"
    else:
        what = (
            f"predictions differ by up to {worst['max_abs_difference']:.3g} "
            f"(tolerance {report['tolerance']:g}) in {worst['rows_differing']} of {report['rows']} rows"
        )
    row = worst["worst_row"]
    hint = f"; suspicious: {', '.join(worst['suspects'])}" if worst["suspects"] else ""
    return (
        f"parity gate: the exported model ({name}) does not predict what training predicts: {what}; worst is "
        f"{row['origin']}, expected {row['expected']}, got {row['got']}, raw values "
        f"{json.dumps(row['values'], ensure_ascii=False)}{hint}"
    )


# --- in the fresh process ---------------------------------------------------------------------------


def compare(
    served: Served,
    rows: pa.Table,
    expected: np.ndarray,
    classes: Sequence[str],
    origins: Sequence[str],
    tolerance: float,
) -> dict[str, Any]:
    """Compares a loaded model with the predictions of training.

    Args:
        served: The loaded model.
        rows: Raw rows.
        expected: Predictions of training: float32 [rows] or [rows, K] in the order of `classes`.
        classes: Class names of training, in its order.
        origins: What each row is.
        tolerance: Largest difference allowed.

    Returns:
        The part of parity.json for this model.
    """
    parts = []
    for start in range(0, rows.num_rows, _BATCH):  # as JSON text, so that a request can really be written
        body = json.dumps(served.request(rows.slice(start, _BATCH)), allow_nan=False)
        parts.append(served.run(served.decode(body)))
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    got = _aligned(outputs, served.task, classes)
    difference = np.abs(got.astype(np.float64) - expected) / np.maximum(1.0, np.abs(expected))
    difference = np.where(np.isnan(got) & np.isnan(expected), 0.0, difference)
    difference = np.where(np.isnan(difference), np.inf, difference)
    by_row = difference.reshape(len(difference), -1).max(axis=1)
    wrong_label = _labels_differ(outputs, expected, served.task, classes, tolerance)
    bad = (by_row > tolerance) | wrong_label
    worst = int(np.argmax(np.where(wrong_label, by_row + 1.0, by_row)))
    largest = float(by_row.max())
    return {
        "passed": not bad.any(),
        "max_abs_difference": largest if np.isfinite(largest) else 1e38,
        "rows_differing": int((by_row > tolerance).sum()),
        "labels_differing": int(wrong_label.sum()),
        "suspects": _suspects(rows, bad, origins),
        "worst_row": {
            "origin": origins[worst],
            "expected": _plain(expected[worst]),
            "got": _plain(got[worst]),
            "values": json.loads(json.dumps(rows.slice(worst, 1).to_pylist()[0], default=str)),
        },
    }


def _aligned(outputs: dict[str, np.ndarray], task: str, classes: Sequence[str]) -> np.ndarray:
    """Returns the model's predictions in training's class order, matched by the names it answers with."""
    if task == "regression":
        return outputs["prediction"]
    named = list(outputs["classes"][0])
    if sorted(named) != sorted(classes) or (outputs["classes"] != outputs["classes"][:1]).any():
        raise UserError(f"the classes are {', '.join(named)}, expected {', '.join(classes)}")
    values = outputs["probabilities"][:, [named.index(name) for name in classes]]
    if task != "binary":
        return values
    if (outputs["probability"] != values[:, 1]).any():
        raise UserError("'probability' is not the probability of the second class in 'probabilities'")
    return outputs["probability"]


def _labels_differ(
    outputs: dict[str, np.ndarray], expected: np.ndarray, task: str, classes: Sequence[str], tolerance: float
) -> np.ndarray:
    """Returns bool [rows]: another label, where the two best classes are not as good as equal."""
    if task not in ("binary", "multiclass"):
        return np.zeros(len(expected), bool)
    both = np.stack([1 - expected, expected], axis=1) if task == "binary" else expected
    ranked = np.sort(both, axis=1)
    close = ranked[:, -1] - ranked[:, -2] <= 4 * tolerance
    best = np.array(classes, object)[both.argmax(axis=1)]
    return (outputs["label"] != best) & ~close


def _suspects(rows: pa.Table, bad: np.ndarray, origins: Sequence[str]) -> list[str]:
    """Returns what the rows that differ have in common and the others have not."""
    if not bad.any() or bad.all():
        return []
    found = [
        origin for origin, wrong in zip(origins, bad, strict=True) if wrong and origin.startswith("probe")
    ]
    found = [origin.removeprefix("probe: ") for origin in found]
    for name in rows.column_names:
        missing = np.asarray(rows.column(name).is_null().to_numpy()).astype(bool)
        if missing[bad].all() and not missing[~bad].any():
            found.append(f"{name} missing in all of them and in no other row")
    return list(dict.fromkeys(found))[:8]


def _plain(value: Any) -> Any:
    values = [float(f"{item:.8g}") for item in np.atleast_1d(value)]
    values = [item if np.isfinite(item) else None for item in values]  # type: ignore[misc]
    return values[0] if np.ndim(value) == 0 else values


def check(run: str, model: str, examples: str | None) -> dict[str, Any]:
    """Compares the models of a run with the rows and predictions that training left, and writes parity.json.

    Args:
        run: The run's folder.
        model: The SavedModel for raw columns.
        examples: The SavedModel for tf.Example records; None without.

    Returns:
        The content of parity.json.

    Raises:
        UserError: The run left no rows to compare.
    """
    import pyarrow.parquet as pq

    run = run.rstrip("/")
    paths = [f"{run}/{FOLDER}/{name}" for name in (ROWS, EXPECTED)]
    for path in paths:
        if not storage.exists(path):
            raise UserError(
                f"{path}: is not there; expected the folder of a run that reached its parity gate"
            )
    rows = pq.read_table(io.BytesIO(_read(paths[0])))
    with np.load(io.BytesIO(_read(paths[1]))) as saved:
        expected, tolerance = saved["predictions"], float(saved["tolerance"])
        origins, classes = saved["origins"].tolist(), saved["classes"].tolist()
    parts: dict[str, Any] = {}
    for name, folder in (("columns", model), ("tf.Example", examples)):
        if folder is None:
            continue
        try:
            parts[name] = compare(_answer(folder, rows, run), rows, expected, classes, origins, tolerance)
        except Exception as error:  # whatever keeps the model from answering is what the gate is for
            parts[name] = {"passed": False, "error": f"{type(error).__name__}: {error}"}
    differences = [part["max_abs_difference"] for part in parts.values() if "max_abs_difference" in part]
    report = {
        "passed": all(part["passed"] for part in parts.values()),
        "rows": len(origins),
        "probes": sum(origin.startswith("probe") for origin in origins),
        "max_abs_difference": max(differences, default=None),
        "tolerance": tolerance,
        "signatures": parts,
    }
    storage.write_json(f"{run}/{REPORT}", report)
    return report


def _answer(folder: str, rows: pa.Table, run: str) -> Served:
    """Loads a model; the one for raw columns leaves a request of three rows in the run's folder."""
    served = Served(folder)
    if not served.takes_examples:
        storage.write_json(f"{run}/{REQUEST}", served.request(rows.slice(0, 3)))
    return served


def _read(path: str) -> bytes:
    if storage.is_remote(path):
        import tensorflow as tf

        with tf.io.gfile.GFile(path, "rb") as file:
            return bytes(file.read())
    with open(path, "rb") as file:
        return file.read()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison and returns the exit code: 0 passed, 1 failed, 2 nothing to compare."""
    parser = argparse.ArgumentParser(prog="python -m trainer.parity", description=__doc__.split("\n")[0])
    parser.add_argument("--run", required=True, help="folder of the run")
    parser.add_argument("--model", help="SavedModel for raw columns (default: model/ in the folder)")
    parser.add_argument("--examples", help="SavedModel for tf.Example records (default: model_examples/)")
    given = parser.parse_args(argv)
    run = given.run.rstrip("/")
    model = given.model or f"{run}/model"
    examples = given.examples
    if examples is None and given.model is None and storage.exists(f"{run}/model_examples"):
        examples = f"{run}/model_examples"
    try:
        report = check(run, model, examples)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if not report["passed"]:
        print(f"error: {complaint(report)}", file=sys.stderr)
        return TrainingError.exit_code
    print(
        f"parity gate passed: {report['rows']} rows ({report['probes']} probes), "
        f"largest difference {report['max_abs_difference']:.3g} (tolerance {report['tolerance']:g})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
