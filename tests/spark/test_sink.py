"""What Spark writes: each batch is one transaction, whole and once, whatever fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import motet
import motet.spark
from tests.spark.ground import Pair, direct_batches
from tests.spark.sinks import Files, FlakySource, a_sink, blocks


def test_a_data_frame_is_written_as_one_transaction(spark: SparkSession, busy: Pair) -> None:
    url, sink = busy.brokers[0].address, a_sink()
    with motet.connect_sync(busy.brokers[1].address) as client:
        heard = client.subscribe(f"sink = '{sink}'")
        frame = spark.range(0, 5000, 1, 2).selectExpr("id as n", f"'{sink}' as sink")
        said = frame.write.format("motet").options(brokers=url, sink=sink, key="first")
        said.mode("append").save()
        said.mode("append").save()  # again, with the same key
        events = list(islice(heard, 5000))
        assert [event["n"] for event in events] == list(range(5000))
        assert {event.transaction for event in events} == {f"{sink}/batch/first"}
    assert blocks(url, sink) == {f"{sink}/batch/first": list(range(5000))}
    read = direct_batches(url, filter=f"sink = '{sink}'", maxEventsPerTrigger=100)
    assert [each for each in read if each] == [list(range(5000))], "never torn"


def test_another_thread_can_write_after_registering_the_source(
    spark: SparkSession, busy: Pair
) -> None:
    url, sink = busy.brokers[0].address, a_sink()
    frame = spark.range(3).selectExpr("id as n")

    def write() -> None:
        motet.spark.register(spark)
        frame.write.format("motet").options(brokers=url, sink=sink).mode("append").save()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    assert [*blocks(url, sink).values()] == [[0, 1, 2]]


def test_a_stream_goes_on_where_it_was(spark: SparkSession, busy: Pair, tmp_path: Path) -> None:
    url, sink, files = busy.brokers[0].address, a_sink(), Files(tmp_path)
    files.put(range(10))
    files.put(range(10, 13))
    query = str(files.into(spark, url, sink).id)
    first, second = f"{sink}/{query}/0", f"{sink}/{query}/1"

    def found() -> dict[str, list[int]]:
        return {tx: sorted(ns) for tx, ns in blocks(url, sink).items()}

    both = {first: list(range(10)), second: list(range(10, 13))}
    assert found() == both

    # The driver was killed between the broker's commit and its checkpoint: the batch runs again.
    files.forget_commit(1)
    files.put(range(20, 22))
    files.into(spark, url, sink)
    assert found() == {**both, f"{sink}/{query}/2": [20, 21]}

    # Its checkpoint was deleted: it would begin anew.
    with pytest.raises(StreamingQueryException, match=f"SinkTaken.*belongs to query {query}"):
        files.into(spark, url, sink, checkpoint="another")
    assert len(found()) == 3
    taken = files.into(spark, url, sink, checkpoint="another", onNewQuery="takeover")
    assert len(found()) == 6, "its three batches are its own"

    files.put([30])
    with pytest.raises(StreamingQueryException, match=f"before query {taken.id} took it over"):
        files.into(spark, url, sink, onNewQuery="takeover")
    assert len(found()) == 6


def test_a_commit_that_raises_after_success(
    spark: SparkSession, busy: Pair, tmp_path: Path
) -> None:
    url, sink, files = busy.brokers[0].address, a_sink(), Files(tmp_path)
    spark.dataSource.register(FlakySource)
    files.put(range(10))
    flag = {"format": "flaky", "flag": str(tmp_path / "flag")}
    with pytest.raises(StreamingQueryException, match="after success"):
        files.into(spark, url, sink, **flag)
    once = blocks(url, sink)
    assert sorted(*once.values()) == list(range(10)), "Spark has aborted it, but it is committed"
    files.into(spark, url, sink, **flag)
    assert blocks(url, sink) == once
