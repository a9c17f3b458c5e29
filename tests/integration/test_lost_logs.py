"""A broker whose log of events was destroyed goes on with `--accept-loss`: nothing is numbered
twice, and whoever may be owed something of it is told."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import motet
from motet import Client, Subscription
from motet.broker.driver.service import PUBEND
from motet.broker.folder.recovery import read_durable
from motet.client.client import AwaitableContext
from motet.errors import EventsLost
from tests.integration.durable_broker import DurableBroker
from tests.integration.test_durable_clients import crash
from tests.waiting import PATIENCE_S, eventually

SPACE = "step > 0"


async def destroy(broker: DurableBroker) -> None:
    """SIGKILL, then somebody removes the log, and an operator accepts that."""
    broker.kill()
    shutil.rmtree(broker.data / PUBEND)
    broker.options = (*broker.options, "--accept-loss")
    await broker.start()


async def publish(client: Client, first: int, last: int) -> None:
    for step in range(first, last + 1):
        await client.send({"step": step})
    await client.flush(timeout=PATIENCE_S)


async def read_on(subscription: Subscription) -> None:
    """Brokers on the way may remember some events."""
    async with asyncio.timeout(PATIENCE_S):
        for step in range(1, 7):
            assert (await anext(subscription))["step"] == step


def feed(broker: DurableBroker) -> AwaitableContext[Client]:
    return motet.connect(broker.address, client_id="feed", durable=True)


async def sequences(broker: DurableBroker) -> list[tuple[str, int]]:
    """Of all that its log has, by epoch and number."""
    found: list[tuple[str, int]] = []
    async for batch in motet.read(broker.address, columns=["epoch", "sequence"]):
        found += [(row["epoch"], row["sequence"]) for row in batch.rows()]
    return found


# ── publishers ───────────────────────────────────────────────────────────────────────────


async def test_a_returning_publisher_continues_after_its_last_number(tmp_path: Path) -> None:
    async with DurableBroker(tmp_path) as broker:
        async with feed(broker) as publisher:
            await publisher.advertise(SPACE)
            await publish(publisher, 1, 30)
            epoch = publisher.session.epoch
        await destroy(broker)
        broker.kill()
        await broker.start()  # the loss is not forgotten with the process that met it
        async with feed(broker) as publisher:
            assert publisher.session.resumed
            assert publisher.session.epoch == epoch
            assert publisher.session.published == 30
            await publisher.advertise(SPACE)
            await publish(publisher, 31, 33)
        assert await sequences(broker) == [(epoch, number) for number in (31, 32, 33)]


async def test_a_connected_publisher_continues_after_its_last_number(tmp_path: Path) -> None:
    async with (
        DurableBroker(tmp_path) as broker,
        motet.connect(broker.address, client_id="plain") as publisher,
    ):
        await publisher.advertise(SPACE)
        await publish(publisher, 1, 30)
        epoch = publisher.session.epoch
        await destroy(broker)
        await publish(publisher, 31, 33)
        assert publisher.session.epoch == epoch
        assert await sequences(broker) == [(epoch, number) for number in (31, 32, 33)]


async def test_a_publisher_whose_progress_is_unknown_gets_a_new_session(
    tmp_path: Path,
) -> None:
    async with DurableBroker(tmp_path) as broker:
        reader = await motet.connect(broker.address, client_id="reader", durable=True)
        await reader.subscribe(SPACE)
        publisher = await feed(broker)
        await publisher.advertise(SPACE)
        await publish(publisher, 1, 30)
        epoch = publisher.session.epoch
        broker.kill()
        crash(publisher)
        crash(reader)
        await destroy(broker)
        async with motet.connect(broker.address, client_id="reader", durable=True) as reader:
            assert reader.session.resumed, "it has never published"
        async with feed(broker) as publisher:
            assert not publisher.session.resumed
            assert publisher.session.published == 0
            assert publisher.registrations == ()
            assert publisher.session.epoch != epoch
            await publisher.advertise(SPACE)
            await publish(publisher, 1, 3)
            epoch = publisher.session.epoch
        async with feed(broker) as publisher:
            assert publisher.session.resumed
            assert publisher.session.published == 3
        assert await sequences(broker) == [(epoch, number) for number in (1, 2, 3)]


# ── subscribers ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("leaves", ["before", "after"])
async def test_a_subscriber_hears_of_the_loss_although_its_publisher_has_left(
    tmp_path: Path, leaves: str
) -> None:
    first = DurableBroker(tmp_path, "B1", "--link", "B2", "--lease", "0.5")
    second = DurableBroker(tmp_path, "B2", "--link", f"B1={first.address}")
    async with first, second:
        await second.links_up()
        async with motet.connect(second.address, client_id="reader", durable=True) as reader:
            await reader.subscribe(SPACE, name="all")
            publisher = await motet.connect(first.address, client_id="writer")
            await publisher.advertise(SPACE)
        await publish(publisher, 1, 5)
        if leaves == "before":
            await publisher.close()
        else:
            crash(publisher)
        await destroy(first)

        async def left() -> bool:
            tables = (await first.status())["tables"]
            return tables["retired_advertisements"] == 1

        await eventually(left)
        await second.links_up()
        async with motet.connect(second.address, client_id="reader", durable=True) as reader:
            assert reader.session.resumed
            subscription = await reader.subscribe(SPACE, name="all", on_loss="raise")
            with pytest.raises(EventsLost):
                await read_on(subscription)
            waiting = asyncio.ensure_future(anext(subscription))  # it is done with the loss

            async def over() -> bool:
                tables = (await first.status())["tables"]
                return tables["retired_advertisements"] == 0

            await eventually(over)
            waiting.cancel()
            await asyncio.wait([waiting])
        pubend = (await first.status())["pubend"]
        assert pubend["lost_events"] is None, "nobody knows how many"
        assert pubend["destroyed_upto"] == pubend["lost_upto"] > 0
        assert "named cursors" in first.said


async def test_a_client_that_has_left_is_known_to_have_left(tmp_path: Path) -> None:
    async with DurableBroker(tmp_path) as broker:
        for _ in range(10):
            async with feed(broker):
                pass
            (session,) = read_durable(broker.data)[0].sessions
            assert session.left_at is not None
