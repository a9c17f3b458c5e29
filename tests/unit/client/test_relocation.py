"""A client that moves, with brokers that only pretend to move it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Unpack

import pytest

import motet
from motet.audit.files import read_table
from motet.client import driver
from motet.client.client import AwaitableContext, Client, ConnectOptions
from motet.errors import (
    ClosedError,
    InTransaction,
    MisuseError,
    MoveRefused,
    NoAnswer,
    NotEffective,
    NotOffered,
)
from motet.protocol.mobility.messages import ArrivalHello, MoveRefusal, MoveRequest
from motet.protocol.session.messages import ClientHello, SubscribeRequest
from tests.unit.client.moving_brokers import PretendOverlay
from tests.waiting import eventually


async def started(*names: str) -> PretendOverlay:
    overlay = PretendOverlay()
    await overlay.start(*names)
    return overlay


def connected(
    overlay: PretendOverlay, **options: Unpack[ConnectOptions]
) -> AwaitableContext[Client]:
    return motet.connect(overlay.address("B1"), client_id="alice", **options)


async def test_a_moved_client_has_the_same_session() -> None:
    overlay = await started("B1", "B2")
    async with connected(overlay) as alice:
        epoch = alice.session.epoch
        await alice.subscribe("x > 1")
        await alice.publish({"x": 1})
        await alice.move("B2")
        assert (alice.broker, alice.session.address) == ("B2", overlay.address("B2"))
        assert (alice.session.epoch, alice.session.lost_sessions) == (epoch, 0)
        assert [type(frame) for frame in overlay.brokers["B2"].heard] == [ArrivalHello]
        await alice.publish({"x": 2})
        assert (overlay.published, alice.session.published) == ({epoch: 2}, 2)
        await alice.subscribe("x > 2")
        assert [
            frame.sequence
            for frame in overlay.brokers["B2"].heard
            if isinstance(frame, SubscribeRequest)
        ] == [2]


async def test_a_client_moves_over_sockets() -> None:
    overlay = PretendOverlay("motet://127.0.0.1:0")
    await overlay.start("B1", "B2")
    async with connected(overlay) as alice:
        epoch = alice.session.epoch
        for n, to in enumerate(("B2", "B1", "B2"), 1):
            await alice.send({"x": n}, b"p" * 1_000_000)
            await alice.move(to)
            assert (alice.broker, alice.session.epoch) == (to, epoch)
        await alice.flush()
        assert overlay.published == {epoch: 3}
    for broker in overlay.brokers.values():
        await broker.stop()


async def test_a_move_to_the_own_broker_sends_nothing() -> None:
    overlay = await started("B1")
    async with connected(overlay) as alice:
        await alice.move("B1")
        assert overlay.brokers["B1"].count(MoveRequest) == 0


async def test_publications_made_on_the_way_arrive() -> None:
    overlay = await started("B1", "B2")
    overlay.brokers["B2"].holds = True
    async with connected(overlay) as alice:
        moving = asyncio.create_task(alice.move("B2"))
        await eventually(lambda: overlay.brokers["B2"].count(ArrivalHello))
        receipt = await alice.send({"x": 1})
        overlay.brokers["B2"].holds = False
        overlay.brokers["B2"].connections[-1].connection.abort()
        await moving
        await receipt
        assert list(overlay.published.values()) == [1]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("MoveRefused", MoveRefused),
        ("InTransaction", InTransaction),
        ("NotOffered", NotOffered),
        ("MisuseError", MisuseError),
    ],
)
async def test_a_refused_client_stays(error: str, kind: type[Exception]) -> None:
    overlay = await started("B1")
    overlay.brokers["B1"].refusal = MoveRefusal(1, error, "no room at B2")
    async with connected(overlay) as alice:
        with pytest.raises(kind, match="no room at B2"):
            await alice.move("B2")
        assert alice.broker == "B1"
        await alice.publish({"x": 1})


async def test_a_refusal_names_the_brokers_on_the_way_that_are_missing() -> None:
    overlay = await started("B1")
    overlay.brokers["B1"].refusal = MoveRefusal(1, "NotEffective", "", ("B2", "B3"))
    async with connected(overlay) as alice:
        with pytest.raises(NotEffective, match=r"move to B4 .* not reached: B2, B3") as caught:
            await alice.move("B4")
        assert caught.value.missing == ("B2", "B3")


async def test_no_decision_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motet.client.relocation.ANSWER_GRACE_S", 0.0)
    overlay = await started("B1", "B2")
    overlay.brokers["B1"].is_silent = True
    async with connected(overlay) as alice:
        with pytest.raises(NoAnswer, match=r"B1 did not answer within 0\.05 s"):
            await alice.move("B2", timeout=0.05)
        overlay.brokers["B1"].is_silent = False
        await alice.move("B2")  # nothing of the first one is left
        assert alice.broker == "B2"


async def test_the_timeout_ends_with_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motet.client.relocation.ANSWER_GRACE_S", 0.0)
    overlay = await started("B1", "B2")
    overlay.brokers["B2"].holds = True
    async with connected(overlay) as alice:
        moving = asyncio.create_task(alice.move("B2", timeout=0.05))
        await eventually(lambda: overlay.brokers["B2"].count(ArrivalHello))
        await asyncio.sleep(0.1)
        assert not moving.done()
        overlay.brokers["B2"].holds = False
        overlay.brokers["B2"].connections[-1].connection.abort()
        await moving


async def test_moves_of_one_client_follow_each_other() -> None:
    overlay = await started("B1", "B2", "B3")
    async with connected(overlay) as alice:
        await asyncio.gather(alice.move("B2"), alice.move("B3"), alice.move("B1"))
        assert alice.broker == "B1"
        assert [overlay.brokers[name].count(MoveRequest) for name in ("B1", "B2", "B3")] == [1] * 3


async def test_an_operator_moves_a_client() -> None:
    overlay = await started("B1", "B2")
    async with connected(overlay) as alice:
        epoch = alice.session.epoch
        overlay.brokers["B1"].tell(overlay.decide(epoch, "B2"))
        await eventually(lambda: alice.broker == "B2")
        assert alice.session.epoch == epoch


async def test_a_move_that_an_operator_overtakes() -> None:
    overlay = await started("B1", "B2", "B3")
    overlay.brokers["B1"].is_silent = True
    async with connected(overlay) as alice:
        moving = asyncio.create_task(alice.move("B3"))
        await eventually(lambda: overlay.brokers["B1"].count(MoveRequest))
        overlay.brokers["B1"].tell(overlay.decide(alice.session.epoch, "B2"))
        await moving
        assert alice.broker == "B3"
        assert overlay.brokers["B2"].count(MoveRequest) == 1


async def test_the_new_broker_replaces_the_former_one() -> None:
    overlay = await started("B1", "B2")
    async with connected(overlay) as alice:
        await alice.move("B2")
        overlay.brokers["B2"].connections[-1].connection.abort()
        await eventually(lambda: overlay.brokers["B2"].count(ClientHello))
        await eventually(lambda: alice.connected)
        assert overlay.brokers["B1"].count(ClientHello) == 1


# ── addresses that do not help ───────────────────────────────────────────────────────────


async def test_while_the_target_cannot_be_reached_the_former_broker_is_asked_again() -> None:
    overlay = await started("B1")
    async with connected(overlay) as alice:
        epoch = alice.session.epoch
        moving = asyncio.create_task(alice.move("B2"))
        await eventually(lambda: overlay.brokers["B1"].count(ArrivalHello))
        overlay.places[epoch] = "B2"
        await overlay.start("B2")
        await moving
        assert (alice.broker, alice.session.epoch) == ("B2", epoch)


async def test_an_address_that_never_welcomes_does_not_hold_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "LONGEST_ARRIVAL_S", 0.05)
    overlay = await started("B1", "B2", "B9")
    overlay.brokers["B9"].holds = True
    overlay.brokers["B1"].goes_to = overlay.address("B9")
    async with connected(overlay) as alice:
        moving = asyncio.create_task(alice.move("B2"))
        await eventually(lambda: overlay.brokers["B1"].count(ArrivalHello))
        overlay.brokers["B1"].moved["alice"] = overlay.decide(alice.session.epoch, "B2")
        await moving
        assert alice.broker == "B2"


async def test_two_brokers_that_send_a_client_to_each_other_do_not_keep_it_busy() -> None:
    overlay = await started("B1", "B2")
    async with connected(overlay) as alice:
        epoch, (b1, b2) = alice.session.epoch, overlay.brokers.values()
        b2.moved["alice"] = overlay.decide(epoch, "B1")
        b1.tell(overlay.decide(epoch, "B2"))
        await asyncio.sleep(0.2)
        assert b1.count(ArrivalHello) + b2.count(ArrivalHello) < 20
        b2.moved.clear()
        await eventually(lambda: alice.broker == "B2")


async def test_a_broker_without_an_address_is_found_by_its_name() -> None:
    overlay = await started("B1", "B2")
    overlay.brokers["B1"].goes_to = ""
    async with connected(overlay) as alice:
        alice._driver.dialer.find = overlay.address
        await alice.move("B2")
        assert alice.broker == "B2"


async def test_a_durable_client_is_sent_to_its_session_when_it_connects() -> None:
    overlay = await started("B1", "B2")
    async with connected(overlay, durable=True, keep=60.0) as alice:
        epoch = alice.session.epoch
        await alice.move("B2")
    async with connected(overlay, durable=True, keep=60.0) as alice:
        assert (alice.broker, alice.session.epoch, alice.session.resumed) == ("B2", epoch, True)


async def test_connecting_ends_if_the_session_cannot_be_reached() -> None:
    overlay = await started("B1")
    overlay.brokers["B1"].moved["alice"] = overlay.decide("", "B2")
    with pytest.raises(NoAnswer, match="sent no welcome within"):
        await connected(overlay, durable=True, keep=60.0, connect_timeout=0.2)


# ── patience and the end ─────────────────────────────────────────────────────────────────


async def test_an_impatient_client_opens_a_new_session_at_the_target() -> None:
    overlay = await started("B1", "B2")
    told: list[str] = []

    def lost(client: Client) -> None:
        told.append(client.broker)

    async with connected(overlay, on_session_lost=lost) as alice:
        overlay.brokers["B2"].holds = True
        moving = asyncio.create_task(alice.move("B2", patience=0.1))
        await eventually(lambda: overlay.brokers["B2"].count(ArrivalHello))
        overlay.brokers["B2"].holds = False
        await moving
        assert (alice.broker, alice.session.lost_sessions) == ("B2", 1)
        await eventually(lambda: told == ["B2"])
        await alice.publish({"x": 1})


async def test_a_client_with_patience_is_not_impatient_after_its_welcome() -> None:
    overlay = await started("B1", "B2")
    async with connected(overlay) as alice:
        await alice.move("B2", patience=0.05)
        await asyncio.sleep(0.1)
        assert (alice.connected, alice.session.lost_sessions) == (True, 0)
        assert overlay.brokers["B2"].count(ClientHello) == 0


async def test_a_client_that_is_closed_on_its_way() -> None:
    overlay = await started("B1", "B2")
    overlay.brokers["B2"].holds = True
    async with connected(overlay) as alice:
        moving = asyncio.create_task(alice.move("B2"))
        behind = asyncio.create_task(alice.move("B1"))
        await eventually(lambda: overlay.brokers["B2"].count(ArrivalHello))
        await alice.close(timeout=0.1)
        for each in (moving, behind):
            with pytest.raises(ClosedError, match="was closed"):
                await each


async def test_bad_calls() -> None:
    overlay = await started("B1")
    async with connected(overlay) as alice:
        for wrong in (7, "", None):
            with pytest.raises(MisuseError, match="given by its name"):
                await alice.move(wrong)  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match="timeout is a number"):
            await alice.move("B2", timeout=-1)
        with pytest.raises(MisuseError):
            await alice.move("B2", patience="long")  # type: ignore[arg-type]
    with pytest.raises(ClosedError):
        await alice.move("B2")


def test_the_synchronous_client_moves() -> None:
    with motet.local_sync(1) as overlay, overlay.connect("alice", broker="B1") as alice:
        alice.move("B1")
        assert alice.broker == "B1"
        with pytest.raises(MisuseError, match="given by its name"):
            alice.move("")


# ── the history ──────────────────────────────────────────────────────────────────────────


async def test_a_history_has_the_brokers_of_a_session(tmp_path: Path) -> None:
    overlay = await started("B1", "B2")
    async with connected(overlay, history=tmp_path) as alice:
        epoch = alice.session.epoch
        await alice.publish({"x": 1})
        for to in ("B2", "B1", "B1"):
            await alice.move(to)
        await alice.publish({"x": 2})
    (session,) = read_table(tmp_path, "sessions").to_pylist()
    assert (session["epoch"], session["broker"]) == (epoch, "B1")
    moved = read_table(tmp_path, "moved").to_pylist()
    assert [(row["client"], row["epoch"], row["broker"]) for row in moved] == [
        ("alice", epoch, "B2"),
        ("alice", epoch, "B1"),
    ]
    assert {row["process"] for row in moved} == {session["process"]}
    events = read_table(tmp_path, "events").to_pylist()
    assert {(row["epoch"], row["number"]) for row in events} == {(epoch, 1), (epoch, 2)}
