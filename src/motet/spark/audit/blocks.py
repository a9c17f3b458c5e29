"""Blocks: the events of a transaction stand in a log behind its cut, which says where they end.

Of batches of sinks only brokers tell: nobody writes down who has asked for them. So what the cuts
say is all there is to judge them by, and it is enough to see whether they are whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motet.spark.audit.findings import violations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from motet.spark.audit.tables import History


def batches(history: History) -> DataFrame:
    """The cuts of batches of sinks: those of transactions that no client has begun."""
    deals = history["transactions"].select("run", "tx")
    return history["cuts"].where("number = 0").join(deals, ["run", "tx"], "left_anti")


def judge(history: History, events: DataFrame, came: DataFrame) -> list[DataFrame]:
    """`events` are those of transactions, `came` their deliveries."""
    return [*_torn(history, events), _early(history, came)]


def _torn(history: History, events: DataFrame) -> list[DataFrame]:
    """A log in which nothing stands behind a block may not have got the rest of it yet. One that
    has cut twice is accused of that elsewhere."""
    sql = history.spark.sql
    suspects = sql(
        """
        select c.run, c.tx, c.pubend, c.tick, c.last, coalesce(e.count, 0) count
        from (select run, tx, pubend, min(tick) tick, max(last) last from {cuts}
              group by all having count(distinct tick) = 1 and last > tick) c
        left join (select run, tx, pubend, count(distinct tick) count, min(tick) first,
                     max(tick) last from {events} where tick > 0 group by all) e
          on e.run = c.run and e.tx = c.tx and e.pubend = c.pubend
        where e.count is null or e.count <> c.last - c.tick or e.first <> c.tick + 1
          or e.last <> c.last
        """,
        cuts=history["cuts"],
        events=events,
    )
    suspects = history.settle(suspects)
    if suspects.isEmpty():
        return []  # and the logs need not be looked at, which are large
    torn = sql(
        """
        select s.* from {suspects} s
        join (select run, pubend, max(tick) end from {logged} group by all) l
          on l.run = s.run and l.pubend = s.pubend and l.end > s.last
        """,
        suspects=suspects,
        logged=history["logged"],
    )
    told = violations(
        torn, "atomicity", "block not whole",
        "%s has %s events at %s, which has cut for it at %s, and said that they end at %s",
        "tx", "count", "pubend", "tick", "last",
    )  # fmt: skip
    return [told]


def _early(history: History, came: DataFrame) -> DataFrame:
    early = history.spark.sql(
        f"""
        select d.*, c.tx, c.at cut_at
        from {{came}} d
        join (select run, tx, pubend, min(at) at from {{batches}} group by all) c
          on c.run = d.run and c.tx = d.event_tx and c.pubend = d.pubend
        where c.at > d.at + {history.slack_s}
        """,
        came=came,
        batches=batches(history),
    )
    return violations(
        early, "visibility", "before the cut",
        "%s of %s came for %s at %s s from %s, which had not cut for it",
        "concat(publisher, ' #', number)", "tx", "op", "at", "pubend",
    )  # fmt: skip
