"""What a broker's folder holds is what the broker has, transactions included; and names and keys
that are used again mean what they should."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import motet
from motet import Client, Invitation, Plan, Transaction
from motet.broker.folder.recovery import read_durable
from motet.client import LocalOverlay
from motet.errors import MisuseError
from tests.waiting import eventually

STREAM = "process = 'p1'"


async def cast(overlay: LocalOverlay) -> tuple[Client, Client, Client]:
    """A source and two handlers, which take the stream, or leave it, when they are invited."""
    source = await overlay.connect("source", broker="B1")
    await source.advertise(STREAM)
    await source.advertise("assign is not null")
    await source.participate()
    handlers = []
    for name, broker in (("one", "B2"), ("two", "B3")):
        client = await overlay.connect(name, broker=broker)

        async def act(invitation: Invitation, tx: Transaction) -> None:
            if invitation.event["act"] == "take":
                await tx.subscribe(STREAM, name="x")
            else:
                await tx.unsubscribe("x")

        await client.participate(act)
        await client.subscribe(f"assign = '{name}'")
        handlers.append(client)
    await handlers[0].subscribe(STREAM, name="x")
    return source, handlers[0], handlers[1]


def hand_over(old: Client, new: Client) -> Plan:
    plan = Plan()
    plan.unsubscribe(old.client_id, "x")
    plan.subscribe(new.client_id, STREAM, name="x")
    plan.publish("source", {"process": "p1", "to": new.client_id})
    return plan


async def test_a_folder_holds_all_of_a_transaction(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with motet.local(brokers=3, data=data) as overlay:
        source, one, two = await cast(overlay)
        await source.execute(hand_over(one, two))
        async with source.transaction() as tx:
            await tx.invite({"assign": "two", "act": "leave"})
            await tx.invite({"assign": "one", "act": "take"})
        async with source.transaction(isolation="none") as tx:
            await tx.publish({"process": "p1", "n": 1})

        def same(name: str) -> bool:
            live = overlay.drivers[name].core.durable
            copy = tmp_path / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(data / name, copy)
            again, _ = read_durable(copy)
            return bool(again.digest() == live.digest())

        for name in overlay.brokers:
            await eventually(lambda name=name: same(name))  # type: ignore[misc]


async def test_the_root_cannot_change_while_there_is_state(tmp_path: Path) -> None:
    async with motet.local(brokers=2, data=tmp_path, root="B2") as overlay:
        source = await overlay.connect("source")
        async with source.transaction():
            pass
    with pytest.raises(MisuseError, match=r"founded with the root .B2. and is now .* .B1."):
        await motet.local(brokers=2, data=tmp_path, root="B1")


async def test_a_reused_name_means_the_newest_subscription() -> None:
    """The first "x" of a handler has ended, but is not read to its end when the second begins."""
    async with motet.local(brokers=3) as overlay:
        source, one, two = await cast(overlay)
        for old, new in ((one, two), (two, one), (one, two)):
            await source.send({"process": "p1"})
            await source.execute(hand_over(old, new))
        assert [each.name for each in two.registrations if each.name == "x"]


async def test_a_plan_tried_again_under_its_key_is_the_one_that_was_committed() -> None:
    async with motet.local(brokers=3) as overlay:
        source, one, two = await cast(overlay)
        plan = hand_over(one, two)
        first = await source.execute(plan, key="tonight")
        assert await source.execute(plan, key="tonight") == first
        with pytest.raises(motet.errors.Aborted, match="NoSuchOperation"):
            await source.execute(plan, key="tomorrow")


def test_without_await_an_explanation_is_the_same() -> None:
    with motet.local_sync(brokers=2) as overlay, overlay.connect("source", broker="B2") as source:
        plan = Plan()
        plan.subscribe("source", STREAM)
        told = source.explain(plan)
        assert "root B1, coordinated at B2" in told.summary
        assert told.hops is not None
        with source.transaction(isolation="none") as tx:
            tx.advertise(STREAM)
        assert "no client was invited" in source.explain(tx).hints[0]
