"""Sinks at brokers that are processes of their own, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import motet
from motet.client.logs.stage import Attempt, StagedPart, commit, drop, open_stage
from motet.errors import (
    EventError,
    MisuseError,
    MotetError,
    ProtocolError,
    SinkTaken,
    StagingLost,
)
from motet.model import encode_event
from motet.model.limits import MAX_EVENT_BYTES
from tests.integration.durable_broker import DurableBroker
from tests.waiting import PATIENCE_S

SINK, QUERY = "levels", "q"
_readers: set[asyncio.Task[None]] = set()


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[DurableBroker, DurableBroker]]:
    home = DurableBroker(folder, "B1", "--link", "B2", "--root", "B1")
    other = DurableBroker(folder, "B2", "--link", f"B1={home.address}", "--root", "B1")
    async with home, other:
        await home.links_up()
        await other.links_up()
        yield home, other


async def staged(home: DurableBroker, epoch: int, ns: range, name: str = "a") -> StagedPart:
    attempt = Attempt(SINK, QUERY, epoch, 0, f"{name}-{epoch}")
    async with open_stage(home.address, attempt, timeout=PATIENCE_S) as stage:
        for at in range(0, len(ns), 4096):
            await stage.add([encode_event({"n": n}, b"x" * 50) for n in ns[at : at + 4096]])
        return await stage.seal()


async def first(subscription: motet.Subscription, count: int) -> list[motet.Event]:
    """Reading goes on behind them: an event that is in hand holds back what follows it."""
    found: list[motet.Event] = []
    enough = asyncio.Event()

    async def read() -> None:
        async for event in subscription:
            found.append(event)
            if len(found) == count:
                enough.set()

    reading = asyncio.create_task(read())
    _readers.add(reading)
    await enough.wait()
    return found


async def test_subscribers_elsewhere_get_whole_batches_between_other_events(tmp_path: Path) -> None:
    """While others publish, and while the home is killed and comes back in the middle of it."""
    size, batches = 12_000, 3
    async with pair(tmp_path) as (home, other):
        reader = await motet.connect(other.address, client_id="reader")
        numbers = await reader.subscribe("n >= 0")
        rest = await reader.subscribe("x >= 0")
        writer = await motet.connect(home.address, client_id="writer")
        await writer.advertise("x >= 0")
        for epoch in range(batches):
            part = await staged(home, epoch, range(epoch * size, (epoch + 1) * size))
            committing = asyncio.create_task(commit(home.address, SINK, QUERY, epoch, [part]))
            for x in range(20):
                await writer.send({"x": epoch * 20 + x})
            await asyncio.sleep(0.05 * epoch)  # any moment will do
            home.kill()
            await home.start()
            assert await asyncio.wait_for(committing, PATIENCE_S) == f"{SINK}/{QUERY}/{epoch}"
        await writer.flush(PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            got, xs = await asyncio.gather(first(numbers, size * batches), first(rest, 60))
        txs = [f"{SINK}/{QUERY}/{epoch}" for epoch in range(batches)]
        told = [(event["n"], event.publisher, event.transaction) for event in got]
        assert told == [(n, SINK, txs[n // size]) for n in range(size * batches)]
        assert [event["x"] for event in xs] == list(range(60))
        async with motet.open_log(home.address) as log:
            (account,) = await log.describe()
            steps = (await log.outline(account.pubend, every_block=True)).steps
        blocks = [(step.tx, step.events) for step in steps if step.tx]
        assert blocks == [(tx, size) for tx in txs]
        assert not list((home.data / "staging").rglob("*.rows"))
        await writer.close()
        await reader.close()


async def test_a_broker_refuses_to_stage_invalid_events(tmp_path: Path) -> None:
    async with DurableBroker(tmp_path) as home:

        async def refused(bodies: list[bytes]) -> MotetError:
            attempt = Attempt(SINK, QUERY, 0, 0, "a")
            async with open_stage(home.address, attempt, timeout=PATIENCE_S) as stage:
                with pytest.raises(MotetError) as raised:
                    await stage.add(bodies)
                return raised.value

        good = encode_event({"n": 1}, b"")
        assert isinstance(await refused([]), ProtocolError)
        assert isinstance(await refused([good] * 5000), ProtocolError)
        assert isinstance(
            await refused([encode_event({"n": 1}, b"x" * 600_000)] * 2), ProtocolError
        )
        assert isinstance(
            await refused([good, encode_event({"n": 1}, b"x" * MAX_EVENT_BYTES)]),
            EventError | ProtocolError,
        )
        assert isinstance(await refused([good, encode_event({"1x": 1}, b"")]), EventError)
        assert isinstance(await refused([good, b"\x01"]), MotetError)
        assert not list((home.data / "staging").rglob("*.rows"))


async def test_drop_removes_only_uncommitted_rows(tmp_path: Path) -> None:
    async with DurableBroker(tmp_path) as home:
        part = await staged(home, 0, range(10))
        await drop(home.address, SINK, QUERY, 0)
        with pytest.raises(StagingLost):
            await commit(home.address, SINK, QUERY, 0, [part])
        part = await staged(home, 0, range(10), "b")
        await commit(home.address, SINK, QUERY, 0, [part])
        await drop(home.address, SINK, QUERY, 0)
        with pytest.raises(SinkTaken):
            await commit(home.address, SINK, "another", 0, [])
        async with motet.connect(home.address) as client:
            status = await client.status()
        assert status["sinks"] == {SINK: {"query": QUERY, "epoch": 0, "keys": 0, "copying": []}}


async def test_brokers_without_files_offer_no_sinks() -> None:
    async with motet.local(brokers=1) as overlay:
        url = overlay.address("B1")
        with pytest.raises(motet.errors.NotOffered, match="does not support sinks"):
            async with open_stage(
                url, Attempt(SINK, QUERY, 0, 0, "a"), timeout=PATIENCE_S
            ) as stage:
                await stage.add([encode_event({"n": 1}, b"")])
        with pytest.raises(motet.errors.NotOffered, match="does not support sinks"):
            await commit(url, SINK, QUERY, 0, [StagedPart(0, "a", 1, 1, 1)])


async def test_two_queries_write_into_one_sink_at_once(tmp_path: Path) -> None:
    """Each fences the other off, and asks again; all batches are there, once."""
    async with DurableBroker(tmp_path) as home:
        jobs = [f"job-{number}" for number in range(4)]

        async def write(job: str) -> None:
            attempt = Attempt(SINK, job, 0, 0, "a")
            async with open_stage(home.address, attempt, timeout=PATIENCE_S) as stage:
                await stage.add([encode_event({"job": job, "n": n}, b"") for n in range(500)])
                part = await stage.seal()
            await commit(home.address, SINK, job, None, [part], key=job, timeout=PATIENCE_S)

        await asyncio.gather(*map(write, jobs))
        rows = [row async for row in _rows(home.address)]
    assert sorted(rows) == sorted((job, n) for job in jobs for n in range(500))


async def _rows(url: str) -> AsyncIterator[tuple[str, int]]:
    async with motet.open_log(url) as log:
        async for batch in log.read(columns=["job:text", "n:int"]):
            for row in batch.rows():
                yield row["job"], row["n"]


async def staged_in_the_end(home: DurableBroker, epoch: int) -> StagedPart:
    """That a client has left takes a moment to be known elsewhere."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await staged(home, epoch, range(3))
            except MisuseError:
                await asyncio.sleep(0.05)


async def test_a_sink_does_not_take_the_name_of_a_client(tmp_path: Path) -> None:
    """It would be fenced off: here, elsewhere, and if it is durable, also while it is away. The
    names of sinks are free again and again."""
    async with pair(tmp_path) as (home, other):
        for broker in (home, other):
            async with motet.connect(broker.address, client_id=SINK) as client:
                subscription = await client.subscribe("n >= 0")
                with pytest.raises(MisuseError, match=f"'{SINK}' is a client, connected to B"):
                    await staged(home, 0, range(3))
                async with motet.connect(home.address, client_id="writer") as writer:
                    await writer.advertise("n >= 0")
                    await writer.send({"n": 7})
                    event = await asyncio.wait_for(anext(subscription), PATIENCE_S)
                assert event["n"] == 7, "nobody has fenced it off"
        for epoch in (0, 1):
            part = await staged_in_the_end(home, epoch)
            await commit(home.address, SINK, QUERY, epoch, [part])
        async with motet.connect(home.address, client_id="patient", durable=True) as patient:
            await patient.subscribe("n >= 0", name="numbers")
        attempt = Attempt("patient", QUERY, 0, 0, "a")
        async with open_stage(home.address, attempt, timeout=PATIENCE_S) as stage:
            with pytest.raises(MisuseError, match="'patient' is a durable client of B1"):
                await stage.add([encode_event({"n": 1}, b"")])
