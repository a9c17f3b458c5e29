"""One order across topics over each real service: subscribers that combine topics agree."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import motet
from motet import ordering
from tests.servers import JetStreamServer, Mosquitto, NatsServer, RedisServer, Server
from tests.waiting import PATIENCE_S

TOPICS = ("orders", "prices")
EVENTS = 200


@pytest.mark.parametrize(
    "kind", [NatsServer, JetStreamServer, Mosquitto, RedisServer], ids=lambda kind: kind.__name__
)
async def test_subscribers_of_two_topics_get_one_order(kind: type[Server], tmp_path: Path) -> None:
    server = kind(tmp_path)
    server.start()
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            motet.local(ordering=True) as overlay,
            ordering.connect(server.url, sequencer=overlay.sequencer) as one,
            ordering.connect(server.url, sequencer=overlay.sequencer) as two,
            one.subscribe(*TOPICS) as first,
            two.subscribe(*TOPICS) as second,
        ):

            async def publish(client: ordering.OrderingClient, name: str) -> None:
                for number in range(EVENTS):
                    topic = TOPICS[number % len(TOPICS)]
                    await client.publish(topic, f"{name} {number}".encode())

            async def read(stream: ordering.OrderedStream) -> list[tuple[str, bytes]]:
                found: list[tuple[str, bytes]] = []
                async for event in stream:
                    assert not event.late
                    found.append((event.topic, event.payload))
                    if len(found) == 2 * EVENTS:
                        break
                return found

            seen, other, _, _ = await asyncio.gather(
                read(first), read(second), publish(one, "one"), publish(two, "two")
            )
    finally:
        server.stop()
    assert seen == other
    for name in ("one", "two"):
        own = [body for _, body in seen if body.startswith(name.encode())]
        assert own == [f"{name} {number}".encode() for number in range(EVENTS)]
