"""Conditions that travel to the brokers: more rows than wanted never, fewer never either."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

import motet.spark
from motet.errors import MisuseError
from motet.spark.columns import Columns
from motet.spark.options import NAMES, ScanOptions
from motet.spark.session import ENABLED
from motet.spark.source import as_filter
from tests.spark.ground import Stock, ns, read

COLUMNS = Columns(
    StructType(
        [
            StructField("n", LongType()),
            StructField("ratio", DoubleType()),
            StructField("room", StringType()),
            StructField("tick", LongType()),
        ]
    )
)
NAN = float("nan")


@pytest.fixture
def pushes(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    spark.conf.unset(ENABLED)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (EqualTo(("n",), 3), "n = 3"),
        (In(("room",), ["a", "b"]), "room in ('a', 'b')"),
        (GreaterThan(("n",), 3), "n > 3"),
        (LessThan(("ratio",), 0.5), "ratio < 0.5"),
        (StringStartsWith(("room",), "ce"), "room like 'ce%'"),
        (IsNotNull(("n",)), "n is not null"),
        (GreaterThan(("ratio",), 0.5), None),  # to Spark, NaN is greater
        (EqualTo(("ratio",), NAN), None),
        (EqualTo(("ratio",), 2.0**53), None),  # in Spark, 2**53 + 1 is the same
        (In(("ratio",), [0.5, -(2.0**60)]), None),
        (EqualTo(("n",), True), None),
        (EqualTo(("tick",), 3), None),
        (IsNull(("n",)), None),
        (Not(EqualTo(("n",), 3)), None),
    ],
)
def test_a_pushed_filter_selects_at_least_the_wanted_rows(
    condition: Filter, text: str | None
) -> None:
    found = as_filter(condition, COLUMNS)
    assert found == (motet.Filter.parse(text) if text else None)


def test_conditions_do_not_leak_from_read_to_read(pushes: SparkSession, stock: Stock) -> None:
    """A frame of `scan` is used with several conditions, alone and together."""
    frame = motet.spark.scan(pushes, "n < 20", brokers=stock.urls, columns="n:int,by:text")
    assert "n IS NOT NULL" not in frame.where("n > 10")._jdf.queryExecution().toString()
    both = frame.where("n < 5").union(frame.where("n > 15"))
    assert ns(both) == [*range(5), *range(16, 20)]
    assert ns(frame) == list(range(20))
    assert ns(frame.where("n = 7")) == [7]
    assert ns(frame) == list(range(20))


def test_pushed_conditions_leak_between_reads_without_scan(
    pushes: SparkSession, stock: Stock
) -> None:
    """Why `scan` exists. When this fails, Spark was mended, and `scan` can be simpler."""
    pushes.conf.set(ENABLED, "true")
    frame = read(pushes, stock.urls, columns="n:int", pushdown="true")
    assert ns(frame.where("n < 5")) == list(range(5))
    assert frame.count() < len(stock.ns)


def test_without_pushdown_nothing_leaks(pushes: SparkSession, stock: Stock) -> None:
    pushes.conf.set(ENABLED, "true")
    frame = read(pushes, stock.urls, columns="n:int")
    assert ns(frame.where("n < 5")) == list(range(5))
    assert ns(frame) == stock.ns


def test_scan_refuses_the_option_pushdown(spark: SparkSession) -> None:
    with pytest.raises(MisuseError, match="omit the option pushdown"):
        motet.spark.scan(spark, "n > 1", brokers="motet://x:1", pushdown="false")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"colums": "n"}, "unknown option colums; use one of brokers, filter, columns"),
        ({"PushDown": "true"}, "omit the option pushdown"),
        ({"minPartitions": 0}, "minPartitions must be a whole number"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss must be true or false"),
        ({"filter": "n >"}, "n >"),
        ({"brokers": ""}, "option brokers is missing"),
    ],
)
def test_scan_checks_its_options_before_spark_sees_them(
    spark: SparkSession, said: dict[str, Any], words: str
) -> None:
    with pytest.raises(MisuseError, match=words):
        motet.spark.scan(spark, "n > 1", **({"brokers": "motet://x:1"} | said))


def test_scan_has_the_options_of_a_read() -> None:
    assert set(ScanOptions.__annotations__) == set(NAMES) - {"pushdown"}


def test_options_of_scan_are_plain_values_and_of_any_case(
    pushes: SparkSession, stock: Stock
) -> None:
    options: Any = {"COLUMNS": "n:int", "failOnDataLoss": False, "minPartitions": 2, "timeout": 9.0}
    assert ns(motet.spark.scan(pushes, "n < 5", brokers=stock.urls, **options)) == list(range(5))
