"""Serializability: which isolated transaction must come before which, and whether that goes round.

What a transaction reads is whom its invitations and events reach; what it writes are subscriptions
that it begins or ends. The relations are found by Spark; those that cannot be on a circle, since
nothing leads to one of their ends or away from it, are trimmed until the rest is small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from motet.audit.circles import circle
from motet.audit.verdicts import Finding
from motet.spark.audit.matching import with_filters
from motet.spark.audit.transacting import HOME, NEVER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from motet.spark.audit.tables import History
    from motet.spark.audit.transacting import Dealings

SMALL = 200_000
"""So many relations the driver looks at itself."""


def judge(history: History, dealings: Dealings) -> tuple[int, list[Finding]]:
    """How many relations there are, and what is wrong with them."""
    edges = history.settle(relations(history, dealings))
    count = edges.count()
    left = edges
    while count > SMALL:
        trimmed = history.settle(_trim(left))
        remaining = trimmed.count()
        if remaining == count:
            break
        left, count = trimmed, remaining
    found: list[Finding] = []
    runs: dict[str, dict[tuple[str, str], str]] = {}
    for row in left.collect():
        runs.setdefault(row["run"], {})[row["first"], row["then"]] = row["why"]
    for run, whys in sorted(runs.items()):
        round_ = circle(sorted(whys))
        if round_:
            told = "; ".join(f"{one} before {two}: {whys[one, two]}" for one, two in round_)
            found.append(Finding("serializability", "circle", 1, [told], run))
    return edges.count(), found


def _trim(edges: DataFrame) -> DataFrame:
    """Without those to whose beginning nothing leads, or from whose end nothing leads away."""
    firsts = edges.select("run", F.col("first").alias("then")).distinct()
    thens = edges.select("run", F.col("then").alias("first")).distinct()
    return edges.join(firsts, ["run", "then"], "left_semi").join(
        thens, ["run", "first"], "left_semi"
    )


def relations(history: History, dealings: Dealings) -> DataFrame:
    """Pairs of transactions of which the first must come before the other, each with why."""
    # What a transaction both begins and ends counts as ended only.
    written = dealings.sql(
        """
        select o.*, w.tx writer, w.until is null begins
        from {switches} w
        join {deals} t on t.run = w.run and t.tx = w.tx
        join {subs} o on o.run = w.run and o.op = w.op
        where t.kind = 'isolated' and t.outcome = 'committed'
        """
    )
    written = history.settle(written)
    met = _met_by_events(history, dealings, written).unionByName(
        _met_by_invitations(history, dealings, written)
    )
    return dealings.sql(
        """
        select run, first, then, min(why) why from (
          select m.run, case when m.met = m.begins then m.writer else m.reader end first,
            case when m.met = m.begins then m.reader else m.writer end then,
            concat(m.what, case when m.met then ' met ' else ' did not meet ' end, m.op) why
          from {met} m
          where m.met or (m.begins and m.ended_at > m.answered_at)
            or (not m.begins and m.effective_at < m.reader_at))
        group by run, first, then
        """,
        met=met,
    )


def _met_by_events(history: History, dealings: Dealings, written: DataFrame) -> DataFrame:
    return dealings.sql(
        f"""
        select distinct a.run, a.tx reader, o.writer, o.op, o.begins, o.ended_at, o.effective_at,
          a.tx_answered_at answered_at, a.tx_at reader_at, concat('event ', a.who) what,
          d.op is not null met
        from (select *, explode(filters) matched from {{acts}}) a
        join {{written}} o on o.run = a.run and o.f = a.matched and o.writer <> a.tx
        left join (select distinct run, op, publisher, number from {{came}}) d
          on d.run = a.run and d.op = o.op and d.publisher = a.client and d.number = a.number
        left join {{severed}} v on v.run = a.run and v.other = o.broker
          and v.one = {HOME.format("a.pubend")}
        left join {{losses}} l on l.run = a.run and l.process = o.process
          and l.pubend = a.pubend and a.tick between l.first and l.last
        where a.tick > 0 and a.tx_kind = 'isolated' and a.outcome = 'committed'
          and (d.op is not null or (
            not (o.is_gone and o.finished_at = {NEVER})
            and (o.finished_at < {NEVER} or o.session_lasting)
            and coalesce(array_contains(a.audience, o.op), false)
            and v.run is null and l.run is null))
        """,
        written=written,
        losses=history["losses"],
    )


def _met_by_invitations(history: History, dealings: Dealings, written: DataFrame) -> DataFrame:
    """An invitation meets clients, each once, however many of their subscriptions it matches: it
    shows something of one only if no other would have met the same client."""
    sent = dealings.frames["deeds"].where(
        "kind = 'invite' and answer = 'Done' and tx_kind = 'isolated' and outcome = 'committed'"
    )
    invites = with_filters(sent, history.filters)
    invites = history.settle(
        invites.selectExpr("*", "concat(client, '/', epoch, '/', number) deed")
    )
    return dealings.sql(
        f"""
        select distinct i.run, i.tx reader, o.writer, o.op, o.begins, o.ended_at, o.effective_at,
          i.tx_answered_at answered_at, i.tx_at reader_at,
          concat('invitation ', i.place, ' of ', i.client) what, c.run is not null met
        from (select *, explode(filters) matched from {{invites}}) i
        join {{written}} o on o.run = i.run and o.f = i.matched and o.writer <> i.tx
          and not (o.client = i.client and o.epoch = i.epoch)
        left join {{calls}} c on c.run = i.run and c.tx = i.tx and c.client = o.client
          and c.epoch = o.epoch and c.op = i.deed
        left join {{severed}} v on v.run = i.run and v.one = i.broker and v.other = o.broker
        left anti join {{subs}} x on c.run is not null and x.run = o.run and x.client = o.client
          and x.epoch = o.epoch and x.op <> o.op and x.requested_at < i.tx_answered_at
          and x.ended_at > i.tx_at and array_contains(i.filters, x.f)
        where (c.run is not null and c.subscriptions = array(o.number))
          or (c.run is null and i.is_carried and v.run is null
              and o.session_opened_at < i.at and o.session_ended_at = {NEVER})
        """,
        invites=invites,
        written=written,
        calls=history["calls"],
    )
