"""Processes of one job that are threads of this one: they meet over loopback, as real ones do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from loop_parts import config
from worker_processes import free_addresses

from trainer import peers, rendezvous
from trainer.config import Config
from trainer.data import background
from trainer.environment import Service

SETTINGS = config(strategy__join_seconds=30, strategy__lost_seconds=20)


def services(count: int) -> list[Service]:
    ports = free_addresses(count)
    return [
        Service(
            role="chief" if rank == 0 else "worker",
            worker_index=rank,
            is_chief=rank == 0,
            workers=count,
            hosts=tuple(ports),
        )
        for rank in range(count)
    ]


def start(me: Service, settings: Config = SETTINGS, **options: Any) -> Future[peers.Peers]:
    return background.start(rendezvous.join, settings, me, **options)


def meet(count: int, settings: Config = SETTINGS, **options: Any) -> list[peers.Peers]:
    return [future.result(60) for future in [start(me, settings, **options) for me in services(count)]]


def together(functions: list[Callable[[], Any]]) -> list[Any]:
    return [future.result(60) for future in [background.start(function) for function in functions]]
