"""What machines and accelerators a pool has, by the dated tables. Adopters: leave; update tables/."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer.jobs import tables
from trainer.jobs.spec import Job, Pool

_ACCELERATOR_OF_TABLE = {"TPU_V5_LITEPOD": "TPU_V5E"}  # the API's name, and the table's


@dataclass(frozen=True)
class Machine:
    """A machine type.

    Attributes:
        name: the type.
        vcpus: virtual CPUs; 0 where the table doesn't know.
        memory: GB.
        gbps: largest egress in Gbit/s, without what GPUs add.
        accelerator, count: accelerators that are built in.
        tpu: TPU in it, as the region table names it, or "".
        chips: TPU chips of one machine of the type.
        topologies: TPU chips by topology.
        disk: its default boot disk.
    """

    name: str
    vcpus: int = 0
    memory: float = 0.0
    gbps: float = 0.0
    accelerator: str = ""
    count: int = 0
    tpu: str = ""
    chips: int = 0
    topologies: Mapping[str, int] = field(default_factory=dict)
    disk: str = "pd-ssd"

    @property
    def family(self) -> str:
        """Its family, such as n1."""
        return self.name.partition("-")[0]


@functools.cache
def machines() -> dict[str, Machine]:
    """Returns every machine type of the table by name."""
    table = tables.load("machines")
    found: dict[str, Machine] = {}
    for family, row in table["families"].items():
        for vcpus in row["vcpus"]:
            name = f"{family}-{vcpus}"
            found[name] = Machine(name, vcpus, vcpus * row["memory"], row["gbps"][vcpus])
    for name, row in table["machines"].items():
        found[name] = Machine(name, **row)
    return found


def gpus() -> dict[str, dict]:
    """Returns the table of GPUs by accelerator type."""
    found: dict[str, dict] = tables.load("accelerators")["gpus"]
    return found


def tpus() -> dict[str, dict]:
    """Returns the table of TPUs, by the names that the region table uses."""
    found: dict[str, dict] = tables.load("accelerators")["tpus"]
    return found


def regions() -> dict[str, list[str]]:
    """Returns the accelerators of each region."""
    found: dict[str, list[str]] = tables.load("accelerators")["regions"]
    return found


def tpu_of(pool: Pool) -> str:
    """Returns the TPU of a pool as the tables name it, or ""."""
    machine = machines().get(pool.machine_type)
    if pool.accelerator_type.startswith("TPU"):
        return _ACCELERATOR_OF_TABLE.get(pool.accelerator_type, pool.accelerator_type)
    return machine.tpu if machine else ""


def accelerator_of(pool: Pool) -> str:
    """Returns a pool's accelerator as the region table names it, or ""."""
    return tpu_of(pool) or pool.accelerator_type


def allowed_counts(machine: Machine, accelerator: str) -> list[int]:
    """Returns how many accelerators of a type the machine can carry; empty when it carries none of them."""
    if machine.accelerator:
        return [machine.count] if machine.accelerator == accelerator else []
    if machine.family != "n1":
        return []
    found: list[int] = gpus().get(accelerator, {}).get("n1", {}).get(machine.vcpus, [])
    return found


def tpu_chips(pool: Pool) -> int:
    """Returns the TPU chips (v2, v3: cores) of a pool, over all hosts of the slice; 0 when it has none."""
    machine = machines().get(pool.machine_type)
    if machine is None or not tpu_of(pool):
        return 0
    if machine.topologies:
        return machine.topologies.get(pool.tpu_topology, machine.chips)
    return pool.accelerator_count


def tpu_hosts(pool: Pool) -> int:
    """Returns the machines of a TPU pool's slice; 0 when it is no TPU pool."""
    machine = machines().get(pool.machine_type)
    chips = tpu_chips(pool)
    if machine is None or not chips:
        return 0
    return max(1, math.ceil(chips / (machine.chips or tpus().get(tpu_of(pool), {}).get("cores", 8))))


def gpu_count(pool: Pool) -> int:
    """Returns the GPUs of one machine of a pool."""
    return pool.accelerator_count if pool.accelerator_type.startswith("NVIDIA") else 0


def egress(pool: Pool) -> float:
    """Returns the largest egress of one machine of a pool in Gbit/s; 0 when the table doesn't know it."""
    machine = machines().get(pool.machine_type)
    if machine is None:
        return 0.0
    more = gpus().get(pool.accelerator_type, {}).get("gbps", {})
    if machine.family == "n1" and machine.vcpus >= 96 and pool.accelerator_count in more:
        return float(more[pool.accelerator_count])
    return float(machine.gbps)


def replicas(job: Job, cpu_replicas: int = 1) -> int:
    """Returns over how many replicas a job trains: one for each GPU, TPU core (v5e: chip) or CPU machine.

    Args:
        job: the job.
        cpu_replicas: logical CPU devices of a machine without accelerators.
    """
    if job.pools and job.pools[0].tunes:  # each machine of pool 1 trains on its own
        return max(1, *(gpu_count(pool) or cpu_replicas for pool in job.training_pools if pool.index == 1), 1)
    if job.is_tpu:
        return max(1, sum(tpu_chips(pool) for pool in job.training_pools))
    return max(1, sum(pool.replicas * (gpu_count(pool) or cpu_replicas) for pool in job.training_pools))
