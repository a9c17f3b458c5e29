"""What the page on Spark shows, runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import motet.spark
from motet.spark import sink_options
from motet.spark.options import NAMES
from motet.spark.pushdown import ENABLED
from tests.spark.ground import Pair, Stock
from tests.spark.sinks import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def test_the_page(spark: SparkSession, stock: Stock, busy: Pair, tmp_path: Path) -> None:
    home = busy.brokers[0].address
    known: dict[str, Any] = {"motet": motet, "url": stock.urls, "folder": str(tmp_path)}
    known["home"] = home
    for code in re.findall(r"^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(code, known)
    assert known["spark"] is spark
    assert known["high"].count() == len(stock.ns) - 8
    assert spark.read.parquet(f"{tmp_path}/levels").count() == len(stock.ns)
    assert known["few"].count() == 1000 - 8
    spark.conf.unset(ENABLED)
    assert "rooms/batch/monday" in blocks(home, "rooms")
    (low,) = blocks(home, "low-levels").values()
    assert sorted(low) == [0, 1, 2, 3, 4]


def test_the_page_knows_all_options() -> None:
    for name in (*NAMES, *sink_options.NAMES):
        assert f"`{name}`" in PAGE or name == "pushdown", name
