"""The history that a broker records of its log is complete even if it is killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import motet
from motet.audit.files import read_table
from tests.integration.durable_broker import DurableBroker
from tests.waiting import PATIENCE_S

TABLES = ("logged", "cuts", "starts", "deeds")


def rows(history: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(history, table).to_pylist()
    return found


def parts(history: Path) -> set[Path]:
    return set(history.glob("*/*.parquet"))


async def until(history: Path, table: str, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not any((history / table).glob("*.parquet")) or len(rows(history, table)) < count:
            await asyncio.sleep(0.05)


async def test_a_killed_broker_completes_its_history_after_the_restart(
    tmp_path: Path,
) -> None:
    history = tmp_path / "history"
    broker = DurableBroker(tmp_path, "B1", "--root", "B1", "--history", str(history))
    async with broker, motet.connect(broker.address, client_id="a") as client:
        await client.advertise("n >= 0")
        await client.participate()
        await client.send({"n": 0})
        await client.flush()
        await until(history, "logged", 1)
        written = parts(history)
        await client.subscribe("n > 0", name="later")
        plan = motet.Plan()
        for n in (1, 2):
            plan.publish("a", {"n": n})
        tx = await client.execute(plan)
        await client.send({"n": 3})
        await client.flush()
        broker.kill()
        for path in parts(history) - written:  # as if it had been killed within the second
            path.unlink()
        await broker.start()
        await client.send({"n": 4})
        await client.flush(PATIENCE_S)
        # One round of writing takes the tables one after the other.
        for table, count in {"logged": 5, "cuts": 1, "starts": 1, "deeds": 2}.items():
            await until(history, table, count)
        there = [row async for batch in motet.read(broker.address) for row in batch.rows()]
    logged = rows(history, "logged")
    assert sorted(row["tick"] for row in logged) == sorted(row["tick"] for row in there)
    assert Counter(row["tx"] for row in logged) == {"": 3, tx: 2}
    assert [row["tx"] for row in rows(history, "cuts")] == [tx]
    assert len(rows(history, "starts")) == 1
    assert len(rows(history, "deeds")) == 2


async def test_a_history_begins_when_it_is_asked_for(tmp_path: Path) -> None:
    """Events logged before are not recorded."""
    history = tmp_path / "history"
    broker = DurableBroker(tmp_path, "B1")
    async with broker, motet.connect(broker.address, client_id="a") as client:
        await client.advertise("n >= 0")
        await client.send({"n": 0})
        await client.flush()
        broker.kill()
        broker.options = ("--history", str(history))
        await broker.start()
        await client.send({"n": 1})
        await client.flush(PATIENCE_S)
        await until(history, "logged", 1)
    assert len(rows(history, "logged")) == 1
