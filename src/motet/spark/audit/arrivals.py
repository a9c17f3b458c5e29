"""Exactly once, from both ends: what was owed to a subscription, and what came for it.

Both ends are summed up first, by subscription and log: a number and a fingerprint (the exclusive or
of a 64-bit hash of each event and its place). Where the sums agree, the events do; where they do
not, and only there, both ends are joined event by event. A wrong agreement has a chance of 2^-64.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from motet.spark.audit.dues import STREAM, WHOLE, Dues, mark
from motet.spark.audit.findings import violations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from motet.spark.audit.tables import History

TWIN = ["run", "client", "number"]
LONG_AGO = "double('-infinity')"
WHO = "concat(client, '/', epoch, ' #', number)"
PLACE = "case when tick > 0 then concat(' (tick ', tick, ' of ', pubend, ')') else '' end"
DIFFER = "coalesce(n, 0) <> coalesce(due, 0) or not (x <=> due_x) or unlike > 0 or early"
SURE = "tick > 0 and op <> ''"


class Totals(NamedTuple):
    """What both ends come to."""

    due: int
    came: int
    deliveries: int
    odd: int
    """Deliveries that the sums do not speak for."""
    suspects: int


class Arrivals:
    """What is known of the deliveries of one history."""

    def __init__(self, history: History, catalogue: DataFrame) -> None:
        self.history = history
        self.catalogue = catalogue
        self.deliveries = history["deliveries"]
        self.dues = Dues(history, catalogue, self.came)

    # ── both ends, summed up ─────────────────────────────────────────────────────────────

    @cached_property
    def came(self) -> DataFrame:
        """By subscription and log: what applications have got."""
        taken = F.expr(f"taken and {SURE}")
        return self.history.keep(
            self.deliveries.groupBy(*STREAM).agg(
                F.count("*").alias("rows"),
                F.count_if(F.expr(f"not ({SURE}) or number < 0")).alias("odd"),
                F.count_if(taken).alias("n"),
                F.bit_xor(F.when(taken, mark("publisher"))).alias("x"),
                F.max(F.when(taken, F.col("tick"))).alias("last"),
                F.count_if(F.expr(f"came <> taken and {SURE}")).alias("unlike"),
            )
        )

    @cached_property
    def sums(self) -> DataFrame:
        """Both ends side by side."""
        return self.history.keep(self.came.join(self.dues.sums(), STREAM, "full"))

    @cached_property
    def totals(self) -> Totals:
        found = self.sums.agg(
            F.sum("due"), F.sum("n"), F.sum("rows"), F.sum("odd"), F.count_if(F.expr(DIFFER))
        ).first()
        return Totals(*(int(each or 0) for each in found or [0] * 5))

    @cached_property
    def suspects(self) -> DataFrame:
        """Subscriptions and logs where both ends do not agree."""
        return self.history.keep(self.sums.where(DIFFER).select(*STREAM))

    @cached_property
    def twins(self) -> DataFrame:
        """Numbers of a client that several of its sessions have used."""
        whose = self.catalogue.groupBy("run", "client").agg(
            F.min("epoch").alias("one"), F.max("epoch").alias("other")
        )
        several = whose.where("one <> other").select("run", "client")
        found = self.catalogue.join(self.history.aside(several), ["run", "client"], "left_semi")
        found = found.groupBy(*TWIN).agg(F.count_distinct("epoch").alias("twins"))
        return self.history.keep(found.where("twins > 1"))

    # ── where they differ ────────────────────────────────────────────────────────────────

    def lost(self) -> list[DataFrame]:
        """What was owed and never came."""
        taken = (
            self.deliveries.where("taken and tick > 0")
            .join(self.history.aside(self.suspects), STREAM, "left_semi")
            .selectExpr(*STREAM, "tick", "publisher client", "number")
        )
        owed = self.history.brief(
            self.dues.pairs(self.suspects).where("owed").drop("since", "audience")
        )
        missing = owed.join(taken, ["run", "op", "client", "number"], "left_anti")
        # Where a number does not say which event it was, its place does.
        unclear = owed.join(self.history.aside(self.twins), TWIN, "left_semi")
        unseen = unclear.join(taken, [*STREAM, "tick"], "left_anti")
        missing = missing.unionByName(unseen).distinct()
        told = self.history["losses"].selectExpr(
            "run", "process", "pubend lost_pubend", "first lost_first", "last lost_last"
        )
        is_told = (
            (F.col("m.run") == F.col("t.run"))
            & (F.col("m.process") == F.col("t.process"))
            & F.expr(
                "m.tick = 0 or (lost_pubend = m.pubend and m.tick between lost_first and lost_last)"
            )
        )
        missing = missing.alias("m").join(told.alias("t"), is_told, "left_anti")
        cut = self.history.severed.selectExpr("run", "one home", "other broker", "ends_until")
        # Of what only a log knows, nobody knows when it was sent.
        since = f"least(requested_at, nullif(sent_at, {LONG_AGO}))"
        missing = missing.join(self.history.aside(cut), ["run", "home", "broker"], "left").where(
            f"coalesce(ends_until, {LONG_AGO}) < {since}"
        )
        missing = self.history.keep(self._with_torn(missing))
        text, columns, say = "event %s%s never came for %s", (WHO, PLACE, "op"), "exactly-once"
        gap = f"(not ({WHOLE}) or coalesce(tick < last, false))"
        whole = missing.where("torn is null")
        return [
            violations(whole.where(f"not {gap}"), say, "lost", text, *columns),
            violations(whole.where(gap), say, "gap",
                       text + ", though tick %s did", *columns, "last"),
            violations(missing.where("torn"), say, "torn",
                       text + ", but others of transaction %s did", *columns, "tx"),
        ]  # fmt: skip

    def _with_torn(self, missing: DataFrame) -> DataFrame:
        """Marked where the same subscription got other events of the same transaction."""
        got = self.deliveries.where("taken and tick > 0").selectExpr(
            "run", "op", "publisher client", "number"
        )
        events = self.catalogue.where("tx <> ''").select("run", "client", "number", "tx")
        some = missing.where("tx <> ''").select("run", "op", "tx").distinct()
        torn = events.join(some, ["run", "tx"]).join(
            got, ["run", "op", "client", "number"], "left_semi"
        )
        torn = torn.select("run", "op", "tx", F.lit(True).alias("torn")).distinct()
        return missing.join(torn, ["run", "op", "tx"], "left")

    @cached_property
    def doubtful(self) -> DataFrame:
        """Deliveries that the sums do not speak for: each is looked at."""
        many = (
            self.history["operations"].where("kind = 'subscribe'")
            .groupBy("run", "process", "handle").agg(F.count("*").alias("ops"))
            .where("ops > 1")
        )  # fmt: skip
        if not (self.totals.suspects or self.totals.odd) and many.isEmpty():
            return self.deliveries.where("false")
        marked = self.suspects.withColumn("suspect", F.lit(True))
        found = self.deliveries.join(self.history.aside(marked), STREAM, "left")
        found = found.join(self.history.aside(many), ["run", "process", "handle"], "left")
        return self.history.keep(
            found.where("tick = 0 or op = '' or number < 0 or suspect or ops > 1")
        )

    def unsound(self) -> list[DataFrame]:
        """What came and should not have."""
        events = self.catalogue.selectExpr(
            "run", "client", "number", "epoch event_epoch", "pubend event_pubend",
            "tick event_tick", "fate", "settled_at", "tx event_tx", "maybe", "filters",
        )  # fmt: skip
        wanted = self.history.subscriptions.selectExpr(
            "run", "op", "f", "filter", "since reach", "requested_at"
        )
        came = self.doubtful.where("came").withColumnRenamed("publisher", "client")
        came = came.join(events, ["run", "client", "number"], "left")
        came = came.join(self.history.aside(wanted), ["run", "op"], "left")
        came = came.where(
            "tick = 0 or event_tick is null or (event_pubend = pubend and event_tick = tick)"
        )
        came = self.history.brief(came)
        told = "concat(client, ' #', number)"
        known = came.where("event_epoch is not null")
        ours = known.where("f is not null")
        wrong = "event_tx = '' and not maybe or fate in ('refused', 'void')"
        younger = (
            "tick > 0 and reach is null and fate = 'accepted' and event_tx = '' "
            f"and settled_at + {self.history.slack_s} < requested_at"
        )
        say = "soundness"
        return [
            violations(self._invented(came), say, "invented",
                       "process %s got %s%s for %s, which nobody published",
                       "process", told, PLACE, "op"),
            violations(known.where("f is null"), say, "nobody's",
                       "process %s got %s%s for no subscription of its session",
                       "process", told, PLACE),
            violations(ours.where("not array_contains(filters, f)"), say, "misrouted",
                       "%s%s came for %s (%s), which it does not match",
                       told, PLACE, "op", "filter"),
            violations(ours.where(wrong), say, "unpublished",
                       "%s%s came for %s, though it was not advertised, or never published",
                       told, PLACE, "op"),
            violations(ours.where(younger), say, "early",
                       "%s%s was published before %s was asked for, and came for it",
                       told, PLACE, "op"),
        ]  # fmt: skip

    def _invented(self, came: DataFrame) -> DataFrame:
        """What nobody has published. Whoever writes a log's history may have died before its end:
        beyond it, nobody knows."""
        ends = self.catalogue.where("tick > 0").groupBy("run", "pubend")
        ends = ends.agg(F.max("tick").alias("end"))
        unknown = came.where("event_epoch is null")
        return unknown.join(self.history.aside(ends), ["run", "pubend"], "left").where(
            "number < 0 or tick = 0 or tick <= end"
        )

    def false_losses(self) -> list[DataFrame]:
        """What clients were told to be lost, and is not."""
        homes = self.history["sessions"].groupBy("run", "process").agg(
            F.max_by("broker", "opened_at").alias("broker"),
            F.bool_or("total_order").alias("merges"),
        )  # fmt: skip
        reaching = (
            self.history.subscriptions.where("since is not null")
            .select("run", "process", F.lit(True).alias("reaches")).distinct()
        )  # fmt: skip
        cut = self.history.severed.selectExpr("run", "one home", "other broker", "ends_until")
        told = (
            self.history["losses"]
            .join(homes, ["run", "process"], "left")
            .join(reaching, ["run", "process"], "left")
            .join(self.history["logs"], ["run", "pubend"], "left")
            .withColumn("home", F.expr("regexp_replace(pubend, '\\\\.[^.]*$', '')"))
            .join(cut, ["run", "home", "broker"], "left")
        )
        wrong = told.where(
            "not (coalesce(last <= lost_upto, false) or (merges and first = last) "
            "or coalesce(reaches and (withdrawn or last <= trimmed_upto), false)) "
            "and ends_until is null and lost_upto is not null"
        )
        return [
            violations(wrong, "exactly-once", "false loss",
                       "process %s was told that ticks %s to %s of %s are lost, and they are not",
                       "process", "first", "last", "pubend"),
        ]  # fmt: skip

    def spaces(self) -> list[DataFrame]:
        """What was refused or accepted, though it was advertised, or was not."""
        made = self.catalogue.where("tx = '' and position is not null")
        say = "soundness"
        return [
            violations(made.where("fate = 'refused' and surely"), say, "refused",
                       "event %s was refused, though it was advertised", WHO),
            violations(made.where("fate = 'accepted' and not maybe"), say, "accepted",
                       "event %s was accepted, though it was never advertised", WHO),
        ]  # fmt: skip

    def doubled(self) -> list[DataFrame]:
        """What came more than once. Where a number does not say which event it was, its place
        does; of best-effort events, which have none, nobody can tell then."""
        twins = self.twins.withColumnRenamed("client", "publisher")
        came = self.doubtful.where("came and number >= 0").join(
            self.history.aside(twins), ["run", "publisher", "number"], "left"
        )
        place = F.expr("case when twins > 1 then concat(pubend, ' ', tick) else '' end")
        again = (
            came.where("tick > 0 or twins is null").withColumn("place", place)
            .groupBy("run", "process", "handle", "publisher", "number", "place")
            .agg(F.count("*").alias("times"), F.first("op").alias("op"))
            .where("times > 1")
        )  # fmt: skip
        say = "duplicates"
        return [
            violations(again, say, "doubled", "%s came %s times for %s",
                       "concat(publisher, ' #', number)", "times", "op"),
            violations(self._logged_twice(), say, "logged twice",
                       "event %s is in logs %s times", WHO, "times"),
            violations(self._own_cursors(), say, "done twice",
                       "%s, which writes its own cursors down, got %s %s times",
                       "client", "concat(publisher, ' #', number)", "times"),
        ]  # fmt: skip

    def _logged_twice(self) -> DataFrame:
        """By hash first, which takes less to send around."""
        key = ["run", "client", "epoch", "number"]
        logged = self.history["logged"].select(*key, F.xxhash64(*key).alias("hash"))
        again = logged.groupBy("hash").count().where("count > 1").select("hash")
        shown = logged.join(self.history.aside(again), "hash", "left_semi")
        return shown.groupBy(*key).agg(F.count("*").alias("times")).where("times > 1")

    def _own_cursors(self) -> DataFrame:
        wanted = self.history.subscriptions.where("own_cursors").select(
            "run", "op", "client", "filter", "stayed"
        )
        taken = self.deliveries.where(
            "taken and number >= 0" if self.history.facts.own_cursors else "false"
        )
        return (
            taken.join(self.history.aside(wanted), ["run", "op"])
            .groupBy("run", "client", "filter", "publisher", "number")
            .agg(
                F.count("*").alias("times"),
                F.count_distinct("op").alias("ops"),
                F.bool_or("stayed").alias("stayed"),
            )
            .where("times > 1 and (ops < times or not stayed)")
        )
