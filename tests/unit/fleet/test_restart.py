"""Restarts one broker at a time, each drained before, with brokers that share our loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import motet
from motet.broker.overlay.topology import Topology
from motet.client.orders import order_drain
from motet.errors import NotOffered, UnavailableError
from motet.fleet import drain as drain_room
from motet.fleet.convoy import survey
from motet.fleet.restart import DrainingRestart, RestartReport
from motet.fleet.spread import is_even
from tests.waiting import PATIENCE_S, eventually


class Place:
    """B1 – B2 – B3, in this process, each with a folder."""

    def __init__(self, overlay: motet.client.LocalOverlay, stack: AsyncExitStack) -> None:
        self.overlay = overlay
        self.addresses = {name: overlay.address(name) for name in overlay.brokers}
        self.clients: dict[str, motet.Client] = {}
        self.events: list[str] = []
        self._stack = stack

    async def connect(self, name: str, broker: str, **options: object) -> motet.Client:
        client = await self.overlay.connect(name, broker=broker, **options)  # type: ignore[arg-type]
        self.clients[name] = await self._stack.enter_async_context(client)
        return self.clients[name]

    async def fill(self, many: int) -> None:
        for broker in self.overlay.brokers:
            for number in range(many):
                await self.connect(f"{broker}-c{number}", broker)

    async def draining(self) -> list[str]:
        found = await survey(self.addresses)
        return [each for each in self.addresses if found.is_draining(each)]

    async def counts(self) -> dict[str, int]:
        return (await survey(self.addresses)).counts

    async def restart_one(self, name: str) -> None:
        many, draining = (await self.counts())[name], " ".join(await self.draining())
        self.events.append(f"{name} with {many}, draining {draining}")
        await self.overlay.stop_broker(name)
        await self.overlay.start_broker(name)

    def restart(self, timeout_s: float = PATIENCE_S, **more: object) -> DrainingRestart:
        return DrainingRestart(self.addresses, self.restart_one, timeout_s, **more)  # type: ignore[arg-type]


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(drain_room, "AGAIN_S", 0.01)
    monkeypatch.setattr(drain_room, "LOOK_S", 0.01)
    async with motet.local(brokers=3, data=tmp_path) as overlay, AsyncExitStack() as stack:
        yield Place(overlay, stack)


async def test_each_broker_is_empty_when_it_is_restarted(place: Place) -> None:
    await place.fill(3)
    epochs = {name: client.session.epoch for name, client in place.clients.items()}
    report = await place.restart().run()
    assert place.events == [f"{name} with 0, draining {name}" for name in ("B1", "B2", "B3")]
    assert report.restarted == ["B1", "B2", "B3"]
    assert report.waiting == []
    assert not any(each.still_draining or each.stay or each.problem for each in report.brokers)
    assert await place.draining() == []
    assert {name: client.session.epoch for name, client in place.clients.items()} == epochs


async def test_only_the_clients_of_the_first_broker_move_twice(place: Place) -> None:
    await place.fill(3)
    report = await place.restart().run()
    moves = [name for each in report.brokers for name in each.moved]
    assert sorted(moves) == sorted([*place.clients, *(f"B1-c{n}" for n in range(3))])
    assert (await place.counts())["B3"] == 0


async def test_the_clients_are_evened_out_at_the_end(place: Place) -> None:
    await place.fill(4)
    report = await place.restart(even_out=True).run()
    assert report.balance is not None
    assert report.balance.is_even
    assert is_even(await place.counts())


async def test_who_cannot_move_stays_and_comes_back(place: Place) -> None:
    await place.fill(1)
    alice = await place.connect("alice", "B2")
    async with alice.transaction():
        report = await place.restart(timeout_s=0.5).run()
        assert report.restarted == ["B1", "B2", "B3"]
        assert list(report.brokers[1].stay) == ["alice"]
        assert "transaction" in report.brokers[1].stay["alice"]
        assert place.events[1] == "B2 with 1, draining B2"
        assert alice.broker == "B2"


async def test_a_full_broker_leaves_the_rest_to_others(tmp_path: Path) -> None:
    """B2 and B3 prefer B1, which takes two clients."""
    line = Topology.line(3)
    first, *others = line.brokers
    full = replace(line, brokers=(replace(first, most_clients=2), *others))
    async with (
        motet.local(full, data=tmp_path) as overlay,
        AsyncExitStack() as stack,
    ):
        place = Place(overlay, stack)
        for number in range(5):
            await place.connect(f"c{number}", "B2")
        report = await place.restart().run()
        assert report.restarted == ["B1", "B2", "B3"]
        assert not any(each.stay for each in report.brokers)
        assert sorted(report.brokers[1].moved.values()) == ["B1", "B1", "B3", "B3", "B3"]


async def test_a_broker_that_was_draining_stays_so(place: Place) -> None:
    await order_drain(place.addresses["B2"], True)
    report = await place.restart().run()
    assert [each.still_draining for each in report.brokers] == [False, True, False]
    assert await place.draining() == ["B2"]


async def test_a_broker_that_cannot_be_drained_is_restarted_all_the_same(place: Place) -> None:
    """Its neighbours are draining, so its clients can move nowhere."""
    await place.fill(1)
    for name in ("B2", "B3"):
        await order_drain(place.addresses[name], True)
    report = await place.restart().run()
    assert report.restarted == ["B1", "B2", "B3"]
    first = report.brokers[0]
    assert first.drain is None
    assert "no other broker takes the clients of B1" in first.problem
    assert place.events[0] == "B1 with 1, draining B2 B3"


async def test_it_stops_between_two_brokers(place: Place) -> None:
    await place.fill(2)

    def progress(_: RestartReport, text: str) -> None:
        if text == "restarting B2":
            work.stop()

    work = place.restart(progress=progress)
    report = await work.run()
    assert report.interrupted
    assert (report.restarted, report.waiting) == (["B1", "B2"], ["B3"])
    assert await place.draining() == []


async def test_it_stops_in_the_middle_of_a_drain(place: Place) -> None:
    alice = await place.connect("alice", "B1")
    async with alice.transaction():
        work = place.restart()
        running = asyncio.create_task(work.run())
        await eventually(lambda: work.report.brokers and work.report.brokers[0].stay)
        work.stop()
        report = await running
    assert (report.restarted, report.waiting) == ([], ["B2", "B3"])
    assert place.events == []
    assert await place.draining() == []


async def test_a_restart_that_fails_leaves_no_broker_draining(place: Place) -> None:
    async def fail(_: str) -> None:
        raise UnavailableError("B1 does not come back")

    with pytest.raises(UnavailableError, match="B1 does not come back"):
        await DrainingRestart(place.addresses, fail).run()
    assert await place.draining() == []


async def test_a_volatile_broker_is_not_restarted_while_it_has_clients(place: Place) -> None:
    alice = await place.connect("alice", "B1")
    async with alice.transaction():
        report = await place.restart(timeout_s=0.3, volatile=True).run()
    assert report.restarted == []
    assert report.refused == ("it is not empty after 0.3 s; a volatile broker loses what it has")
    assert await place.draining() == []


async def test_overlays_of_which_no_client_can_move() -> None:
    async with motet.local(brokers=1) as overlay:
        with pytest.raises(NotOffered, match=r"no broker can be drained: B1: it is the only"):
            await DrainingRestart({"B1": overlay.address("B1")}, never).run()
    async with motet.local(brokers=2, covering=True) as overlay:
        addresses = {name: overlay.address(name) for name in overlay.brokers}
        with pytest.raises(NotOffered, match="B2: covering is on, so its clients cannot move"):
            await DrainingRestart(addresses, never).run()


async def never(name: str) -> None:
    raise AssertionError(name)
