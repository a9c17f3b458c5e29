"""A publisher moves, and leaves events behind that some subscriber still needs: one that is slow,
away, or cut off from one of the two logs. Nobody stops the move, and all get events in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import motet
from motet.client.local import LocalOverlay
from motet.client.subscription import LAG_S
from motet.runtime.pubend.pubend_log import PubendLog
from motet.runtime.pubend.retention import Retention
from tests.waiting import PATIENCE_S, eventually

SPACE = "n > 0"
MOVE_S = 30.0


async def publish(client: motet.Client, first: int, last: int) -> None:
    await client.publish_many([motet.Event({"n": n}, b"x" * 50) for n in range(first, last + 1)])


async def take(events: motet.Subscription, count: int) -> list[object]:
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(events))["n"] for _ in range(count)]


def numbers(first: int, last: int) -> list[object]:
    return list(range(first, last + 1))


def residues(overlay: LocalOverlay, broker: str) -> list[str]:
    found: list[str] = overlay.status()[broker]["moves"]["residues"]
    return found


async def leave_after(overlay: LocalOverlay, name: str, broker: str) -> None:
    """A durable client subscribes, and its process ends."""
    client = await overlay.connect(name, broker=broker, durable=True)
    await client.subscribe(SPACE, name="all")
    await client.close()


async def come_back(
    overlay: LocalOverlay, name: str, broker: str
) -> tuple[motet.Client, motet.Subscription]:
    client = await overlay.connect(name, broker=broker, durable=True)
    assert client.session.resumed
    (events,) = client.subscriptions
    return client, events


@pytest.mark.parametrize("durability", ["volatile", "fsync"])
async def test_a_subscriber_that_is_away_does_not_stop_a_move(
    tmp_path: Path, durability: str
) -> None:
    """Its publisher moves in a circle, back to the first broker, and leaves a residue at each."""
    settings = {"data": tmp_path} if durability == "fsync" else {}
    async with motet.local(3, **settings) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        await alice.advertise(SPACE)
        await leave_after(overlay, "bob", "B2")
        here = await (await overlay.connect("carol", broker="B3")).subscribe(SPACE)
        await publish(alice, 1, 10)
        for n, broker in enumerate(("B2", "B3", "B1"), 1):
            await alice.move(broker, timeout=MOVE_S)
            await publish(alice, 10 * n + 1, 10 * n + 10)
        assert await take(here, 40) == numbers(1, 40)
        for broker in ("B2", "B3"):
            assert residues(overlay, broker) == ["alice"]
        bob, events = await come_back(overlay, "bob", "B2")
        assert await take(events, 40) == numbers(1, 40)
        await bob.close()
        await eventually(lambda: not any(residues(overlay, b) for b in ("B1", "B2", "B3")))


async def test_a_slow_subscriber_does_not_stop_a_move() -> None:
    async with motet.local(3) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        await alice.advertise(SPACE)
        bob = await overlay.connect("bob", broker="B3")
        events = await bob.subscribe(SPACE)
        await publish(alice, 1, 300)
        assert await take(events, 1) == [1]
        await alice.move("B2", timeout=MOVE_S)
        await publish(alice, 301, 600)
        assert residues(overlay, "B1") == ["alice"]
        assert await take(events, 599) == numbers(2, 600)
        await eventually(lambda: not residues(overlay, "B1"))


async def test_a_publisher_with_a_full_window_moves() -> None:
    async with motet.local(3) as overlay:
        bob = await overlay.connect("bob", broker="B2")
        events = await bob.subscribe(SPACE)
        alice = await overlay.connect("alice", broker="B1", window=3)
        await alice.advertise(SPACE)
        publishing = asyncio.ensure_future(publish(alice, 1, 600))
        full = 0
        for broker in ("B3", "B2", "B1", "B3"):
            await eventually(lambda: alice.session.unsettled == 3 or publishing.done())
            full += alice.session.unsettled == 3
            await alice.move(broker, timeout=MOVE_S)
            assert alice.broker == broker
        await publishing
        assert full
        assert await take(events, 600) == numbers(1, 600)
        assert alice.session.unsettled == 0


async def test_a_log_that_keeps_only_what_is_owed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`history = "0s"`: what everybody has acknowledged is gone, but not what a subscriber that has
    moved is owed in the log of a publisher that has moved, too."""
    make: Callable[..., None] = PubendLog.__init__

    def in_small_parts(log: PubendLog, *args: Any, **options: Any) -> None:
        make(log, *args, **{**options, "segment_bytes": 1024})

    monkeypatch.setattr(PubendLog, "__init__", in_small_parts)
    async with motet.local(3, data=tmp_path, retention=Retention()) as overlay:

        def first_tick() -> int:
            tick: int = overlay.status()["B1"]["pubend"]["first_tick"]
            return tick

        alice = await overlay.connect("alice", broker="B1")
        await alice.advertise(SPACE)
        here = await (await overlay.connect("carol", broker="B3")).subscribe(SPACE)
        bob = await overlay.connect("bob", broker="B2")
        events = await bob.subscribe(SPACE)
        for n in range(1, 101, 10):  # a subscriber acknowledges whole batches
            await publish(alice, n, n + 9)
        began = first_tick()
        assert await take(events, 50) == numbers(1, 50)
        assert await take(here, 100) == numbers(1, 100)
        await eventually(lambda: first_tick() > began)
        await bob.move("B3", timeout=MOVE_S)
        await alice.move("B2", timeout=MOVE_S)
        await publish(alice, 101, 150)
        assert await take(here, 50) == numbers(101, 150)
        await overlay.stop_broker("B1")
        await overlay.start_broker("B1")
        assert await take(events, 100) == numbers(51, 150)
        await eventually(lambda: not residues(overlay, "B1"))
        kept = first_tick()
        zoe = await overlay.connect("zoe", broker="B1")
        await zoe.advertise("m > 0")
        await zoe.publish_many([motet.Event({"m": 1}, b"x" * 50) for _ in range(50)])
        await eventually(lambda: first_tick() > kept)
        assert bob.session.lost_events == 0


async def test_one_of_two_logs_of_a_publisher_is_down(tmp_path: Path) -> None:
    """A client that needs the log that is down waits, and one that does not is served."""
    async with motet.local(3, data=tmp_path) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        await alice.advertise(SPACE)
        await leave_after(overlay, "bob", "B3")
        here = await (await overlay.connect("carol", broker="B3")).subscribe(SPACE)
        await publish(alice, 1, 10)
        assert await take(here, 10) == numbers(1, 10)
        await alice.move("B2", timeout=MOVE_S)
        await overlay.stop_broker("B1")
        for broker in ("B3", "B2"):  # they remember no events
            await overlay.stop_broker(broker)
            await overlay.start_broker(broker)
        await publish(alice, 11, 20)
        assert await take(here, 10) == numbers(11, 20)
        bob, events = await come_back(overlay, "bob", "B3")
        await asyncio.sleep(5 * LAG_S)
        assert events.buffered == 0
        await overlay.start_broker("B1")
        assert await take(events, 20) == numbers(1, 20)
        assert bob.session.lost_events == 0
