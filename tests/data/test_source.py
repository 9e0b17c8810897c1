"""Every format gives the same rows; wanted types; splits from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from format_writers import FEATURES, FORMATS, make_config, read_all, sample, write

from trainer.data import cast
from trainer.data.source import open_rows, open_splits, wanted_types
from trainer.errors import UserError

TIME_SPLIT = {"by": "time", "column": "day", "validation_from": "2024-01-06", "test_from": "2024-01-08"}


def as_text(table: pa.Table) -> dict[str, list[Any]]:
    """Columns as lists, categories that are integers in their text form."""
    columns = table.to_pydict()
    columns["store"] = [None if v is None else str(v) for v in columns["store"]]
    return columns


def expected(table: pa.Table) -> dict[str, list[Any]]:
    """What batches should hold, worked out in plain Python."""
    columns = table.to_pydict()
    columns["store"] = [None if v is None else str(v) for v in columns["store"]]
    columns["tags"] = [v or None for v in columns["tags"]]
    columns["count"] = [None if v is None else float(v) for v in columns["count"]]
    return columns


@pytest.mark.parametrize("kind", FORMATS)
def test_all_formats_give_the_rows_that_were_written(kind: str, tmp_path: Path) -> None:
    table = sample(1000)
    path = write(table, tmp_path / f"rows.{kind}", kind)
    source = open_rows(str(path), make_config(path, chunk_rows=300, key="id"), labelled=True)
    found = read_all(source)
    labelled = table.filter(table["label"].is_valid())
    want = expected(labelled)
    have = as_text(found)
    for name in (*(f["name"] for f in FEATURES), "label"):
        assert have[name] == want[name], name
    assert [str(v) for v in have["id"]] == [str(v) for v in want["id"]]
    counts = source.counts()
    assert (counts.rows, counts.missing_label) == (labelled.num_rows, 1000 - labelled.num_rows)
    assert source.count() == labelled.num_rows
    assert all(batch.num_rows <= 300 for batch in source.batches())


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("split", [TIME_SPLIT, {"by": "hash", "column": "store"}], ids=["time", "hash"])
def test_splits_are_the_same_in_all_formats(kind: str, split: dict[str, str], tmp_path: Path) -> None:
    table = sample(1000)
    reference = open_splits(make_config(write(table, tmp_path / "rows.parquet", "parquet"), split))
    splits = open_splits(make_config(write(table, tmp_path / f"rows.{kind}", kind), split))
    total = 0
    for have, want in zip(splits.sources, reference.sources, strict=True):
        assert as_text(read_all(have)) == as_text(read_all(want))
        assert have.count() == want.count() == sum(b.num_rows for b in have.batches(["amount"]))
        total += have.count()
    assert total == table["label"].is_valid().to_numpy().sum()


def test_wanted_types_are_those_of_the_schema(tmp_path: Path) -> None:
    path = write(sample(50), tmp_path / "rows.csv", "csv")
    config = make_config(path, key="id", weight="amount", features=[*FEATURES[1:]])
    types = wanted_types(config)
    assert types["count"] == pa.float64()
    assert types["state"] == types["store"] == types["label"] == types["id"] == cast.TEXT
    assert types["big"] == pa.int64()
    assert types["member"] == pa.bool_()
    assert types["seen"] == pa.timestamp("us", tz="UTC")
    assert types["tags"] == pa.list_(pa.string())
    assert types["vector"] == pa.list_(pa.float32())
    assert types["amount"] == pa.float64()
    source = open_splits(config).train
    assert dict(zip(source.schema.names, source.schema.types, strict=True)) == types  # CSV: all as asked


def test_stored_integers_stay_integers(tmp_path: Path) -> None:
    path = write(sample(200), tmp_path / "rows.parquet", "parquet")
    source = open_splits(make_config(path)).train
    assert source.schema.field("store").type == pa.int64()
    assert source.schema.field("state").type == cast.TEXT
    assert next(source.batches()).schema == source.schema


def test_a_column_that_is_integer_in_one_file_and_text_in_another_is_text(tmp_path: Path) -> None:
    for name, values in (("a", [7, None]), ("b", ["7", "x"])):
        pq.write_table(pa.table({"c": values, "label": ["no", "yes"]}), tmp_path / f"{name}.parquet")
    config = make_config(tmp_path, features=[{"kind": "categorical", "name": "c"}])
    assert read_all(open_rows(str(tmp_path), config))["c"].to_pylist() == ["7", None, "7", "x"]


def test_a_column_can_be_a_number_and_a_category(tmp_path: Path) -> None:
    features = [{"kind": "numeric", "name": "hour"}, {"kind": "hashed", "name": "hour_id", "column": "hour"}]
    config = make_config(tmp_path, features=features)
    assert wanted_types(config)["hour"] == pa.float64()
    pq.write_table(pa.table({"hour": [3, 4], "label": ["no", "yes"]}), tmp_path / "a.parquet")
    assert open_rows(str(tmp_path), config).schema.field("hour").type == pa.int64()
    bad = [{"kind": "datetime", "name": "t"}, {"kind": "hashed", "name": "u", "column": "t"}]
    with pytest.raises(UserError, match=r"column 't' is read by feature 't' as a date.*feature 'u' as text"):
        wanted_types(make_config(tmp_path, features=bad))


def test_units_in_any_order_give_the_same_rows(tmp_path: Path) -> None:
    table = sample(1000)
    path = write(table, tmp_path / "rows.parquet", "parquet")
    source = open_splits(make_config(path, TIME_SPLIT, chunk_rows=128)).train
    units = source.units()
    assert len(units) == 4  # days 1-5 are rows 0-499: 4 of 8 row groups
    assert [unit.index for unit in units] == list(range(4))
    assert all(unit.rows is None for unit in units)  # text labels may be empty: only reading tells
    whole = read_all(source).to_pydict()
    parts = [
        pa.concat_tables([pa.Table.from_batches([b]) for b in source.read(unit, ["amount"])]).num_rows
        for unit in units
    ]
    assert [unit.rows for unit in source.units()] == parts
    turned = [b for b in source.batches(["amount"], units[::-1])]
    assert sorted(v or 0 for b in turned for v in b["amount"].to_pylist()) == sorted(
        v or 0 for v in whole["amount"]
    )
    assert turned[0]["amount"].to_pylist() != whole["amount"][: turned[0].num_rows]


def test_time_split_reads_only_the_row_groups_that_it_needs(tmp_path: Path) -> None:
    table = sample(1000).set_column(11, "label", pa.array([i % 2 for i in range(1000)]))
    path = write(table, tmp_path / "rows.parquet", "parquet", row_group=50)
    splits = open_splits(make_config(path, TIME_SPLIT, chunk_rows=50))
    assert [len(source.units()) for source in splits.sources] == [10, 4, 6]
    # Row groups that lie in one split, with integer labels and no nulls: known without reading a row.
    assert [[u.rows for u in s.units()] for s in splits.sources] == [[50] * 10, [50] * 4, [50] * 6]
    assert [source.count() for source in splits.sources] == [500, 200, 300]


def test_split_by_column(tmp_path: Path) -> None:
    table = sample(300, nulls=False)
    table = table.append_column("part", pa.array(["training", "validation", "test"] * 100))
    path = write(table, tmp_path / "rows.parquet", "parquet")
    splits = open_splits(make_config(path, {"by": "column", "column": "part"}, key="id"))
    assert [read_all(s)["id"].to_pylist()[:2] for s in splits.sources] == [[0, 3], [1, 4], [2, 5]]
    two = table.filter(pa.compute.not_equal(table["part"], "test"))
    path = write(two, tmp_path / "two.parquet", "parquet")
    assert open_splits(make_config(path, {"by": "column", "column": "part"})).test is None
    wrong = table.set_column(table.num_columns - 1, "part", pa.array(["TRAIN", "VALIDATE", "TEST"] * 100))
    path = write(wrong, tmp_path / "wrong.parquet", "parquet")
    with pytest.raises(UserError, match=r"'part' holds 'TEST', 'TRAIN', 'VALIDATE', expected 'training'"):
        list(open_splits(make_config(path, {"by": "column", "column": "part"})).train.batches())


def test_split_by_paths(tmp_path: Path) -> None:
    table = sample(90, nulls=False)
    for place, name in enumerate(("train", "valid", "test")):
        write(table.slice(place * 30, 30), tmp_path / name / "a.parquet", "parquet")
    split = {
        "by": "paths",
        "validation_source": [str(tmp_path / "valid")],
        "test_source": [str(tmp_path / "test")],
    }
    splits = open_splits(make_config(tmp_path / "train", split, key="id"))
    assert [read_all(s)["id"].to_pylist()[0] for s in splits.sources] == [0, 30, 60]
    assert [source.name for source in splits.sources] == ["train", "validation", "test"]
    del split["test_source"]
    assert open_splits(make_config(tmp_path / "train", split)).test is None
    with pytest.raises(UserError, match=r"a\.parquet: is in both the train and the validation split"):
        open_splits(make_config(tmp_path, split))


def test_empty_split_says_what_the_column_holds(tmp_path: Path) -> None:
    path = write(sample(100), tmp_path / "rows.csv", "csv")
    split = {"by": "time", "column": "day", "validation_from": "2030-01-01"}
    validation = open_splits(make_config(path, split)).validation
    assert validation is not None
    with pytest.raises(
        UserError, match=r"no row is in the validation split: column 'day' goes from 2024-01-01"
    ):
        list(validation.batches())
    assert validation.count() == 0
    assert "no row is in the validation split: column 'day' goes from 2024-01-01" in str(validation.no_rows())


def test_limit_rows_cuts_each_split(tmp_path: Path) -> None:
    table = sample(1000)
    for kind in ("parquet", "csv"):
        path = write(table, tmp_path / f"rows.{kind}", kind)
        whole = open_splits(make_config(path, chunk_rows=64))
        cut = open_splits(make_config(path, chunk_rows=64, limit_rows=70))
        for many, few in zip(whole.sources, cut.sources, strict=True):
            assert few.count() == min(70, many.count())
            assert read_all(few).to_pydict() == read_all(many).slice(0, 70).to_pydict()
            assert sum(unit.rows or 0 for unit in few.units()) == few.count()


def test_missing_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('x,label\n1,yes\n2,\n3, NA \n4,""\n5, no \n')
    features = [{"kind": "numeric", "name": "x"}]
    source = open_rows(str(path), make_config(path, features=features), labelled=True)
    assert read_all(source).to_pydict() == {"x": [1.0, 5.0], "label": ["yes", "no"]}
    assert str(source.counts()) == "2 rows, 3 dropped without a label"
    counted = open_rows(str(path), make_config(path, features=features), labelled=True)
    assert counted.count() == 2  # as the first pass does without a cache
    assert str(counted.counts()) == "2 rows, 3 dropped without a label"
    strict = make_config(path, features=features, label={"column": "label", "missing": "fail"})
    with pytest.raises(UserError, match=r"a\.csv:3: no label in column 'label'"):
        list(open_rows(str(path), strict, labelled=True).batches())
    assert open_rows(str(path), strict).count() == 5  # unlabelled rows are fine for predictions
    path.write_text("x,label\n1,\n2,\n")
    with pytest.raises(UserError, match=r"all 2 rows of the .* split lack a label"):
        list(open_rows(str(path), make_config(path, features=features), labelled=True).batches())


def test_regression_and_multilabel_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3], "y": [1.5, float("nan"), None], "z": [True, False, True]}), path)
    features = [{"kind": "numeric", "name": "x"}]
    config = make_config(path, features=features, task="regression", label={"column": "y"})
    assert read_all(open_rows(str(path), config, labelled=True)).to_pydict() == {"x": [1.0], "y": [1.5]}
    config = make_config(path, features=features, task="multilabel", label={"column": ["z", "y"]})
    assert read_all(open_rows(str(path), config, labelled=True)).to_pydict()["z"] == [1.0]


@pytest.mark.parametrize("threads", [1, 4])
def test_order_does_not_depend_on_threads(threads: int, tmp_path: Path) -> None:
    table = sample(900, nulls=False)
    for place in range(9):
        write(table.slice(place * 100, 100), tmp_path / f"part-{place}.csv", "csv")
    source = open_rows(str(tmp_path), make_config(tmp_path, reader_threads=threads, key="id"))
    assert read_all(source, ["id"])["id"].to_pylist() == [str(i) for i in range(900)]


def test_files_and_tables_do_not_mix() -> None:
    with pytest.raises(UserError, match="files and tables don't go together"):
        open_splits(make_config(["bigquery://p.d.t", "a.csv"]))
