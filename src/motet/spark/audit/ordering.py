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
    from pyspark.sql import DataFrame

CAUSAL: Final = "causal"
PUBLISHED: Final = "published"
EVENT: Final = ["run", "topic", "number"]
STREAM: Final = ["run", "stream"]
FINER: Final = 1 << 17
"""Places within one microsecond."""
NAME: Final = "concat(topic, '#', number)"

IN_ORDER, KNOWN, MADE = range(3)
"""Rows for one range: a stream got an event; a client knew it; a client published it."""


class OrderAudit:
    """The frames that several checks need."""

    def __init__(self, history: RecordedHistory) -> None:
        self.history = history
        self.given = history["order_given"]
        self.published = history["order_published"]

    def judge(self) -> list[DataFrame]:
        found = [*self._numbers(), *self._names(), *self._growth(), *self._completeness()]
        if self.ranges.isEmpty():
            return found
        return [*found, self._disagreements(), self._causality()]

    @cached_property
    def checked(self) -> dict[str, int]:
        given = self.in_order.count()
        return {
            "notification-order": given,
            "causality": self._of_causal(self.in_order).count(),
            "numbers": self.events.count(),
            "completeness": self.history["order_receipts"].count(),
        }

    def _of_causal(self, frame: DataFrame) -> DataFrame:
        runs = self.history["order_streams"].where(F.col("mode") == CAUSAL).select("run").distinct()
        return frame.join(self.history.aside(runs), "run", "left_semi")

    # ── events and their places ──────────────────────────────────────────────────────────

    @cached_property
    def events(self) -> DataFrame:
        """Each event with its place on the scale, and the digests under which it is known."""
        kinds = ("order_numbers", "order_published", "order_given")
        sources = []
        for kind, name in enumerate(kinds):
            frame = self.history[name]
            fine = F.col("nth") if name == "order_numbers" else F.lit(0)
            digest = F.lit(None).cast("bigint") if name == "order_numbers" else F.col("digest")
            place = F.struct(F.lit(kind).alias("kind"), "at", fine.alias("fine"))
            sources.append(frame.select(*EVENT, place.alias("place"), digest.alias("digest")))
        every = sources[0].unionByName(sources[1]).unionByName(sources[2])
        least = F.min("place")
        found = every.groupBy(*EVENT).agg(
            least.alias("place"), F.min("digest").alias("digest"), F.max("digest").alias("other")
        )
        began = F.min("place.at").over(Window.partitionBy("run"))
        us = F.round((F.col("place.at") - began) * 1e6).cast("bigint")
        fine = F.pmod(F.col("place.fine"), F.lit(FINER))
        return self.history.keep(
            found.select(*EVENT, "digest", "other", (us * FINER + fine).alias("place")),
            *kinds,
        )

    @cached_property
    def _rows(self) -> DataFrame:
        """What streams got in order; `before` is the highest number of the topic until then."""
        topic = Window.partitionBy(*STREAM, "topic").orderBy("nth")
        before = F.max("number").over(topic.rowsBetween(Window.unboundedPreceding, -1))
        found = self.given.where("not is_late").withColumn("before", before)
        return self.history.keep(found, "order_given")

    @cached_property
    def in_order(self) -> DataFrame:
        return self._rows.where("before is null or number > before").select(
            *STREAM, "client", "nth", "topic", "number"
        )

    # ── numbers ──────────────────────────────────────────────────────────────────────────

    def _numbers(self) -> list[DataFrame]:
        numbers = self.history["order_numbers"]
        several = (
            numbers.groupBy(*EVENT)
            .agg(F.count_distinct("site", "client", "request").alias("requests"))
            .where("requests > 1")
        )
        key = ["run", "site", "client", "request"]
        told = F.struct("topic", "number", "entries")
        forgotten = self.history["order_forgotten"].withColumnRenamed("at", "forgotten_at")
        again = (
            numbers.groupBy(*key)
            .agg(
                F.count_distinct(told).alias("told"), F.min("at").alias("first"),
                F.max("at").alias("last"),
            )
            .where("told > 1")
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
        wrong = receipts.join(self.published, [*EVENT, "client", "nth"], "left_anti")
        return [
            violations(self.events.where("digest <> other"), "numbers", "two events",
                       "%s is the number of two events", NAME),
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
        back = self._rows.where("number <= before")
        doubtful = back.select(*STREAM, "topic", "number").unionByName(
            self.given.where("is_late").select(*STREAM, "topic", "number")
        )
        key = [*STREAM, "topic", "number"]
        twice = (
            self.given.join(doubtful.distinct(), key, "left_semi")
            .groupBy(*key)
            .agg(F.count("*").alias("times"))
            .where("times > 1")
        )
        alone = back.join(twice, key, "left_anti")
        return [
            violations(twice, "notification-order", "given twice", "%s was given to %s %s times",
                       NAME, "stream", "times"),
            violations(alone, "notification-order", "number back",
                       "%s was given to %s after number %s", NAME, "stream", "before"),
        ]  # fmt: skip

    def _completeness(self) -> list[DataFrame]:
        """From its cut up to what a stream has passed it was given every number that has a receipt,
        or was told. Receipts of a topic are counted, so a number that is missing is a step of more
        than one."""
        rows = self._with_parts()
        given = rows.where("what in ('given', 'late')")
        without = given.where("part is null or part.what = 'dropped'")
        below = given.where("part.what = 'cut' and what = 'given' and number <= part.number")
        found = self._missing(rows.where("part.what = 'cut'"))
        return [
            violations(found, "completeness", "not given",
                       "%s never got %s events of %s from number %s to %s, which have receipts",
                       "stream", "missing", "topic", "before", "number"),
            violations(without, "completeness", "without the topic",
                       "%s was given %s, but did not have the topic", "stream", NAME),
            violations(below, "completeness", "below its cut",
                       "%s was given %s, but its cut is %s", "stream", NAME, "part.number"),
        ]  # fmt: skip

    def _with_parts(self) -> DataFrame:
        """What happened to streams, topic by topic, with the last cut or drop before it."""
        columns = [*STREAM, "topic", "nth", "number"]
        late = F.when(F.col("is_late"), "late").otherwise("given")
        every = (
            self.history["order_cuts"].select(*columns, "what")
            .unionByName(self.given.select(*columns, late.alias("what")))
            .unionByName(self.history["order_lost"].select(*columns, F.lit("lost").alias("what")))
        )  # fmt: skip
        is_change = F.col("what").isin("cut", "dropped")
        change = F.when(is_change, F.struct("nth", "what", "number"))
        topic = Window.partitionBy(*STREAM, "topic").orderBy("nth")
        part = F.last(change, ignorenulls=True).over(topic)
        return self.history.keep(every.withColumn("part", part), "order_given")

    def _missing(self, rows: DataFrame) -> DataFrame:
        part = [*STREAM, "topic", "cut"]
        rows = rows.selectExpr(
            *STREAM, "topic", "part.nth cut", "part.number least", "what", "number"
        )
        passed = F.when(F.col("what").isin("given", "reached"), F.col("number"))
        upto = rows.groupBy(*part, "least").agg(F.max(passed).alias("upto")).where("upto > least")
        tagged = self.given.where("is_late").selectExpr("run", "stream former", "topic", "number")
        heirs = self.history["order_streams"].where("former <> ''").select(*STREAM, "former")
        former = tagged.join(heirs, ["run", "former"]).join(upto, [*STREAM, "topic"])
        met = rows.where("what in ('given', 'late', 'lost')").join(upto, [*part, "least"])
        met = met.select(*part, "least", "upto", "number").unionByName(
            former.select(*part, "least", "upto", "number")
        )
        met = met.where("number > least and number <= upto").select(*part, "number").distinct()
        marks = (
            met.select(*part, "number", F.lit("met").alias("mark"))
            .unionByName(upto.selectExpr(*part, "least number", "'from' mark"))
            .unionByName(upto.selectExpr(*part, "upto number", "'upto' mark"))
        )
        counted = self._with_receipts(marks)
        order = Window.partitionBy(*part).orderBy("number", "mark_order")
        last = F.lag(F.struct("receipts", "number")).over(order)
        step = F.col("receipts") - F.col("last.receipts")
        is_own = F.expr("if(mark = 'met' and coalesce(has_receipt, false), 1, 0)")
        mark_order = F.expr("case mark when 'from' then 0 when 'met' then 1 else 2 end")
        found = counted.withColumn("mark_order", mark_order).withColumn("last", last)
        return found.withColumns(
            {"missing": step - is_own, "before": F.col("last.number")}
        ).where("missing > 0")  # fmt: skip

    def _with_receipts(self, marks: DataFrame) -> DataFrame:
        """Each mark with the number of receipts of its topic up to it."""
        receipts = self.history["order_receipts"].where(F.col("outcome") == PUBLISHED)
        both = marks.withColumn("turn", F.lit(1)).unionByName(
            receipts.select(*EVENT, F.lit(0).alias("turn")).distinct(), allowMissingColumns=True
        )
        topic = Window.partitionBy("run", "topic").orderBy("number", "turn")
        is_receipt = F.col("turn") == 0
        return both.withColumns(
            {
                "receipts": F.count_if(is_receipt).over(topic),
                "has_receipt": F.max(F.when(is_receipt, F.col("number"))).over(topic)
                == F.col("number"),
            }
        ).where("turn = 1")

    # ── ranges in which something goes down the scale ────────────────────────────────────

    @cached_property
    def ranges(self) -> DataFrame:
        """By run: ranges of places that do not overlap."""
        down = self._down_in_streams().unionByName(self._down_at_clients())
        by_low = Window.partitionBy("run").orderBy("low", "high")
        above = F.max("high").over(by_low.rowsBetween(Window.unboundedPreceding, -1))
        is_new = F.when(above.isNull() | (F.col("low") > above), 1).otherwise(0)
        numbered = down.withColumn("is_new", is_new).withColumn(
            "range", F.sum("is_new").over(by_low)
        )
        found = numbered.groupBy("run", "range").agg(
            F.min("low").alias("low"), F.max("high").alias("high")
        )
        return self.history.keep(found)

    @cached_property
    def _placed(self) -> DataFrame:
        places = self.events.select(*EVENT, "place")
        return self.history.keep(self.in_order.join(places, EVENT), "order_given")

    def _down_in_streams(self) -> DataFrame:
        before = F.lag("place").over(Window.partitionBy(*STREAM).orderBy("nth"))
        return self._placed.withColumn("high", before).where("high >= place").select(
            "run", F.col("place").alias("low"), "high"
        )  # fmt: skip

    def _down_at_clients(self) -> DataFrame:
        """Publications at places that are not above all that their client knew."""
        client = Window.partitionBy("run", "client").orderBy("step")
        before = F.max("place").over(client.rowsBetween(Window.unboundedPreceding, -1))
        placed = self.client_steps.join(self.events.select(*EVENT, "place"), EVENT)
        return placed.withColumn("high", before).where(
            F.col("high").isNotNull() & (F.col("kind") == MADE) & (F.col("high") >= F.col("place"))
        ).select("run", F.col("place").alias("low"), "high")  # fmt: skip

    @cached_property
    def client_steps(self) -> DataFrame:
        """What clients knew and published in causal order, in its sequence."""
        whose = ["run", "client"]
        known = self.given.select(
            *EVENT, "client", F.lit(KNOWN).alias("kind"), (2 * F.col("known") + 1).alias("step")
        )
        made = self.published.select(
            *EVENT, "client", F.lit(MADE).alias("kind"), (2 * F.col("nth")).alias("step")
        )
        publishers = made.select(*whose).distinct()  # what others know has no effects
        return self._of_causal(
            known.join(self.history.aside(publishers), whose, "left_semi").unionByName(made)
        )

    @cached_property
    def _in_ranges(self) -> DataFrame:
        """Events that lie in a range, and in which one."""
        marks = self.ranges.selectExpr(
            "run", "cast(null as string) topic", "cast(null as bigint) number", "low place",
            "range", "high", "0 turn",
        )  # fmt: skip
        events = self.events.selectExpr(
            *EVENT, "place", "cast(null as bigint) range", "cast(null as bigint) high", "1 turn"
        )
        by_place = Window.partitionBy("run").orderBy("place", "turn")
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
        part = ["run", "range", "stream"]
        rows = self.history.keep(self.in_order.join(self._in_ranges, EVENT), "order_given")
        topics = rows.select(*part, F.col("topic").alias("u")).distinct()
        pairs = rows.join(topics, part).where("topic <= u")
        of_u = F.when(F.col("topic") == F.col("u"), F.col("number"))
        stream = Window.partitionBy(*part, "u")
        before = F.last(of_u, ignorenulls=True).over(stream.orderBy("nth"))
        behind = F.last(of_u, ignorenulls=True).over(stream.orderBy(F.desc("nth")))
        e = ["run", "range", "topic", "number", "u"]
        suspects = (
            pairs.withColumns({"last": before, "next": behind})
            .where("topic < u")
            .groupBy(*e)
            .agg(F.max("last").alias("last"), F.min("next").alias("next"))
            .where("next <= last")
        )
        suspects = self.history.keep(suspects, "order_given")
        mine = suspects.join(rows, ["run", "range", "topic", "number"])
        theirs = rows.selectExpr(*part, "topic u", "number u_number", "nth u_nth")
        met = mine.join(theirs, [*part, "u"]).where("u_number between next and last")
        sides = met.groupBy(*e, "u_number").agg(
            F.min(F.expr("if(u_nth < nth, stream, null)")).alias("one"),
            F.min(F.expr("if(u_nth > nth, stream, null)")).alias("other"),
        )
        both = sides.where("one is not null and other is not null").groupBy(*e)
        shown = both.agg(F.min(F.struct("u_number", "one", "other")).alias("shown"))
        return violations(
            shown, "notification-order", "disagreement",
            "%s was given before %s to %s, after it to %s",
            "concat(u, '#', shown.u_number)", NAME, "shown.one", "shown.other",
        )  # fmt: skip

    # ── causes ───────────────────────────────────────────────────────────────────────────

    def _causality(self) -> DataFrame:
        streams = self._of_causal(self.in_order).select(
            *EVENT, F.lit(IN_ORDER).alias("kind"), F.col("stream").alias("who"),
            F.col("nth").alias("step"),
        )  # fmt: skip
        clients = self.client_steps.withColumnRenamed("client", "who")
        rows = streams.unionByName(clients).join(self._in_ranges, EVENT)
        found = rows.groupBy("run", "range").applyInArrow(
            _judge_range, "run string, kind string, detail string"
        )
        return found.selectExpr("run", "'causality' guarantee", "kind", "detail")


def _judge_range(rows: pa.Table) -> pa.Table:
    """All events of a range, in one task: the early effects and a circle among them."""
    streams: dict[str, list[tuple[int, str]]] = {}
    clients: dict[str, list[tuple[int, int, str]]] = {}
    names = zip(rows["topic"].to_pylist(), rows["number"].to_pylist(), strict=True)
    for kind, who, step, (topic, number) in zip(
        rows["kind"].to_pylist(),
        rows["who"].to_pylist(),
        rows["step"].to_pylist(),
        names,
        strict=True,
    ):
        event = f"{topic}#{number}"
        if kind == IN_ORDER:
            streams.setdefault(who, []).append((step, event))
        else:
            clients.setdefault(who, []).append((step, kind, event))
    got = {who: [event for _, event in sorted(found)] for who, found in sorted(streams.items())}
    knew = {
        who: [ClientStep(event, kind == MADE) for _, kind, event in sorted(found)]
        for who, found in sorted(clients.items())
    }
    told = [
        ("effect before cause", f"{each.stream} got {each.effect} before its cause {each.cause}")
        for each in early_effects(got, knew)
    ]
    circle = one_circle(got)
    if circle is not None:
        steps = ", ".join(f"{other} after {one} in {stream}" for one, other, stream in circle.steps)
        told.append(("circle", steps))
    runs = rows["run"].to_pylist()[:1] * len(told)
    kinds, details = [kind for kind, _ in told], [detail for _, detail in told]
    columns = {"run": runs, "kind": kinds, "detail": details}
    return pa.table({name: pa.array(column, pa.string()) for name, column in columns.items()})
