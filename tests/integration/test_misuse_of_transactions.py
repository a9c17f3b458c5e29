"""What applications get wrong in transactions: they are told, and nothing else happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import motet
from motet import Client, LocalOverlay
from motet.errors import InTransaction
from tests.integration.durable_broker import SOON_S

STREAM = "process = 'p1'"


@pytest.fixture
async def overlay() -> AsyncIterator[LocalOverlay]:
    async with motet.local(2) as overlay:
        yield overlay


@pytest.fixture
async def alice(overlay: LocalOverlay) -> AsyncIterator[Client]:
    async with overlay.connect("alice", broker="B2") as client:
        await client.advertise(f"{STREAM} or call is not null")
        yield client


# ── taking back what a transaction holds ─────────────────────────────────────────────────


@pytest.mark.parametrize("commits", [True, False])
async def test_a_refused_unsubscribe_changes_nothing(alice: Client, commits: bool) -> None:
    tx = await alice.transaction()
    if commits:
        entry = await tx.subscribe(STREAM)
    else:
        entry = await alice.subscribe(STREAM)
        await tx.unsubscribe(entry)
    reader = asyncio.ensure_future(anext(entry))
    with pytest.raises(InTransaction):
        await alice.unsubscribe(entry)
    assert entry.in_force
    await (tx.commit() if commits else tx.abort())
    await alice.publish({"process": "p1"})
    assert (await asyncio.wait_for(reader, SOON_S))["process"] == "p1"
    await alice.unsubscribe(entry)
    assert not entry.in_force
    assert [event async for event in entry] == []


@pytest.mark.parametrize("commits", [True, False])
async def test_a_refused_unadvertise_changes_nothing(alice: Client, commits: bool) -> None:
    tx = await alice.transaction()
    if commits:
        entry = await tx.advertise("other = 1")
    else:
        entry = await alice.advertise("other = 1")
        await tx.unadvertise(entry)
    with pytest.raises(InTransaction):
        await alice.unadvertise(entry)
    assert entry.in_force
    await (tx.commit() if commits else tx.abort())
    await (await alice.publish({"other": 1}))
    await alice.unadvertise(entry)
    assert entry not in alice.standing


async def test_a_refusal_that_nobody_waits_for_changes_nothing(alice: Client) -> None:
    tx = await alice.transaction()
    entry = await tx.subscribe(STREAM)
    taking = asyncio.ensure_future(alice.unsubscribe(entry))
    await asyncio.sleep(0)
    assert not entry.in_force  # asked for, and not answered
    taking.cancel()
    await tx.commit()
    assert entry.in_force
    await alice.unsubscribe(entry)
    assert not entry.in_force
