"""What a run learns from: statistics of the train split, a pipeline for each split. Adopters: leave."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from trainer import environment, losses, outputs
from trainer import strategy as strategies
from trainer.config import Config
from trainer.data import leaks, shares
from trainer.data.encode import Encoder
from trainer.data.fitting import build
from trainer.data.pipeline import Pipeline
from trainer.data.source import Splits
from trainer.errors import UserError
from trainer.features import Features
from trainer.peers import Peers

log = logging.getLogger("trainer")


def learn(config: Config, splits: Splits, folder: outputs.RunFolder | None, peers: Peers) -> Features:
    """Returns the fitted features: those that an earlier start of this run learned, or new ones.

    A restart must not learn them again: another order of a vocabulary would move the rows of the table. Of
    several workers the chief learns them, for the same reason; with data.sharding=rows each takes the
    statistics of its share of the rows, and the chief merges them.
    """
    known = folder.read_text("features.json") if folder is not None and folder.state == "started" else None
    statistics = None
    shared = config.data.sharding == "rows" and peers.count > 1
    if shared and not peers.hand("what is known", lambda: known is not None):
        statistics = shares.learn(config, splits.train, peers)

    def learn() -> str:
        assert folder is not None  # the chief's
        if known is not None:
            return known
        found = shares.alone(config, splits.train) if statistics is None else statistics
        text = build(found.finish()).to_json()
        folder.write_text("features.json", text)
        return text

    features = Features.from_json(peers.hand("features", learn))
    if folder is not None:
        slots = ", ".join(f"{slot.name} {slot.rows:,}" for slot in features.layout.slots[:8])
        log.info(
            "features: %d numeric columns, %s rows of the table (%s%s), fingerprint %s",
            features.layout.dense,
            f"{features.layout.table_rows:,}",
            slots,
            ", ..." if len(features.layout.slots) > 8 else "",
            features.fingerprint[:12],
        )
    return features


def pipelines(
    config: Config,
    splits: Splits,
    features: Features,
    paths: environment.Paths,
    strategy: Any,
    folder: outputs.RunFolder | None,
    me: environment.Service,
    peers: Peers,
) -> dict[str, Pipeline]:
    """Makes the pipeline of each split and its first pass, which finds bad rows before training starts.

    With data.sharding=batches every worker reads all rows and takes its slice of each global batch: so the
    batches are the same for any number of workers, whatever the sizes and the number of files. With rows, the
    chief counts the rows of each file or stream for all, and each worker reads its share of them alone.
    """
    strategies.check_batch(
        config.training.batch_size, strategy.num_replicas_in_sync, config.training.accumulate
    )
    losses.class_weights(config, features)  # an unknown class name is found now
    cache = config.data.cache_dir or environment.join(paths.output, "cache")
    marks = _fingerprints(splits, folder) if folder is not None else {}
    made: dict[str, Pipeline] = {}
    for source in splits.sources:
        encoder = Encoder(features, weight_column=config.data.weight)
        made[source.name] = Pipeline(
            source,
            encoder,
            batch_size=config.training.batch_size,
            seed=config.seed,
            shuffle=config.data.shuffle,
            cache=config.data.cache,
            cache_dir=cache if me.is_chief else environment.join(cache, f"worker-{me.worker_index}"),
            fingerprint=f"{features.fingerprint} {source.name}",
            shuffle_rows=config.data.shuffle_rows,
            chunk_rows=config.data.chunk_rows,
            reader_threads=config.data.reader_threads,
            columns=encoder.columns,
            rows=features.rows if source is splits.train else None,
            shard_index=me.worker_index,
            shard_count=me.workers,
            sharding=config.data.sharding,
            unit_rows=lambda count: peers.hand("counts", count),
        )
        made[source.name].prepare()
        if folder is not None:
            log.info("%s: %s", source.name, source.counts())
    if folder is not None:
        leaks.warn(config, splits, features, sum(pipeline.rows for pipeline in made.values()))
        about = summary(splits, made)
        folder.write_json(
            "data.json", {name: {**figures, "fingerprint": marks[name]} for name, figures in about.items()}
        )
    rows = {name: pipeline.rows for name, pipeline in made.items()}
    if (theirs := peers.hand("rows", lambda: rows)) != rows:
        raise UserError(
            f"data.source: this worker sees {rows} rows, the chief {theirs}: the data must be the same"
        )
    return made


def _fingerprints(splits: Splits, folder: outputs.RunFolder) -> dict[str, str]:
    """Returns a hash of the stored rows of each split, the same as in an earlier start of this run.

    Raises:
        UserError: the files are others than those that the run began with.
    """
    now = {source.name: source.fingerprint() for source in splits.sources}
    known = folder.read_json("data.json") if folder.state == "started" else None
    for name, mark in now.items():
        if known is not None and known.get(name, {}).get("fingerprint", mark) != mark:
            raise UserError(
                f"data.source: the rows of the {name} split are in other files, or files of other sizes or "
                f"times, than when the run in {folder.paths.output} began; put them back, or start anew with "
                "--fresh"
            )
    return now


def summary(splits: Splits, pipelines: Mapping[str, Pipeline]) -> dict[str, dict[str, int]]:
    """Returns by split the rows used and the rows dropped, for data.json and the report."""
    return {
        source.name: {
            "rows": pipelines[source.name].rows,
            "dropped without a label": source.counts().missing_label,
            "bad records skipped": source.counts().bad,
        }
        for source in splits.sources
    }
