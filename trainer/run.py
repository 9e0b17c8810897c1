"""One training run, told in order. Adopters: may change the order or add a step.

Every part lives in a room of its own; this file only says what happens after what, and hands results on.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

import keras

from trainer import (
    callbacks,
    environment,
    export,
    inputs,
    logs,
    outputs,
    parity,
    rendezvous,
    reporting,
    results,
    storage,
)
from trainer import strategy as strategies
from trainer.checkpoints import Checkpoints
from trainer.clock import Clock
from trainer.config import Config
from trainer.data import leaks
from trainer.data.encode import Encoder
from trainer.data.pipeline import Pipeline
from trainer.data.source import open_splits
from trainer.errors import EXIT_INTERRUPTED, TrainingError
from trainer.interruption import Interruption
from trainer.lock import FolderLock
from trainer.loop import Loop
from trainer.models import tabular
from trainer.optimizer import Optimizer
from trainer.peers import Peers
from trainer.reporting import Reporter
from trainer.spread import Spread
from trainer.state import RunState, begin, settings
from trainer.watchdog import Watchdog

log = logging.getLogger("trainer")


def train(config: Config, *, fresh: bool = False, debug: bool = False) -> dict[str, Any]:
    """Trains, evaluates, exports, proves and reports, or goes on where an earlier start stopped.

    Of several workers each runs this; the chief alone touches the folders of the run and returns last.

    Args:
        config: The run's config.
        fresh: Move what an earlier run left in the output folder aside and start over.
        debug: Keras tells more of its tracebacks.

    Returns:
        The content of metrics.json; empty on workers that aren't the chief.

    Raises:
        UserError: A mistake in config, data or folders; told before training where it can be known.
        TrainingError: Training or the parity gate failed; nothing was exported.
        LostError: Another worker is missing or was lost.
        Interrupted: SIGTERM came; a checkpoint was saved.
    """
    keras.config.disable_traceback_filtering() if debug else keras.config.enable_traceback_filtering()
    callbacks.monitor_of(config)  # a mistake that needs no data and no other process to be seen
    me = environment.service()
    with Interruption() as stop:  # MultiWorkerMirroredStrategy would replace its handler: a new one follows
        peers = rendezvous.join(config, me, stop)
    try:
        metrics = _lead(config, fresh, me, peers) if me.is_chief else _follow(config, me, peers)
        peers.finish()
    except BaseException as error:
        told = peers.explain(error)
        peers.failed(told)
        if told is error:
            raise
        raise told from error
    return metrics


def _lead(config: Config, fresh: bool, me: environment.Service, peers: Peers) -> dict[str, Any]:
    """The chief's way, which is also that of a process alone: everything that touches the folders."""
    paths = environment.paths(config)
    if fresh and storage.exists(paths.file("lock.json")):
        with FolderLock(paths.output):  # a job that lives keeps its folder
            pass
    folder = outputs.RunFolder(paths, config, fresh=fresh)
    finished = folder.state == "finished" and folder.has_model()
    peers.hand("start", lambda: {"finished": finished})
    if finished:
        log.info("%s: this run is finished; --fresh starts it over", paths.output)
        metrics = folder.read_json("metrics.json")
        reporting.report_again(folder.read_json("objective.json"), environment.service())
        results.show(config, metrics)
        return metrics  # type: ignore[no-any-return]
    environment.check_paths(paths)

    def failed(error: BaseException) -> None:
        if getattr(error, "exit_code", None) == EXIT_INTERRUPTED:
            folder.status("interrupted")
        else:
            folder.failed(error)

    with FolderLock(paths.output) as lock:
        peers.last_words += [lambda error: lock.release(), failed]
        folder.claim()
        try:
            metrics = _train(config, paths, folder, me, peers)
        except BaseException as error:
            failed(peers.explain(error))
            raise
        folder.status("succeeded")
        peers.last_words.clear()
    results.show(config, metrics)
    log.info("model %s · report %s", paths.model, paths.file("report.html"))
    return metrics


def _follow(config: Config, me: environment.Service, peers: Peers) -> dict[str, Any]:
    """The way of the other workers: they train, and the chief does all else."""
    if not peers.hand("start", dict)["finished"]:
        _train(config, environment.paths(config), None, me, peers)
    return {}


def _train(
    config: Config,
    paths: environment.Paths,
    folder: outputs.RunFolder | None,
    me: environment.Service,
    peers: Peers,
) -> dict[str, Any]:
    clock = Clock()
    # The strategy is made before any data is read: it can end the run at once.
    strategy = strategies.create(config)
    tell = log.info if me.is_chief else log.debug
    with ExitStack() as stack:
        stop = stack.enter_context(Interruption())  # after the strategy, which would replace the handler
        peers.stop = stop

        # 1. Data: open the splits, learn the statistics from train alone, fill the caches.
        with clock.phase("features"):
            splits = open_splits(config, memory=paths.file("bigquery.json"))
            monitor, _ = callbacks.monitor_of(config, has_validation=splits.validation is not None)
            reporter = reporting.of_run(config, monitor, me, has_validation=splits.validation is not None)
            features = inputs.learn(config, splits, folder, peers)
            export.signatures.signature_inputs(features, config)  # names that can't be served, said now
        with clock.phase("encode"):
            pipelines = inputs.pipelines(config, splits, features, paths, strategy, folder, me, peers)
        stop.check("before training")

        # 2. Model, optimizer and loop, all made in the strategy's scope.
        train = pipelines["train"]
        steps_per_epoch = config.training.steps_per_epoch or train.steps_per_epoch
        total = strategies.total_steps(config, steps_per_epoch)
        tell(strategies.arithmetic(config, strategy, train.rows, steps_per_epoch))
        with strategy.scope():
            model = tabular.build(config, features.layout, features.label.outputs, features.label)
            optimizer = Optimizer(config.training, total, exchange_in=config.strategy.exchange_in)
            optimizer.build(model.trainable_variables)
        tell("model %s: %s weights", config.model.name, f"{model.count_params():,}")
        progress = logs.progress(me.is_chief)
        watch = Watchdog(config.strategy.stall_seconds, peers.end_now)
        loop = Loop(config, model, features, strategy, optimizer, progress=progress, stop=stop, watch=watch)

        # 3. Where the weights come from: (a) the newest whole checkpoint of this run, (b) the seed.
        spread = Spread(strategy, me.is_chief) if me.workers > 1 else None
        checkpoints = Checkpoints(
            paths.checkpoints,
            model,
            loop.optimizer,
            keep=config.checkpoint.keep,
            settings=settings(config),
            features_fingerprint=features.fingerprint,
            writes=me.is_chief,
            peers=peers,
            spread=spread,
        )
        peers.last_words.append(lambda error: checkpoints.wait())
        state = begin(checkpoints.restore(), config, me.workers)
        seen = min(train.rows, state.step % steps_per_epoch * config.training.batch_size)
        if seen and getattr(splits.train, "recut", False):
            log.warning(
                "train: the rows come in another order than before the restart: up to %s of the %s rows of "
                "this epoch may be seen twice in it, and as many not before the next",
                f"{seen:,}",
                f"{train.rows:,}",
            )

        # 4. Train, and go back to the epoch that did best on validation.
        with clock.phase("train"):
            state = _fit(config, paths, me, loop, pipelines, checkpoints, state, total, reporter)
        best = state.best["epoch"] if state.best else None
        if state.best and not checkpoints.load_best(state):
            raise TrainingError(
                f"{paths.checkpoints}: the checkpoint of the best epoch ({best}) is gone or damaged: there "
                "is nothing good to export; start anew with --fresh"
            )
        if best is not None and best != state.epoch:
            tell("using the weights of epoch %d, the best by %s", best, (state.best or {})["monitor"])

        # 5. Final figures, from the weights that are exported.
        with clock.phase("evaluate"):
            figures = {
                name: {**loop.evaluate(pipeline), "examples": pipeline.rows}
                for name, pipeline in pipelines.items()
            }

        if folder is None:
            return figures
        peers.release()  # from here on the chief works alone, whatever becomes of the others
        if figures.get("validation", {}).get("r2", 0.0) < 0:
            log.warning(
                "validation r2 is below 0, worse than predicting the mean: raise training.learning_rate "
                "or epochs, or scale the label"
            )

        # The study judges the trial by the model that it gets: the last report is of that one.
        final: dict[str, float] | None = None
        if "validation" in figures:
            final = {f"val_{name}": value for name, value in figures["validation"].items()}
            final["loss"] = figures["train"]["loss"]
        reporter.close(final, state.step, config.training.objective_last)
        folder.write_json("objective.json", {"metric": reporter.tag, "reported": reporter.reported})

        # 6. Export, and prove that the export predicts what training predicts, before anyone can see it.
        build = lambda other: tabular.build(  # noqa: E731
            other, features.layout, features.label.outputs, features.label
        )
        served = export.inference_copy(model, config, build)
        predict = parity.training_path(Encoder(features, with_label=False), served, config.task)
        gate_source = splits.validation or splits.test or splits.train
        sample = leaks.head(gate_source, list(features.columns), config.export.parity_rows)
        log.info("exporting, and comparing the export with training in a fresh process")
        with clock.phase("export"):
            key = export.signatures.key_type(splits.train.schema, config)
            staged = export.stage(served, features, config, paths.model, key=key, examples=sample.slice(0, 8))
        stack.callback(staged.discard)
        with clock.phase("parity"):
            gate = parity.run_gate(config, features, staged, sample, predict, paths.output)
        export.publish(staged, paths.model)
        log.info(
            "parity gate passed: %s rows, largest difference %.2g; writing the report",
            f"{gate['rows']:,}",
            gate["max_abs_difference"],
        )

        # 7. The page that shows how good it is, and the figures for programs.
        metrics = {
            **figures,
            "steps": state.step,
            "epochs": state.epoch,
            "best_epoch": best,
            "examples_per_second": results.speed(loop, state),
            "input_share": results.input_share(loop),
            "seconds": {},
        }
        with clock.phase("report"):
            made = results.outcome(
                config, features, splits, pipelines, loop, served, state, metrics, gate, predict
            )
        metrics["seconds"] = clock.figures()
        results.write_report(paths.file("report.html"), config, made)
        folder.write_json("metrics.json", metrics)  # last: a program that waits for it finds all the rest
    return metrics


def _fit(
    config: Config,
    paths: environment.Paths,
    me: environment.Service,
    loop: Loop,
    pipelines: dict[str, Pipeline],
    checkpoints: Checkpoints,
    state: RunState,
    total: int,
    reporter: Reporter,
) -> RunState:
    validation = pipelines.get("validation")
    monitor, mode = callbacks.monitor_of(config, has_validation=validation is not None)
    standard = callbacks.standard(
        config,
        logs=paths.logs if me.is_chief else "",
        table=paths.file("epochs.csv") if me.is_chief else "",
        monitor=monitor,
        mode=mode,
    )
    progress = loop.progress or logs.NoProgress()
    progress.start(total, step=state.step, epochs=config.training.epochs)
    try:
        hooks = [*standard, callbacks.Objective(reporter), *callbacks.of_study()]
        return loop.fit(pipelines["train"], validation, hooks, checkpoints, state)
    finally:
        progress.close()
