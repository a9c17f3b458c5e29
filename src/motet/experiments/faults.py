"""The three fault injections of section 4.2: a link to s1, a broker, the publishers' broker p1.

Each goes as in the paper: all is well; the victim takes data and passes nothing on, so that about
as much is lost; then it fails, where everybody sees it; then it is back. Publishers never stop,
except that they cannot publish without p1.

The victim is that member of the cell b1 belongs to which carries the stream: nothing would happen
to the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from motet.chaos.proxy import LinkProxy
from motet.experiments import paper
from motet.experiments.nacks import NackNoted, NackWatch
from motet.experiments.overlay import Link, Overlay
from motet.experiments.paper import Schedule
from motet.experiments.traffic import Account, Arrival, Traffic

SETTLE_BOUND_S = 60.0
REFRESH_S = 0.2
CELL, CUT_OFF = "IB1", "s1"
"""Where the victim stands, and who loses its link to it."""

Tell = Callable[[str], None]


class Mark(NamedTuple):
    """Something that we did."""

    at_s: float
    what: str


@dataclass(frozen=True)
class Record:
    """All that was seen of one fault. Times are seconds since its beginning."""

    fault: str
    victim: str
    """The broker that failed, or whose link did."""
    schedule: Schedule
    marks: tuple[Mark, ...]
    arrivals: dict[str, list[Arrival]]
    nacks: list[NackNoted]
    account: Account

    def mark(self, what: str) -> float:
        return next(mark.at_s for mark in self.marks if mark.what == what)


def proxied(edges: list[Link]) -> list[Link]:
    """The links of an overlay whose failure we may want: those of s1, and all of p1."""
    wanted = {CUT_OFF, paper.PUBLISHER_BROKER}
    return [link for link in edges if wanted & set(link)]


class Injection:
    """One fault in an overlay that is whole before, and after."""

    def __init__(self, overlay: Overlay, fault: str, schedule: Schedule, tell: Tell) -> None:
        self._overlay = overlay
        self._fault = fault
        self._schedule = schedule
        self._tell = tell
        self._marks: list[Mark] = []
        self._began = 0.0
        self._victim = paper.PUBLISHER_BROKER if fault == "publisher" else ""

    async def run(self) -> Record:
        overlay = self._overlay
        await overlay.until_whole()
        watch = NackWatch(overlay)
        traffic = Traffic(paper.PUBLISHERS, paper.PUBLISHER_PER_S, paper.FAULT_BYTES)
        subscribers = {
            name: overlay.address(name)
            for name in paper.SUBSCRIBER_BROKERS
            if name in overlay.topology.names
        }
        async with traffic.connected(overlay.address(paper.PUBLISHER_BROKER), subscribers):
            self._began = time.monotonic()
            watching = asyncio.ensure_future(watch.run())
            try:
                traffic.begin()
                await self._inject()
                await traffic.stop()
                self._tell(f"{self._fault}: everything that was published must arrive")
                await traffic.settle(SETTLE_BOUND_S)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            await overlay.until_whole()
            await watch.look()
        return self._record(traffic, watch)

    def _record(self, traffic: Traffic, watch: NackWatch) -> Record:
        began = self._began
        arrivals = {
            name: [note._replace(sent=note.sent - began) for note in notes]
            for name, notes in traffic.arrivals.items()
        }
        nacks = [each._replace(at=each.at - began) for each in watch.noted if each.at >= began]
        return Record(
            self._fault,
            self._victim,
            self._schedule,
            tuple(self._marks),
            arrivals,
            nacks,
            traffic.account(),
        )

    # ── the faults ───────────────────────────────────────────────────────────────────────

    async def _inject(self) -> None:
        schedule = self._schedule
        stall, fail, heal = FAULTS[self._fault]
        carried = await self._carried()
        await self._pass(schedule.before_s, "all is well")
        if not self._victim:
            since = await self._carried()
            self._victim = max(since, key=lambda name: since[name] - carried[name])
        await self._do("stall", stall)
        await self._pass(schedule.stall_s, "stalled")
        await self._do("fail", fail)
        await self._pass(schedule.gone_s, "gone")
        await self._do("heal", heal)
        await self._pass(schedule.after_s, "back")

    async def _carried(self) -> dict[str, int]:
        """How much of the streams each member of the cell has been given."""
        states = await self._overlay.statuses()
        return {
            name: states[name]["delivery"]["received"]["knowledge"]
            for name in paper.CELLS[CELL]
            if name in states
        }

    async def _do(self, what: str, action: Callable[[Injection], Awaitable[None]]) -> None:
        self._marks.append(Mark(time.monotonic() - self._began, what))
        await action(self)

    async def _pass(self, seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            self._tell(f"{self._fault}: {what}, {left_s:.0f} s more")
            await asyncio.sleep(min(left_s, REFRESH_S))

    def _proxies(self, *of: str) -> list[LinkProxy]:
        """Of the links between these brokers, or of all links of a single one."""
        return [proxy for link, proxy in self._overlay.proxies.items() if not set(of) - set(link)]

    async def _stall_link(self) -> None:
        for proxy in self._proxies(self._victim, CUT_OFF):
            proxy.stall()

    async def _cut_link(self) -> None:
        for proxy in self._proxies(self._victim, CUT_OFF):
            proxy.cut()

    async def _heal_link(self) -> None:
        for proxy in self._proxies(self._victim, CUT_OFF):
            proxy.heal()

    async def _stall_broker(self) -> None:
        self._overlay.brokers[self._victim].pause()

    async def _kill_broker(self) -> None:
        self._overlay.brokers[self._victim].kill()

    async def _restart_broker(self) -> None:
        await self._overlay.brokers[self._victim].start()

    async def _stall_publisher(self) -> None:
        """It goes on logging what it is given; only nothing gets out."""
        for proxy in self._proxies(self._victim):
            proxy.stall()

    async def _kill_publisher(self) -> None:
        self._overlay.brokers[self._victim].kill()
        for proxy in self._proxies(self._victim):
            proxy.cut()

    async def _restart_publisher(self) -> None:
        for proxy in self._proxies(self._victim):
            proxy.heal()
        await self._overlay.brokers[self._victim].start()


Step = Callable[[Injection], Awaitable[None]]

FAULTS: dict[str, tuple[Step, Step, Step]] = {
    "link": (Injection._stall_link, Injection._cut_link, Injection._heal_link),
    "broker": (Injection._stall_broker, Injection._kill_broker, Injection._restart_broker),
    "publisher": (
        Injection._stall_publisher,
        Injection._kill_publisher,
        Injection._restart_publisher,
    ),
}
"""By name: how the victim stalls, fails, and comes back."""


def pubends(record: Record) -> list[str]:
    """In the order of their names."""
    return sorted({note.pubend for note in chain.from_iterable(record.arrivals.values())})
