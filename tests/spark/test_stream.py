"""Streaming reads: exactly once, in whole transactions, whatever happens between."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import LongType, StructField, StructType

import motet
from motet.errors import MisuseError
from motet.spark.source import MotetSource
from tests.spark.ground import Desk, Stock, begin, direct_batches, run, stream, written
from tests.waiting import wait_until

LEAST_BATCHES = 4


def sizes(query: StreamingQuery) -> list[int]:
    return [each["numInputRows"] for each in query.recentProgress]


def test_limits_are_kept_and_no_transaction_is_torn(
    spark: SparkSession, stock: Stock, tmp_path: Path
) -> None:
    into = str(tmp_path / "out")
    frame = stream(spark, stock.urls, maxEventsPerTrigger=400)
    query = run(frame, into, str(tmp_path / "checkpoint"))
    assert written(spark, into) == stock.ns
    assert 390 <= sizes(query)[0] <= max(sizes(query)) <= 400
    offset = json.loads(query.recentProgress[-1]["sources"][0]["endOffset"])
    assert list(offset) == ["filter", "p", "v"]
    assert offset["p"] == {
        stock.pair.pubend(number): stock.pair.ticks(number)[-1] + 1 for number in (0, 1)
    }


def test_a_transaction_beyond_the_limit_is_one_batch(stock: Stock) -> None:
    start = f"transaction:{stock.transactions[0]}"
    found = direct_batches(stock.urls, maxEventsPerTrigger=5, startingPosition=start)
    assert sorted(n for batch in found for n in batch) == [n for n in stock.ns if n >= 2000]
    assert [sorted(batch) for batch in found[:3]] == [
        list(range(at, at + 6)) for at in (2000, 2006, 2012)
    ]
    assert max(map(len, found[3:])) <= 5


def test_bytes_are_a_limit_too(stock: Stock) -> None:
    found = direct_batches(stock.urls, maxBytesPerTrigger=20_000, filter="n < 1000")
    assert sorted(n for batch in found for n in batch) == list(range(1000))
    assert 100 < max(map(len, found)) < 900


def test_a_query_goes_on_where_it_was_and_moves_its_cursor(
    spark: SparkSession, desk: Desk, tmp_path: Path
) -> None:
    """Driver restarted: the second query knows nothing but the checkpoint."""
    into, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    desk.publish(0, range(50))
    first = run(desk.stream(spark, cursor="spark"), into, checkpoint)
    desk.publish(1, range(50, 60))
    desk.transact(range(60, 66))
    run(desk.stream(spark, cursor="spark"), into, checkpoint)
    assert desk.written(spark, into) == list(range(66))
    run(desk.stream(spark, cursor="spark"), into, checkpoint)
    assert desk.written(spark, into) == list(range(66))
    # Spark tells of the end of a batch when it plans the next one.
    done = json.loads(first.recentProgress[-1]["sources"][0]["endOffset"])["p"]
    with motet.open_log_sync(desk.pair.brokers[0].address) as log:
        (account,) = log.describe()
    found = {each.name: each.tick for each in account.cursors}  # of other tests, too
    assert found["spark"] == done[account.pubend] - 1


def test_events_outside_the_filter_cause_no_batch(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MotetSource({"brokers": desk.urls, "filter": desk.filter, "columns": "n:int"})
    reader = source.streamReader(source.schema())
    limit = reader.getDefaultReadLimit()
    begin = reader.initialOffset()
    desk.publish(0, [-5, -4])  # outside of its space
    assert reader.latestOffset(begin, limit) == begin
    assert reader.latestOffset(begin, limit) == begin
    desk.publish(1, [5])
    end = reader.latestOffset(begin, limit)
    assert all(tick > begin["p"][name] for name, tick in end["p"].items()), "with what was between"
    desk.publish(0, [-3])
    assert reader.latestOffset(end, limit) == end
    monkeypatch.setattr("motet.spark.source.MOVE_ON_S", 0.0)
    assert reader.latestOffset(end, limit) != end, "not for ever"
    reader.stop()


def test_a_batch_that_was_planned_is_read_again_as_it_was(
    spark: SparkSession, desk: Desk, tmp_path: Path
) -> None:
    """Given a driver that died behind its plan, when more has come, the batch has the same rows."""
    into, checkpoint = str(tmp_path / "out"), tmp_path / "checkpoint"
    desk.publish(0, range(30))
    run(desk.stream(spark), into, str(checkpoint))
    for path in [*(checkpoint / "commits").iterdir()]:
        path.unlink()  # planned, and never done
    shutil.rmtree(into)
    desk.publish(0, range(30, 40))
    query = run(desk.stream(spark), into, str(checkpoint))
    assert sizes(query)[:2] == [30, 10]
    assert desk.written(spark, into) == list(range(40))


def test_a_broker_that_is_restarted_is_waited_for(
    spark: SparkSession, desk: Desk, tmp_path: Path
) -> None:
    into = str(tmp_path / "out")
    desk.publish(0, range(20))
    query = begin(desk.stream(spark), into, str(tmp_path / "cp"), processingTime="0 seconds")
    try:
        wait_until(lambda: sum(sizes(query)) == 20)
        desk.pair.restart(0)
        desk.publish(0, range(20, 40))
        wait_until(lambda: sum(sizes(query)) == 40)
    finally:
        query.stop()
    assert desk.written(spark, into) == list(range(40))
    idle = [each for each in query.recentProgress if each["batchId"] > 1 and each["numInputRows"]]
    assert idle == []


def test_every_batch_has_whole_transactions_while_they_happen(
    spark: SparkSession, desk: Desk, tmp_path: Path
) -> None:
    """Given a query that looks all the time, when transactions of two brokers come, and other
    events, and a broker dies, then each transaction is in one batch, and every event once."""
    batches: list[list[tuple[int, str | None]]] = []

    def keep(frame: DataFrame, _: int) -> None:
        batches.append([(row["n"], row["transaction"]) for row in frame.collect()])

    writer = desk.stream(spark).writeStream.foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    at, is_killed = 0, False
    try:
        while len(batches) < LEAST_BATCHES:
            desk.transact(range(at, at + 8))
            desk.publish(at // 10 % 2, [at + 8, at + 9])
            at += 10
            if len(batches) == 1 and not is_killed:
                desk.pair.restart(1)
                is_killed = True
            assert query.exception() is None
            assert at < desk.width
        wait_until(lambda: sum(map(len, batches)) >= at)
    finally:
        query.stop()
    assert query.exception() is None
    ns = sorted(n - desk.base for batch in batches for n, _ in batch)
    assert ns == list(range(at))
    found = [Counter(tx for _, tx in batch if tx is not None) for batch in batches]
    assert sum(map(len, found)) == len(set().union(*found)) == at // 10, "none is in two batches"
    assert {count for batch in found for count in batch.values()} == {8}


def test_a_query_with_another_filter_cannot_continue_a_checkpoint(
    spark: SparkSession, desk: Desk, tmp_path: Path
) -> None:
    """Nor can a checkpoint that was deleted: then all comes again, and nothing is missing."""
    into, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    desk.publish(0, range(4))
    run(desk.stream(spark, filter=f"{desk.filter} and n != {desk.base}"), into, checkpoint)
    with pytest.raises(Exception, match="the filter of this query differs"):
        run(desk.stream(spark, filter=f"{desk.filter} and n > {desk.base + 1}"), into, checkpoint)
    shutil.rmtree(checkpoint)
    again = str(tmp_path / "again")
    run(desk.stream(spark, filter=f"{desk.filter} and n > {desk.base + 1}"), again, checkpoint)
    assert (desk.written(spark, into), desk.written(spark, again)) == ([1, 2, 3], [2, 3])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"columns": "n"}, "column n has no type"),
        ({"endingPosition": "earliest"}, "endingPosition applies only to batch reads"),
        ({"pushdown": "true"}, "pushdown applies only to batch reads"),
    ],
)
def test_options_that_a_stream_cannot_have_are_misuse(said: dict[str, str], words: str) -> None:
    source = MotetSource({"brokers": "motet://x:1", **said})
    with pytest.raises(MisuseError, match=words):
        source.streamReader(StructType([StructField("n", LongType())]))


def test_a_value_of_another_kind_ends_the_query(
    spark: SparkSession, desk: Desk, tmp_path: Path
) -> None:
    desk.publish(0, range(3), level=1)
    desk.publish(0, [3], level="high")
    into, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    columns = "n:int,level:int"
    with pytest.raises(Exception, match="level is declared as int, but 1 of 4 events"):
        run(desk.stream(spark, columns=columns), into, checkpoint)
    said = {"filter": desk.filter, "columns": columns}
    assert len(direct_batches(desk.urls, **said, misfits="null")[0]) == 4
