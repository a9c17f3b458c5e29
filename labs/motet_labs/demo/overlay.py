"""Five brokers in the shape of an H, on free ports, restarted when they die as by `motet up`.

B1            B4
  ╲          ╱
    B3 ─────        B3 decides transactions
  ╱          ╲
B2            B5
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from motet.broker.overlay.topology import BrokerPlace, Topology
from motet.errors import UnavailableError
from motet.fleet.process import free_addresses
from motet.fleet.supervisor import Supervisor

LINKS: Final = {"B1": (), "B2": (), "B3": ("B1", "B2"), "B4": ("B3",), "B5": ("B3",)}
MIDDLE: Final = "B3"
PUBLISHED_AT: Final = ("B1", "B2", "B3")
"""Where the log is published and Spark reads."""
WRITTEN_AT: Final = "B5"
"""Where Spark writes. It does not read there, because its own output would be new input."""


class Overlay:
    """`addresses` and `pids` by broker; `pids` are those at the start."""

    def __init__(self, supervisor: Supervisor) -> None:
        fleet = supervisor.fleet
        self.file = fleet.file
        self.addresses = fleet.addresses
        self.pids = {name: process.pid for name, process in fleet.processes.items()}
        self._fleet = fleet

    async def is_back(self, broker: str) -> bool:
        """Whether the broker answers, as another process than at the start, with all its links."""
        try:
            state = (await self._fleet.statuses()).get(broker)
        except UnavailableError:  # it has ended, and is not started yet
            return False
        if state is None or state["process"]["pid"] == self.pids[broker]:
            return False
        return all(link["phase"] == "up" for link in state["links"].values())


@contextlib.asynccontextmanager
async def running(folder: Path, history: Path) -> AsyncIterator[Overlay]:
    """Run the overlay during the block. Its brokers keep their state in `folder` and record their
    history in `history`."""
    folder.mkdir(parents=True, exist_ok=True)
    at = zip(LINKS.items(), free_addresses(len(LINKS)), strict=True)
    places = tuple(BrokerPlace(name, address, links) for (name, links), address in at)
    topology = Topology("demo", places, heartbeat_s=0.5, root=MIDDLE)
    options = ("--history", str(history))
    supervisor = Supervisor(topology, folder, lambda _: None, options)
    try:
        await supervisor.start()
        yield Overlay(supervisor)
    finally:
        await supervisor.stop()


# ── waiting for conditions ────────────────────────────────────────────────────────────────

PATIENCE_S: Final = 60.0
POLL_S: Final = 0.05

Condition = Callable[[], bool | Awaitable[bool]]


async def becomes_true(condition: Condition, patience_s: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        holds = condition()
        if holds if isinstance(holds, bool) else await holds:
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)


async def must_become_true(condition: Condition, otherwise: str) -> None:
    if not await becomes_true(condition):
        raise UnavailableError(f"{otherwise} within {PATIENCE_S:g} s")
