"""Tasks that fail when they are done, and a driver that is killed before its checkpoint."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.ground import Pair
from tests.spark.sinks import Files, a_sink, blocks
from tests.waiting import JOB_S

ROOT = Path(__file__).parents[2]


def test_a_job_whose_tasks_fail_and_whose_driver_is_killed(
    spark: SparkSession, busy: Pair, tmp_path: Path
) -> None:
    url, sink = busy.brokers[0].address, a_sink()
    command = [sys.executable, "-m", "tests.spark.failing_job", url, str(tmp_path), sink]
    ended = subprocess.run(command, cwd=ROOT, timeout=JOB_S, check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()

    assert len(list(tmp_path.glob("failed-*"))) == 2, "both tasks were tried again"
    (tasks,) = blocks(url, f"{sink}-tasks").values()
    assert sorted(tasks) == list(range(100)), "each row once"

    once = blocks(url, sink)
    assert sorted(*once.values()) == list(range(10)), "the broker has committed"
    assert not list((tmp_path / "checkpoint" / "commits").glob("0")), "and Spark does not know"
    files = Files(tmp_path)
    files.put(range(10, 12))
    files.into(spark, url, sink)
    found = blocks(url, sink)
    assert {tx: found.pop(tx) for tx in once} == once, "it has run again, and changed nothing"
    assert [sorted(ns) for ns in found.values()] == [[10, 11]]
