"""Clients move between broker processes while best-effort events flow: if nothing breaks, every
event arrives once and in the order of its publisher."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import motet
from motet.broker.overlay.topology import Topology
from tests.integration.test_moves import PAUSE_S, fleet, tour
from tests.waiting import PATIENCE_S, eventually

MOVES = 20


class Publisher:
    """Publishes numbers, one after the other; each of its kinds of events counts from 1."""

    def __init__(self, client: motet.Client, kinds: Sequence[bool]) -> None:
        self.client = client
        self.name = client.client_id
        self.made = dict.fromkeys(kinds, 0)
        """By kind: are they best-effort events?"""
        self._running = True
        self._work = asyncio.ensure_future(self._publish())

    @staticmethod
    async def begin(address: str, name: str, kinds: Sequence[bool] = (True,)) -> Publisher:
        client = await motet.connect(address, client_id=name)
        await client.advertise(f"by = '{name}'")
        return Publisher(client, kinds)

    async def _publish(self) -> None:
        for kind in cycle(self.made):
            if not self._running:
                return
            self.made[kind] += 1
            event = {"by": self.name, "soft": kind, "n": self.made[kind]}
            await self.client.send(event, best_effort=kind)
            await asyncio.sleep(PAUSE_S)

    async def end(self) -> None:
        self._running = False
        await self._work
        await self.client.flush(timeout=PATIENCE_S)


class Subscriber:
    def __init__(self, client: motet.Client) -> None:
        self.client = client
        self.read: dict[tuple[str, bool], list[int]] = {}
        """By publisher and kind."""
        self._work: asyncio.Future[None] | None = None

    @staticmethod
    async def begin(address: str, name: str) -> Subscriber:
        self = Subscriber(await motet.connect(address, client_id=name))
        self._work = asyncio.ensure_future(self._take(await self.client.subscribe("n > 0")))
        return self

    async def _take(self, events: motet.Subscription) -> None:
        async for event in events:
            whose = (str(event["by"]), bool(event["soft"]))
            self.read.setdefault(whose, []).append(int(str(event["n"])))

    async def has_all(self, publishers: Sequence[Publisher]) -> None:
        """Exactly what they have published, each kind in its order."""
        made = {(p.name, kind): count for p in publishers for kind, count in p.made.items()}
        await eventually(
            lambda: all(self.read.get(which, [0])[-1] >= count for which, count in made.items())
        )
        for which, count in made.items():
            assert self.read[which] == list(range(1, count + 1)), (self.client, which)
        assert self.client.session.lost_events == 0


async def strays(brokers: object) -> dict[str, int]:
    statuses = await brokers.statuses()  # type: ignore[attr-defined]
    kinds = ("sent", "taken", "dropped", "passing", "arriving", "kept_bytes")
    return {kind: sum(status["strays"][kind] for status in statuses.values()) for kind in kinds}


async def test_a_subscriber_moves_while_best_effort_events_flow(tmp_path: Path) -> None:
    """Publishers are on both sides, and on the path; another subscriber stays."""
    async with fleet(tmp_path, Topology.line(3)) as brokers:
        where = brokers.addresses
        bob = await Subscriber.begin(where["B3"], "bob")
        carol = await Subscriber.begin(where["B2"], "carol")
        publishers = [await Publisher.begin(where[at], f"at-{at}") for at in ("B1", "B2", "B3")]
        await tour(bob.client, *["B1", "B3", "B2", "B3"] * (MOVES // 4))
        for each in publishers:
            await each.end()
        await bob.has_all(publishers)
        await carol.has_all(publishers)
        found = await strays(brokers)
        assert found | {"dropped": 0, "passing": 0, "arriving": 0, "kept_bytes": 0} == found
        assert found["taken"] > 0
        for client in (bob.client, carol.client, *(each.client for each in publishers)):
            await client.close()


async def test_publishers_and_subscribers_move_at_once(tmp_path: Path) -> None:
    """One publisher has best-effort events only, one has both kinds in turn."""
    async with fleet(tmp_path, Topology.star(4)) as brokers:
        where = brokers.addresses
        bob = await Subscriber.begin(where["B3"], "bob")
        carol = await Subscriber.begin(where["B2"], "carol")
        alice = await Publisher.begin(where["B1"], "alice")
        dave = await Publisher.begin(where["B4"], "dave", (True, False))
        await asyncio.gather(
            tour(bob.client, *["B1", "B4", "B2", "B3"] * (MOVES // 4)),
            tour(alice.client, *["B2", "B3", "B4", "B1"] * (MOVES // 4)),
            tour(dave.client, *["B3", "B1", "B2", "B4"] * (MOVES // 4)),
        )
        for each in (alice, dave):
            await each.end()
        await bob.has_all([alice, dave])
        await carol.has_all([alice, dave])
        for client in (bob.client, carol.client, alice.client, dave.client):
            await client.close()
