"""A crowd of subscriptions behind four neighbours, and a publisher, as one broker sees them.

    python -m motet.bench.crowd URL PID SUBSCRIPTIONS SECONDS

The neighbours speak the link protocol but route nothing: with four real brokers beside it, the
one under test would starve on a small machine. Prints the broker's CPU time per event.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from itertools import cycle
from typing import Any, TypeVar

from msgspec import Raw

from motet.bench import sample
from motet.bench.stand import cpu_s
from motet.errors import UnavailableError
from motet.model import Filter, OpId, as_filter, encode_event
from motet.protocol.frames import PROTOCOL_VERSION, Beat, Frame
from motet.protocol.link.messages import Control, ControlAck, LinkHello, Publications
from motet.protocol.routing.messages import Subscribe
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    Publish,
    Published,
    Status,
    StatusRequest,
)
from motet.runtime.addresses import transport_for
from motet.runtime.clock import fresh_incarnation
from motet.runtime.codec import decode, encode
from motet.runtime.loop import run, settle_memory
from motet.runtime.transport import Connection

NEIGHBOURS = ("N1", "N2", "N3", "N4")
BATCH = 64
WINDOW = 64 * BATCH
CONTROL_CHUNK = 256
PATIENCE_S = 30.0
BEAT_S = 1.0


class Party:
    """Somebody at the other end of a connection to the broker."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.news = asyncio.Event()
        self.gone = ""

    def say(self, *frames: Frame) -> None:
        self.connection.send([encode(frame) for frame in frames])

    def frames(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self.hear(decode(body))
        self.news.set()

    def hear(self, frame: Frame) -> None:
        raise NotImplementedError

    def closed(self, reason: str) -> None:
        self.gone = reason
        self.news.set()

    def writable(self) -> None:
        pass


class Neighbour(Party):
    """Acknowledges control, counts events, forwards nothing."""

    events = 0

    def greet(self, name: str) -> None:
        incarnation = fresh_incarnation()
        self.say(LinkHello(PROTOCOL_VERSION, name, incarnation, known=0, received=0))

    def hear(self, frame: Frame) -> None:
        if isinstance(frame, Publications):
            self.events += len(frame.batch)
        elif isinstance(frame, Control):
            self.say(ControlAck(frame.first + len(frame.messages) - 1))

    def subscribe(self, name: str, filters: Sequence[Filter]) -> None:
        for start in range(0, len(filters), CONTROL_CHUNK):
            chunk = filters[start : start + CONTROL_CHUNK]
            messages = tuple(
                Subscribe(OpId(f"{name}-client", f"{name}-1", number), wanted)
                for number, wanted in enumerate(chunk, start + 1)
            )
            self.say(Control(start + 1, messages))


class Publisher(Party):
    """A client whose window is what the broker has not answered for."""

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
        async with asyncio.timeout(PATIENCE_S):
            while self.state is None:
                await self.next_news()
        return self.state

    async def next_news(self) -> None:
        if self.gone:
            raise UnavailableError(f"the broker closed: {self.gone}")
        self.news.clear()
        await self.news.wait()

    async def pump(self, bodies: list[list[Raw]], seconds: float, first: int) -> int:
        """Publish for so long; returns the number of the last event, which is settled."""
        end = time.perf_counter() + seconds
        sent = first - 1
        source = cycle(bodies)
        while time.perf_counter() < end:
            while sent - self.settled < WINDOW:
                batch = next(source)
                self.say(Publish(sent + 1, batch, sure=False))
                sent += len(batch)
            await self.next_news()
        while self.settled < sent:
            await self.next_news()
        return sent


async def measure(url: str, pid: int, subscriptions: int, seconds: float) -> dict[str, float]:
    neighbours: list[Neighbour] = []
    filters = sample.subscriptions(subscriptions)
    for place, name in enumerate(NEIGHBOURS):
        neighbour = await _connected(Neighbour, url)
        neighbour.greet(name)
        neighbour.subscribe(name, filters[place :: len(NEIGHBOURS)])
        neighbours.append(neighbour)
    publisher = await _connected(Publisher, url)
    publisher.say(ClientHello(PROTOCOL_VERSION, "bench-publisher"))
    publisher.say(AdvertiseRequest(1, as_filter(sample.SPACE), wait=False))
    beating = asyncio.create_task(_beat([*neighbours, publisher]))
    while True:
        state = await publisher.status()
        if state["tables"]["subscriptions"] >= subscriptions:
            break
    bodies = [Raw(encode_event(order, sample.PAYLOAD)) for order in sample.orders(64 * BATCH)]
    batches = [bodies[start : start + BATCH] for start in range(0, len(bodies), BATCH)]
    settle_memory()
    warm = await publisher.pump(batches, seconds / 5, 1)
    await publisher.status()  # everything before it has been read and routed
    cpu, began = cpu_s(pid), time.perf_counter()
    before = sum(n.events for n in neighbours)
    last = await publisher.pump(batches, seconds, warm + 1)
    state = await publisher.status()
    cpu, took_s = cpu_s(pid) - cpu, time.perf_counter() - began
    events = last - warm
    lost = sum(link["lost_publications"] for link in state["links"].values())
    beating.cancel()
    return {
        "cpu_us_per_event": cpu / events * 1e6,
        "events_per_s": events / took_s,
        "hops_per_event": (sum(n.events for n in neighbours) - before) / events,
        "lost": lost + state["dropped_events"] + publisher.refused,
    }


P = TypeVar("P", bound=Party)


async def _connected(kind: type[P], url: str) -> P:
    made: list[P] = []

    def accept(connection: Connection) -> P:
        made.append(kind(connection))
        return made[-1]

    await transport_for(url).connect(url, accept)
    return made[0]


async def _beat(parties: Sequence[Party]) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        for party in parties:
            party.say(Beat())


def main(arguments: Sequence[str]) -> None:
    url, pid, subscriptions, seconds = arguments
    figures = run(measure(url, int(pid), int(subscriptions), float(seconds)))
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
