"""One session of Spark for all tests: it takes longer to start than most of them to run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import motet.spark
from motet.spark.session import ONE_COMPILER
from tests.spark.ground import Desk, Pair, Stock


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    conf = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.pollingDelay": "20ms",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"{ONE_COMPILER} -XX:+UseSerialGC",
        "spark.ui.showConsoleProgress": "false",
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


@pytest.fixture(scope="session")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two brokers to which tests publish, one behind the other."""
    with Pair(tmp_path_factory.mktemp("busy")) as made:
        yield made


@pytest.fixture
def desk(busy: Pair) -> Desk:
    """The busy brokers, with numbers and a filter that no other test has."""
    return Desk(busy)
