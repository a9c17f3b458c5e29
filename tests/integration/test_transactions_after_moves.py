"""Transactions of a client that has moved beside the root: only the brokers on the path of its move
know its broker, all others know its direction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import motet
from motet import Client, Plan
from motet.client import LocalOverlay

BRIEF_S = 5.0
"""Longer than a transaction takes here, and shorter than the default timeout."""


@asynccontextmanager
async def moved() -> AsyncIterator[tuple[LocalOverlay, Client]]:
    """A client of B3 that has moved to B4; the root is B1."""
    async with (
        motet.local(brokers=4, root="B1") as overlay,
        overlay.connect("alice", broker="B3") as alice,
    ):
        await alice.subscribe("kind = 'stay'")
        await alice.participate()
        await alice.move(to="B4")
        yield overlay, alice


async def test_an_isolated_transaction_of_a_moved_client_begins() -> None:
    async with moved() as (_, alice):
        async with alice.transaction(isolation="serializable", timeout=BRIEF_S) as tx:
            await tx.subscribe("kind = 'new'")
        assert await alice.outcome(tx, timeout=BRIEF_S) == "committed"


async def test_a_plan_reaches_a_client_that_has_moved() -> None:
    async with moved() as (overlay, alice):
        for broker in overlay.brokers:
            async with overlay.connect(broker=broker) as other:
                plan = Plan()
                plan.subscribe("alice", f"seen_at = '{broker}'")
                await other.execute(plan, timeout=BRIEF_S)
        async with overlay.connect(broker="B2") as publisher:
            await publisher.advertise("seen_at is not null")
            for broker in overlay.brokers:
                await publisher.publish({"seen_at": broker})
        for broker, subscription in zip(overlay.brokers, alice.subscriptions[1:], strict=True):
            async with asyncio.timeout(BRIEF_S):
                assert (await anext(subscription))["seen_at"] == broker


async def test_everybody_learns_that_a_transaction_of_a_moved_client_is_open() -> None:
    async with moved() as (overlay, alice):
        async with alice.transaction(isolation="none", timeout=BRIEF_S) as tx:
            assert await outcomes(overlay, tx.id) == {"in progress"}
        assert await outcomes(overlay, tx.id) == {"committed"}


async def outcomes(overlay: LocalOverlay, tx: str) -> set[str]:
    """What clients of all brokers are told."""
    found = set()
    for broker in overlay.brokers:
        async with overlay.connect(broker=broker) as other:
            found.add(await other.outcome(tx, timeout=BRIEF_S))
    return found


async def test_a_client_that_moves_again_is_still_found() -> None:
    async with moved() as (overlay, alice):
        for target in ("B2", "B4", "B3", "B4"):
            await alice.move(to=target)
            async with alice.transaction(isolation="serializable", timeout=BRIEF_S) as tx:
                await tx.subscribe(f"kind = '{target}'")
            async with overlay.connect(broker="B1") as other:
                plan = Plan()
                plan.subscribe("alice", f"seen_from = '{target}'")
                await other.execute(plan, timeout=BRIEF_S)
                assert await other.outcome(tx.id, timeout=BRIEF_S) == "committed"
