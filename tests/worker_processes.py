"""Addresses and endings of the processes that tests start as workers of one job."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # benchmarks start workers too, without the path of the tests
    import warm


def free_addresses(count: int) -> list[str]:
    """Returns loopback addresses whose ports are free, all different: each is held until all are found."""
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("localhost", 0))
    addresses = [f"localhost:{each.getsockname()[1]}" for each in held]
    for each in held:
        each.close()
    return addresses


def end_well(processes: Sequence[warm.Process]) -> None:
    """Waits for all and fails, with the end of its output, for one that did not end with 0."""
    try:
        outputs = [process.communicate(timeout=550)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-4000:]
