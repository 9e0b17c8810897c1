"""Whole runs on BigQuery: the same figures as on files, and a restart that goes on in the same session."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from feature_tables import same
from small_run import Small, small_config, small_table, start
from worker_processes import free_addresses

from tests.servers.bigquery import BigQueryServer
from trainer.checkpoints import Checkpoints
from trainer.config import Config
from trainer.data import bigquery_client
from trainer.data.source import open_splits
from trainer.evaluate import evaluate
from trainer.predict import load
from trainer.run import train

pytestmark = pytest.mark.faults

TABLE = small_table()
CUTS = (0, 700, 1501, 2300, TABLE.num_rows)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BigQueryServer]:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    blocks = [TABLE.slice(low, high - low) for low, high in itertools.pairwise(CUTS)]
    with BigQueryServer({"p.d.t": blocks}, message_rows=100) as started:
        monkeypatch.setenv(bigquery_client.EMULATOR, started.address)
        yield started


def run(source: Any, output: Path, *, epochs: int = 2, **data: Any) -> dict[str, Any]:
    content = small_config(source, epochs=epochs)
    content["data"] |= {"source": str(source), **data}
    content["report"]["importance_rows"] = 0
    content["checkpoint"] = {"every_steps": 10, "every_seconds": 0}
    content["output_dir"] = str(output)
    return train(Config(**content))


def figures(metrics: dict[str, Any]) -> dict[str, float]:
    splits = ("train", "validation", "test")
    return {f"{split} {name}": value for split in splits for name, value in metrics[split].items()}


@pytest.mark.slow
def test_a_killed_run_goes_on_in_its_sessions_to_the_figures_of_files(
    server: BigQueryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    for number, (low, high) in enumerate(itertools.pairwise(CUTS)):
        pq.write_table(TABLE.slice(low, high - low), folder / f"{number}.parquet")
    data = {"cache": "none", "chunk_rows": 100, "shuffle_rows": 128}
    files = figures(run(folder, tmp_path / "files", **data))

    whole, calls = Checkpoints.save, itertools.count(1)

    def killed(checkpoints: Checkpoints, state: Any, **_: Any) -> None:
        whole(checkpoints, state, wait=True)
        if next(calls) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            run("bigquery://p.d.t", tmp_path / "table", **data)
    known = json.loads((tmp_path / "table" / "bigquery.json").read_text())["pages"]
    assert set(known) == {"sessions", "snapshots", "splits"}
    server.creates.clear()
    server.reads.clear()
    # Rows come in the same order from a server that cuts the table as the files cut it.
    assert figures(run("bigquery://p.d.t", tmp_path / "table", **data)) == pytest.approx(files, abs=1e-6)
    assert not server.creates
    offsets = [offset for _, offset in server.reads]
    assert any(offsets)  # went on inside of a stream


def train_on_two_workers(server: BigQueryServer, small: Small, folder: Path, *more: str) -> dict[str, Any]:
    """Trains on the table of the server with a chief and a worker, each a process; returns the metrics."""
    ports = free_addresses(2)
    cluster = {"chief": ports[:1], "worker": ports[1:]}
    options = ["--data.source=bigquery://p.d.t", f"--output_dir={folder}/run", "--report.importance_rows=0"]
    workers = [
        start(
            "train", "--config", small.config, *options, *more, cwd=folder,
            TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}}),
            **{bigquery_client.EMULATOR: server.address},
        )
        for role in cluster
    ]  # fmt: skip
    try:
        told = [worker.communicate(timeout=400)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(told)
    assert len(server.creates) == 4  # columns, and one a split: none by the second worker
    return json.loads((folder / "run" / "metrics.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["batches", "rows"])
def test_two_workers_read_one_session_even_of_a_single_stream(
    sharding: str,
    server: BigQueryServer,
    small: Small,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.most_streams = 1
    # Where a worker may begin in a stream is known by chunks.
    more = (f"--data.sharding={sharding}", "--data.cache=none", "--data.chunk_rows=100")
    here = train_on_two_workers(server, small, tmp_path, *more)
    there = json.loads((finished / "metrics.json").read_text())
    assert here["steps"] == there["steps"]
    for split in ("train", "validation", "test"):
        assert here[split]["examples"] == there[split]["examples"]
        assert here[split]["auc"] == pytest.approx(there[split]["auc"], abs=0.05)
    # With rows, the one stream is the chief's share of the first pass, and the worker has none.
    learned = [json.loads((folder / "features.json").read_text()) for folder in (tmp_path / "run", finished)]
    same(*learned)
    inside = [offset for _, offset in server.reads if offset]
    if sharding == "batches":
        assert not inside
        return
    assert len(inside) >= 3  # in each epoch the second worker begins where the share of the first ends
    # One process that knows nothing of shares finds the same figures: each row was evaluated once.
    monkeypatch.setenv(bigquery_client.EMULATOR, server.address)
    served = load(str(tmp_path / "run"))
    config = Config(**served.metadata["config"])
    for source in open_splits(config).sources:
        alone = evaluate(served, config, source.batches())
        assert {name: here[source.name][name] for name in alone} == pytest.approx(alone, abs=1e-6)
