"""Devices, the tf.distribute strategy and the arithmetic of the batch. Adopters: leave.

Order matters here and nowhere else: GPU memory growth and logical CPUs can't change once TensorFlow has
touched a device, and making a strategy touches them all. So `create` is the first TensorFlow call of a run.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping, MutableMapping
from typing import Any

import tensorflow as tf

from trainer.config import Config
from trainer.environment import clean_tf_config, service
from trainer.errors import UserError

log = logging.getLogger(__name__)

_CUDA_HINT = (
    "look whether nvidia-smi lists it, and install the CUDA packages that belong to TensorFlow: "
    "pip install 'tensorflow[and-cuda]'"
)


def check_keras(environ: Mapping[str, str] | None = None) -> None:
    """Refuses environment variables that put another Keras, or another backend, in Keras 3's place.

    Raises:
        UserError: TF_USE_LEGACY_KERAS or KERAS_BACKEND says something that this trainer can't work with.
    """
    environ = os.environ if environ is None else environ
    legacy = environ.get("TF_USE_LEGACY_KERAS", "")
    if legacy.strip().lower() in ("1", "true"):
        raise UserError(
            f"TF_USE_LEGACY_KERAS={legacy} asks for Keras 2, but this trainer needs Keras 3 "
            "(its own loop replaces fit, so several workers need no legacy Keras): unset TF_USE_LEGACY_KERAS"
        )
    backend = environ.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        raise UserError(
            f"KERAS_BACKEND={backend} is set, but this trainer needs the backend 'tensorflow': "
            "unset KERAS_BACKEND"
        )


def create(config: Config, environ: MutableMapping[str, str] | None = None) -> tf.distribute.Strategy:
    """Sets the devices up and returns the strategy that `config.strategy` asks for.

    Call it before any other TensorFlow call: memory growth, logical CPUs, determinism and seeds first,
    then the strategy, then everything else. Seeds Python, NumPy and TensorFlow with `config.seed`.

    Args:
        config: The run's config.
        environ: Environment with TF_CONFIG; `os.environ` unless given. For several workers its TF_CONFIG is
            rewritten without tasks that don't train, because TensorFlow would wait for them for ever.

    Returns:
        OneDeviceStrategy, MirroredStrategy, MultiWorkerMirroredStrategy or TPUStrategy.

    Raises:
        UserError: The machine or the environment isn't what the config asks for.
    """
    environ = os.environ if environ is None else environ
    check_keras(environ)
    gpus = tf.config.list_physical_devices("GPU")
    expected = config.strategy.expect_gpus
    if expected is not None and len(gpus) != expected:
        hint = _CUDA_HINT if len(gpus) < expected else "set strategy.expect_gpus to what the machine has"
        raise UserError(
            f"strategy.expect_gpus: expected {expected} GPU{'s' if expected != 1 else ''}, "
            f"TensorFlow sees {len(gpus)}; {hint}"
        )
    name = _resolve(config, environ, len(gpus))
    _check_name(name, environ, len(gpus), config)
    if config.training.jit_compile == "true" and _replica_count(name, config, len(gpus), environ) > 1:
        raise UserError(
            "training.jit_compile: true can't be used with several replicas, because XLA can't compile the "
            "exchange between replicas inside a step; use 'auto' (compiles on one GPU or a TPU) or 'false'"
        )
    if config.strategy.gpu_memory_growth:
        _grow_memory(gpus)
    if config.strategy.cpu_replicas > 1:
        _logical_cpus(config.strategy.cpu_replicas)
    _seed(config)
    strategy = _make(name, config, environ)
    log.info(describe(strategy, len(gpus)))
    return strategy


def describe(strategy: tf.distribute.Strategy, gpus: int) -> str:
    """Returns one line: strategy, replicas and devices."""
    cpus = len(tf.config.list_logical_devices("CPU"))
    replicas = strategy.num_replicas_in_sync
    return (
        f"{type(strategy).__name__}: {_many(replicas, 'replica')}; TensorFlow {tf.__version__} sees "
        f"{_many(gpus, 'GPU')} and {_many(cpus, 'CPU device')}"
    )


def uses_jit(config: Config, strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the step is compiled with XLA; 'auto' means: on one GPU or on a TPU.

    On a TPU everything is compiled anyway, so nothing is left to ask for.
    """
    wish = config.training.jit_compile
    if isinstance(strategy, tf.distribute.TPUStrategy) or wish == "false":
        return False
    if wish == "true":
        return True
    return strategy.num_replicas_in_sync == 1 and bool(tf.config.list_logical_devices("GPU"))


def local_replicas(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of replicas that live in this process."""
    return max(1, len(strategy.extended.worker_devices))


def own_copy(variable: Any) -> Any:
    """Returns this replica's copy of a variable that several replicas hold; any other variable as it is.

    `tf.gather` on a mirrored variable reads, and copies, all of it: 50 ms for the table and the moments of a
    million rows. On the copy it reads the rows alone. Call it inside a replica, or an update of a variable.
    """
    if not isinstance(variable, tf.distribute.DistributedValues) or type(variable).__name__.startswith("TPU"):
        return variable
    return variable._get()  # no public name says "the copy of the replica that is being traced"


def worker_batch(config: Config, strategy: tf.distribute.Strategy) -> int:
    """Returns the rows of one step that this process reads: its share of the global batch."""
    return config.training.batch_size * local_replicas(strategy) // strategy.num_replicas_in_sync


def arithmetic(config: Config, strategy: tf.distribute.Strategy, rows: int, steps_per_epoch: int) -> str:
    """Returns the arithmetic of a run as one sentence for the log.

    Args:
        config: The run's config.
        strategy: From `create`.
        rows: Rows of the train split.
        steps_per_epoch: Steps of one epoch.

    Raises:
        UserError: The global batch doesn't divide over replicas and parts; names the nearest that do.
    """
    training = config.training
    replicas = strategy.num_replicas_in_sync
    check_batch(training.batch_size, replicas, training.accumulate)
    workers = max(1, replicas // local_replicas(strategy))
    steps = total_steps(config, steps_per_epoch)
    parts = f", each in {training.accumulate} parts" if training.accumulate > 1 else ""
    read = "its share of the rows" if config.data.sharding == "rows" else "all rows"
    shared = f" Each worker reads {read} (data.sharding={config.data.sharding})." if workers > 1 else ""
    limit = f" (training.max_steps {training.max_steps:,})" if training.max_steps else ""
    if rows < training.batch_size:
        log.warning(
            "training.batch_size: %s is more than the %s rows of the train split: each step has %s padded "
            "ones that count nothing; make it smaller",
            f"{training.batch_size:,}",
            f"{rows:,}",
            f"{training.batch_size - rows:,}",
        )
    return (
        f"Global batch {training.batch_size:,} = {_many(workers, 'worker')} x "
        f"{_many(replicas // workers, 'replica')} x {training.batch_size // replicas:,} rows{parts}; "
        f"{rows:,} rows make {_many(steps_per_epoch, 'step')} an epoch; "
        f"{_many(training.epochs, 'epoch')}: {_many(steps, 'step')}{limit}.{shared}"
    )


def total_steps(config: Config, steps_per_epoch: int) -> int:
    """Returns the steps of the whole run: `epochs` and `max_steps`, whichever is less."""
    steps = config.training.epochs * steps_per_epoch
    return steps if config.training.max_steps is None else min(steps, config.training.max_steps)


def check_batch(batch_size: int, replicas: int, accumulate: int) -> None:
    """Raises UserError unless the global batch divides over `replicas` and `accumulate`."""
    unit = replicas * accumulate
    if batch_size % unit == 0:
        return
    below, above = batch_size // unit * unit, (batch_size // unit + 1) * unit
    near = f"{below:,} or {above:,}" if below else f"{above:,}"
    parts = f" x {accumulate} parts (training.accumulate)" if accumulate > 1 else ""
    raise UserError(
        f"training.batch_size: {batch_size:,} rows don't divide over {_many(replicas, 'replica')}{parts}; "
        f"the nearest that do: {near}"
    )


# --- the steps of create ----------------------------------------------------------------------------


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _resolve(config: Config, environ: Mapping[str, str], gpus: int) -> str:
    name = config.strategy.name
    if name != "auto":
        return name
    if service(environ).workers > 1:
        return "multi_worker_mirrored"
    return "mirrored" if gpus > 1 or (gpus == 0 and config.strategy.cpu_replicas > 1) else "one_device"


def _check_name(name: str, environ: Mapping[str, str], gpus: int, config: Config) -> None:
    """Refuses a strategy that contradicts the cluster."""
    me = service(environ)
    if me.workers > 1 and me.role != "evaluator" and name != "multi_worker_mirrored":
        if name == "tpu":
            raise UserError(
                f"strategy.name: 'tpu' trains in one process, and TF_CONFIG has {me.workers} workers: take "
                "pool 1 out of the job and give pool 0 a machine with more TPU cores"
            )
        raise UserError(
            f"strategy.name: {name!r} trains in one process, and TF_CONFIG has {me.workers} workers: leave "
            "strategy.name at 'auto', or take the worker pool out of the job"
        )
    if config.strategy.communication == "nccl" and not gpus:
        raise UserError(
            "strategy.communication: 'nccl' works between GPUs, and TensorFlow sees none; use 'auto' or "
            "'ring'"
        )


def _replica_count(name: str, config: Config, gpus: int, environ: Mapping[str, str]) -> int:
    if name == "mirrored":
        return gpus or config.strategy.cpu_replicas
    if name == "multi_worker_mirrored":
        return service(environ).workers * max(1, gpus)
    return 1


def _grow_memory(gpus: list[Any]) -> None:
    if not gpus:
        log.debug("strategy.gpu_memory_growth: no GPU here, nothing to set")
    for gpu in gpus:  # TensorFlow wants the same answer for every GPU
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except RuntimeError:
            if not tf.config.experimental.get_memory_growth(gpu):
                log.warning("GPU memory growth can't be set any more: TensorFlow already uses %s", gpu.name)


def _logical_cpus(count: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or ()) >= count:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError:
        raise UserError(
            f"strategy.cpu_replicas: {count} logical CPUs can't be made any more, "
            "because TensorFlow was used before strategy.create"
        ) from None


def _seed(config: Config) -> None:
    import keras  # not above: Keras must find the devices as the lines before have set them

    keras.utils.set_random_seed(config.seed)
    # Physical devices: listing logical ones would start TensorFlow, too early for several workers.
    if config.strategy.deterministic and tf.config.list_physical_devices("GPU"):
        # Kernels of the CPU give the same bits as they are; asking for it there only forbids some of them.
        tf.config.experimental.enable_op_determinism()


@functools.cache
def mirrored(devices: tuple[str, ...]) -> tf.distribute.MirroredStrategy:
    """Returns this process's MirroredStrategy over some devices: always the same object.

    Each strategy numbers its messages between replicas from 100 on, and TensorFlow knows them by number
    alone: a second strategy in the process would have its sums mixed up with those of the first.
    """
    return tf.distribute.MirroredStrategy(list(devices))


def _make(name: str, config: Config, environ: MutableMapping[str, str]) -> tf.distribute.Strategy:
    gpus = tf.config.list_logical_devices("GPU") if name in ("one_device", "mirrored") else []
    if name == "mirrored":
        kind, count = ("GPU", len(gpus)) if gpus else ("CPU", config.strategy.cpu_replicas)
        return mirrored(tuple(f"{kind}:{i}" for i in range(count)))
    if name == "multi_worker_mirrored":
        _check_cluster(environ)
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=_communication(config))
    if name == "tpu":
        return _tpu()
    return tf.distribute.OneDeviceStrategy("/GPU:0" if gpus else "/CPU:0")


def _communication(config: Config) -> Any:
    kinds = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=round(config.strategy.pack_megabytes * 2**20),
        implementation=kinds[config.strategy.communication.upper()],
    )


def _check_cluster(environ: MutableMapping[str, str]) -> None:
    if service(environ).workers < 2:
        raise UserError(
            "strategy.name: multi_worker_mirrored needs a TF_CONFIG with several workers, and this process "
            "has none; on one machine use 'mirrored'"
        )
    clean_tf_config(environ)  # TensorFlow waits for ever for tasks that don't train


def _tpu() -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, tf.errors.OpError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            "strategy.name: 'tpu' was asked for, but this machine shows no TPU to TensorFlow "
            f"({first[:120]}); it needs a TPU VM and the tensorflow-tpu package"
        ) from error
