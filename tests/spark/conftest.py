"""One session of Spark for all tests: it takes longer to start than most of them to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import motet.spark
from tests.spark.ground import Pair, Stock


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


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[str], str]:
    return lambda name="checkpoint": str(tmp_path / name)
