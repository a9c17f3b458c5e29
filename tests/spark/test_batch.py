"""Batch reads."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import TimestampType

from motet.errors import MisuseError
from motet.model.ids import LAST_TICK
from tests.spark.ground import Desk, Stock, direct, direct_ns, ns, read


def test_everything_comes_once_with_all_columns(spark: SparkSession, stock: Stock) -> None:
    frame = read(spark, stock.urls)
    assert frame.columns == [
        *("pubend", "tick", "time", "publisher", "sequence"),
        *("transaction", "transaction_number", "attributes", "payload"),
    ]
    rows = frame.collect()
    assert sorted(int(row["attributes"]["n"]) for row in rows) == stock.ns
    first = next(row for row in rows if row["attributes"]["n"] == "7")
    assert first["attributes"] == {"by": "one", "n": "7", "ratio": "0.5", "room": "cellar"}
    assert (bytes(first["payload"]), first["publisher"], first["sequence"]) == (b"7", "one", 8)
    assert first["transaction"] is None
    assert first["pubend"] == stock.pair.pubend(0)
    assert abs((first["time"].replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds()) < 3600
    of_transactions = [row for row in rows if row["transaction"] is not None]
    by_name = {name: set[int]() for name in stock.transactions}
    for row in of_transactions:
        by_name[row["transaction"]].add(int(row["attributes"]["n"]))
    assert list(by_name.values()) == [set(range(at, at + 6)) for at in (2000, 2006, 2012)]
    numbers = {row["transaction"]: row["transaction_number"] for row in of_transactions}
    assert sorted(numbers, key=numbers.__getitem__) == stock.transactions


def test_columns_have_their_kinds(spark: SparkSession, stock: Stock) -> None:
    frame = read(spark, stock.urls, columns="n, ratio, room, time")
    assert [each.simpleString() for each in frame.schema] == [
        *("n:bigint", "ratio:double", "room:string", "time:timestamp")
    ]
    assert isinstance(frame.schema["time"].dataType, TimestampType)
    assert frame.where("room = 'cellar'").count() == 1000
    (row,) = frame.where("n = 1050").collect()
    assert (row["ratio"], row["room"]) == (1.0, None)


def test_a_schema_may_be_given(spark: SparkSession, stock: Stock) -> None:
    reader = spark.read.format("motet").option("brokers", stock.urls)
    assert ns(reader.schema("n bigint, transaction string").load()) == stock.ns
    with pytest.raises(Exception, match="the attribute n cannot be int"):
        reader.schema("n int").load().collect()
    with pytest.raises(Exception, match="declares tick as string, but it is bigint"):
        reader.schema("tick string").load().collect()


def test_brokers_filter(stock: Stock) -> None:
    found = direct_ns(stock.urls, filter="n between 990 and 1009 or n = 2000")
    assert found == [*range(990, 1010), 2000]


def test_slices_cover_everything_once(spark: SparkSession, stock: Stock) -> None:
    frame = read(spark, stock.urls, columns="n:int,transaction", minPartitions=7)
    assert frame.rdd.getNumPartitions() >= 7
    assert ns(frame) == stock.ns
    for count in (1, 2, 50):
        rows = direct(stock.urls, columns="n:int,transaction", minPartitions=count)
        assert sorted(row["n"] for row in rows) == stock.ns
        assert sum(row["transaction"] is not None for row in rows) == 18


def test_ranges(stock: Stock) -> None:
    pair = stock.pair
    ticks = pair.ticks(0)
    pubends = [pair.pubend(number) for number in (0, 1)]
    end = json.dumps({pubends[0]: ticks[20]})
    assert direct_ns(pair.urls, endingPosition=end) == list(range(20))
    start = json.dumps({pubends[0]: ticks[990], pubends[1]: pair.ticks(1)[90]})
    assert direct_ns(pair.urls, startingPosition=start) == [
        n for n in stock.ns if n >= 990 and not 1000 <= n < 1090
    ]
    when = datetime.fromtimestamp(ticks[500] / 1e6, UTC).isoformat()
    found = direct_ns(pair.urls, startingPosition=when)
    assert found == [n for n in stock.ns if n >= 500]
    tx = f"transaction:{stock.transactions[1]}"
    assert direct_ns(pair.urls, startingPosition=tx) == [n for n in stock.ns if n >= 2006]
    assert direct_ns(pair.urls, startingPosition="latest") == []


def test_no_range_tears_a_transaction(stock: Stock) -> None:
    """Given an end in the middle of a transaction's events, the whole transaction stays out."""
    pair = stock.pair
    ticks, pubends = pair.ticks(0), [pair.pubend(number) for number in (0, 1)]
    middle = ticks[1000 + 4]  # the second transaction's second event here
    end = json.dumps({pubends[0]: middle, pubends[1]: LAST_TICK})
    assert direct_ns(pair.urls, endingPosition=end) == [*range(1100), *range(2000, 2006)]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"brokrs": "x"}, "unknown option 'brokrs'"),
        ({"filter": "n >"}, "n >"),
        ({"columns": "n:long"}, "unknown type 'long' of n"),
        ({"minPartitions": "0"}, "minPartitions must be a whole number"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss must be true or false"),
        ({"startingPosition": "noon"}, "startingPosition must be earliest, latest"),
        ({"startingPosition": "transaction:x"}, "no events of transaction x"),
        ({"startingPosition": '{"x": 5}'}, "there is a tick for pubend x"),
        ({"brokers": ""}, "option brokers is missing"),
    ],
)
def test_invalid_options_of_a_batch_read_are_misuse(
    stock: Stock, said: dict[str, str], words: str
) -> None:
    with pytest.raises(MisuseError, match=words):
        direct(**{"urls": said.pop("brokers", stock.urls), **said})


def test_values_of_another_kind(spark: SparkSession, desk: Desk) -> None:
    desk.publish(0, [0], level="three")
    desk.publish(0, [1], level=3)
    said = {"filter": desk.filter, "columns": "level:int"}
    with pytest.raises(Exception, match="level is declared as int, but 1 of 2 events"):
        read(spark, desk.urls, **said).collect()
    rows = direct(desk.urls, **said, misfits="null")
    assert [row["level"] for row in rows] == [None, 3]
    with pytest.raises(MisuseError, match="several kinds"):
        direct(desk.urls, columns="level")
