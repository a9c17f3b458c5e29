"""An audit: step by step, each one a few jobs of Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from motet.audit.verdicts import Audit
from motet.spark.audit import conflicts, ordering, transacting
from motet.spark.audit.arrivals import Arrivals
from motet.spark.audit.catalogue import catalogue
from motet.spark.audit.findings import collect
from motet.spark.audit.tables import SMALL_BYTES, History, check_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Tell = Callable[[str], None]


def audit(
    spark: SparkSession,
    folder: str | Path,
    tell: Tell = lambda _: None,
    *,
    slack_s: float = 0.0,
    small_bytes: int = SMALL_BYTES,
) -> Audit:
    """Judge all histories in a folder. `tell` hears what is being done. `slack_s` is how far the
    clocks of those who wrote them may differ."""
    check_folder(folder)
    began = monotonic()
    history = History(spark, folder, small_bytes, slack_s)
    said = Audit()
    try:
        with history.settings():
            tell("reading what was asked for")
            filters = len(history.filters)
            tell(f"matching events with {filters:,} filters")
            events = history.keep(catalogue(history))
            _judge_arrivals(history, events, said, tell)
            _judge_transactions(history, events, said, tell)
    finally:
        history.close()
    said.seconds = monotonic() - began
    return said


def _judge_arrivals(history: History, events: DataFrame, said: Audit, tell: Tell) -> None:
    arrivals = Arrivals(history, events)
    tell("comparing what was owed with what came")
    suspects = arrivals.suspects.count()
    sums = arrivals.sums.agg(F.sum("due"), F.sum("n")).first()
    due, came = (int(each or 0) for each in sums or (0, 0))
    tell(f"looking closer at {suspects:,} streams" if suspects else "looking at the rest")
    lost = arrivals.lost() if suspects else []
    said.extend(collect([*lost, *arrivals.false_losses(), *arrivals.doubled()]))
    said.extend(collect([*arrivals.unsound(), *arrivals.spaces()]))
    tell("orders of ticks and of publishers")
    orders = [*ordering.ticks(history), *ordering.places(events, arrivals.doubtful)]
    said.extend(collect([*orders, *ordering.publishers(history, events, arrivals.twins)]))
    tell("total order")
    members = ordering.members(history)
    ordered = members.count()
    if ordered:
        said.extend(collect(ordering.total(history, members)))
    deliveries = history["deliveries"].count()
    said.checked |= {
        "exactly-once": due,
        "duplicates": came,
        "soundness": deliveries,
        "order": deliveries,
        "total-order": ordered,
    }


def _judge_transactions(history: History, events: DataFrame, said: Audit, tell: Tell) -> None:
    deals = history["transactions"].count()
    if not deals:
        return
    tell(f"{deals:,} transactions")
    dealings, frames = transacting.judge(history, events)
    said.extend(collect(frames))
    tell("what must come before what")
    relations, found = conflicts.judge(history, dealings)
    said.extend(found)
    said.checked |= {
        "atomicity": deals,
        "visibility": dealings.frames["came"].count(),
        "transaction-order": history["cuts"].count(),
        "handover": dealings.frames["switches"].count(),
        "serializability": relations,
    }
