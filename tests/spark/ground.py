"""Brokers to be read by Spark, what is published there, and queries."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import motet
from motet.spark.source import MotetSource
from tests.integration.durable_broker import DurableBroker
from tests.waiting import JOB_S

CLIENTS = ("one", "two")


class Pair:
    """B1 and B2, processes of their own, with a client at each."""

    def __init__(self, folder: Path, *options: str) -> None:
        b1 = DurableBroker(folder, "B1", "--link", "B2", "--root", "B1", *options)
        link = ("--link", f"B1={b1.address}", "--root", "B1")
        self.brokers = (b1, DurableBroker(folder, "B2", *link, *options))
        self.folder = folder
        self.urls = ",".join(broker.address for broker in self.brokers)
        self.clients: list[motet.client.sync.SyncClient] = []

    def __enter__(self) -> Self:
        asyncio.run(self._start())
        for name, broker in zip(CLIENTS, self.brokers, strict=True):
            client = motet.connect_sync(broker.address, client_id=name)
            client.advertise(f"by = '{name}'")
            client.participate()
            self.clients.append(client)
        return self

    async def _start(self) -> None:
        for broker in self.brokers:
            await broker.start()
        for broker in self.brokers:
            await broker.links_up()

    def restart(self, number: int) -> None:
        """Kill a broker, and start it again."""
        self.brokers[number].kill()
        asyncio.run(self.brokers[number].start())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for client in self.clients:
                client.close()
        finally:
            for broker in self.brokers:
                broker.kill()

    def publish(self, number: int, ns: Sequence[int], **more: Any) -> None:
        """Events of one client, outside of transactions."""
        client = self.clients[number]
        for n in ns:
            client.send({"by": CLIENTS[number], "n": n, **more}, payload=b"%d" % n)
        client.flush()

    def transact(self, ns: Sequence[int]) -> str:
        """Events of both clients by turns, in one transaction; its name."""
        plan = motet.Plan()
        for at, n in enumerate(ns):
            who = CLIENTS[at % 2]
            plan.publish(who, {"by": who, "n": n})
        return self.clients[0].execute(plan)

    def ticks(self, number: int) -> list[int]:
        batches = motet.read_sync(self.brokers[number].address, columns=["tick"])
        return [row["tick"] for batch in batches for row in batch.rows()]

    def pubend(self, number: int) -> str:
        with motet.open_log_sync(self.brokers[number].address) as log:
            return log.describe()[0].pubend


class Stock:
    """1,000 events at B1, 100 at B2, three transactions of both, and 10 more events at each."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.urls = pair.urls
        pair.publish(0, range(1000), ratio=0.5, room="cellar")
        pair.publish(1, range(1000, 1100), ratio=1)
        self.transactions = [pair.transact(range(at, at + 6)) for at in (2000, 2006, 2012)]
        for number in (0, 1):
            pair.publish(number, range(3000 + number * 10, 3010 + number * 10))
        self.ns = sorted([*range(1100), *range(2000, 2018), *range(3000, 3020)])


class Desk:
    """What one test publishes at brokers that others use as well: 0 is a number of its own, and not
    a small one, which events of others may have."""

    width = 10_000
    _bases = count(width, width)

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.urls = pair.urls
        self.base = next(self._bases)
        self.filter = f"n >= {self.base} and n < {self.base + self.width}"

    def publish(self, number: int, ns: Sequence[int], **more: Any) -> None:
        self.pair.publish(number, [self.base + n for n in ns], **more)

    def transact(self, ns: Sequence[int]) -> str:
        return self.pair.transact([self.base + n for n in ns])

    def stream(self, spark: SparkSession, **options: Any) -> DataFrame:
        return stream(spark, self.urls, **{"filter": self.filter, **options})

    def written(self, spark: SparkSession, into: str) -> list[int]:
        return [n - self.base for n in written(spark, into)]


def read(spark: SparkSession, urls: str, **options: Any) -> DataFrame:
    said = {name: str(value) for name, value in options.items()}
    return spark.read.format("motet").options(brokers=urls, **said).load()


def direct(urls: str, **options: Any) -> list[dict[str, Any]]:
    """The same without Spark, which takes its time: it calls the source as Spark would."""
    said = {name: str(value) for name, value in options.items()}
    source = MotetSource({"brokers": urls, **said})
    reader = source.reader(source.schema())
    found: list[dict[str, Any]] = []
    for slice in reader.partitions():
        shipped, part = pickle.loads(pickle.dumps((reader, slice)))
        for batch in shipped.read(part):
            found += batch.to_pylist()
    return found


def direct_ns(urls: str, **options: Any) -> list[int]:
    return sorted(row["n"] for row in direct(urls, **{"columns": "n:int", **options}))


def direct_batches(
    urls: str, start: dict[str, Any] | None = None, **options: Any
) -> list[list[int]]:
    """What comes batch by batch if a stream is read to its end, from an offset if there is one."""
    said = {"columns": "n:int", "startingPosition": "earliest", **options}
    source = MotetSource({"brokers": urls, **{name: str(each) for name, each in said.items()}})
    reader = source.streamReader(source.schema())
    reader.prepareForTriggerAvailableNow()
    at, found = start or reader.initialOffset(), []
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        batches = [batch for slice in reader.partitions(at, end) for batch in reader.read(slice)]
        found.append([n for batch in batches for n in batch.column("n").to_pylist()])
        at = json.loads(json.dumps(end))
        reader.commit(at)
    reader.stop()
    return found


def ns(frame: DataFrame) -> list[int]:
    return sorted(row["n"] for row in frame.select("n").collect())


def stream(spark: SparkSession, urls: str, **options: Any) -> DataFrame:
    said = {"columns": "n:int,by:text,transaction", "startingPosition": "earliest", **options}
    said = {name: str(value) for name, value in said.items()}
    return spark.readStream.format("motet").options(brokers=urls, **said).load()


def run(frame: DataFrame, into: str, checkpoint: str) -> StreamingQuery:
    """What is available now, appended to Parquet files."""
    query = begin(frame, into, checkpoint, availableNow=True)
    try:
        assert query.awaitTermination(JOB_S)
    finally:
        query.stop()
    return query


def begin(frame: DataFrame, into: str, checkpoint: str, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.format("parquet").option("path", into)
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


def written(spark: SparkSession, into: str) -> list[int]:
    return ns(spark.read.parquet(into))


class Lent:
    """The session of all tests, which a command must not stop."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None: ...
