"""Orders: of ticks, of publishers, and the one that all subscribers in total order share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from motet.spark.audit.findings import violations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from motet.spark.audit.tables import History

SEAT = ("run", "process", "handle")
"""A subscription as its application knows it, whatever session it is in."""


def ticks(history: History) -> list[DataFrame]:
    """What comes from one log comes in the order of its ticks."""
    came = history["deliveries"].where("came and tick > 0")
    # Whole columns of text are dear to sort: look by hash, then at what the hash has shown.
    slim = came.select(F.xxhash64(*SEAT, "pubend").alias("stream"), "nth", "tick")
    before = F.lag("tick").over(Window.partitionBy("stream").orderBy("nth"))
    shown = slim.withColumn("before", before).where("before >= tick").select("stream").distinct()
    exact = (
        came.withColumn("stream", F.xxhash64(*SEAT, "pubend"))
        .join(history.aside(shown), "stream", "left_semi")
        .withColumn(
            "before",
            F.lag("tick").over(Window.partitionBy(*SEAT, "pubend").orderBy("nth")),
        )
        .where("before >= tick")
    )
    return [
        violations(exact, "order", "tick order", "tick %s of %s came after tick %s for %s",
                   "tick", "pubend", "before", "op"),
    ]  # fmt: skip


def places(catalogue: DataFrame, doubtful: DataFrame) -> list[DataFrame]:
    """Everybody finds the same event on a tick: the one that the log has there."""
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
                   "tick %s of %s is %s, and came as %s for %s", "tick", "pubend",
                   "concat(logged_client, ' #', logged_number)",
                   "concat(publisher, ' #', number)", "op"),
    ]  # fmt: skip


def publishers(history: History, catalogue: DataFrame, twins: DataFrame) -> list[DataFrame]:
    """Every subscription sees the events of one session in the order of publishing.

    If a log has a session's events in that order, and no other log has any, then whoever gets them
    in the order of ticks gets them in the order of publishing. What remains are best-effort events,
    and sessions with events in several logs, or in another order: theirs are looked at."""
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
    unclear = events.where("not is_sure").join(
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
    wrong = seen.withColumn("before", F.lag(F.struct("position", "number")).over(order)).where(
        "before.position > position"
    )
    return [
        violations(wrong, "order", "publisher order", "%s came after %s for %s",
                   "concat(client, ' #', number)", "concat(client, ' #', before.number)", "op"),
    ]  # fmt: skip


def total(history: History) -> list[DataFrame]:
    """Sessions in total order get events in the order of their places, which are the same for
    everybody: then any two of them agree about any two events."""
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
                   "%s at tick %s of %s came after %s at tick %s of %s to %s",
                   "concat(publisher, ' #', number)", "tick", "pubend",
                   "concat(before.publisher, ' #', before.number)", "before.tick",
                   "before.pubend", "concat(client, ' in ', epoch)"),
        violations(others, "total-order", "disagreement",
                   "%s came before %s to %s, and after it to %s",
                   "concat(before.publisher, ' #', before.number)",
                   "concat(publisher, ' #', number)", "concat(client, ' in ', epoch)",
                   "concat(other_client, ' in ', other_epoch)"),
    ]  # fmt: skip


def _others(came: DataFrame, wrong: DataFrame) -> DataFrame:
    """Who saw two events in the order in which somebody else did not."""
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
