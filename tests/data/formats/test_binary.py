"""Parquet, Avro and Arrow files: types, nested fields, damage."""

from __future__ import annotations

import datetime
import decimal
import sys
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from format_writers import make_config, read_all, sample, write

from trainer.data import cast
from trainer.data.source import open_rows
from trainer.errors import UserError


def rows(path: Path, features: Any = None, **options: Any) -> dict[str, list[Any]]:
    features = features or [{"kind": "numeric", "name": "income"}, {"kind": "categorical", "name": "state"}]
    return read_all(open_rows(str(path), make_config(path, features=features, **options))).to_pydict()


def test_parquet_with_nulls_in_several_row_groups(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    income = pa.array(rng.normal(size=5000), mask=(np.arange(5000) > 2000) & (np.arange(5000) < 2600))
    state = pa.array([None if i % 7 == 0 else f"s{i % 50}" for i in range(5000)])
    seen = pa.array([datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=i) for i in range(5000)])
    table = pa.table(
        {"income": income, "state": state.dictionary_encode(), "seen": seen.cast(pa.timestamp("ns"))}
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=1700, use_deprecated_int96_timestamps=True)
    features = [
        {"kind": "numeric", "name": "income"},
        {"kind": "categorical", "name": "state"},
        {"kind": "datetime", "name": "seen"},
    ]
    found = rows(path, features, chunk_rows=1000)
    assert found["income"] == income.to_pylist()
    assert found["state"] == state.to_pylist()
    assert found["seen"][4999].replace(tzinfo=None) == seen[4999].as_py()
    empty = tmp_path / "empty.parquet"
    pq.write_table(table.slice(0, 0), empty)
    with pytest.raises(UserError, match=r"empty\.parquet: no rows"):
        rows(empty, features)


def test_parquet_text_comes_as_dictionaries(tmp_path: Path) -> None:
    path = write(sample(3000), tmp_path / "a.parquet", "parquet", row_group=3000)
    source = open_rows(str(path), make_config(path))
    batch = next(source.batches(["state"]))
    assert batch.schema.field("state").type == cast.TEXT
    assert len(batch.column("state").dictionary) == 7


def test_small_row_groups_are_read_together(tmp_path: Path) -> None:
    path = write(sample(1000), tmp_path / "a.parquet", "parquet", row_group=10)
    source = open_rows(str(path), make_config(path, chunk_rows=95))
    assert len(source.units()) == 12
    assert [unit.rows for unit in source.units()][:2] == [90, 90]
    assert max(batch.num_rows for batch in source.batches(["amount"])) == 90


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_nested_fields(kind: str, tmp_path: Path) -> None:
    table = pa.table(
        {"geo": pa.array([{"lat": 1.5, "at": {"x": 1}}, None, {"lat": None, "at": None}]), "n": [1, 2, 3]}
    )
    path = write(table, tmp_path / f"a.{kind}", kind)
    features = [
        {"kind": "numeric", "name": "lat", "column": "geo.lat"},
        {"kind": "integer", "name": "x", "column": "geo.at.x", "size": 5},
        {"kind": "numeric", "name": "n"},
    ]
    found = rows(path, features)
    assert found == {"geo.lat": [1.5, None, None], "geo.at.x": [1, None, None], "n": [1.0, 2.0, 3.0]}


def test_arrow_stream_and_feather(tmp_path: Path) -> None:
    table = pa.table({"income": [1.0, None], "state": ["a", None]})
    stream = tmp_path / "a.arrows"
    with pa.OSFile(str(stream), "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    feather.write_feather(table, tmp_path / "b.feather", compression="zstd")
    for name in ("a.arrows", "b.feather"):
        assert rows(tmp_path / name) == table.to_pydict()
    with pa.OSFile(str(stream), "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table.slice(0, 0))
    with pytest.raises(UserError, match="no rows"):
        rows(stream)


def test_arrow_twice_the_same_column(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["income", "income"])
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(UserError, match="has the column 'income' twice"):
        rows(path)


def test_a_wrong_type_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"income": ["1", "x"], "state": ["a", "b"]}), path)
    with pytest.raises(UserError, match=r"a\.parquet, row 2: column 'income' holds 'x', expected a number"):
        rows(path)
    pq.write_table(pa.table({"income": [datetime.date(2024, 1, 1)], "state": ["a"]}), path)
    with pytest.raises(
        UserError, match=r"a\.parquet: column 'income' holds date32.* where a number is wanted"
    ):
        rows(path)


LAT = [{"name": "lat", "type": "float"}]
AVRO = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "income", "type": ["null", "long", "double"]},
        {"name": "state", "type": ["null", {"type": "enum", "name": "states", "symbols": ["CA", "NY"]}]},
        {"name": "again", "type": ["null", "states"]},
        {"name": "any", "type": ["null", "long", "string", "boolean"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "money", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "geo", "type": ["null", {"type": "record", "name": "geo", "fields": LAT}]},
    ],
}  # fmt: skip


def test_avro_types(tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    records = [
        {"income": 1, "state": "CA", "again": "NY", "any": 7, "day": datetime.date(2024, 1, 2),
         "money": decimal.Decimal("1.25"), "tags": ["a"], "geo": {"lat": 0.5}},
        {"income": 2.5, "state": None, "again": None, "any": "x", "day": datetime.date(2024, 1, 3),
         "money": decimal.Decimal("-3.00"), "tags": [], "geo": None},
        {"income": None, "state": "NY", "again": "CA", "any": True, "day": datetime.date(2024, 1, 4),
         "money": decimal.Decimal("0"), "tags": ["b", "c"], "geo": {"lat": 1.0}},
    ]  # fmt: skip
    with path.open("wb") as out:
        fastavro.writer(out, AVRO, records, codec="deflate")
    features = [
        {"kind": "numeric", "name": "income"},
        {"kind": "categorical", "name": "state"},
        {"kind": "categorical", "name": "again"},
        {"kind": "categorical", "name": "any"},
        {"kind": "datetime", "name": "day"},
        {"kind": "numeric", "name": "money"},
        {"kind": "bag", "name": "tags"},
        {"kind": "numeric", "name": "lat", "column": "geo.lat"},
    ]
    found = rows(path, features)
    assert found["income"] == [1.0, 2.5, None]
    assert found["state"] == ["CA", None, "NY"]
    assert found["again"] == ["NY", None, "CA"]
    assert found["any"] == ["7", "x", "true"]
    assert [d.day for d in found["day"]] == [2, 3, 4]
    assert found["money"] == [1.25, -3.0, 0.0]
    assert found["tags"] == [["a"], None, ["b", "c"]]
    assert found["geo.lat"] == [0.5, None, 1.0]


def test_avro_reads_few_columns_of_many(tmp_path: Path) -> None:
    fields = [{"name": f"c{i}", "type": "long"} for i in range(30)]
    path = tmp_path / "a.avro"
    with path.open("wb") as out:
        record = {f"c{i}": i for i in range(30)}
        fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, [record] * 10)
    assert rows(path, [{"kind": "numeric", "name": "c7"}]) == {"c7": [7.0] * 10}


def test_avro_without_records(tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    with path.open("wb") as out:
        fastavro.writer(out, {"type": "array", "items": "long"}, [[1]])
    with pytest.raises(UserError, match="holds no records"):
        rows(path)


@pytest.mark.parametrize("kind", ["parquet", "avro", "arrow"])
def test_files_cut_short_are_named(kind: str, tmp_path: Path) -> None:
    path = write(sample(2000), tmp_path / f"a.{kind}", kind)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(UserError, match=rf"a\.{kind}: .*can't be read"):
        list(open_rows(str(path), make_config(path)).batches())
