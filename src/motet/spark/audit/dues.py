"""What was owed to subscriptions, summed up by subscription and log.

There are far more pairs of events and subscriptions than events. So events of one log that match
the same filters are summed up first, by zones of ticks: a subscription that is owed all of a zone,
or nothing of it, needs no more than its sums. Only where a subscription begins or ends inside of a
zone, and where a log says for whom an event was, is each event looked at.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from motet.spark.audit.tables import History

STREAM = ["run", "op", "pubend"]
ZONE = ["run", "f", "pubend", "zone"]
ZONES = 200
"""Zones of one run."""
WHOLE = "lasting or coalesce(stands and tick > 0 and tick <= reached, false)"
"""All that is owed must have come."""
EARLY = "tick > 0 and since is null and tx = '' and settled_at + {} < requested_at"
"""It was settled before the subscription was asked for."""
STARTED = "coalesce(tick > start, false) and (audience is null or array_contains(audience, op))"
ALL_OF_IT = "low > start and (lasting or (stands and high <= reached) or high <= last)"
"""Every event of a zone is one that the subscription is owed."""
NOTHING_OF_IT = (
    "(since is null and coalesce(high <= start, true) and latest < effective_at + {}) "
    "or (not lasting and coalesce(low > last, true) "
    "and not coalesce(stands and low <= reached, false))"
)
EVENT = (
    *("run", "client", "epoch", "number", "pubend", "tick", "sent_at", "settled_at"),
    *("carried", "audience", "tx", "home", "f", "zone"),
)


class Dues:
    """`came` has the last tick of each stream."""

    def __init__(self, history: History, catalogue: DataFrame, came: DataFrame) -> None:
        self.history = history
        self.catalogue = catalogue
        self.came = came

    @cached_property
    def events(self) -> DataFrame:
        """Exactly-once events that were accepted, once for each filter that matches them."""
        found = self.catalogue.where("is_sure and fate = 'accepted'")
        found = found.withColumn("home", F.col("broker")).join(
            self.history.aside(self._widths()), "run"
        )
        zoned = found.withColumn("zone", F.expr("tick div width"))
        return zoned.withColumn("f", F.explode("filters")).select(*EVENT)

    def _widths(self) -> DataFrame:
        """By run: how many ticks make a zone."""
        found = self.catalogue.groupBy("run").agg(
            F.min(F.when(F.col("tick") > 0, F.col("tick"))).alias("low"),
            F.max("tick").alias("high"),
        )
        rows = [
            (row["run"], max(1, (row["high"] - (row["low"] or 0)) // ZONES))
            for row in found.collect()
        ]
        return self.history.rows(rows, "run string, width bigint")

    @cached_property
    def wanted(self) -> DataFrame:
        return self.history.subscriptions.selectExpr(
            "run", "f", "op", "process", "broker", "total_order", "lasting", "since",
            "requested_at", "effective_at", "ended_at = double('infinity') and not is_gone stands",
        )  # fmt: skip

    def sums(self) -> DataFrame:
        """By stream: how many events it is owed, and their fingerprint."""
        zoned = "tick > 0 and audience is null"
        slack_s = self.history.slack_s
        zones = (
            self.events.where(zoned).groupBy(*ZONE)
            .agg(
                F.count("*").alias("n"), F.bit_xor(mark("client")).alias("x"),
                F.min("tick").alias("low"), F.max("tick").alias("high"),
                F.max("sent_at").alias("latest"),
                F.min(F.when(F.col("tx") == "", F.col("settled_at"))).alias("settled"),
            )
        )  # fmt: skip
        asked = self._standing(zones.join(self.history.aside(self.wanted), ["run", "f"]))
        marked = self.history.keep(
            asked.withColumn("is_in", F.expr(f"coalesce({ALL_OF_IT}, false)")).where(
                f"is_in or not coalesce({NOTHING_OF_IT.format(slack_s)}, false)"
            )
        )
        early = f"coalesce(since is null and settled + {slack_s} < requested_at, false) early"
        whole = marked.where("is_in").selectExpr(*STREAM, "n", "x", early)
        partly = marked.where("not is_in").select(*ZONE, "op")
        near = self.events.where(zoned).join(self.history.aside(partly), ZONE)
        near = near.join(self.history.aside(self.wanted), ["run", "f", "op"])
        apart = self.events.where(f"not ({zoned})")
        apart = apart.join(self.history.aside(self.wanted), ["run", "f"])
        single = self._owed(near.unionByName(apart)).select(
            *STREAM, F.lit(1).alias("n"), mark("client").alias("x"),
            F.expr(EARLY.format(slack_s)).alias("early"),
        )  # fmt: skip
        return (
            whole.unionByName(single).groupBy(*STREAM)
            .agg(
                F.sum("n").alias("due"), F.bit_xor("x").alias("due_x"),
                F.bool_or("early").alias("early"),
            )
        )  # fmt: skip

    def pairs(self, streams: DataFrame) -> DataFrame:
        """Every event with each subscription that is owed it, or had started before it, of these
        streams."""
        wanted = self.wanted.join(self.history.aside(streams), ["run", "op"])
        return self._owed(self.events.join(self.history.aside(wanted), ["run", "f", "pubend"]))

    def _owed(self, found: DataFrame) -> DataFrame:
        owed = (
            f"({STARTED} and not total_order) "
            f"or (carried and effective_at + {self.history.slack_s} <= sent_at) "
            "or (coalesce(since[pubend], since['']) < tick and tick <= first and is_first)"
        )
        return (
            self._standing(found)
            .where(f"({WHOLE}) or tick <= last")
            .withColumn("owed", F.expr(f"coalesce(({owed}) and ({WHOLE} or tick < last), false)"))
            .where(f"owed or ({STARTED})")
        )

    # ── where subscriptions stand ────────────────────────────────────────────────────────

    def _standing(self, found: DataFrame) -> DataFrame:
        """With where each subscription has started in a log, the last that came for it, and how far
        clients were told that all has come."""
        aside = self.history.aside
        found = found.join(aside(self._streams), STREAM, "left")
        reached = self.history["reached"]
        upto = reached.groupBy("run", "process", "pubend").agg(F.max("tick").alias("reached"))
        return found.join(aside(upto), ["run", "process", "pubend"], "left")

    @cached_property
    def _streams(self) -> DataFrame:
        last = self.came.select(*STREAM, "last")
        found = self.history.starts.join(last, STREAM, "full")
        found = found.withColumnRenamed("tick", "start")
        if not self.history.facts.reaches:
            return self.history.keep(found.withColumn("is_first", F.lit(False)))
        # Of subscriptions that reach into the past: was it the first of its session there?
        whose = self.history.subscriptions.select("run", "op", "client", "epoch")
        session = Window.partitionBy("run", "client", "epoch", "pubend")
        is_first = F.col("first") == F.min("first").over(session)
        found = found.join(whose, ["run", "op"], "left").withColumn("is_first", is_first)
        return self.history.keep(found.drop("client", "epoch"))


def mark(publisher: str) -> F.Column:
    """The fingerprint of one event and its place."""
    return F.xxhash64("tick", publisher, "number")
