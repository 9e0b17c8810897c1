"""JSON lines as exporters write them."""

from __future__ import annotations

import gzip
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from format_writers import make_config, read_all

from trainer.data.source import open_rows
from trainer.errors import UserError

FEATURES = (
    {"kind": "numeric", "name": "age"},
    {"kind": "categorical", "name": "state"},
    {"kind": "numeric", "name": "lat", "column": "geo.lat"},
    {"kind": "bag", "name": "tags"},
)


def read(data: str | bytes, folder: Path, features: Any = FEATURES, **options: Any) -> dict[str, list[Any]]:
    path = folder / "a.jsonl"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_all(open_rows(str(path), make_config(path, features=features, **options))).to_pydict()


EXPORT = """{"age":"25","state":"CA","geo":{"lat":1.5,"lon":2},"tags":["a","b"]}
{"state":"NY"}

{"age":null,"state":null,"geo":null,"tags":[]}
{"age":25,"state":7,"geo":{},"tags":[1,"b"]}
{"age":2.5,"state":7.0,"geo":{"lat":"3"}}"""


@pytest.mark.parametrize("data", [EXPORT, EXPORT.replace("\n", "\r\n"), "\ufeff" + EXPORT + "\n"])
def test_text_numbers_missing_keys_and_nesting(data: str, tmp_path: Path) -> None:
    assert read(data, tmp_path) == {
        "age": [25.0, None, None, 25.0, 2.5],
        "state": ["CA", "NY", None, "7", "7"],
        "geo.lat": [1.5, None, None, None, 3.0],
        "tags": [["a", "b"], None, None, ["1", "b"], None],
    }


def test_integers_are_not_rounded(tmp_path: Path) -> None:
    large = 2**53 + 1
    features = [{"kind": "integer", "name": "n", "size": 9}, {"kind": "categorical", "name": "id"}]
    for other in ("1", '"1"', "1.0", "null"):
        found = read(f'{{"n":{large},"id":{large}}}\n{{"n":{other},"id":{other}}}\n', tmp_path, features)
        assert found["n"][0] == large
        assert found["id"][0] == str(large)
    assert read(f'{{"n":1,"id":{2**70}}}', tmp_path, features)["id"] == [str(2**70)]
    with pytest.raises(UserError, match=rf"a\.jsonl:1: column 'n' holds '{2**70}', expected an integer"):
        read(f'{{"n":{2**70},"id":1}}', tmp_path, features)


def test_broken_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [
        '{"age":1}',
        "",
        '{"age":2',
        '{"age":"x"}',
        "[1]",
        '{"age":5}',
        '{"age":1,"age":2}',
        '{"age":{"a":1}}',
    ]
    features = FEATURES[:1]
    with pytest.raises(UserError, match=r"a\.jsonl:3: is not JSON: "):
        read("\n".join(lines), tmp_path, features)
    with caplog.at_level(logging.WARNING, "trainer"):
        assert read("\n".join(lines), tmp_path, features, on_bad_record="skip")["age"] == [1.0, 5.0]
    told = " | ".join(record.getMessage() for record in caplog.records)
    parts = (
        ":3: is not JSON",
        ":4: column 'age' holds 'x'",
        ":5: is a JSON list",
        ":7: names the key 'age' twice",
        ":8: 'age' is an object, expected a value",
    )
    for part in parts:
        assert part in told
    with pytest.raises(UserError, match=r"a\.jsonl:2: is not UTF-8 text"):
        read(b'{"age":1}\n{"age":"\xff"}\n', tmp_path, features)
    with pytest.raises(UserError, match=r"a\.jsonl:2: is not UTF-8 text"):
        read('{"age":1}\n{"age":"\\ud800"}\n', tmp_path, features)


def test_not_json_lines(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a JSON array; expected one JSON object a line"):
        read('[{"age":1}]', tmp_path)
    with pytest.raises(UserError, match=r"a\.jsonl:1: is not JSON lines"):
        read("age,state\n1,CA\n", tmp_path)
    with pytest.raises(UserError, match="the file holds no text"):
        read("\n\n", tmp_path)
    with pytest.raises(UserError, match="is not UTF-8 text"):
        read('{"age":1}'.encode("utf-16"), tmp_path)


def test_a_column_that_no_sampled_row_has_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no column 'age'; did you mean 'Age'"):
        read('{"Age":1}\n', tmp_path, FEATURES[:1])
    (tmp_path / "more.jsonl").write_text('{"age":3}\n')
    (tmp_path / "a.jsonl").write_text('{"Age":1}\n')
    found = read_all(open_rows(str(tmp_path), make_config(tmp_path, features=FEATURES[:1])))
    assert found["age"].to_pylist() == [None, 3.0]  # another file has it, so rows may leave it out


def test_names_with_dots(tmp_path: Path) -> None:
    features = [{"kind": "numeric", "name": "a.b"}, {"kind": "numeric", "name": "c.d"}]
    assert read('{"a.b":1,"c":{"d":2}}\n', tmp_path, features) == {"a.b": [1.0], "c.d": [2.0]}


@pytest.mark.parametrize("packed", [False, True])
def test_kinds_that_change_far_into_a_file(packed: bool, tmp_path: Path) -> None:
    rows = [{"age": i, "state": "x" * 500} for i in range(25_000)]
    rows[20_000] = {"age": "7", "state": 5}
    data = "\n".join(map(json.dumps, rows)).encode()
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    source = open_rows(str(path), make_config(path, features=FEATURES[:2]))
    found = read_all(source)
    assert found["age"].to_pylist() == [float(i) if i != 20_000 else 7.0 for i in range(25_000)]
    assert found["state"][20_000].as_py() == "5"
    rows[22_000] = {"age": "?"}
    path.write_bytes("\n".join(map(json.dumps, rows)).encode())
    with pytest.raises(UserError, match=r"gz:22001: column 'age' holds '\?', expected a number"):
        list(open_rows(str(path), make_config(path, features=FEATURES[:2])).batches())
