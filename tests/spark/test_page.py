"""What the page on Spark shows, runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import motet.spark
from motet.spark import sink
from motet.spark.options import NAMES
from motet.spark.session import ENABLED
from tests.spark.ground import Pair, Stock
from tests.spark.sinks import blocks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text()
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_page(spark: SparkSession, stock: Stock, busy: Pair, tmp_path: Path) -> None:
    home = busy.brokers[0].address
    known: dict[str, Any] = {"motet": motet, "url": stock.urls, "folder": str(tmp_path)}
    known["home"] = home
    for code in BLOCK.findall(PAGE):
        exec(code, known)
    assert known["spark"] is spark
    assert known["high"].count() == len(stock.ns) - 8
    assert spark.read.parquet(f"{tmp_path}/levels").count() == len(stock.ns)
    assert known["few"].count() == 1000 - 8
    spark.conf.unset(ENABLED)
    assert "rooms/batch/monday" in blocks(home, "rooms")
    (low,) = blocks(home, "low-levels").values()
    assert sorted(low) == [0, 1, 2, 3, 4]


def test_the_first_page(spark: SparkSession, busy: Pair, tmp_path: Path) -> None:
    home = busy.brokers[0].address
    (code,) = BLOCK.findall(README)
    code = code.replace("motet://127.0.0.1:7701", home).replace("run/", f"{tmp_path}/")
    known: dict[str, Any] = {"motet": motet}
    exec(code, known)
    assert known["spark"] is spark
    query = known["query"]
    try:
        query.processAllAvailable()
        busy.publish(0, [1, 2], kind="reading", room="cellar", level=7)
        query.processAllAvailable()
    finally:
        query.stop()
    wanted = {"filter": "highest = 7", "columns": ["room:text"]}
    rows = [row for batch in motet.read_sync(home, **wanted) for row in batch.rows()]
    assert [row["room"] for row in rows] == ["cellar"]


def test_the_page_knows_all_options() -> None:
    for name in (*NAMES, *sink.NAMES):
        assert f"`{name}`" in PAGE or name == "pushdown", name
