"""An overlay inside one process: the same brokers, the same clients."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import motet
from motet import ordering
from motet.errors import ClosedError, MisuseError, NotAdvertised, TopologyError
from tests.waiting import PATIENCE_S


async def test_content_is_routed_across_three_brokers() -> None:
    async with motet.local(brokers=3) as overlay:
        assert overlay.brokers == ("B1", "B2", "B3")
        alice = await overlay.connect("alice", broker="B1")
        bob = await overlay.connect("bob", broker="B2")
        carol = await overlay.connect("carol", broker="B3")
        assert (alice.broker, bob.broker, carol.broker) == overlay.brokers
        await alice.advertise("process = 'p1' and step between 1 and 9")
        low = await bob.subscribe("process = 'p1' and step < 4")
        high = await carol.subscribe("step >= 8 or step = 2")
        other = await carol.subscribe("process = 'p2'")
        await alice.send_many({"process": "p1", "step": step} for step in range(1, 10))
        await alice.flush()
        async with asyncio.timeout(PATIENCE_S):
            assert [(await anext(low))["step"] for _ in range(3)] == [1, 2, 3]
            assert [(await anext(high))["step"] for _ in range(3)] == [2, 8, 9]
        assert other.buffered == 0
        assert overlay.status()["B3"]["tables"]["subscriptions"] >= 2
        with pytest.raises(NotAdvertised):
            await alice.publish({"process": "p1", "step": 10})


def shape(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: shape(value) for key, value in state.items()}
    return [shape(each) for each in state] if isinstance(state, list) else type(state)


async def test_a_local_overlay_reports_the_status_that_clients_get() -> None:
    async with motet.local(2) as overlay, overlay.connect("alice", broker="B1") as alice:
        heard, seen = await alice.status(), overlay.status()
        # Which kinds of frames a broker has sent depends on the moment.
        told = {**shape(heard), "sent": dict}
        assert {**shape(seen["B1"]), "sent": dict} == told
        assert {type(count) for count in heard["sent"].values()} == {int}
        assert {"process", "traffic", "connections"} <= seen["B2"].keys()


async def test_two_overlays_do_not_meet() -> None:
    async with motet.local(1) as one, motet.local(1) as two:
        alice, bob = await one.connect("alice"), await two.connect("bob")
        await alice.advertise("x > 0")
        subscription = await bob.subscribe("x > 0")
        await alice.publish({"x": 1})
        await asyncio.sleep(0.01)
        assert subscription.buffered == 0


@pytest.mark.parametrize("covering", [False, True])
async def test_events_reach_every_broker_of_a_tree(covering: bool) -> None:
    shape = motet.Topology.tree(7)
    async with motet.local(shape, covering=covering) as overlay:
        publisher = await overlay.connect(broker="B4", best_effort=covering)
        await publisher.advertise("x > 0")
        readers = [await overlay.connect(broker=name) for name in overlay.brokers]
        subscriptions = [await reader.subscribe("x > 1") for reader in readers]
        await publisher.send({"x": 1})
        await publisher.publish({"x": 2})
        async with asyncio.timeout(PATIENCE_S):
            assert [(await anext(s))["x"] for s in subscriptions] == [2] * 7


async def test_bad_shapes_and_names() -> None:
    for bad in ("3", 2.5, True):
        with pytest.raises(MisuseError):
            await motet.local(bad)  # type: ignore[arg-type]
    with pytest.raises(TopologyError):
        await motet.local(0)
    with pytest.raises(MisuseError, match="colour"):
        await motet.local(1, colour="blue")
    overlay = await motet.local(1)
    with pytest.raises(TopologyError, match="B9"):
        await overlay.connect(broker="B9")
    await overlay.close()
    await overlay.close()
    with pytest.raises(ClosedError):
        await overlay.connect()


def test_without_await() -> None:
    with motet.local_sync(2) as overlay:
        with (
            overlay.connect("alice", broker="B1") as alice,
            overlay.connect("bob", broker="B2") as bob,
        ):
            alice.advertise("x > 0")
            subscription = bob.subscribe("x > 1")
            alice.send({"x": 2})
            assert subscription.get(timeout=PATIENCE_S)["x"] == 2
        assert overlay.brokers == ("B1", "B2")
        assert overlay.status()["B1"]["broker"] == "B1"
    overlay.close()


async def test_a_broker_can_be_stopped_and_started_again() -> None:
    async with (
        motet.local(brokers=3) as overlay,
        overlay.connect("p", broker="B1") as p,
        overlay.connect("s", broker="B3") as s,
    ):
        await p.advertise("true")
        subscription = await s.subscribe("x = 1")
        await overlay.stop_broker("B2")
        with pytest.raises(motet.errors.NotEffective) as failure:
            await p.advertise("y = 1", timeout=0.2)
        assert failure.value.missing == ("B2",)
        with pytest.raises(motet.errors.MisuseError, match="B2 is not running"):
            await overlay.stop_broker("B2")
        await overlay.start_broker("B2")
        await p.advertise("y = 1")  # its echo means that the way through B2 is whole again
        await p.send({"x": 1})
        assert (await anext(subscription))["x"] == 1


@pytest.mark.parametrize("durable", [False, True])
async def test_an_overlay_brings_its_sequencer(tmp_path: Path, durable: bool) -> None:
    async with motet.local(brokers=2, ordering=True, data=tmp_path if durable else None) as overlay:
        service, sequencer = overlay.address("B1"), overlay.sequencer
        async with (
            ordering.connect(service, sequencer=sequencer) as one,
            ordering.connect(overlay.address("B2"), sequencer=sequencer) as two,
            one.subscribe("orders", "prices") as first,
            two.subscribe("prices", "orders") as second,
        ):
            for at in range(10):
                client, topic = (one, two)[at % 2], ("orders", "prices")[at % 3 % 2]
                await client.publish(topic, b"%d" % at)
            seen = [[await stream.get(PATIENCE_S) for _ in range(10)] for stream in (first, second)]
            orders = [[(each.topic, each.number, each.payload) for each in some] for some in seen]
            assert orders[0] == orders[1]
    assert (tmp_path / "B1" / "sequencer" / "journal").is_dir() == durable
    if durable:
        async with motet.local(brokers=2, ordering=True, data=tmp_path) as overlay:
            service, sequencer = overlay.address("B1"), overlay.sequencer
            async with ordering.connect(service, sequencer=sequencer) as client:
                receipt = await client.publish("orders", b"again")
                numbers = {number for topic, number, _ in orders[0] if topic == "orders"}
                assert receipt.number == max(numbers) + 1


async def test_an_overlay_without_a_sequencer_says_so() -> None:
    async with motet.local(brokers=1) as overlay:
        with pytest.raises(MisuseError, match="ordering=True"):
            overlay.sequencer  # noqa: B018
    with pytest.raises(MisuseError, match="ordering: is 'yes'; give true, false"):
        await motet.local(ordering="yes")  # type: ignore[arg-type]
