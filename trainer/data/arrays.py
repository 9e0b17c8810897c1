"""Encoded rows as four arrays side by side, sliced and gathered together. Adopters: leave."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

NAMES = ("numeric", "categorical", "label", "weight")


class BlocksLike(Protocol):
    """What `encode.Encoder` returns, as far as batches need it (see docs/design.md, Blocks)."""

    numeric: np.ndarray
    categorical: np.ndarray
    label: Any
    weight: Any


@dataclass(frozen=True)
class RowFormat:
    """Shapes and types of the arrays of some rows.

    Attributes:
        numeric: float32 columns, bag weights among them.
        categorical: int32 columns.
        labels: label columns of a multilabel task; 0: a label is one value.
        label_dtype: "float32" or "int32".
    """

    numeric: int
    categorical: int
    labels: int = 0
    label_dtype: str = "float32"

    @classmethod
    def of(cls, blocks: BlocksLike) -> RowFormat:
        """Returns the format of the rows of `blocks` (none are needed, only shapes and dtypes)."""
        label = np.zeros(0, np.float32) if blocks.label is None else np.asarray(blocks.label)
        return cls(
            numeric=blocks.numeric.shape[1],
            categorical=blocks.categorical.shape[1],
            labels=int(np.prod(label.shape[1:])) if label.ndim == 2 else 0,
            label_dtype="int32" if label.dtype == np.int32 else "float32",
        )

    @property
    def parts(self) -> tuple[tuple[tuple[int, ...], np.dtype], ...]:
        """Shape of one row and type of each array, in the order of `NAMES`."""
        return (
            ((self.numeric,), np.dtype(np.float32)),
            ((self.categorical,), np.dtype(np.int32)),
            ((self.labels,) if self.labels else (), np.dtype(self.label_dtype)),
            ((), np.dtype(np.float32)),
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return 4 * (self.numeric + self.categorical + max(1, self.labels) + 1)

    def as_dict(self) -> dict[str, Any]:
        """Returns the format as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Rows:
    """Some rows: arrays [rows, ...] in the order of `NAMES`."""

    arrays: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, blocks: BlocksLike, layout: RowFormat) -> Rows:
        """Returns encoded blocks as rows, without a copy.

        Args:
            blocks: float32 numeric [n, N], int32 categorical [n, C], label [n] or [n, K] (None: zeros),
                float32 weight [n] (None: ones).
            layout: their format.
        """
        size = blocks.numeric.shape[0]
        label, weight = blocks.label, blocks.weight
        if label is None:
            label = np.zeros(size, np.float32)
        if weight is None:
            weight = np.ones(size, np.float32)
        rows = cls((blocks.numeric, blocks.categorical, label, weight))
        for array, (shape, dtype) in zip(rows.arrays, layout.parts, strict=True):
            assert array.shape == (size, *shape), (array.shape, shape)
            assert array.dtype == dtype, (array.dtype, dtype)
        return rows

    @classmethod
    def empty(cls, layout: RowFormat, *shape: int) -> Rows:
        """Returns arrays [*shape, ...] to be written to."""
        return cls(tuple(aligned((*shape, *tail), dtype) for tail, dtype in layout.parts))

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, rows: slice) -> Rows:
        return Rows(tuple(array[rows] for array in self.arrays))

    def write(self, rows: Rows) -> None:
        """Overwrites these rows with as many others."""
        for target, array in zip(self.arrays, rows.arrays, strict=True):
            target[...] = array

    @property
    def writable(self) -> bool:
        """Whether all arrays may be written to."""
        return all(array.flags.writeable for array in self.arrays)

    def copy(self, layout: RowFormat) -> Rows:
        """Returns a copy."""
        found = Rows.empty(layout, len(self))
        found.write(self)
        return found

    def take(self, index: np.ndarray, layout: RowFormat) -> Rows:
        """Returns the rows `index` (int64 [...], each in range) as arrays [*index.shape, ...]."""
        found = Rows.empty(layout, *index.shape)
        for array, target in zip(self.arrays, found.arrays, strict=True):
            np.take(array, index, axis=0, out=target, mode="clip")  # "clip" alone writes to `out` directly
        return found

    def batches(self, size: int) -> Rows:
        """Returns arrays [rows / size, size, ...], as views."""
        return Rows(tuple(a.reshape(len(a) // size, size, *a.shape[1:]) for a in self.arrays))

    def weigh_nothing(self, place: tuple[Any, ...]) -> None:
        """Sets the weight of rows to zero."""
        self.arrays[NAMES.index("weight")][place] = 0

    def as_dict(self) -> dict[str, np.ndarray]:
        """Returns the arrays by name."""
        return dict(zip(NAMES, self.arrays, strict=True))


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an empty array that begins where TensorFlow wants it (64 bytes), which spares a copy."""
    size = dtype.itemsize * int(np.prod(shape))
    memory = np.empty(size + 63, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)
