"""A client belongs to one event loop of one process: others are told so, and do no harm."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import motet
from motet.errors import MisuseError
from tests.processes import printed_by
from tests.waiting import PATIENCE_S

FORKED = """
import asyncio, os, motet
from motet.broker.driver.service import volatile_broker
from motet.broker.overlay.topology import Wiring
from motet.errors import MisuseError
from motet.protocol.config import BrokerConfig

async def refused(call):
    try:
        found = call()
        if hasattr(found, "__await__"):
            await found
    except MisuseError as error:
        return "parent process" in str(error)
    return False

async def use(client, advertisement, subscription, tx, receipt):
    calls = (
        lambda: client.publish({"step": 10}),
        lambda: client.send({"step": 11}),
        lambda: client.send_nowait({"step": 12}),
        lambda: receipt,
        client.flush,
        lambda: client.subscribe("step > 0"),
        lambda: client.advertise("step > 0"),
        client.transaction,
        client.status,
        client.started,
        client.acknowledge,
        advertisement.unadvertise,
        subscription.unsubscribe,
        lambda: anext(subscription),
        subscription.get_nowait,
        lambda: tx.publish({"step": 13}),
        tx.commit,
    )
    said = [await asyncio.wait_for(refused(call), 60) for call in calls]
    await client.close()
    return said.index(False) + 1 if False in said else 0

async def main():
    driver = volatile_broker(BrokerConfig("B1", (), root="B1"), Wiring("motet://127.0.0.1:0"))
    await driver.start()
    async with motet.connect(driver.address, client_id="alice") as client:
        advertisement = await client.advertise("step > 0")
        subscription = await client.subscribe("step > 0")
        tx = await client.transaction()
        await client.publish({"step": 1})
        await asyncio.sleep(0.1)
        assert subscription.buffered == 1
        receipt = await client.send({"step": 2})
        child = os.fork()
        if child == 0:
            code = 99
            try:
                code = asyncio.run(use(client, advertisement, subscription, tx, receipt))
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        await client.publish({"step": 3})
        await tx.publish({"step": 4})
        await tx.commit()
        print(*[(await anext(subscription))["step"] for _ in range(4)])
        print(client.session.lost_sessions)
    await driver.stop()

asyncio.run(main())
"""


def test_a_forked_child_cannot_use_the_client_and_does_not_harm_it() -> None:
    assert printed_by(FORKED) == ["0", "1", "2", "3", "4", "0"]


Call = Callable[[motet.Client, motet.Subscription], Coroutine[Any, Any, object]]


async def _send_nowait(client: motet.Client, _: motet.Subscription) -> object:
    return client.send_nowait({"step": 9})


async def _subscribe(client: motet.Client, _: motet.Subscription) -> object:
    return await client.subscribe("step > 0")


async def _begin(client: motet.Client, _: motet.Subscription) -> object:
    return await client.transaction()


CALLS: dict[str, Call] = {
    "publish": lambda client, _: client.publish({"step": 9}),
    "send": lambda client, _: client.send({"step": 9}),
    "send_nowait": _send_nowait,
    "flush": lambda client, _: client.flush(),
    "close": lambda client, _: client.close(),
    "subscribe": _subscribe,
    "transaction": _begin,
    "status": lambda client, _: client.status(),
    "anext": lambda _, subscription: anext(subscription),
    "unsubscribe": lambda _, subscription: subscription.unsubscribe(),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_client_is_refused_in_another_event_loop(name: str) -> None:
    async with motet.local(1) as overlay, overlay.connect("alice") as client:
        await client.advertise("step > 0")
        subscription = await client.subscribe("step > 0")

        async def there() -> object:
            return await asyncio.wait_for(CALLS[name](client, subscription), PATIENCE_S)

        with pytest.raises(MisuseError, match="another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(there()))
        if name == "send_nowait":
            with pytest.raises(MisuseError, match="another event loop"):
                await asyncio.to_thread(client.send_nowait, {"step": 9})
        await client.publish({"step": 1})
        assert (await anext(subscription))["step"] == 1
        assert client.session.lost_sessions == 0


async def test_a_receipt_is_refused_in_another_event_loop() -> None:
    async with motet.local(1) as overlay, overlay.connect("alice") as client:
        await client.advertise("step > 0")
        await client.send({"step": 1})
        receipt = await client.send({"step": 2})

        async def there() -> None:
            await asyncio.wait_for(receipt, PATIENCE_S)

        problems: list[BaseException] = []

        def work() -> None:
            try:
                asyncio.run(there())
            except MisuseError as problem:
                problems.append(problem)

        thread = threading.Thread(target=work)  # this loop stands still, so nothing is settled
        thread.start()
        thread.join()
        assert "another event loop" in str(problems[0])
        await receipt
