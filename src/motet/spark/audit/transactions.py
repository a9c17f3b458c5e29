"""Transactions: one outcome, all of their events or none, nothing early, one order everywhere.

The events of a transaction follow its cut in the log, and the cut says where they end. Batches of
sinks are recorded by brokers only, not by the clients that requested them. So they are judged by
their cuts alone, which suffices to see whether they are whole.

Serializability: which isolated transactions must precede which, and whether these relations form a
cycle. A transaction reads the clients that its invitations and events reach; it writes the
subscriptions that it begins or ends. Spark finds the relations. Those that cannot be on a cycle,
because nothing leads to one of their ends or away from it, are trimmed until the rest is small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from motet.audit.circles import circle
from motet.audit.verdicts import Finding
from motet.spark.audit.deliveries import LONG_AGO
from motet.spark.audit.history import violations, with_filters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from motet.spark.audit.history import RecordedHistory


NEVER = "double('infinity')"
HOME = "regexp_replace({}, '\\\\.[^.]*$', '')"
"""The broker of a pubend."""


class Dealings:
    """The transactions of one history."""

    def __init__(self, history: RecordedHistory, events: DataFrame, came: DataFrame) -> None:
        self._history = history
        self.frames: dict[str, DataFrame] = {
            name: history[name] for name in ("words", "cuts", "hearers", "before", "amnesia")
        }
        self.frames["severed"] = history.severed
        self.frames["starts"] = history.starts
        self.frames["sessions"] = history.homes
        self.slack_s = history.slack_s
        self.frames["subs"] = history.subscriptions
        self.frames["deals"] = history.settle(self._deals())
        self.frames["deeds"] = history.settle(self._deeds())
        self.frames["events"] = events
        self.frames["acts"] = history.settle(self._acts())
        self.frames["came"] = came

    def sql(self, text: str, **more: DataFrame) -> DataFrame:
        used = {
            name: each for name, each in {**self.frames, **more}.items() if f"{{{name}}}" in text
        }
        return self._history.spark.sql(text, **used)

    def _deals(self) -> DataFrame:
        """Each transaction with its root, and until when the root had lost its state."""
        return self.sql(
            """
            select t.*, b.broker root, coalesce(s.path_until, double('-infinity')) root_until,
              case when t.kind = 'static' then t.at else t.commit_at end ready_at
            from {transactions} t
            left join {brokers} b on b.run = t.run and b.is_root
            left join {severed} s on s.run = t.run and s.one = b.broker and s.other = b.broker
            """,
            transactions=self._history["transactions"],
            brokers=self._history["brokers"],
        )

    def _deeds(self) -> DataFrame:
        """Each step with the outcome of its transaction, and whether lost state cut it off."""
        return self.sql(
            """
            select d.*, t.outcome, t.kind tx_kind, t.at tx_at, t.answered_at tx_answered_at,
              s.broker, coalesce(v.path_until, double('-infinity')) >= t.at is_cut_off
            from {all_deeds} d
            join {deals} t on t.run = d.run and t.tx = d.tx
            left join {sessions} s on s.run = d.run and s.client = d.client and s.epoch = d.epoch
            left join {severed} v on v.run = d.run and v.one = t.root and v.other = s.broker
            """,
            all_deeds=self._history["deeds"],
        )

    def _acts(self) -> DataFrame:
        """Publications in transactions, each with its event."""
        return self.sql(
            """
            select d.run, d.tx, d.place, d.outcome, d.answer, d.at, d.tx_at, d.is_cut_off,
              d.tx_kind, d.tx_answered_at, d.client deed_client, d.epoch deed_epoch,
              e.client, e.epoch, e.number, e.pubend, e.tick, e.audience, e.filters,
              concat(e.client, '/', e.epoch, ' #', e.number) who
            from {deeds} d
            join {events} e on e.run = d.run and e.tx = d.tx and e.client = d.client
              and e.epoch = d.epoch and e.number = d.event
            where d.kind = 'publish'
            """
        )


def came(history: RecordedHistory, events: DataFrame, are_few: bool) -> DataFrame:
    """Deliveries of transactions' events, or to subscriptions that a transaction begins or ends."""
    op = history["operations"].where("tx <> '' and kind = 'subscribe'").select("run", "op", "tx")
    switched = history["deeds"].where("op <> ''").select("run", "op").distinct()
    ops = op.join(switched.withColumn("switched", F.lit(True)), ["run", "op"], "full")
    hint = "/*+ broadcast(e), broadcast(o) */" if are_few and not history.is_small else ""
    return history.spark.sql(
        f"""
        select {hint} d.run, d.op, d.at, d.publisher, d.number, d.pubend, d.tick, e.tx event_tx,
          o.tx op_tx
        from {{deliveries}} d
        left join (select distinct run, client, number, pubend, tick, tx from {{events}}) e
          on e.number = d.number and e.client = d.publisher and e.run = d.run
          and (e.tick = 0 or d.tick = 0 or (e.tick = d.tick and e.pubend = d.pubend))
        left join {{ops}} o on o.run = d.run and o.op = d.op
        where d.came and (e.tx is not null or o.op is not null)
        """,
        deliveries=history["deliveries"],
        events=events,
        ops=ops,
    )


def judge(
    history: RecordedHistory, events: DataFrame, came: DataFrame
) -> tuple[Dealings, list[DataFrame]]:
    """`events` are those of transactions, `came` their deliveries."""
    dealings = Dealings(history, events, came)
    return dealings, [
        *_words(dealings),
        *_wholes(dealings),
        *_early(dealings),
        *_cuts(dealings),
        *_own(dealings, history),
        *_handovers(dealings),
    ]


def _words(dealings: Dealings) -> list[DataFrame]:
    """What clients were told about outcomes."""
    sql, say = dealings.sql, "atomicity"
    said = sql(
        """
        select t.run, t.tx, collect_set(w.outcome) outcomes,
          collect_set(case when w.number > 0 then w.number end) numbers
        from {words} w join {deals} t on t.run = w.run and t.tx = w.tx
        where w.outcome in ('committed', 'aborted') and t.root_until < t.at
        group by t.run, t.tx having size(outcomes) > 1 or size(numbers) > 1
        """
    )
    running = sql(
        """
        select t.run, t.tx, t.outcome, w.who, w.at from {words} w
        join {deals} t on t.run = w.run and t.tx = w.tx
        where w.outcome = 'in progress' and w.asked_at > t.answered_at
        """
    )
    expired = sql(
        """
        select t.run, t.tx, w.who, w.at from {words} w
        join {deals} t on t.run = w.run and t.tx = w.tx
        join (select run, tx, min(at) at from {words}
              where outcome in ('committed', 'aborted') group by run, tx) f
          on f.run = w.run and f.tx = w.tx
        left anti join {amnesia} a on a.run = w.run and a.one = t.root and a.other = ''
          and a.until >= t.at and a.since <= w.at
        where w.outcome = 'expired' and f.at <= w.asked_at
        """
    )
    keys = sql(
        """
        select run, client, key, collect_list(tx) txs, min_by(root_until < at, at) known
        from {deals} where key <> '' and outcome = 'committed'
        group by run, client, key having size(txs) > 1 and known
        """
    )
    return [
        violations(said.where("size(outcomes) > 1"), say, "two outcomes",
                   "%s was reported %s", "tx", "array_join(array_sort(outcomes), ' and ')"),
        violations(said.where("size(numbers) > 1"), say, "two numbers",
                   "%s has numbers %s", "tx", "array_sort(numbers)"),
        violations(running, say, "still running",
                   "%s was %s, but %s was told at %s s that it is in progress",
                   "tx", "outcome", "who", "at"),
        violations(expired, say, "forgotten",
                   "%s is decided, but %s was told at %s s that it is unknown", "tx", "who", "at"),
        violations(keys, say, "key used twice", "%s are all committed, with the same key %s of %s",
                   "array_join(array_sort(txs), ' and ')", "key", "client"),
    ]  # fmt: skip


def _wholes(dealings: Dealings) -> list[DataFrame]:
    """All of a committed transaction, nothing of an aborted one; participants were told."""
    sql, say = dealings.sql, "atomicity"
    unpublished = sql(
        "select * from {acts} where outcome = 'committed' and answer = 'Done' and tick = 0 "
        "and not is_cut_off"
    )
    published = sql("select * from {acts} where outcome = 'aborted' and tick > 0")
    cut = sql(
        "select distinct c.run, c.tx, c.pubend from {cuts} c "
        "join {deals} t on t.run = c.run and t.tx = c.tx where t.outcome = 'aborted'"
    )
    untold = sql(
        """
        select distinct d.run, d.tx, d.client, d.outcome from {deeds} d
        left anti join {hearers} h
          on h.run = d.run and h.tx = d.tx and h.client = d.client and h.epoch = d.epoch
        where d.outcome in ('committed', 'aborted') and d.stays and not d.is_cut_off
          and d.answer not in ('TransactionOver', 'NotInvited')
          and (d.outcome = 'committed' or not d.is_planned)
        """
    )
    return [
        violations(unpublished, say, "partly published",
                   "%s is committed, but event %s was never published", "tx", "who"),
        violations(published, say, "published though aborted",
                   "%s was aborted, but event %s was published at tick %s of %s",
                   "tx", "who", "tick", "pubend"),
        violations(cut, say, "cut though aborted", "%s was aborted, but %s has cut for it",
                   "tx", "pubend"),
        violations(untold, say, "untold", "%s is %s, but its participant %s was never told",
                   "tx", "outcome", "client"),
    ]  # fmt: skip


def _early(dealings: Dealings) -> list[DataFrame]:
    """No event is visible before the commit; none of an aborted transaction ever is."""
    seen = dealings.sql(
        """
        select d.run, d.publisher, d.number, d.op, d.at, d.pubend, t.tx, t.outcome, t.ready_at,
          d.event_tx = t.tx is_its, coalesce(c.at, double('infinity')) cut_at
        from (select *, explode(array_distinct(array(event_tx, op_tx))) tx from {came}) d
        join {deals} t on t.run = d.run and t.tx = d.tx
        left join (select run, tx, pubend, min(at) at from {cuts} group by all) c
          on c.run = d.run and c.tx = d.event_tx and c.pubend = d.pubend
        """
    )
    what, say, slack_s = "concat(publisher, ' #', number)", "visibility", dealings.slack_s
    return [
        violations(seen.where(f"ready_at > at + {slack_s}"), say, "before the commit",
                   "%s was delivered to %s at %s s, but %s could not be committed before %s s",
                   what, "op", "at", "tx", "ready_at"),
        violations(seen.where("outcome = 'aborted'"), say, "of an aborted one",
                   "%s was delivered to %s, but %s was aborted", what, "op", "tx"),
        violations(seen.where(f"is_its and cut_at > at + {slack_s}"), say, "before the cut",
                   "%s of %s was delivered to %s at %s s from %s, which had not cut for it",
                   what, "tx", "op", "at", "pubend"),
    ]  # fmt: skip


def _cuts(dealings: Dealings) -> list[DataFrame]:
    """One cut per transaction and log, in the order of numbers; its events follow, in order."""
    sql, say = dealings.sql, "transaction-order"
    twice = sql(
        "select run, tx, pubend, array_sort(collect_set(tick)) ticks from {cuts} "
        "group by run, tx, pubend having size(ticks) > 1"
    )
    numbers = sql(
        "select run, tx, array_sort(collect_set(number)) numbers from {cuts} "
        "group by run, tx having size(numbers) > 1"
    )
    home = HOME.format("c.pubend")
    behind = sql(
        f"""
        select c.run, c.pubend, c.tx, c.number, c.before.tx before_tx, c.before.number before_number
        from (select *, lag(struct(tx, number)) over (partition by run, pubend order by tick) before
              from (select distinct run, pubend, tick, tx, number from {{cuts}}
                    where number > 0)) c
        left join {{deals}} t on t.run = c.run and t.tx = c.tx
        left join {{severed}} v on v.run = c.run and v.one = t.root and v.other = {home}
        where c.before.number >= c.number and coalesce(v.path_until < t.at, true)
          and coalesce(t.root_until, double('-infinity')) = double('-infinity')
        """
    )
    block = sql(
        """
        select a.*, c.tick cut,
          row_number() over (partition by a.run, a.tx, a.pubend order by a.place) at_place
        from {acts} a
        left join (select run, tx, pubend, min(tick) tick from {cuts} group by all) c
          on c.run = a.run and c.tx = a.tx and c.pubend = a.pubend
        where a.tick > 0
        """
    )
    against = sql(
        """
        select b.run, b.tx, b.first, b.then, x.pubend from {before} b
        join {acts} x on x.run = b.run and x.tx = b.tx and x.place = b.first
        join {acts} y on y.run = b.run and y.tx = b.tx and y.place = b.then and y.pubend = x.pubend
        where x.tick > 0 and y.tick > 0 and x.tick >= y.tick
        """
    )
    return [
        violations(twice, say, "two cuts", "%s has cut for %s at ticks %s",
                   "pubend", "tx", "ticks"),
        violations(numbers, say, "numbers differ", "%s has numbers %s", "tx", "numbers"),
        violations(behind, say, "cuts swapped", "%s cuts for %s, number %s, after %s, number %s",
                   "pubend", "tx", "number", "before_tx", "before_number"),
        violations(block.where("cut is null or tick <> cut + at_place"), say, "block torn",
                   "of %s, event %s is at tick %s of %s, but its cut there is at %s",
                   "tx", "who", "tick", "pubend", "coalesce(cut, 'no tick')"),
        violations(against, say, "against the plan", "%s has step %s after step %s in %s",
                   "tx", "first", "then", "pubend"),
    ]  # fmt: skip


def _own(dealings: Dealings, history: RecordedHistory) -> list[DataFrame]:
    """A subscription that a transaction begins gets the transaction's later events; one that it
    ends gets the earlier ones."""
    switches = history.settle(
        dealings.sql(
            """
            select run, tx, op, max(case when kind = 'subscribe' then place end) since,
              max(case when kind = 'unsubscribe' then place end) until
            from {deeds}
            where outcome = 'committed' and answer = 'Done' and op <> ''
              and kind in ('subscribe', 'unsubscribe')
            group by run, tx, op
            """
        )
    )
    dealings.frames["switches"] = switches
    met = dealings.sql(
        f"""
        select a.run, a.tx, a.who, a.place, a.pubend, a.tick, a.tx_at, s.op, o.process,
          o.answer op_answer, o.finished_at, o.session_lasting, o.is_gone, o.requested_at,
          (s.since is null or a.place > s.since) and (s.until is null or a.place < s.until) owed,
          d.op is not null arrived, coalesce(v.path_until, {LONG_AGO}) path_until,
          coalesce(array_contains(a.audience, s.op), true) and coalesce(b.tick < a.tick, false)
            is_known
        from {{acts}} a
        join {{switches}} s on s.run = a.run and s.tx = a.tx
        join {{subs}} o on o.run = s.run and o.op = s.op and array_contains(a.filters, o.f)
        left join (select distinct run, op, publisher, number from {{came}}) d
          on d.run = a.run and d.op = s.op and d.publisher = a.client and d.number = a.number
        left join {{starts}} b on b.run = a.run and b.op = s.op and b.pubend = a.pubend
        left join {{severed}} v on v.run = a.run and v.other = o.broker
          and v.one = {HOME.format("a.pubend")}
        where a.answer = 'Done' and a.tick > 0
        """
    )
    met = history.settle(met)
    missing = dealings.sql(
        f"""
        select m.* from {{met}} m
        left anti join {{losses}} l on l.run = m.run and l.process = m.process
          and l.pubend = m.pubend and m.tick between l.first and l.last
        where m.owed and not m.arrived and m.is_known and m.op_answer = 'Done'
          and (m.finished_at < {NEVER} or m.session_lasting)
          and not (m.is_gone and m.finished_at = {NEVER})
          and m.path_until < least(m.tx_at, m.requested_at)
        """,
        met=met,
        losses=history["losses"],
    )
    say = "transaction-order"
    return [
        violations(met.where("arrived and not owed"), say, "against its order",
                   "of %s, event %s (step %s) was delivered to %s, contrary to its order",
                   "tx", "who", "place", "op"),
        violations(missing, say, "missing in its order",
                   "of %s, event %s (step %s) was never delivered to %s, which precedes it",
                   "tx", "who", "place", "op"),
    ]  # fmt: skip


def _handovers(dealings: Dealings) -> list[DataFrame]:
    """An event never reaches both sides of a hand-over."""
    both = dealings.sql(
        """
        select o.run, o.tx, o.op old, n.op new, d.publisher, d.number, d.tick, d.pubend
        from {switches} o
        join {switches} n on n.run = o.run and n.tx = o.tx
        join {subs} x on x.run = o.run and x.op = o.op and x.answer = 'Done'
        join {subs} y on y.run = n.run and y.op = n.op and y.f = x.f
        join {came} d on d.run = o.run and d.op = o.op
        join {came} e on e.run = o.run and e.op = n.op
          and e.publisher = d.publisher and e.number = d.number
        where o.until is not null and o.since is null and n.since is not null and n.until is null
          and d.tick > 0 and not (d.event_tx <=> o.tx)
        """
    )
    return [
        violations(both, "handover", "both sides",
                   "%s (tick %s of %s) was delivered to both %s and %s of %s",
                   "concat(publisher, ' #', number)", "tick", "pubend", "old", "new", "tx"),
    ]  # fmt: skip


# ── blocks ───────────────────────────────────────────────────────────────────────────────


def batches(history: RecordedHistory) -> DataFrame:
    """The cuts of batches of sinks: those of transactions that no client has begun."""
    deals = history["transactions"].select("run", "tx")
    return history["cuts"].where("number = 0").join(deals, ["run", "tx"], "left_anti")


def judge_blocks(history: RecordedHistory, events: DataFrame, came: DataFrame) -> list[DataFrame]:
    """`events` are those of transactions, `came` their deliveries."""
    return [*_torn_blocks(history, events), _before_cut(history, came)]


def _torn_blocks(history: RecordedHistory, events: DataFrame) -> list[DataFrame]:
    """Blocks that are incomplete. The last block of a log may still be incomplete, and is not
    judged. A log with two cuts is reported elsewhere."""
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
        return []  # avoids scanning the logs, which are large
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
        "%s has %s events at %s, but its cut there, at %s, says that they end at %s",
        "tx", "count", "pubend", "tick", "last",
    )  # fmt: skip
    return [told]


def _before_cut(history: RecordedHistory, came: DataFrame) -> DataFrame:
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
        "%s of %s was delivered to %s at %s s from %s, which had not cut for it",
        "concat(publisher, ' #', number)", "tx", "op", "at", "pubend",
    )  # fmt: skip


# ── serializability ──────────────────────────────────────────────────────────────────────

FEW_RELATIONS = 200_000
"""The driver itself searches at most this many relations for a cycle."""


def judge_order(history: RecordedHistory, dealings: Dealings) -> tuple[int, list[Finding]]:
    """The number of relations, and the cycles among them."""
    edges = history.settle(relations(history, dealings))
    count = edges.count()
    left = edges
    while count > FEW_RELATIONS:
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
    """Without relations that no other leads to, or that lead to no other."""
    firsts = edges.select("run", F.col("first").alias("then")).distinct()
    thens = edges.select("run", F.col("then").alias("first")).distinct()
    return edges.join(firsts, ["run", "then"], "left_semi").join(
        thens, ["run", "first"], "left_semi"
    )


def relations(history: RecordedHistory, dealings: Dealings) -> DataFrame:
    """Pairs of transactions of which the first must precede the other, each with the reason."""
    # A subscription that a transaction both begins and ends counts as ended only.
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
            concat(m.what, case when m.met then ' reached ' else ' did not reach ' end, m.op) why
          from {met} m
          where m.met or (m.begins and m.ended_at > m.answered_at)
            or (not m.begins and m.effective_at < m.reader_at))
        group by run, first, then
        """,
        met=met,
    )


def _met_by_events(history: RecordedHistory, dealings: Dealings, written: DataFrame) -> DataFrame:
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


def _met_by_invitations(
    history: RecordedHistory, dealings: Dealings, written: DataFrame
) -> DataFrame:
    """An invitation reaches each client once, however many of its subscriptions match. So it proves
    something about a subscription only if no other one would have reached the same client."""
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
