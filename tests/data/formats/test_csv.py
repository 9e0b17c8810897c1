"""CSV as people and programs write it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from format_writers import make_config, read_all

from trainer.data.source import open_rows, open_splits
from trainer.errors import UserError

AGE_CITY = ({"kind": "numeric", "name": "age"}, {"kind": "categorical", "name": "city"})


def read(data: bytes | str, folder: Path, features: Any = AGE_CITY, **options: Any) -> dict[str, list[Any]]:
    path = folder / "a.csv"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_all(open_rows(str(path), make_config(path, features=features, **options))).to_pydict()


PLAIN = 'age,city\n1,"a, b"\n2,Zürich\n'


@pytest.mark.parametrize(
    "data",
    [
        PLAIN.encode(),
        b"\xef\xbb\xbf" + PLAIN.encode(),
        PLAIN.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + PLAIN.replace("\n", "\r\n").encode(),
        PLAIN.rstrip("\n").encode(),
        PLAIN.replace("\n", "\n\n").encode(),
        PLAIN.replace("age,", " age ,").encode(),
        PLAIN.replace("age", '"age"').encode(),
    ],
    ids=[
        "plain",
        "bom",
        "crlf",
        "bom-crlf",
        "no-last-newline",
        "blank-lines",
        "header-blanks",
        "header-quotes",
    ],
)
def test_spreadsheet_files_equal_the_plain_file(data: bytes, tmp_path: Path) -> None:
    assert read(data, tmp_path) == {"age": [1.0, 2.0], "city": ["a, b", "Zürich"]}


def test_quotes(tmp_path: Path) -> None:
    text = 'age,city\n1,"two\nlines"\n2,"say ""hi"""\n3,5" pipe\n4,""\n'
    assert read(text, tmp_path)["city"] == ["two\nlines", 'say "hi"', '5" pipe', None]
    with pytest.raises(UserError, match=r"a\.csv: the file ends inside a quoted field"):
        read('age,city\n1,x\n2,"two\n3,y\n', tmp_path)
    with pytest.raises(UserError, match=r"a\.csv: the file ends inside a quoted field"):
        read('age,city\n1,x\n2,"cut', tmp_path)


def test_utf16_and_other_encodings(tmp_path: Path) -> None:
    for encoding in ("utf-16", "utf-16-le"):
        with pytest.raises(UserError, match=r"a\.csv: is not UTF-8 text; save it as UTF-8"):
            read(PLAIN.encode(encoding), tmp_path)
    with pytest.raises(UserError, match=r"a\.csv.* is not UTF-8 text"):
        read(PLAIN.encode("latin-1"), tmp_path)
    late = PLAIN.encode() + b"3,x\n" * 20_000 + b"4,\xe9\n"
    with pytest.raises(UserError, match=r"a\.csv:20004: is not UTF-8 text \(column 'city'\)"):
        read(late, tmp_path)


def test_missing_values(tmp_path: Path) -> None:
    cells = ["NA", " NA ", "N/A", "null", "nan", "", '"NA"', " 42 ", "  "]
    text = "age,city\n" + "".join(f"{cell},{cell}\n" for cell in cells)
    found = read(text, tmp_path)
    assert found["age"] == [None] * 7 + [42.0, None]
    assert found["city"] == [None] * 7 + [" 42 ", None]
    assert read("age,city\n-,x\n", tmp_path, csv={"na_values": ["-"]})["age"] == [None]


def test_a_bad_number_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.csv:5: column 'age' holds '1,234', expected a number"):
        read('age,city\n1,"two\nlines"\n\n"1,234",x\n', tmp_path)
    with pytest.raises(UserError, match=r"a\.csv:2: column 'age' holds '-', expected a number"):
        read("age,city\n-,x\n", tmp_path)


def test_ragged_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "age,city\n1,x\n2,y,z\n3,z\n4\nfive,w\n6,v\n"
    with pytest.raises(UserError, match=r"a\.csv:3: has 3 fields, expected 2"):
        read(text, tmp_path)
    with caplog.at_level(logging.WARNING, "trainer"):
        found = read(text, tmp_path, on_bad_record="skip")
    assert found == {"age": [1.0, 3.0, 6.0], "city": ["x", "z", "v"]}
    assert [r.getMessage().partition("a.csv:")[2] for r in caplog.records] == [
        "3: has 3 fields, expected 2",
        "5: has 1 fields, expected 2",
        "6: column 'age' holds 'five', expected a number",
    ]
    with pytest.raises(UserError, match=r"more than 2 records can't be read \(data.max_bad_records\)"):
        read(text, tmp_path, on_bad_record="skip", max_bad_records=2)


def test_skipping_does_not_depend_on_the_columns_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("age,city\n1,x\nbad,y\n3,z\n")
    source = open_rows(str(path), make_config(path, features=AGE_CITY, on_bad_record="skip"))
    assert read_all(source, ["city"])["city"].to_pylist() == ["x", "z"]
    assert source.count() == 2
    assert str(source.counts()) == "2 rows, 1 bad records skipped"


def test_a_skipped_record_is_counted_in_one_split(tmp_path: Path) -> None:
    rows = [f"{i},c{i},{i % 2}" for i in range(300)]
    rows[100] = "1"  # of no split
    rows[200] = "bad,c200,0"
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["age,city,label", *rows]) + "\n")
    split = {"by": "hash", "column": "city", "validation_fraction": 0.3, "test_fraction": 0.3}
    splits = open_splits(make_config(path, features=AGE_CITY, split=split, on_bad_record="skip"))
    assert sum(len(read_all(source)) for source in splits.sources) == 298
    assert sum(source.counts().bad for source in splits.sources) == 2
    assert sum("bad records skipped" in line for line in splits.describe()) in (1, 2)


def test_header_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the header names the column 'age' twice"):
        read("age,age\n1,2\n", tmp_path)
    with pytest.raises(UserError, match=r"a.csv: the file holds no text"):
        read("\n \n", tmp_path)
    with pytest.raises(UserError, match=r"a\.csv: no rows: nothing follows the header"):
        read("age,city\n", tmp_path)
    path = tmp_path / "b.csv"
    path.write_text("age,city,label\n")
    splits = open_splits(make_config(path, split={"by": "hash", "column": "city"}, features=AGE_CITY))
    with pytest.raises(UserError, match=r"b\.csv: no rows: nothing follows the header"):
        read_all(splits.train)
    with pytest.raises(UserError, match=r"no column 'age'; did you mean 'Age'"):
        read("Age,city\n1,x\n", tmp_path)


def test_without_a_header(tmp_path: Path) -> None:
    options = {"header": False, "column_names": ["city", "age"], "delimiter": "\t"}
    assert read("x\t1\ny\t2\n", tmp_path, csv=options) == {"age": [1.0, 2.0], "city": ["x", "y"]}
    with pytest.raises(UserError, match=r"a\.csv:1: has 3 fields, but data.csv.column_names has 2"):
        read("x\t1\t2\n", tmp_path, csv=options)
    with pytest.raises(UserError, match=r"a\.csv:2: column 'age' holds 'no', expected a number"):
        read("x\t1\ny\tno\n", tmp_path, csv=options)
    with pytest.raises(UserError, match=r"needs data.csv.column_names"):
        read("x\t1\n", tmp_path, csv={"header": False})


def test_numbers_of_rows_after_skipped_ones_stay_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["age,city"] + [f"{i},{'c' * 60}" for i in range(200_000)]  # several blocks
    for line in (5, 1000, 140_000):
        lines[line - 1] += ",extra"
    lines[150_000 - 1] = "oops,c"
    with caplog.at_level(logging.WARNING, "trainer"):
        read("\n".join(lines) + "\n", tmp_path, on_bad_record="skip", chunk_rows=1000)
    assert [int(r.getMessage().partition("a.csv:")[2].partition(":")[0]) for r in caplog.records] == [
        5,
        1000,
        140_000,
        150_000,
    ]
