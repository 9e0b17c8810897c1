"""The first output of each architecture is what the labels say by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from model_parts import LAYOUT, config, inputs

from trainer.features import LabelSpec
from trainer.losses import predictions
from trainer.models.start import Start, start_of
from trainer.models.tabular import MODELS, build


def spec(task: Any, counts: dict[str, int], **summary: float) -> LabelSpec:
    return LabelSpec(task, ("y",), tuple(counts), counts, 0, summary)


def test_binary_starts_at_the_share_of_the_second_class() -> None:
    (bias,) = start_of(spec("binary", {"0": 749, "1": 249})).bias
    assert 1 / (1 + np.exp(-bias)) == pytest.approx(250 / 1000)


def test_class_weights_count_as_rows() -> None:
    (bias,) = start_of(spec("binary", {"0": 749, "1": 249}), {"1": 3.0}).bias
    assert bias == pytest.approx(0.0)


def test_multiclass_starts_at_the_shares() -> None:
    made = start_of(spec("multiclass", {"a": 4, "b": 2, "c": 0, "d": 8}))
    assert np.exp(made.bias) == pytest.approx(np.array([5, 3, 1, 9]) / 18)


def test_multilabel_starts_at_the_share_of_each_label() -> None:
    made = start_of(spec("multilabel", {"a": 9, "b": 49}, rows=98))
    assert 1 / (1 + np.exp(-np.array(made.bias))) == pytest.approx([0.1, 0.5])


def test_a_class_of_weight_zero_or_an_unknown_spread_starts_at_zero() -> None:
    assert start_of(spec("binary", {"0": 10, "1": 5}), {"1": 0.0}).bias == (0.0,)
    assert start_of(spec("multilabel", {"a": 9, "b": 49})).bias == (0.0, 0.0)
    assert start_of(spec("regression", {}, mean=3.0, std=0.0)) == Start((0.0,))
    assert start_of(spec("regression", {}, mean=3.0, std=float("nan"))) == Start((0.0,))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_architecture_starts_there(name: str) -> None:
    data = inputs(LAYOUT, 256)
    binary = build(config(model__name=name), LAYOUT, 1, spec("binary", {"0": 989, "1": 9}))
    first = predictions("binary", binary(data)).numpy()
    assert np.median(first) == pytest.approx(0.01, rel=0.8)
    label = spec("regression", {}, mean=250_000.0, std=50_000.0)
    numbers = predictions("regression", build(config("regression", model__name=name), LAYOUT, 1, label)(data))
    assert np.median(numbers.numpy()) == pytest.approx(250_000.0, rel=0.3)
