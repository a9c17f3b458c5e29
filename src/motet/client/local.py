"""A whole overlay inside one process: real brokers, real clients, no sockets.

    async with motet.local(brokers=3) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        bob = await overlay.connect("bob", broker="B3")

The same broker code as in production, joined by the in-process transport. Nothing is durable
unless you give it a folder (`data=…`). With `ordering=True` it has a sequencer as well:

    motet.ordering.connect(overlay.address("B1"), sequencer=overlay.sequencer)

This is the only file of the client that imports brokers.
"""

from __future__ import annotations

import asyncio
import dataclasses
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from motet.client.checks import shown
from motet.client.client import Client, ConnectOptions, connect, opens
from motet.errors import ClosedError, Disconnected, MisuseError
from motet.model.coverage import Covering

if TYPE_CHECKING:
    from motet.broker.driver.driver import BrokerDriver
    from motet.broker.overlay.topology import OrderingPlace, Retention
    from motet.broker.overlay.topology import Topology as Topology

LINKED_BOUND_S = 60.0

_overlays = count(1)


class LocalOverlay:
    """Brokers that share the event loop with the application."""

    def __init__(self, topology: Topology, data: Path | None = None) -> None:
        self.topology = topology
        self._data = data
        self._site: BrokerDriver | None = None
        self.drivers: dict[str, BrokerDriver] = {}
        """The brokers, for tests that inspect or stop them."""
        self._clients: list[Client] = []
        self._closed = False

    @property
    def brokers(self) -> tuple[str, ...]:
        return self.topology.names

    def address(self, broker: str) -> str:
        """The address for clients in this event loop."""
        return self.topology.place(broker).listen

    @property
    def sequencer(self) -> str:
        """The address of the sequencer, for `motet.ordering`, also in other threads."""
        if self._site is None:
            raise MisuseError("this overlay has no sequencer; make it with ordering=True")
        return self._site.address

    def status(self) -> dict[str, dict[str, Any]]:
        """The status of each broker, as `Client.status` returns it."""
        return {name: driver.status() for name, driver in self.drivers.items()}

    @opens
    async def connect(
        self,
        client_id: str | None = None,
        *,
        broker: str | None = None,
        **options: Unpack[ConnectOptions],
    ) -> Client:
        """A client of one of the brokers, the first by default; options as for `motet.connect`."""
        if self._closed:
            raise ClosedError("the overlay was closed")
        address = self.address(self.brokers[0] if broker is None else self._checked(broker))
        client = await connect(address, client_id=client_id, **options)
        client._driver.dialer.find = self._find
        self._clients = [c for c in self._clients if not c.closed]
        self._clients.append(client)
        return client

    def _find(self, broker: str) -> str:
        return self.address(broker) if broker in self.brokers else ""

    def _checked(self, broker: str) -> str:
        if not isinstance(broker, str):
            names = ", ".join(self.brokers)
            raise MisuseError(f"a broker is given by its name, not by {shown(broker)}: {names}")
        return broker

    async def start(self) -> None:
        """Start all brokers and wait until they are linked."""
        try:
            if self.topology.ordering is not None:
                await self._start_site()
            for name in self.brokers:
                await self._start(name)
            await self._until_linked()
        except BaseException:
            await self.close()
            raise

    async def start_broker(self, name: str) -> None:
        """Start a broker that was stopped, and wait until it is linked. Without a folder it starts
        empty, as a new incarnation."""
        if self._checked(name) in self.drivers:
            raise MisuseError(f"{name} is running")
        await self._start(name)
        await self._until_linked()

    async def stop_broker(self, name: str) -> None:
        """Stop one broker, to test how other brokers and your application react."""
        driver = self.drivers.pop(self._checked(name), None)
        if driver is None:
            raise MisuseError(f"{name} is not running; these are: {', '.join(self.drivers)}")
        await driver.stop()

    async def _start(self, name: str) -> None:
        from motet.broker.driver.service import open_broker

        folder, durability = Path(name), "volatile"
        if self._data is not None:
            folder, durability = self._data / name, self.topology.durability
        config, wiring = self.topology.config(name), self.topology.wiring(name)
        retention = self.topology.retention_of(name)
        driver = open_broker(config, wiring, folder, durability, retention=retention)
        if self.topology.hosted:
            from motet.hosted.container import attach

            attach(driver, self.topology)
        await driver.start()
        self.drivers[name] = driver

    async def _start_site(self) -> None:
        from motet.sequencer.service import open_beside

        host = self.topology.ordering_host
        folder, durability = Path(host), "volatile"
        if self._data is not None:
            folder, durability = self._data / host, self.topology.durability
        # Unlike brokers, at a port: clients of `motet.ordering` may have loops of their own.
        site = open_beside(self.topology, folder, durability, "motet://127.0.0.1:0")
        await site.start()
        self._site = site

    async def _until_linked(self) -> None:
        try:
            async with asyncio.timeout(LINKED_BOUND_S):
                while not self._linked():
                    await asyncio.sleep(0.001)
        except TimeoutError:
            raise Disconnected(f"not linked within {LINKED_BOUND_S:g} s") from None

    def _linked(self) -> bool:
        """Whether all links between running brokers are up."""
        return all(
            link["phase"] == "up"
            for driver in self.drivers.values()
            for neighbour, link in driver.core.status()["links"].items()
            if neighbour in self.drivers
        )

    async def close(self) -> None:
        """Close the clients made here, then the brokers and the sequencer. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(client.close() for client in self._clients))
        sites = [] if self._site is None else [self._site]
        await asyncio.gather(*(driver.stop() for driver in (*self.drivers.values(), *sites)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class LocalOptions(TypedDict, total=False):
    """The settings of an overlay inside one process. The defaults are those of the given
    `Topology`, if any. Times are seconds."""

    data: str | Path | None
    name: str
    covering: Covering
    lease: float
    heartbeat: float
    durability: str
    retention: Retention
    root: str
    ordering: bool | OrderingPlace


@opens
async def local(brokers: int | Topology = 3, **options: Unpack[LocalOptions]) -> LocalOverlay:
    """An overlay in this process: a line of that many brokers, or the tree of a `Topology`.

    With `data`, each broker keeps its state in a folder there and restores it. `lease` is how long
    a session outlives its connection, `heartbeat` how often idle connections send a sign of life,
    both in seconds; with `ordering` there is a sequencer for `motet.ordering`, too. The other
    options are as in `Topology`.
    """
    from motet.broker.overlay.topology import (  # most programs only connect
        OrderingPlace,
        Topology,
        settings_in,
    )

    if isinstance(brokers, bool) or not isinstance(brokers, int | Topology):
        raise MisuseError(f"brokers is a number or a Topology, not {brokers!r}")
    shape = Topology.line(brokers) if isinstance(brokers, int) else brokers
    settings = settings_in(options, LocalOptions.__annotations__)
    data = settings.pop("data", None)
    if data is not None and not isinstance(data, str | Path):
        raise MisuseError(f"`data` is the path of a folder, not {shown(data)}; give text")
    number = next(_overlays)
    places = tuple(
        dataclasses.replace(place, listen=f"inproc://{shape.name}-{number}-{place.name}")
        for place in shape.brokers
    )
    place = settings.get("ordering", shape.ordering)
    if isinstance(place, OrderingPlace):
        address = f"inproc://{shape.name}-{number}-its-sequencer"
        settings["ordering"] = dataclasses.replace(place, listen=address)
    topology = dataclasses.replace(shape, brokers=places, **settings)
    overlay = LocalOverlay(topology, None if data is None else Path(data))
    await overlay.start()
    return overlay
