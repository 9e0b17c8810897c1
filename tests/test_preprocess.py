"""Training and serving must see the same numbers: encode against preprocess, kind by kind."""

from __future__ import annotations

import datetime
import math
from pathlib import Path

import feature_tables as tables
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from trainer.data.encode import Encoder
from trainer.errors import UserError
from trainer.features import Features, fit
from trainer.preprocess import Preprocess, parse_times, signature


def tensors(features: Features, rows: pa.Table) -> dict[str, tf.Tensor]:
    return {
        raw.name: tf.constant(values, tf.dtypes.as_dtype(raw.dtype))
        for raw, values in zip(features.raw_inputs, tables.request(features, rows).values(), strict=True)
    }


def check(features: Features, rows: pa.Table, served: dict[str, tf.Tensor]) -> None:
    blocks = Encoder(features, with_label=False)(rows)
    layout = features.layout
    assert served["numeric"].dtype == tf.float32
    assert served["categorical"].dtype == tf.int32
    numeric, categorical = served["numeric"].numpy(), served["categorical"].numpy()
    assert np.isfinite(numeric).all()
    for column, name in enumerate(layout.numeric):
        np.testing.assert_allclose(
            numeric[:, column], blocks.numeric[:, column], rtol=1e-6, atol=1e-6, err_msg=name
        )
    for slot in layout.slots:
        mine = slice(slot.start, slot.start + slot.width)
        np.testing.assert_array_equal(categorical[:, mine], blocks.categorical[:, mine], err_msg=slot.name)
        assert (categorical[:, mine] >= slot.offset).all(), slot.name
        assert (categorical[:, mine] < slot.offset + slot.rows).all(), slot.name


class Exported(tf.Module):
    """The preprocessing as an export holds it."""

    def __init__(self, features: Features) -> None:
        super().__init__()
        self.preprocess = Preprocess(features)
        self.serve = tf.function(self.preprocess.__call__, input_signature=[signature(features)])


@pytest.fixture(scope="module")
def fitted() -> Features:
    return fit(
        tables.config(*tables.ALL_KINDS), tables.table(300, seed=1, nasty=False).to_batches(max_chunksize=64)
    )


@pytest.fixture(scope="module")
def loaded(fitted: Features, tmp_path_factory: pytest.TempPathFactory) -> tf.Module:
    folder = str(tmp_path_factory.mktemp("saved"))
    tf.saved_model.save(Exported(fitted), folder)
    return tf.saved_model.load(folder)


@pytest.mark.parametrize("feature", tables.ALL_KINDS, ids=lambda feature: feature["name"])
def test_each_kind_alone_gives_the_same_numbers_in_training_and_serving(feature: dict) -> None:
    parts = [other for other in tables.ALL_KINDS if other["name"] in feature.get("of", ())]
    features = fit(tables.config(*parts, feature), tables.table(200, seed=2, nasty=False).to_batches())
    rows = tables.table(300, seed=3)
    check(features, rows, Preprocess(features)(tensors(features, rows)))


def test_a_saved_and_loaded_module_gives_the_same_numbers(fitted: Features, loaded: tf.Module) -> None:
    for seed in range(4):
        rows = tables.table(257, seed=10 + seed)
        check(fitted, rows, loaded.serve(tensors(fitted, rows)))


@pytest.mark.parametrize("rows", [0, 1])
def test_no_row_and_one_row(fitted: Features, loaded: tf.Module, rows: int) -> None:
    some = tables.table(8, seed=5).slice(0, rows)
    check(fitted, some, loaded.serve(tensors(fitted, some)))


def test_fractions_far_from_zero_and_single_precision_sums_agree_to_the_last_bits() -> None:
    rng = np.random.default_rng(0)
    columns = {f"x{place}": rng.normal(10.0**place, 1, 5000) for place in range(-3, 7)}
    rows = pa.table({**columns, "y": rng.integers(0, 2, 5000)})
    features = fit(tables.config(*({"kind": "numeric", "name": name} for name in columns)), rows.to_batches())
    served = Preprocess(features)(tensors(features, rows))["numeric"].numpy()
    assert np.array_equal(served, Encoder(features)(rows).numeric)


def test_columns_that_are_left_out_count_as_missing(fitted: Features, loaded: tf.Module) -> None:
    rows = tables.table(20, seed=6)
    blank = rows
    for name in rows.schema.names:
        if name not in ("word", "y"):
            place = rows.schema.get_field_index(name)
            blank = blank.set_column(place, name, pa.nulls(20, rows.schema.field(name).type))
    check(fitted, blank, Preprocess(fitted)({"word": tensors(fitted, rows)["word"]}))


def test_numbers_of_other_types_and_of_shape_rows_by_one_are_taken() -> None:
    features = fit(
        tables.config({"kind": "numeric", "name": "x"}), [pa.record_batch({"x": [1.0, 2.0], "y": [0, 1]})]
    )
    plain = Preprocess(features)({"x": tf.constant([2.0, 3.0])})["numeric"].numpy()
    assert np.array_equal(Preprocess(features)({"x": tf.constant([[2], [3]])})["numeric"].numpy(), plain)


def test_unknown_raw_input_is_named_with_the_nearest(fitted: Features) -> None:
    with pytest.raises(
        UserError, match=r"raw input 'wort' is no source column of a feature; did you mean 'word'"
    ):
        Preprocess(fitted)({"wort": tf.constant(["a"])})
    with pytest.raises(UserError, match="raw inputs are empty"):
        Preprocess(fitted)({})


TIMES = {
    "1970-01-01": 0,
    "2024-02-29": 19_782 * 86_400,
    "1969-12-31T23:59:59Z": -1,
    "2024-01-01 10:11": 1_704_103_860,
    "2024-01-01T10:11:12.5": 1_704_103_872.5,
    "2024-01-01 10:11:12.123456789 UTC": 1_704_103_872.123456,
    " 2024-01-01T00:00:00+02:00 ": 1_704_060_000,
    "2024-01-01T00:00:00-0530": 1_704_086_999 + 1,
    "0001-01-01": -62_135_596_800,
    "9999-12-31T23:59:59": 253_402_300_799,
}


@pytest.mark.parametrize("text", TIMES)
def test_times_are_read(text: str) -> None:
    micros, missing = parse_times(tf.constant([text]))
    assert not missing.numpy()[0]
    assert micros.numpy()[0] == round(TIMES[text] * 1_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2023-02-29",
        "2024-13-01",
        "2024-00-10",
        "2024-01-32",
        "2024-1-1",
        "2024-01-01T24:00:00",
        "2024-01-01T10:60",
        "2024-01-01T10:00:00+99:00",
        "0000-01-01",
        "2024-01-01x",
        "x2024-01-01",
        "1704103872",
    ],
)
def test_what_is_no_time_counts_as_missing(text: str) -> None:
    micros, missing = parse_times(tf.constant([text]))
    assert missing.numpy()[0]
    assert micros.numpy()[0] == 0


def test_every_day_of_800_years_is_read_as_python_does() -> None:
    days = [datetime.date(1600, 1, 1) + datetime.timedelta(days=place) for place in range(0, 292_194, 37)]
    micros, missing = parse_times(tf.constant([day.isoformat() for day in days]))
    assert not missing.numpy().any()
    expected = [(day - datetime.date(1970, 1, 1)).days * 86_400_000_000 for day in days]
    assert micros.numpy().tolist() == expected


def test_datetime_parts_are_what_the_calendar_says() -> None:
    moments = [datetime.datetime(2024, 2, 29, 18), datetime.datetime(2023, 12, 31)]
    rows = pa.table({"at": pa.array(moments, pa.timestamp("us")), "y": [0, 1]})
    parts = ["hour", "weekday", "day", "month", "dayofyear"]
    features = fit(
        tables.config({"kind": "datetime", "name": "at", "parts": parts, "age": True}), rows.to_batches()
    )
    turns = [
        (18 / 24, 0.0),
        (3 / 7, 6 / 7),  # a Thursday, a Sunday
        (28 / 31, 30 / 31),
        (1 / 12, 11 / 12),
        (59 / 366, 364 / 366),
    ]
    served = Preprocess(features)(tensors(features, rows))["numeric"].numpy()
    for row in range(2):
        expected = [wave(2 * math.pi * pair[row]) for pair in turns for wave in (math.sin, math.cos)]
        # the age: 0 and 60.75 days, standardised; then the indicator
        np.testing.assert_allclose(served[row], [*expected, (-1, 1)[row], 0], atol=1e-6)


def test_a_vocabulary_without_values_sends_everything_to_oov(tmp_path: Path) -> None:
    rows = pa.table({"word": ["a", "b", None], "y": [0, 1, 0]})
    features = fit(tables.config({"kind": "categorical", "name": "word", "min_count": 5}), rows.to_batches())
    assert features["word"].vocabulary == ()
    module = Exported(features)
    tf.saved_model.save(module, str(tmp_path))
    served = tf.saved_model.load(str(tmp_path)).serve({"word": tf.constant(["a", "", "z"])})
    assert served["categorical"].numpy().tolist() == [[1], [0], [1]]
    assert served["numeric"].shape == (3, 0)
