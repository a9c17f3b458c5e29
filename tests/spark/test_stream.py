"""Streaming reads: exactly once, in whole transactions, whatever happens between."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import motet
from tests.integration.durable_broker import wait_until
from tests.spark.ground import Pair, Stock, begin, run, stream, written


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


def test_a_transaction_beyond_the_limit_is_one_batch(
    spark: SparkSession, stock: Stock, tmp_path: Path
) -> None:
    into = str(tmp_path / "out")
    start = f"transaction:{stock.transactions[0]}"
    frame = stream(spark, stock.urls, maxEventsPerTrigger=5, startingPosition=start)
    query = run(frame, into, str(tmp_path / "checkpoint"))
    assert written(spark, into) == [n for n in stock.ns if n >= 2000]
    assert sizes(query)[:3] == [6, 6, 6]
    assert max(sizes(query)[3:]) <= 5


def test_bytes_are_a_limit_too(spark: SparkSession, stock: Stock, tmp_path: Path) -> None:
    into = str(tmp_path / "out")
    frame = stream(spark, stock.urls, maxBytesPerTrigger=20_000, filter="n < 1000")
    query = run(frame, into, str(tmp_path / "checkpoint"))
    assert written(spark, into) == list(range(1000))
    assert 100 < max(sizes(query)) < 900


def test_a_query_goes_on_where_it_was_and_moves_its_cursor(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    """Driver restarted: the second query knows nothing but the checkpoint."""
    into, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    pair.publish(0, range(50))
    run(stream(spark, pair.urls, cursor="spark"), into, checkpoint)
    pair.publish(1, range(50, 60))
    pair.transact(range(60, 66))
    run(stream(spark, pair.urls, cursor="spark"), into, checkpoint)
    assert written(spark, into) == list(range(66))
    run(stream(spark, pair.urls, cursor="spark"), into, checkpoint)
    assert written(spark, into) == list(range(66))
    with motet.open_log_sync(pair.brokers[0].address) as log:
        (account,) = log.describe()
    assert [(each.name, each.tick) for each in account.cursors] == [("spark", pair.ticks(0)[49])]


def test_a_batch_that_was_planned_is_read_again_as_it_was(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    """Given a driver that died behind its plan, when more has come, the batch has the same rows."""
    into, checkpoint = str(tmp_path / "out"), tmp_path / "checkpoint"
    pair.publish(0, range(30))
    run(stream(spark, pair.urls), into, str(checkpoint))
    for path in [*(checkpoint / "commits").iterdir()]:
        path.unlink()  # planned, and never done
    shutil.rmtree(into)
    pair.publish(0, range(30, 40))
    query = run(stream(spark, pair.urls), into, str(checkpoint))
    assert sizes(query)[:2] == [30, 10]
    assert written(spark, into) == list(range(40))


def test_a_broker_that_is_restarted_is_waited_for(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    into = str(tmp_path / "out")
    pair.publish(0, range(20))
    query = begin(stream(spark, pair.urls), into, str(tmp_path / "cp"), processingTime="0 seconds")
    try:
        wait_until(lambda: sum(sizes(query)) == 20)
        pair.restart(0)
        pair.publish(0, range(20, 40))
        wait_until(lambda: sum(sizes(query)) == 40)
    finally:
        query.stop()
    assert written(spark, into) == list(range(40))
    idle = [each for each in query.recentProgress if each["batchId"] > 1 and each["numInputRows"]]
    assert idle == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"filter": "n > 1"}, "the filter of this query is not the one"),
        ({"columns": "n"}, "of which kind is n"),
        ({"endingPosition": "earliest"}, "a stream has no end"),
        ({"pushdown": "true"}, "not pushed down in streams"),
    ],
)
def test_what_cannot_go_on_says_why(
    spark: SparkSession,
    stock: Stock,
    started: str,
    tmp_path: Path,
    changed: dict[str, Any],
    words: str,
) -> None:
    with pytest.raises(Exception, match=words):
        run(stream(spark, stock.urls, **{"filter": "n > 0", **changed}), str(tmp_path), started)


def test_a_filter_may_be_written_in_another_way(
    spark: SparkSession, stock: Stock, started: str, tmp_path: Path
) -> None:
    run(stream(spark, stock.urls, filter="  n>0 "), str(tmp_path / "out"), started)


def test_a_deleted_checkpoint_begins_anew(
    spark: SparkSession, stock: Stock, tmp_path: Path
) -> None:
    """Without a checkpoint there is nothing to go on from: all comes again, nothing is missing."""
    for attempt in ("one", "two"):
        into = str(tmp_path / attempt)
        run(stream(spark, stock.urls), into, str(tmp_path / f"checkpoint-{attempt}"))
        assert written(spark, into) == stock.ns


def test_a_value_of_another_kind_ends_the_query(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    pair.publish(0, range(3))
    pair.clients[0].publish({"by": "one", "n": "many"})
    pair.clients[0].flush()
    into, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    with pytest.raises(Exception, match="n is to be int, but 1 of 4 events"):
        run(stream(spark, pair.urls), into, checkpoint)
    run(stream(spark, pair.urls, misfits="null"), into, checkpoint)
    assert sorted(row["n"] or -1 for row in spark.read.parquet(into).collect()) == [-1, -1, 1, 2]
