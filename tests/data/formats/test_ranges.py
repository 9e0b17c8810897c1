"""Large files read in parts: the rows, their order, their numbers and every count as of the whole file."""

from __future__ import annotations

import logging
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from format_writers import make_config, read_all, sample, write
from test_fuzz import mutate

from trainer.data.encode import Encoder
from trainer.data.formats import avro_columns, csv_records, ranges
from trainer.data.pipeline import Pipeline
from trainer.data.source import open_rows, open_splits
from trainer.errors import UserError
from trainer.features import fit

KINDS = ("csv", "jsonl", "tfrecord", "avro")
PART = 6000


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def in_parts(monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    monkeypatch.setattr(ranges, "PART_BYTES", size or 1 << 40)


@pytest.mark.parametrize(
    "split",
    [{"by": "hash", "column": "id"}, {"by": "time", "column": "day", "validation_from": "2024-01-04"}],
    ids=["hash", "time"],
)
def test_the_rows_of_the_whole_file_in_their_order(
    kind: str, split: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(sample(600), tmp_path / f"rows.{kind}", kind)
    found = []
    for size, threads in ((None, 1), (PART, 4), (1500, 1)):
        in_parts(monkeypatch, size)
        splits = open_splits(make_config(path, split, key="id", reader_threads=threads, chunk_rows=100))
        units = splits.train.units()
        assert len(units) == (1 if size is None else path.stat().st_size // size)
        rows = [read_all(source).to_pydict() for source in splits.sources]
        assert [source.count() for source in splits.sources] == [len(part["id"]) for part in rows]
        found.append((rows, [str(source.counts()) for source in splits.sources]))
        assert sum(unit.rows or 0 for unit in splits.train.units()) == len(rows[0]["id"])
        cut = make_config(path, split, key="id", limit_rows=90)
        assert read_all(open_splits(cut).train, ["id"])["id"].to_pylist() == rows[0]["id"][:90]
    assert all(one == found[0] for one in found)


def test_small_and_compressed_files_are_one_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts(monkeypatch, 5000)
    small = write(sample(50), tmp_path / "rows.csv", "csv")
    packed = write(sample(1000), tmp_path / "packed.csv.gz", "csv")
    assert small.stat().st_size < 10_000 < packed.stat().st_size
    for path in (small, packed):
        units = open_rows(str(path), make_config(path), labelled=True).units()
        assert [unit.name for unit in units] == [str(path)]


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_do_not_depend_on_threads_nor_on_where_an_epoch_is_taken_up(
    kind: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = sample(600, nulls=False).drop_columns(["tags", "vector"])  # Avro: decoded in NumPy
    path = write(flat, tmp_path / f"rows.{kind}", kind)
    in_parts(monkeypatch, 4000)
    monkeypatch.setattr(avro_columns, "_LEAST", 1)
    features = [{"kind": "numeric", "name": "amount"}, {"kind": "hashed", "name": "store"}]
    config = make_config(path, features=features)
    source = open_rows(str(path), config, labelled=True)
    assert len(source.units()) > 3
    encoder = Encoder(fit(config, source.batches()))

    def amounts(threads: int, start: int) -> np.ndarray:
        rows = open_rows(str(path), config, labelled=True)
        pipeline = Pipeline(
            rows,
            encoder,
            batch_size=20,
            cache="none",
            shuffle_rows=100,
            chunk_rows=50,
            reader_threads=threads,
        )
        return np.concatenate([batch["numeric"][:, 0] for batch in pipeline.training_numpy(start, 60)])

    whole = amounts(2, 0)
    np.testing.assert_array_equal(amounts(threads, 0), whole)
    np.testing.assert_array_equal(amounts(threads, 37), whole[37 * 20 :])
    assert (np.sort(whole[:600]) == np.sort(whole[600:1200])).all()
    assert (whole[:600] != whole[600:1200]).any()


def break_some(path: Path, kind: str) -> None:
    """Makes about one of 20 records one that can't be read."""
    if kind == "tfrecord":
        data, at = bytearray(path.read_bytes()), 0
        for number in range(1000):
            at += 16 + int.from_bytes(data[at : at + 8], "little")
            data[at - 8] ^= number % 20 == 5
        path.write_bytes(data)
        return
    lines = path.read_bytes().split(b"\n")
    for number in range(5, len(lines) - 1, 20):
        if b'"two' not in lines[number] and lines[number].count(b'"') % 2 == 0:
            lines[number] = b"1,2,3" if kind == "csv" else lines[number][:-1]
    path.write_bytes(b"\n".join(lines))


def test_bad_records_have_the_places_and_counts_of_the_whole_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if kind == "avro":
        pytest.skip("no record of an Avro file is broken alone")
    path = write(sample(1000), tmp_path / f"rows.{kind}", kind)
    break_some(path, kind)
    found = []
    for size in (None, PART, 1500):
        in_parts(monkeypatch, size)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="trainer"):
            config = make_config(path, key="id", on_bad_record="skip", max_bad_records=1000, reader_threads=1)
            source = open_rows(str(path), config, labelled=True)
            rows = read_all(source).to_pydict()
        told = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
        counts = source.counts()
        strictly = make_config(path, key="id", reader_threads=1)
        with pytest.raises(UserError) as strict:
            read_all(open_rows(str(path), strictly, labelled=True))
        found.append((rows, counts.rows, counts.bad, told, str(strict.value)))
    assert all(one == found[0] for one in found)
    assert found[0][2] > 20
    assert len(found[0][3]) == 5


def test_late_errors_name_the_row_of_the_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = sample(1000, nulls=False)
    path = write(table, tmp_path / f"rows.{kind}", kind)
    features = [{"kind": "numeric", "name": "state"}]
    told = []
    for size in (None, PART, 1500):
        in_parts(monkeypatch, size)
        source = open_rows(str(path), make_config(path, features=features), labelled=True)
        messages = []
        for unit in source.units()[-1:]:
            with pytest.raises(UserError) as error:
                list(source.read(unit))
            messages.append(str(error.value))
        told.append(messages[0])
    lines = [int(re.search(r"(?::|record |row )(\d+)", message)[1]) for message in told]  # type: ignore[index]
    assert lines[0] < lines[1] < lines[2]  # the first row of the last part, each time
    if kind == "avro":
        assert f"holds {table['state'][lines[2] - 1].as_py()!r}" in told[2]
    elif kind == "tfrecord":
        assert f"holds {table['state'][lines[2] - 1].as_py().encode()!r}" in told[2]
    else:
        text = path.read_text().split("\n")[lines[2] - 1]
        assert re.search(r"holds '(.)", told[2])[1] in text  # type: ignore[index]


@pytest.mark.timeout(300)
def test_damaged_files_give_what_they_give_whole(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    good = write(sample(300), tmp_path / f"rows.{kind}", kind).read_bytes()
    path = tmp_path / f"bad.{kind}"
    wrong = 0
    for turn in range(20):
        path.write_bytes(mutate(good, rng))
        found = []
        for size in (None, 4000):
            in_parts(monkeypatch, size)
            how = ("skip", "fail")[turn % 2]
            config = make_config(path, key="id", chunk_rows=64, on_bad_record=how, max_bad_records=1000)
            try:
                found.append(read_all(open_rows(str(path), config, labelled=True)).to_pydict())
            except UserError as error:
                found.append(str(error))
        wrong += isinstance(found[0], str)
        if kind == "avro" and isinstance(found[0], str):  # the row that it tells is the last one of a batch
            found = [re.sub(r"after row \d+|0x\w+", "", str(error)) for error in found]
        assert found[0] == found[1]
    assert wrong


# --- CSV ----------------------------------------------------------------------------------------------


def plain_line_ends(text: bytes) -> tuple[list[int], bool]:
    """Returns the line breaks outside quoted fields, one byte after the other, and whether one is open."""
    inside = closed = False
    last = ord("\n")
    found = []
    for place, byte in enumerate(text):
        opens = last in b"\r\n," or closed
        closed = False
        if byte == ord('"'):
            closed = inside
            inside = not inside and opens
        elif byte == ord("\n") and not inside:
            found.append(place)
        last = byte
    return found, inside


def test_quotes_are_followed_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(5)
    pieces = ["a", '"', ",", "\n", '","', '"\n"', '""', "\r\n"]
    for _ in range(200):
        monkeypatch.setattr(csv_records, "_STEP", draw.choice([1, 3, 64, 70, 1000]))
        weights = [draw.random() for _ in pieces]
        text = "".join(draw.choices(pieces, weights, k=draw.randint(1, 300))).encode()
        ends, inside = plain_line_ends(text)
        place, size = draw.randrange(len(text)), draw.choice([7, 100, 1000])
        quotes = csv_records.Quotes(",")
        found = -1
        for start in range(0, len(text), size):
            here = quotes.line_end(text[start : start + size], max(0, place - start))
            if here >= 0:
                found = start + here
                break
        assert found == next((end for end in ends if end >= place), -1), (text, place)
        quotes = csv_records.Quotes(",")
        quotes.follow(text)
        assert quotes.inside == inside, text


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("header", ["a,b,c", '\ufeff"a",b,c'])
def test_quotes_of_all_sorts_in_parts(
    end: str, header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(9)
    cells = ["1", "x", '""', '"two\nlines"', '"say ""hi"""', '5" pipe', '"a,b"', '"q"x', "é", '"\r\n,"']
    lines = [",".join(draw.choices(cells, k=3)) for _ in range(120)]
    lines[30] = lines[50] = ""
    path = tmp_path / "a.csv"
    path.write_bytes((header + end + end.join(lines) + end).encode())
    features = [{"kind": "categorical", "name": name} for name in "abc"]
    found = []
    for size in (None, 10, 64, 300):
        in_parts(monkeypatch, size)
        found.append(read_all(open_rows(str(path), make_config(path, features=features))).to_pydict())
    assert len(found[0]["a"]) == 118
    assert all(one == found[0] for one in found)
