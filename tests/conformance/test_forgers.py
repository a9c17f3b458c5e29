"""Forgers on the subjects of a service: streams of others go on, in order, and lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from motet.ordering import OrderingClient, connect
from motet.ordering.envelope import MARK, MOST_EVENTS, header_of, seal
from motet.protocol.sequencing.messages import LAST_NUMBER, Timestamp
from tests.conformance.service_suite import Member, member, topic_of
from tests.servers import NatsServer
from tests.unit.ordering.line import RunningLine, running_line
from tests.waiting import PATIENCE_S, eventually

ROUNDS = 3
EVENTS = 10
GIANT = MOST_EVENTS // 2
KEY = b"a secret of publishers"


class Scene(NamedTuple):
    """What a forger knows: two topics, the last number of the first one, and streams."""

    topic: int
    other: int
    last: int
    streams: tuple[str, ...]

    def stamp(self, ahead: int, *entries: int, gone: tuple[str, ...] = ()) -> Timestamp:
        return Timestamp(self.topic, self.last + ahead, entries, gone)


def stamped(*stamps: Timestamp) -> bytes:
    return seal(stamps, [b"forged"] * len(stamps))


ATTACKS: dict[str, Callable[[Scene], bytes]] = {
    "a number above the last one": lambda at: stamped(at.stamp(2)),
    "a huge number": lambda at: stamped(Timestamp(at.topic, LAST_NUMBER - 1)),
    "an entry that is far ahead": lambda at: stamped(at.stamp(1, at.other, at.last + 10**6)),
    "numbers that wait for each other": lambda at: stamped(
        at.stamp(1, at.other, at.last + 1), at.stamp(2)
    ),
    "streams that have expired": lambda at: stamped(at.stamp(1, gone=at.streams)),
    "many rivals": lambda at: stamped(
        *(at.stamp(1, at.other, at.last + 100 + each) for each in range(5))
    ),
    "a giant batch": lambda at: stamped(*(at.stamp(2 + each) for each in range(GIANT))),
    "another topic": lambda at: stamped(Timestamp(at.topic + 1000, at.last + 1)),
    "number 0": lambda at: stamped(Timestamp(at.topic, 0)),
    "a negative number": lambda at: stamped(Timestamp(at.topic, -5)),
    "bytes that are cut off": lambda at: stamped(at.stamp(1))[:-3],
    "no bytes": lambda _: MARK,
}
COUNTS = {"numbers that wait for each other": 2, "many rivals": 5, "a giant batch": GIANT}
"""Of forged events in a message, if it is not one."""


@pytest.fixture(params=["memory", "nats"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "memory":
        yield f"memory://{topic_of('forgers')}"
        return
    server = NatsServer(tmp_path)
    await asyncio.to_thread(server.start)
    try:
        yield server.url
    finally:
        await asyncio.to_thread(server.kill)


@pytest.fixture
async def line() -> AsyncIterator[RunningLine]:
    async with running_line("a") as made:
        yield made


@pytest.fixture
async def forger(url: str) -> AsyncIterator[Member]:
    async with member(url) as made:
        yield made


async def publish(client: OrderingClient) -> list[bytes]:
    """Some events of both topics, one after the other."""
    payloads = [b"%d" % number for number in range(EVENTS)]
    for number, payload in enumerate(payloads):
        await client.publish(("orders", "prices")[number % 2], payload)
    return payloads


@pytest.mark.parametrize("what", ATTACKS)
async def test_a_forger_neither_stalls_nor_kills_streams(
    what: str, url: str, line: RunningLine, forger: Member
) -> None:
    where: dict[str, Any] = {"sequencer": line.address, "patience": 0.02}
    async with (
        connect(url, **where) as alice,
        connect(url, **where) as bob,
        alice.subscribe("orders", "prices") as one,
        bob.subscribe("prices", "orders") as other,
    ):
        owed: list[bytes] = []
        for made in range(1, ROUNDS + 1):
            owed += await publish(alice)
            ids, last = alice.machine.ids, len(owed) // 2
            scene = Scene(ids["orders"], ids["prices"], last, (one.id, other.id))
            await forger.service.publish("orders", ATTACKS[what](scene))
            count = made * COUNTS.get(what, 1)
            await eventually(lambda count=count: one.forged == other.forged == count)
        owed += await publish(bob)
        for stream in (one, other):
            seen = [await stream.get(PATIENCE_S) for _ in owed]
            assert [each.payload for each in seen] == owed
            assert not any(each.late for each in seen)
            assert (stream.gaps, stream.lost, stream.buffered) == (0, 0, 0)
        assert alice.foreign_events == 0
        core = line.drivers["a"].core
        assert core.counts.expelled == {}, "the site has nothing against honest clients"  # type: ignore[attr-defined]


async def test_a_key_keeps_forgers_out_who_know_all_numbers(
    url: str, line: RunningLine, forger: Member
) -> None:
    where: dict[str, Any] = {"sequencer": line.address, "key": KEY}
    async with (
        connect(url, **where) as alice,
        connect(url, headers=True, **where) as bob,
        bob.subscribe("orders", "prices") as stream,
    ):
        owed: list[bytes] = []
        for client in (alice, bob):
            topic, last = alice.machine.ids.get("orders", 0), len(owed) // 2
            stamp = Timestamp(topic, last + 1)
            await forger.service.publish("orders", seal([stamp], [b"forged"]))
            await forger.service.publish("orders", seal([stamp], [b"forged"], KEY[::-1]))
            await forger.service.publish("orders", b"forged", header_of(stamp, b"forged"))
            owed += await publish(client)
        assert [(await stream.get(PATIENCE_S)).payload for _ in owed] == owed
        await eventually(lambda: stream.forged == bob.forged_events == 6)
        assert bob.foreign_events == 0
