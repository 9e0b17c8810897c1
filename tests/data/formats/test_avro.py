"""Avro blocks decoded in NumPy: the values that fastavro gives, for all types, damaged or not."""

from __future__ import annotations

import datetime
import random
import sys
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from format_writers import make_config, read_all
from test_fuzz import mutate

from trainer.config import CsvConfig
from trainer.data.example_columns import UnusualError
from trainer.data.files import list_files
from trainer.data.formats import ReadOptions, avro, avro_columns
from trainer.data.source import open_rows
from trainer.errors import UserError

TIMES = ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
KINDS = ("long", "int", "float", "double", "boolean", "string", "bytes", "enum", "date", *TIMES)


def avro_type(kind: str, number: int) -> Any:
    if kind == "enum":
        return {"type": "enum", "name": f"e{number}", "symbols": ["A", "B"]}
    if kind == "date" or kind in TIMES:
        return {"type": "int" if kind == "date" else "long", "logicalType": kind}
    return {"type": kind, "avro.java.string": "String"} if kind == "string" and number % 2 else kind


def value(kind: str, draw: random.Random) -> Any:
    if kind == "long":
        some = (0, -1, 63, 64, -64, -65, 2**31, -(2**63), 2**63 - 1, draw.getrandbits(62))
        return draw.choice((*some, -draw.getrandbits(55)))
    if kind == "int":
        return draw.choice((0, -1, 2**31 - 1, -(2**31), draw.randint(-99, 99)))
    if kind in ("float", "double"):
        return float(np.float32(draw.choice((0.0, -1.5, float("inf"), draw.gauss(0, 1)))))
    if kind == "string":
        return draw.choice(("", "a", "Zürich", "12345678", "x" * draw.choice((9, 63, 64, 200)), "y" * 9000))
    if kind == "bytes":
        return draw.randbytes(draw.choice((0, 1, 8, 100)))
    if kind == "date":
        return datetime.date(1, 1, 1) + datetime.timedelta(days=draw.randint(0, 3_000_000))
    if kind in TIMES:
        zone = None if "local" in kind else datetime.timezone.utc
        start = datetime.datetime(2000, 1, 1, tzinfo=zone)
        return start + datetime.timedelta(milliseconds=draw.randint(-(10**12), 10**12))
    return draw.random() < 0.5 if kind == "boolean" else draw.choice("AB")


def write(path: Path, draw: random.Random, kinds: list[str], rows: int, interval: int) -> None:
    shares, fields = [], []
    for number, kind in enumerate(kinds):
        stored = avro_type(kind, number)
        union = draw.choice((None, ["null", stored], [stored, "null"]))
        shares.append(0 if union is None else draw.choice((0, 0.1, 1)))
        fields.append({"name": f"f{number}", "type": stored if union is None else union})
    records = [
        {
            f"f{number}": None if draw.random() < shares[number] else value(kind, draw)
            for number, kind in enumerate(kinds)
        }
        for _ in range(rows)
    ]
    schema = {"type": "record", "name": "row", "fields": fields}
    with path.open("wb") as out:
        fastavro.writer(out, schema, records, codec=draw.choice(("null", "deflate")), sync_interval=interval)


def read(path: Path, columns: list[str], in_numpy: bool) -> list[str] | str:
    try:
        reader = avro.AvroReader(list_files([str(path)])[0], ReadOptions({}, 1 << 20, CsvConfig()))
        if not reader._fields or not set(columns) <= set(reader.schema()):
            return "another header"
        reader._fields = reader._fields if in_numpy else None
        found: list[str] = []
        for batch, first in reader.read(reader.parts()[0], columns, lambda row, reason: None):
            assert first == len(found)
            batch.validate(full=True)
            found += map(repr, batch.to_pylist())
        return found
    except UserError:
        return "error"


def test_values_are_those_of_fastavro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, rng = random.Random(4), np.random.default_rng(4)
    decode, done = avro_columns.decode, {"numpy": 0, "fastavro": 0, "error": 0}

    def counted(*arguments: Any) -> Any:
        try:
            columns = decode(*arguments)
        except UnusualError:
            done["fastavro"] += 1
            raise
        done["numpy"] += 1
        return columns

    monkeypatch.setattr(avro_columns, "decode", counted)
    path = tmp_path / "a.avro"
    for turn in range(120):
        monkeypatch.setattr(avro_columns, "_LEAST", draw.choice((0, 2, 12)))
        monkeypatch.setattr(avro, "_TOGETHER", draw.choice((200, 5000, 1 << 20)))
        kinds = draw.choices(KINDS, k=draw.randint(1, 8))
        write(path, draw, kinds, draw.randint(1, 120), draw.choice((1, 50, 300, 3000)))
        if turn % 2:
            path.write_bytes(mutate(path.read_bytes(), rng))
        columns = [f"f{number}" for number in range(len(kinds)) if draw.random() < 0.7] or ["f0"]
        found = read(path, columns, in_numpy=True)
        assert found == read(path, columns, in_numpy=False)
        done["error"] += found == "error"
    assert min(done.values()) > 10


def test_every_row_of_a_file_is_decoded_in_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro.AvroReader, "_objects", None)
    path = tmp_path / "a.avro"
    fields = [{"name": "x", "type": ["null", "double"]}, {"name": "s", "type": ["null", "string"]}]
    schema = {"type": "record", "name": "row", "fields": [*fields, {"name": "label", "type": "long"}]}
    rows = [
        {"x": i / 2 if i % 7 else None, "s": f"{i % 9}" if i % 5 else None, "label": i % 2}
        for i in range(5000)
    ]
    with path.open("wb") as out:
        fastavro.writer(out, schema, rows, sync_interval=500)
    features = [{"kind": "numeric", "name": "x"}, {"kind": "categorical", "name": "s"}]
    found = read_all(open_rows(str(path), make_config(path, features=features), labelled=True))
    assert found.to_pydict() == {
        "x": [row["x"] for row in rows],
        "s": [row["s"] for row in rows],
        "label": [str(row["label"]) for row in rows],
    }


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "int"},
        ["null", "int", "string"],
        {"type": "bytes", "logicalType": "decimal", "precision": 4},
        {"type": "record", "name": "inner", "fields": []},
        {"type": "fixed", "name": "f", "size": 2},
    ],
)
def test_other_types_are_left_to_fastavro(kind: Any) -> None:
    fields = [{"name": "x", "type": "int"}, {"name": "y", "type": kind}]
    assert avro_columns.fields_of({"fields": fields[:1]})
    assert avro_columns.fields_of({"fields": fields}) is None
