"""Reduction servers: the third pool that adds up gradients. Adopters: leave."""

from __future__ import annotations

import math

from trainer.jobs import hardware
from trainer.jobs.context import Context
from trainer.jobs.spec import REDUCER_IMAGE, Pool

_GOOD_IMAGES = tuple(f"{host}-docker.pkg.dev/{REDUCER_IMAGE}:latest" for host in ("us", "europe", "asia"))


def check(context: Context) -> None:
    """Notes what is wrong with the pools of reduction servers of a job."""
    for pool in context.job.active_pools:
        if pool.is_reducer:
            _check(context, pool)


def _check(context: Context, pool: Pool) -> None:
    job = context.job
    if pool.index != 2:
        context.add(
            "reducer-pool",
            pool.value,
            f"reduction servers in pool {pool.index}: only pool 2 may hold them",
            "make it the third pool, with {} in place of a pool that you skip",
        )
        return
    if pool.image not in _GOOD_IMAGES:
        context.add_pool(
            "reducer-image",
            pool,
            ("containerSpec", "imageUri"),
            f"{pool.image} is no reduction server",
            f"write {_GOOD_IMAGES[0]}",
        )
    if pool.accelerator_type or pool.accelerator_count:
        context.add_pool(
            "reducer-accelerator",
            pool,
            ("machineSpec", "acceleratorType"),
            "reduction servers only add numbers that come over the network",
            "leave the accelerators out and take n1-highcpu-16",
        )
    for key in ("command", "args", "env"):
        if pool.value.get("containerSpec", key) is not None:
            context.add_pool(
                "reducer-program", pool, ("containerSpec", key), "the image starts by itself", "leave it out"
            )
    if any(not hardware.gpu_count(other) for other in job.training_pools):
        context.add(
            "reducer-gpus",
            pool.value,
            "reduction servers speak NCCL, and a pool that trains has no GPUs",
            "leave pool 2 out, or train on GPUs",
        )
        return
    if job.workers < 2:
        context.add(
            "reducer-one-machine",
            pool.value,
            "one machine has nothing to add up with others",
            "leave pool 2 out, or add workers in pool 1",
        )
        return
    _bandwidth(context, pool)


def _bandwidth(context: Context, pool: Pool) -> None:
    """Notes reducers whose summed egress is below that of the machines they serve."""
    job = context.job
    own = hardware.egress(pool)
    each = [(other.replicas, hardware.egress(other)) for other in job.training_pools]
    if not own or not all(gbps for _, gbps in each):
        return  # a machine type that the table doesn't know was noted already
    needed = sum(count * gbps for count, gbps in each)
    if own * pool.replicas >= needed:
        return
    right = math.ceil(needed / own)
    context.add_pool(
        "reducer-bandwidth",
        pool,
        ("replicaCount",),
        f"{pool.replicas} x {own:g} Gbit/s of {pool.machine_type} is "
        f"less than the {needed:g} Gbit/s of the {job.workers} machines that train (table of "
        f"{hardware.tables.load('machines')['date']})",
        f"write {right}",
    )
