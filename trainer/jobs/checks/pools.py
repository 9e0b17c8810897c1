"""Worker pools: positions, replicas, programs. Adopters: leave."""

from __future__ import annotations

from trainer.jobs.context import Context
from trainer.jobs.spec import Job, Pool

_MOST_POOLS = 4


def check(context: Context) -> None:
    """Notes what is wrong with the pools of a job, apart from reduction servers and TPUs."""
    job = context.job
    if not job.active_pools:
        if not job.pools:
            context.add_in(
                "pools-missing",
                job.spec,
                ("workerPoolSpecs",),
                "there is no worker pool",
                "write a list of at least one pool",
            )
        else:
            _chief_empty(context, job)
        return
    if len(job.pools) > _MOST_POOLS:
        context.add(
            "pool-count",
            job.pools[_MOST_POOLS].value,
            f"{len(job.pools)} pools: only chief, workers, pool 2 "
            "(reduction servers) and pool 3 (evaluators) exist",
            "use replicaCount for more machines of a kind",
        )
    if job.pools[0].empty:
        _chief_empty(context, job)
    for pool in job.active_pools:
        _program(context, pool)
        _replicas(context, pool)
        if not pool.machine_type and not job.persistent_resource:
            context.add_pool(
                "machine-missing",
                pool,
                ("machineSpec", "machineType"),
                "the pool has no machine type",
                "write one such as n1-standard-4",
            )
    _roles(context, job)
    _alike(context, job)


def _chief_empty(context: Context, job: Job) -> None:
    context.add(
        "chief-empty",
        job.pools[0].value,
        "pool 0 is the chief and can't be skipped",
        "write the pool, and {} for a later one that you skip",
    )


def _replicas(context: Context, pool: Pool) -> None:
    if pool.value.get("replicaCount") is None:
        context.add_pool(
            "replica-count",
            pool,
            ("replicaCount",),
            "no number of replicas is written, which is 0 in the API's own types",
            "write replicaCount: 1",
        )
    elif pool.replicas < 1:
        context.add_pool(
            "replica-count",
            pool,
            ("replicaCount",),
            f"{pool.replicas} replicas",
            "write 1 or more, or {} for the pool",
        )
    elif pool.index == 0 and pool.replicas > 1 and not pool.is_tpu:
        context.add_pool(
            "chief-replicas",
            pool,
            ("replicaCount",),
            f"pool 0 is the one chief, got {pool.replicas}",
            f"write 1 here, and {pool.replicas - 1} more in pool 1",
        )


def _program(context: Context, pool: Pool) -> None:
    if pool.value.get("containerSpec") is None and not pool.is_package:
        context.add_pool(
            "container-missing",
            pool,
            ("containerSpec",),
            "the pool has no program",
            "write containerSpec with imageUri, or pythonPackageSpec",
        )
        return
    if not pool.image:
        key = "executorImageUri" if pool.is_package else "imageUri"
        context.add_pool(
            "image-missing", pool, (pool.container, key), "there is no image", "write the URI of an image"
        )
    for key, given in (("pythonModule", pool.python_module), ("packageUris", pool.package_uris)):
        if pool.is_package and not given:
            instead = (
                "trainer.task" if key == "pythonModule" else "[gs://BUCKET/packages/trainer-0.1.0.tar.gz]"
            )
            context.add_pool(
                "package-incomplete",
                pool,
                (pool.container, key),
                "a Python package needs it",
                f"write {instead}",
            )


def _roles(context: Context, job: Job) -> None:
    for pool in job.active_pools[1:]:
        if pool.index == 2 and pool.runs_trainer:
            context.add(
                "parameter-servers",
                pool.value,
                "pool 2 would be parameter servers, which this trainer doesn't "
                "use: its replicas train in step",
                "make pool 1 larger, or use the reduction server image here",
            )
        elif pool.index == 3 and pool.runs_trainer:
            context.add(
                "evaluator",
                pool.value,
                "pool 3 is an evaluator: a machine that evaluates each checkpoint, while the workers "
                "evaluate after each epoch anyway",
                "leave pool 3 out, unless figures between epochs are worth a machine",
            )


def _alike(context: Context, job: Job) -> None:
    """Notes differences between the chief and the workers, which run the same program."""
    if len(job.training_pools) < 2 or job.is_tpu:
        return
    chief, worker = job.training_pools[:2]
    if chief.is_package != worker.is_package:
        context.add_pool(
            "container-kinds",
            worker,
            (worker.container,),
            f"the chief has a {chief.container}",
            f"use {chief.container} in every pool that trains",
        )
        return
    if not worker.runs_trainer or not chief.runs_trainer:
        return
    if chief.image != worker.image and worker.image:
        key = "executorImageUri" if worker.is_package else "imageUri"
        context.add_pool(
            "container-images",
            worker,
            (worker.container, key),
            "the workers have another image than the chief",
            f"write {chief.image}",
        )
    if chief.args != worker.args:
        other = [arg for arg in worker.args if arg not in chief.args] or [
            arg for arg in chief.args if arg not in worker.args
        ]
        context.add_pool(
            "worker-args",
            worker,
            (worker.container, "args"),
            "the workers have other arguments than the chief" + (f" ({other[0]})" if other else ""),
            "give both pools the same args, so that they train the same",
        )
    accelerators = [(pool.accelerator_type, pool.accelerator_count) for pool in (chief, worker)]
    if accelerators[0] != accelerators[1]:
        words = [f"{count} {name}" if count else "none" for name, count in accelerators]
        context.add_pool(
            "worker-accelerators",
            worker,
            ("machineSpec",),
            f"{words[1]} on each worker, {words[0]} on the chief: replicas in step must be alike",
            "give both pools the same accelerators",
        )
    elif chief.machine_type != worker.machine_type and worker.machine_type:
        context.add_pool(
            "worker-machines",
            worker,
            ("machineSpec", "machineType"),
            f"{worker.machine_type} beside a chief on "
            f"{chief.machine_type}: every step takes as long as the slower one",
            f"write {chief.machine_type}",
        )
