"""Where a run stands, as JSON beside its variables. Adopters: leave."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from trainer.config import Config
from trainer.errors import UserError

# What gives a step number its meaning (which rows were seen) and the weights theirs. A run that goes on with
# another value of these would be neither the old run nor a new one.
_MUST_MATCH = (
    "task",
    "seed",
    "label",
    "features",
    "model",
    "data.source",
    "data.query",
    "data.split",
    "data.shuffle",
    "data.shuffle_rows",
    "data.chunk_rows",
    "data.limit_rows",
    "data.cache",
    "training.batch_size",
    "training.steps_per_epoch",
    "training.optimizer",
)


@dataclasses.dataclass
class RunState:
    """Where a run stands, apart from its variables.

    Attributes:
        step: Optimizer steps done, which is also the position in the training stream.
        epoch: Epochs that ended, with their evaluation and callbacks.
        loss_sum: Sum of step loss times rows over the epoch that is going on.
        loss_rows: Rows of that epoch so far.
        history: Figures of each ended epoch by name.
        callbacks: State of the callbacks that have some.
        skipped: Steps whose batch is passed over, because its loss wasn't finite.
        rollbacks: Times that the run went back to a checkpoint.
        best: `{"step", "epoch", "monitor", "value"}` of the best epoch, or None.
        stopped: Why training ended before its time, or "".
        seconds: Training time so far, over all restarts.
        workers: Processes that train together.
        sharding: `data.sharding`; with "rows", who has which rows depends on the number of workers.
    """

    step: int = 0
    epoch: int = 0
    loss_sum: float = 0.0
    loss_rows: float = 0.0
    history: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    callbacks: dict[str, Any] = dataclasses.field(default_factory=dict)
    skipped: list[int] = dataclasses.field(default_factory=list)
    rollbacks: int = 0
    best: dict[str, Any] | None = None
    stopped: str = ""
    seconds: float = 0.0
    workers: int = 1
    sharding: str = "batches"


def begin(restored: RunState | None, config: Config, workers: int) -> RunState:
    """Returns the state that a start of a run goes on from: the restored one, else that of a new run.

    Args:
        restored: of the newest checkpoint, if there is one.
        config: the run's config.
        workers: processes that train together now.

    Raises:
        UserError: the rows were shared out otherwise before.
    """
    sharding = config.data.sharding
    state = restored or RunState(workers=workers, sharding=sharding)
    shared = "rows" in (sharding, state.sharding)
    if shared and (state.workers != workers or (state.sharding != sharding and workers > 1)):
        raise UserError(
            f"data.sharding: this run began with {state.sharding} on {state.workers} worker(s), now it is "
            f"{sharding} on {workers}, to whom other rows fall: start it as before, or anew with --fresh"
        )
    return state


def settings(config: Config) -> dict[str, Any]:
    """Returns the settings that a resumed run must share with its checkpoint: plain values by dotted key."""
    return {
        key: value
        for key, value in _leaves("", config.model_dump(mode="json"))
        if any(f"{key}.".startswith(f"{part}.") for part in _MUST_MATCH)
    }


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (dict, list)) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), item)
    else:
        yield prefix, value
