"""Suggestions: the nearest right name, and none where nothing is near."""

from __future__ import annotations

import pytest

from trainer.__main__ import VERBS
from trainer.errors import nearest, nearest_file


@pytest.mark.parametrize(
    ("name", "valid", "expected"),
    [
        ("trian", VERBS, "train"),
        ("chek", VERBS, "check"),
        ("locl", VERBS, "local"),
        ("run", VERBS, ""),  # half of its letters are in "train"
        ("x", VERBS, ""),
        ("", VERBS, ""),
        ("learnin_rate", ["learning_rate", "learning_rate_warmup"], "learning_rate"),
        ("dropout", ["hidden_units", "optimizer", "loss"], ""),
        ("dgo", ["cat", "dog"], "dog"),
        ("y", [], ""),
    ],
)
def test_nearest(name: str, valid: list[str], expected: str) -> None:
    assert nearest(name, valid) == (f"; did you mean {expected!r}?" if expected else "")


FILES = ["flights.yaml", "flights_bigquery.yaml", "notes.txt", "jobs"]


@pytest.mark.parametrize(
    ("path", "names", "expected"),
    [
        ("configs/flihgts.yaml", FILES, "configs/flights.yaml"),
        ("configs/flights_bigqery.yaml", FILES, "configs/flights_bigquery.yaml"),
        ("configs/zebra.yaml", FILES, ""),  # folder and ending are alike, the name isn't
        ("a/very/long/folder/zebra.yaml", FILES, ""),
        ("flights.yml", FILES, ""),
        ("y.yaml", ["x.yaml", "x.txt"], "x.yaml"),  # the only one
        ("y.yaml", [], ""),
    ],
)
def test_nearest_file(path: str, names: list[str], expected: str) -> None:
    assert nearest_file(path, names) == (f"; did you mean {expected!r}?" if expected else "")
