"""What benchmarks of readers share: time to the last batch, and how figures are told. Adopters: leave."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def to_last(batches: Iterable[Any], rows_of: Callable[[Any], int]) -> tuple[int, float]:
    """Iterates; returns rows and the seconds until the last batch was there."""
    begin = last = time.perf_counter()
    rows = 0
    for batch in batches:
        rows += rows_of(batch)
        last = time.perf_counter()
    return rows, last - begin


def tell(figures: list[dict[str, Any]], path: str | None) -> int:
    """Prints figures, writes them to `path` as JSON where one is given; returns 1 where a goal is missed."""
    for figure in figures:
        verdict = "holds" if figure["holds"] else "MISSED"
        print(f"{figure['name']:65}{figure['value']:8.2f}  {figure['goal']:8} {verdict}")
    if path:
        Path(path).write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if all(figure["holds"] for figure in figures) else 1
