"""Labels: their statistics, their classes, and their numbers. Adopters: leave.

A class label is compared by its text form without blanks around it: 1, 1.0 and '1' are the same class, true
is 'true'. Classes that are all integers are ordered as numbers, others by their characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.config import Config, Task
from trainer.data import columns
from trainer.data.memo import Remembered
from trainer.data.statistics import MAX_CLASSES, Accumulator, Booleans, Numbers, Words, absent_texts
from trainer.errors import UserError, nearest
from trainer.features import LabelSpec, label_columns

_INTEGER = re.compile(r"-?[0-9]{1,18}")
# One file of a data set says true and false where another says 1 and 0.
_SAME = {"0": "false", "1": "true", "false": "0", "true": "1"}
_QUANTILES = {"p1": 0.01, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99}


class ClassWords(Words):
    """A column of class labels."""

    def update(self, source: columns.Column) -> None:
        """Adds the rows of one batch."""
        self.add(class_texts(source))


def class_texts(source: columns.Column) -> columns.Texts:
    """Returns class labels in their text form, without blanks around them."""
    indices, texts = columns.text(source)
    return columns.Texts(indices, pc.utf8_trim_whitespace(texts))


def accumulator(task: Task) -> Accumulator:
    """Returns empty statistics for a label column."""
    if task == "regression":
        return Numbers()
    return Booleans() if task == "multilabel" else ClassWords(2 * MAX_CLASSES)


def number_summary(made: Numbers) -> dict[str, float | int]:
    """Returns the figures of a number column for the report."""
    quantiles = made.quantiles(list(_QUANTILES.values()))
    return {
        "count": int(made.moments.count[0]),
        "mean": float(made.moments.mean[0]),
        "std": float(made.moments.std[0]),
        "min": float(made.moments.min[0]),
        "max": float(made.moments.max[0]),
        **{name: float(value) for name, value in zip(_QUANTILES, quantiles, strict=True)},
        "quantile_rank_error": made.quantiles.rank_error,
    }


def build(config: Config, labels: Mapping[str, Accumulator]) -> LabelSpec:
    """Makes the label spec from the statistics of the train split.

    Raises:
        UserError: The labels don't fit the task.
    """
    names = label_columns(config)
    missing = max(made.missing for made in labels.values())
    first = labels[names[0]]
    if missing and config.label.missing == "fail":
        raise UserError(f"label: {missing} rows of the train split have none (label.missing is 'fail')")
    if first.missing == first.rows:
        raise UserError(
            f"label: column {names[0]!r} has no value in the {first.rows} rows of the train split"
        )
    if isinstance(first, Numbers):
        if first.infinite:
            raise UserError(
                f"label: column {names[0]!r} has {first.infinite} infinite values in the train split"
            )
        if first.moments.min[0] == first.moments.max[0]:
            raise UserError(
                f"label: column {names[0]!r} is {float(first.moments.min[0])!r} in every row of the train "
                "split: nothing to learn"
            )
        return LabelSpec("regression", names, (), {}, missing, number_summary(first))
    if isinstance(first, Booleans):
        counts = {name: made.true for name, made in labels.items() if isinstance(made, Booleans)}
        rows = {"rows": first.rows - missing}
        return LabelSpec("multilabel", names, _multilabel_classes(config, names), counts, missing, rows)
    assert isinstance(first, Words)
    return _classes(config, names, first)


def _multilabel_classes(config: Config, names: tuple[str, ...]) -> tuple[str, ...]:
    if config.label.classes and config.label.classes != names:
        raise UserError(
            "label.classes: task multilabel names its classes after the label columns "
            f"({', '.join(names)}): leave it out"
        )
    return names


def _classes(config: Config, names: tuple[str, ...], words: Words) -> LabelSpec:
    task, (column,) = config.task, names
    counts = dict(words.counts.most_common())
    if len(counts) > MAX_CLASSES or words.counts.error:
        raise UserError(
            f"label: column {column!r} has more than {MAX_CLASSES} values, expected classes; "
            "did you mean 'task: regression'?"
        )
    classes = config.label.classes
    if not classes:
        integers = all(_INTEGER.fullmatch(text) for text in counts)
        classes = tuple(sorted(counts, key=int) if integers else sorted(counts))
    elif any(text != text.strip() or not text for text in classes):
        raise UserError(
            "label.classes: a class is empty or has blanks around it; labels are compared without them"
        )
    else:
        known, unknown = set(classes), {}
        for text, count in list(counts.items()):
            name = text if text in known else _alias(text, classes)
            if name is None:
                unknown[text] = count
            elif name != text:
                counts[name] = counts.get(name, 0) + counts.pop(text)
        if unknown:
            raise UserError(_unknown(column, unknown, classes, "the train split", words.rows))
    if len([text for text in classes if counts.get(text)]) < 2:
        raise UserError(
            f"label: column {column!r} is {next(iter(counts))!r} in every row of the train split: task "
            f"{task} needs two classes"
        )
    if task == "binary" and len(classes) != 2:
        shown = ", ".join(repr(text) for text in classes[:5]) + (", ..." if len(classes) > 5 else "")
        raise UserError(
            f"label: task binary needs 2 classes, column {column!r} has {len(classes)} ({shown}); "
            "did you mean 'task: multiclass'?"
        )
    return LabelSpec(task, names, classes, {text: counts.get(text, 0) for text in classes}, words.missing)


def _alias(text: str, classes: tuple[str, ...]) -> str | None:
    """Returns the class that a text means where true/false and 1/0 are mixed."""
    other = _SAME.get(text.lower())
    if set(classes) == {"false", "true"} and text.lower() in classes:
        return text.lower()
    return other if set(classes) in ({"0", "1"}, {"false", "true"}) and other in classes else None


def _unknown(column: str, unknown: Mapping[str, int], classes: tuple[str, ...], where: str, rows: int) -> str:
    named = sorted(unknown.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{text!r} ({count})" for text, count in named[:5]) + (
        ", ..." if len(named) > 5 else ""
    )
    expected = ", ".join(repr(name) for name in classes[:10]) + (", ..." if len(classes) > 10 else "")
    return (
        f"label: column {column!r} has {sum(unknown.values())} values of {rows} in {where} that are no known "
        f"class: {shown}, expected one of {expected}{nearest(named[0][0], classes)}"
    )


class LabelEncoder:
    """Turns label columns into numbers."""

    def __init__(self, spec: LabelSpec) -> None:
        """Takes the label spec of the fitted features."""
        self._spec = spec
        self._ids = {text: place for place, text in enumerate(spec.classes)}
        self._mapping = Remembered(self._ids_of)

    def __call__(self, batch: columns.Batch) -> np.ndarray:
        """Returns binary float32 [rows], multiclass int32 [rows], regression float32 [rows], multilabel
        float32 [rows, columns].

        Raises:
            UserError: A label is missing or unknown.
        """
        spec = self._spec
        sources = [columns.column(batch, name, "label") for name in spec.columns]
        if spec.task == "multilabel":
            values = np.stack([columns.boolean(source) for source in sources], axis=1)
            self._refuse_missing(int((values < 0).any(axis=1).sum()))
            return values.astype(np.float32)
        if spec.task == "regression":
            numbers = columns.float32(sources[0])
            self._refuse_missing(int((~np.isfinite(numbers)).sum()), " or an infinite one")
            return numbers
        ids = self._class_ids(sources[0])
        return ids.astype(np.float32) if spec.task == "binary" else ids

    def _refuse_missing(self, count: int, more: str = "") -> None:
        if count:
            raise UserError(
                f"label: {count} rows have no value{more} in {', '.join(map(repr, self._spec.columns))}"
            )

    def _ids_of(self, texts: pa.Array) -> np.ndarray:
        """Returns int32 [texts + 1]: the class, -1 for missing (and for index -1), -2 for unknown."""
        trimmed = pc.utf8_trim_whitespace(texts)
        absent = absent_texts(trimmed)
        ids = np.full(len(texts) + 1, -1, np.int32)
        for place, text in enumerate(trimmed.to_pylist()):
            if not absent[place]:
                name = text if text in self._ids else _alias(text, self._spec.classes)
                ids[place] = -2 if name is None else self._ids[name]
        return ids

    def _class_ids(self, source: columns.Column) -> np.ndarray:
        indices, texts = columns.text(source)
        ids = self._mapping(texts)[indices]
        self._refuse_missing(int((ids == -1).sum()))
        if (ids == -2).any():
            words = Words(MAX_CLASSES)
            words.add(columns.Texts(indices[ids == -2], pc.utf8_trim_whitespace(texts)))
            counts = dict(words.counts.most_common())
            raise UserError(_unknown(source.name, counts, self._spec.classes, "these rows", len(ids)))
        return ids
