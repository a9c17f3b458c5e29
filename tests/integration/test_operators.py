"""What operators do to a live overlay under exactly-once traffic, which nobody else notices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import motet
from motet.client.channel import ask
from motet.fleet.spread import is_even
from tests.integration.test_overlay_changes import Overlay, Told, command, running
from tests.waiting import PATIENCE_S, eventually

BROKERS = 4


class Traffic:
    """At each broker a publisher and two subscribers, one of them durable, of all events; and one
    durable subscriber of B3, the visitor, that is away most of the time."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay
        self.publishers: dict[str, motet.Client] = {}
        self.subscribers: dict[str, motet.Client] = {}
        self.subscriptions: dict[str, motet.Subscription] = {}
        self.epochs: dict[str, str] = {}
        self.published: dict[str, int] = {}
        self.received: dict[str, dict[str, int]] = {}
        """By subscriber and publisher: the last event, after all earlier ones."""
        self.publishing = True
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Traffic:
        for name in self.overlay.topology.names:
            publisher = await self._connect(f"publisher-{name}", name, durable=name != "B1")
            await publisher.advertise("n > 0")
            self.publishers[publisher.client_id] = publisher
            for kind, durable in (("live", False), ("kept", True)):
                await self._subscribe(f"{kind}-{name}", name, durable)
        await self._subscribe("visitor", "B3", True)
        await self.subscribers["visitor"].close()
        for name, publisher in self.publishers.items():
            self._tasks.append(asyncio.create_task(self._publish(name, publisher)))
        for name, subscription in self.subscriptions.items():
            if name != "visitor":
                self._tasks.append(asyncio.create_task(self._receive(name, subscription)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def _connect(self, name: str, broker: str, durable: bool) -> motet.Client:
        client = await motet.connect(self.overlay.url(broker), client_id=name, durable=durable)
        await self._stack.enter_async_context(client)
        assert client.session.epoch == self.epochs.setdefault(name, client.session.epoch)
        return client

    async def _subscribe(self, name: str, broker: str, durable: bool) -> None:
        client = await self._connect(name, broker, durable)
        self.subscribers[name] = client
        self.subscriptions[name] = await client.subscribe("n > 0")
        self.received.setdefault(name, {})

    async def _publish(self, name: str, client: motet.Client) -> None:
        while self.publishing:
            n = self.published[name] = self.published.get(name, 0) + 1
            await client.send({"from": name, "n": n})
            await asyncio.sleep(0.01)
        await client.flush()

    async def _receive(self, name: str, subscription: motet.Subscription) -> None:
        async for event in subscription:
            self._take(name, event)

    def _take(self, name: str, event: motet.Event) -> None:
        received, sender = self.received[name], str(event["from"])
        assert event["n"] == received.get(sender, 0) + 1, f"{name}: {event} after {received}"
        received[sender] = event["n"]

    def check(self) -> None:
        """So far no session is lost, and nothing is missing, doubled or out of order."""
        for task in self._tasks:
            assert not task.done() or task.exception() is None, task.exception()
        for client in (*self.publishers.values(), *self.subscribers.values()):
            assert client.session.epoch == self.epochs[client.client_id]
            assert client.session.lost_sessions == 0

    # ── the one that is away ─────────────────────────────────────────────────────────────

    async def visit(self, broker: str, upto: dict[str, int]) -> str:
        """Come to that broker, read up to there, and leave. Returns the broker of the session."""
        await self._subscribe("visitor", broker, True)
        client, subscription = self.subscribers["visitor"], self.subscriptions["visitor"]
        assert client.session.resumed
        received = self.received["visitor"]
        async with asyncio.timeout(PATIENCE_S):
            while any(received.get(name, 0) < n for name, n in upto.items()):
                self._take("visitor", await anext(subscription))
        home = client.broker
        await client.close()
        return home

    async def finish(self) -> None:
        """Stop, and wait until every subscriber has every event."""
        self.publishing = False
        await asyncio.gather(*self._tasks[: len(self.publishers)])
        others = [name for name in self.received if name != "visitor"]
        await eventually(lambda: all(self.received[name] == self.published for name in others))
        self.check()


@pytest.fixture
async def traffic(tmp_path: Path) -> AsyncIterator[Traffic]:
    async with running(Overlay(tmp_path, BROKERS)) as overlay, Traffic(overlay) as traffic:
        yield traffic


async def counts(overlay: Overlay) -> dict[str, int]:
    places = overlay.topology.brokers
    return {place.name: (await ask(place.listen))["session_count"] for place in places}


def answer(told: Told, status: int = 0) -> Any:
    assert told.status == status, told.err
    return json.loads(told.out)


async def test_nobody_notices_a_drain_a_rebalance_and_restarts(traffic: Traffic) -> None:
    overlay = traffic.overlay
    file = str(overlay.file)
    # Given traffic at all brokers, and a durable subscriber of B3 that is away
    await eventually(lambda: min(traffic.published.values()) > 20)

    # When B3 is drained
    told = await command("drain", file, "B3", "--timeout", "3", "--json")
    # Then all its clients are elsewhere, also the one that is away; for that one its log is kept
    report = answer(told, 1)
    assert set(report["moved"]) == {"publisher-B3", "live-B3", "kept-B3", "visitor"}
    assert (report["left"], report["stay"], report["away"]) == (0, {}, ["visitor"])
    assert report["log_owed"]
    assert "error: B3 is not empty: events of its log not acknowledged yet" in told.err
    assert (await counts(overlay))["B3"] == 0
    traffic.check()
    # And when that one has come to B3, is sent on, and has read everything, B3 is empty
    home = await traffic.visit("B3", dict(traffic.published))
    assert home == report["moved"]["visitor"]
    report = answer(await command("drain", file, "B3", "--json"))
    assert report["was_draining"]
    assert report["empty"]

    # When the clients are evened out again
    answer(await command("drain", file, "B3", "--undo", "--json"))
    plan = answer(await command("rebalance", file, "--dry-run", "--json"))["plan"]
    report = answer(await command("rebalance", file, "--json"))
    # Then it happens as planned, and B3 has its share
    assert report["plan"] == plan
    assert report["even"]
    assert is_even(await counts(overlay))
    traffic.check()

    # When all brokers are restarted, each drained before
    before = await overlay.pids()
    report = answer(await overlay.change("restart", "--drain", "--rebalance"))
    # Then all clients have moved away before, and are spread again
    after = await overlay.pids()
    assert all(after[name] != before[name] for name in before)
    assert all(row["restarted"] and not row["stay"] for row in report["brokers"])
    assert set().union(*(row["moved"] for row in report["brokers"])) == traffic.epochs.keys()
    assert report["rebalance"]["even"]
    assert is_even(await counts(overlay))
    traffic.check()

    # When they are restarted without being drained
    assert (await overlay.change("restart")).status == 0
    # Then nobody has lost a session, or an event; nor has the one that was away
    await traffic.finish()
    await traffic.visit(home, traffic.published)
    assert traffic.received["visitor"] == traffic.published
