"""One client id, one session, wherever in the overlay its clients connect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import motet
from motet.broker.driver.driver import BrokerDriver
from motet.broker.driver.service import volatile_broker
from motet.broker.overlay.topology import Wiring
from motet.errors import Fenced
from motet.protocol.config import BrokerConfig
from tests.waiting import PATIENCE_S, eventually

ANYWHERE = "motet://127.0.0.1:0"


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[BrokerDriver, BrokerDriver]]:
    """Two brokers that are linked over TCP."""
    first = volatile_broker(BrokerConfig("B1", ("B2",)), Wiring(ANYWHERE))
    await first.start()
    dial = {"B1": first.address}
    second = volatile_broker(BrokerConfig("B2", ("B1",)), Wiring(ANYWHERE, dial))
    await second.start()
    try:
        await eventually(lambda: all(linked(driver) for driver in (first, second)))
        yield first, second
    finally:
        await second.stop()
        await first.stop()


def linked(driver: BrokerDriver) -> bool:
    return all(link["phase"] == "up" for link in driver.core.status()["links"].values())


def sessions(driver: BrokerDriver) -> dict[str, str]:
    told = driver.core.status()["sessions"]
    return {client: session["epoch"] for client, session in told.items()}


async def test_a_client_fences_its_namesake_at_another_broker() -> None:
    async with pair() as (b1, b2), motet.connect(b2.address, client_id="bob") as bob:
        await bob.advertise("x > 0")
        first = await motet.connect(b1.address, client_id="alice")
        old = await first.subscribe("x > 0")
        waiting = asyncio.ensure_future(anext(old))
        async with motet.connect(b2.address, client_id="alice") as second:
            with pytest.raises(Fenced, match=r"another client connected to B2 as 'alice'"):
                await asyncio.wait_for(waiting, PATIENCE_S)
            with pytest.raises(Fenced):
                await first.send({"x": 1})
            assert first.closed
            new = await second.subscribe("x > 0")
            await bob.publish({"x": 1})
            async with asyncio.timeout(PATIENCE_S):
                assert (await anext(new))["x"] == 1
            await eventually(lambda: sessions(b1) == {})
            assert sessions(b2) == {"bob": bob.session.epoch, "alice": second.session.epoch}
            await eventually(lambda: b1.core.status()["tables"]["clients"] == 2)
            assert b1.core.status()["tables"]["subscriptions"] == 0
            assert second.connected
        await first.close()


async def test_one_of_two_clients_with_the_same_id_stays_if_both_connect_at_once() -> None:
    async with pair() as (b1, b2):
        both = await asyncio.gather(
            motet.connect(b1.address, client_id="alice"),
            motet.connect(b2.address, client_id="alice"),
        )
        await eventually(lambda: any(client.closed for client in both))
        (left,) = [client for client in both if not client.closed]
        await left.subscribe("x > 0")
        assert sessions(b1) | sessions(b2) == {"alice": left.session.epoch}
        for client in both:
            await client.close()
        await eventually(lambda: not b1.core.status()["tables"]["clients"])


@pytest.mark.parametrize("durable", [False, True], ids=["volatile", "durable"])
async def test_a_client_that_was_away_does_not_take_its_session_back(
    durable: bool, tmp_path: Path
) -> None:
    async with motet.local(2, data=tmp_path if durable else None) as overlay:
        first = await overlay.connect("alice", broker="B1")
        await first.subscribe("x > 0")
        await overlay.stop_broker("B1")
        await eventually(lambda: not first.connected)
        second = await overlay.connect("alice", broker="B2")
        subscription = await second.subscribe("x > 0", wait="local")
        await overlay.start_broker("B1")
        await eventually(lambda: first.closed)
        with pytest.raises(Fenced, match="B2"):
            await first.subscribe("x > 0")
        bob = await overlay.connect("bob", broker="B1")
        await bob.advertise("x > 0")
        await bob.publish({"x": 1})
        async with asyncio.timeout(PATIENCE_S):
            assert (await anext(subscription))["x"] == 1
        assert second.connected
        assert not second.session.lost_sessions


async def test_a_client_that_was_fenced_elsewhere_may_be_started_again() -> None:
    async with motet.local(2) as overlay:
        epochs = []
        for broker in ("B1", "B2", "B1", "B1", "B2"):
            client = await overlay.connect("alice", broker=broker)
            await client.advertise("x > 0")
            epochs.append(client.session.epoch)
        assert len(set(epochs)) == len(epochs), "each start is an epoch of its own"
        await eventually(
            lambda: all(len(sessions(d)) == (n == "B2") for n, d in overlay.drivers.items())
        )
        assert client.connected
        assert overlay.status()["B1"]["tables"]["advertisements"] == 1
