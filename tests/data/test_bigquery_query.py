"""data.query: run once, its result read like a table."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bigquery_cases import FEATURES, NAME, TIME_SPLIT, keys_of, opened, sample

from tests.servers.bigquery import BigQueryServer
from tests.servers.bigquery_rest import RestServer
from trainer.config import Config
from trainer.data import bigquery_client, bigquery_query
from trainer.data.source import open_splits
from trainer.errors import UserError

TABLE = sample()
QUERY = f"SELECT * FROM `{NAME}` WHERE x > 0"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BigQueryServer]:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    with BigQueryServer({NAME: TABLE}, message_rows=64, block_rows=250) as started:
        monkeypatch.setenv(bigquery_client.EMULATOR, started.address)
        yield started


@pytest.fixture
def rest(server: BigQueryServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestServer]:
    with RestServer(server) as started:
        monkeypatch.setenv(bigquery_query.EMULATOR, started.url)
        yield started


def config(query: str = QUERY, **data: Any) -> Config:
    data = {
        "query": query,
        "project": "billed",
        "split": TIME_SPLIT,
        "key": "row_id",
        "retry_seconds": 5,
        **data,
    }
    return Config(name="t", task="binary", data=data, label={"column": "y"}, features=FEATURES)


def test_the_result_gives_the_rows_of_the_table(server: BigQueryServer, rest: RestServer) -> None:
    splits = open_splits(config())
    table, _ = opened(server, row_restriction="x > 0")
    for mine, theirs in zip(splits.sources, table.sources, strict=True):
        assert keys_of(mine) == keys_of(theirs)
    assert rest.queries == [QUERY]
    assert server.creates[0].parent == "projects/billed"


def test_a_restart_and_other_workers_share_the_result(
    rest: RestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = str(tmp_path / "bigquery.json")
    first = keys_of(open_splits(config(), memory).train)
    assert keys_of(open_splits(config(), memory).train) == first
    monkeypatch.setenv(
        "TF_CONFIG",
        json.dumps(
            {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}
        ),
    )
    assert keys_of(open_splits(config(), memory).train) == first
    assert rest.queries == [QUERY]
    keys_of(open_splits(config(f"{QUERY} AND x < 9"), None).train)
    assert len(rest.queries) == 2


def test_a_result_that_is_gone_is_told(
    rest: RestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bigquery_query, "_KEPT", datetime.timedelta(0))
    memory = str(tmp_path / "bigquery.json")
    open_splits(config(), memory)
    with pytest.raises(UserError, match="kept for 24 hours, which are over; start anew with --fresh"):
        open_splits(config(), memory)


@pytest.mark.parametrize("failure", [(503, "backendError"), (429, ""), (403, "rateLimitExceeded"), (500, "")])
def test_failures_that_pass_are_waited_out(failure: tuple[int, str], rest: RestServer) -> None:
    rest.failures = [failure] * 3
    assert keys_of(open_splits(config()).train)
    assert rest.queries == [QUERY]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("DELETE FROM `p.d.t` WHERE TRUE", "expected a SELECT statement, got DELETE"),
        ("SELECT FROM", r"refused, billed project billed \(Syntax error: .* at \[1:8\]\)"),
        ("SELECT * FROM `p.d.none`", r"failed, billed project billed \(Not found: Table p\.d\.none\)"),
    ],
)
def test_mistakes_are_told(query: str, message: str, rest: RestServer) -> None:
    with pytest.raises(UserError, match=f"^data.query: {message}"):
        open_splits(config(query))
    assert "DELETE" not in " ".join(rest.queries)


def test_a_missing_permission_names_the_role(rest: RestServer) -> None:
    rest.forbidden = True
    with pytest.raises(
        UserError, match=r"BigQuery Job User .* billed project billed.*bigquery\.jobs\.create"
    ):
        open_splits(config())


def test_a_service_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bigquery_query.EMULATOR, "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"data.query: given up after .* tries"):
        open_splits(config(retry_seconds=0.3))


def test_somebody_has_to_be_billed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUD_ML_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"data.query: set data.project"):
        open_splits(config(project=None))


def test_query_and_source_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"takes the place of data\.source"):
        config(source="x.parquet")
    with pytest.raises(ValueError, match=r"is the result of data.query, which is not given"):
        config(query=None, source="bigquery://query")
    assert Config(**config().model_dump()) == config()
