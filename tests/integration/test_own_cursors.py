"""Effects and cursors in one transaction of SQLite, while every process is killed again and again.

The application below keeps no state but its database. It is killed in the middle of whatever it
does; so is the broker. In the end every event has had its effect once."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import motet
from tests.integration.durable_broker import DurableBroker
from tests.waiting import PATIENCE_S, POLL_S, eventually

EVENTS = 1500
KILLS = 8
SPACE = "step > 0"
APPLICATION = """
import asyncio, sqlite3, sys
import motet

async def main(url, path):
    database = sqlite3.connect(path)
    cursors = dict(database.execute("select pubend, tick from cursors"))
    async with motet.connect(url, client_id="billing", durable=True, cursors=cursors) as client:
        orders = await client.subscribe("step > 0", name="orders")
        async for event in orders:
            with database:
                database.execute("insert into effects values (?)", (event["step"],))
                database.execute(
                    "insert or replace into cursors values (?, ?)", (event.pubend, event.tick)
                )

asyncio.run(main(*sys.argv[1:]))
"""


def begin(url: str, path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        (sys.executable, "-c", APPLICATION, url, str(path)), stderr=subprocess.DEVNULL
    )


def done(path: Path) -> list[int]:
    database = sqlite3.connect(path)
    try:
        return [step for (step,) in database.execute("select step from effects order by rowid")]
    finally:
        database.close()


async def publish(url: str) -> None:
    async with motet.connect(url, client_id="source", durable=True) as source:
        await source.advertise(SPACE)
        for step in range(1, EVENTS + 1):
            await source.send({"step": step})
            if step % 25 == 0:
                await asyncio.sleep(POLL_S)  # so that it takes as long as what happens meanwhile
        await source.flush(timeout=2 * PATIENCE_S)


async def test_every_effect_happens_once(tmp_path: Path) -> None:
    chance = random.Random(4)
    path = tmp_path / "billing.db"
    database = sqlite3.connect(path)
    database.execute("pragma journal_mode = wal")
    database.execute("create table effects (step)")
    database.execute("create table cursors (pubend primary key, tick)")
    database.close()
    async with DurableBroker(tmp_path) as broker:
        async with motet.connect(broker.address, client_id="billing", durable=True) as client:
            await client.subscribe(SPACE, name="orders")
        publishing = asyncio.ensure_future(publish(broker.address))
        application = begin(broker.address, path)
        try:
            for kill in range(KILLS):
                more = len(done(path)) + chance.randint(1, EVENTS // (2 * KILLS))
                enough = min(more, EVENTS)
                await eventually(lambda least=enough: len(done(path)) >= least)
                if kill % 4 == 3:
                    broker.kill()
                    await broker.start()
                if kill % 4 != 1:
                    application.kill()
                    application.wait(PATIENCE_S)
                    application = begin(broker.address, path)
            await publishing
            await eventually(lambda: len(done(path)) >= EVENTS)
            await asyncio.sleep(10 * POLL_S)  # if more came, it would come now
        finally:
            application.kill()
            application.wait(PATIENCE_S)
        assert done(path) == list(range(1, EVENTS + 1))
