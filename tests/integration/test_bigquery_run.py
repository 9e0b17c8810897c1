"""Whole runs on BigQuery: the same figures as on files, and a restart that goes on in the same session."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from small_run import small_config, small_table

from tests.servers.bigquery import BigQueryServer
from trainer.config import Config
from trainer.data import bigquery_client
from trainer.run import train

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
    content["output_dir"] = str(output)
    return train(Config(**content))


def figures(metrics: dict[str, Any]) -> dict[str, float]:
    splits = ("train", "validation", "test")
    return {f"{split} {name}": value for split in splits for name, value in metrics[split].items()}


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["memory", "none"])
def test_the_figures_are_those_of_the_same_rows_in_files(
    cache: str, server: BigQueryServer, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    for number, (low, high) in enumerate(itertools.pairwise(CUTS)):
        pq.write_table(TABLE.slice(low, high - low), folder / f"{number}.parquet")
    files = figures(run(folder, tmp_path / "files", cache=cache))
    table = figures(run("bigquery://p.d.t", tmp_path / "table", cache=cache))
    # Rows come in the same order from a server that cuts the table as the files cut it. Without a cache the
    # units that are mixed differ (streams without a row of the split are units too), and so does the order.
    tolerance = 1e-6 if cache == "memory" else 0.1
    assert table == pytest.approx(files, abs=tolerance)
    assert table["train examples"] == files["train examples"]


@pytest.mark.slow
def test_a_restart_goes_on_in_the_same_sessions(
    server: BigQueryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer import export

    whole = figures(run("bigquery://p.d.t", tmp_path / "whole", cache="none"))

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(export, "stage", killed)  # after training, before anything was exported
        with pytest.raises(KeyboardInterrupt):
            run("bigquery://p.d.t", tmp_path / "broken", cache="none")
    known = json.loads((tmp_path / "broken" / "bigquery.json").read_text())["pages"]
    assert set(known) == {"sessions", "snapshots", "splits"}
    server.creates.clear()
    assert figures(run("bigquery://p.d.t", tmp_path / "broken", cache="none")) == whole
    assert not server.creates
