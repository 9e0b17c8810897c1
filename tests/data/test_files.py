"""Listing, partitions, compression and format of files."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from format_writers import make_config, read_all, sample, write

from trainer.data.files import DataFile, file_format, format_by_name, list_files
from trainer.data.source import open_rows, open_splits
from trainer.errors import UserError

X = [{"kind": "numeric", "name": "x"}]


def names(sources: list[str], root: Path) -> list[str]:
    return [str(Path(file.path).relative_to(root)) for file in list_files(sources)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "b.csv",
        "a.csv",
        "sub/c.csv",
        "sub/deep/d.csv",
        "_SUCCESS",
        ".hidden.csv",
        "_tmp/e.csv",
        "x[1].csv",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n1\n")
    return tmp_path


def test_folders_globs_and_lists(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = ["a.csv", "b.csv", "sub/c.csv", "sub/deep/d.csv", "x[1].csv"]
    assert names([str(tree)], tree) == everything
    assert names([f"{tree}/*.csv"], tree) == ["a.csv", "b.csv", "x[1].csv"]
    assert names([f"{tree}/[a-b].csv"], tree) == ["a.csv", "b.csv"]
    assert names([f"{tree}/**/*.csv"], tree) == everything
    assert names([f"{tree}/s*"], tree) == ["sub/c.csv", "sub/deep/d.csv"]
    assert names([f"{tree}/s*/?.csv"], tree) == ["sub/c.csv"]
    assert names([f"{tree}/b.csv", f"{tree}/*.csv"], tree) == ["b.csv", "a.csv", "x[1].csv"]  # each file once
    assert names([f"{tree}/x[1].csv"], tree) == ["x[1].csv"]  # a name that looks like a glob and exists
    monkeypatch.chdir(tree)
    assert [file.path for file in list_files(["*.csv"])] == ["a.csv", "b.csv", "x[1].csv"]
    assert [file.path for file in list_files(["sub"])] == ["sub/c.csv", "sub/deep/d.csv"]
    assert len(list_files(["."])) == 5


def test_nothing_there(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no file matches"):
        list_files([f"{tree}/*.parquet"])
    with pytest.raises(UserError, match=r"aa\.csv': no such file or folder; did you mean 'a\.csv'"):
        list_files([f"{tree}/aa.csv"])
    (tree / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty': no file in this folder"):
        list_files([f"{tree}/empty"])
    monkeypatch.chdir(tree)
    with pytest.raises(
        UserError, match=rf"'aa\.csv': no such file or folder in {tree}; did you mean 'a\.csv'"
    ):
        list_files(["aa.csv"])
    with pytest.raises(UserError, match=rf"'\*\.parquet': no file matches in {tree} \("):
        list_files(["*.parquet"])
    with pytest.raises(UserError, match="unknown scheme 's3'"):
        list_files(["s3://bucket/x"])


def test_partitions_are_columns(tmp_path: Path) -> None:
    for year in (2023, 2024):
        for place in ("New%20York", "__HIVE_DEFAULT_PARTITION__"):
            folder = tmp_path / f"year={year}" / f"place={place}"
            folder.mkdir(parents=True)
            pq.write_table(pa.table({"x": [float(year)], "label": ["yes"]}), folder / "a.parquet")
    features = [*X, {"kind": "numeric", "name": "year"}, {"kind": "categorical", "name": "place"}]
    split = {"by": "column", "column": "year", "train_value": "2023", "validation_value": "2024"}
    splits = open_splits(make_config(tmp_path, split, features=features))
    assert splits.test is None
    assert [unit.name.count("year=2023") for unit in splits.train.units()] == [
        1,
        1,
    ]  # others are not opened for it
    found = read_all(splits.train).to_pydict()
    assert found["year"] == [2023.0, 2023.0]
    assert sorted(found["place"], key=str) == ["New York", None] or found["place"] == ["New York", None]


def test_format_by_name() -> None:
    assert format_by_name("gs://b/x.CSV.GZ") == "csv"
    assert format_by_name("train.tfrecord-00001-of-00010") == "tfrecord"
    assert format_by_name("a/part-00000") is None
    assert format_by_name("x.ndjson") == "jsonl"


def test_format_by_content(tmp_path: Path) -> None:
    for kind in ("parquet", "avro", "arrow"):
        path = write(sample(5), tmp_path / kind / "part-0", kind)
        assert file_format(list_files([str(path)])[0]) == kind
    path = tmp_path / "part-1"
    path.write_text("x\n1\n")
    with pytest.raises(UserError, match=r"can't tell the format by its name; set data.format"):
        file_format(list_files([str(path)])[0])
    assert file_format(list_files([str(path)])[0], "csv") == "csv"


def test_content_that_is_not_what_the_name_says(tmp_path: Path) -> None:
    table = sample(5)
    path = write(table, tmp_path / "a.csv", "parquet")
    with pytest.raises(UserError, match=r"a\.csv: expected csv, but its content is parquet"):
        file_format(list_files([str(path)])[0])
    path = tmp_path / "b.parquet"
    path.write_text("x,y\n1,2\n")
    with pytest.raises(UserError, match=r"b\.parquet: is not a parquet file"):
        file_format(list_files([str(path)])[0])
    path.write_bytes(gzip.compress(b"PAR1"))
    with pytest.raises(UserError, match="compressed as a whole with gzip, which parquet files are not"):
        file_format(list_files([str(path)])[0])
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"b\.parquet: the file is empty \(0 bytes\)"):
        file_format(list_files([str(path)])[0])


def test_compression_goes_by_content(tmp_path: Path) -> None:
    text = b"x,label\n1,yes\n"
    packed = {
        "plain.csv.gz": text,  # the name lies
        "gzip.csv": gzip.compress(text),
        "two.csv.gz": gzip.compress(b"x,label\n") + gzip.compress(b"1,yes\n"),
        "b.csv.bz2": bz2.compress(text),
        "z.csv.zst": pa.compress(text, codec="zstd", asbytes=True),
    }
    config = make_config(tmp_path, features=X)
    for name, data in packed.items():
        (tmp_path / name).write_bytes(data)
        assert read_all(open_rows(str(tmp_path / name), config))["x"].to_pylist() == [1.0], name
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(text * 100)[:-9])
    with pytest.raises(UserError, match=r"cut\.csv\.gz: the gzip data is damaged or cut short"):
        list(open_rows(str(cut), config).batches())
    (tmp_path / "x.csv.xz").write_bytes(b"\xfd7zXZ\x00....")
    with pytest.raises(UserError, match="compressed with xz; expected gzip, zstd, bz2 or none"):
        list(open_rows(str(tmp_path / "x.csv.xz"), config).batches())


def test_mixed_formats_and_schemas(tmp_path: Path) -> None:
    config = make_config(tmp_path, features=X)
    pq.write_table(pa.table({"x": [1.0], "label": ["yes"]}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("x,label\n1,yes\n")
    with pytest.raises(
        UserError, match=r"b\.csv: is a csv file, but .*a\.parquet is parquet; use one format"
    ):
        list(open_rows(str(tmp_path), config).batches())
    (tmp_path / "b.csv").unlink()
    pq.write_table(pa.table({"X": [1.0], "label": ["yes"]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet: no column 'x' that .*a\.parquet has"):
        list(open_rows(str(tmp_path), config).batches())
    pq.write_table(pa.table({"x": [[1.0]], "label": ["yes"]}), tmp_path / "b.parquet")
    with pytest.raises(
        UserError, match=r"b\.parquet: column 'x' holds list.* number is wanted \(.*a\.parquet holds"
    ):
        list(open_rows(str(tmp_path), config).batches())


def test_missing_column_names_the_nearest(tmp_path: Path) -> None:
    path = write(sample(5), tmp_path / "a.parquet", "parquet")
    features = [{"kind": "numeric", "name": "amont"}]
    with pytest.raises(UserError, match=r"a\.parquet: no column 'amont'; did you mean 'amount'"):
        open_splits(make_config(path, features=features)).train.units()


def test_a_file_keeps_its_path_in_messages() -> None:
    with pytest.raises(UserError, match=r"gone.csv: can't be opened"):
        DataFile("gone.csv", 1, (), "/nowhere/gone.csv", list_files([__file__])[0].filesystem).head(1)
