"""The job against the run config of its arguments. Adopters: leave."""

from __future__ import annotations

from trainer import storage
from trainer.config import READER_TENSORFLOW
from trainer.jobs import hardware
from trainer.jobs.checks.images import tensorflow_of
from trainer.jobs.context import Context
from trainer.jobs.document import Value
from trainer.jobs.spec import Job

_MOST_ARGS = 100_000  # characters of all arguments of a pool
_KEPT = ("gs://", "/gcs/", "/mnt/nfs/", "/mnt/lustre/")  # what outlives the machine
_PERSONAL = ("/home/", "/root/", "/Users/", "/content/", "/tmp/", "/var/tmp/")  # folders of no image


def check(context: Context) -> None:
    """Notes where the job's machines and folders don't fit the run that its arguments ask for."""
    job = context.job
    for pool in job.active_pools:
        if sum(map(len, pool.args)) > _MOST_ARGS:
            context.add_pool(
                "args-too-long",
                pool,
                (pool.container, "args"),
                f"more than {_MOST_ARGS:,} characters",
                "put the settings in the config file",
            )
    _folders(context)
    if context.run.config is None:
        return
    _config_place(context)
    _data(context)
    if not context.machines_unclear:
        _strategy(context)
        _batch(context)


def key_place(context: Context, leaf: str) -> Value:
    """Returns the argument that sets a key, or the one that names the config file."""
    argument = context.run.argument(leaf)
    if argument is None:
        argument = next((a for a in context.run.arguments if a.name.replace("-", "_") == "config"), None)
    return argument.at if argument else context.job.spec


def kept(folder: str) -> bool:
    """Returns whether a folder outlives the machine."""
    return folder.startswith(_KEPT)


def _folders(context: Context) -> None:
    job, config = context.job, context.run.config
    base = job.base_output
    output = config.output_dir if config else ""
    if base.startswith("gs://") and set(base) & set("*?[]#"):
        context.add_in(
            "output-not-gs",
            job.spec,
            ("baseOutputDirectory", "outputUriPrefix"),
            f"{base!r} is a pattern to the tools that read it, and no folder",
            "write a folder without * ? [ ] #",
        )
    elif base and not base.startswith("gs://"):
        context.add_in(
            "output-not-gs",
            job.spec,
            ("baseOutputDirectory", "outputUriPrefix"),
            f"got {base!r}",
            "write gs://BUCKET/FOLDER",
        )
    elif not base and not kept(output):
        again = job.scheduling.strategy == "SPOT" or job.scheduling.restarts
        context.add_in(
            "checkpoints-lost" if again else "output-missing",
            job.spec,
            ("baseOutputDirectory",),
            "the job is meant to start again after a restart, but its checkpoints go with the machine"
            if again
            else "model, checkpoints and logs would stay on the machine's disk and go with it",
            "write {outputUriPrefix: gs://BUCKET/FOLDER}",
        )
    elif config and output and not kept(output):
        context.add(
            "output-local",
            key_place(context, "output_dir"),
            f"output_dir {output!r} is on the machine's own disk, and metrics.json and report.html with it",
            "leave output_dir empty: the run then uses the job's baseOutputDirectory",
        )


def _config_place(context: Context) -> None:
    """Notes a relative config path in a prebuilt container, whose working folder is not the package's."""
    chief = context.job.pools[0]
    for argument in context.run.arguments:
        if argument.name.replace("-", "_") != "config" or not chief.is_package:
            continue
        path = argument.value or ""
        if not storage.is_remote(path) and not path.startswith("/"):
            context.add(
                "config-relative",
                argument.at,
                f"{path} is looked for in the container's own folder, where the package's files are not",
                f"copy it to the bucket and write --config=gs://BUCKET/{path}",
            )


def _data(context: Context) -> None:
    config = context.run.config
    assert config is not None
    if context.job.root.get("inputDataConfig") is not None:
        return  # the service hands the rows over
    place = key_place(context, "data.source")
    local = [source for source in config.data.source if _of_this_machine(source)]
    if local:
        context.add(
            "data-local",
            place,
            f"data.source {local[0]} is a file of this machine, and not in the container",
            "copy the rows to the bucket and write --data.source=gs://BUCKET/FOLDER/*.parquet",
        )
    for source in config.data.source:
        scheme, found, rest = source.partition("://")
        table = scheme in ("bq", "bigquery")
        if found and not table and scheme != "gs":
            context.add("data-unreadable", place, f"nothing reads {scheme}://", "write gs:// or bigquery://")
        elif table and rest != "query" and rest.strip("/").count(".") < 2:
            context.add(
                "data-unreadable", place, f"{source} is no table", "write bigquery://PROJECT.DATASET.TABLE"
            )
    if config.data.reader == "tensorflow-io":
        for pool in context.job.training_pools:
            version = tensorflow_of(pool.image)
            if version == READER_TENSORFLOW:
                continue
            image = f"{pool.image} has {version}" if version else f"nothing tells which one {pool.image} has"
            context.add(
                "reader-tensorflow",
                key_place(context, "data.reader"),
                f"data.reader=tensorflow-io works in TensorFlow {READER_TENSORFLOW} alone, and {image}",
                "leave data.reader out: the trainer's own reader needs no tensorflow-io",
            )
            break


def _of_this_machine(source: str) -> bool:
    """Returns whether a source is relative, or below a folder that a person has on a machine of his own."""
    return "://" not in source and (not source.startswith("/") or source.startswith(_PERSONAL))


def _strategy(context: Context) -> None:
    job, config = context.job, context.run.config
    assert config is not None
    problem = strategy_problem(job, config.strategy.name)
    if problem:
        why, right = problem
        context.add("strategy", key_place(context, "strategy.name"), why, f"write --strategy.name={right}")
    for pool in job.training_pools:
        gpus = hardware.gpu_count(pool)
        if config.strategy.expect_gpus is not None and config.strategy.expect_gpus != gpus:
            context.add(
                "expect-gpus",
                key_place(context, "strategy.expect_gpus"),
                f"strategy.expect_gpus is {config.strategy.expect_gpus}, but each machine of {pool.name} has "
                f"{gpus}",
                f"write --strategy.expect_gpus={gpus}",
            )
            break
    replicas = hardware.replicas(job, config.strategy.cpu_replicas)
    if config.training.jit_compile == "true" and replicas > 1 and not job.is_tpu:
        context.add(
            "jit-compile",
            key_place(context, "training.jit_compile"),
            f"XLA can't compile the exchange between {replicas} replicas",
            "write --training.jit_compile=auto",
        )


def strategy_problem(job: Job, name: str) -> tuple[str, str] | None:
    """Returns (what is wrong, the right name) when a strategy doesn't fit a job's pools."""
    gpus = max((hardware.gpu_count(pool) for pool in job.training_pools), default=0)
    if job.is_tpu:
        return None if name == "tpu" else (f"strategy {name!r} doesn't use the TPU", "tpu")
    if name == "tpu":
        return "there is no TPU in the job's pools", "auto"
    if job.workers > 1 and name not in ("auto", "multi_worker_mirrored"):
        return f"{job.workers} machines train together, and {name!r} would train on each by itself", "auto"
    if job.workers == 1 and name == "multi_worker_mirrored":
        return "one machine has no other to exchange with", "auto"
    if name == "one_device" and gpus > 1:
        return f"{gpus - 1} of {gpus} GPUs would idle", "mirrored"
    return None


def _batch(context: Context) -> None:
    job, config = context.job, context.run.config
    assert config is not None
    replicas = hardware.replicas(job, config.strategy.cpu_replicas)
    if problem := batch_problem(config.training.batch_size, replicas, config.training.accumulate):
        why, near = problem
        context.add(
            "batch-size",
            key_place(context, "training.batch_size"),
            why,
            f"write --training.batch_size={near}",
        )


def batch_problem(batch: int, replicas: int, accumulate: int) -> tuple[str, str] | None:
    """Returns (what is wrong, sizes near it that fit) when a global batch doesn't divide, else None."""
    unit = replicas * accumulate
    if batch % unit == 0:
        return None
    near = [size for size in (batch // unit * unit, (batch // unit + 1) * unit) if size]
    parts = f" x {accumulate} parts" if accumulate > 1 else ""
    why = f"a global batch of {batch:,} rows doesn't divide over {replicas} replicas{parts}"
    return why, " or ".join(map(str, near))
