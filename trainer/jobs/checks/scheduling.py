"""Timeouts, restarts, spot machines, flexible starts. Adopters: leave."""

from __future__ import annotations

from trainer.jobs import hardware
from trainer.jobs.context import Context
from trainer.jobs.spec import WEEK

_OLD = {"ON_DEMAND": "STANDARD", "LOW_COST": "SPOT"}


def check(context: Context) -> None:
    """Notes what is wrong with the scheduling of a job."""
    job = context.job
    scheduling = job.scheduling
    _timeout(context)
    if scheduling.disable_retries and scheduling.restart_on_worker_restart:
        context.add_in(
            "retries-restart",
            job.spec,
            ("scheduling", "disableRetries"),
            "it turns restartJobOnWorkerRestart off again, without a word",
            "leave disableRetries out",
        )
    elif (
        job.workers > 1
        and not job.is_tpu
        and not scheduling.restart_on_worker_restart
        and not job.pools[0].tunes  # machines of a keras-tuner study don't train in step
    ):
        context.add_in(
            "worker-restart",
            job.spec,
            ("scheduling", "restartJobOnWorkerRestart"),
            f"{job.workers} machines train in step and can't take back one that was restarted: the job would "
            "hang until its timeout",
            "write true: all start again, from the last checkpoint",
        )
    if scheduling.strategy in _OLD:
        context.add_in(
            "old-strategy",
            job.spec,
            ("scheduling", "strategy"),
            f"{scheduling.strategy} is an old name",
            f"write {_OLD[scheduling.strategy]}",
        )
    if job.persistent_resource and scheduling.strategy in ("SPOT", "FLEX_START"):
        context.add_in(
            "persistent-strategy",
            job.spec,
            ("scheduling", "strategy"),
            "the machines of a persistent resource are there already: it decides what they are",
            "leave strategy out",
        )
    if scheduling.strategy == "SPOT":
        _spot(context)
    elif scheduling.strategy == "FLEX_START":
        _flex_start(context)
    if scheduling.max_wait is not None and scheduling.strategy != "FLEX_START":
        context.add_in(
            "wait-strategy",
            job.spec,
            ("scheduling", "maxWaitDuration"),
            f"it only counts with FLEX_START, got {scheduling.strategy}",
            "leave it out, or write strategy: FLEX_START",
        )


def _timeout(context: Context) -> None:
    if not context.job.scheduling.timeout:
        context.add_in(
            "timeout-default",
            context.job.spec,
            ("scheduling", "timeout"),
            "without one, a job that hangs runs (and costs) for 7 days",
            'write a few times the hours it should take, such as "14400s"',
        )


def _spot(context: Context) -> None:
    job = context.job
    if job.scheduling.disable_retries and not job.scheduling.restart_on_worker_restart:
        context.add_in(
            "spot-retries",
            job.spec,
            ("scheduling", "disableRetries"),
            "spot machines are taken away, and without retries the first time ends the job",
            "leave disableRetries out",
        )
    for pool in job.active_pools:
        if hardware.tpu_hosts(pool) > 1:
            context.add_in(
                "spot-tpu",
                job.spec,
                ("scheduling", "strategy"),
                "TPU slices of several hosts can't be spot machines",
                "write STANDARD, or take a slice of one host",
            )


def _flex_start(context: Context) -> None:
    job = context.job
    pools = job.active_pools
    reducers = [pool for pool in pools if pool.is_reducer]
    if reducers:
        context.add(
            "flex-reducers",
            reducers[0].value,
            "FLEX_START wants the same machines in all pools, and reduction servers have no GPUs",
            "leave pool 2 out, or the strategy",
        )
        return
    kinds = {(pool.machine_type, pool.accelerator_type, pool.accelerator_count) for pool in pools}
    if len(kinds) > 1:
        context.add_pool(
            "flex-pools",
            pools[1],
            ("machineSpec",),
            "FLEX_START wants the same machines in all pools",
            "give every pool the machineSpec of pool 0",
        )
    for pool in pools:
        if not hardware.gpus().get(pool.accelerator_type, {}).get("flex_start"):
            able = [name for name, row in hardware.gpus().items() if row.get("flex_start")]
            context.add_in(
                "flex-accelerator",
                job.spec,
                ("scheduling", "strategy"),
                f"FLEX_START is for {', '.join(able)}, not {pool.accelerator_type or 'CPUs'}",
                "write STANDARD or SPOT",
            )
            break
    if job.scheduling.timeout is not None and job.scheduling.timeout > WEEK:
        context.add_in(
            "flex-timeout",
            job.spec,
            ("scheduling", "timeout"),
            f"FLEX_START lends machines for a week at most, got {job.scheduling.timeout:g}s",
            f'write "{WEEK:g}s" or less',
        )
