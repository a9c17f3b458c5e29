"""The path of a move is cut behind its decision: nothing passes until it heals. A client that waits
has its session afterwards; one without patience opens a new one at the target."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import motet
from motet.broker.overlay.topology import Topology
from motet.errors import UnavailableError
from motet.fleet.fleet import Fleet, links
from motet.fleet.process import free_addresses
from motet.fleet.proxy import CHUNK_BYTES, LinkProxy
from motet.protocol.mobility.messages import MoveReply
from motet.protocol.traits import tag_of
from motet.runtime.tcp import address_of, host_and_port
from tests.waiting import PATIENCE_S, eventually

MOVE_S = 30.0
SOON_S = 0.3
ANSWER = tag_of(MoveReply).encode()


class Ambush(LinkProxy):
    """Lets the next answer to an offer of a move pass, and then nothing any more."""

    is_armed = False
    is_sprung = False

    async def _pump(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._flows.wait()
                writer.write(data)
                if self.is_armed and ANSWER in data:
                    self.is_armed, self.is_sprung = False, True
                    self.stall()
                await writer.drain()
            await self._flows.wait()


@asynccontextmanager
async def line(folder: Path) -> AsyncIterator[tuple[Fleet, Ambush]]:
    """B1 - B2 - B3, with an ambush between B1 and B2."""
    topology = Topology.line(3)
    places = zip(topology.brokers, free_addresses(3), strict=True)
    brokers = tuple(dataclasses.replace(place, listen=address) for place, address in places)
    topology = dataclasses.replace(topology, brokers=brokers, heartbeat_s=0.5)
    (link,) = (each for each in links(topology) if set(each) == {"B1", "B2"})
    host, port = host_and_port(topology.wiring(link[0]).dial[link[1]])
    ambush = Ambush(port, lambda: None)
    await ambush.open()
    try:
        detour = {link: address_of(host, ambush.port)}
        async with Fleet(topology, folder, detours=detour) as fleet:
            yield fleet, ambush
    finally:
        await ambush.close()


class Numbers:
    """Events of one publisher at B3, and what a client of B1 has read of them."""

    def __init__(self) -> None:
        self.made = 0
        self.read: list[int] = []

    async def publish(self, xavier: motet.Client, count: int) -> None:
        for _ in range(count):
            self.made += 1
            await xavier.publish({"by": "xavier", "n": self.made})

    async def take(self, events: motet.Subscription) -> None:
        async for event in events:
            self.read.append(int(str(event["n"])))

    async def has_all(self) -> None:
        await eventually(lambda: len(self.read) >= self.made)
        assert self.read == list(range(1, self.made + 1))


async def sessions_of(fleet: Fleet, client: str) -> dict[str, str]:
    """By broker: the epoch of the client's session there."""
    found = await fleet.statuses()
    return {
        name: status["sessions"][client]["epoch"]
        for name, status in found.items()
        if client in status["sessions"]
    }


async def is_settled(fleet: Fleet, client: str) -> bool:
    """The client has one session, and no move is under way."""
    found = await fleet.statuses()
    return len(await sessions_of(fleet, client)) == 1 and not any(
        status["moves"]["in_transit"] for status in found.values()
    )


async def test_a_client_without_patience_opens_a_new_session(tmp_path: Path) -> None:
    """Its exactly-once events go on behind those that it had; the former session ends when the two
    meet."""
    async with line(tmp_path) as (fleet, ambush):
        lost: list[str] = []
        where = fleet.addresses
        xavier = await motet.connect(where["B3"], client_id="xavier")
        await xavier.advertise("by = 'xavier'")
        carol = await motet.connect(where["B3"], client_id="carol")
        heard = await carol.subscribe("by = 'alice'")
        alice = await motet.connect(
            where["B1"],
            client_id="alice",
            on_session_lost=lambda client: lost.append(client.broker),
        )
        await alice.advertise("by = 'alice'")
        numbers = Numbers()
        reading = asyncio.ensure_future(numbers.take(await alice.subscribe("by = 'xavier'")))
        await numbers.publish(xavier, 10)
        await numbers.has_all()

        former = alice.session.epoch
        ambush.is_armed = True
        await alice.move("B3", timeout=MOVE_S, patience=SOON_S)
        assert ambush.is_sprung
        assert (alice.broker, alice.session.lost_sessions) == ("B3", 1)
        assert alice.session.epoch != former
        await eventually(lambda: lost == ["B3"])

        # The former session exists, nowhere: it is on its way.
        assert await sessions_of(fleet, "alice") == {"B3": alice.session.epoch}
        status = (await fleet.statuses())["B1"]
        assert status["moves"]["in_transit"] == {"alice": {"from": "B1", "to": "B3"}}
        await numbers.publish(xavier, 10)

        ambush.heal()
        await fleet.until_links_up()
        await eventually(lambda: is_settled(fleet, "alice"))
        assert await sessions_of(fleet, "alice") == {"B3": alice.session.epoch}
        await numbers.publish(xavier, 10)
        await numbers.has_all()
        await alice.publish({"by": "alice", "n": 1})
        assert (await asyncio.wait_for(anext(heard), PATIENCE_S))["n"] == 1
        assert alice.session.lost_sessions == 1
        for client in (alice, carol, xavier):
            await client.close()
        await reading


async def test_a_client_without_patience_whose_target_is_gone(tmp_path: Path) -> None:
    """It has a new session where it was; the former one finds it when it comes to the target."""
    async with line(tmp_path) as (fleet, ambush):
        alice = await motet.connect(fleet.addresses["B1"], client_id="alice")
        await alice.advertise("by = 'alice'")
        target = fleet.processes["B3"]
        ambush.is_armed = True
        moving = asyncio.ensure_future(alice.move("B3", timeout=MOVE_S, patience=SOON_S))
        await eventually(lambda: ambush.is_sprung)
        target.kill()
        await target.ended()
        with pytest.raises(UnavailableError, match="a new one is open at B1"):
            await moving
        assert (alice.broker, alice.session.lost_sessions) == ("B1", 1)
        await alice.publish({"by": "alice", "n": 1})
        await target.start()
        ambush.heal()
        await fleet.until_links_up()
        await eventually(lambda: is_settled(fleet, "alice"))
        assert await sessions_of(fleet, "alice") == {"B1": alice.session.epoch}
        await alice.move("B3", timeout=MOVE_S)
        await alice.publish({"by": "alice", "n": 2})
        await alice.close()


async def test_a_durable_client_waits_whatever_its_patience(tmp_path: Path) -> None:
    async with line(tmp_path) as (fleet, ambush):
        where = fleet.addresses
        alice = await motet.connect(where["B1"], client_id="alice", durable=True)
        epoch = alice.session.epoch
        ambush.is_armed = True
        moving = asyncio.ensure_future(alice.move("B3", timeout=MOVE_S, patience=SOON_S))
        await eventually(lambda: ambush.is_sprung)
        await asyncio.sleep(3 * SOON_S)
        assert not moving.done()
        ambush.heal()
        await moving
        assert (alice.broker, alice.session.epoch) == ("B3", epoch)
        assert alice.session.lost_sessions == 0
        await alice.close(discard_session=True)


async def waits(fleet: Fleet, ambush: Ambush, patience: float | None) -> None:
    """The path heals while the client still waits: it has its session."""
    where = fleet.addresses
    xavier = await motet.connect(where["B3"], client_id="xavier")
    await xavier.advertise("by = 'xavier'")
    alice = await motet.connect(where["B1"], client_id="alice")
    numbers = Numbers()
    reading = asyncio.ensure_future(numbers.take(await alice.subscribe("by = 'xavier'")))
    epoch = alice.session.epoch
    ambush.is_armed = True
    moving = asyncio.ensure_future(alice.move("B3", timeout=1.0, patience=patience))
    await eventually(lambda: ambush.is_sprung)
    await numbers.publish(xavier, 10)
    await asyncio.sleep(SOON_S)
    assert not moving.done()
    ambush.heal()
    await moving
    assert (alice.broker, alice.session.epoch) == ("B3", epoch)
    await numbers.publish(xavier, 10)
    await numbers.has_all()
    assert alice.session.lost_sessions == 0
    await alice.close()
    await xavier.close()
    await reading


async def test_a_client_waits_for_its_session(tmp_path: Path) -> None:
    """The timeout of the move is over with the decision."""
    async with line(tmp_path) as (fleet, ambush):
        await waits(fleet, ambush, None)


async def test_a_client_with_patience_waits_for_its_session(tmp_path: Path) -> None:
    async with line(tmp_path) as (fleet, ambush):
        await waits(fleet, ambush, MOVE_S)


async def test_a_synchronous_client_without_patience(tmp_path: Path) -> None:
    async with line(tmp_path) as (fleet, ambush):
        where = fleet.addresses
        ambush.is_armed = True

        def move() -> tuple[str, int]:
            with motet.connect_sync(where["B1"], client_id="alice") as alice:
                alice.advertise("by = 'alice'")
                alice.publish({"by": "alice", "n": 1})
                alice.move("B3", timeout=MOVE_S, patience=SOON_S)
                alice.publish({"by": "alice", "n": 2})
                return alice.broker, alice.session.lost_sessions

        assert await asyncio.to_thread(move) == ("B3", 1)
        assert ambush.is_sprung
        ambush.heal()
        await fleet.until_links_up()
        await eventually(lambda: nobody_is_left(fleet))


async def nobody_is_left(fleet: Fleet) -> bool:
    found = await fleet.statuses()
    return not any(
        status["session_count"] or status["moves"]["in_transit"] for status in found.values()
    )
