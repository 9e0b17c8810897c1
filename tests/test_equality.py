"""One process, two replicas, two workers and three workers give the same numbers, for every model.

1,001 rows in three files of 1, 400 and 600 rows; a validation split whose last batch has two rows, so that
the shards of other workers are empty there. Each way is a set of real processes (see equality.py).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm
from equality import BATCH, CASES, ROWS, write
from feature_tables import same
from worker_processes import end_well, free_addresses

pytestmark = [pytest.mark.slow, pytest.mark.faults]

WAYS = {"one": (1, 1), "mirrored": (1, 2), "two": (2, 1), "three": (3, 1)}  # processes, replicas of each
# Figures that jump when a row crosses a line; of equal weights they are equal too.
JUMPING = ("auc", "pr_auc", "accuracy", "precision", "recall", "macro_f1", "top_3_accuracy")


def start(folder: Path, processes: int, replicas: int) -> list[warm.Process]:
    hosts = free_addresses(processes)
    here = Path(__file__).parent
    common = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    made = []
    for rank in range(processes):
        task = {"type": "worker" if rank else "chief", "index": max(0, rank - 1)}
        cluster = {"chief": hosts[:1], "worker": hosts[1:]}
        cloud = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} if processes > 1 else {}
        made.append(warm.Process([here / "equality.py", replicas, folder], {**common, **cloud}))
    return made


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, np.ndarray]]]:
    """What each process of each way of training ended with."""
    base = tmp_path_factory.mktemp("equality")
    running = {}
    for way, (processes, replicas) in WAYS.items():
        folder = base / way
        (folder / "rows").mkdir(parents=True)
        write(folder / "rows")
        running[way] = start(folder, processes, replicas)
        if way != "one":  # a few at a time: each takes seconds to start
            end_well(running[way])
    end_well(running["one"])
    return {
        way: [dict(np.load(base / way / f"{rank}.npz")) for rank in range(processes)]
        for way, (processes, _) in WAYS.items()
    }


@pytest.mark.parametrize("way", [way for way in WAYS if way != "one"])
@pytest.mark.parametrize("case", CASES)
def test_weights_and_figures(case: str, way: str, results: dict[str, Any]) -> None:
    (one,) = results["one"]
    keys = [
        key for key in one if key.startswith(f"{case}/") and "/ids/" not in key and "/features" not in key
    ]
    assert any("/weight/" in key for key in keys)
    assert sum("/train/" in key or "/validation/" in key for key in keys) >= 6
    for found in results[way]:
        for key in keys:
            name = key.split("/")[-1].removeprefix("val_")
            tolerance = 1e-5 if "/weight/" in key else 1e-6
            if "/trained/" in key and name in JUMPING:
                tolerance = 2e-3  # of weights that differ by 1e-7
            np.testing.assert_allclose(found[key], one[key], rtol=tolerance, atol=tolerance, err_msg=key)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_each_row_is_seen_once(case: str, way: str, results: dict[str, Any]) -> None:
    train = np.concatenate([found[f"{case}/ids/train"] for found in results[way]])
    assert sorted(train.tolist()) == list(range(ROWS))
    validation = np.concatenate([found[f"{case}/ids/validation"] for found in results[way]])
    assert sorted(validation.tolist()) == list(range(5000, 5000 + BATCH + 2))
    sizes = [len(found[f"{case}/ids/validation"]) for found in results[way]]
    if way == "three":
        assert sizes == [18, 16, 16], "the shards of two workers are empty in the last batch"


@pytest.mark.parametrize("way", WAYS)
def test_shares_of_rows_are_seen_once_and_evaluate_alike(way: str, results: dict[str, Any]) -> None:
    (one,) = results["one"]
    train = [found["shares/ids/train"] for found in results[way]]
    assert sorted(np.concatenate(train).tolist()) == list(range(ROWS))
    assert max(map(len, train)) - min(map(len, train)) <= 1, "shares of equal size"
    validation = np.concatenate([found["shares/ids/validation"] for found in results[way]])
    assert validation.tolist() == list(range(5000, 5000 + BATCH + 2))
    figures = [key for key in one if key.split("/")[:2] in (["shares", "train"], ["shares", "validation"])]
    assert len(figures) >= 6
    for found in results[way]:
        for key in figures:  # of weights that are the same everywhere
            np.testing.assert_allclose(found[key], one[key], rtol=1e-6, atol=1e-6, err_msg=key)
        for key in (key for key in one if key.startswith("shares/weight/")):
            np.testing.assert_array_equal(found[key], results[way][0][key])  # and all workers train alike


@pytest.mark.parametrize("way", WAYS)
def test_statistics_of_shares_are_those_of_all_rows(way: str, results: dict[str, Any]) -> None:
    """With sharding=rows each worker learns from its own files; `dnn` read the same rows by one process."""
    (one,) = results["one"]
    told = {str(found["shares/features"]) for found in results[way]}
    assert len(told) == 1, "all have what the chief merged"
    same(json.loads(told.pop()), json.loads(str(one["shares/features"])))


@pytest.mark.parametrize(("kind", "least", "most"), [("bfloat16", 1e-5, 0.05), ("float16", 1e-6, 0.01)])
def test_gradients_that_cross_rounded_are_close_and_not_the_same(
    kind: str, least: float, most: float, results: dict[str, Any]
) -> None:
    (one,) = results["one"]
    keys = [key for key in one if key.startswith(f"{kind}/weight/")]
    far = max(np.abs(results["two"][0][key] - one[key]).max() for key in keys)
    assert least < far < most
    for key in keys:
        np.testing.assert_array_equal(results["two"][0][key], results["two"][1][key])
