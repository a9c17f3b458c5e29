"""A whole overlay inside one process: real brokers, real clients, no sockets.

    async with motet.local(brokers=3) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        bob = await overlay.connect("bob", broker="B3")

The same broker code as in production, joined by the in-process transport. Nothing is durable
unless you give it a folder (`data=…`).
This is the only file of the client that knows brokers from the inside.
"""

from __future__ import annotations

import asyncio
import dataclasses
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from motet.broker.topology import Topology
from motet.client.client import Client
from motet.client.connecting import connect
from motet.client.loop_thread import Closing, LoopThread
from motet.client.opening import Opening
from motet.client.sync import SyncClient
from motet.errors import ClosedError, Disconnected, MisuseError
from motet.runtime.journal import VOLATILE

if TYPE_CHECKING:
    from motet.broker.driver import BrokerDriver

LINKED_BOUND_S = 10.0

_overlays = count(1)


class LocalOverlay:
    """Brokers that share the event loop with the application."""

    def __init__(self, topology: Topology, data: Path | None = None) -> None:
        self.topology = topology
        self._data = data
        self.drivers: dict[str, BrokerDriver] = {}
        """The brokers themselves, for tests that want to look inside or stop one."""
        self._clients: list[Client] = []
        self._closed = False

    @property
    def brokers(self) -> tuple[str, ...]:
        return self.topology.names

    def address(self, broker: str) -> str:
        """Where a client in this event loop can connect to."""
        return self.topology.place(broker).listen

    def status(self) -> dict[str, dict[str, Any]]:
        """What each broker says about itself, as its clients hear it from `Client.status`."""
        return {name: driver.status() for name, driver in self.drivers.items()}

    def connect(
        self, client_id: str | None = None, *, broker: str | None = None, **options: Any
    ) -> Opening[Client]:
        """A client of one of the brokers, the first by default; options as for `motet.connect`."""
        return Opening(self._connect(client_id, broker or self.brokers[0], options))

    async def _connect(self, client_id: str | None, broker: str, options: dict[str, Any]) -> Client:
        if self._closed:
            raise ClosedError("the overlay was closed")
        client = await connect(self.address(broker), client_id=client_id, **options)
        self._clients = [c for c in self._clients if not c.closed]
        self._clients.append(client)
        return client

    async def start(self) -> None:
        """Start all brokers and see them linked."""
        try:
            for name in self.brokers:
                await self._start(name)
            await self._until_linked()
        except BaseException:
            await self.close()
            raise

    async def start_broker(self, name: str) -> None:
        """Start a broker that was stopped, and see it linked. Without a folder it comes back
        empty, as a new incarnation."""
        if name in self.drivers:
            raise MisuseError(f"{name} is running")
        await self._start(name)
        await self._until_linked()

    async def stop_broker(self, name: str) -> None:
        """Stop one broker, to see what the others and your application make of it."""
        driver = self.drivers.pop(name, None)
        if driver is None:
            raise MisuseError(f"{name} is not running; these are: {', '.join(self.drivers)}")
        await driver.stop()

    async def _start(self, name: str) -> None:
        from motet.broker.service import open_broker  # most who import us only connect

        folder, durability = Path(name), VOLATILE
        if self._data is not None:
            folder, durability = self._data / name, self.topology.durability
        config, wiring = self.topology.config(name), self.topology.wiring(name)
        retention = self.topology.retention_of(name)
        driver = open_broker(config, wiring, folder, durability, retention=retention)
        await driver.start()
        self.drivers[name] = driver

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
        """Close the clients made here, then the brokers. Twice is harmless."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(client.close() for client in self._clients))
        await asyncio.gather(*(driver.stop() for driver in self.drivers.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def local(
    brokers: int | Topology = 3, *, data: str | Path | None = None, **settings: Any
) -> Opening[LocalOverlay]:
    """An overlay in this process: a line of so many brokers, or the tree of a `Topology`.

    With `data`, each broker keeps its state in a folder there and comes back with it. Settings
    such as `covering=True` or `lease_s=5.0` are those of `Topology`.
    """
    return Opening(_local(brokers, data, settings))


async def _local(
    brokers: int | Topology, data: str | Path | None, settings: dict[str, Any]
) -> LocalOverlay:
    if isinstance(brokers, bool) or not isinstance(brokers, int | Topology):
        raise MisuseError(f"brokers is a number or a Topology, not {brokers!r}")
    shape = Topology.line(brokers) if isinstance(brokers, int) else brokers
    known = {"covering", "lease_s", "heartbeat_s", "durability", "name", "retention", "root"}
    unknown = settings.keys() - known
    if unknown:
        raise MisuseError(f"an overlay has no setting {', '.join(sorted(unknown))}")
    number = next(_overlays)
    places = tuple(
        dataclasses.replace(place, listen=f"inproc://{shape.name}-{number}-{place.name}")
        for place in shape.brokers
    )
    topology = dataclasses.replace(shape, brokers=places, **settings)
    overlay = LocalOverlay(topology, None if data is None else Path(data))
    await overlay.start()
    return overlay


class SyncOverlay(Closing):
    """`LocalOverlay` for scripts: brokers and clients share one thread in the background."""

    def __init__(self, overlay: LocalOverlay, thread: LoopThread) -> None:
        self._overlay = overlay
        self._thread = thread

    @property
    def brokers(self) -> tuple[str, ...]:
        return self._overlay.brokers

    def status(self) -> dict[str, dict[str, Any]]:
        async def ask() -> dict[str, dict[str, Any]]:
            return self._overlay.status()

        return self._thread.call(ask())

    def connect(
        self, client_id: str | None = None, *, broker: str | None = None, **options: Any
    ) -> SyncClient:
        async def opened() -> Client:
            return await self._overlay.connect(client_id, broker=broker, **options)

        return SyncClient(self._thread.call(opened()), self._thread, owns_thread=False)

    def close(self) -> None:
        if self._thread.running:
            self._thread.call(self._overlay.close())
            self._thread.stop()


def local_sync(
    brokers: int | Topology = 3, *, data: str | Path | None = None, **settings: Any
) -> SyncOverlay:
    """`with motet.local_sync(brokers=3) as overlay:` — `local` without `await`."""
    thread = LoopThread()
    try:
        return SyncOverlay(thread.call(_local(brokers, data, settings)), thread)
    except BaseException:
        thread.stop()
        raise
