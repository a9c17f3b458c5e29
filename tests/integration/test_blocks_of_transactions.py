"""Events of a transaction from several brokers, as subscribers see them: one block, in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import motet
from motet import Client, Event, Plan, Subscription
from motet.client import LocalOverlay
from tests.waiting import PATIENCE_S, eventually

PUBLISHERS = ("one", "two")


async def publishers(overlay: LocalOverlay) -> dict[str, Client]:
    found: dict[str, Client] = {}
    for name, broker in zip(PUBLISHERS, ("B1", "B2"), strict=True):
        found[name] = await overlay.connect(name, broker=broker)
        await found[name].advertise(f"kind = 'move' and by = '{name}'")
        await found[name].participate()
    return found


def moves(first: int) -> Plan:
    """Six events, by turns."""
    plan = Plan()
    for at in range(6):
        who = PUBLISHERS[at % 2]
        plan.publish(who, {"kind": "move", "by": who, "n": first + at})
    return plan


async def take(subscription: Subscription, count: int) -> list[Event]:
    async with asyncio.timeout(2 * PATIENCE_S):
        return [await anext(subscription) for _ in range(count)]


async def test_all_events_of_a_transaction_come_in_a_row_and_in_plan_order() -> None:
    async with motet.local(brokers=3) as overlay:
        clients = await publishers(overlay)
        reader = await overlay.connect("reader", broker="B3")
        all_of_it = await reader.subscribe("kind = 'move'")
        names: list[str] = []
        for first in range(0, 60, 6):
            for name, client in clients.items():  # a live stream of both, besides
                await client.send({"kind": "move", "by": name, "n": -1})
            names.append(await clients["one"].execute(moves(first)))
        got = await take(all_of_it, 60 + 20)
        at = [i for i, event in enumerate(got) if event.transaction is not None]
        assert [got[i]["n"] for i in at] == list(range(60))
        assert [got[i].transaction for i in at] == [names[n // 6] for n in range(60)]
        for first in range(0, 60, 6):
            block = at[first : first + 6]
            assert block == list(range(block[0], block[0] + 6)), "something came between"


async def test_a_reader_of_one_half_gets_it_without_the_other() -> None:
    async with motet.local(brokers=3) as overlay:
        clients = await publishers(overlay)
        reader = await overlay.connect("reader", broker="B3")
        half = await reader.subscribe("by = 'two'")
        tx = await clients["one"].execute(moves(0))
        got = await take(half, 3)
        assert [(each["n"], each.transaction) for each in got] == [(1, tx), (3, tx), (5, tx)]


async def test_an_event_of_one_publisher_alone_has_its_transaction_too() -> None:
    async with motet.local(brokers=2) as overlay:
        clients = await publishers(overlay)
        reader = await overlay.connect("reader", broker="B2")
        inbox = await reader.subscribe("by = 'one'")
        async with clients["one"].transaction() as tx:
            await tx.publish({"kind": "move", "by": "one", "n": 1})
        await clients["one"].send({"kind": "move", "by": "one", "n": 2})
        first, second = await take(inbox, 2)
        assert (first.transaction, second.transaction) == (tx.id, None)
        assert first != second


async def test_a_half_waits_for_a_broker_that_is_away_and_comes_back(tmp_path: Path) -> None:
    async with motet.local(brokers=3, data=tmp_path) as overlay:
        clients = await publishers(overlay)
        reader = await overlay.connect("reader", broker="B1")
        all_of_it = await reader.subscribe("kind = 'move'")
        await take_part(clients)
        # Its broker stops as soon as the decision is made, before or after its cut.
        decided = overlay.drivers["B1"].core.durable.transactions.decider.state.outcomes
        before = len(decided)
        deciding = asyncio.create_task(clients["one"].execute(moves(0), timeout=2 * PATIENCE_S))
        await eventually(lambda: len(decided) > before)
        await overlay.stop_broker("B2")
        await overlay.start_broker("B2")
        tx = await deciding
        got = await take(all_of_it, 6)
        assert [each["n"] for each in got] == list(range(6))
        assert {each.transaction for each in got} == {tx}


async def take_part(clients: dict[str, Client]) -> None:
    """One transaction before, so that everybody knows everybody."""
    for client in clients.values():
        async with client.transaction(isolation="none"):
            pass


async def test_a_reader_that_subscribes_between_two_halves_is_not_kept_waiting() -> None:
    """It begins behind the cut of one pubend: that half is none of its business."""
    async with motet.local(brokers=3) as overlay:
        clients = await publishers(overlay)
        reader = await overlay.connect("reader", broker="B3")
        running = True

        async def go_on() -> int:
            count = 0
            while running:
                await clients["one"].execute(moves(6 * count))
                count += 1
            return count

        going = asyncio.create_task(go_on())
        seen: list[list[object]] = []
        for _ in range(10):
            late = await reader.subscribe("kind = 'move'")
            got = await take(late, 12)
            seen.append([each["n"] for each in got])
            await late.unsubscribe()
        running = False
        assert await going > 0
        for numbers in seen:
            # After what it has of the first transaction, which may be a part, all are complete.
            begins = next(at for at, n in enumerate(numbers) if isinstance(n, int) and n % 6 == 0)
            rest = numbers[begins:]
            assert rest == list(range(int(str(rest[0])), int(str(rest[0])) + len(rest)))


async def test_more_events_than_a_block_can_have_are_refused() -> None:
    async with motet.local(brokers=1) as overlay:
        plan = Plan()
        for name in ("a", "b", "c"):
            client = await overlay.connect(name)
            await client.advertise("n >= 0")
            await client.participate()
            for n in range(900):
                plan.publish(name, {"n": n})
        with pytest.raises(motet.errors.Aborted, match="2700 events"):
            await client.execute(plan)
