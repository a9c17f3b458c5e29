"""Order across topics: notification order, causality, numbers, completeness.

Every event has a place on one scale: when its site gave it its number, else when it was published.
Any scale would do. A stream that got its events in the order of their places agrees with every
other one that did; and no effect is before its cause if, besides, every client has published at
higher places than those of what it knew. Where something goes down the scale, it spans a range of
it. Of events that two streams got in different order, and of those on a circle, all places lie in
one union of such ranges. So only events in these ranges are judged, range by range: all others are
in order.

For event e and another topic U, each stream that got e has a last event of U before e, and a next
one behind it. Two streams can disagree only if the lowest next one is not above the highest last
one; then they do if one of them got an event of U before e that another one got behind it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from motet.audit.causes import ClientStep, early_effects, one_circle
from motet.spark.audit.history import RecordedHistory, violations

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CAUSAL: Final = "causal"
PUBLISHED: Final = "published"
SOURCES: Final = ("order_numbers", "order_published", "order_given")
"""Tables that name events, the best one for their places first."""
EVENT: Final = ["r", "t", "number"]
BACK: Final = "coalesce(number <= before, false)"
NEVER: Final = float("inf")
FINER: Final = 1 << 17
"""Places within one microsecond."""
LONGEST_US: Final = 1 << 45
"""One year."""
NAME: Final = "concat(topic, '#', number)"

GIVEN, LATE, LOST, CUT, DROPPED, REACHED = range(6)
"""What happens to a stream."""
KINDS: Final = f"'cut', {CUT}, 'dropped', {DROPPED}, 'reached', {REACHED}"
COUNTED: Final = {
    "in_order": f"what = {GIVEN} and not {BACK}",
    "causal": f"what = {GIVEN} and not {BACK} and is_causal",
    "back": f"what = {GIVEN} and {BACK}",
    "late": f"what = {LATE}",
    "lost": f"what = {LOST}",
    "without": f"what in ({GIVEN}, {LATE}) and (kind is null or kind = {DROPPED})",
    "below": f"what = {GIVEN} and kind = {CUT} and number <= cut",
}
IN_ORDER, KNOWN, MADE = range(3)
"""Rows for one range: a stream got an event; a client knew it; a client published it."""


class OrderAudit:
    """The frames that several checks need. Names are hashed: sorting texts is slow."""

    def __init__(self, history: RecordedHistory) -> None:
        self.history = history
        self.given = history["order_given"]
        self.published = history["order_published"]

    def judge(self) -> list[DataFrame]:
        found = [*self._numbers(), *self._names(), *self._growth(), *self._completeness()]
        if self.ranges.isEmpty():
            return found
        return [*found, self._disagreements(), self._causality()]

    @property
    def checked(self) -> dict[str, int]:
        return {
            "notification-order": self._counts["in_order"],
            "causality": self._counts["causal"],
            "numbers": self._counts["events"],
            "completeness": self.history["order_receipts"].count(),
        }

    @cached_property
    def _counts(self) -> dict[str, int]:
        """What there is, in one pass: most violations need no further look."""
        steps = self._steps.agg(
            *(F.count_if(F.expr(what)).alias(name) for name, what in COUNTED.items())
        ).first()
        doubled = F.count_if(F.col("digest") != F.col("other")).alias("two_events")
        events = self.events.agg(F.count("*").alias("events"), doubled).first()
        assert steps is not None
        assert events is not None
        return {**steps.asDict(), **events.asDict()}

    # ── names ────────────────────────────────────────────────────────────────────────────

    def _hashed(self, table: str, *columns: str) -> DataFrame:
        """A table with short numbers instead of names: of its run and topic, stream, client."""
        frame = self.history[table]
        shorts = {"t": "topic", "s": "stream", "c": "client"}
        named = {
            short: F.xxhash64("run", name)
            for short, name in shorts.items()
            if name in frame.columns
        }
        causal = F.col("run").isin(self._causal_runs) if self._causal_runs else F.lit(False)
        return frame.select(
            F.xxhash64("run").alias("r"),
            *(column.alias(short) for short, column in named.items()),
            causal.alias("is_causal"), *columns,
        )  # fmt: skip

    @cached_property
    def _causal_runs(self) -> list[str]:
        runs = self.history["order_streams"].where(F.col("mode") == CAUSAL).select("run").distinct()
        return [row[0] for row in runs.collect()]

    @cached_property
    def _topics(self) -> DataFrame:
        names = [self.history[name].select("run", "topic") for name in SOURCES]
        every = names[0].unionByName(names[1]).unionByName(names[2]).distinct()
        return self.history.keep(every.withColumn("t", F.xxhash64("run", "topic")), *SOURCES)

    @cached_property
    def _streams(self) -> DataFrame:
        names = self.given.select("run", "stream").unionByName(
            self.history["order_streams"].select("run", "stream")
        )
        hashed = names.distinct().select("stream", F.xxhash64("run", "stream").alias("s"))
        return self.history.keep(hashed, "order_given")

    def _named(self, frame: DataFrame) -> DataFrame:
        """With the names of runs and topics, and of streams, if it has any."""
        found = frame.join(self._topics, "t")
        return found.join(self._streams, "s") if "s" in frame.columns else found

    # ── events and their places ──────────────────────────────────────────────────────────

    @cached_property
    def events(self) -> DataFrame:
        """Each event with its place on the scale, and the digests under which it is known."""
        us = F.least(F.round((F.col("at") - F.col("began")) * 1e6), F.lit(LONGEST_US))
        us = F.when(F.col("at") < NEVER, us).cast("bigint") * FINER
        fine = F.pmod(F.col("nth"), F.lit(FINER))
        nothing = F.lit(None).cast("bigint")
        every = None
        for at, name in enumerate(SOURCES):
            is_site = name == "order_numbers"
            place = us + fine if is_site else us
            frame = (
                self._hashed(name, "*")
                .join(self.history.aside(self._began), "r")
                .select(
                    *EVENT,
                    *((place if kind == at else nothing).alias(f"p{kind}") for kind in range(3)),
                    (nothing if is_site else F.col("digest")).alias("digest"),
                )
            )
            every = frame if every is None else every.unionByName(frame)
        assert every is not None
        found = every.groupBy(*EVENT).agg(
            F.min("digest").alias("digest"), F.max("digest").alias("other"),
            *(F.min(f"p{kind}").alias(f"p{kind}") for kind in range(3)),
        ).withColumn("place", F.coalesce("p0", "p1", "p2", F.lit(0)))  # fmt: skip
        return self.history.keep(found.select(*EVENT, "digest", "other", "place"), *SOURCES)

    @cached_property
    def _began(self) -> DataFrame:
        """When each run began."""
        times = [self._hashed(name, "at").select("r", "at") for name in SOURCES]
        every = times[0].unionByName(times[1]).unionByName(times[2])
        return self.history.keep(every.groupBy("r").agg(F.min("at").alias("began")), *SOURCES)

    def _with_places(self, frame: DataFrame) -> DataFrame:
        return frame.join(self.events.select(*EVENT, "place"), EVENT)

    @cached_property
    def _steps(self) -> DataFrame:
        """What happened to streams. `before`: the highest number of the topic until then; `part`:
        the last cut or drop of the topic before it."""
        late = F.when(F.col("is_late"), LATE).otherwise(GIVEN)
        every = (
            self._hashed("order_given", "nth", "number", "known", late.alias("what"))
            .unionByName(self._marks("order_cuts", F.expr(f"map({KINDS})[what]")))
            .unionByName(self._marks("order_lost", F.lit(LOST)))
        )  # fmt: skip
        topic = Window.partitionBy("s", "t").orderBy("nth")
        until = topic.rowsBetween(Window.unboundedPreceding, -1)
        is_change = F.col("what").isin(CUT, DROPPED)
        found = every.withColumns(
            {
                "before": F.max(F.when(F.col("what") == GIVEN, F.col("number"))).over(until),
                "part": F.last(F.when(is_change, F.col("nth")), ignorenulls=True).over(until),
                "kind": F.last(F.when(is_change, F.col("what")), ignorenulls=True).over(until),
                "cut": F.last(F.when(is_change, F.col("number")), ignorenulls=True).over(until),
            }
        )
        return self.history.keep(found, "order_given")

    def _marks(self, table: str, what: Column) -> DataFrame:
        none = F.lit(0).cast("bigint")
        frame = self._hashed(table, "nth", "number", none.alias("known"), what.alias("what"))
        return frame.withColumn("c", none)

    @cached_property
    def in_order(self) -> DataFrame:
        return self._steps.where(COUNTED["in_order"])

    # ── numbers ──────────────────────────────────────────────────────────────────────────

    def _numbers(self) -> list[DataFrame]:
        numbers = self.history["order_numbers"]
        key = ["run", "site", "client", "request"]
        place = ["run", "topic", "number"]
        several = (
            numbers.groupBy(*place)
            .agg(F.count_distinct("site", "client", "request").alias("requests"))
            .where("requests > 1")
        )
        told = F.xxhash64("topic", "number", "entries")
        forgotten = self.history["order_forgotten"].withColumnRenamed("at", "forgotten_at")
        again = (
            numbers.groupBy(*key)
            .agg(
                F.min(told).alias("told"), F.max(told).alias("other"),
                F.min("at").alias("first"), F.max("at").alias("last"),
            )
            .where("told <> other")
            .join(forgotten, ["run", "site", "client"], "left")
            .groupBy(*key)
            .agg(
                F.expr(
                    "coalesce(bool_or(first <= forgotten_at and forgotten_at <= last), false)"
                ).alias("excused")
            )
            .where("not excused")
        )  # fmt: skip
        receipts = self.history["order_receipts"].where(F.col("outcome") == PUBLISHED)
        wrong = receipts.join(self.published, [*place, "client", "nth"], "left_anti")
        found = []
        if self._counts["two_events"]:
            doubled = self._named(self.events.where("digest <> other"))
            found.append(
                violations(doubled, "numbers", "two events", "%s is the number of two events", NAME)
            )
        return [
            *found,
            violations(several, "numbers", "two requests", "%s was given to %s requests", NAME,
                       "requests"),
            violations(again, "numbers", "two numbers",
                       "request %s of %s at %s was answered in two ways", "request", "client",
                       "site"),
            violations(wrong, "numbers", "wrong receipt",
                       "the receipt of publication %s of %s names %s, under which it was not sent",
                       "nth", "client", NAME),
        ]  # fmt: skip

    def _names(self) -> list[DataFrame]:
        topics = self.history["order_topics"]
        ids = topics.groupBy("run", "topic").agg(F.count_distinct("id").alias("many"))
        names = topics.groupBy("run", "id").agg(F.count_distinct("topic").alias("many"))
        return [
            violations(ids.where("many > 1"), "numbers", "two ids", "topic %s has %s ids", "topic",
                       "many"),
            violations(names.where("many > 1"), "numbers", "two names", "id %s has %s topics",
                       "id", "many"),
        ]  # fmt: skip

    # ── one stream ───────────────────────────────────────────────────────────────────────

    def _growth(self) -> list[DataFrame]:
        """Numbers of a topic grow, and nothing comes twice."""
        if not self._counts["back"] and not self._counts["late"]:
            return []
        key = ["s", *EVENT]
        given = self._steps.where(F.col("what").isin(GIVEN, LATE))
        back = given.where(COUNTED["back"]).select(*key, "before")
        late = given.where(COUNTED["late"]).select(*key)
        doubtful = back.select(*key).unionByName(late).distinct()
        again = given.join(doubtful, key, "left_semi").groupBy(*key)
        twice = again.agg(F.count("*").alias("times")).where("times > 1")
        alone = back.join(twice, key, "left_anti")
        return [
            violations(self._named(twice), "notification-order", "given twice",
                       "%s was given to %s %s times", NAME, "stream", "times"),
            violations(self._named(alone), "notification-order", "number back",
                       "%s was given to %s after number %s", NAME, "stream", "before"),
        ]  # fmt: skip

    def _completeness(self) -> list[DataFrame]:
        """From its cut up to what a stream has passed it was given every number that has a receipt,
        or was told."""
        found = []
        if (missing := self._missing()) is not None:
            found.append(
                violations(self._named(missing), "completeness", "not given",
                           "%s never got %s events of %s between %s and %s, which have receipts",
                           "stream", "missing", "topic", "last.number", "number")
            )  # fmt: skip
        if self._counts["without"]:
            without = self._named(self._steps.where(COUNTED["without"]))
            found.append(
                violations(without, "completeness", "without the topic",
                           "%s was given %s, but did not have the topic", "stream", NAME)
            )  # fmt: skip
        if self._counts["below"]:
            below = self._named(self._steps.where(COUNTED["below"]))
            found.append(
                violations(below, "completeness", "below its cut",
                           "%s was given %s, but its cut is %s", "stream", NAME, "cut")
            )  # fmt: skip
        return found

    def _missing(self) -> DataFrame | None:
        """Where fewer numbers with receipts were met than there are, one by one."""
        owed = self.history.keep(self._owed(), "order_given")
        part = ["r", "s", "t", "part"]
        met = self._met(owed)
        numbers = met.join(self._receipts.select(*EVENT, "rank"), EVENT)
        came = numbers.groupBy(*part).agg(F.count("*").alias("came"))
        short = owed.join(came, part, "left").where("high - low > coalesce(came, 0)")
        short = self.history.keep(short)
        if short.isEmpty():
            return None
        ends = short.selectExpr(*part, "cut number", "low rank", "0 turn").unionByName(
            short.selectExpr(*part, "upto number", "high + 1 rank", "2 turn")
        )
        marks = numbers.join(short.select(*part), part, "left_semi").selectExpr(
            *part, "number", "rank", "1 turn"
        )
        order = Window.partitionBy(*part).orderBy("rank", "turn")
        last = F.lag(F.struct("rank", "number")).over(order)
        return (
            ends.unionByName(marks)
            .withColumn("last", last)
            .withColumn("missing", F.expr("rank - last.rank - 1"))
            .where("missing > 0")
        )

    @cached_property
    def _receipts(self) -> DataFrame:
        """Numbers that have one, each with its rank within its topic."""
        found = self._hashed("order_receipts", "number", "outcome")
        found = found.where(F.col("outcome") == PUBLISHED).select(*EVENT).distinct()
        topic = Window.partitionBy("t").orderBy("number")
        return self.history.keep(found.withColumn("rank", F.row_number().over(topic)))

    def _owed(self) -> DataFrame:
        """Times in which streams had topics: above which number, up to which one; and how many
        receipts there are up to both."""
        part = ["r", "s", "t", "part", "cut"]
        passed = F.when(F.col("what").isin(GIVEN, REACHED), F.col("number"))
        parts = self._steps.where(F.col("kind") == CUT).groupBy(*part)
        bounds = parts.agg(F.max(passed).alias("upto")).where("upto > cut")
        ends = bounds.selectExpr("r", "s", "t", "part", "cut number", "'low' bound").unionByName(
            bounds.selectExpr("r", "s", "t", "part", "upto number", "'high' bound")
        )
        nobody = "cast(null as bigint)"
        both = ends.selectExpr("*", "1 turn").unionByName(
            self._receipts.selectExpr(
                "r",
                f"{nobody} s",
                "t",
                f"{nobody} part",
                "number",
                "cast(null as string) bound",
                "0 turn",
            )
        )
        topic = Window.partitionBy("t").orderBy("number", "turn")
        counted = both.withColumn("rank", F.count_if(F.col("turn") == 0).over(topic))
        ranks = counted.where("turn = 1").groupBy("r", "s", "t", "part").agg(
            F.max(F.expr("if(bound = 'low', rank, null)")).alias("low"),
            F.max(F.expr("if(bound = 'high', rank, null)")).alias("high"),
        )  # fmt: skip
        return bounds.join(ranks, ["r", "s", "t", "part"])

    def _met(self, owed: DataFrame) -> DataFrame:
        """Numbers that were given or told; also those that came tagged in the gap before."""
        key = ["r", "s", "t", "part", "number"]
        within = "number > cut and number <= upto"
        steps = self._steps.where(f"what in ({GIVEN}, {LATE}, {LOST}) and kind = {CUT}")
        own = steps.join(owed.select("r", "s", "t", "part", "upto"), ["r", "s", "t", "part"])
        met = own.where(within)
        is_new = f"what = {GIVEN} and not {BACK}"
        heirs = self.history["order_streams"].where("former <> ''").select(
            F.xxhash64("run", "former").alias("former"), F.xxhash64("run", "stream").alias("s")
        )  # fmt: skip
        tagged = self._steps.where(F.col("what") == LATE).select(
            F.col("s").alias("former"), "r", "t", "number"
        )
        inherited = tagged.join(heirs, "former").join(owed, ["r", "s", "t"]).where(within)
        # What comes in order comes once; only what else is met may be doubled.
        in_order = met.where(is_new).select(*key)
        rest = met.where(f"not ({is_new})").select(*key).unionByName(inherited.select(*key))
        if not self._counts["late"] and not self._counts["back"] and not self._counts["lost"]:
            return in_order
        return in_order.unionByName(rest).distinct()

    # ── ranges in which something goes down the scale ────────────────────────────────────

    @cached_property
    def ranges(self) -> DataFrame:
        """By run: ranges of places that do not overlap."""
        down = self._down_in_streams().unionByName(self._down_at_clients())
        by_low = Window.partitionBy("r").orderBy("low", "high")
        above = F.max("high").over(by_low.rowsBetween(Window.unboundedPreceding, -1))
        is_new = F.when(above.isNull() | (F.col("low") > above), 1).otherwise(0)
        numbered = down.withColumn("is_new", is_new).withColumn(
            "range", F.sum("is_new").over(by_low)
        )
        found = numbered.groupBy("r", "range").agg(
            F.min("low").alias("low"), F.max("high").alias("high")
        )
        return self.history.keep(found)

    def _down_in_streams(self) -> DataFrame:
        before = F.lag("place").over(Window.partitionBy("s").orderBy("nth"))
        placed = self._with_places(self.in_order.select(*EVENT, "s", "nth"))
        return placed.withColumn("high", before).where("high >= place").select(
            "r", F.col("place").alias("low"), "high"
        )  # fmt: skip

    def _down_at_clients(self) -> DataFrame:
        """Publications at places that are not above all that their client knew."""
        client = Window.partitionBy("c").orderBy("step")
        before = F.max("place").over(client.rowsBetween(Window.unboundedPreceding, -1))
        placed = self._with_places(self.client_steps).withColumn("high", before)
        return placed.where((F.col("kind") == MADE) & (F.col("high") >= F.col("place"))).select(
            "r", F.col("place").alias("low"), "high"
        )  # fmt: skip

    @cached_property
    def client_steps(self) -> DataFrame:
        """What clients knew and published in causal order, in its sequence."""
        known = self._steps.where(F.col("is_causal") & F.col("what").isin(GIVEN, LATE)).select(
            *EVENT, "c", F.lit(KNOWN).alias("kind"), (2 * F.col("known") + 1).alias("step")
        )
        made = self._hashed("order_published", "number", "nth").where("is_causal").select(
            *EVENT, "c", F.lit(MADE).alias("kind"), (2 * F.col("nth")).alias("step")
        )  # fmt: skip
        publishers = made.select("c").distinct()  # what others know has no effects
        return known.join(self.history.aside(publishers), "c", "left_semi").unionByName(made)

    @cached_property
    def _in_ranges(self) -> DataFrame:
        """Events that lie in a range, and in which one."""
        none = "cast(null as bigint)"
        marks = self.ranges.selectExpr(
            "r", f"{none} t", f"{none} number", "low place", "range", "high", "0 turn"
        )
        events = self.events.selectExpr(*EVENT, "place", f"{none} range", f"{none} high", "1 turn")
        by_place = Window.partitionBy("r").orderBy("place", "turn")
        mark = F.when(F.col("turn") == 0, F.struct("range", "high"))
        begun = F.last(mark, ignorenulls=True).over(by_place)
        found = marks.unionByName(events).withColumn("begun", begun)
        return self.history.keep(
            found.where("turn = 1 and place <= begun.high").select(
                *EVENT, F.col("begun.range").alias("range")
            )
        )

    # ── two streams ──────────────────────────────────────────────────────────────────────

    def _disagreements(self) -> DataFrame:
        part = ["r", "range", "s"]
        rows = self.in_order.select(*EVENT, "s", "nth").join(self._in_ranges, EVENT)
        rows = self.history.keep(rows, "order_given")
        topics = rows.select(*part, F.col("t").alias("u")).distinct()
        pairs = rows.join(topics, part).where("t <= u")  # the other way round is the same
        of_u = F.when(F.col("t") == F.col("u"), F.col("number"))
        stream = Window.partitionBy(*part, "u")
        before = F.last(of_u, ignorenulls=True).over(stream.orderBy("nth"))
        behind = F.last(of_u, ignorenulls=True).over(stream.orderBy(F.desc("nth")))
        e = ["r", "range", "t", "number", "u"]
        suspects = (
            pairs.withColumns({"last": before, "next": behind})
            .where("t < u")
            .groupBy(*e)
            .agg(F.max("last").alias("last"), F.min("next").alias("next"))
            .where("next <= last")
        )
        suspects = self.history.keep(suspects, "order_given")
        mine = suspects.join(rows, ["r", "range", "t", "number"])
        theirs = rows.selectExpr(*part, "t u", "number u_number", "nth u_nth")
        met = mine.join(theirs, [*part, "u"]).where("u_number between next and last")
        sides = met.groupBy(*e, "u_number").agg(
            F.min(F.expr("if(u_nth < nth, s, null)")).alias("s"),
            F.min(F.expr("if(u_nth > nth, s, null)")).alias("other"),
        )
        both = sides.where("s is not null and other is not null").groupBy(*e)
        shown = both.agg(F.min(F.struct("u_number", "s", "other")).alias("shown")).select(
            "t", "number", "u", "shown.*"
        )
        named = (
            self._named(shown)
            .join(self._topics.selectExpr("t u", "topic u_topic"), "u")
            .join(self._streams.selectExpr("s other", "stream other_stream"), "other")
        )
        return violations(
            named, "notification-order", "disagreement",
            "%s was given before %s to %s, after it to %s",
            "concat(u_topic, '#', u_number)", NAME, "stream", "other_stream",
        )  # fmt: skip

    # ── causes ───────────────────────────────────────────────────────────────────────────

    def _causality(self) -> DataFrame:
        streams = self.in_order.where("is_causal").select(
            *EVENT, F.lit(IN_ORDER).alias("kind"), F.col("s").alias("who"),
            F.col("nth").alias("step"),
        )  # fmt: skip
        rows = streams.unionByName(self.client_steps.withColumnRenamed("c", "who"))
        found = rows.join(self._in_ranges, EVENT).groupBy("r", "range").applyInArrow(
            _judge_range, "kind string, s bigint, t bigint, number bigint, u bigint, other bigint"
        )  # fmt: skip
        named = self._named(self.history.keep(found)).join(
            self._topics.selectExpr("t u", "topic other_topic"), "u"
        )
        early = named.where("kind = 'effect before cause'")
        other = "concat(other_topic, '#', other)"
        return violations(
            early, "causality", "effect before cause", "%s got %s before its cause %s",
            "stream", NAME, other,
        ).unionByName(
            violations(
                named.where("kind = 'circle'"), "causality", "circle",
                "%s came after %s in %s, on a circle", other, NAME, "stream",
            )
        )  # fmt: skip


Place = tuple[int, int]
"""Topic and number of an event."""


def _judge_range(rows: pa.Table) -> pa.Table:
    """All events of a range, in one task: the early effects, and a circle among them."""
    streams: dict[int, list[tuple[int, Place]]] = {}
    clients: dict[int, list[tuple[int, int, Place]]] = {}
    columns = [rows[name].to_pylist() for name in ("kind", "who", "step", "t", "number")]
    for kind, who, step, topic, number in zip(*columns, strict=True):
        if kind == IN_ORDER:
            streams.setdefault(who, []).append((step, (topic, number)))
        else:
            clients.setdefault(who, []).append((step, kind, (topic, number)))
    got = {who: [event for _, event in sorted(found)] for who, found in sorted(streams.items())}
    knew = {
        who: [ClientStep(event, kind == MADE) for _, kind, event in sorted(found)]
        for who, found in sorted(clients.items())
    }
    told = [
        ("effect before cause", each.stream, *each.effect, *each.cause)
        for each in early_effects(got, knew)
    ]
    circle = one_circle(got)
    if circle is not None:
        told += [("circle", stream, *one, *other) for one, other, stream in circle.steps]
    names = ("kind", "s", "t", "number", "u", "other")
    kinds = (pa.string(), *(pa.int64() for _ in names[1:]))
    return pa.table(
        {
            name: pa.array([row[at] for row in told], kind)
            for at, (name, kind) in enumerate(zip(names, kinds, strict=True))
        }
    )
