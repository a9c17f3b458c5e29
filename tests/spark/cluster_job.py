"""A job on a cluster: an executor is killed while it writes, and an attempt overtakes another.

python -m tests.spark.cluster_job MASTER URLS HOME FOLDER SINK CONF
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.types import StructType

import motet.spark
from motet.spark.sink import BatchWriter, Staged, sink_options_in
from motet.spark.source import MotetSource
from tests.waiting import JOB_S


class Afflicted(BatchWriter):
    """The first attempt at its first partition has staged everything, and then its executor is
    killed, or it is slow until another attempt has staged the same."""

    def __init__(self, *given: Any, folder: str, how: str) -> None:
        super().__init__(*given)
        self._folder = Path(folder)
        self._how = how

    def write(self, iterator: Iterator[Any]) -> Staged:
        staged = super().write(iterator)
        if staged.part.partition:
            return staged
        attempt = TaskContext.get().attemptNumber()  # type: ignore[union-attr]
        if attempt:  # a speculative attempt that finished first would cancel the first one
            self._await(0)
        (self._folder / f"{self._how}-{attempt}").write_text(staged.part.name)
        if attempt == 0 and self._how == "killed":
            os.kill(_executor(), signal.SIGKILL)
        if attempt == 0:
            self._await(1)
            time.sleep(0.5)  # the other one may well be the first to finish
        return staged

    def _await(self, attempt: int) -> None:
        """Wait until another attempt has staged everything."""
        until = time.monotonic() + JOB_S
        while not (self._folder / f"{self._how}-{attempt}").exists():
            assert time.monotonic() < until, f"attempt {attempt} stages nothing"
            time.sleep(0.05)


def _executor() -> int:
    """The JVM for which this process works: the parent of the one that has forked it."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


class AfflictedSource(MotetSource):
    @classmethod
    def name(cls) -> str:
        return "afflicted"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        del overwrite
        options = dict(self.options)
        said = {name: options.pop(name) for name in ("folder", "how")}
        return Afflicted(sink_options_in(options), schema, **said)


def main(master: str, urls: str, home: str, folder: str, sink: str, conf: str) -> None:
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.minTaskRuntime": "500ms",
    }
    spark = motet.spark.session("faraway", master=master, **json.loads(conf), **speculation)
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(AfflictedSource)
    read = spark.read.format("motet").options(brokers=urls, columns="n:int", minPartitions="4")
    ns = sorted(row["n"] for row in read.load().collect())
    Path(folder, "read.json").write_text(json.dumps(ns))
    frame = spark.range(0, 100, 1, 2).selectExpr("id as n", "'cellar' as room")
    for how in ("killed", "slow"):
        said = frame.write.format("afflicted").options(brokers=home, sink=f"{sink}-{how}")
        said.options(folder=folder, how=how).mode("append").save()


if __name__ == "__main__":
    main(*sys.argv[1:])
