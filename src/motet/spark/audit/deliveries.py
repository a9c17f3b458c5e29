"""Exactly-once delivery, checked from both ends: the events owed to a subscription and those
delivered to it, and their order.

Both ends are first summed up by subscription and log: a count and a fingerprint (the exclusive or
of a 64-bit hash of each event and its place). Where the sums agree, so do the events; only where
they differ are both ends joined event by event. The chance of a false agreement is 2^-64.

There are far more pairs of events and subscriptions than events. So events of one log that match
the same filters are first summed up by zones of ticks: a subscription that is owed all of a zone,
or none of it, needs only its sums. Events are examined one by one only where a subscription begins
or ends inside a zone, and where a log says for whom an event was.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F

from motet.spark.audit.history import violations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from motet.spark.audit.history import RecordedHistory


# ── events owed ──────────────────────────────────────────────────────────────────────────

STREAM = ["run", "op", "pubend"]
ZONE = ["run", "f", "pubend", "zone"]
ZONES = 200
"""Zones per run."""
WHOLE = "lasting or coalesce(stands and tick > 0 and tick <= reached, false)"
"""Everything owed must have been delivered."""
EARLY = "tick > 0 and since is null and tx = '' and settled_at + {} < requested_at"
"""It was settled before the subscription was requested."""
STARTED = "coalesce(tick > start, false) and (audience is null or array_contains(audience, op))"
ALL_OF_IT = "low > start and (lasting or (stands and high <= reached) or high <= last)"
"""The subscription is owed every event of the zone."""
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
    """What subscriptions are owed. `came` has the last tick of each stream."""

    def __init__(self, history: RecordedHistory, catalogue: DataFrame, came: DataFrame) -> None:
        self.history = history
        self.catalogue = catalogue
        self.came = came

    @cached_property
    def events(self) -> DataFrame:
        """Accepted exactly-once events, one row per matching filter."""
        found = self.catalogue.where("is_sure and fate = 'accepted'")
        found = found.withColumn("home", F.col("broker")).join(
            self.history.aside(self._widths()), "run"
        )
        zoned = found.withColumn("zone", F.expr("tick div width"))
        return zoned.withColumn("f", F.explode("filters")).select(*EVENT)

    def _widths(self) -> DataFrame:
        """By run: the number of ticks per zone."""
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
        """By stream: the number of events owed, and their fingerprint."""
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
        """Every event of these streams with each subscription that is owed it or had started before
        it."""
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

    # ── positions of subscriptions ───────────────────────────────────────────────────────

    def _standing(self, found: DataFrame) -> DataFrame:
        """Adds the start of each subscription in a log, its last delivery, and the tick up to which
        its client was told that everything has arrived."""
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
        # Of subscriptions with `since`: was it the first of its session at this pubend?
        whose = self.history.subscriptions.select("run", "op", "client", "epoch")
        session = Window.partitionBy("run", "client", "epoch", "pubend")
        is_first = F.col("first") == F.min("first").over(session)
        found = found.join(whose, ["run", "op"], "left").withColumn("is_first", is_first)
        return self.history.keep(found.drop("client", "epoch"))


def mark(publisher: str) -> F.Column:
    """The fingerprint of one event and its place."""
    return F.xxhash64("tick", publisher, "number")


# ── events owed and delivered ────────────────────────────────────────────────────────────

TWIN = ["run", "client", "number"]
LONG_AGO = "double('-infinity')"
WHO = "concat(client, '/', epoch, ' #', number)"
PLACE = "case when tick > 0 then concat(' (tick ', tick, ' of ', pubend, ')') else '' end"
DIFFER = "coalesce(n, 0) <> coalesce(due, 0) or not (x <=> due_x) or unlike > 0 or early"
SURE = "tick > 0 and op <> ''"


class Totals(NamedTuple):
    """Totals of both ends."""

    due: int
    came: int
    deliveries: int
    odd: int
    """Deliveries that the sums do not cover."""
    suspects: int


class DeliveryAudit:
    """The deliveries of one history."""

    def __init__(self, history: RecordedHistory, catalogue: DataFrame) -> None:
        self.history = history
        self.catalogue = catalogue
        self.deliveries = history["deliveries"]
        self.dues = Dues(history, catalogue, self.came)

    # ── both ends, summed up ─────────────────────────────────────────────────────────────

    @cached_property
    def came(self) -> DataFrame:
        """By subscription and log: what applications received."""
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
        """Subscriptions and logs where both ends differ."""
        return self.history.keep(self.sums.where(DIFFER).select(*STREAM))

    @cached_property
    def twins(self) -> DataFrame:
        """Sequence numbers of a client that several of its sessions have used."""
        whose = self.catalogue.groupBy("run", "client").agg(
            F.min("epoch").alias("one"), F.max("epoch").alias("other")
        )
        several = whose.where("one <> other").select("run", "client")
        found = self.catalogue.join(self.history.aside(several), ["run", "client"], "left_semi")
        found = found.groupBy(*TWIN).agg(F.count_distinct("epoch").alias("twins"))
        return self.history.keep(found.where("twins > 1"))

    # ── differences ──────────────────────────────────────────────────────────────────────

    def lost(self) -> list[DataFrame]:
        """Events that were owed and never delivered."""
        taken = (
            self.deliveries.where("taken and tick > 0")
            .join(self.history.aside(self.suspects), STREAM, "left_semi")
            .selectExpr(*STREAM, "tick", "publisher client", "number")
        )
        owed = self.history.brief(
            self.dues.pairs(self.suspects).where("owed").drop("since", "audience")
        )
        missing = owed.join(taken, ["run", "op", "client", "number"], "left_anti")
        # If the number is ambiguous, the place identifies the event.
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
        # If only a log has the event, the time of sending is unknown.
        since = f"least(requested_at, nullif(sent_at, {LONG_AGO}))"
        missing = missing.join(self.history.aside(cut), ["run", "home", "broker"], "left").where(
            f"coalesce(ends_until, {LONG_AGO}) < {since}"
        )
        missing = self.history.keep(self._with_torn(missing))
        text, columns, say = (
            "event %s%s was never delivered to %s",
            (WHO, PLACE, "op"),
            "exactly-once",
        )
        gap = f"(not ({WHOLE}) or coalesce(tick < last, false))"
        whole = missing.where("torn is null")
        return [
            violations(whole.where(f"not {gap}"), say, "lost", text, *columns),
            violations(whole.where(gap), say, "gap",
                       text + ", although tick %s was", *columns, "last"),
            violations(missing.where("torn"), say, "torn",
                       text + ", but other events of transaction %s were", *columns, "tx"),
        ]  # fmt: skip

    def _with_torn(self, missing: DataFrame) -> DataFrame:
        """Marks events of a transaction of which the same subscription received other events."""
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
        """Deliveries that the sums do not cover; each is examined."""
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
        """Deliveries that should not have happened."""
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
        # A best-effort event does not tell which of several sessions has published it.
        came = came.join(self.history.aside(self.twins), TWIN, "left").where(
            "twins is null or (tick > 0 and event_tick = tick)"
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
                       "process %s received %s%s for %s, which was never published",
                       "process", told, PLACE, "op"),
            violations(known.where("f is null"), say, "unrequested",
                       "process %s received %s%s for no subscription of its session",
                       "process", told, PLACE),
            violations(ours.where("not array_contains(filters, f)"), say, "misrouted",
                       "%s%s was delivered to %s (%s), which it does not match",
                       told, PLACE, "op", "filter"),
            violations(ours.where(wrong), say, "unpublished",
                       "%s%s was delivered to %s, but was not advertised, or never published",
                       told, PLACE, "op"),
            violations(ours.where(younger), say, "early",
                       "%s%s was published before %s was requested, but was delivered to it",
                       told, PLACE, "op"),
        ]  # fmt: skip

    def _invented(self, came: DataFrame) -> DataFrame:
        """Deliveries of events that were never published. The process that records a log may have
        died early: ticks after the end of its recording prove nothing."""
        ends = self.catalogue.where("tick > 0").groupBy("run", "pubend")
        ends = ends.agg(F.max("tick").alias("end"))
        unknown = came.where("event_epoch is null")
        return unknown.join(self.history.aside(ends), ["run", "pubend"], "left").where(
            "number < 0 or tick = 0 or tick <= end"
        )

    def false_losses(self) -> list[DataFrame]:
        """Losses reported to clients that are none."""
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
                       "process %s was told that ticks %s to %s of %s are lost, but they are not",
                       "process", "first", "last", "pubend"),
        ]  # fmt: skip

    def spaces(self) -> list[DataFrame]:
        """Events that were refused though advertised, or accepted though not advertised."""
        made = self.catalogue.where("tx = '' and position is not null")
        say = "soundness"
        return [
            violations(made.where("fate = 'refused' and surely"), say, "refused",
                       "event %s was refused, although it was advertised", WHO),
            violations(made.where("fate = 'accepted' and not maybe"), say, "accepted",
                       "event %s was accepted, although it was never advertised", WHO),
        ]  # fmt: skip

    def doubled(self) -> list[DataFrame]:
        """Duplicates. If the number is ambiguous, the place identifies the event; best-effort
        events have no place and are then skipped."""
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
            violations(again, say, "doubled", "%s was delivered %s times to %s",
                       "concat(publisher, ' #', number)", "times", "op"),
            violations(self._logged_twice(), say, "logged twice",
                       "event %s is in logs %s times", WHO, "times"),
            violations(self._own_cursors(), say, "done twice",
                       "%s, which stores its own cursors, received %s %s times",
                       "client", "concat(publisher, ' #', number)", "times"),
        ]  # fmt: skip

    def _logged_twice(self) -> DataFrame:
        """Grouped by hash first, which is less to shuffle."""
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
        again = (
            taken.join(self.history.aside(wanted), ["run", "op"])
            .groupBy("run", "client", "filter", "publisher", "number")
            .agg(
                F.count("*").alias("times"),
                F.count_distinct("op").alias("ops"),
                F.bool_or("stayed").alias("stayed"),
                F.collect_list(F.struct("op", "pubend", "tick")).alias("got"),
            )
            .where("times > 1 and (ops < times or not stayed)")
        )
        return self._not_owed_to_all(again) if self.history.facts.own_cursors else again

    def _not_owed_to_all(self, again: DataFrame) -> DataFrame:
        """Without events that a log owed to each of several subscriptions: all had started when the
        event was logged, and one of them was to end with a transaction for which the log had not
        cut yet."""
        key = ["run", "client", "filter", "publisher", "number"]
        again = self.history.keep(again)
        got = again.where("ops = times").selectExpr(*key, "inline(got)")
        logged = self.catalogue.where("tick > 0").select("run", "pubend", "tick", "audience")
        owed = (
            got.join(self.history.starts.select(*STREAM, "first"), STREAM, "left")
            .join(self.history.ends, STREAM, "left")
            .join(logged.distinct(), ["run", "pubend", "tick"], "left")
            .withColumn("started", F.expr("coalesce(array_contains(audience, op), first < tick)"))
            .groupBy(*key)
            .agg(
                F.bool_and(F.coalesce("started", F.lit(False))).alias("all_started"),
                F.bool_or(F.expr("coalesce(tick <= end, false)")).alias("one_ends"),
            )
            .where("all_started and one_ends")
        )
        return again.join(owed, key, "left_anti")


# ── orders ───────────────────────────────────────────────────────────────────────────────

SEAT = ("run", "process", "handle")
"""A subscription as its application knows it, across sessions."""


def ticks(history: RecordedHistory) -> list[DataFrame]:
    """Events of one log arrive in the order of their ticks."""
    came = history["deliveries"].where("came and tick > 0")
    # Sorting by whole text columns is expensive: search by hash, then check the hits exactly.
    slim = came.select(F.xxhash64(*SEAT, "pubend").alias("stream"), "nth", "tick")
    before = F.lag("tick").over(Window.partitionBy("stream").orderBy("nth"))
    shown = slim.withColumn("before", before).where("before >= tick").select("stream").distinct()
    exact = (
        came.withColumn("stream", F.xxhash64(*SEAT, "pubend"))
        .join(history.aside(shown), "stream", "left_semi")
        .withColumn(
            "before", F.lag("tick").over(Window.partitionBy(*SEAT, "pubend").orderBy("nth"))
        )
        .where("before >= tick")
    )
    return [
        violations(exact, "order", "tick order", "tick %s of %s was delivered after tick %s to %s",
                   "tick", "pubend", "before", "op"),
    ]  # fmt: skip


def places(catalogue: DataFrame, doubtful: DataFrame) -> list[DataFrame]:
    """Each tick delivers the same event everywhere: the one that the log has there."""
    logged = catalogue.where("tick > 0").selectExpr(
        "run", "pubend", "tick", "client logged_client", "number logged_number"
    )
    other = (
        doubtful.where("came and tick > 0")
        .join(logged, ["run", "pubend", "tick"])
        .where("logged_client <> publisher or logged_number <> number")
    )
    return [
        violations(other, "order", "another event",
                   "tick %s of %s is %s, but was delivered as %s to %s", "tick", "pubend",
                   "concat(logged_client, ' #', logged_number)",
                   "concat(publisher, ' #', number)", "op"),
    ]  # fmt: skip


def publishers(history: RecordedHistory, catalogue: DataFrame, twins: DataFrame) -> list[DataFrame]:
    """Every subscription sees the events of one session in the order of publishing.

    If one log has all of a session's events, in that order, then delivery in tick order implies
    delivery in publishing order. What remains to be examined are best-effort events, and sessions
    with events in several logs or in another order.

    Past events that a subscription asks for may come after later ones from another log; so may any
    events, if that log has lost what it noted about them, and the client was told so."""
    session = ["run", "client", "epoch"]
    made = catalogue.where("tx = '' and position is not null").withColumn(
        "session", F.xxhash64(*session)
    )
    in_log = Window.partitionBy("stream").orderBy("tick")
    odd = (
        made.where("is_sure and tick > 0")
        .select("session", F.xxhash64("session", "pubend").alias("stream"), "tick", "position")
        .withColumn("before", F.lag("position").over(in_log))
        .groupBy("session")
        .agg(
            (F.min("stream") != F.max("stream")).alias("is_apart"),
            F.bool_or(F.coalesce(F.col("before") > F.col("position"), F.lit(False))).alias("odd"),
        )
        .where("odd or is_apart")
        .select("session")
    )
    suspects = history.keep(odd.unionByName(made.where("not is_sure").select("session")).distinct())
    if not history.is_small and suspects.isEmpty():
        return []
    events = made.join(history.aside(suspects), "session", "left_semi").select(
        *session, "number", "position", "is_sure", "pubend", "tick"
    )
    unclear = events.where("not is_sure or tick = 0").join(
        history.aside(twins), ["run", "client", "number"], "left_semi"
    )
    events = events.join(unclear.select(*session, "number"), [*session, "number"], "left_anti")
    came = history["deliveries"].where("came and number >= 0").selectExpr(
        *SEAT, "op", "nth", "publisher client", "number",
        "pubend came_pubend", "tick came_tick",
    )  # fmt: skip
    seen = came.join(events, ["run", "client", "number"]).where(
        "not is_sure or tick = 0 or (came_pubend = pubend and came_tick = tick)"
    )
    order = Window.partitionBy(*SEAT, "client", "epoch", "is_sure").orderBy("nth")
    before = F.lag(F.struct("position", "number", "came_pubend", "came_tick")).over(order)
    wrong = seen.withColumn("before", before).where("before.position > position")
    began = history.starts.selectExpr("run", "op", "pubend came_pubend", "first")
    past = wrong.join(began, ["run", "op", "came_pubend"]).where("came_tick <= first")
    lost = history["losses"].selectExpr("run", "process", "pubend whose", "last upto")
    unknown = wrong.join(lost, ["run", "process"]).where(
        "whose = before.came_pubend and whose <> came_pubend and upto < before.came_tick"
    )
    for excused in (past, unknown):
        wrong = wrong.join(excused.select(*SEAT, "nth").distinct(), [*SEAT, "nth"], "left_anti")
    return [
        violations(wrong, "order", "publisher order", "%s was delivered after %s to %s",
                   "concat(client, ' #', number)", "concat(client, ' #', before.number)", "op"),
    ]  # fmt: skip


def total(history: RecordedHistory) -> list[DataFrame]:
    """Sessions in total order get events in the order of (tick, pubend). These places are global,
    so any two sessions agree about any two events."""
    members = history.subscriptions.where("total_order").select("run", "op", "client", "epoch")
    whose = ("run", "client", "epoch")
    came = (
        history["deliveries"].where("came and tick > 0 and number >= 0")
        .join(history.aside(members), ["run", "op"])
    )  # fmt: skip
    slim = came.select(
        F.xxhash64(*whose).alias("session"), "nth", F.struct("tick", "pubend").alias("place")
    )
    before = F.lag("place").over(Window.partitionBy("session").orderBy("nth"))
    shown = slim.withColumn("before", before).where("before > place").select("session").distinct()
    first = Window.partitionBy(*whose, "publisher", "number").orderBy("nth")
    exact = (
        came.withColumn("session", F.xxhash64(*whose))
        .join(history.aside(shown), "session", "left_semi")
        .withColumn("again", F.row_number().over(first))
        .where("again = 1")
    )
    place = F.struct("tick", "pubend", "publisher", "number")
    order = Window.partitionBy(*whose).orderBy("nth")
    wrong = exact.withColumn("before", F.lag(place).over(order)).where(
        "struct(before.tick, before.pubend) >= struct(tick, pubend)"
    )
    wrong = history.keep(wrong)
    if not history.is_small and wrong.isEmpty():
        return []
    others = _others(came, wrong)
    return [
        violations(wrong, "total-order", "inverted",
                   "%s at tick %s of %s was delivered after %s at tick %s of %s to %s",
                   "concat(publisher, ' #', number)", "tick", "pubend",
                   "concat(before.publisher, ' #', before.number)", "before.tick",
                   "before.pubend", "concat(client, ' in ', epoch)"),
        violations(others, "total-order", "disagreement",
                   "%s was delivered before %s to %s, but after it to %s",
                   "concat(before.publisher, ' #', before.number)",
                   "concat(publisher, ' #', number)", "concat(client, ' in ', epoch)",
                   "concat(other_client, ' in ', other_epoch)"),
    ]  # fmt: skip


def _others(came: DataFrame, wrong: DataFrame) -> DataFrame:
    """Sessions that received two events in the opposite order."""
    seen = came.selectExpr(
        "run", "client other_client", "epoch other_epoch", "nth other_nth",
        "publisher other_publisher", "number other_number",
    )  # fmt: skip
    one = seen.selectExpr(
        "run", "other_client", "other_epoch", "other_nth one_nth",
        "other_publisher publisher", "other_number number",
    )  # fmt: skip
    two = seen.selectExpr(
        "run", "other_client", "other_epoch", "other_nth two_nth",
        "other_publisher before_publisher", "other_number before_number",
    )  # fmt: skip
    pairs = wrong.selectExpr(
        "*", "before.publisher before_publisher", "before.number before_number"
    )
    met = pairs.join(one, ["run", "publisher", "number"]).join(
        two, ["run", "before_publisher", "before_number", "other_client", "other_epoch"]
    )
    keys = ["run", "client", "epoch", "publisher", "number", "other_client", "other_epoch"]
    return met.where("one_nth < two_nth").dropDuplicates(keys)
