"""Clients move between broker processes while events flow, and while brokers are killed: every
event arrives once and in the order of its publisher."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

import motet
from motet.broker.overlay.topology import Topology
from motet.client.channel import RequestChannel
from motet.errors import (
    MoveRefused,
    NoAnswer,
    NotEffective,
)
from motet.fleet.fleet import Fleet
from motet.fleet.process import free_addresses
from motet.protocol.mobility.messages import MoveOrder, MoveOrdered
from tests.waiting import PATIENCE_S, POLL_S, eventually

MOVE_S = 30.0
"""Longer than a killed broker needs to come back."""
PAUSE_S = 0.001
"""Between two events of a publisher."""


@asynccontextmanager
async def fleet(folder: Path, topology: Topology) -> AsyncIterator[Fleet]:
    listen = free_addresses(len(topology.brokers))
    places = tuple(
        dataclasses.replace(place, listen=address)
        for place, address in zip(topology.brokers, listen, strict=True)
    )
    topology = dataclasses.replace(topology, brokers=places, heartbeat_s=0.5)
    async with Fleet(topology, folder) as started:
        yield started


class Publisher:
    """Publishes numbers, one after the other, until it is told to stop."""

    def __init__(self, client: motet.Client) -> None:
        self.client = client
        self.name = client.client_id
        self.made = 0
        self._running = True
        self._work = asyncio.ensure_future(self._publish())

    @staticmethod
    async def begin(address: str, name: str) -> Publisher:
        client = await motet.connect(address, client_id=name)
        await client.advertise(f"by = '{name}'")
        return Publisher(client)

    async def _publish(self) -> None:
        while self._running:
            self.made += 1
            await self.client.send({"by": self.name, "n": self.made})
            await asyncio.sleep(PAUSE_S)

    async def end(self) -> None:
        """Returns when everything is durable."""
        self._running = False
        await self._work
        await self.client.flush(timeout=PATIENCE_S)
        assert self.client.session.unsettled == 0


class Subscriber:
    def __init__(self, client: motet.Client) -> None:
        self.client = client
        self.read: dict[str, list[int]] = {}
        """By publisher."""
        self.doubled: list[tuple[str, int]] = []
        self._work: asyncio.Future[None] | None = None

    @staticmethod
    async def begin(address: str, name: str) -> Subscriber:
        self = Subscriber(await motet.connect(address, client_id=name))
        self._work = asyncio.ensure_future(self._take(await self.client.subscribe("n > 0")))
        return self

    async def _take(self, events: motet.Subscription) -> None:
        async for event in events:
            self.read.setdefault(str(event["by"]), []).append(int(str(event["n"])))

    async def has_all(self, publishers: Sequence[Publisher]) -> None:
        """Exactly what they have published, each in its order."""
        await eventually(lambda: all(len(self.read.get(p.name, ())) >= p.made for p in publishers))
        for each in publishers:
            assert self.read[each.name] == list(range(1, each.made + 1)), self.client
        assert self.client.session.lost_sessions == 0
        assert self.client.session.lost_events == 0


async def tour(client: motet.Client, *stations: str, timeout: float = MOVE_S) -> None:
    for broker in stations:
        epoch = client.session.epoch
        await client.move(broker, timeout=timeout)
        assert (client.broker, client.session.epoch) == (broker, epoch)


async def close(*ends: Publisher | Subscriber) -> None:
    await asyncio.gather(*(each.client.close() for each in ends))


async def test_a_publisher_and_a_subscriber_move_back_and_forth(tmp_path: Path) -> None:
    async with fleet(tmp_path, Topology.line(3)) as brokers:
        where = brokers.addresses
        bob = await Subscriber.begin(where["B3"], "bob")
        carol = await Subscriber.begin(where["B2"], "carol")
        alice = await Publisher.begin(where["B1"], "alice")
        await asyncio.gather(
            tour(alice.client, "B3", "B1", "B2", "B3", "B2", "B1"),
            tour(bob.client, "B1", "B3", "B2", "B1", "B2", "B3"),
        )
        await alice.end()
        assert alice.made > 12
        await bob.has_all([alice])
        await carol.has_all([alice])
        statuses = await brokers.statuses()
        moved = {name: status["moves"]["done"] for name, status in statuses.items()}
        assert sum(moved.values()) == 12
        await close(alice, bob, carol)
        await eventually(lambda: nothing_is_left(brokers))


async def nothing_is_left(brokers: Fleet) -> bool:
    """No broker keeps anything of a client, or of a move."""
    found = await brokers.statuses()
    return all(
        not status["session_count"]
        and not status["tables"]["advertisements"]
        and not status["tables"]["subscriptions"]
        and not status["moves"]["in_transit"]
        for status in found.values()
    )


async def test_many_clients_move_at_once(tmp_path: Path) -> None:
    """Six publishers and six subscribers, everybody three times, through one broker."""
    async with fleet(tmp_path, Topology.star(4)) as brokers:
        where, names = brokers.addresses, list(brokers.addresses)
        chance = Random(4)
        homes = [chance.choice(names) for _ in range(12)]
        subscribers = [await Subscriber.begin(where[homes[n + 6]], f"s{n}") for n in range(6)]
        publishers = [await Publisher.begin(where[homes[n]], f"p{n}") for n in range(6)]
        tours = []
        for each, home in zip([*publishers, *subscribers], homes, strict=True):
            at, stations = home, []
            for _ in range(3):
                at = chance.choice([name for name in names if name != at])
                stations.append(at)
            tours.append(tour(each.client, *stations))
        await asyncio.gather(*tours)
        for publisher in publishers:
            await publisher.end()
        for subscriber in subscribers:
            await subscriber.has_all(publishers)
        await close(*publishers, *subscribers)


# ── brokers die ──────────────────────────────────────────────────────────────────────────


async def attempt(client: motet.Client, to: str) -> str:
    """The end of a move: "done", or the error's name."""
    try:
        await client.move(to, timeout=MOVE_S)
    except (NotEffective, NoAnswer, MoveRefused) as problem:
        return type(problem).__name__
    assert client.broker == to
    return "done"


async def kill(brokers: Fleet, name: str, after_s: float) -> None:
    await asyncio.sleep(after_s)
    process = brokers.processes[name]
    process.kill()
    await process.ended()
    await process.start()


async def endure(brokers: Fleet, victims: Sequence[str], delay_s: Callable[[], float]) -> None:
    """A publisher and a subscriber change places again and again; each time a broker is killed."""
    where = brokers.addresses
    bob = await Subscriber.begin(where["B3"], "bob")
    carol = await Subscriber.begin(where["B2"], "carol")
    alice = await Publisher.begin(where["B1"], "alice")
    done = 0
    for victim in victims:
        targets = ["B3" if each.client.broker == "B1" else "B1" for each in (alice, bob)]
        moves = [attempt(c.client, to) for c, to in zip((alice, bob), targets, strict=True)]
        *ends, _ = await asyncio.gather(*moves, kill(brokers, victim, delay_s()))
        done += ends.count("done")
    await brokers.until_links_up()
    await alice.end()
    await bob.has_all([alice])
    await carol.has_all([alice])
    assert done
    await close(alice, bob, carol)


async def test_source_target_and_path_are_killed_during_moves(tmp_path: Path) -> None:
    async with fleet(tmp_path, Topology.line(3)) as brokers:
        chance = Random(9)
        await endure(brokers, ("B1", "B2", "B3"), lambda: chance.uniform(0.0, 0.03))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
async def test_brokers_are_killed_during_many_moves(tmp_path: Path, seed: int) -> None:
    async with fleet(tmp_path, Topology.line(3)) as brokers:
        chance = Random(seed)
        victims = [chance.choice(("B1", "B2", "B3")) for _ in range(40)]
        await endure(brokers, victims, lambda: chance.uniform(0.0, 0.06))


async def test_a_target_that_cannot_be_reached(tmp_path: Path) -> None:
    """It is down, and then it is paused, so that its link is still up. The clients stay and work,
    and move later."""
    async with fleet(tmp_path, Topology.line(3)) as brokers:
        where = brokers.addresses
        bob = await Subscriber.begin(where["B2"], "bob")
        alice = await Publisher.begin(where["B1"], "alice")
        target = brokers.processes["B3"]
        target.kill()
        await target.ended()
        for client in (alice.client, bob.client):
            home, made = client.broker, alice.made
            with pytest.raises(NotEffective, match="B3"):
                await client.move("B3", timeout=0.5)
            assert client.broker == home
            await eventually(lambda: len(bob.read["alice"]) > made)  # noqa: B023
        await target.start()
        await brokers.until_links_up()
        target.pause()
        with pytest.raises(NotEffective, match="B3"):
            await alice.client.move("B3", timeout=0.2)
        target.resume()
        await asyncio.gather(tour(alice.client, "B3"), tour(bob.client, "B3"))
        await alice.end()
        await bob.has_all([alice])
        await close(alice, bob)


async def test_a_durable_client_moves_while_it_is_away(tmp_path: Path) -> None:
    """Twice, and its process comes back to the first broker, the only one that it knows."""
    async with fleet(tmp_path, Topology.line(3)) as brokers:
        where = brokers.addresses
        first = await motet.connect(where["B1"], client_id="bob", durable=True)
        events = await first.subscribe("n > 0", name="all")
        alice = await Publisher.begin(where["B2"], "alice")
        read = [int(str((await anext(events))["n"])) for _ in range(20)]
        await first.close()
        for home, to in (("B1", "B2"), ("B2", "B3")):
            async with RequestChannel(where[home], PATIENCE_S, "never") as channel:
                answer = await channel.ask(MoveOrder("bob", to, MOVE_S), MoveOrdered)
            assert (answer.client, answer.error) == ("bob", "")
            await eventually(lambda: is_at(brokers, "bob", to))  # noqa: B023
            brokers.processes[home].kill()
            await brokers.processes[home].ended()
            await brokers.processes[home].start()
        await alice.end()
        bob = await motet.connect(where["B1"], client_id="bob", durable=True)
        assert (bob.broker, bob.session.resumed, bob.session.lost_sessions) == ("B3", True, 0)
        (again,) = bob.subscriptions
        while read[-1] < alice.made:
            read.append(int(str((await asyncio.wait_for(anext(again), PATIENCE_S))["n"])))
        assert read == list(range(1, alice.made + 1))
        await asyncio.sleep(POLL_S)
        assert again.buffered == 0
        await bob.close(discard_session=True)
        await alice.client.close()


async def is_at(brokers: Fleet, client: str, broker: str) -> bool:
    found = await brokers.statuses()
    return broker in found and client in found[broker]["sessions"]
