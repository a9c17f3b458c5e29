"""Emptying and evening out brokers that share our loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import motet
from motet.broker.overlay.topology import Topology
from motet.client.logs.stage import Attempt, commit, open_stage
from motet.client.orders import order_drain, sessions_of
from motet.errors import Disconnected, MisuseError, NotAdmitted, NotOffered
from motet.fleet import convoy as convoy_room
from motet.fleet import drain as drain_room
from motet.fleet.balance import Balance, BalanceReport
from motet.fleet.convoy import survey
from motet.fleet.drain import Drain, DrainReport
from motet.fleet.spread import is_even
from motet.model import encode_event
from motet.protocol.config import Liveness
from tests.waiting import PATIENCE_S, eventually


class Place:
    """B1 – B2 – B3, in this process."""

    def __init__(self, overlay: motet.client.LocalOverlay, stack: AsyncExitStack) -> None:
        self.overlay = overlay
        self.addresses = {name: overlay.address(name) for name in overlay.brokers}
        self.clients: dict[str, motet.Client] = {}
        self._stack = stack

    async def connect(self, name: str, broker: str, **options: object) -> motet.Client:
        client = await self.overlay.connect(name, broker=broker, **options)  # type: ignore[arg-type]
        self.clients[name] = await self._stack.enter_async_context(client)
        return self.clients[name]

    async def fill(self, broker: str, many: int) -> None:
        for number in range(many):
            await self.connect(f"{broker}-c{number}", broker)

    async def counts(self) -> dict[str, int]:
        return (await survey(self.addresses)).counts

    async def is_draining(self, broker: str) -> bool:
        return (await survey(self.addresses)).is_draining(broker)

    async def drain(
        self, broker: str, *to: str, timeout_s: float = PATIENCE_S, **more: object
    ) -> DrainReport:
        return await Drain(self.addresses, broker, to, timeout_s, **more).run()  # type: ignore[arg-type]

    async def balance(self) -> BalanceReport:
        return await Balance(self.addresses, PATIENCE_S).run()


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(drain_room, "AGAIN_S", 0.01)
    monkeypatch.setattr(drain_room, "LOOK_S", 0.01)
    async with motet.local(brokers=3) as overlay, AsyncExitStack() as stack:
        yield Place(overlay, stack)


# ── draining ─────────────────────────────────────────────────────────────────────────────


async def test_the_clients_go_to_the_neighbours_evenly(place: Place) -> None:
    await place.fill("B2", 5)
    await place.fill("B1", 2)
    report = await place.drain("B2")
    assert report.is_empty
    assert report.targets == ("B1", "B3")
    assert await place.counts() == {"B1": 4, "B2": 0, "B3": 3} or (
        await place.counts() == {"B1": 3, "B2": 0, "B3": 4}
    )
    assert set(report.moved) == {f"B2-c{n}" for n in range(5)}
    assert report.moved == {name: place.clients[name].broker for name in report.moved}
    assert (report.stay, report.left, report.away) == ({}, 0, [])


async def test_they_go_where_they_are_sent(place: Place) -> None:
    await place.fill("B1", 3)
    report = await place.drain("B1", "B3")
    assert report.is_empty
    assert await place.counts() == {"B1": 0, "B2": 0, "B3": 3}


async def test_nobody_gets_a_session_at_a_broker_that_drains(place: Place) -> None:
    await place.drain("B2")
    with pytest.raises(NotAdmitted, match="B2 opens no new sessions: its operator drains it"):
        await place.connect("late", "B2")
    async with motet.connect(place.addresses["B2"], place.addresses["B3"]) as client:
        assert client.broker == "B3"
    assert await order_drain(place.addresses["B2"], False)
    await place.connect("late", "B2")


async def test_a_client_that_is_away_is_sent_on(place: Place) -> None:
    client = await place.connect("alice", "B2", durable=True)
    await client.close()
    report = await place.drain("B2", "B3")
    assert report.is_empty
    assert (report.moved, report.away) == ({"alice": "B3"}, ["alice"])
    again = await place.connect("alice", "B2", durable=True)
    assert again.session.resumed
    assert again.broker == "B3"


async def test_its_log_is_waited_for(place: Place) -> None:
    """bob has received an event of alice, who was at B2, but not acknowledged it."""
    alice = await place.connect("alice", "B2")
    await alice.advertise("n > 0")
    bob = await place.connect("bob", "B3", acknowledge="manual")
    numbers = await bob.subscribe("n > 0")
    await alice.publish({"n": 1})
    event = await anext(aiter(numbers))
    said: list[str] = []
    drain = Drain(place.addresses, "B2", (), PATIENCE_S, progress=lambda _, text: said.append(text))
    running = asyncio.create_task(drain.run())
    await eventually(lambda: "waiting until its log is owed to nobody (towards B3)" in said)
    assert drain.report.moved.keys() == {"alice"}
    assert drain.report.left == 0
    assert not drain.report.is_empty
    assert place.overlay.status()["B2"]["moves"]["residues"] == ["alice"]
    event.ack()
    report = await running
    assert report.is_empty
    assert not report.log_owed
    assert place.overlay.status()["B2"]["moves"]["residues"] == []


async def test_a_neighbour_is_asked_that_has_never_acknowledged_anything(tmp_path: Path) -> None:
    """B2 passes events on to B1 since alice is at B3. Nothing was published at B2 meanwhile, and it
    has stopped to ask for acknowledgements."""
    quick = Topology.line(3, liveness=Liveness(ack_expected_s=0.01))
    async with motet.local(quick, data=tmp_path) as overlay:
        alice = await overlay.connect("alice", broker="B2", durable=True)
        await alice.advertise("n > 0")
        bob = await overlay.connect("bob", broker="B1", durable=True, acknowledge="manual")
        numbers = await bob.subscribe("n > 0")
        await alice.publish({"n": 1})
        (await anext(aiter(numbers))).ack()
        owed = lambda: overlay.status()["B2"]["log_owed"]["owed"]  # noqa: E731
        await eventually(lambda: not owed())
        await alice.move("B1")
        await overlay.stop_broker("B2")
        await overlay.start_broker("B2")
        await eventually(lambda: not owed())
        await eventually(lambda: not overlay.status()["B2"]["process"]["timers"])
        await alice.move("B3")
        await eventually(owed)
        addresses = {name: overlay.address(name) for name in overlay.brokers}
        report = await Drain(addresses, "B2", timeout_s=PATIENCE_S).run()
        assert report.is_empty


async def test_it_gives_up_on_a_log_that_is_owed_for_too_long(place: Place) -> None:
    alice = await place.connect("alice", "B2")
    await alice.advertise("n > 0")
    bob = await place.connect("bob", "B3", acknowledge="manual")
    await bob.subscribe("n > 0")
    await alice.publish({"n": 1})
    report = await place.drain("B2", timeout_s=0.5)
    assert not report.is_empty
    assert (report.left, report.log_owed, report.owed_towards) == (0, True, ["B3"])
    assert not report.interrupted
    assert await place.is_draining("B2")


async def test_who_is_in_a_transaction_stays_until_it_is_over(place: Place) -> None:
    alice = await place.connect("alice", "B2")
    await place.connect("bob", "B2")
    async with alice.transaction():
        report = await place.drain("B2", timeout_s=0.5)
        assert not report.is_empty
        assert (report.left, list(report.stay), list(report.moved)) == (1, ["alice"], ["bob"])
        assert "alice" in report.stay["alice"]
        running = asyncio.create_task(place.drain("B2"))
        await eventually(lambda: alice.broker == "B2")
    report = await running
    assert report.was_draining
    assert report.is_empty
    assert list(report.moved) == ["alice"]


async def test_a_sink_stays_and_is_not_waited_for(tmp_path: Path) -> None:
    async with motet.local(brokers=2, data=tmp_path) as overlay:
        addresses = {name: overlay.address(name) for name in overlay.brokers}
        alice = await overlay.connect("alice", broker="B2")
        attempt = Attempt("levels", "q", 0, 0, "a-0")
        async with open_stage(addresses["B2"], attempt, timeout=PATIENCE_S) as stage:
            await stage.add([encode_event({"n": 1}, b"")])
            part = await stage.seal()
        await commit(addresses["B2"], "levels", "q", 0, [part], timeout=PATIENCE_S)
        report = await Drain(addresses, "B2", timeout_s=PATIENCE_S).run()
        assert report.moved == {"alice": alice.broker} == {"alice": "B1"}
        ((sink, why),) = report.stay.items()
        assert sink == "levels"
        assert "is a sink, and its staged files are at B2: it stays there" in why
        assert not report.is_empty


async def test_it_ends_early_and_goes_on_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convoy_room, "PARALLEL", 1)
    await place.fill("B2", 6)

    def progress(report: DrainReport, _: str) -> None:
        if len(report.moved) == 2:
            drain.stop()

    drain = Drain(place.addresses, "B2", (), PATIENCE_S, progress)
    report = await drain.run()
    assert report.interrupted
    assert not report.is_empty
    assert 2 <= len(report.moved) < 6
    assert report.left == 6 - len(report.moved)
    assert set(report.stay) == place.clients.keys() - report.moved.keys()
    assert set(report.stay.values()) == {"it was not asked to move before the end"}
    again = await place.drain("B2")
    assert again.was_draining
    assert again.is_empty
    assert len(report.moved) + len(again.moved) == 6


async def test_one_target_drains_and_the_other_takes_all(place: Place) -> None:
    await place.fill("B2", 4)
    await order_drain(place.addresses["B1"], True)
    report = await place.drain("B2")
    assert report.targets == ("B3",)
    assert await place.counts() == {"B1": 0, "B2": 0, "B3": 4}


async def test_a_target_that_begins_to_drain_is_replaced(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.fill("B2", 4)

    async def both(address: str, draining: bool) -> bool:
        await order_drain(place.addresses["B1"], True)
        return await order_drain(address, draining)

    monkeypatch.setattr(drain_room, "order_drain", both)
    report = await place.drain("B2")
    assert report.targets == ("B1", "B3")
    assert report.is_empty
    assert await place.counts() == {"B1": 0, "B2": 0, "B3": 4}


async def test_if_no_neighbour_takes_clients_the_others_do(place: Place) -> None:
    await place.fill("B1", 2)
    await order_drain(place.addresses["B2"], True)
    report = await place.drain("B1")
    assert report.targets == ("B3",)
    assert await place.counts() == {"B1": 0, "B2": 0, "B3": 2}


@pytest.mark.parametrize(
    ("to", "text"),
    [
        (("B2",), "B2 is to be emptied, so no client can move to it"),
        (("B9",), r"there is no broker 'B9'; others are B1, B3$"),
        (("B1", "B3"), "B3 is draining itself"),
    ],
)
async def test_wrong_targets_change_nothing(place: Place, to: tuple[str, ...], text: str) -> None:
    await order_drain(place.addresses["B3"], True)
    with pytest.raises(MisuseError, match=text):
        await place.drain("B2", *to)
    assert not await place.is_draining("B2")


async def test_a_broker_that_does_not_exist(place: Place) -> None:
    with pytest.raises(MisuseError, match=r"there is no broker 'B9'; known are B1, B2, B3$"):
        await place.drain("B9")


async def test_a_broker_whose_address_is_unknown(place: Place) -> None:
    address = place.addresses["B1"]
    with pytest.raises(MisuseError, match="the address of B2 is not known here"):
        await Drain({address: address}, "B2").run()


async def test_a_broker_that_is_given_by_its_address(place: Place) -> None:
    await place.fill("B2", 2)
    address = place.addresses["B2"]
    report = await Drain({address: address}, "B2", (), PATIENCE_S).run()
    assert report.is_empty
    assert await place.counts() == {"B1": 1, "B2": 0, "B3": 1}


async def test_a_broker_that_is_away(place: Place) -> None:
    await place.overlay.stop_broker("B2")
    with pytest.raises(Disconnected):
        await place.drain("B2")
    with pytest.raises(Disconnected, match="B2 takes no clients"):
        await place.drain("B1", "B2")
    assert not await place.is_draining("B1")


async def test_the_last_brokers(place: Place) -> None:
    await order_drain(place.addresses["B1"], True)
    await place.overlay.stop_broker("B3")
    with pytest.raises(NotOffered, match="no other broker takes the clients of B2: B1, B3"):
        await place.drain("B2")
    assert not await place.is_draining("B2")


async def test_the_only_broker() -> None:
    async with motet.local(brokers=1) as overlay:
        with pytest.raises(MisuseError, match="B1 is the only broker"):
            await Drain({"B1": overlay.address("B1")}, "B1").run()


# ── rebalancing ──────────────────────────────────────────────────────────────────────────


async def test_the_brokers_become_even(place: Place) -> None:
    await place.fill("B1", 21)
    report = await place.balance()
    assert report.is_even
    assert is_even(await place.counts())
    assert report.before == {"B1": 21, "B2": 0, "B3": 0}
    assert report.after == await place.counts()
    assert report.planned == {("B1", "B2"): 7, ("B1", "B3"): 7}
    moved = {name: place.clients[name].broker for name in report.moved}
    assert {name: to for name, (_, to) in report.moved.items()} == moved
    assert (await place.balance()).planned == {}


async def test_a_plan_moves_nobody(place: Place) -> None:
    await place.fill("B1", 6)
    report = await Balance(place.addresses).plan()
    assert report.planned == {("B1", "B2"): 2, ("B1", "B3"): 2}
    assert await place.counts() == {"B1": 6, "B2": 0, "B3": 0}


async def test_others_go_for_those_that_cannot(place: Place) -> None:
    """The first clients in the list are in transactions."""
    async with AsyncExitStack() as stack:
        for number in range(3):
            client = await place.connect(f"a{number}", "B1")
            await stack.enter_async_context(await client.transaction())
        await place.fill("B1", 6)
        report = await place.balance()
    assert report.is_even
    assert is_even(report.after)
    assert all(name.startswith("B1-c") for name in report.moved)


async def test_brokers_that_drain_or_are_away_are_left_out(place: Place) -> None:
    await place.fill("B1", 4)
    await order_drain(place.addresses["B3"], True)
    report = await place.balance()
    assert report.is_even
    assert report.left_out == {"B3": "it is draining"}
    assert await place.counts() == {"B1": 2, "B2": 2, "B3": 0}
    await place.overlay.stop_broker("B3")
    assert "B3" in (await place.balance()).left_out


async def test_rebalancing_stops_when_it_is_told_to(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convoy_room, "PARALLEL", 1)
    await place.fill("B1", 9)
    balance = Balance(place.addresses, PATIENCE_S, lambda *_: balance.stop())
    report = await balance.run()
    assert report.interrupted
    assert not report.is_even
    assert sum((await place.counts()).values()) == 9


async def test_all_sessions_are_listed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motet.protocol.mobility.drain.LISTED", 2)
    await place.fill("B1", 5)
    found = await sessions_of(place.addresses["B1"])
    assert [each.client for each in found] == [f"B1-c{n}" for n in range(5)]
