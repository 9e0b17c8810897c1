"""The parts of `loop.py` that need several processes or a large checkpoint. Adopters: leave.

Two workers on one machine share its cores, so they can't be faster than one process: their step time against
that of one process, with the same global batch, is the price of the exchange (gRPC over loopback) and of
doing the rest twice. On two machines each has its own cores, and the network's delay comes on top.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.worker_processes import free_addresses

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 5


# --- a program: one of the processes ----------------------------------------------------------------


def measure(task: dict[str, Any]) -> dict[str, list[float]]:
    """Trains as one of some workers and returns seconds a step of each case, a figure a round."""
    from benchmarks import loop
    from trainer import strategy as strategies

    settings = loop.config(task["cases"][0]["batch"], 1)
    strategy = strategies.create(settings)
    workers = task["workers"]
    runs, steps = {}, {}
    for case in task["cases"]:
        name = case["name"]
        data = loop.Data(case["batch"] // workers, case["values"], seed=1 + task["rank"])
        runs[name] = loop.our_loop(data, strategy, case["batch"])
        runs[name](20)  # traces
        steps[name] = case["steps"]
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():  # in turns, so that a slow minute hits all
            found[name].append(run(steps[name]) / steps[name])
    return found


# --- from outside -----------------------------------------------------------------------------------


def together(workers: int, cases: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the median seconds a step of each case, trained by some processes together."""
    hosts = free_addresses(workers)
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(workers):
            path = str(Path(folder) / f"{rank}.json")
            environ = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "CLUSTER_SPEC")}
            if workers > 1:
                place = {"type": "worker", "index": rank}
                environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": hosts}, "task": place})
            task = json.dumps({"workers": workers, "rank": rank, "cases": cases, "path": path})
            command = [sys.executable, "-m", "benchmarks.workers", task]
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environ))
        try:
            for process in processes:
                if process.wait(timeout=600):
                    raise RuntimeError(f"a worker ended with exit code {process.returncode}")
        finally:
            for process in processes:
                process.kill()
        found = json.loads((Path(folder) / "0.json").read_text())
    return {name: statistics.median(values) for name, values in found.items()}


def exchange() -> list[dict[str, Any]]:
    """Two workers against one process, and a large table against a small one on both."""
    cases = [
        {"name": "batch 256", "batch": 256, "values": 10_000, "steps": 60},
        {"name": "batch 4096", "batch": 4096, "values": 10_000, "steps": 20},
        {"name": "table 10k", "batch": 1024, "values": 10_000 // 26, "steps": 40},
        {"name": "table 1M", "batch": 1024, "values": 1_000_000 // 26, "steps": 40},
    ]
    one, two = together(1, cases), together(2, cases)
    results = []
    for name in ("batch 256", "batch 4096"):
        results.append(
            {
                "name": f"loop: step of two workers against one process, {name}",
                "value": round(two[name] / one[name], 3),
                "goal": "stated",
                "holds": None,
                "detail": f"{1e3 * two[name]:.1f} against {1e3 * one[name]:.1f} ms on the same cores: the "
                "exchange of gradients, and input and update of the weights done twice",
            }
        )
    for label, found in (("one process", one), ("two workers", two)):
        ratio = found["table 1M"] / found["table 10k"]
        results.append(
            {
                "name": f"loop: step with a table of 1 M rows against 10 k, {label}",
                "value": round(ratio, 3),
                "goal": "<= 1.2",
                "holds": ratio <= 1.2,
                "detail": f"{1e3 * found['table 1M']:.1f} against {1e3 * found['table 10k']:.1f} ms",
            }
        )
    return results


def checkpoint(megabytes: int = 500, rounds: int = 3) -> list[dict[str, Any]]:
    """The time that the loop is blocked by a checkpoint written in a thread, against one written in line."""
    import keras
    import tensorflow as tf

    from trainer.checkpoints import Checkpoints
    from trainer.state import RunState

    rows = megabytes * 2**20 // (4 * 64)
    model = keras.Sequential([keras.Input((1,), dtype="int32"), keras.layers.Embedding(rows, 64)])
    blocked: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for asynchronous in (True, False):
                kept = Checkpoints(f"{folder}/{asynchronous}", model, keep=2, asynchronous=asynchronous)
                model.weights[0].value.assign_add(tf.ones_like(model.weights[0].value))
                began = time.perf_counter()
                kept.save(RunState(step=number))
                if number:  # the first finds cold memory
                    blocked[asynchronous].append(time.perf_counter() - began)
                kept.wait()
    thread, line = statistics.median(blocked[True]), statistics.median(blocked[False])
    return [
        {
            "name": f"loop: blocked by a checkpoint of {megabytes} MB in a thread, against one in line",
            "value": round(thread / line, 3),
            "goal": "<= 0.3",
            "holds": thread <= 0.3 * line,
            "detail": f"{thread:.2f} against {line:.2f} s, medians of {rounds}",
        }
    ]


def main() -> None:
    """Measures as one of the processes that `together` starts."""
    from trainer import process

    process.prepare()
    task = json.loads(sys.argv[1])
    found = measure(task)
    Path(task["path"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
