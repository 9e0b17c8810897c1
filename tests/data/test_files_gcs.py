"""Files on gs://, read by Arrow and TensorFlow from a local storage: faults, changes, many small files."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from format_writers import FORMATS, make_config, read_all, sample, write

from tests.servers import gcs
from tests.servers.gcs_proxy import Fault
from trainer.data import files
from trainer.data.formats import ranges
from trainer.data.source import open_rows, open_splits
from trainer.errors import UserError

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not gcs.available(), reason="no fake-gcs-server for this machine"),
]


@pytest.fixture(scope="module")
def storage() -> Iterator[gcs.GcsServer]:
    with gcs.GcsServer(("bucket",)) as server:
        yield server


@pytest.fixture
def server(storage: gcs.GcsServer, monkeypatch: pytest.MonkeyPatch) -> gcs.GcsServer:
    for name, value in storage.environ.items():
        monkeypatch.setenv(name, value)
    storage.clear()
    return storage


def parquet(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize("kind", FORMATS)
def test_all_formats_are_read_from_a_bucket(kind: str, server: gcs.GcsServer, tmp_path: Path) -> None:
    table = sample(600)
    path = write(table, tmp_path / f"rows.{kind}", kind)
    server.put("bucket", f"{kind}/rows.{kind}", path.read_bytes())
    remote = make_config(f"gs://bucket/{kind}/*.{kind}", {"by": "hash", "column": "store"})
    local = make_config(path, {"by": "hash", "column": "store"})
    for here, there in zip(open_splits(remote).sources, open_splits(local).sources, strict=True):
        assert read_all(here) == read_all(there)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "tfrecord", "avro"])
def test_large_files_are_read_in_parts(
    kind: str, server: gcs.GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(sample(600), tmp_path / f"rows.{kind}", kind)
    server.put("bucket", f"parts/rows.{kind}", path.read_bytes())
    want = read_all(open_rows(str(path), make_config(path), labelled=True))
    monkeypatch.setattr(files, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(ranges, "PART_BYTES", 4000)
    source = open_rows(f"gs://bucket/parts/rows.{kind}", make_config("x"), labelled=True)
    assert len(source.units()) > 3
    assert read_all(source) == want


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(503, times=2),
        Fault(429, times=2),
        Fault(0),
        Fault(200, "generation=|alt=media|GET /bucket/", cut=3000),
    ],
    ids=["503", "429", "hung up", "cut"],
)
def test_failures_that_pass_are_waited_out(
    fault: Fault, large: bool, server: gcs.GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_WHOLE_BYTES", 0 if large else 1 << 20)
    table = sample(600)
    server.put("bucket", "faults/rows.parquet", parquet(table, row_group_size=200))
    config = make_config("gs://bucket/faults/rows.parquet")
    want = read_all(open_rows(config.data.source, config, labelled=True))
    source = open_rows(config.data.source, config, labelled=True)
    source.units()
    server.clear()
    server.fail(fault)
    assert read_all(source) == want
    assert server.happened


@pytest.mark.parametrize("large", [False, True])
def test_an_object_that_changes_during_a_run_is_an_error(
    large: bool, server: gcs.GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_WHOLE_BYTES", 0 if large else 1 << 20)
    first, second = sample(600, seed=1), sample(600, seed=2)
    server.put("bucket", "changes/rows.parquet", parquet(first, compression="none"))
    source = open_rows("gs://bucket/changes/rows.parquet", make_config("x"), labelled=True)
    assert read_all(source).num_rows
    before = source.fingerprint()
    server.put("bucket", "changes/rows.parquet", parquet(second, compression="none"))
    with pytest.raises(UserError, match=r"gs://bucket/changes/rows\.parquet: changed during the run"):
        read_all(source)
    again = open_rows("gs://bucket/changes/rows.parquet", make_config("x"), labelled=True)
    assert again.fingerprint() != before


def test_an_object_that_changes_while_it_is_read_is_an_error(
    server: gcs.GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_WHOLE_BYTES", 0)
    table = pa.concat_tables([sample(5000)] * 40)  # more than is read ahead
    server.put("bucket", "changes/large.parquet", parquet(table, row_group_size=5000, compression="none"))
    source = open_rows("gs://bucket/changes/large.parquet", make_config("x", chunk_rows=5000), labelled=True)
    batches = source.batches(["amount"])
    next(batches)
    server.put("bucket", "changes/large.parquet", parquet(table.slice(7), compression="none"))
    with pytest.raises(UserError, match=r"large\.parquet: changed during the run"):
        list(batches)


def test_an_object_that_goes_is_an_error_and_a_bucket_that_is_not_there(server: gcs.GcsServer) -> None:
    with pytest.raises(UserError, match=r"gs://nobucket/rows\.parquet.*no such file"):
        open_rows("gs://nobucket/rows.parquet", make_config("x"))
    with pytest.raises(UserError, match=r"gs://bucket/none/\*\.parquet.*no file matches"):
        open_rows("gs://bucket/none/*.parquet", make_config("x"))


def test_a_thousand_small_objects_are_listed_in_order_and_opened_at_once(server: gcs.GcsServer) -> None:
    table = sample(3000)
    count = 1000
    for i in range(count):
        server.put("bucket", f"many/{(i * 7919) % count:04d}.parquet", parquet(table.slice(i * 3, 3)))
    source = open_rows("gs://bucket/many/", make_config("x", key="id"), labelled=True)
    names = [unit.name for unit in source.units()]
    assert names == sorted(names)
    assert len(names) == count
    server.clear()
    rows = read_all(source)
    assert rows.num_rows == table["label"].is_valid().to_numpy().sum()
    assert len([one for one in server.requests if one.startswith("GET")]) <= count + 10  # one each


def test_only_the_columns_that_are_asked_for_are_fetched(
    server: gcs.GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_WHOLE_BYTES", 0)
    wide = pa.table({"label": [0, 1] * 5000, "x": range(10_000)})
    for i in range(20):
        wide = wide.append_column(f"unused{i}", pa.array(range(i, 10_000 + i)))
    server.put("bucket", "wide/rows.parquet", parquet(wide, use_dictionary=False, compression="none"))
    features = [{"name": "x", "kind": "numeric"}]
    source = open_rows("gs://bucket/wide/rows.parquet", make_config("x", features=features), labelled=True)
    assert read_all(source)["x"].to_pylist() == list(range(10_000))


def test_a_bucket_that_cannot_be_reached_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setattr(files, "_FIRST_CONTACT_SECONDS", 1)
        with pytest.raises(UserError, match=r"'gs://bucket/x/\*\.parquet': can't be listed: .*[Cc]onnect"):
            files.list_files(["gs://bucket/x/*.parquet"])
