"""The evaluator of a job: figures of each new checkpoint, beside the training. Adopters: leave.

A replica of pool 3 (TF_CONFIG: task type `evaluator`) trains nothing. It watches the checkpoints of the run,
which must lie where it sees them (gs://), and evaluates each new one on the validation split, or on the test
or train split where there is none. The figures go to `evaluator.csv` in the output folder and to TensorBoard,
as the run `evaluator`. It ends with the run; started anew, it goes on with the checkpoints that are new.
"""

from __future__ import annotations

import csv
import io
import logging
import time
from typing import Any

import tensorflow as tf

from trainer import environment, storage
from trainer import strategy as strategies
from trainer.checkpoints import Checkpoints
from trainer.config import Config
from trainer.data.encode import Encoder
from trainer.data.pipeline import Pipeline
from trainer.data.source import open_splits
from trainer.errors import LostError
from trainer.features import Features
from trainer.interruption import Interruption
from trainer.logs import figures as in_words
from trainer.loop import Loop
from trainer.models import tabular
from trainer.state import settings

log = logging.getLogger("trainer")

TABLE = "evaluator.csv"
_POLL_SECONDS = 3.0


def run(config: Config, poll_seconds: float = _POLL_SECONDS) -> list[dict[str, float]]:
    """Evaluates each checkpoint of a run until the run has ended.

    Args:
        config: the run's config.
        poll_seconds: time between two looks at the folders.

    Returns:
        The rows of evaluator.csv: step, epoch and the figures.

    Raises:
        LostError: nothing happened for strategy.stall_seconds.
        Interrupted: SIGTERM came.
    """
    paths = environment.paths(config)
    config = config.model_copy(update={"strategy": config.strategy.model_copy(update={"name": "one_device"})})
    strategy = strategies.create(config)
    with Interruption() as stop:
        watch = _Watch(paths, config, stop, poll_seconds)
        if not watch.wait_for(lambda: storage.exists(paths.file("features.json"))):
            return []
        features = Features.from_json(storage.read_text(paths.file("features.json")))
        splits = open_splits(config)
        source = splits.validation or splits.test or splits.train
        encoder = Encoder(features, weight_column=config.data.weight)
        pipeline = Pipeline(
            source,
            encoder,
            batch_size=config.training.batch_size,
            chunk_rows=config.data.chunk_rows,
            reader_threads=config.data.reader_threads,
            columns=encoder.columns,
        )
        pipeline.prepare()
        with strategy.scope():
            model = tabular.build(config, features.layout, features.label.outputs, features.label)
        loop = Loop(config, model, features, strategy, stop=stop)
        checkpoints = Checkpoints(
            paths.checkpoints,
            model,
            settings=settings(config),
            features_fingerprint=features.fingerprint,
            writes=False,
        )
        table = _Table(paths.file(TABLE))
        seen = {f"{int(row['step']):010d}-{int(row['epoch']):04d}" for row in table.rows}
        writer = tf.summary.create_file_writer(f"{paths.logs}/evaluator")
        log.info("evaluating each checkpoint of %s on the %s split", paths.checkpoints, source.name)

        def fresh() -> list[str]:
            return [name for name in checkpoints.complete() if name not in seen]

        while watch.wait_for(lambda: bool(fresh())):
            name = fresh()[0]
            seen.add(name)
            state = checkpoints.load(name)
            if state is None:
                continue  # retired meanwhile, or damaged
            figures = loop.evaluate(pipeline)
            table.add({"step": state.step, "epoch": state.epoch, **figures})
            with writer.as_default():
                for key, value in figures.items():
                    tf.summary.scalar(f"checkpoint_{key}", value, step=state.step)
            writer.flush()
            log.info("checkpoint %s: %s", name, in_words(figures), extra={"fields": figures})
        writer.close()
    return table.rows


class _Watch:
    """Waits for things to happen in the folder of a run, as long as the run goes on."""

    def __init__(
        self, paths: environment.Paths, config: Config, stop: Interruption, poll_seconds: float
    ) -> None:
        self._path, self._stop, self._poll = paths.file("status.json"), stop, poll_seconds
        self._join, self._stall = config.strategy.join_seconds, config.strategy.stall_seconds
        self._began = time.monotonic()
        self._first = self._status()  # perhaps that of an earlier start, which this one goes on from

    def _status(self) -> dict[str, Any]:
        try:
            value = storage.read_json(self._path)
        except ValueError:  # being written
            value = None
        return value if isinstance(value, dict) else {}

    def _ended(self) -> bool:
        status = self._status()
        if status.get("state") not in ("succeeded", "failed"):
            return False
        return status != self._first or time.monotonic() - self._began > self._join

    def wait_for(self, ready: Any) -> bool:
        """Returns True once something is ready, False when the run has ended without."""
        since, status = time.monotonic(), self._status()
        while True:
            ended = self._ended()  # before the look: what came last is not missed
            if ready():
                return True
            if ended:
                return False
            if status != (status := self._status()):
                since = time.monotonic()
            if self._stall and time.monotonic() - since > max(self._stall, self._join):
                raise LostError(
                    f"no new checkpoint and no end of the run in {time.monotonic() - since:,.0f} s "
                    "(strategy.stall_seconds): the training seems to be gone"
                )
            end = time.monotonic() + self._poll
            while time.monotonic() < end:
                self._stop.check("while waiting for the next checkpoint")
                time.sleep(min(0.2, self._poll))


class _Table:
    """A CSV file with a row a checkpoint."""

    def __init__(self, path: str) -> None:
        self._path = path
        text = storage.read_text(path) if storage.exists(path) else ""
        self.rows = [
            {key: float(value) for key, value in row.items()} for row in csv.DictReader(io.StringIO(text))
        ]

    def add(self, row: dict[str, float]) -> None:
        """Adds a row and writes the file anew."""
        self.rows.append(row)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        storage.write_text(self._path, text.getvalue())
