"""Fitted features: layout, request types, the saved form, and what fitting refuses or warns of."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import feature_tables as tables
import numpy as np
import pyarrow as pa
import pytest

from trainer.errors import UserError
from trainer.features import INT64_MISSING, Features, RawInput, Slot, fit

GOLDEN = Path(__file__).parent / "golden" / "features.json"


def fit_one(feature: dict[str, Any], values: Any, **more: Any) -> Features:
    rows = {"f": values, "y": np.arange(len(values)) % 2, **more}
    return fit(tables.config({"name": "f", **feature}), [pa.record_batch(rows)])


def all_kinds() -> Features:
    return fit(tables.config(*tables.ALL_KINDS), tables.table(200, seed=1, nasty=False).to_batches())


def test_the_layout_says_who_owns_what() -> None:
    rows = {"x": [1.0, 2.0], "t": [["a", "b"], ["a"]], "w": ["u", "v"], "v": [[1.0, 2.0]] * 2, "y": [0, 1]}
    features = fit(
        tables.config(
            {"kind": "bag", "name": "t", "max_length": 3},
            {"kind": "numeric", "name": "x"},
            {"kind": "categorical", "name": "w", "oov_buckets": 2},
            {"kind": "vector", "name": "v", "length": 2},
            {"kind": "bag", "name": "t2", "column": "t", "max_length": 2},
        ),
        [pa.record_batch(rows)],
    )
    layout = features.layout
    assert layout.numeric == (
        *("x", "x:missing", "v:0", "v:1"),
        *("t:weight_0", "t:weight_1", "t:weight_2", "t2:weight_0", "t2:weight_1"),
    )
    assert layout.dense == 4
    assert layout.slots == (
        Slot("t", start=0, width=3, offset=0, rows=4, weight_start=4),
        Slot("w", start=3, width=1, offset=4, rows=5),
        Slot("t2", start=4, width=2, offset=9, rows=4, weight_start=7),
    )
    assert (layout.table_rows, layout.categorical) == (13, 6)
    assert features.columns == ("t", "x", "w", "v")
    assert features.slot(features["w"]).name == "w"


def test_a_request_names_each_source_column_once() -> None:
    raw = {item.name: item for item in all_kinds().raw_inputs}
    assert list(raw) == ["x", "n", "word", "flag", "at", "tags", "tag_weights", "v"]
    assert raw["n"] == RawInput(
        "n", "int64", (), INT64_MISSING
    )  # a number and a category, stored as integers
    assert raw["word"] == RawInput("word", "string", (), "")
    assert raw["at"] == RawInput("at", "string", (), "")
    assert raw["tags"] == RawInput("tags", "string", (None,), "")
    assert (raw["x"].dtype, raw["x"].shape, raw["v"].shape) == ("float32", (), (3,))
    assert math.isnan(raw["x"].default)
    assert raw["flag"].dtype == "bool"
    assert isinstance(raw["flag"].default, bool)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([7, 8], "int64"),
        (pa.array([7, 8], pa.uint8()), "int64"),
        ([7.0, float("nan"), 8.0], "int64"),
        (["7", "8"], "string"),
        ([1.5, 2.0], "string"),
        ([True, False], "string"),
    ],
)
def test_categories_stored_as_integers_are_integers_in_a_request(values: Any, dtype: str) -> None:
    for kind in ("categorical", "hashed"):
        assert fit_one({"kind": kind}, values).raw_inputs[0].dtype == dtype


def test_one_column_in_two_types_is_refused() -> None:
    config = tables.config(
        {"kind": "datetime", "name": "a", "column": "c"},
        {"kind": "vector", "name": "b", "column": "c", "length": 1},
    )
    rows = pa.record_batch({"c": pa.array([1, 2], pa.timestamp("s")), "y": [0, 1]})
    with pytest.raises(UserError, match=r"feature 'b': column 'c' has type timestamp"):
        fit(config, [rows])
    config = tables.config(
        {"kind": "numeric", "name": "a", "column": "c"}, {"kind": "boolean", "name": "b", "column": "c"}
    )
    with pytest.raises(UserError, match=r"features 'a' and 'b' read the column 'c' as float32 and as bool"):
        fit(config, [pa.record_batch({"c": [1, 0], "y": [0, 1]})])


def test_saved_features_are_read_back_and_keep_their_fingerprint() -> None:
    features = all_kinds()
    text = features.to_json()
    again = Features.from_json(text)
    assert again.to_json() == text
    assert again.fingerprint == features.fingerprint
    assert again.layout == features.layout
    assert again.label == features.label
    assert again.config_features == features.config_features
    assert [str(item) for item in again.raw_inputs] == [str(item) for item in features.raw_inputs]
    for mine, theirs in zip(features.fitted, again.fitted, strict=True):
        assert (mine.config, mine.impute, mine.vocabulary) == (
            theirs.config,
            theirs.impute,
            theirs.vocabulary,
        )


def test_the_fingerprint_follows_spec_and_statistics() -> None:
    base = fit_one({"kind": "categorical"}, ["a", "b"])
    assert fit_one({"kind": "categorical"}, ["a", "b"]).fingerprint == base.fingerprint
    assert len(base.fingerprint) == 64
    others = [
        fit_one({"kind": "categorical"}, ["a", "c"]),
        fit_one({"kind": "categorical", "oov_buckets": 2}, ["a", "b"]),
        fit_one({"kind": "categorical"}, ["a", "b", "b", "a"]),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document.update(format=99), "has format 99, expected 1"),
        (
            lambda document: document["features"][0].update(impute=[99.0]),
            "was changed after the run that wrote it",
        ),
        (lambda document: document.pop("layout"), "can't be read .KeyError: 'layout'"),
        (
            lambda document: document["features"][0]["config"].update(kind="magic"),
            "can't be read .ValidationError",
        ),
    ],
)
def test_a_features_file_that_does_not_fit_is_refused(change: Any, message: str) -> None:
    document = json.loads(fit_one({"kind": "numeric"}, [1.0, 2.0]).to_json())
    change(document)
    with pytest.raises(UserError, match=message):
        Features.from_json(json.dumps(document))
    with pytest.raises(UserError, match="can't be read"):
        Features.from_json("{")


def test_the_file_is_read_without_tensorflow_pyarrow_and_numpy(tmp_path: Path) -> None:
    path = tmp_path / "features.json"
    path.write_text(all_kinds().to_json(), encoding="utf-8")
    code = (
        "import sys; from trainer.features import Features; Features.from_json(open(sys.argv[1]).read()); "
        "assert not {'tensorflow', 'pyarrow', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def test_features_of_a_small_table_are_those_of_the_golden_file() -> None:
    """After a wanted change: UPDATE_GOLDEN=1 pytest tests/test_features.py, then look at the diff."""
    # Numbers whose sums are exact in binary, so that every machine writes the same digits.
    rows = pa.record_batch(
        {
            "age": [20, 30, None, 40, 30, 40],
            "state": ["CA", "NY", "CA", None, "", "WA"],
            "income": [1.0, 3.0, 5.0, 7.0, float("inf"), None],
            "member": [True, None, False, True, True, False],
            "since": pa.array([0, 86_400, None, 172_800, 259_200, 345_600], pa.timestamp("s")),
            "tags": [["a", "b"], ["b"], [], None, ["b", "c", "d"], ["a"]],
            "place": [[0.0, 8.0], [2.0, 8.0], [4.0, 8.0], None, [2.0, 8.0], [2.0, 8.0]],
            "label": ["no", "yes", "no", "no", "yes", "no"],
        }
    )
    config = tables.config(
        {"kind": "numeric", "name": "age"},
        {"kind": "categorical", "name": "state"},
        {"kind": "numeric", "name": "income", "normalize": "minmax", "impute": "zero"},
        {"kind": "numeric", "name": "income_band", "column": "income", "normalize": "quantile", "buckets": 2},
        {"kind": "hashed", "name": "state_hash", "column": "state", "buckets": 4},
        {"kind": "boolean", "name": "member"},
        {"kind": "datetime", "name": "since", "parts": ["weekday"], "age": True},
        {"kind": "bag", "name": "tags", "max_length": 2},
        {"kind": "vector", "name": "place", "length": 2, "normalize": "standard"},
        {"kind": "integer", "name": "age_id", "column": "age", "size": 40},
        {"kind": "cross", "name": "state_member", "of": ["state", "member"], "buckets": 8},
        column="label",
    )
    text = fit(config, [rows]).to_json()
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_statistics_do_not_depend_on_how_rows_are_cut_into_batches() -> None:
    rows = tables.table(200, seed=1, nasty=False)
    cut = fit(tables.config(*tables.ALL_KINDS), rows.to_batches(max_chunksize=17))
    for mine, theirs in zip(all_kinds().fitted, cut.fitted, strict=True):
        assert mine.vocabulary == theirs.vocabulary
        assert mine.boundaries == theirs.boundaries
        np.testing.assert_allclose(mine.shift + mine.factor, theirs.shift + theirs.factor, rtol=1e-12)


def test_a_constant_column_is_warned_of_by_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        features = fit_one({"kind": "numeric", "column": "f"}, [5.0, 5.0, None])
    message = "feature 'f': column 'f' is constant in the train split (5.0): it is taken to have variance 1"
    assert features.warnings == (message,)
    assert message in caplog.text
    assert features["f"].factor == (1.0,)


@pytest.mark.parametrize(
    ("feature", "values", "message"),
    [
        ({"kind": "numeric"}, [1.0, 2.0, float("inf"), 1e300], "has 2 infinite values"),
        ({"kind": "numeric", "normalize": "quantile"}, [1.0, 1.0], "fall into one bucket"),
        ({"kind": "integer", "size": 2}, [0, 1, 2, -1], "has 2 values outside 0 to 1"),
        (
            {"kind": "bag", "max_length": 1},
            [["a", "b"], ["a"]],
            "1 lists in column 'f' are longer than max_length 1",
        ),
        (
            {"kind": "vector", "length": 2, "normalize": "standard"},
            [[1.0, 5.0], [2.0, 5.0]],
            "place 1, is constant",
        ),
        (
            {"kind": "vector", "length": 2, "normalize": "standard"},
            [[1.0, None], [2.0, None]],
            "no value at place 1",
        ),
        (
            {"kind": "datetime", "age": True},
            pa.array([9, 9], pa.timestamp("s")),
            "is constant in the train split",
        ),
        ({"kind": "categorical", "max_size": 1}, ["a", "b"], "the 1 most frequent are kept"),
    ],
)
def test_what_is_odd_about_a_column_is_told(feature: dict[str, Any], values: Any, message: str) -> None:
    (warning,) = fit_one(feature, values).warnings
    assert "feature 'f'" in warning
    assert message in warning


def test_vocabularies_are_ordered_by_count_then_text() -> None:
    assert fit_one({"kind": "categorical"}, ["z", "b", "a", "z", "é", "B"])["f"].vocabulary == (
        "z",
        "B",
        "a",
        "b",
        "é",
    )


def test_summaries_for_the_report() -> None:
    summary = fit_one({"kind": "categorical"}, ["a", "b", "a", None])["f"].summary
    assert summary == {"missing": 0.25, "distinct": 2, "top": [["a", 2], ["b", 1]]}
    summary = fit_one({"kind": "numeric"}, [1.0, 2.0, 3.0, None])["f"].summary
    assert (summary["missing"], summary["mean"], summary["min"], summary["max"], summary["p50"]) == (
        0.25,
        2,
        1,
        3,
        2,
    )
    features = fit(
        tables.config({"kind": "numeric", "name": "x"}),
        [pa.record_batch({"x": [1.0, 2.0, 3.0], "y": [1, 0, 1]})],
    )
    assert features.label.counts == {"0": 1, "1": 2}


def test_a_vocabulary_file_sets_the_ids(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes("\ufeffb\r\na b\n\nü\n".encode())
    features = fit_one({"kind": "categorical", "vocabulary_file": str(path)}, ["a", "b", "b"])
    assert features["f"].vocabulary == ("b", "a b", "ü")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\na\n", "line 3 repeats 'a' of line 1"),
        (b"\n", "has no values"),
        (b"a\nb\nc\nd\n", "has 4 values, expected at most max_size = 3"),
        (b"\xff\n", "is not UTF-8"),
        (None, "can't be read"),
    ],
)
def test_a_vocabulary_file_that_can_not_be_used_is_named(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"feature 'f': vocabulary_file '.*words.txt'.* {message}"):
        fit_one({"kind": "categorical", "vocabulary_file": str(path), "max_size": 3}, ["a", "b"])


def test_a_cross_of_what_has_no_text_form_is_refused() -> None:
    config = tables.config(
        {"kind": "categorical", "name": "w"},
        {"kind": "numeric", "name": "x"},
        {"kind": "cross", "name": "c", "of": ["w", "x"]},
    )
    with pytest.raises(
        UserError, match=r"feature 'c': cross can't combine 'x' of kind numeric, expected categorical, h"
    ):
        fit(config, [pa.record_batch({"w": ["a", "b"], "x": [1.0, 2.0], "y": [0, 1]})])


def test_more_ids_than_an_int32_holds_are_refused() -> None:
    config = tables.config(
        {"kind": "hashed", "name": "a", "column": "w", "buckets": 2**31 - 2},
        {"kind": "hashed", "name": "b", "column": "w", "buckets": 2**31 - 2},
    )
    with pytest.raises(UserError, match="ids in all, expected fewer than 2147483648"):
        fit(config, [pa.record_batch({"w": ["a", "b"], "y": [0, 1]})])


def test_impute_must_be_a_float32_number() -> None:
    with pytest.raises(UserError, match="feature 'f': impute is 1e\\+300, expected a finite float32 number"):
        fit_one({"kind": "numeric", "impute": 1e300}, [1.0, 2.0])
