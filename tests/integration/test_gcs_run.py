"""A whole run on gs://: rows, checkpoints, kill, resume, export and predictions, without a local file."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from small_run import Small, end, forked, start, wait_until

from tests.servers import gcs
from tests.servers.gcs_proxy import Fault

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.skipif(not gcs.available(), reason="no fake-gcs-server for this machine"),
]


def test_a_killed_run_on_gs_goes_on_to_the_figures_of_a_local_one(
    small: Small, finished: Path, tmp_path: Path
) -> None:
    with gcs.GcsServer(("bucket",)) as server:
        server.put("bucket", "data/rows.parquet", small.data.read_bytes())
        command = ["train", "--config", str(small.config), "--data.source=gs://bucket/data/*.parquet",
                   "--output_dir=gs://bucket/run"]  # fmt: skip
        server.fail(Fault(503, "GET", times=3, skip=20), Fault(429, "upload", times=2, skip=5))
        first = start(*command, "--checkpoint.every_steps=10", cwd=tmp_path, **server.environ)
        saved = lambda: [n for n in server.names("bucket", "run/checkpoints/") if n.endswith("manifest.json")]  # noqa: E731
        wait_until(lambda: len(saved()) >= 2, first)
        end(first, signal.SIGKILL)
        assert len(server.happened) == 5
        # What was cut short is half an upload, which nobody sees, or a folder without a manifest.
        done = forked(*command, "--checkpoint.every_steps=10", cwd=tmp_path, **server.environ)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "resuming at epoch" in done.stdout + done.stderr
        here = json.loads(server.get("bucket", "run/metrics.json"))
        there = json.loads((finished / "metrics.json").read_text())
        for split in ("train", "validation", "test"):
            assert here[split] == pytest.approx(there[split], abs=1e-6)
        written = server.names("bucket", "run/")
        for name in ("model/saved_model.pb", "report.html", "parity.json", "features.json", "config.yaml"):
            assert f"run/{name}" in written
        assert any(name.startswith("run/logs/") for name in written)
        assert "run/lock.json" not in written
        told = forked(
            "predict", "--model=gs://bucket/run", "--input=gs://bucket/data/rows.parquet",
            "--output=gs://bucket/predictions.jsonl", cwd=tmp_path, **server.environ,
        )  # fmt: skip
        assert told.returncode == 0, told.stdout + told.stderr
        lines = server.get("bucket", "predictions.jsonl").decode().splitlines()
        assert len(lines) == small.table.num_rows
    assert not list(tmp_path.iterdir())
