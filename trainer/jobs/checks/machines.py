"""Machine types, accelerators, disks, and whether the region has them. Adopters: leave; update tables/."""

from __future__ import annotations

import difflib

from trainer.errors import nearest
from trainer.jobs import hardware, tables
from trainer.jobs.context import Context
from trainer.jobs.spec import Pool


def check(context: Context) -> None:
    """Notes what is wrong with the machines of a job's pools."""
    known = hardware.regions()
    if context.region not in known:
        context.add(
            "region",
            context.job.root,
            f"{context.region} is no region of the service{nearest(context.region, known)}",
            "name another one by --region",
            "",
        )
    for pool in context.job.active_pools:
        if pool.machine_type:
            _machine(context, pool)
        _disk(context, pool)
    _tpus(context)


def _machine(context: Context, pool: Pool) -> None:
    machines = hardware.machines()
    machine = machines.get(pool.machine_type)
    here = ("machineSpec", "machineType")
    if machine is None:
        close = difflib.get_close_matches(pool.machine_type, machines, n=3, cutoff=0.6)
        context.add_pool(
            "machine-type",
            pool,
            here,
            f"the service has no machine type {pool.machine_type!r} (table of "
            f"{tables.load('machines')['date']})",
            f"write {' or '.join(close or ['n1-standard-4'])}",
        )
        return
    if machine.tpu:
        return
    accelerator, count = pool.accelerator_type, pool.accelerator_count
    if machine.accelerator and not accelerator:
        context.add_pool(
            "accelerator-builtin",
            pool,
            ("machineSpec", "acceleratorType"),
            f"{machine.name} comes with {machine.count} {machine.accelerator} and must say so",
            f"write acceleratorType: {machine.accelerator} and acceleratorCount: {machine.count}",
        )
        return
    if bool(accelerator) != bool(count):
        key = "acceleratorCount" if accelerator else "acceleratorType"
        context.add_pool(
            "accelerator-count-missing",
            pool,
            ("machineSpec", key),
            "type and count go together",
            f"write {key} too",
        )
        return
    if accelerator.startswith("NVIDIA"):
        _gpu(context, pool, machine)


def _gpu(context: Context, pool: Pool, machine: hardware.Machine) -> None:
    accelerator, count = pool.accelerator_type, pool.accelerator_count
    row = hardware.gpus().get(accelerator, {})
    ends = row.get("ends")
    if ends and context.today >= ends:
        context.add_pool(
            "accelerator-ended",
            pool,
            ("machineSpec", "acceleratorType"),
            f"{accelerator} is no longer offered since {ends}",
            "write NVIDIA_TESLA_T4 or take a g2-standard machine with NVIDIA_L4",
        )
        return
    counts = hardware.allowed_counts(machine, accelerator)
    if not counts:
        others = [
            name for name, other in hardware.machines().items() if hardware.allowed_counts(other, accelerator)
        ]
        can = ", ".join(sorted(others, key=lambda name: (name != "n1-standard-8", name))[:3])
        context.add_pool(
            "accelerator-machine",
            pool,
            ("machineSpec", "acceleratorType"),
            f"{machine.name} can't carry {accelerator}",
            f"take a machine type that does, such as {can}" if can else "take another accelerator",
        )
        return
    if count not in counts:
        context.add_pool(
            "accelerator-count",
            pool,
            ("machineSpec", "acceleratorCount"),
            f"{machine.name} can't carry {count} {accelerator}",
            f"write {' or '.join(map(str, counts))}",
        )
        return
    _in_region(context, pool)


def _in_region(context: Context, pool: Pool) -> None:
    accelerator = hardware.accelerator_of(pool)
    known, date = hardware.regions(), tables.load("accelerators")["date"]
    if context.region in known and accelerator and accelerator not in known[context.region]:
        where = [region for region, has in known.items() if accelerator in has]
        context.add_pool(
            "accelerator-region",
            pool,
            ("machineSpec", "machineType" if pool.is_tpu else "acceleratorType"),
            f"{context.region} has no {accelerator} for training (table of {date})",
            f"run it in {', '.join(where[:5])}" if where else "take another accelerator",
        )


def _disk(context: Context, pool: Pool) -> None:
    table = tables.load("machines")
    low, high = table["disk_gb"]
    if pool.value.get("diskSpec") is None:
        return
    if pool.disk_type not in table["disks"]:
        context.add_pool(
            "disk-type",
            pool,
            ("diskSpec", "bootDiskType"),
            f"the service has no boot disk {pool.disk_type!r}",
            f"write {' or '.join(table['disks'])}",
        )
    if not low <= pool.disk_gb <= high:
        context.add_pool(
            "disk-size",
            pool,
            ("diskSpec", "bootDiskSizeGb"),
            f"got {pool.disk_gb} GB",
            f"write {low} to {high}",
        )


def _tpus(context: Context) -> None:
    job = context.job
    pools = [pool for pool in job.active_pools if pool.is_tpu]
    if not pools:
        return
    pool = pools[0]
    if len(job.active_pools) > 1 or pool.replicas != 1:
        other = job.active_pools[1].value if len(job.active_pools) > 1 else pool.at("replicaCount")
        context.add(
            "tpu-pools",
            other,
            "a TPU job has one pool with one replica, also for a slice of many hosts",
            "keep pool 0 with replicaCount 1 and choose the size by tpuTopology or acceleratorCount",
        )
    machine = hardware.machines().get(pool.machine_type)
    if machine is None:
        return
    name = hardware.tpu_of(pool)
    row = hardware.tpus().get(name)
    if row is None or (machine.name == "cloud-tpu") != ("cores" in row):
        context.add_pool(
            "tpu-topology",
            pool,
            ("machineSpec", "acceleratorType"),
            f"{pool.accelerator_type or 'no accelerator'} on {machine.name}",
            "write cloud-tpu with TPU_V2 or TPU_V3, or ct5lp-hightpu-4t with tpuTopology alone",
        )
        return
    if not row["tensorflow"]:
        context.add_pool(
            "tpu-tensorflow",
            pool,
            ("machineSpec", "machineType"),
            f"TensorFlow no longer runs on {name}: v5e is the last that does",
            "write ct5lp-hightpu-4t with tpuTopology 2x2",
        )
        return
    if machine.topologies:
        if pool.tpu_topology not in machine.topologies:
            context.add_pool(
                "tpu-topology",
                pool,
                ("machineSpec", "tpuTopology"),
                f"{machine.name} has no topology {pool.tpu_topology!r}",
                f"write {' or '.join(machine.topologies)}",
            )
            return
    elif pool.accelerator_count != 8 and (pool.accelerator_count % 32 or not pool.accelerator_count):
        context.add_pool(
            "tpu-topology",
            pool,
            ("machineSpec", "acceleratorCount"),
            f"{name} comes in 8 cores, or 32 and its multiples, got {pool.accelerator_count}",
            "write 8",
        )
        return
    if (hosts := hardware.tpu_hosts(pool)) > 1:
        context.add_pool(
            "tpu-pod",
            pool,
            ("machineSpec",),
            f"a slice of {hosts} hosts starts its containers in another way: its "
            "image must be built on the service's tf-tpu-pod-base and must not set an ENTRYPOINT",
            "stay on one host (8 cores, or 2x2 and 2x4 of ct5lp-hightpu-4t and -8t), or build such an image",
        )
    _in_region(context, pool)
