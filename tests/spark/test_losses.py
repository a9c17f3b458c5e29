"""Events that are no longer kept: an error, or skipped on request; never half a transaction."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from motet.broker.driver.service import PUBEND
from motet.runtime.pubend import PubendLog, Retention
from tests.spark.ground import Pair, direct_batches, direct_ns, run, stream, written


def trim(pair: Pair, number: int) -> None:
    """Everything that a broker has up to now goes from its log, but for what comes next."""
    broker = pair.brokers[number]
    pubend = pair.pubend(number)
    asyncio.run(broker.stop())
    log = PubendLog.open(broker.data / PUBEND, pubend, retention=Retention())
    log.roll()
    log.acknowledged(log.last_tick)
    assert log.trim().events
    asyncio.run(log.close())
    asyncio.run(broker.start())


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with Pair(tmp_path) as made:
        yield made


def test_retention_passed_a_query(spark: SparkSession, pair: Pair, tmp_path: Path) -> None:
    """Given a query that stands still while retention passes it at one of two brokers."""
    into, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    pair.publish(0, range(10))
    query = run(stream(spark, pair.urls), into, checkpoint)
    pair.publish(0, range(10, 20))
    pair.transact(range(20, 26))
    trim(pair, 0)
    pair.publish(0, [30])
    pair.publish(1, [31])
    with pytest.raises(Exception, match=r"events of .* are lost, from tick"):
        run(stream(spark, pair.urls), into, checkpoint)
    assert written(spark, into) == list(range(10))
    offset = json.loads(query.recentProgress[-1]["sources"][0]["endOffset"])
    found = direct_batches(pair.urls, offset, failOnDataLoss="false")
    # What is left of the transaction at the other broker is never read alone.
    assert sorted(n for batch in found for n in batch) == [30, 31]
    assert direct_ns(pair.urls) == [30, 31]
