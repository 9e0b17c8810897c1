"""What a study leaves behind: trials.csv, best.yaml, study.html and the best model. Adopters: leave."""

from __future__ import annotations

import csv
import io
import logging
import os
import shutil
import subprocess
import sys
import time
from typing import Any

import yaml

from trainer import storage
from trainer.environment import join
from trainer.errors import TrainingError
from trainer.interruption import Interruption
from trainer.tuning import page
from trainer.tuning import trial as trials
from trainer.tuning.measurements import Measurement, select
from trainer.tuning.record import Record
from trainer.tuning.spec import Study
from trainer.tuning.trial import Trial

log = logging.getLogger("trainer")

TABLE, BEST, PAGE, ORIGIN = "trials.csv", "best.yaml", "study.html", "best.json"


def table(study: Study, record: Record) -> str:
    """Returns trials.csv: a row a trial; a parameter that took no part is empty."""
    text = io.StringIO()
    names = [dimension.id for dimension in study.dimensions]
    columns = [
        "trial",
        "state",
        *names,
        study.metric,
        "step",
        "measurements",
        "seconds",
        "seen",
        "starts",
        "error",
    ]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for one in record.trials:
        row: dict[str, Any] = {
            "trial": one.id,
            "state": one.state,
            **{name: study.dimension(name).text(value) for name, value in one.values.items()},
            "step": one.step,
            "measurements": len(one.measurements),
            "seconds": round(one.ended - one.started, 1) if one.ended else None,
            "seen": one.seen,
            "starts": one.starts,
            "error": one.error,
        }
        row[study.metric] = one.value
        writer.writerow(row)
    return text.getvalue()


def best_config(record: Record, best: Trial) -> dict[str, Any]:
    """Returns the run config that reproduces the best trial: its own, under a name of its own.

    Raises:
        TrainingError: the trial's config.yaml is gone.
    """
    path = join(record.folder_of(best), "config.yaml")
    if not storage.exists(path):
        raise TrainingError(f"{path}: is gone: the best trial's config can't be written")
    config = yaml.safe_load(storage.read_text(path))
    config.update(name=f"{config['name']}-trial-{best.id}", output_dir="")
    return dict(config)


def write(study: Study, record: Record, advice: list[str]) -> None:
    """Writes the table, the page and, with any trial that has a value, best.yaml."""
    storage.write_text(join(record.folder, TABLE), table(study, record))
    best = record.best()
    config = ""
    if best is not None:
        head = (
            f"# Trial {best.id} of the study {study.name}: {study.metric} {best.value:.6g} "
            f"({study.selection} measurement).\n# Again: python -m trainer train --config "
            f"{join(record.folder, BEST)}\n"
        )
        if best.state == "stopped":
            head += "# The trial was stopped early; this trains all epochs, so the figure can be another.\n"
        elif best.parent:
            head += (
                f"# The trial went on from trial {best.parent}, of fewer epochs: a schedule of the learning "
                "rate makes\n# the figure of a training in one piece another.\n"
            )
        config = head + yaml.safe_dump(
            best_config(record, best), sort_keys=False, allow_unicode=True, width=100
        )
        storage.write_text(join(record.folder, BEST), config)
    storage.write_text(join(record.folder, PAGE), page.render(study, record, config, advice))


def copy_model(record: Record, best: Trial) -> str | None:
    """Copies the best trial's models to `model` (and `model_examples`) of the study's folder.

    A model of an earlier end of the study is moved aside.

    Returns:
        Where the model is now; None when the trial was ended before it had exported one.
    """
    target = join(record.folder, "model")
    source = join(record.folder_of(best), "model")
    if storage.is_remote(source):
        return source  # an object store has it already; a copy of it would go through this machine
    if not os.path.exists(join(source, "saved_model.pb")):
        return None
    origin = join(record.folder, ORIGIN)
    mark = {"trial": best.id, "value": best.value}
    if os.path.isdir(target) and storage.read_json(origin) == mark:
        return target
    for name in ("model", "model_examples"):
        source, place = join(record.folder_of(best), name), join(record.folder, name)
        if not os.path.isdir(source):
            continue
        scratch = f"{place}.tmp-{os.getpid()}"
        shutil.copytree(source, scratch)
        if aside := storage.move_aside(place):
            log.info("moved the model of an earlier best to %s", aside)
        storage.move(scratch, place, last="saved_model.pb")
    storage.write_json(origin, mark)
    return target


def retrain(study: Study, record: Record, best: Trial, stop: Interruption) -> str:
    """Trains the best trial's config once more, into `best` of the study's folder, and returns its model.

    What an earlier end of the study had trained there is moved aside if another trial is the best now; a
    training of this trial that was interrupted goes on, and one that is done is not repeated.

    Raises:
        TrainingError: the run failed.
        Interrupted: SIGTERM came; the run has saved what it had.
    """
    folder = join(record.folder, "best")
    theirs = join(folder, "config.yaml")
    if storage.exists(theirs):
        name = yaml.safe_load(storage.read_text(theirs)).get("name")  # the trial's number is in it
        if name != best_config(record, best)["name"]:
            log.info("moved the training of an earlier best to %s", storage.move_aside(folder))
    log.info("training the best config (trial %d) into %s", best.id, folder)
    began = time.monotonic()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "trainer.task"),
            *(f"--config={join(record.folder, BEST)}", f"--output_dir={folder}"),
        ],
        # Of a study over a worker pool it is no part: it would wait for the workers, which have left.
        env=trials.lone_environment(),
        stdin=subprocess.DEVNULL,
    )
    while (code := process.poll()) is None:
        if stop.requested:
            process.terminate()
            process.wait()
            stop.check("while the best config was trained")
        time.sleep(0.2)
    if code:
        raise TrainingError(f"training the best config failed: {trials.failure(folder, code)}")
    told = storage.read_json(join(folder, "objective.json")) or {}
    reported = [Measurement(int(step), float(value)) for step, value in told.get("reported", [])]
    again = select(reported, study.selection, study.goal)
    log.info(
        "trained the best config in %.0f s: %s %s, in the study %.6g",
        *(time.monotonic() - began, study.metric, f"{again.value:.6g}" if again else "untold", best.value),
    )
    return join(folder, "model")
