"""An audit: step by step, each one a few jobs of Spark."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from motet.audit.verdicts import Audit, Finding
from motet.spark.audit import blocks, conflicts, ordering, transacting
from motet.spark.audit.arrivals import Arrivals
from motet.spark.audit.catalogue import catalogue
from motet.spark.audit.findings import collect
from motet.spark.audit.tables import SMALL_BYTES, History, check_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Tell = Callable[[str], None]
FEW, FEW_EVENTS = 20_000, 200_000
"""So many transactions, with so many events, are judged in one partition."""


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
    tell("comparing what was owed with what came, and in which order")
    frames = partial(_compared, arrivals), partial(_ordered, arrivals)
    if history.is_small:
        found = [each() for each in frames]
    else:
        # Neither keeps all cores busy: Spark plans, or waits for the last task of a stage.
        with ThreadPoolExecutor(len(frames)) as both:
            found = list(both.map(lambda each: each(), frames))
    for each in found:
        said.extend(each)
    totals = arrivals.totals
    said.checked |= {
        "exactly-once": totals.due,
        "duplicates": totals.came,
        "soundness": totals.deliveries,
        "order": totals.deliveries,
        "total-order": history.facts.ordered,
    }


def _compared(arrivals: Arrivals) -> list[Finding]:
    lost = arrivals.lost() if arrivals.totals.suspects else []
    frames = [*lost, *arrivals.false_losses(), *arrivals.doubled()]
    frames += [*arrivals.unsound(), *arrivals.spaces()]
    return collect(frames + ordering.places(arrivals.catalogue, arrivals.doubtful))


def _ordered(arrivals: Arrivals) -> list[Finding]:
    history = arrivals.history
    found = collect(ordering.ticks(history))
    found += collect(ordering.publishers(history, arrivals.catalogue, arrivals.twins))
    return found + (collect(ordering.total(history)) if history.facts.ordered else [])


def _judge_transactions(history: History, events: DataFrame, said: Audit, tell: Tell) -> None:
    deals, batched = history["transactions"].count(), blocks.batches(history).count()
    if not deals and not batched:
        return
    tell(f"{deals:,} transactions, {batched:,} batches of sinks")
    dealt = events.where("tx <> ''").localCheckpoint()
    is_little = dealt.count() <= FEW_EVENTS
    came = transacting.came(history, dealt, is_little)
    if deals <= FEW and is_little and not history.is_small:
        # What concerns them is little: many tasks would take longer to begin than to work.
        dealt = history.gather(dealt)
        came = history.gather(came)
        history = history.gathered()
    else:
        came = history.settle(came)
    with history.settings():
        dealings, frames = transacting.judge(history, dealt, came)
        said.extend(collect([*frames, *blocks.judge(history, dealt, came)]))
        tell("what must come before what")
        relations, found = conflicts.judge(history, dealings)
        said.extend(found)
        said.checked |= {
            "atomicity": deals + batched,
            "visibility": came.count(),
            "transaction-order": history["cuts"].count(),
            "handover": dealings.frames["switches"].count(),
            "serializability": relations,
        }
