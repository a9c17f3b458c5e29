"""An audit, step by step; each step is a few Spark jobs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from motet.audit.schema import TABLES
from motet.audit.verdicts import Audit, Finding
from motet.spark.audit import deliveries, moves, transactions
from motet.spark.audit.deliveries import DeliveryAudit
from motet.spark.audit.history import SMALL_BYTES, RecordedHistory, catalogue, check_folder, collect
from motet.spark.audit.ordering import OrderAudit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Tell = Callable[[str], None]
OVER_SERVICES = "order_"
"""The beginning of the names of tables about order across topics."""
FEW, FEW_EVENTS = 20_000, 200_000
"""At most this many transactions, with at most this many events, are judged in one partition."""


def audit(
    spark: SparkSession,
    folder: str | Path,
    tell: Tell = lambda _: None,
    *,
    slack_s: float = 0.0,
    small_bytes: int = SMALL_BYTES,
) -> Audit:
    """Judge all histories in a folder. `tell` is called with progress messages. `slack_s`: how far
    the clocks of the recording processes may differ."""
    check_folder(folder)
    began = monotonic()
    history = RecordedHistory(spark, folder, small_bytes, slack_s)
    said = Audit()
    try:
        with history.settings():
            if history.has(*(name for name in TABLES if not name.startswith(OVER_SERVICES))):
                _judge_overlay(history, said, tell)
            _judge_order(history, said, tell)
    finally:
        history.close()
    said.seconds = monotonic() - began
    return said


def _judge_overlay(history: RecordedHistory, said: Audit, tell: Tell) -> None:
    tell("reading subscriptions and advertisements")
    filters = len(history.filters)
    tell(f"matching events with {filters:,} filters")
    events = history.keep(catalogue(history))
    _judge_arrivals(history, events, said, tell)
    _judge_transactions(history, events, said, tell)
    _judge_moves(history, said, tell)


def _judge_arrivals(history: RecordedHistory, events: DataFrame, said: Audit, tell: Tell) -> None:
    arrivals = DeliveryAudit(history, events)
    tell("comparing owed and delivered events, and their order")
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


def _compared(arrivals: DeliveryAudit) -> list[Finding]:
    lost = arrivals.lost() if arrivals.totals.suspects else []
    frames = [*lost, *arrivals.false_losses(), *arrivals.doubled()]
    frames += [*arrivals.unsound(), *arrivals.spaces()]
    return collect(frames + deliveries.places(arrivals.catalogue, arrivals.doubtful))


def _ordered(arrivals: DeliveryAudit) -> list[Finding]:
    history = arrivals.history
    found = collect(deliveries.ticks(history))
    found += collect(deliveries.publishers(history, arrivals.catalogue, arrivals.twins))
    return found + (collect(deliveries.total(history)) if history.facts.ordered else [])


def _judge_transactions(
    history: RecordedHistory, events: DataFrame, said: Audit, tell: Tell
) -> None:
    deals, batched = history["transactions"].count(), transactions.batches(history).count()
    if not deals and not batched:
        return
    tell(f"{deals:,} transactions, {batched:,} batches of sinks")
    dealt = events.where("tx <> ''").localCheckpoint()
    is_little = dealt.count() <= FEW_EVENTS
    came = transactions.came(history, dealt, is_little)
    if deals <= FEW and is_little and not history.is_small:
        # They have little data: many tasks would take longer to start than to work.
        dealt = history.gather(dealt)
        came = history.gather(came)
        history = history.gathered()
    else:
        came = history.settle(came)
    with history.settings():
        dealings, frames = transactions.judge(history, dealt, came)
        said.extend(collect([*frames, *transactions.judge_blocks(history, dealt, came)]))
        tell("dependencies of transactions")
        relations, found = transactions.judge_order(history, dealings)
        said.extend(found)
        said.checked |= {
            "atomicity": deals + batched,
            "visibility": came.count(),
            "transaction-order": history["cuts"].count(),
            "handover": dealings.frames["switches"].count(),
            "serializability": relations,
        }


def _judge_moves(history: RecordedHistory, said: Audit, tell: Tell) -> None:
    asked, stays = history["moves"].count(), history["stays"].count()
    if not asked and not stays:
        return
    tell(f"{asked:,} moves")
    said.extend(collect(moves.judge(history)))
    said.checked["moves"] = asked + stays


def _judge_order(history: RecordedHistory, said: Audit, tell: Tell) -> None:
    if not history.has("order_given", "order_published", "order_numbers"):
        return
    tell("order across topics")
    judged = OrderAudit(history)
    said.extend(collect(judged.judge()))
    said.checked |= judged.checked
