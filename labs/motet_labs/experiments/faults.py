"""The three fault injections of section 4.2: a link to s1, a broker, the publishers' broker p1.

Each goes as in the paper: normal operation; the victim accepts data but forwards nothing, so that
about as much is lost; then it fails visibly; then it is back. Publishers never stop, except that
they cannot publish without p1. All clients run on one loop and share one clock, so a latency is the
difference of two readings.

The victim is the member of b1's cell that carries the stream: a fault of the others would have no
effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from motet.client.client import Client, connect
from motet.errors import MotetError
from motet.fleet.fleet import Fleet, Link
from motet.model import Event, encode_event
from motet_labs.experiments import paper5
from motet_labs.experiments.paper5 import Schedule
from motet_labs.figures import Progress

# ── traffic ──────────────────────────────────────────────────────────────────────────────

POLL_S = 0.05
CONNECT_S = 20.0
FIRST_NUMBER = 1_000_000
"""Large, so that all events have the same size."""


class Arrival(NamedTuple):
    """One event at one subscriber; times are seconds of the monotonic clock."""

    publisher: int
    number: int
    sent: float
    latency_s: float
    pubend: str


class DeliveryAccount(NamedTuple):
    """Counts of events, over all subscribers."""

    published: int
    delivered: int
    lost: int
    doubled: int
    disordered: int

    @property
    def kept(self) -> bool:
        return not (self.lost or self.doubled or self.disordered)


def padding(event: Mapping[str, int | float], size_bytes: int) -> bytes:
    """A payload that gives an encoded event its size."""
    payload = b""
    while (lacking := size_bytes - len(encode_event(event, payload))) > 0:
        payload += bytes(max(1, lacking - 2))  # its length may need another byte
        if len(encode_event(event, payload)) > size_bytes:
            return payload[:-1]
    return payload


class PacedTraffic:
    """Publishers at a fixed rate, and subscribers that record when each event arrives."""

    def __init__(self, publishers: int, per_s: float, size_bytes: int) -> None:
        self.arrivals: dict[str, list[Arrival]] = {}
        """By subscriber."""
        self._publishers = publishers
        self._period_s = 1.0 / per_s
        self._size_bytes = size_bytes
        self._made: Counter[int] = Counter()
        self._clients: list[Client] = []
        self._pacing: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def connected(self, at: str, subscribers: Mapping[str, str]) -> AsyncIterator[None]:
        """Connect publishers to one broker and subscribers to theirs; nothing is published yet."""
        async with AsyncExitStack() as stack:

            async def client(address: str, name: str) -> Client:
                opening = connect(address, client_id=name, connect_timeout=CONNECT_S)
                return await stack.enter_async_context(opening)

            for number in range(self._publishers):
                self._clients.append(await client(at, f"publisher-{number}"))
                await self._clients[-1].advertise(f"publisher = {number}", timeout=CONNECT_S)
            for name, address in subscribers.items():
                subscriber = await client(address, f"subscriber-{name}")
                note = _note_in(self.arrivals.setdefault(name, []))
                await subscriber.subscribe("publisher >= 0", callback=note, timeout=CONNECT_S)
            try:
                yield
            finally:
                await self.stop()

    def begin(self) -> None:
        now = time.monotonic()
        share_s = self._period_s / self._publishers
        for number, client in enumerate(self._clients):
            work = self._publish(number, client, now + number * share_s)
            self._pacing.append(asyncio.ensure_future(work))

    async def _publish(self, number: int, client: Client, at: float) -> None:
        event: dict[str, int | float] = {"publisher": number, "number": FIRST_NUMBER, "sent": 0.5}
        payload = padding(event, self._size_bytes)
        while True:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            at += self._period_s
            if not client.connected:
                continue  # as in the paper: a publisher without its broker is down, too
            made = FIRST_NUMBER + self._made[number]
            event = {"publisher": number, "number": made, "sent": time.monotonic()}
            await client.send(event, payload)
            self._made[number] += 1

    async def stop(self) -> None:
        """Stop publishing; raises if publishing has failed."""
        pacing, self._pacing = self._pacing, []
        for task in pacing:
            task.cancel()
        for result in await asyncio.gather(*pacing, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def settle(self, bound_s: float) -> None:
        """Wait, at most `bound_s`, until all published events have arrived everywhere: missing ones
        then count as lost."""
        owed = sum(self._made.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(bound_s):
                for client in self._clients:
                    with contextlib.suppress(MotetError):  # refused events will be missing
                        await client.flush()
                while any(len(notes) < owed for notes in self.arrivals.values()):
                    await asyncio.sleep(POLL_S)

    def account(self) -> DeliveryAccount:
        """Every event at every subscriber."""
        published = sum(self._made.values())
        delivered = lost = doubled = disordered = 0
        for notes in self.arrivals.values():
            seen = {(note.publisher, note.number) for note in notes}
            delivered += len(notes)
            lost += published - len(seen)
            doubled += len(notes) - len(seen)
            last: Counter[int] = Counter()
            for note in notes:
                disordered += note.number < last[note.publisher]
                last[note.publisher] = note.number
        return DeliveryAccount(published, delivered, lost, doubled, disordered)


def _note_in(notes: list[Arrival]) -> Callable[[Event], None]:
    def note(event: Event) -> None:
        now = time.monotonic()
        publisher, number, sent = event["publisher"], event["number"], event["sent"]
        assert isinstance(publisher, int)
        assert isinstance(number, int)
        assert isinstance(sent, float)
        notes.append(Arrival(publisher, number, sent, now - sent, event.pubend or ""))

    return note


# ── nacks ────────────────────────────────────────────────────────────────────────────────

LOOK_S = 0.5
TICKS_PER_MS = 1000


class NackNoted(NamedTuple):
    """`at` is a time of our monotonic clock; the range is the time span of a pubend's stream that
    was asked for, as the paper counts it."""

    at: float
    broker: str
    way: str
    neighbour: str
    pubend: str
    range_ms: float


class NackWatch:
    """Records which nacks passed where and when, as reported by the brokers. A broker remembers its
    last nacks with their times. They are polled, so that neither a broker's crash nor its short
    memory hides many."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        # Brokers count from the time of day and never jump; neither does this clock.
        self._ahead_s = time.time() - time.monotonic()
        self._seen: set[NackNoted] = set()

    @property
    def noted(self) -> list[NackNoted]:
        return sorted(self._seen)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        for broker, state in (await self._fleet.statuses()).items():
            for each in state["delivery"]["recent_nacks"]:
                at, neighbour = each["at"] - self._ahead_s, each["neighbour"].partition("/")[0]
                range_ms = each["ticks"] / TICKS_PER_MS
                noted = NackNoted(at, broker, each["way"], neighbour, each["pubend"], range_ms)
                self._seen.add(noted)


def total_ms(
    noted: Iterable[NackNoted], way: str, brokers: Iterable[str], neighbours: Iterable[str] = ()
) -> float:
    """The total nack range in one direction, by these brokers; of these neighbours only, if any."""
    of, by = set(neighbours), set(brokers)
    return sum(
        each.range_ms
        for each in noted
        if each.way == way and each.broker in by and (not of or each.neighbour in of)
    )


# ── faults ───────────────────────────────────────────────────────────────────────────────

SETTLE_BOUND_S = 60.0
REFRESH_S = 0.2
CELL, CUT_OFF = "IB1", "s1"
"""The victim's cell, and the broker that loses its link to the victim."""
FAULTS = {
    "link": (("stall",), ("cut",), ("heal",)),
    "broker": (("pause",), ("kill",), ("start",)),
    # It keeps logging what it is given, but nothing gets out.
    "publisher": (("stall",), ("kill", "cut"), ("heal", "start")),
}
"""By name: how the victim stalls, fails, and comes back. Links are stalled, cut and healed,
processes paused, killed and started."""


@dataclass(frozen=True)
class FaultRecord:
    """Everything recorded about one fault. Times are seconds since its beginning."""

    fault: str
    victim: str
    """The broker that failed, or whose link did."""
    schedule: Schedule
    marks: dict[str, float]
    """When it was made to stall, to fail, to heal."""
    arrivals: dict[str, list[Arrival]]
    nacks: list[NackNoted]
    account: DeliveryAccount

    @property
    def pubends(self) -> set[str]:
        return {note.pubend for note in chain.from_iterable(self.arrivals.values())}


def proxied(edges: list[Link]) -> list[Link]:
    """The links that may be made to fail: those of s1, and all of p1."""
    wanted = {CUT_OFF, paper5.PUBLISHER_BROKER}
    return [link for link in edges if wanted & set(link)]


class Injection:
    """One fault in an overlay that is intact before and after it."""

    def __init__(self, fleet: Fleet, fault: str, schedule: Schedule, tell: Progress) -> None:
        self._fleet = fleet
        self._fault = fault
        self._schedule = schedule
        self._tell = tell
        self._marks: dict[str, float] = {}
        self._began = 0.0
        self._victim = paper5.PUBLISHER_BROKER if fault == "publisher" else ""

    async def run(self) -> FaultRecord:
        fleet = self._fleet
        await fleet.until_links_up()
        watch = NackWatch(fleet)
        traffic = PacedTraffic(paper5.PUBLISHERS, paper5.PUBLISHER_PER_S, paper5.FAULT_BYTES)
        names = [name for name in paper5.SUBSCRIBER_BROKERS if name in fleet.topology.names]
        subscribers = {name: fleet.addresses[name] for name in names}
        async with traffic.connected(fleet.addresses[paper5.PUBLISHER_BROKER], subscribers):
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
            await fleet.until_links_up()
            await watch.look()
        return self._record(traffic, watch)

    def _record(self, traffic: PacedTraffic, watch: NackWatch) -> FaultRecord:
        began, account = self._began, traffic.account()
        arrivals = {
            name: [note._replace(sent=note.sent - began) for note in notes]
            for name, notes in traffic.arrivals.items()
        }
        nacks = [each._replace(at=each.at - began) for each in watch.noted if each.at >= began]
        seen = (self._marks, arrivals, nacks, account)
        return FaultRecord(self._fault, self._victim, self._schedule, *seen)

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
        """How much of the streams each member of the cell has received."""
        states = await self._fleet.statuses()
        return {
            name: states[name]["delivery"]["received"]["knowledge"]
            for name in paper5.CELLS[CELL]
            if name in states
        }

    async def _do(self, what: str, deeds: Sequence[str]) -> None:
        self._marks[what] = time.monotonic() - self._began
        process = self._fleet.processes[self._victim]
        ends = {self._victim, CUT_OFF} if self._fault == "link" else {self._victim}
        for deed in deeds:
            if deed == "start":
                await process.start()
            elif deed in ("pause", "kill"):
                getattr(process, deed)()
            else:
                for link, proxy in self._fleet.proxies.items():
                    if ends <= set(link):
                        getattr(proxy, deed)()

    async def _pass(self, seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            self._tell(f"{self._fault}: {what}, {left_s:.0f} s more")
            await asyncio.sleep(min(left_s, REFRESH_S))
