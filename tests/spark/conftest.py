"""One session of Spark for all tests: it takes longer to start than most of them to run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import motet.spark
from tests.spark.ground import Pair, Stock, run, stream


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    conf = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.pollingDelay": "20ms",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.driver.memory": "1g",
    }
    made = motet.spark.session("tests", master="local[2]", **conf)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    """Two brokers with events that nobody changes."""
    with Pair(tmp_path_factory.mktemp("stock")) as pair:
        yield Stock(pair)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two brokers for one test."""
    with Pair(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def begun(spark: SparkSession, stock: Stock, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a query over the stock with `n > 0`, which has come to its end."""
    folder = tmp_path_factory.mktemp("begun")
    checkpoint = folder / "checkpoint"
    run(stream(spark, stock.urls, filter="n > 0"), str(folder / "out"), str(checkpoint))
    return checkpoint


@pytest.fixture
def started(begun: Path, tmp_path: Path) -> str:
    """A copy of that checkpoint."""
    return str(shutil.copytree(begun, tmp_path / "started"))
