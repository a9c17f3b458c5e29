"""An audit: step by step, each one a few jobs of Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from motet.audit.verdicts import Audit
from motet.spark.audit import conflicts, ordering, transacting
from motet.spark.audit.arrivals import Arrivals
from motet.spark.audit.catalogue import catalogue
from motet.spark.audit.findings import collect
from motet.spark.audit.tables import SMALL_BYTES, History, check_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Tell = Callable[[str], None]
FEW = 20_000
"""So many transactions are judged in one partition."""


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
    totals = arrivals.totals
    few = totals.suspects
    tell(f"looking closer at {few:,} streams" if few else "looking at the rest")
    lost = arrivals.lost() if few else []
    frames = [*lost, *arrivals.false_losses(), *arrivals.doubled()]
    frames += [*arrivals.unsound(), *arrivals.spaces()]
    frames += ordering.places(events, arrivals.doubtful)
    said.extend(collect(frames))
    tell("orders of ticks and of publishers")
    said.extend(collect(ordering.ticks(history)))
    said.extend(collect(ordering.publishers(history, events, arrivals.twins)))
    ordered = history.facts.ordered
    if ordered:
        tell("total order")
        said.extend(collect(ordering.total(history)))
    said.checked |= {
        "exactly-once": totals.due,
        "duplicates": totals.came,
        "soundness": totals.deliveries,
        "order": totals.deliveries,
        "total-order": ordered,
    }


def _judge_transactions(history: History, events: DataFrame, said: Audit, tell: Tell) -> None:
    deals = history["transactions"].count()
    if not deals:
        return
    tell(f"{deals:,} transactions")
    dealt, came = events.where("tx <> ''").localCheckpoint(), None
    if deals <= FEW and not history.is_small:
        # What concerns them is little: many tasks would take longer to begin than to work.
        dealt = history.gather(dealt)
        came = history.gather(transacting.came(history, dealt))
        history = history.gathered()
    with history.settings():
        dealings, frames = transacting.judge(history, dealt, came)
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
