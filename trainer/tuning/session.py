"""One start of a study: lock, search, results. Adopters: leave."""

from __future__ import annotations

import logging

from trainer import storage
from trainer.environment import check_writable, join
from trainer.errors import TrainingError
from trainer.interruption import Interruption
from trainer.lock import FolderLock
from trainer.tuning import advice as advices
from trainer.tuning import oracle as oracles
from trainer.tuning import results
from trainer.tuning.command import Plan
from trainer.tuning.record import FILE, Record
from trainer.tuning.study import Search
from trainer.tuning.trial import Launcher, Processes, Trial

log = logging.getLogger("trainer")


def run(plan: Plan, launch: Launcher | None = None) -> Trial:
    """Runs a study, or goes on with it, and writes what it found.

    Args:
        plan: the study.
        launch: starts trials; default: processes of `python -m trainer.task`.

    Returns:
        The best trial.

    Raises:
        UserError: the folder is another study's.
        TrainingError: too many trials failed, or none has a value.
        Interrupted: SIGTERM came; the same command goes on.
    """
    study, folder = plan.study, plan.folder
    if plan.fresh and any(storage.exists(join(folder, name)) for name in (FILE, "config.yaml")):
        with FolderLock(folder):  # a study that lives keeps its folder
            pass
        log.info("--fresh: moved %s to %s", folder, storage.move_aside(folder))
    oracle = oracles.make(study, seed=plan.config.seed, epochs=plan.config.training.epochs)
    record = plan.record()
    check_writable(folder, "output_dir")
    advice = advices.lines(study, plan.config.training.epochs, oracles.initial_points(study))
    with FolderLock(folder), Interruption() as stop:
        left = study.limits.max_trials - len(record.ended)
        if record.trials:
            log.info("%s: going on with the study: %d trials are done", folder, len(record.ended))
        if left > 0:
            for line in advice:
                log.info(line)
        search = Search(study, record, oracle, launch or Processes(plan.base), stop=stop)
        try:
            search.run()
        finally:
            if record.trials:
                results.write(study, record, advice)
        best = record.best()
        assert best is not None
        model = _model(plan, record, best, stop)
    log.info(
        "best: trial %d, %s %.6g (%s) · %s · %s%s",
        best.id,
        study.metric,
        best.value,
        " ".join(study.arguments(best.values)),
        join(folder, results.PAGE),
        join(folder, results.BEST),
        f" · model {model}" if model else "",
    )
    return best


def _model(plan: Plan, record: Record, best: Trial, stop: Interruption) -> str | None:
    if plan.best == "none":
        return None
    if plan.best == "retrain":
        return results.retrain(plan.study, record, best, stop)
    model = results.copy_model(record, best)
    if model is None:
        raise TrainingError(
            f"trial {best.id} was ended before it had exported its model; --best=retrain trains it again"
        )
    return model
