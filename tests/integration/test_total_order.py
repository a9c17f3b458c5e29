"""Total order, as applications see it: everybody sees one sequence, whatever fails in between."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import pytest

import motet
from motet import Client, Subscription, Topology
from motet.errors import MisuseError
from motet.protocol.delivery.stream import Liveness
from tests.integration.test_durability import line
from tests.waiting import PATIENCE_S, eventually

EVERYTHING = "who is not null"
Seen = tuple[object, object]


async def publish(client: Client, name: str, first: int, last: int) -> None:
    for step in range(first, last + 1):
        await client.send({"who": name, "step": step})
        if step % 10 == 0:
            await asyncio.sleep(0.001)  # so that publishers take turns
    await client.flush(timeout=2 * PATIENCE_S)


async def take(subscription: Subscription, count: int) -> list[Seen]:
    async with asyncio.timeout(2 * PATIENCE_S):
        events = [await anext(subscription) for _ in range(count)]
    return [(event["who"], event["step"]) for event in events]


def in_publisher_order(seen: list[Seen], names: tuple[str, ...], count: int) -> bool:
    return all(
        [step for who, step in seen if who == name] == list(range(1, count + 1)) for name in names
    )


async def test_all_clients_see_one_sequence_although_a_broker_is_killed(tmp_path: Path) -> None:
    each = 400
    names = ("p1", "p2", "p3")
    async with line(tmp_path, 3, "--heartbeat", "0.5") as brokers, AsyncExitStack() as stack:

        async def connect(name: str, at: int, **options: object) -> Client:
            opening = motet.connect(brokers[at].address, client_id=name, **options)  # type: ignore[arg-type]
            return await stack.enter_async_context(opening)

        publishers = [await connect(name, at) for at, name in enumerate(names)]
        for client in publishers:
            await client.advertise(EVERYTHING)
        subscriptions = [
            await (await connect(f"s{n}", at, order="total")).subscribe(EVERYTHING)
            for n, at in enumerate((0, 1, 2, 2))
        ]
        work = [
            asyncio.ensure_future(publish(client, name, 1, each))
            for client, name in zip(publishers, names, strict=True)
        ]
        await eventually(lambda: subscriptions[0].buffered > each // 4)
        brokers[1].kill()
        await asyncio.sleep(0)
        await brokers[1].start()
        await asyncio.gather(*work)
        seen = [await take(each_one, 3 * each) for each_one in subscriptions]
    assert in_publisher_order(seen[0], names, each)
    assert all(other == seen[0] for other in seen)


async def test_a_broker_that_is_down_stops_them_and_status_names_it(
    tmp_path: Path,
) -> None:
    async with motet.local(3, data=tmp_path, heartbeat=0.5) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        carol = await overlay.connect("carol", broker="B3")
        await alice.advertise(EVERYTHING)
        await carol.advertise(EVERYTHING)
        bob = await overlay.connect("bob", broker="B2", order="total")
        dave = await overlay.connect("dave", broker="B2")
        merged = await bob.subscribe(EVERYTHING)
        plain = await dave.subscribe(EVERYTHING)
        await publish(alice, "alice", 1, 3)
        assert await take(merged, 3) == [("alice", 1), ("alice", 2), ("alice", 3)]
        await overlay.stop_broker("B3")
        await publish(alice, "alice", 4, 5)
        assert len(await take(plain, 5)) == 5
        waiting = (await bob.status())["total_order"]
        assert waiting["clients"] == 1
        assert [p.rpartition(".")[0] for p in waiting["waiting_for"]] == ["B3"]
        assert merged.buffered == 0
        await overlay.start_broker("B3")
        assert await take(merged, 2) == [("alice", 4), ("alice", 5)]
        await eventually(lambda: overlay.status()["B2"]["total_order"]["waiting_for"] == {})


async def test_a_publisher_that_comes_later_takes_its_place(tmp_path: Path) -> None:
    async with motet.local(3, data=tmp_path) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        await alice.advertise(EVERYTHING)
        readers = [await overlay.connect(f"r{n}", broker=f"B{n}", order="total") for n in (1, 2, 3)]
        subscriptions = [await reader.subscribe(EVERYTHING) for reader in readers]
        going_on = asyncio.ensure_future(publish(alice, "alice", 1, 200))
        carol = await overlay.connect("carol", broker="B3")
        await carol.advertise(EVERYTHING)
        await publish(carol, "carol", 1, 200)
        await going_on
        seen = [await take(each, 400) for each in subscriptions]
        assert in_publisher_order(seen[0], ("alice", "carol"), 200)
        assert seen[0] == seen[1] == seen[2]


async def test_an_answer_is_ordered_after_the_event_that_it_answers() -> None:
    async with motet.local(3) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        bob = await overlay.connect("bob", broker="B3", order="total")
        carol = await overlay.connect("carol", broker="B2", order="total")
        for client in (alice, bob):
            await client.advertise(EVERYTHING)
        questions = await bob.subscribe("who = 'alice'")
        everything = await carol.subscribe(EVERYTHING)
        for step in range(1, 21):
            await alice.send({"who": "alice", "step": step})
            async with asyncio.timeout(PATIENCE_S):
                await anext(questions)
            await bob.send({"who": "bob", "step": step})
        seen = await take(everything, 40)
        assert seen == [(who, step) for step in range(1, 21) for who in ("alice", "bob")]


async def test_a_durable_client_finds_its_place_in_the_order_again() -> None:
    async with motet.local(3) as overlay:
        publishers = [await overlay.connect(f"p{n}", broker=f"B{n}") for n in (1, 3)]
        for client in publishers:
            await client.advertise(EVERYTHING)
        witness = await overlay.connect("witness", broker="B1", order="total")
        everything = await witness.subscribe(EVERYTHING)
        seen: list[Seen] = []
        for turn in range(3):
            how = {"durable": True, "order": "total"}
            async with overlay.connect("audit", broker="B2", **how) as audit:
                entries = await audit.subscribe(EVERYTHING, name="entries")
                if not turn:
                    for at, client in enumerate(publishers):
                        await publish(client, f"p{at}", 1, 60)
                seen += await take(entries, 40)
        assert seen == await take(everything, 120)
        with pytest.raises(MisuseError, match="has the order 'total'"):
            await overlay.connect("audit", broker="B2", durable=True)


async def test_a_quiet_pubend_costs_a_round_trip_and_not_seconds() -> None:
    """Alice is busy at B4 where bob reads; carol, three hops away, says nothing."""
    topology = Topology.line(4)
    async with motet.local(topology) as overlay:
        alice = await overlay.connect("alice", broker="B4")
        carol = await overlay.connect("carol", broker="B1")
        for client in (alice, carol):
            await client.advertise(EVERYTHING)
        bob = await overlay.connect("bob", broker="B4", order="total")
        subscription = await bob.subscribe(EVERYTHING)
        took_s = []
        for step in range(30):
            sent_s = time.perf_counter()
            await alice.send({"who": "alice", "step": step})
            async with asyncio.timeout(PATIENCE_S):
                await anext(subscription)
            took_s.append(time.perf_counter() - sent_s)
    liveness = Liveness()
    assert median(took_s) < liveness.gap_s + liveness.silence_s, took_s


async def test_the_order_of_a_client_is_valid_and_cannot_change() -> None:
    async with motet.local(1) as overlay:
        for wrong in ("causal", "", None, True):
            with pytest.raises(MisuseError, match="`order` is 'publisher' or 'total'"):
                await overlay.connect("alice", order=wrong)
        client = await overlay.connect("alice", order="total")
        client._driver.machine.total_order = False  # another process would be told the same
        line_ = client._driver._line
        assert line_ is not None
        line_.connection.abort("cut by the test")
        await eventually(lambda: client.closed)
        with pytest.raises(MisuseError, match="has the order 'total'"):
            await client.send({"who": "alice"})


async def test_a_client_in_total_order_cannot_ask_for_earlier_events() -> None:
    async with motet.local(brokers=1) as overlay:
        client = await overlay.connect("late", order="total")
        with pytest.raises(MisuseError, match="cannot ask for earlier events"):
            await client.subscribe(EVERYTHING, since="beginning")
        await client.subscribe(EVERYTHING, since="now")
