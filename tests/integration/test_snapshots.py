"""Snapshots of a broker that runs: taken under traffic, killed half-way, looked at meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import motet
from motet import Client
from motet.broker.folder.recovery import JOURNAL, open_folder
from motet.cli.main import run
from motet.errors import LogCorrupted
from motet.protocol.config import BrokerConfig
from tests.integration.durable_broker import DurableBroker, flip
from tests.waiting import PATIENCE_S, eventually

OFTEN = ("--snapshot-bytes", "3000")
RARELY = ("--snapshot-bytes", str(1 << 30))


class Traffic:
    """Subscribes and unsubscribes, so that the journal grows and what it amounts to does not."""

    def __init__(self, client: Client) -> None:
        self.rounds = 0
        self.last = ""
        self._client = client

    async def run(self) -> None:
        while True:
            self.last = f"x = {self.rounds}"
            subscription = await self._client.subscribe(self.last, timeout=PATIENCE_S)
            await subscription.unsubscribe(timeout=PATIENCE_S)
            self.rounds += 1


@asynccontextmanager
async def traffic(broker: DurableBroker) -> AsyncIterator[Traffic]:
    """A client with one subscription that lasts, and one that comes and goes."""
    async with motet.connect(broker.address, client_id="alice") as client:
        await client.subscribe("lasting = true")
        busy = Traffic(client)
        work = asyncio.create_task(busy.run())
        try:
            yield busy
            assert not work.done()
            assert client.session.lost_sessions == 0
        finally:
            work.cancel()
            await asyncio.wait({work})


def replayed(broker: DurableBroker) -> int:
    """How many facts it has read when it was started last."""
    (count,) = re.findall(r"B1 replayed (\d+) facts", broker.said)
    return int(count)


async def test_snapshots_come_and_the_journal_before_them_goes(tmp_path: Path) -> None:
    async with DurableBroker(tmp_path, "B1", *OFTEN) as broker, traffic(broker) as busy:
        await eventually(lambda: bool(broker.snapshots))
        (first,) = broker.snapshots
        await eventually(lambda: not first.exists())  # the next one takes its place
        await eventually(lambda: len(broker.snapshots) == len(broker.segments) == 1)
        journaled = (await broker.status())["journal"]
        assert journaled["first"] > int(first.stem)
        broker.kill()
        assert "lasting = true" in broker.wanted() <= {"lasting = true", busy.last}
        await broker.start()
        done = busy.rounds
        await eventually(lambda: busy.rounds > done + 1)
        assert 0 < replayed(broker) < journaled["appended"]


async def test_a_broker_killed_during_a_snapshot_recovers(tmp_path: Path) -> None:
    async with DurableBroker(tmp_path, "B1", *OFTEN) as broker, traffic(broker) as busy:
        for alone in (True, False):
            segments = set(broker.segments)
            await eventually(lambda: not segments >= set(broker.segments))  # noqa: B023
            # The broker has begun a new segment: another process makes a snapshot of the others.
            broker.kill(alone=alone)  # or that one goes on, when a new broker runs already
            assert "lasting = true" in broker.wanted() <= {"lasting = true", busy.last}
            unfinished = broker.data / "00000000000000000007.snapshot.new"
            unfinished.write_bytes(b"half a snapshot")
            await broker.start()
            assert not unfinished.exists()
            done = busy.rounds
            await eventually(lambda: busy.rounds > done)  # noqa: B023
        before = set(broker.snapshots)
        await eventually(lambda: bool(set(broker.snapshots) - before))


async def test_a_folder_is_looked_at_while_its_broker_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with DurableBroker(tmp_path, "B1", *OFTEN) as broker, traffic(broker):
        seen: set[str] = set()
        positions: list[int] = []

        async def look() -> None:
            status = await asyncio.to_thread(
                run, ["journal", "inspect", str(broker.data), "--facts", "3", "--json"]
            )
            said = capsys.readouterr()
            assert said.err == ""
            told = json.loads(said.out)
            assert (status, told["problems"]) == (0, [])
            assert told["broker"]["name"] == "B1"
            assert all(each["kind"] for each in told["listed"])
            positions.append(told["broker"]["facts"])
            seen.update(each["file"] for each in told["snapshots"])

        async with asyncio.timeout(PATIENCE_S):
            while len(seen) < 2:
                await look()
        assert positions == sorted(positions)
        assert len(set(positions)) > 2


async def test_a_snapshot_that_is_broken_or_gone_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = DurableBroker(tmp_path, "B1", *RARELY)
    async with broker, motet.connect(broker.address) as client:
        await client.subscribe("x > 0")
        await broker.stop()
    assert run(["journal", "snapshot", str(broker.data)]) == 0
    (snapshot,) = broker.snapshots
    whole = snapshot.read_bytes()
    for harm, words in (
        (lambda: flip(snapshot, len(whole) // 2), (f"{snapshot}: record ", " at offset ")),
        (lambda: snapshot.write_bytes(whole[:-20]), (str(snapshot),)),
        (snapshot.unlink, (str(broker.data / JOURNAL), "snapshot", "is missing")),
    ):
        harm()
        with pytest.raises(LogCorrupted) as caught:
            open_folder(BrokerConfig("B1"), broker.data)
        assert all(word in str(caught.value) for word in words), caught.value
        assert "or move " in str(caught.value)
        assert run(["journal", "verify", str(broker.data)]) == 1
        assert capsys.readouterr().err.startswith(f"error: {broker.data}")
        snapshot.write_bytes(whole)
    assert broker.wanted() == {"x > 0"}


async def test_a_snapshot_that_finds_no_room_costs_nothing_but_a_longer_journal(
    tmp_path: Path,
) -> None:
    async with DurableBroker(tmp_path, "B1", *OFTEN) as broker:
        (broker.data / "99999999999999999999.snapshot").mkdir()  # in the way of all others
        async with traffic(broker) as busy:
            await eventually(lambda: "no snapshot was taken: " in broker.said)
            assert "99999999999999999999.snapshot" in broker.said
            done = busy.rounds
            await eventually(lambda: busy.rounds > done)
            assert "Traceback" not in broker.said
