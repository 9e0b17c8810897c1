"""Damaged files of every format: a UserError or rows of the right types, never anything else."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from format_writers import FEATURES, FORMATS, make_config, sample, write

from trainer.data.source import open_rows, open_splits
from trainer.errors import UserError

MUTATIONS = 30
SPLIT = {"by": "time", "column": "day", "validation_from": "2024-01-02"}


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """Cuts, flips, deletes, repeats or blanks some bytes."""
    place = int(rng.integers(0, len(data)))
    size = int(rng.integers(1, 64))
    kind = rng.integers(0, 6)
    if kind == 0:
        return data[:place]
    if kind == 1:
        changed = bytearray(data)
        for _ in range(int(rng.integers(1, 6))):
            changed[int(rng.integers(0, len(data)))] ^= 1 << int(rng.integers(0, 8))
        return bytes(changed)
    if kind == 2:
        return data[:place] + data[place + size :]
    if kind == 3:
        return data[:place] + rng.bytes(size) + data[place:]
    if kind == 4:
        return data[:place] + data[place : place + size] + data[place:]
    return data[:place] + bytes(min(size, len(data) - place)) + data[place + size :]


def read(path: Path, skip: bool, split: bool) -> str:
    """Reads all rows of a damaged file; returns the error, or an empty string.

    With `split` the rows are split by time and the label is a number, so that a file's statistics are used.
    """
    how = "skip" if skip else "fail"
    config = make_config(path, key="id", chunk_rows=64, on_bad_record=how)
    if split:
        features = [feature for feature in FEATURES if feature["name"] != "store"]
        config = make_config(path, SPLIT, features, label={"column": "store"}, on_bad_record=how)
    try:
        sources = open_splits(config).sources if split else [open_rows(str(path), config, labelled=True)]
        for source in sources:
            for batch in source.batches():
                batch.validate(full=True)
                assert batch.schema == source.schema
    except UserError as error:
        return str(error)
    return ""


def attack(kind: str, folder: Path, mutations: int, seed: int) -> list[str]:
    """Reads damaged copies of a good file; returns the errors."""
    rng = np.random.default_rng(seed)
    good = write(sample(200), folder / f"good.{kind}", kind).read_bytes()
    errors = []
    for number in range(mutations):
        path = folder / f"bad{number}.{kind}"
        path.write_bytes(mutate(good, rng))
        error = read(path, skip=bool(rng.integers(0, 2)), split=bool(rng.integers(0, 2)))
        assert not error or path.name in error
        errors.append(error)
        path.unlink()
    return errors


@pytest.mark.timeout(300)  # a machine may be busy; what is looked for is a reader that never ends
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] if kind == "tfrecord" else []) for kind in FORMATS],
)
def test_damaged_files(kind: str, tmp_path: Path) -> None:
    errors = attack(kind, tmp_path, MUTATIONS, seed=1)
    assert len(errors) == MUTATIONS
    assert sum(bool(error) for error in errors) >= 3  # the damage is real


def test_damaged_parquet_footers(tmp_path: Path) -> None:
    """pyarrow ends the process for some of these asked for statistics: that would end this test."""
    table = sample(60).select([name for name in ("id", "store", "day", "amount")])
    path = tmp_path / "a.parquet"
    good = write(table, path, "parquet").read_bytes()
    size = int.from_bytes(good[-8:-4], "little")
    features = [{"kind": "numeric", "name": "amount"}]
    config = make_config(path, SPLIT, features, label={"column": "store"})
    errors = 0
    for place in range(len(good) - 8 - size, len(good) - 8, 2):
        for bit in (1, 4):
            damaged = bytearray(good)
            damaged[place] ^= bit
            path.write_bytes(damaged)
            try:
                assert open_splits(config).train.count() >= 0
            except UserError:
                errors += 1
    assert errors > 50


if __name__ == "__main__":  # python test_fuzz.py parquet 1000: a longer search
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        found = attack(sys.argv[1], Path(scratch), int(sys.argv[2]), seed=int(sys.argv[3]))
    print(
        sys.argv[1],
        len(found),
        sum(map(bool, found)),
        *sorted(set(found))[:: max(1, len(set(found)) // 6)],
        sep="\n",
    )
