"""The reader of tensorflow-io: the same rows where it loads, and a clear error where it doesn't."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from bigquery_cases import NAME, SOURCE, make_config

from tests.servers.bigquery import BigQueryServer
from tests.servers.bigquery_faults import Fault
from trainer.data import bigquery_client, tfio
from trainer.data.encode import Encoder
from trainer.data.source import open_rows, open_splits
from trainer.errors import UserError
from trainer.features import fit
from trainer.run import train

LOADS = tf.__version__.startswith(tfio.FITS) and importlib.util.find_spec("tensorflow_io") is not None
needs_it = pytest.mark.skipif(not LOADS, reason="tensorflow-io is not there, or not for this TensorFlow")
FEATURES = [
    {"name": "x", "kind": "numeric"},
    {"name": "count", "kind": "categorical"},
    {"name": "word", "kind": "categorical"},
]
SPLIT = {"by": "hash", "column": "row_id", "validation_fraction": 0.2, "test_fraction": 0.2}


def table(rows: int = 3000) -> pa.Table:
    generator = np.random.default_rng(3)
    gone = generator.random((4, rows)) < 0.1
    return pa.table(
        {
            "row_id": [f"r{i:05d}" for i in range(rows)],
            "x": pa.array(generator.normal(0, 3, rows), mask=gone[0]),
            "count": pa.array(generator.integers(-5, 50, rows), mask=gone[1]),
            "word": pa.array(list(generator.choice(["red", "", "é"], rows)), mask=gone[2]),
            "y": pa.array(generator.integers(0, 2, rows), mask=gone[3]),
            "flag": pa.array([True] * rows),
        }
    )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BigQueryServer]:
    with BigQueryServer({NAME: table()}, message_rows=100, block_rows=700) as started:
        monkeypatch.setenv(bigquery_client.EMULATOR, started.address)
        yield started


def config(reader: str = "tensorflow-io", **data: Any) -> Any:
    return make_config(features=FEATURES, split=SPLIT, reader=reader, streams=3, **data)


def encoded(made: Any) -> list[list[np.ndarray]]:
    splits = open_splits(made)
    encoder = Encoder(fit(made, splits.train.batches()))
    parts = []
    for source in splits.sources:
        blocks = [encoder(batch) for batch in source.batches(encoder.columns)]
        parts.append(
            [
                np.concatenate([getattr(b, name) for b in blocks])
                for name in ("numeric", "categorical", "label")
            ]
        )
    return parts


@needs_it
def test_encoded_blocks_are_those_of_our_reader(server: BigQueryServer) -> None:
    for mine, theirs in zip(encoded(config()), encoded(config("storage")), strict=True):
        for left, right in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(left, right)


@needs_it
def test_filters_and_limits_hold(server: BigQueryServer) -> None:
    for data in ({"row_restriction": ["x > 0", "x <= 0"]}, {"limit_rows": 100, "reader_threads": 1}):
        counts = [
            [source.count() for source in open_splits(config(reader, **data)).sources]
            for reader in ("tensorflow-io", "storage")
        ]
        assert counts[0] == counts[1]


@needs_it
def test_columns_that_it_would_get_wrong_are_refused(server: BigQueryServer) -> None:
    features = [*FEATURES, {"name": "flag", "kind": "boolean"}]
    with pytest.raises(UserError, match=r"column 'flag' is BOOL; data\.reader=tensorflow-io reads INT64"):
        open_splits(make_config(features=features, split=SPLIT, reader="tensorflow-io")).train.count()


@needs_it
def test_a_broken_stream_is_an_error(server: BigQueryServer) -> None:
    server.faults.add(Fault(grpc.StatusCode.UNAVAILABLE, "down", after_row=100, stream=1))
    with pytest.raises(UserError, match="tensorflow-io does not resume a broken stream"):
        list(open_rows(SOURCE, config()).batches())


@needs_it
def test_a_run_has_the_figures_of_our_reader(server: BigQueryServer, tmp_path: Path) -> None:
    figures = []
    for reader in ("tensorflow-io", "storage"):
        made = config(reader).model_copy(update={"output_dir": str(tmp_path / reader)})
        found = train(made)
        figures.append({name: found[name] for name in ("train", "validation", "test", "steps")})
    assert figures[0]["train"]["examples"] > 1000
    assert figures[0] == figures[1]


@pytest.mark.skipif(tf.__version__.startswith(tfio.FITS), reason="it may load here")
def test_elsewhere_the_versions_are_named(server: BigQueryServer) -> None:
    with pytest.raises(UserError) as caught:
        open_splits(config())
    assert f"works in TensorFlow 2.16 alone, and this is {tf.__version__}" in str(caught.value)
    assert not server.creates  # before anything is asked of the service


@pytest.mark.skipif(LOADS, reason="it loads here")
def test_a_package_that_is_not_there_is_named(
    server: BigQueryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tf, "__version__", "2.16.2")
    with pytest.raises(
        UserError, match=r"pip install tensorflow-io==0\.37\.1|does not load in TensorFlow 2\.16"
    ):
        open_splits(config())
