"""Wide-area links: data arrives later, by a delay that varies with time, and in order.

A delay wanders: at each knot it is drawn anew, in between it changes evenly. So it has the given
mean and deviation, and data never has to wait for slower data before it. If each packet had a delay
of its own, keeping the order would make a busy link slower than its mean.

The same link has the same delays in virtual time: they follow from its name and the time since the
origin.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from heapq import heappop, heappush
from math import floor, sqrt
from random import Random
from typing import Any, Final

from motet.fleet.process import HOST
from motet_labs.experiments import paper4
from motet_labs.experiments.paper4 import LinkKind
from motet_labs.processes import serve, tell

KNOT_S: Final = 0.1
WIDER: Final = sqrt(1.5)
"""Between two independent values, the deviation is two thirds of the variance on average."""
FARTHEST: Final = 3.0
"""Deviations from the mean, at most."""
EARLY_S: Final = 0.0005
"""Alarms of an event loop are up to a millisecond late."""
UP: Final = "up"
"""From the side that dials."""
DOWN: Final = "down"


class Delay:
    """Of one direction of a link."""

    def __init__(self, link: LinkKind, name: str) -> None:
        self._link = link
        self._name = name
        self._knot = -1
        self._between = (0.0, 0.0)

    def at(self, seconds: float) -> float:
        """Of data that is sent at this time since the origin."""
        place = seconds / KNOT_S
        knot = floor(place)
        if knot != self._knot:
            self._knot = knot
            self._between = (self._drawn(knot), self._drawn(knot + 1))
        one, other = self._between
        return one + (other - one) * (place - knot)

    def _drawn(self, knot: int) -> float:
        mean, deviation = self._link
        thrown = Random(f"{self._name} {knot}").gauss(0.0, deviation * WIDER)
        most = FARTHEST * deviation
        return mean + min(most, max(-most, thrown))


def delays(link: LinkKind, name: str) -> dict[str, Delay]:
    """Of both directions."""
    return {way: Delay(link, f"{name} {way}") for way in (UP, DOWN)}


def between_sites(lower: str, higher: str) -> tuple[str, LinkKind]:
    """The name and the kind of a link; the higher site dials."""
    return f"{higher}-{lower}", paper4.FAR


def from_region(region: str, site: str) -> tuple[str, LinkKind]:
    """Regions are named by their sites. Its clients dial."""
    return f"clients of {region}-{site}", paper4.NEAR if region == site else paper4.FAR


# ── as a process ─────────────────────────────────────────────────────────────────────────


class Belt:
    """Carries all data of the process to its due time."""

    def __init__(self) -> None:
        self.origin = time.monotonic()
        self.bytes: Counter[str] = Counter()
        """By link and direction."""
        self._due: list[tuple[float, int, asyncio.Transport, bytes]] = []
        self._count = 0
        self._alarm: asyncio.TimerHandle | None = None

    def put(self, at: float, to: asyncio.Transport, data: bytes) -> None:
        """Empty data: the end."""
        self._count += 1
        heappush(self._due, (at, self._count, to, data))
        if self._due[0][1] == self._count:
            self._set()

    def _set(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        left_s = max(0.0, self._due[0][0] - time.monotonic() - EARLY_S)
        self._alarm = asyncio.get_running_loop().call_later(left_s, self._carry)

    def _carry(self) -> None:
        self._alarm = None
        due, latest = self._due, time.monotonic() + EARLY_S
        while due and due[0][0] <= latest:
            _, _, to, data = heappop(due)
            if data:
                to.write(data)
            else:
                to.close()
        if due:
            self._set()


class DelayedWay(asyncio.Protocol):
    """One direction of one connection: reads at one end, and writes to the other one."""

    def __init__(self, belt: Belt, delay: Delay, name: str) -> None:
        self._belt = belt
        self._delay = delay
        self._name = name
        self._last = 0.0
        self.to: asyncio.Transport | None = None
        self._early: list[bytes] = []
        """What came before the other end was there."""

    def leads(self, to: asyncio.Transport) -> None:
        self.to = to
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self.to is None:
            self._early.append(data)
            return
        now, belt = time.monotonic(), self._belt
        self._last = max(self._last, now + self._delay.at(now - belt.origin))
        belt.bytes[self._name] += len(data)
        belt.put(self._last, self.to, data)

    def connection_lost(self, problem: Exception | None) -> None:
        del problem
        if self.to is not None:
            self._belt.put(self._last, self.to, b"")


class NearEnd(DelayedWay):
    """Of a connection that is accepted: it dials the other end."""

    def __init__(self, belt: Belt, both: dict[str, Delay], name: str, port: int) -> None:
        super().__init__(belt, both[UP], f"{name} {UP}")
        self._back = DelayedWay(belt, both[DOWN], f"{name} {DOWN}")
        self._port = port
        self._dialling: asyncio.Task[None] | None = None

    def connection_made(self, near: Any) -> None:
        self._back.leads(near)
        self._dialling = asyncio.get_running_loop().create_task(self._dial(near))

    async def _dial(self, near: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            far, _ = await loop.create_connection(lambda: self._back, HOST, self._port)
        except OSError:
            near.close()
            return
        self.leads(far)


class WideLinks:
    """Worker. Rows: the name of a link, its mean and deviation, and the port to which it leads."""

    def __init__(self) -> None:
        self._belt = Belt()

    async def open(self, rows: Sequence[tuple[str, Sequence[float], int]]) -> dict[str, Any]:
        """By name: the port that leads there."""
        loop, belt = asyncio.get_running_loop(), self._belt
        ports = {}
        for name, (mean_s, deviation_s), port in rows:
            both = delays(LinkKind(mean_s, deviation_s), name)
            server = await loop.create_server(partial(NearEnd, belt, both, name, port), HOST, 0)
            ports[name] = server.sockets[0].getsockname()[1]
        return {"origin": belt.origin, "ports": ports}

    async def sent(self) -> dict[str, int]:
        """Bytes so far, by link and direction."""
        return dict(self._belt.bytes)


async def wide_links() -> None:
    tell({"ready": True})
    await serve(WideLinks())
