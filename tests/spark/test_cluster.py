"""Executors that are processes of their own, on hosts of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.spark.cluster import Cluster
from tests.spark.ground import Pair, Stock
from tests.spark.sinks import a_sink, blocks
from tests.waiting import JOB_S

ROOT = Path(__file__).parents[2]


def test_an_executor_is_killed_and_an_attempt_overtaken(
    stock: Stock, busy: Pair, tmp_path: Path
) -> None:
    home, sink = busy.brokers[0].address, a_sink()
    with Cluster(tmp_path) as cluster:
        told = (cluster.url, stock.urls, home, str(tmp_path), sink, json.dumps(cluster.conf))
        command = [sys.executable, "-m", "tests.spark.cluster_job", *told]
        env = os.environ | {"PYSPARK_PYTHON": sys.executable}
        ended = subprocess.run(
            command, cwd=ROOT, env=env, timeout=JOB_S, check=False, capture_output=True
        )
    assert ended.returncode == 0, ended.stderr.decode()

    read = json.loads((tmp_path / "read.json").read_text())
    assert read == stock.ns, "other processes read each event once"
    for how in ("killed", "slow"):
        attempts = sorted(tmp_path.glob(f"{how}-*"))
        assert len({each.read_text() for each in attempts}) >= 2, "both have staged all of it"
        (rows,) = blocks(home, f"{sink}-{how}").values()
        assert sorted(rows) == list(range(100)), "each row once"
