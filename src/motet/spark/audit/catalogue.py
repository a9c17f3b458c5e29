"""Every event once: who published it, where it is, which filters match it, who advertised it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from motet.spark.audit.matching import with_filters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from motet.spark.audit.tables import History

KEY = ["number", "client", "epoch", "run"]
"""In the order in which they differ: rows are sorted by it."""


def catalogue(history: History) -> DataFrame:
    """One row per event, or more if it was logged more than once. What its publisher did not write
    down, the log knows: then nobody knows when it was sent."""
    logged = history["logged"].withColumnsRenamed({"body": "logged_body", "tx": "logged_tx"})
    events = (
        history["events"]
        .join(logged, KEY, "full")
        .select(
            *KEY,
            F.coalesce("body", "logged_body").alias("body"),
            F.col("position"),
            F.coalesce("last_position", "position").alias("last_position"),
            F.coalesce("sent_at", F.lit(float("-inf"))).alias("sent_at"),
            F.coalesce("settled_at", F.lit(float("inf"))).alias("settled_at"),
            F.coalesce("fate", F.lit("accepted")).alias("fate"),
            F.coalesce("is_sure", F.lit(True)).alias("is_sure"),
            F.coalesce("tx", "logged_tx").alias("tx"),
            F.coalesce("pubend", F.lit("")).alias("pubend"),
            F.coalesce("tick", F.lit(0)).alias("tick"),
            "audience",
        )
    )
    matched = with_filters(events, history.filters)
    spaces = _spaces(history)
    session = ["run", "client", "epoch"]
    found = matched.join(history.aside(history.homes), session, "left")
    found = found.join(history.aside(spaces), session, "left")
    return found.select(
        *(name for name in found.columns if name != "ads"),
        F.expr(f"coalesce(exists(ads, ad -> {IN_SPACE}), position is null)").alias("maybe"),
        F.expr(f"coalesce(exists(ads, ad -> {IN_SPACE} and {SURELY}), false)").alias("surely"),
        F.expr(f"coalesce(exists(ads, ad -> {IN_SPACE} and {CARRIES}), false)").alias("carried"),
    )


IN_SPACE = (
    "ad.position < position and position < ad.ended_position and array_contains(filters, ad.f)"
)
"""It lay in what its session had advertised."""
CARRIES = "ad.effective_at <= sent_at and not ad.is_forgotten"
"""Everybody knew of it when it was sent."""
SURELY = (
    "ad.answer in ('Done', '') and not ad.is_forgotten and ad.tx = '' "
    "and last_position <= least(ad.ended_position, ad.doubted_position)"
)
"""It had not ended, nor could it have."""


def _spaces(history: History) -> DataFrame:
    """What each session has advertised."""
    ads = history["operations"].where("kind = 'advertise' and filter <> ''")
    names = ("f", "position", "ended_position", "doubted_position", "effective_at", "answer")
    return (
        ads.join(history.numbered, "filter")
        .groupBy("run", "client", "epoch")
        .agg(F.collect_list(F.struct(*names, "tx", "is_forgotten")).alias("ads"))
    )
