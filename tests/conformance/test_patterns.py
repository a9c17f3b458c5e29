"""Many subjects under one topic, at real services that have patterns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from motet.ordering import Topic, connect
from tests.servers import NatsServer
from tests.unit.ordering.line import running_line
from tests.waiting import PATIENCE_S


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[str]:
    server = NatsServer(tmp_path)
    await asyncio.to_thread(server.start)
    try:
        yield server.url
    finally:
        await asyncio.to_thread(server.kill)


async def test_subjects_of_nats_are_one_topic_with_one_count(nats: str) -> None:
    orders = Topic("orders", pattern="orders.>")
    async with (
        running_line("a") as line,
        connect(nats, sequencer=line.address) as one,
        connect(nats, sequencer=line.address) as two,
        one.subscribe(orders, "orders.west") as first,
        two.subscribe(orders, "orders.west") as second,
    ):
        for at in range(10):
            region = ("north", "west")[at % 2]
            await one.publish("orders", b"", subject=f"orders.{region}")
            await two.publish("orders.west", b"")
        seen = [
            [(each.topic, each.number) for each in [await s.get(PATIENCE_S) for _ in range(20)]]
            for s in (first, second)
        ]
        assert seen[0] == seen[1]
        assert [n for topic, n in seen[0] if topic == "orders"] == list(range(1, 11))
        assert first.buffered == 0
        assert one.foreign_events == 0
