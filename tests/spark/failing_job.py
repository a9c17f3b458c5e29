"""A Spark job whose tasks fail and are retried, and whose driver is killed at the end.

python -m tests.spark.failing_job URL FOLDER SINK
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import motet.spark
from motet.spark.session import ONE_COMPILER
from tests.spark.sinks import DoomedSource, FailingSource, Files


def main(url: str, folder: str, sink: str) -> None:
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"{ONE_COMPILER} -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = motet.spark.session("doomed", master="local[2,3]", **conf)
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(FailingSource)
    spark.dataSource.register(DoomedSource)
    frame = spark.range(0, 100, 1, 2).selectExpr("id as n", "'cellar' as room")
    said = frame.write.format("failing").options(brokers=url, sink=f"{sink}-tasks", folder=folder)
    said.mode("append").save()
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    files = Files(Path(folder))
    files.put(range(10))
    files.into(spark, url, sink, format="doomed", victims=f"{jvm},{os.getpid()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
