"""Exactly once, as applications see it: connections break, brokers die, readers are slow."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import motet
from motet import Client, Subscription
from motet.client.subscription import LAG_S
from motet.protocol.delivery.stream import Limits
from tests.integration.durable_broker import DurableBroker
from tests.waiting import PATIENCE_S, POLL_S, eventually

EVENTS = 3000
SPACE = "step > 0"


async def take(subscription: Subscription, count: int) -> list[object]:
    """So many events, and proof that no other follows them at once."""
    async with asyncio.timeout(2 * PATIENCE_S):
        found = [(await anext(subscription))["step"] for _ in range(count)]
    await asyncio.sleep(5 * LAG_S)
    assert subscription.buffered == 0
    return found


async def publish(client: Client, first: int, last: int, pause_every: int = 50) -> None:
    """All of them acknowledged, whatever happens meanwhile."""
    for step in range(first, last + 1):
        await client.send({"step": step})
        if step % pause_every == 0:
            await asyncio.sleep(POLL_S)  # so that it takes as long as what happens meanwhile
    await client.flush(timeout=2 * PATIENCE_S)


async def more(subscription: Subscription, publishing: asyncio.Future[None]) -> None:
    """Wait until some more has come, if there is more to come."""
    before = subscription.buffered
    await eventually(lambda: subscription.buffered > before or publishing.done())


def cut(client: Client) -> None:
    line = client._driver._line
    if line is not None:
        line.connection.abort("cut by the test")


@asynccontextmanager
async def trouble(*makers: object, seed: int = 0) -> AsyncIterator[None]:
    """Calls one of these functions every now and then."""
    chance = random.Random(seed)

    async def go_on() -> None:
        while True:
            await asyncio.sleep(chance.uniform(0.01, 0.1))
            maker = chance.choice(makers)
            assert callable(maker)
            result = maker()
            if asyncio.iscoroutine(result):
                await result

    task = asyncio.ensure_future(go_on())
    try:
        yield
    finally:
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError)


# ── what events say of themselves ────────────────────────────────────────────────────────


async def test_an_event_has_its_place_in_the_stream_unless_it_is_best_effort() -> None:
    async with motet.local(2) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        bob = await overlay.connect("bob", broker="B2")
        hasty = await overlay.connect("hasty", broker="B1", best_effort=True)
        await alice.advertise(SPACE)
        await hasty.advertise(SPACE)
        subscription = await bob.subscribe(SPACE)

        async def placed(publisher: Client, **options: bool) -> bool:
            await publisher.publish({"step": 1}, **options)  # type: ignore[arg-type]
            event = await asyncio.wait_for(anext(subscription), PATIENCE_S)
            assert (event.pubend is None) == (event.tick is None)
            return event.tick is not None

        assert await placed(alice)
        assert not await placed(alice, best_effort=True)
        assert not await placed(hasty)
        assert await placed(hasty, best_effort=False)


async def test_cursors_follow_the_application() -> None:
    async with motet.local(2) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        bob = await overlay.connect("bob", broker="B2")
        await alice.advertise(SPACE)
        subscription = await bob.subscribe(SPACE)
        await publish(alice, 1, 3)
        first, second = [await asyncio.wait_for(anext(subscription), PATIENCE_S) for _ in range(2)]
        assert first.pubend is not None
        assert first.tick is not None
        assert second.tick is not None
        assert first.pubend == second.pubend
        assert first.tick <= bob.session.cursors[first.pubend] < second.tick


def test_the_same_without_await() -> None:
    with motet.local_sync(2) as overlay:
        alice = overlay.connect("alice", broker="B1")
        bob = overlay.connect("bob", broker="B2")
        alice.advertise(SPACE)
        subscription = bob.subscribe(SPACE)
        # More than the broker sends ahead: it goes on only because it hears what is done with.
        count = 2 * Limits().window_events
        for step in range(1, count + 1):
            alice.send({"step": step}, best_effort=step % 1000 == 0)
        alice.flush(timeout=PATIENCE_S)
        steps: dict[bool, list[object]] = {True: [], False: []}
        for _ in range(count):
            event = subscription.get(timeout=PATIENCE_S)
            steps[event.tick is None].append(event["step"])
        assert steps[True] == [step for step in range(1, count + 1) if step % 1000 == 0]
        assert steps[False] == [step for step in range(1, count + 1) if step % 1000]
        assert (subscription.dropped, subscription.lost, bob.session.lost_events) == (0, 0, 0)
        assert len(bob.session.cursors) == 1


# ── slow readers ─────────────────────────────────────────────────────────────────────────


async def test_a_reader_that_pauses_holds_the_stream_back_and_loses_nothing() -> None:
    window = Limits().window_events
    async with motet.local(2) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        bob = await overlay.connect("bob", broker="B2")
        eve = await overlay.connect("eve", broker="B2")
        await alice.advertise(SPACE)
        slow = await bob.subscribe(SPACE, buffer=10)
        quick = await eve.subscribe(SPACE)
        reading = asyncio.ensure_future(take(quick, 3 * window))
        await publish(alice, 1, 3 * window, pause_every=1000)
        assert await reading == list(range(1, 3 * window + 1))
        # The others did not wait for this one. The broker counts in batches.
        assert slow.buffered < 2 * window
        assert await take(slow, 3 * window) == list(range(1, 3 * window + 1))
        assert (slow.dropped, slow.lost, bob.session.dropped_by_broker) == (0, 0, 0)


# ── connections ──────────────────────────────────────────────────────────────────────────


async def test_connections_break_on_both_sides_and_every_event_arrives_once() -> None:
    async with motet.local(3) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        bob = await overlay.connect("bob", broker="B3")
        await alice.advertise(SPACE)
        subscription = await bob.subscribe(SPACE)
        second = await bob.subscribe("step > 1000")
        async with trouble(lambda: cut(alice), lambda: cut(bob)):
            await publish(alice, 1, EVENTS)
        assert await take(subscription, EVENTS) == list(range(1, EVENTS + 1))
        assert await take(second, EVENTS - 1000) == list(range(1001, EVENTS + 1))
        assert (alice.session.lost_sessions, bob.session.lost_sessions) == (0, 0)


# ── brokers ──────────────────────────────────────────────────────────────────────────────


async def test_the_only_broker_is_killed_again_and_again(tmp_path: Path) -> None:
    async with (
        DurableBroker(tmp_path) as broker,
        motet.connect(broker.address, client_id="alice") as alice,
        motet.connect(broker.address, client_id="bob") as bob,
    ):
        await alice.advertise(SPACE)
        subscription = await bob.subscribe(SPACE)
        publishing = asyncio.ensure_future(publish(alice, 1, EVENTS))
        for _ in range(4):
            await more(subscription, publishing)
            broker.kill()
            await broker.start()
        await publishing
        assert await take(subscription, EVENTS) == list(range(1, EVENTS + 1))
        assert (alice.session.lost_sessions, bob.session.lost_sessions) == (0, 0)


async def test_brokers_of_a_line_are_killed_in_turn(tmp_path: Path) -> None:
    first, middle, last = (
        DurableBroker(tmp_path, name, "--heartbeat", "0.5") for name in ("B1", "B2", "B3")
    )
    first.options += ("--link", "B2")
    middle.options += ("--link", f"B1={first.address}", "--link", "B3")
    last.options += ("--link", f"B2={middle.address}")
    async with first, middle, last:
        for broker in (first, middle, last):
            await broker.links_up()
        async with (
            motet.connect(first.address, client_id="alice") as alice,
            motet.connect(last.address, client_id="bob") as bob,
        ):
            await alice.advertise(SPACE)
            subscription = await bob.subscribe(SPACE)
            publishing = asyncio.ensure_future(publish(alice, 1, EVENTS))
            for broker in (middle, last, first, middle):
                await more(subscription, publishing)
                broker.kill()
                await broker.start()
            await publishing
            assert await take(subscription, EVENTS) == list(range(1, EVENTS + 1))
            assert (alice.session.lost_sessions, bob.session.lost_sessions) == (0, 0)
