"""An audit: step by step, each one a few jobs of Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from motet.audit.verdicts import Audit
from motet.spark.audit import ordering
from motet.spark.audit.arrivals import Arrivals
from motet.spark.audit.catalogue import catalogue
from motet.spark.audit.findings import collect
from motet.spark.audit.tables import History, check_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell = Callable[[str], None]


def audit(spark: SparkSession, folder: str | Path, tell: Tell = lambda _: None) -> Audit:
    """Judge all histories in a folder. `tell` hears what is being done."""
    check_folder(folder)
    began = monotonic()
    history = History(spark, folder)
    try:
        with history.settings():
            found = _judge(history, tell)
    finally:
        history.close()
    found.seconds = monotonic() - began
    return found


def _judge(history: History, tell: Tell) -> Audit:
    from motet.spark.audit import conflicts, transacting

    said = Audit()
    tell("reading filters")
    tell(f"matching events with {len(history.filters):,} filters")
    events = history.keep(catalogue(history))
    arrivals = Arrivals(history, events)
    tell("comparing what was owed with what came")
    suspects = arrivals.suspects.count()
    tell(f"looking at {suspects:,} streams that differ" if suspects else "looking at the rest")
    said.extend(collect([*arrivals.lost(), *arrivals.false_losses(), *arrivals.doubled()]))
    said.extend(collect([*arrivals.unsound(), *arrivals.spaces()]))
    tell("orders of ticks and publishers")
    orders = [*ordering.ticks(history), *ordering.places(history, events, arrivals.doubtful)]
    said.extend(collect([*orders, *ordering.publishers(history, events)]))
    tell("total order")
    if frames := ordering.total(history):
        said.extend(collect(frames))
    if not history["transactions"].isEmpty():
        tell("transactions")
        dealings, frames = transacting.judge(history, events)
        said.extend(collect(frames))
        tell("serializability")
        relations, found = conflicts.judge(history, dealings)
        said.extend(found)
    said.checked = arrivals_checked(arrivals)
    return said


def arrivals_checked(arrivals: Arrivals) -> dict[str, int]:
    return {}
