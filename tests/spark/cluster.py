"""A cluster of Spark on this machine: a master, and workers that believe to be other hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from motet.fleet.process import free_ports
from motet.spark.session import ONE_COMPILER
from tests.waiting import PATIENCE_S, wait_until

HOME = Path(pyspark.__file__).parent
HOSTS = ("127.0.0.2", "127.0.0.3")
"""Spark starts the second attempt at a slow task on another host only."""
QUICK = f"{ONE_COMPILER} -XX:+UseSerialGC"


class Cluster:
    """`with Cluster(folder) as cluster:` — jobs run at `cluster.url`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        (port,) = free_ports(1)
        self.url = f"spark://127.0.0.1:{port}"
        self._port = port
        self.conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK,
            "spark.driver.extraJavaOptions": QUICK,
            "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "spark.ui.enabled": "false",
        }

    def __enter__(self) -> Self:
        master = ("master.Master", "--host", "127.0.0.1", "--port", str(self._port))
        try:
            self._start("master", *master, "--webui-port", "0")
            for host in HOSTS:
                work = ("--work-dir", str(self._folder / host), "--webui-port", "0")
                self._start(
                    *(host, "worker.Worker", "--host", host, "--cores", "1", "--memory", "1g"),
                    *(*work, self.url),
                )
            wait_until(lambda: self._said("master").count("Registering worker") >= len(HOSTS))
        except BaseException:
            self._stop()
            raise
        return self

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        env = os.environ | {
            "SPARK_HOME": str(HOME),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        with (self._folder / f"{name}.txt").open("wb") as said:
            started = subprocess.Popen(
                [*command, *arguments], env=env, stdout=said, stderr=subprocess.STDOUT
            )
        self._daemons.append(started)

    def _said(self, name: str) -> str:
        return (self._folder / f"{name}.txt").read_text()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for daemon in reversed(self._daemons):  # workers take their executors with them
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(PATIENCE_S)
