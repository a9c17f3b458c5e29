"""`motet sub --participate`: events of whatever plans have let begin, also before it came."""

from __future__ import annotations

import asyncio

import motet
from motet import Plan
from motet.cli.sub import SubscriptionEvents
from tests.waiting import PATIENCE_S


async def test_the_next_process_claims_subscriptions_begun_by_a_plan() -> None:
    async with motet.local(2) as overlay:
        source = await overlay.connect("source", broker="B1")
        await source.advertise("n is not null")
        plan = Plan()
        plan.subscribe("reader", "n > 0", name="by plan")
        async with overlay.connect("reader", broker="B2", durable=True) as reader:
            await reader.subscribe("n = 0")
            await reader.participate()
            await source.execute(plan)
        await source.send({"n": 1})
        await source.flush()
        async with overlay.connect("reader", broker="B2", durable=True) as reader:
            events = SubscriptionEvents(await reader.subscribe("n = 0"))
            await events.take_up(reader)
            assert (await asyncio.wait_for(anext(events), PATIENCE_S))["n"] == 1
            assert all(entry.claimed for entry in reader.registrations)
        await source.close()
