"""keras-tuner over a worker pool: the chief is the oracle, every worker runs trials. Adopters: leave.

`python -m trainer tune` does so by itself when CLUSTER_SPEC or TF_CONFIG tell of several machines. The
protocol is keras-tuner's own (its `OracleServicer` and `OracleClient` over gRPC); only the chief's loop is
ours: keras-tuner's waits for ever for a worker that was lost, and looks every 20 seconds. Files of trials lie
below one folder that all machines see, so that a trial goes on wherever it is started again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Mapping, MutableMapping
from concurrent import futures
from dataclasses import replace
from typing import Any

from trainer import environment, process, storage
from trainer.environment import Service, join
from trainer.errors import TrainingError, UserError
from trainer.interruption import Interruption
from trainer.lock import FolderLock
from trainer.tuning import measurements, stopping
from trainer.tuning import trial as trials
from trainer.tuning.command import Plan
from trainer.tuning.study import MOST_CRASHES
from trainer.tuning.trial import Processes, Trial

log = logging.getLogger("trainer")

_PORT_OFFSET = 1000  # from the chief's own port, which is TensorFlow's
_LINGER_SECONDS = 30.0  # for workers that have still to be told that there is no further trial
_AWAY_SECONDS = 600.0  # for a chief that is started again
_ENDED = "ended.json"  # the chief notes that there is no further trial
_RESULT = "trial.json"  # what a worker writes of a trial, for the chief's tables
VARIABLES = ("KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT")


def variables(me: Service, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns keras-tuner's variables for this process, from its place in the cluster.

    Args:
        me: who this process is.
        environ: with KERASTUNER_ORACLE_PORT in it, that port is taken.

    Raises:
        UserError: the chief's address has no port.
    """
    host, colon, port = me.hosts[0].rpartition(":")
    if not colon or not port.isdigit():
        raise UserError(f"CLUSTER_SPEC/TF_CONFIG: the chief's address {me.hosts[0]!r} is not host:port")
    near = int(port) + _PORT_OFFSET
    own = environ.get("KERASTUNER_ORACLE_PORT") or str(near if near < 65536 else int(port) - _PORT_OFFSET)
    return {
        "KERASTUNER_TUNER_ID": "chief" if me.is_chief else f"tuner{me.worker_index - 1}",
        # A machine of the service can't listen at the name by which the others find it.
        "KERASTUNER_ORACLE_IP": "0.0.0.0" if me.is_chief else host,
        "KERASTUNER_ORACLE_PORT": own,
    }


def enter(me: Service, environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets keras-tuner's variables and takes TF_CONFIG away, so that TensorFlow waits for nobody."""
    environ.update(variables(me, environ))
    environ.pop("TF_CONFIG", None)


def run(plan: Plan, me: Service) -> None:
    """Runs this process's part of a study: the oracle on the chief, trials on a worker.

    Raises:
        UserError: the folder is another study's, or a process has no part in it.
        TrainingError: on the chief: too many trials failed, or none has a value.
        Interrupted: SIGTERM came; the same command goes on.
    """
    if me.role not in ("chief", "worker"):
        raise UserError(f"this process is a {me.role!r} of the cluster: only pools 0 and 1 run a study")
    if plan.fresh:  # the service starts the same command again
        raise UserError(
            "--fresh: a machine that is started again would move its own study aside; choose another "
            "--output_dir"
        )
    enter(me)
    with process.quiet_import():
        from keras_tuner.src.engine import conditions
    conditions.print = lambda *words: None  # keras-tuner 1.4 prints every condition that it sends
    if me.is_chief:
        with FolderLock(plan.folder), Interruption() as stop:
            _Chief(plan, me, stop).serve()
    else:
        with Interruption() as stop:
            _work(plan, stop)


# --- the chief --------------------------------------------------------------------------------------


class _Chief:
    def __init__(self, plan: Plan, me: Service, stop: Interruption) -> None:
        from trainer.tuning import advice, oracle

        # Every worker runs one trial at a time.
        study = replace(plan.study, limits=replace(plan.study.limits, parallel=me.workers - 1))
        self.study, self.plan, self.stop, self.me = study, plan, stop, me
        epochs = plan.config.training.epochs
        self.oracle = oracle.make(study, seed=plan.config.seed, epochs=epochs)
        points = oracle.initial_points(study)
        self.advice = advice.lines(study, epochs, points, "replicaCount: {} in pool 1")
        self.record = plan.record()
        self.began = time.time() - self.record.seconds
        state = join(plan.folder, oracle.STATE)
        if (snapshot := storage.read_json(state)) is not None:
            self.oracle.restore(snapshot)
            log.info("%s: going on with the study: %d trials", plan.folder, len(self.oracle.trials))
        self.oracle._directory, self.oracle._project_name = plan.folder, ""
        self.record.save(self.oracle.snapshot(), self.record.seconds)

    def serve(self) -> None:
        import grpc
        from keras_tuner.src import protos
        from keras_tuner.src.distribute.oracle_chief import OracleServicer

        from trainer.tuning import results

        for line in self.advice:
            log.info(line)
        address = ":".join(os.environ[name] for name in VARIABLES[1:])
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
        servicer = OracleServicer(self.oracle)
        protos.get_service_grpc().add_OracleServicer_to_server(servicer, server)
        if not server.add_insecure_port(address):
            raise TrainingError(
                f"the oracle can't listen at {address}: set KERASTUNER_ORACLE_PORT to another"
            )
        server.start()
        log.info("the oracle listens at %s for %d workers", address, self.me.workers - 1)
        try:
            failure = self._wait(servicer)
            time.sleep(1.0)  # the last answer is on its way
        finally:
            server.stop(grace=5).wait()
        self._collect()
        self.record.outcome = failure or f"{len(self.record.trials)} trials"
        self.record.save(self.oracle.snapshot(), time.time() - self.began)
        results.write(self.study, self.record, self.advice)
        best = self.record.best()
        if failure or best is None:
            raise TrainingError(failure or f"no trial finished with a finite {self.study.metric}")
        model = results.copy_model(self.record, best) if self.plan.best == "copy" else None
        if self.plan.best == "retrain":
            model = results.retrain(self.study, self.record, best, self.stop)
        log.info(
            "best: trial %d, %s %.6g (%s) · %s · %s%s",
            *(best.id, self.study.metric, best.value, " ".join(self.study.arguments(best.values))),
            *(join(self.plan.folder, name) for name in (results.PAGE, results.BEST)),
            f" · model {model}" if model else "",
        )

    def _wait(self, servicer: Any) -> str:
        """Waits until no worker has, or will get, a trial; returns why trials failed too often, or ""."""
        failure, told = "", len(self.oracle.end_order)
        idle_since: float | None = None
        ended = join(self.plan.folder, _ENDED)
        left = self._trials_left(storage.read_json(ended))
        while True:
            time.sleep(0.2)
            self.stop.check("while workers run trials")
            told = self._tell(told)
            failure = failure or self._failure()
            if failure:
                self.oracle.max_trials = len(self.oracle.trials)  # nobody gets another one
            if left and servicer.stop_triggered:
                left = False
                storage.write_json(ended, {"max_trials": self.study.limits.max_trials})
            if left or self.oracle.ongoing_trials:
                idle_since = None
                continue
            idle_since = idle_since or time.monotonic()
            # Of those that were seen none is to be told any more, or those that were lost don't come.
            told_all = servicer.stop_triggered and not self.oracle.tuner_ids
            if told_all or time.monotonic() - idle_since > _LINGER_SECONDS:
                return failure

    def _trials_left(self, ended: dict[str, Any] | None) -> bool:
        """Returns whether a worker that asks may get a new trial.

        A chief that is started again after that may have no worker any more that would ask: each leaves once
        it was told that there is no further trial.
        """
        most = self.study.limits.max_trials
        if ended is not None and ended["max_trials"] == most:
            return False
        return len(self.oracle.trials) < most

    def _tell(self, told: int) -> int:
        for key in self.oracle.end_order[told:]:
            theirs = self.oracle.trials[key]
            text = " ".join(self.study.arguments(_own(theirs)))
            if theirs.status == "COMPLETED":
                log.info("trial %d: %s %.6g · %s", int(key) + 1, self.study.metric, theirs.score, text)
            else:
                log.warning("trial %d failed · %s", int(key) + 1, text)
        return len(self.oracle.end_order)

    def _failure(self) -> str:
        ended = [self.oracle.trials[key].status for key in self.oracle.end_order]
        failed, most = ended.count("FAILED"), self.study.limits.max_failed
        if most and failed >= most:
            return f"{failed} trials failed, and maxFailedTrialCount is {most}"
        if not most and (ended[:1] == ["FAILED"] or ended[-3:] == ["FAILED"] * 3):
            return "the first trial or three in a row failed, which ends a study without maxFailedTrialCount"
        return ""

    def _collect(self) -> None:
        """Reads what the workers wrote of each trial."""
        self.record.trials = []
        for key in self.oracle.start_order:
            number = int(key) + 1
            theirs = self.oracle.trials[key]
            found = storage.read_json(join(self.plan.folder, str(number), _RESULT))
            one = Trial(**found) if found else Trial(number, key, _own(theirs))
            if theirs.status == "FAILED" and one.state != "failed":
                one.state, one.error = "failed", one.error or "its worker was lost"
            self.record.trials.append(one)
        for one in self.record.trials:
            one.seen = sum(0 < other.ended <= one.started for other in self.record.trials)


def _own(theirs: Any) -> dict[str, Any]:
    values = theirs.hyperparameters.values
    return {name: value for name, value in values.items() if not name.startswith("tuner/")}


# --- a worker ---------------------------------------------------------------------------------------


class _Left(BaseException):
    """SIGTERM came in the middle of a trial.

    No Exception: keras-tuner takes those for the trial's failure and tells the chief so, and a trial whose
    machine was taken away is to go on elsewhere.
    """


class _Patient:
    """The connection to the chief; a call that a restart of the chief cut off is made again.

    keras-tuner waits for a chief that isn't there yet, but a call in flight fails at once, and with it the
    trial. The chief keeps its state in a file, and makes no second trial for one who asks again.
    """

    def __init__(self, stub: Any, grpc: Any) -> None:
        self._stub, self._grpc = stub, grpc

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._stub, name)

        def again(*args: Any, **more: Any) -> Any:
            end = time.monotonic() + _AWAY_SECONDS
            while True:
                try:
                    return call(*args, **more)
                except self._grpc.RpcError as error:
                    if error.code() != self._grpc.StatusCode.UNAVAILABLE or time.monotonic() > end:
                        raise
                log.warning("the oracle is away: asking again")
                time.sleep(1.0)

        return again


def _work(plan: Plan, stop: Interruption) -> None:
    import grpc
    from keras_tuner import errors
    from keras_tuner.engine import base_tuner

    from trainer.tuning import oracle

    study, launch = plan.study, Processes(plan.base)

    class Worker(base_tuner.BaseTuner):  # type: ignore[misc]
        """Runs the trials that the chief hands out, each as a process."""

        def pre_create_trial(self) -> None:
            stop.check("before another trial")
            time.sleep(0.2)  # an oracle that has to wait answers at once, and would be asked at once again

        def save(self) -> None:
            """Nothing is kept here: the chief has it all."""

        def run_trial(self, theirs: Any, *args: Any, **more: Any) -> None:
            number = int(theirs.trial_id) + 1
            folder = join(plan.folder, str(number))
            one = Trial(number, theirs.trial_id, _own(theirs), started=time.time())
            if before := storage.read_json(join(folder, _RESULT)):  # a machine that was lost had begun it
                one.started, one.starts = before["started"], before["starts"]
            one.values = {name: study.dimension(name).clean(v) for name, v in one.values.items()}
            one.arguments = study.arguments(one.values)
            values = theirs.hyperparameters.values
            if "tuner/epochs" in values:
                one.epochs = int(values["tuner/epochs"])
                one.arguments.append(f"--training.epochs={one.epochs}")
                if values.get("tuner/trial_id"):
                    one.parent = int(values["tuner/trial_id"]) + 1
                    if not storage.exists(join(folder, "checkpoints")):
                        trials.inherit(join(plan.folder, str(one.parent)), folder)
            if study.stopping:
                others = self.oracle.get_best_trials(study.limits.max_trials)
                curves = [_curve(other, study.metric) for other in others if other.status == "COMPLETED"]
                content = stopping.content(study.metric, study.goal, False, one.started, curves)
                storage.write_json(join(folder, trials.OTHERS), content)
            log.info("trial %d%s: %s", number, " goes on" if one.starts else "", " ".join(one.arguments))
            code = _run(launch, one, folder, stop)
            found, _ = measurements.read(launch.metrics(one, folder), study.metric, one.started)
            chosen = measurements.select(found, study.selection, study.goal)
            one.measurements = [measurement.plain() for measurement in found]
            one.ended = time.time()
            if code or chosen is None:
                one.state = "failed"
                one.error = f"it ended without having reported {study.metric!r}"
                if code:
                    one.error = trials.failure(folder, code, launch.log(one, folder))
                storage.write_json(join(folder, _RESULT), one.plain())
                log.warning("trial %d failed: %s", number, one.error)
                raise errors.FailedTrialError(one.error)
            early = storage.exists(join(folder, trials.STOPPED))
            one.state, one.value, one.step = "stopped" if early else "completed", chosen.value, chosen.step
            storage.write_json(join(folder, _RESULT), one.plain())
            for each in measurements.by_step(found, study.selection, study.goal):
                self.oracle.update_trial(theirs.trial_id, {study.metric: each.value}, step=each.step)

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_Left):
        host, port = (os.environ[name] for name in VARIABLES[1:])
        log.info("waiting for the oracle at %s:%s, an hour at most", host, port)
        own = oracle.make(study, seed=plan.config.seed, epochs=max(3, plan.config.training.epochs))
        worker = Worker(own, directory=folder, project_name="worker")
        worker.oracle.stub = _Patient(worker.oracle.stub, grpc)
        worker.search()
    stop.check("in the middle of a trial")
    log.info("no further trial: the study is at its end")


def _run(launch: Processes, one: Trial, folder: str, stop: Interruption) -> int:
    """Runs a trial's process to its end, and starts it again when the machine took it."""
    first = one.starts
    while True:
        one.starts += 1
        storage.write_json(join(folder, _RESULT), one.plain())
        running = launch(one, folder)
        while (code := running.poll()) is None:
            if stop.requested:
                running.terminate()
                end = time.monotonic() + trials.GRACE_SECONDS
                while running.poll() is None and time.monotonic() < end:
                    time.sleep(0.1)
                running.kill()
                raise _Left
            time.sleep(0.2)
        if not trials.is_lost(code) or one.starts - first >= MOST_CRASHES:
            return code
        log.warning("trial %d: its process was lost (exit code %d); starting it again", one.id, code)


def _curve(theirs: Any, metric: str) -> list[measurements.Measurement]:
    history = theirs.metrics.get_history(metric) if theirs.metrics.exists(metric) else []
    return [measurements.Measurement(int(point.step), float(point.mean())) for point in history]


def service(environ: Mapping[str, str] = os.environ) -> Service | None:
    """Returns who this process is in a study over several machines; None for a study on one."""
    me = environment.service(environ)
    return me if me.workers > 1 else None
