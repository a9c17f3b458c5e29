"""Clients that move while they are measured, in processes of their own.

One subscriber and one publisher, in turn with the floors of a move; and crowds, under exactly-once
traffic in which every event is counted at every subscriber.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import NamedTuple

from motet.client.client import Client, connect
from motet.errors import MotetError, UnavailableError
from motet.model import Event, Value, as_filter
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.session.messages import ClientHello, Welcome
from motet.runtime.addresses import transport_for
from motet.runtime.loop import settle_memory, take_all_descriptors
from motet.runtime.transport import Connection
from motet_labs.bench import floor, workload
from motet_labs.bench.load import PATIENCE_S, RawPeer, connected
from motet_labs.figures import silence_s
from motet_labs.processes import serve, tell

PAUSE_S = 0.005
"""Before each sample: a process that has just slept is slower than a busy one."""
RECORD_BYTES = 300
"""Approximate size of a decision to move in the journal."""
WANTED = "quantity > 0"
"""The moving subscription: it overlaps with the advertisements of all desks."""
OTHER_SPACE = "desk = 'bonds'"
"""What those advertise that stay."""
MOST_SESSIONS = 5
"""Of a client that wants to come back to its session."""
CONNECT_S = 60.0
POLL_S = 0.02
TOGETHER = 20
"""Clients that connect at the same time."""

# ── an echo over a path ──────────────────────────────────────────────────────────────────


class _PathRelay(floor.CountingSink):
    """Passes frames on to another connection."""

    to: Connection

    def frames(self, bodies: Sequence[bytes]) -> None:
        self.to.send(bodies)


async def relay(listen: str, onward: str) -> None:
    """A broker's place on a path: passes frames on, and answers back; the last one, which has
    nothing `onward`, sends everything back. For one client at a time, until it is killed."""
    far = await connected(_PathRelay, onward) if onward else None

    def accept(connection: Connection) -> _PathRelay:
        near = _PathRelay(connection)
        near.to = connection if far is None else far.connection
        if far is not None:
            far.to = connection
        return near

    listening = await transport_for(listen).listen(listen, accept)
    tell({"address": listening.address})
    await asyncio.Event().wait()


# ── a subscriber and a publisher, beside the floors of their moves ───────────────────────


class _Newcomer(RawPeer):
    """A client that only waits to be welcomed."""

    epoch = ""

    def hear(self, frame: Frame) -> None:
        if isinstance(frame, Welcome):
            self.epoch = frame.epoch

    async def greet(self, epoch: str | None = None) -> None:
        self.say(ClientHello(PROTOCOL_VERSION, "bench-newcomer", epoch))
        while not self.epoch:
            await self.next_news()


class MeasuredMovers:
    """Worker that moves two clients to and fro between two brokers. Times are seconds."""

    def __init__(
        self, urls: dict[str, str], subscriber: Client, publisher: Client, file: int
    ) -> None:
        self._urls = urls
        self._subscriber = subscriber
        self._publisher = publisher
        self._file = file
        self._record = os.urandom(RECORD_BYTES)
        self._orders = cycle(workload.orders(64))
        self._echoing: floor.CountingSink
        self._newcomer: _Newcomer

    async def prepare(self, echo: str) -> None:
        self._echoing = await connected(floor.CountingSink, echo)
        self._newcomer = await connected(_Newcomer, self._last_url)
        await self._newcomer.greet()

    @property
    def _last_url(self) -> str:
        return list(self._urls.values())[-1]

    async def sample(self, times: int) -> dict[str, list[float]]:
        """The floors of a move, and moves, in turn."""
        sides = {
            "echo": self._echo,
            "reconnection": self._reconnect,
            "write": self._write,
            "another write": self._write,
            "subscriber": self.move_subscriber,
            "publisher": self.move_publisher,
        }
        found: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(times):
            for name, measure in sides.items():
                await asyncio.sleep(PAUSE_S)
                found[name].append(await measure())
        return found

    async def pauses(self, times: int, flow_s: float) -> dict[str, list[float]]:
        """The publisher publishes one event after the other, and moves meanwhile: the longest time
        without an accepted event, beside the usual one and an echo."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        accepted: list[float] = []

        async def publish() -> None:
            while True:
                await self._publisher.publish(next(self._orders), workload.PAYLOAD)
                accepted.append(time.perf_counter())

        for _ in range(times):
            found["echo"].append(await self._echo())
            accepted.clear()
            publishing = asyncio.create_task(publish())
            await asyncio.sleep(flow_s)
            began = time.perf_counter()
            moving = await self.move_publisher()
            await asyncio.sleep(flow_s + moving)
            publishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await publishing
            found["pause"].append(silence_s(accepted, began))
            before = [each for each in accepted if each < began]
            found["usual"] += [later - earlier for earlier, later in pairwise(before)]
            await self._publisher.flush(PATIENCE_S)
        return found

    async def move_subscriber(self) -> float:
        return await self._move(self._subscriber)

    async def move_publisher(self) -> float:
        return await self._move(self._publisher)

    async def _move(self, client: Client) -> float:
        began = time.perf_counter()
        await client.move(next(name for name in self._urls if name != client.broker))
        return time.perf_counter() - began

    async def move(self, who: str, times: int) -> None:
        """Move one of the two several times, without a measurement."""
        for _ in range(times):
            await asyncio.sleep(PAUSE_S)
            await (self.move_subscriber() if who == "subscriber" else self.move_publisher())

    async def _echo(self) -> float:
        sink = self._echoing
        sink.arrived.clear()
        began = time.perf_counter()
        sink.connection.send([floor.MESSAGE])
        async with asyncio.timeout(PATIENCE_S):
            await sink.arrived.wait()
        return time.perf_counter() - began

    async def _reconnect(self) -> float:
        """A client that comes back to its session. It sends no heartbeats while others are
        measured: on a slow machine its session may have ended, and then it comes back to a new
        one."""
        for _ in range(MOST_SESSIONS):
            epoch = self._newcomer.epoch
            self._newcomer.connection.abort()
            began = time.perf_counter()
            self._newcomer = await connected(_Newcomer, self._last_url)
            await self._newcomer.greet(epoch)
            took_s = time.perf_counter() - began
            if self._newcomer.epoch == epoch:
                return took_s
        raise UnavailableError("a session was not resumed: this is no reconnection")

    async def _write(self) -> float:
        began = time.perf_counter()
        os.write(self._file, self._record)
        os.fdatasync(self._file)
        return time.perf_counter() - began


async def movers(urls: dict[str, str], echo: str, folder: str) -> None:
    """They move between these brokers; `echo` is over the same path."""
    home = next(iter(urls.values()))
    file = os.open(Path(folder) / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    async with (
        connect(home, client_id="bench-subscriber") as subscriber,
        connect(home, client_id="bench-publisher") as publisher,
    ):
        await publisher.advertise(workload.SPACE)
        await subscriber.subscribe(WANTED, callback=_ignore)
        measured = MeasuredMovers(urls, subscriber, publisher, file)
        await measured.prepare(echo)
        settle_memory()
        await serve(measured)
    os.close(file)


async def others(urls: Sequence[str], subscriptions: int, advertisements: int) -> None:
    """Clients that stay, with so many subscriptions and advertisements at each broker. All overlap
    with the moving subscription, and half of the subscriptions with the moving advertisement."""
    desks = cycle((workload.SPACE, OTHER_SPACE))
    filters = iter(workload.subscriptions(subscriptions * len(urls)))
    async with AsyncExitStack() as stack:
        for number, url in enumerate(urls):
            name = f"bench-other-{number}-{os.getpid()}"
            opening = connect(url, client_id=name, connect_timeout=CONNECT_S)
            client = await stack.enter_async_context(opening)
            for _ in range(advertisements):
                await client.advertise(OTHER_SPACE, timeout=CONNECT_S)
            for wanted in islice(filters, subscriptions):
                desk = as_filter(next(desks))
                await client.subscribe(wanted & desk, callback=_ignore, timeout=CONNECT_S)
        settle_memory()
        tell({})
        await asyncio.Event().wait()


def _ignore(event: Event) -> None:
    del event


# ── crowds ───────────────────────────────────────────────────────────────────────────────

GROUPS = 36
"""Every event goes to the subscribers of one group."""
CROWD_EVENT: dict[str, Value] = {"desk": "crowd"}
CROWD_SPACE = "desk = 'crowd'"
"""Nobody else publishes there, or wants events of it."""


class CrowdAccount(NamedTuple):
    """Counts of events, over all subscribers; and of sessions that clients have lost."""

    published: int
    expected: int
    missed: int
    doubled: int
    swapped: int
    lost_sessions: int


class MovingCrowd:
    """Worker with many clients, which move between two brokers. Some publish, all others
    subscribe."""

    def __init__(self, brokers: Sequence[str], clients: list[Client]) -> None:
        self._brokers = brokers
        self._clients = clients
        self._in_turn = cycle(clients)
        self._publishers: list[Client] = []
        self._taken: list[tuple[int, dict[int, list[int]]]] = []
        """By subscriber: its group, and by publisher the numbers of its events."""
        self._made: defaultdict[tuple[int, int], int] = defaultdict(int)
        """By publisher and group."""
        self._flowing: list[asyncio.Task[None]] = []

    async def enrol(self, publishers: int) -> None:
        """Let so many clients advertise, and all others subscribe."""
        turns = asyncio.Semaphore(TOGETHER)

        async def advertise(number: int, client: Client) -> None:
            async with turns:
                await client.advertise(f"{CROWD_SPACE} and crowd = {number}", timeout=CONNECT_S)

        async def subscribe(number: int, client: Client) -> None:
            taken: dict[int, list[int]] = {}
            group = number % GROUPS
            self._taken.append((group, taken))

            def take(event: Event) -> None:
                publisher, made = event["crowd"], event["made"]
                assert isinstance(publisher, int)
                assert isinstance(made, int)
                taken.setdefault(publisher, []).append(made)

            async with turns:
                wanted = f"{CROWD_SPACE} and group = {group}"
                await client.subscribe(wanted, callback=take, timeout=CONNECT_S)

        self._publishers = self._clients[:publishers]
        await asyncio.gather(
            *(advertise(*each) for each in enumerate(self._publishers)),
            *(subscribe(*each) for each in enumerate(self._clients[publishers:])),
        )

    # ── traffic ──────────────────────────────────────────────────────────────────────────

    async def flow(self, per_s: float) -> None:
        """Publish so many events per second from now on, all publishers together."""
        period_s = len(self._publishers) / per_s
        for number, client in enumerate(self._publishers):
            delay_s = number / per_s
            work = self._publish(number, client, delay_s, period_s)
            self._flowing.append(asyncio.create_task(work))

    async def _publish(self, number: int, client: Client, delay_s: float, period_s: float) -> None:
        at = time.perf_counter() + delay_s
        for group in cycle(range(GROUPS)):
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            at += period_s
            self._made[number, group] += 1
            made = self._made[number, group]
            await client.send(CROWD_EVENT | {"crowd": number, "group": group, "made": made})

    async def account(self) -> dict[str, int]:
        """Stop publishing, wait until everything has arrived, at most for a while, and count."""
        for task in self._flowing:
            task.cancel()
        for ended in await asyncio.gather(*self._flowing, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        for client in self._publishers:
            await client.flush(PATIENCE_S)
        expected = sum(self._owed(group) for group, _ in self._taken)
        deadline = time.perf_counter() + PATIENCE_S
        while self._arrivals < expected and time.perf_counter() < deadline:
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(POLL_S)  # for what should not arrive
        return self._account(expected)._asdict()

    def _owed(self, group: int) -> int:
        return sum(self._made[number, group] for number in range(len(self._publishers)))

    @property
    def _arrivals(self) -> int:
        return sum(len(numbers) for _, taken in self._taken for numbers in taken.values())

    def _account(self, expected: int) -> CrowdAccount:
        doubled = swapped = distinct = 0
        for group, taken in self._taken:
            for publisher, numbers in taken.items():
                made = self._made[publisher, group]
                known = {each for each in numbers if 0 < each <= made}
                distinct += len(known)
                doubled += len(numbers) - len(known)
                swapped += sum(later < earlier for earlier, later in pairwise(numbers))
        lost = sum(client.session.lost_sessions for client in self._clients)
        published = sum(self._made.values())
        return CrowdAccount(published, expected, expected - distinct, doubled, swapped, lost)

    # ── moves ────────────────────────────────────────────────────────────────────────────

    async def travel(self, moves: int, seconds: float) -> dict[str, object]:
        """Move the next so many clients, evenly over this time."""
        began = time.perf_counter()
        took_s: list[float] = []
        failures: list[str] = []

        async def go(number: int, client: Client) -> None:
            await asyncio.sleep(began + number * seconds / moves - time.perf_counter())
            started = time.perf_counter()
            try:
                await client.move(self._other(client), timeout=CONNECT_S)
            except MotetError as problem:
                failures.append(str(problem))
            else:
                took_s.append(time.perf_counter() - started)

        moving = enumerate(islice(self._in_turn, moves))
        await asyncio.gather(*(go(*each) for each in moving))
        return {"took_s": took_s, "seconds": time.perf_counter() - began, "failures": failures}

    def _other(self, client: Client) -> str:
        return next(name for name in self._brokers if name != client.broker)

    async def move_all(self, to: str, parallel: int) -> dict[str, float]:
        """Move every client, so many at a time; returns the seconds that it took."""
        waiting = iter(self._clients)

        async def work() -> None:
            for client in waiting:
                await client.move(to, timeout=CONNECT_S)

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(parallel)))
        return {"seconds": time.perf_counter() - began}

    async def arrived(self, at: str) -> dict[str, float]:
        """Wait until every client is connected to this broker; returns the seconds waited, and how
        many sessions were lost so far."""
        began = time.perf_counter()
        async with asyncio.timeout(PATIENCE_S):
            while not all(each.connected and each.broker == at for each in self._clients):
                await asyncio.sleep(POLL_S)
        lost = sum(client.session.lost_sessions for client in self._clients)
        return {"seconds": time.perf_counter() - began, "lost_sessions": lost}


async def crowd(urls: dict[str, str], clients: int, publishers: int) -> None:
    """All connect to the first of these brokers."""
    take_all_descriptors()
    home = next(iter(urls.values()))
    turns = asyncio.Semaphore(TOGETHER)
    async with AsyncExitStack() as stack:

        async def enter(number: int) -> Client:
            name = f"bench-crowd-{number:04}"
            async with turns:
                opening = connect(home, client_id=name, connect_timeout=CONNECT_S)
                return await stack.enter_async_context(opening)

        entered = await asyncio.gather(*map(enter, range(clients)))
        many = MovingCrowd(list(urls), entered)
        await many.enrol(publishers)
        settle_memory()
        await serve(many)
