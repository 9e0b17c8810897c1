"""How many steps one call of the graph runs. Adopters: leave."""

from __future__ import annotations

TARGET_SECONDS = 0.5  # long enough to hide the call itself, short enough for signals and progress
_GROWTH = 16


class Pace:
    """Chooses the steps of the next call from the time that the last ones took.

    Args:
        fixed: `training.steps_per_call`; 0 chooses by time.
        target: Seconds that one call should take.
    """

    def __init__(self, fixed: int = 0, target: float = TARGET_SECONDS) -> None:
        self._fixed, self._target = fixed, target
        self._wish = 1  # the first call also traces the graph, which says nothing about the pace
        self._calls = 0

    def steps(self, limit: int) -> int:
        """Returns the steps of the next call, from 1 to `limit`."""
        return max(1, min(self._fixed or self._wish, limit))

    def took(self, steps: int, seconds: float) -> None:
        """Learns from a call."""
        self._calls += 1
        if self._calls == 1:
            return
        wish = int(self._target * steps / max(seconds, 1e-6))
        # A short call before the end of an epoch must not make the next one short, nor one fast call huge.
        self._wish = max(1, min(wish, max(self._wish, steps) * _GROWTH))
