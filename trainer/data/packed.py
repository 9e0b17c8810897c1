"""Packed rows: one row of a batch as consecutive 32-bit words, and back. Adopters: leave.

A random gather costs a cache miss for every array it touches, so rows that are kept (in memory, on disk or
in the shuffle pool) are kept as ONE int32 matrix: numeric (float32 bits) | categorical | label | weight.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np


class BlocksLike(Protocol):
    """What `encode.Encoder` returns, as far as batches need it (see docs/design.md, Blocks)."""

    numeric: np.ndarray
    categorical: np.ndarray
    label: Any
    weight: Any


@dataclass(frozen=True)
class RowFormat:
    """Where each part of a packed row lies.

    Attributes:
        numeric: float32 columns, bag weights among them.
        categorical: int32 columns.
        label_width: words of the label (classes of a multilabel task, else 1).
        label_is_vector: whether a label has a dimension of its own ([rows, label_width]).
        label_dtype: "float32" or "int32".
    """

    numeric: int
    categorical: int
    label_width: int = 1
    label_is_vector: bool = False
    label_dtype: str = "float32"

    @classmethod
    def of(cls, blocks: BlocksLike) -> RowFormat:
        """Returns the format that holds the rows of `blocks` (none are needed, only shapes and dtypes)."""
        label = None if blocks.label is None else np.asarray(blocks.label)
        vector = label is not None and label.ndim == 2
        return cls(
            numeric=blocks.numeric.shape[1],
            categorical=blocks.categorical.shape[1],
            label_width=label.shape[1] if label is not None and vector else 1,
            label_is_vector=vector,
            label_dtype="int32" if label is not None and label.dtype == np.int32 else "float32",
        )

    @property
    def width(self) -> int:
        """32-bit words of a row."""
        return self.numeric + self.categorical + self.label_width + 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return 4 * self.width

    def as_dict(self) -> dict[str, Any]:
        """Returns the format as plain JSON values."""
        return asdict(self)

    def pack(self, blocks: BlocksLike) -> np.ndarray:
        """Returns encoded blocks as packed rows.

        Args:
            blocks: float32 numeric [n, N], int32 categorical [n, C], label [n] or [n, K] (None: zeros),
                float32 weight [n] (None: ones).

        Returns:
            int32 [n, width].
        """
        rows, a = blocks.numeric.shape[0], self.numeric
        b = a + self.categorical
        out = empty(rows, self.width)
        as_floats = out.view(np.float32)
        as_floats[:, :a] = blocks.numeric
        out[:, a:b] = blocks.categorical
        target = (out if self.label_dtype == "int32" else as_floats)[:, b:-1]
        target[...] = 0 if blocks.label is None else blocks.label.reshape(rows, self.label_width)
        as_floats[:, -1] = 1 if blocks.weight is None else blocks.weight
        return out

    def unpack(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the parts of packed rows, as views.

        Args:
            rows: int32 [..., width].

        Returns:
            numeric float32 [..., N], categorical int32 [..., C], label, weight float32 [...].
        """
        a = self.numeric
        b = a + self.categorical
        as_floats = rows.view(np.float32)
        label = (rows if self.label_dtype == "int32" else as_floats)[..., b:-1]
        return {
            "numeric": as_floats[..., :a],
            "categorical": rows[..., a:b],
            "label": label if self.label_is_vector else label[..., 0],
            "weight": as_floats[..., -1],
        }


def empty(*shape: int) -> np.ndarray:
    """Returns an int32 array that begins where TensorFlow wants it (64 bytes), which spares a copy."""
    size = 4 * int(np.prod(shape))
    memory = np.empty(size + 63, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(np.int32).reshape(shape)
