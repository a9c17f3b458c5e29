"""Publishers that move: a stream, an archive and a replay have their events in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import motet
from motet.spark import archive
from motet.spark.replay import Replay, Speed, prepare
from tests.spark.ground import Desk, direct_batches
from tests.spark.test_archive import kept
from tests.waiting import wait_until

MOVER = "mover"
AWAY = 40
"""Events before each move."""
TURNS = 6


def in_order(batches: Sequence[Sequence[int]]) -> bool:
    """Does every batch come behind all earlier ones?"""
    ends = [(min(batch), max(batch)) for batch in batches if batch]
    return all(one[1] < two[0] for one, two in pairwise(ends))


def own(batches: Sequence[Sequence[int]]) -> list[list[int]]:
    """The mover's events; the others have odd numbers."""
    return [[n // 2 for n in batch if n % 2 == 0] for batch in batches]


class Traffic:
    """A publisher goes from B1 to B2 and back, several times. The other clients publish meanwhile
    at both."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._is_over = threading.Event()
        self.sent = self.others = 0

    def go(self, turns: int = TURNS) -> None:
        url = self._desk.pair.brokers[0].address
        noise = threading.Thread(target=self._noise)
        noise.start()
        try:
            with motet.connect_sync(url, client_id=MOVER) as client:
                client.advertise(f"by = '{MOVER}'")
                for turn in range(turns):
                    for _ in range(AWAY):
                        client.send({"by": MOVER, "n": self._desk.base + 2 * self.sent})
                        self.sent += 1
                    client.move("B2" if turn % 2 == 0 else "B1")
                client.flush()
        finally:
            self._is_over.set()
            noise.join()

    def _noise(self) -> None:
        while not self._is_over.wait(0.02):
            self._desk.publish(self.others % 2, [2 * self.others + 1])
            self.others += 1


@pytest.fixture
def traffic(desk: Desk) -> Iterator[Traffic]:
    made = Traffic(desk)
    yield made
    assert made.others > 0


def test_no_batch_swaps_the_events_of_a_publisher_that_moves(
    desk: Desk, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a stream that is read long after the moves, when nobody is owed anything any more, in
    batches of any size, and in steps that are as large."""
    traffic.go()
    monkeypatch.setattr("motet.spark.planner.LEAST_STEPS", 1)
    for most in (7, 50, 1000):
        said = {"filter": desk.filter, "maxEventsPerTrigger": most}
        batches = [[n - desk.base for n in each] for each in direct_batches(desk.urls, **said)]
        found = own(batches)
        assert in_order(found)
        assert sorted(n for batch in found for n in batch) == list(range(traffic.sent))
        assert len([batch for batch in found if batch]) > 1 or most == 1000


def test_a_stream_an_archive_and_a_replay_follow_a_publisher_that_moves(
    spark: SparkSession, desk: Desk, traffic: Traffic, tmp_path: Path
) -> None:
    """Given a query that looks all the time while it moves."""
    batches: list[list[int]] = []

    def keep(frame: DataFrame, _: int) -> None:
        batches.append([row["n"] - desk.base for row in frame.collect()])

    writer = desk.stream(spark, maxEventsPerTrigger=25).writeStream.foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        traffic.go()
        made = traffic.sent + traffic.others
        wait_until(lambda: query.exception() is not None or sum(map(len, batches)) >= made)
    finally:
        query.stop()
    assert query.exception() is None
    found = own(batches)
    assert in_order(found)
    assert sorted(n for batch in found for n in batch) == list(range(traffic.sent))

    folder = tmp_path / "kept"
    kept(spark, desk.urls, folder, filter=desk.filter, maxEventsPerTrigger="30")
    assert archive.prove(spark, desk.urls, folder).holds
    homes = archive.read(spark, folder).where(F.col("publisher") == MOVER)
    assert homes.select("pubend").distinct().count() == len(desk.pair.brokers)

    url = desk.pair.brokers[0].address
    plan = prepare(spark, folder, tmp_path / "plans", publishers=2, brokers=[url])
    before = desk.pair.ticks(0)[-1]
    asyncio.run(Replay(plan, [url], Speed.parse("max")).run())
    again = motet.read_sync(url, since=before + 1, filter=desk.filter, columns=["n:int"])
    rows = [row["n"] - desk.base for batch in again for row in batch.rows()]
    assert [n // 2 for n in rows if n % 2 == 0] == list(range(traffic.sent))
    assert len(rows) == made
