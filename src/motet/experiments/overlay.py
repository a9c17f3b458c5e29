"""The broker processes of an experiment.

Every broker gets a topology file of its own. They differ in one thing: where a link is to go
through our hands, the broker that dials it finds a proxy at the other's address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from motet.bench.figures import cores
from motet.broker.topology import Topology
from motet.chaos.fleet import BrokerProcess
from motet.chaos.proxy import HOST, LinkProxy
from motet.client.inquiry import ask_all
from motet.errors import MotetError, UnavailableError
from motet.runtime.tcp import address_of, host_and_port

WHOLE_BOUND_S = 60.0
POLL_S = 0.1
PATIENCE_S = 1.5

Link = tuple[str, str]
"""Who dials, and whom; processes, not cells."""


def links(topology: Topology) -> list[Link]:
    """Every connection that there is between processes of the overlay."""
    return [
        (place.name, other)
        for place in topology.processes
        for other in topology.wiring(place.name).dial
    ]


class Overlay:
    """`async with Overlay(topology, directory, through_proxies) as overlay: …`"""

    def __init__(self, topology: Topology, directory: Path, proxied: Iterable[Link] = ()) -> None:
        self.topology = topology
        self.directory = directory
        self.brokers: dict[str, BrokerProcess] = {}
        self.proxies: dict[Link, LinkProxy] = {}
        for link in proxied:
            dialled = topology.wiring(link[0]).dial
            if link[1] not in dialled:
                raise UnavailableError(f"{link[0]} does not dial {link[1]}: there is no such link")
            _, port = host_and_port(dialled[link[1]])
            self.proxies[link] = LinkProxy(port, lambda: None)

    def address(self, name: str) -> str:
        return self.topology.wiring(name).listen

    async def __aenter__(self) -> Self:
        try:
            for proxy in self.proxies.values():
                await proxy.open()
            for place in self.topology.processes:
                self.brokers[place.name] = self._process(place.name)
            await self._start()
            await self.until_whole()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    async def _start(self) -> None:
        """As many at a time as there are cores: all at once would only wait for each other."""
        turns = asyncio.Semaphore(cores())

        async def start(broker: BrokerProcess) -> None:
            async with turns:
                await broker.start()

        starts = map(start, self.brokers.values())
        for result in await asyncio.gather(*starts, return_exceptions=True):
            if result is not None:
                raise result

    async def _end(self) -> None:
        for broker in self.brokers.values():
            broker.end()
        for proxy in self.proxies.values():
            await proxy.close()

    def _process(self, name: str) -> BrokerProcess:
        file = self.directory / f"{name}.toml"
        file.write_text(self._view(name).to_toml(), encoding="utf-8")
        _, port = host_and_port(self.address(name))
        options = ["--data", str(self.directory / name)]
        return BrokerProcess(name, port, options, self.directory, topology=file)

    def _view(self, name: str) -> Topology:
        def seen(other: str, listen: str) -> str:
            proxy = self.proxies.get((name, other))
            return listen if proxy is None else address_of(HOST, proxy.port)

        places = tuple(
            replace(
                place,
                listen=seen(place.name, place.listen),
                mates=tuple((mate, seen(mate, at)) for mate, at in place.mates),
            )
            for place in self.topology.brokers
        )
        return replace(self.topology, brokers=places)

    # ── how they are ─────────────────────────────────────────────────────────────────────

    async def statuses(self) -> dict[str, dict[str, Any]]:
        """Of those who answer. One that ended without our doing ends the experiment."""
        asked = {}
        for name, broker in self.brokers.items():
            if broker.running:
                asked[name] = broker.address
            elif not broker.expected:
                raise UnavailableError(f"{name} ended by itself; see {broker.log}")
        answers = await ask_all(asked, PATIENCE_S)
        return {
            name: answer for name, answer in answers.items() if not isinstance(answer, MotetError)
        }

    async def until_whole(self) -> None:
        """Wait until every broker answers and every link is up at both ends."""

        async def look() -> str:
            found = await self.statuses()
            silent = [f"{name} does not answer" for name in self.brokers if name not in found]
            down = [
                f"{name}–{other} is {link['phase']}"
                for name, state in found.items()
                for other, link in state["links"].items()
                if link["phase"] != "up"
            ]
            down += [
                f"{name}–{other} is down"
                for name, state in found.items()
                for other, member in ((state["cell"] or {}).get("members") or {}).items()
                if not member["live"]
            ]
            return ", ".join(silent + down)

        problem = "not looked yet"
        try:
            async with asyncio.timeout(WHOLE_BOUND_S):
                while problem := await look():
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise UnavailableError(
                f"the overlay is not whole after {WHOLE_BOUND_S:g} s: {problem}"
            ) from None
