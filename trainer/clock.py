"""Where the time of a run went, for metrics.json and the report. Adopters: leave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds by phase of the run, for metrics.json and the report."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time inside the block to a phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def figures(self) -> dict[str, float]:
        """Returns the seconds by phase, and `total` since the clock was made."""
        figures = {name: round(value, 3) for name, value in self.seconds.items()}
        return {**figures, "total": round(time.perf_counter() - self._began, 3)}
