"""The audit of a large clean history: how long it takes, and what a second core brings.

Every audit runs in a process of its own, so that none is warmed up by another; starting Spark is
not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from motet.bench.figures import Figure, Progress
from motet.spark.session import BRIEF

DELIVERIES, FEW_DELIVERIES = 10_000_000, 1_000_000
GOAL_S = 180.0
GOAL_SPEEDUP = 1.6
ONE_CORE, TWO_CORES = "local[1]", "local[2]"
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "3g",
    "spark.sql.shuffle.partitions": "16",
    **BRIEF,
}


def run(short: bool, progress: Progress) -> list[Figure]:
    deliveries = FEW_DELIVERIES if short else DELIVERIES
    took_s: dict[str, float] = {}
    is_clean = True
    with TemporaryDirectory(dir=os.environ.get("MOTET_BENCH_DIR")) as directory:
        folder = str(Path(directory, "history"))
        progress(f"making a history of {deliveries:,} deliveries")
        _in_process("generate", folder, TWO_CORES, str(deliveries))
        for master in (ONE_CORE, TWO_CORES):
            progress(f"judging {deliveries:,} deliveries on {master}")
            found = _in_process("judge", folder, master)
            took_s[master] = found["seconds"]
            is_clean = is_clean and found["clean"] and found["due"] >= deliveries
    goal_s = None if short else GOAL_S
    speedup = took_s[ONE_CORE] / took_s[TWO_CORES]
    what = f"audit of {deliveries:,} deliveries"
    return [
        Figure(f"{what}, {TWO_CORES}", took_s[TWO_CORES], "s", goal=goal_s, counts=is_clean),
        Figure(
            f"{what}, {TWO_CORES} beside {ONE_CORE}",
            speedup,
            "times",
            goal=GOAL_SPEEDUP,
            sense="at least",
            counts=is_clean,
        ),
    ]


def _in_process(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "motet.bench.audit", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def _work(what: str, folder: str, master: str, deliveries: str = "0") -> dict[str, Any]:
    from motet.spark import session
    from motet.spark.audit import audit
    from motet.spark.audit.generating import Scale, generate

    spark = session("motet bench", master=master, **CONF)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        if what == "generate":
            generate(spark, folder, Scale(int(deliveries)))
            return {}
        steps: list[str] = []
        found = audit(spark, folder, steps.append)
        due = found.checked["exactly-once"]
        return {"seconds": found.seconds, "clean": found.is_clean, "due": due}
    finally:
        spark.stop()


if __name__ == "__main__":
    print(json.dumps(_work(*sys.argv[1:])))
