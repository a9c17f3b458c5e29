"""A line of real sites in this event loop, without a disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from motet.broker.driver.driver import BrokerDriver
from motet.broker.overlay.topology import Wiring
from motet.ordering.client import OrderingClient, connect
from motet.sequencer.config import SiteConfig
from motet.sequencer.core import SiteCore

_lines = count()


class RunningLine:
    """`placement`: topics that begin with the name of a site and a dot live there."""

    def __init__(self, *names: str, **options: Any) -> None:
        number = next(_lines)
        self.addresses = {name: f"inproc://line{number}-{name}" for name in names}
        placement = tuple((f"{name}.*", name) for name in names)
        self.configs = {
            name: SiteConfig(
                name,
                names,
                placement=placement,
                addresses=self.addresses,
                dials={each: where for each, where in self.addresses.items() if each < name},
                **options,
            )
            for name in names
        }
        self.durables: dict[str, Any] = {}
        self.drivers: dict[str, BrokerDriver] = {}
        self.service = f"memory://line{number}"

    @property
    def address(self) -> str:
        return next(iter(self.addresses.values()))

    async def start(self, name: str) -> None:
        """With the state in which it stopped."""
        core = SiteCore(self.configs[name], self.durables.get(name))
        self.durables[name] = core.durable
        driver = BrokerDriver(core, Wiring(self.addresses[name]), what="sequencer")
        self.drivers[name] = driver
        await driver.start()

    async def stop(self, name: str) -> None:
        await self.drivers.pop(name).stop()

    async def client(self, client_id: str, options: str = "", **more: Any) -> OrderingClient:
        return await connect(
            self.service + options, sequencer=self.address, client_id=client_id, **more
        )


@asynccontextmanager
async def running_line(*names: str, **options: Any) -> AsyncIterator[RunningLine]:
    line = RunningLine(*names, **options)
    for name in names:
        await line.start(name)
    try:
        yield line
    finally:
        for name in list(line.drivers):
            await line.stop(name)
