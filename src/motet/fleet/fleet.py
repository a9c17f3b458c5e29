"""All broker processes of a topology.

Every broker reads the topology from a file. Links may lead through a proxy of ours, or through any
other address: the broker that dials such a link gets its own file with that address.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from motet.broker.overlay.topology import Topology
from motet.client.channel import Answer, ask_all
from motet.errors import MotetError, UnavailableError
from motet.fleet.process import HOST, START_LIMIT_S, BrokerProcess, Notice
from motet.fleet.proxy import LinkProxy
from motet.runtime.tcp import address_of, host_and_port

TOPOLOGY = "topology.toml"
LINKS_LIMIT_S = 120.0
POLL_S = 0.05

Link = tuple[str, str]
"""The process that dials, and the process that is dialled."""


def links(topology: Topology) -> list[Link]:
    """Every connection between two processes of the overlay."""
    return [
        (place.name, other)
        for place in topology.processes
        for other in topology.wiring(place.name).dial
    ]


class Fleet:
    """`async with Fleet(topology, directory) as fleet: …` or `start_all` and `end`."""

    def __init__(
        self,
        topology: Topology,
        directory: Path,
        *,
        proxied: Iterable[Link] = (),
        lost: Callable[[Link], None] | None = None,
        detours: Mapping[Link, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """`proxied` links lead through a `LinkProxy`, and `lost` is called when a connection of one
        has ended. `detours` are addresses at which a process dials another one instead. `options`
        are passed to every `motet broker`."""
        self.topology = topology
        self.directory = directory
        self.file = directory / TOPOLOGY
        self.proxies: dict[Link, LinkProxy] = {}
        self._detours = dict(detours or {})
        self._options = tuple(options)
        for link in proxied:
            dialled = topology.wiring(link[0]).dial
            if link[1] not in dialled:
                raise UnavailableError(f"{link[0]} does not dial {link[1]}: there is no such link")
            _, port = host_and_port(dialled[link[1]])
            self.proxies[link] = LinkProxy(port, self._teller(link, lost))
        self.processes: dict[str, BrokerProcess] = {}
        for place in topology.processes:
            self.add(place.name)

    @staticmethod
    def _teller(link: Link, lost: Callable[[Link], None] | None) -> Callable[[], None]:
        return (lambda: None) if lost is None else (lambda: lost(link))

    def add(self, name: str) -> BrokerProcess:
        """Create the process of a broker without starting it."""
        detoured = {link[0] for link in (*self.proxies, *self._detours)}
        file = self.directory / f"{name}.toml" if name in detoured else self.file
        options = ("--topology", str(file), *self._options)
        process = self.processes[name] = BrokerProcess(name, options, self.directory)
        return process

    @property
    def addresses(self) -> dict[str, str]:
        return {place.name: place.listen for place in self.topology.processes}

    # ── life ─────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        try:
            await self.start_all()
            await self.until_links_up()
        except BaseException:
            await self.end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.end()

    async def start_all(
        self,
        names: Iterable[str] | None = None,
        limit_s: float | None = START_LIMIT_S,
        notice: Notice | None = None,
    ) -> None:
        """Write the topology and start these brokers, by default all; at most as many at a time as
        there are cores, because more would only wait for each other."""
        for proxy in self.proxies.values():
            if not proxy.port:
                await proxy.open()
        self.write_topology()
        turns = asyncio.Semaphore(os.cpu_count() or 1)

        async def start(process: BrokerProcess) -> None:
            async with turns:
                await process.start(limit_s, notice)

        started = [self.processes[name] for name in (self.processes if names is None else names)]
        try:
            async with asyncio.TaskGroup() as group:
                for process in started:
                    group.create_task(start(process))
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None

    def write_topology(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.file.write_text(self.topology.to_toml(), encoding="utf-8")
        seen = {link: address_of(HOST, proxy.port) for link, proxy in self.proxies.items()}
        seen |= self._detours
        for name in dict.fromkeys(link[0] for link in seen):
            view = self._view(name, seen)
            (self.directory / f"{name}.toml").write_text(view.to_toml(), encoding="utf-8")

    def _view(self, name: str, seen: Mapping[Link, str]) -> Topology:
        """The topology with the addresses that one broker is to dial."""
        places = tuple(
            replace(
                place,
                listen=seen.get((name, place.name), place.listen),
                mates=tuple((mate, seen.get((name, mate), at)) for mate, at in place.mates),
            )
            for place in self.topology.brokers
        )
        return replace(self.topology, brokers=places)

    async def stop(self) -> list[str]:
        """Stop all processes; returns the names of those that had to be killed."""
        stops = (process.stop() for process in self.processes.values())
        ended = dict(zip(self.processes, await asyncio.gather(*stops), strict=True))
        return [name for name, by_itself in ended.items() if not by_itself]

    async def end(self) -> None:
        """Kill all processes, and close all proxies."""
        for process in self.processes.values():
            process.end()
        for proxy in self.proxies.values():
            await proxy.close()

    # ── state ────────────────────────────────────────────────────────────────────────────

    async def statuses(self) -> dict[str, dict[str, Any]]:
        """The status of each broker that answers. Raises `UnavailableError` if a broker has ended
        that we did not end."""
        asked = {}
        for name, address in self.addresses.items():
            process = self.processes[name]
            if process.running:
                asked[name] = address
            elif not process.expected:
                problem = process.complaint or process.ending
                raise UnavailableError(f"{name} has ended: {problem}; see {process.log}")
        answers = await ask_all(asked)
        return {
            name: answer for name, answer in answers.items() if not isinstance(answer, MotetError)
        }

    async def until_links_up(self, limit_s: float = LINKS_LIMIT_S) -> None:
        """Return when every broker answers and every link is up at both ends."""
        deadline = time.monotonic() + limit_s
        while True:
            found = await self.statuses()
            missing = [f"{name} does not answer" for name in self.processes if name not in found]
            missing += missing_links(found)
            if not missing:
                return
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"not all links are up after {limit_s:g} s: {', '.join(missing)}"
                )
            await asyncio.sleep(POLL_S)


# ── links, as the brokers at both ends report them ───────────────────────────────────────


def missing_links(answers: Mapping[str, Answer]) -> list[str]:
    """Links that are not up at both ends, and brokers that do not answer."""
    missing = []
    for name, answer in answers.items():
        if isinstance(answer, MotetError):
            missing.append(f"{name} does not answer")
            continue
        missing += [
            f"{name}–{other} is {link['phase']}"
            for other, link in answer["links"].items()
            if link["phase"] != "up"
        ]
        missing += [
            f"{name}–{other} is down"
            for other, member in ((answer["cell"] or {}).get("members") or {}).items()
            if not member["live"]
        ]
    return missing


def unsettled_links(answers: Mapping[str, Answer]) -> list[str]:
    """Links that are not up, or on which something is not acknowledged yet."""
    waiting = missing_links(answers)
    for name, answer in answers.items():
        if not isinstance(answer, MotetError):
            waiting += [
                f"{name} has {link['unacknowledged']} messages that {other} did not acknowledge"
                for other, link in answer["links"].items()
                if link["unacknowledged"]
            ]
    return waiting
