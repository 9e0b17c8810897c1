"""The config's own checks: what goes together and what doesn't."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from trainer import flags, schema
from trainer.config import Config


def _values(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": "demo",
        "task": "binary",
        "data": {"source": "rows.csv", "split": {"by": "hash", "column": "id"}},
        "label": {"column": "y"},
        "features": [{"name": "age", "kind": "numeric"}, {"name": "state", "kind": "categorical"}],
    }
    for path, value in changes.items():
        *sections, key = path.split("__")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return values


def test_a_bare_text_is_a_list_of_one() -> None:
    config = Config.model_validate(_values(report__slice_by="state"))
    assert config.data.source == ("rows.csv",)
    assert config.report.slice_by == ("state",)
    assert Config.model_validate(_values(data__source=["a", "b"])).data.source == ("a", "b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__split": {"by": "time", "column": "t"}}, "split by time needs 'validation_from'"),
        ({"data__split": {"by": "hash"}}, "split by hash needs 'column'"),
        ({"data__split": {"by": "paths"}}, "needs 'validation_source'"),
        (
            {"data__split": {"column": "id", "validation_fraction": 0.5, "test_fraction": 0.5}},
            "nothing is left to train on",
        ),
        ({"data__source": []}, "at least 1"),
        ({"data__key": "age"}, "'age' reads data.key"),
        ({"label__column": "age"}, "'age' reads the label column 'age'"),
        ({"label__column": ["y", "z"]}, "task binary can't have 2 label column"),
        ({"task": "multilabel"}, "task multilabel can't have 1 label column"),
        ({"label__classes": ["no", "yes", "no"]}, "a class is given twice"),
        ({"label__classes": ["a", "b", "c"]}, "task binary has two classes, got 3"),
        (
            {"label__classes": ["no", "yes"], "training__class_weights": {"maybe": 2.0}},
            "no class 'maybe' in label.classes",
        ),
        ({"task": "regression", "training__class_weights": {"1": 2.0}}, "has no classes to weigh"),
        ({"training__batch_size": 10, "training__accumulate": 3}, "does not divide"),
        ({"features": [{"name": "a", "kind": "numeric"}] * 2}, "the name 'a' is used twice"),
        ({"features": []}, "at least 1"),
        (
            {"features": [{"name": "x", "kind": "cross", "of": ["a", "b"]}]},
            "combines the unknown feature 'a'",
        ),
        ({"name": "two words"}, "pattern"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Config.model_validate(_values(**changes))
    assert message in str(caught.value)


def test_a_split_by_hash_goes_by_the_key_unless_it_names_a_column() -> None:
    for split, column in (({"by": "hash"}, "id"), ({}, "id"), ({"column": "user"}, "user")):
        config = Config.model_validate(_values(data__split=split, data__key="id"))
        assert config.data.split.column == column
    with pytest.raises(ValidationError, match="split by time needs 'column'"):
        Config.model_validate(_values(data__split={"by": "time"}, data__key="id"))


def test_every_key_has_a_doc_line_and_words_for_its_type() -> None:
    every = [*schema.leaves()]
    for model in schema.kinds(schema.FEATURE).values():
        every += schema.leaves(model)
    for leaf in every:
        assert leaf.description.endswith("."), leaf.path
        assert leaf.expected, leaf.path


def test_keys_that_people_tune_have_a_last_word_of_their_own() -> None:
    for name in (
        "learning_rate",
        "batch_size",
        "epochs",
        "steps_per_epoch",
        "max_steps",
        "optimizer",
        "weight_decay",
        "momentum",
        "hidden_units",
        "dropout",
        "embedding_dim",
        "cross_layers",
        "l2",
        "activation",
        "warmup_steps",
        "patience",
        "clip_norm",
        "label_smoothing",
        "monitor",
        "objective",
        "seed",
        "source",
        "limit_rows",
        "cache",
        "mixed_precision",
        "jit_compile",
        "accumulate",
        "output_dir",
    ):
        assert flags.find(name).path.rpartition(".")[2] == name


def test_no_option_hides_a_key() -> None:
    words = {leaf.path for leaf in schema.leaves()} | {
        leaf.path.rpartition(".")[2] for leaf in schema.leaves()
    }
    assert not words & set(flags.TRAIN)
