"""Clients that load brokers, in processes of their own.

Publishers and subscribers as in an application; neighbours with many subscriptions, which speak the
link protocol but route nothing; clients that subscribe and unsubscribe as fast as a broker allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any, TypeVar

from msgspec import Raw

from motet.client.client import Client, connect
from motet.client.session.machine import DEFAULT_WINDOW
from motet.client.subscription import Subscription
from motet.errors import UnavailableError
from motet.fleet.process import BrokerProcess, cpu_s
from motet.model import Event, Filter, OpId, as_filter, encode_event
from motet.protocol.frames import PROTOCOL_VERSION, Beat, Frame
from motet.protocol.link.messages import Control, ControlAck, LinkHello, Publications
from motet.protocol.routing.messages import Subscribe
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    Done,
    Publish,
    Published,
    Status,
    StatusRequest,
    SubscribeRequest,
    UnsubscribeRequest,
    Welcome,
)
from motet.runtime.addresses import transport_for
from motet.runtime.clock import fresh_incarnation
from motet.runtime.codec import decode, encode
from motet.runtime.loop import settle_memory
from motet.runtime.transport import Connection
from motet_labs.bench import floor, workload
from motet_labs.processes import percentiles, serve, worker

# ── a stream of orders ───────────────────────────────────────────────────────────────────

AHEAD = 16_384
"""The number of best-effort events that a publisher may be ahead of its subscriber. Brokers do not
slow such a publisher down, so the two use a window, with credits sent as ordinary events; losses
are still counted. Exactly-once publishers need no such window."""
CREDITS = 8
"""Number of credits that the subscriber sends per window."""
CREDIT = "credit > 0"
SURE_WINDOW = 1000
"""Maximum number of unacknowledged exactly-once publications."""
NOTE_S = 0.05
"""How often the subscriber records the number of arrivals."""
PATIENCE_S = 20.0
BYSTANDER_DESKS = ("bonds", "commodities", "currencies", "futures", "options", "rates")
"""Desks of a few subscriptions that never match."""
WARM_UP = 10
"""The first one in this many parts of a stream does not count."""


class StreamPublisher:
    """Worker that publishes a number of orders, or from `go` to `stop`."""

    def __init__(self, client: Client, ahead: int) -> None:
        self._client = client
        self._ahead = ahead or math.inf
        self._orders = workload.orders(1024)
        self._made = self._taken = 0
        self._until: float = 0
        self._credited = asyncio.Event()
        self._going: asyncio.Task[None] | None = None

    def credit(self, event: Event) -> None:
        taken = event["credit"]
        assert isinstance(taken, int)
        self._taken = taken
        self._credited.set()

    async def publish(self, events: float = math.inf, per_s: float = 0.0) -> None:
        """As fast as the subscriber allows, or at a rate, spread as evenly as timers allow."""
        first, began = self._made, time.perf_counter()
        self._until = first + events
        while self._made < self._until:
            if self._made - self._taken >= self._ahead:
                self._credited.clear()
                async with asyncio.timeout(PATIENCE_S):
                    await self._credited.wait()
            if per_s:
                early_s = (self._made - first) / per_s - (time.perf_counter() - began)
                if early_s > 0:
                    await asyncio.sleep(early_s)
            await self._client.send(self._orders[self._made & 1023], workload.PAYLOAD)
            self._made += 1
        await self._client.flush()

    async def go(self, per_s: float) -> None:
        self._going = asyncio.create_task(self.publish(per_s=per_s))

    async def stop(self) -> dict[str, int]:
        assert self._going is not None
        self._until = 0
        await self._going
        return {"published": self._made}


class StreamSubscriber:
    """Worker that counts arrivals, duplicates, and events out of order."""

    def __init__(self, client: Client, subscription: Subscription, events: int, ahead: int) -> None:
        self._client = client
        self._subscription = subscription
        self._events = events
        self._credit_every = ahead // CREDITS
        self._warm = events // WARM_UP
        self._began = self._ended = 0.0
        self._taken = self._missed = self._again = 0
        self._complete = asyncio.Event()
        self._notes: list[tuple[float, int]] = []
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._note())]

    async def _read(self) -> None:
        expected = 0
        async for event in self._subscription:
            self._taken += 1
            sequence = event.sequence
            if sequence == expected or not expected:
                expected = sequence + 1
            elif sequence > expected:
                self._missed += sequence - expected
                expected = sequence + 1
            else:
                self._again += 1
            if self._taken % self._credit_every == 0:
                await self._client.send({"credit": self._taken}, best_effort=True)
            if self._taken == self._warm:
                self._began = time.perf_counter()
            elif self._taken == self._events:
                self._ended = time.perf_counter()
                self._complete.set()

    async def _note(self) -> None:
        while True:
            self._notes.append((time.perf_counter(), self._taken))
            await asyncio.sleep(NOTE_S)

    async def mark(self) -> dict[str, Any]:
        """The number of arrivals so far, and the records since the last mark."""
        for task in self._tasks:
            if task.done():
                task.result()
        notes, self._notes = self._notes, []
        return {"at_s": time.perf_counter(), "taken": self._taken, "notes": notes}

    async def all(self) -> dict[str, float]:
        """Wait for all events as long as some arrive; returns the rate, and how many were lost,
        duplicated or out of order."""
        before = -1
        while before < self._taken < self._events:
            before = self._taken
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await self._complete.wait()
        took_s = (self._ended or time.perf_counter()) - self._began
        dropped = self._subscription.dropped + self._client.session.dropped_by_broker
        return {
            "rate": (self._taken - self._warm) / took_s,
            "lost": self._events - self._taken + self._again + dropped,
        }

    async def account(self, published: int) -> dict[str, int]:
        """Wait for all events, and return the number of each kind of error."""
        deadline = time.perf_counter() + PATIENCE_S
        while self._taken < published and time.perf_counter() < deadline:
            await asyncio.sleep(NOTE_S)
        lost, doubled = published - self._taken, max(self._again, self._taken - published)
        return {"lost": max(0, lost), "disordered": self._missed, "doubled": doubled}


async def publisher(url: str, sure: bool, ahead: int) -> None:
    """At most `ahead` events ahead of the subscriber; 0: unlimited."""
    name, window = "bench-publisher", SURE_WINDOW if sure else DEFAULT_WINDOW
    async with connect(url, client_id=name, best_effort=not sure, window=window) as client:
        publishing = StreamPublisher(client, ahead)
        await client.advertise(workload.SPACE)
        if ahead:
            await client.subscribe(CREDIT, callback=publishing.credit)
        settle_memory()
        await serve(publishing)


async def subscriber(url: str, events: int = 0, ahead: int = AHEAD) -> None:
    async with (
        connect(url, client_id="bench-subscriber") as client,
        connect(url, client_id="bench-bystander") as bystander,
    ):
        for desk in BYSTANDER_DESKS:
            await bystander.subscribe(f"desk = '{desk}' and price > 10")
        await client.advertise(CREDIT)
        subscription = await client.subscribe(workload.SPACE)
        settle_memory()
        await serve(StreamSubscriber(client, subscription, events, ahead))


def stream(
    brokers: Sequence[BrokerProcess], events: int, *, sure: bool = False, per_s: float = 0.0
) -> tuple[dict[str, float], list[float]]:
    """From a publisher at the first broker to a subscriber at the last one, best effort or exactly
    once: the rate, and what was lost, duplicated or out of order; and each broker's CPU time per
    event in µs."""
    ahead = 0 if sure else AHEAD
    with worker(subscriber, brokers[-1].address, events) as taking:
        taking.ask("mark")  # wait until it is connected
        with worker(publisher, brokers[0].address, sure, ahead) as giving:
            before = [cpu_s(broker.pid) for broker in brokers]
            giving.ask("publish", events=events, per_s=per_s)
            found = taking.ask("all")
            spent = [cpu_s(broker.pid) - s for broker, s in zip(brokers, before, strict=True)]
    return found, [each / events * 1e6 for each in spent]


# ── one event after the other ────────────────────────────────────────────────────────────


async def ping(
    from_url: str, to_url: str, events: int, per_s: float, sure: bool = False
) -> dict[str, float]:
    """One event at a time, from `publish` to the subscriber's application. At a low rate, or, if
    that is 0, each as soon as the previous one has arrived."""
    times: list[float] = []
    async with (
        connect(from_url, client_id="bench-ping", best_effort=not sure) as publisher,
        connect(to_url, client_id="bench-pong") as subscriber,
    ):
        await publisher.advertise(workload.SPACE)
        subscription = await subscriber.subscribe(workload.SPACE)
        settle_memory()
        for event in workload.orders(events):
            await asyncio.sleep(1 / per_s if per_s else 0)
            began = time.perf_counter()
            await publisher.send(event, workload.PAYLOAD)
            async with asyncio.timeout(PATIENCE_S):
                await anext(subscription)
            times.append((time.perf_counter() - began) * 1e6)
    return percentiles(times)


async def echo(events: int, per_s: float) -> dict[str, float]:
    """The floor of `ping`: a bare echo at the same rate. A process that has just slept is slower
    than a busy one, so an echo without pauses would not be a floor."""
    times, body = [], bytes(workload.EVENT_BYTES)
    with worker(floor.echo) as server:
        sink = await connected(floor.CountingSink, f"motet://127.0.0.1:{server.hear()['port']}")
        settle_memory()
        for _ in range(events):
            await asyncio.sleep(1 / per_s if per_s else 0)
            sink.arrived.clear()
            began = time.perf_counter()
            sink.connection.send([body])
            async with asyncio.timeout(PATIENCE_S):
                await sink.arrived.wait()
            times.append((time.perf_counter() - began) * 1e6)
        sink.connection.abort()
    return percentiles(times)


# ── a crowd of subscriptions behind four neighbours ──────────────────────────────────────

NEIGHBOURS = ("N1", "N2", "N3", "N4")
BATCH = 64
WINDOW = 64 * BATCH
CONTROL_CHUNK = 256
BEAT_S = 1.0


class RawPeer(ABC):
    """A peer of the broker on a raw connection. `news` is set when frames have arrived."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.news = asyncio.Event()
        self.trouble = ""

    def say(self, *frames: Frame) -> None:
        self.connection.send([encode(frame) for frame in frames])

    def frames(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self.hear(decode(body))
        self.news.set()

    @abstractmethod
    def hear(self, frame: Frame) -> None:
        """Called with each frame that arrives."""

    async def next_news(self) -> None:
        if self.trouble:
            raise UnavailableError(self.trouble)
        self.news.clear()
        async with asyncio.timeout(PATIENCE_S):
            await self.news.wait()

    def closed(self, reason: str) -> None:
        self.trouble = f"the broker closed: {reason}"
        self.news.set()

    def writable(self) -> None:
        pass


P = TypeVar("P")


async def connected(kind: type[P], url: str) -> P:
    """Connect, and return the handler of the connection."""
    made: list[P] = []

    def accept(connection: Connection) -> Any:
        made.append(kind(connection))  # type: ignore[call-arg]
        return made[-1]

    await transport_for(url).connect(url, accept)
    return made[0]


async def _beat(peers: Iterable[RawPeer]) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        for peer in peers:
            peer.say(Beat())


class Neighbour(RawPeer):
    """Acknowledges control, counts events, forwards nothing."""

    events = 0

    def hear(self, frame: Frame) -> None:
        if isinstance(frame, Publications):
            self.events += len(frame.batch)
        elif isinstance(frame, Control):
            self.say(ControlAck(frame.first + len(frame.messages) - 1))

    def subscribe(self, name: str, filters: Sequence[Filter]) -> None:
        self.say(LinkHello(PROTOCOL_VERSION, name, fresh_incarnation(), known=0, received=0))
        for start in range(0, len(filters), CONTROL_CHUNK):
            chunk = filters[start : start + CONTROL_CHUNK]
            messages = tuple(
                Subscribe(OpId(f"{name}-client", f"{name}-1", number), wanted)
                for number, wanted in enumerate(chunk, start + 1)
            )
            self.say(Control(start + 1, messages))


class BarePublisher(RawPeer):
    """A client whose window is the number of unacknowledged publications."""

    settled = 0
    refused = 0
    state: dict[str, Any] | None = None

    def hear(self, frame: Frame) -> None:
        if isinstance(frame, Published):
            self.settled = frame.upto
            self.refused += len(frame.refused)
        elif isinstance(frame, Status):
            self.state = frame.state

    async def status(self) -> dict[str, Any]:
        self.state = None
        self.say(StatusRequest())
        while self.state is None:
            await self.next_news()
        return self.state

    async def pump(self, batches: list[list[Raw]], seconds: float, first: int) -> int:
        """Publish for this time; returns the number of the last event, which is settled."""
        end = time.perf_counter() + seconds
        sent = first - 1
        source = cycle(batches)
        while time.perf_counter() < end:
            while sent - self.settled < WINDOW:
                batch = next(source)
                self.say(Publish(sent + 1, batch, sure=False))
                sent += len(batch)
            await self.next_news()
        while self.settled < sent:
            await self.next_news()
        return sent


async def crowd(url: str, pid: int, subscriptions: int, seconds: float) -> dict[str, float]:
    """The CPU time per event of a broker with four neighbours. With four real brokers beside it,
    the one under test would starve on a small machine."""
    neighbours: list[Neighbour] = []
    filters = workload.subscriptions(subscriptions)
    for place, name in enumerate(NEIGHBOURS):
        neighbours.append(await connected(Neighbour, url))
        neighbours[-1].subscribe(name, filters[place :: len(NEIGHBOURS)])
    publisher = await connected(BarePublisher, url)
    publisher.say(ClientHello(PROTOCOL_VERSION, "bench-publisher"))
    publisher.say(AdvertiseRequest(1, as_filter(workload.SPACE), wait=False))
    beating = asyncio.create_task(_beat([*neighbours, publisher]))
    while (await publisher.status())["tables"]["subscriptions"] < subscriptions:
        pass
    bodies = [Raw(encode_event(each, workload.PAYLOAD)) for each in workload.orders(64 * BATCH)]
    batches = [bodies[start : start + BATCH] for start in range(0, len(bodies), BATCH)]
    settle_memory()
    warm = await publisher.pump(batches, seconds / 5, 1)
    await publisher.status()  # everything sent before has been read and routed
    cpu = cpu_s(pid)
    last = await publisher.pump(batches, seconds, warm + 1)
    state = await publisher.status()
    cpu = cpu_s(pid) - cpu
    beating.cancel()
    lost = sum(link["lost_publications"] for link in state["links"].values())
    lost += state["dropped_events"] + publisher.refused
    return {"cpu_us_per_event": cpu / (last - warm) * 1e6, "lost": lost}


# ── clients that subscribe and unsubscribe ───────────────────────────────────────────────

REQUESTS = 16
"""Unanswered requests per client."""
IN_FORCE = 64
"""Subscriptions that each client keeps; each new one replaces its oldest."""
FILTERS = 16_384
_MARK = 2**31
"""A number whose encoding has five bytes, to find where such numbers are in a frame."""
_DONE_START = encode(Done(_MARK))[:-5]


def _five_bytes(number: int) -> bytes:
    """An unsigned msgpack integer in its 32-bit form, whatever its size."""
    return b"\xce" + number.to_bytes(4)


class EncodedRequests:
    """Frames assembled from encoded parts with gaps for numbers, so that all clients together cost
    far less than the broker that they load."""

    def __init__(self) -> None:
        mark = _five_bytes(_MARK)
        framed = [encode(SubscribeRequest(_MARK, each)) for each in workload.subscriptions(FILTERS)]
        self._head = framed[0].partition(mark)[0]
        self._tails = [body.partition(mark)[2] for body in framed]
        removal = encode(UnsubscribeRequest(_MARK, _MARK))
        self._removal, self._between, self._removal_tail = removal.split(mark)

    def subscribe(self, sequence: int, choice: int) -> bytes:
        return self._head + _five_bytes(sequence) + self._tails[choice % FILTERS]

    def unsubscribe(self, sequence: int, target: int) -> bytes:
        numbers = _five_bytes(sequence) + self._between + _five_bytes(target)
        return self._removal + numbers + self._removal_tail


class Churner(RawPeer):
    """One session with a window of requests. `answered` counts completed ones; any other answer is
    an error."""

    going = False
    answered = requested = 0
    place = 0
    requests: EncodedRequests

    async def greet(self, place: int, requests: EncodedRequests) -> None:
        self.place, self.requests = place * FILTERS // 7, requests
        self.say(ClientHello(PROTOCOL_VERSION, f"bench-churn-{place}"))
        await self.next_news()

    def start(self) -> None:
        self.going = True
        self._fill()

    async def stop(self) -> None:
        self.going = False
        while self.answered < self.requested or self.trouble:
            await self.next_news()

    def frames(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            if body.startswith(_DONE_START):
                self.answered += 1
            else:
                self.hear(decode(body))
        self.news.set()
        if self.going:
            self._fill()

    def hear(self, frame: Frame) -> None:
        if isinstance(frame, Done):
            self.answered += 1
        elif not isinstance(frame, Welcome | Beat):
            self.trouble = f"the broker said {frame}"

    def _fill(self) -> None:
        """Odd requests subscribe; even ones remove an old subscription."""
        bodies = []
        until = self.answered + REQUESTS
        for sequence in range(self.requested + 1, until + 1):
            target = sequence - 2 * IN_FORCE + 1
            if sequence % 2 or target <= 0:
                bodies.append(self.requests.subscribe(sequence, self.place + sequence))
            else:
                bodies.append(self.requests.unsubscribe(sequence, target))
        if bodies:
            self.requested = until
            self.connection.send(bodies)


async def churn(url: str, pid: int, clients: int, seconds: float) -> dict[str, float]:
    """Operations per second, as fast as the broker allows, and its CPU time for each."""
    requests = EncodedRequests()
    crowd = [await connected(Churner, url) for _ in range(clients)]
    for place, client in enumerate(crowd):
        await client.greet(place, requests)
    beating = asyncio.create_task(_beat(crowd))
    settle_memory()

    async def answered_within(seconds: float) -> int:
        before = sum(client.answered for client in crowd)
        for client in crowd:
            client.start()
        await asyncio.sleep(seconds)
        for client in crowd:
            client.going = False
        for client in crowd:
            await client.stop()
        return sum(client.answered for client in crowd) - before

    warm = await answered_within(seconds / 5)
    cpu, began = cpu_s(pid), time.perf_counter()
    operations = await answered_within(seconds)
    took_s, cpu = time.perf_counter() - began, cpu_s(pid) - cpu
    beating.cancel()
    return {
        "operations_per_s": operations / took_s,
        "cpu_us_per_operation": cpu / operations * 1e6,
        "answered": warm + operations,
    }
