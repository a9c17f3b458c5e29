"""The audit of large clean histories, of an overlay and of order across topics: how long it takes,
and the gain of a second core.

Every audit runs in a process of its own, so that none is warmed up by another; starting Spark is
not counted.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.spark.session import BRIEF
from motet_labs import processes
from motet_labs.figures import Figure, Progress, Size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELIVERIES = {Size.LEAST: 1000, Size.SHORT: 1_000_000, Size.LONG: 10_000_000}
ORDERED = {Size.LEAST: 1000, Size.SHORT: 100_000, Size.LONG: 1_000_000}
"""Deliveries of ten topics to twenty streams."""
GOAL_S = 180.0
GOAL_ORDERED_S = 20.0
GOAL_SPEEDUP = 1.6
ONE_CORE, TWO_CORES = "local[1]", "local[2]"
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "3g",
    "spark.sql.shuffle.partitions": "16",
    **BRIEF,
}


def run(size: Size, progress: Progress) -> list[Figure]:
    deliveries = DELIVERIES[size]
    took_s: dict[str, float] = {}
    is_clean = True
    with processes.folder() as directory:
        folder = str(Path(directory, "history"))
        progress(f"making a history of {deliveries:,} deliveries")
        _in_process("generate", folder, TWO_CORES, deliveries)
        for master in (ONE_CORE, TWO_CORES):
            progress(f"judging {deliveries:,} deliveries on {master}")
            found = _in_process("judge", folder, master)
            took_s[master] = found["seconds"]
            is_clean = is_clean and found["clean"] and found["due"] >= deliveries
        ordered = _ordered(size, Path(directory), progress)
    goal_s = GOAL_S if size is Size.LONG else None
    speedup = took_s[ONE_CORE] / took_s[TWO_CORES]
    what = f"audit of {deliveries:,} deliveries, {TWO_CORES}"
    return [
        Figure(what, took_s[TWO_CORES], "s", goal=goal_s, counts=is_clean),
        Figure(f"{what} beside {ONE_CORE}",
               speedup, "times", None, GOAL_SPEEDUP, "at least", counts=is_clean),
        ordered,
    ]  # fmt: skip


def _ordered(size: Size, directory: Path, progress: Progress) -> Figure:
    deliveries = ORDERED[size]
    folder = str(directory / "ordered")
    progress(f"making a history of {deliveries:,} deliveries of ordered topics")
    _in_process("generate order", folder, TWO_CORES, deliveries)
    progress(f"judging {deliveries:,} deliveries of ordered topics on {TWO_CORES}")
    found = _in_process("judge", folder, TWO_CORES)
    is_right = found["clean"] and found["ordered"] == deliveries
    goal_s = GOAL_ORDERED_S if size is Size.LONG else None
    name = f"audit of {deliveries:,} deliveries of ordered topics, {TWO_CORES}"
    return Figure(name, found["seconds"], "s", goal=goal_s, counts=is_right)


def _in_process(what: str, folder: str, master: str, deliveries: int = 0) -> dict[str, Any]:
    command = processes.command(in_session, what, folder, master, deliveries)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def in_session(what: str, folder: str, master: str, deliveries: int) -> dict[str, Any]:
    from motet.spark.quiet import quiet_session

    spark = quiet_session("motet bench", Path(f"{folder}.log"), master=master, **CONF)
    try:
        return work(spark, what, folder, deliveries)
    finally:
        spark.stop()


def work(spark: SparkSession, what: str, folder: str, deliveries: int = 0) -> dict[str, Any]:
    """Generate a history, or judge it."""
    from motet.spark.audit import audit
    from motet.spark.audit.generator import OrderScale, Scale, generate, generate_order

    if what == "generate":
        generate(spark, folder, Scale(deliveries))
        return {}
    if what == "generate order":
        generate_order(spark, folder, OrderScale(deliveries))
        return {}
    found = audit(spark, folder, lambda _: None)
    due, ordered = (found.checked.get(name, 0) for name in ("exactly-once", "notification-order"))
    return {"seconds": found.seconds, "clean": found.is_clean, "due": due, "ordered": ordered}
