"""Moves of clients: each is answered once, as it happened, one broker at a time has a session, and
one copy of a hosted client runs.

The n-th stay of a session is at one broker, whatever the clocks say. Clocks tell whether a broker
still had a session when another one had it already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from motet.spark.audit.history import RecordedHistory, violations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REFUSALS: Final = ("MoveRefused", "NotEffective", "InTransaction", "NotOffered", "MisuseError")
"""Answers after which a client is where it was. Others leave open what has happened."""


def judge(history: RecordedHistory) -> list[DataFrame]:
    moves, stays = history["moves"], history["stays"]
    return [
        *_answers(history, moves),
        *_outcomes(history, moves, stays),
        *_stays(history, stays),
        *_runs(history),
    ]


def _answers(history: RecordedHistory, moves: DataFrame) -> list[DataFrame]:
    """A client that has asked for another move had been answered, unless it was killed."""
    told = ("client", "`to`", "at")
    query = history.spark.sql
    unanswered = query(
        "select m.* from {moves} m left semi join {moves} later "
        "on later.run = m.run and later.process = m.process and later.number > m.number "
        "where m.answer = ''",
        moves=moves,
    )
    text = "the move of %s to %s at %s s was never answered, and it has asked for another one"
    twice = "the move of %s to %s at %s s was answered %s times"
    elsewhere = "the move of %s to %s at %s s is done, but its client was at %s"
    return [
        violations(unanswered, "moves", "never answered", text, *told),
        violations(moves.where("answers > 1"), "moves", "answered twice", twice, *told, "answers"),
        violations(
            moves.where("answer = 'Done' and broker <> `to`"),
            *("moves", "done elsewhere", elsewhere, *told, "broker"),
        ),
    ]


def _outcomes(history: RecordedHistory, moves: DataFrame, stays: DataFrame) -> list[DataFrame]:
    """What clients were told against what brokers have recorded. A broker that is killed may lose
    its last second of recording: after a restart, it is believed."""
    query, slack = history.spark.sql, history.slack_s
    never = query(
        "select m.* from {moves} m "
        "left semi join {stays} known on known.run = m.run and known.broker = m.`to` "
        "left anti join {stays} s on s.run = m.run and s.client = m.client "
        "and s.epoch = m.epoch and s.broker = m.`to` "
        "left anti join {lives} l on l.run = m.run and l.broker = m.`to` "
        f"and l.at >= m.answered_at - {slack} "
        "where m.answer = 'Done'",
        moves=moves, stays=stays, lives=history["lives"],
    )  # fmt: skip
    refused = ", ".join(f"'{each}'" for each in REFUSALS)
    moved = query(
        "select m.*, s.at left_at from {moves} m join {stays} s "
        "on s.run = m.run and s.client = m.client and s.epoch = m.epoch "
        "and s.broker = m.source and s.`to` = m.`to` and s.what = 'left' and not s.is_ordered "
        f"and s.at > m.at + {slack} and s.at < m.answered_at - {slack} "
        f"where m.answer in ({refused})",
        moves=moves, stays=stays,
    )  # fmt: skip
    told = ("client", "`to`", "at")
    text = "the move of %s to %s at %s s is done, but that broker never had the session"
    refusal = "the move of %s to %s at %s s was refused (%s), but the session left at %s s"
    return [
        violations(never, "moves", "never there", text, *told),
        violations(moved, "moves", "refused and moved", refusal, *told, "answer", "left_at"),
    ]


def _stays(history: RecordedHistory, stays: DataFrame) -> list[DataFrame]:
    query, slack = history.spark.sql, history.slack_s
    session = "one.run = two.run and one.client = two.client and one.epoch = two.epoch"
    here = "('opened', 'came', 'found', 'kept')"
    twins = query(
        "select run, client, epoch, number, min(broker) one, max(broker) two from {stays} "
        f"where what in {here} group by run, client, epoch, number having one <> two",
        stays=stays,
    )
    forked = query(
        "select run, client, epoch, number, min(`to`) one, max(`to`) two from {stays} "
        "where what = 'left' group by run, client, epoch, number having one <> two",
        stays=stays,
    )
    astray = query(
        "select two.run, two.client, two.epoch, two.broker, one.`to` from {stays} one "
        f"join {{stays}} two on {session} and two.number = one.number + 1 "
        "where one.what = 'left' and two.what = 'came' and one.`to` <> two.broker",
        stays=stays,
    )
    both = query(
        "select two.run, two.client, two.epoch, one.broker one, two.broker two, one.at "
        f"from {{stays}} one join {{stays}} two on {session} and two.number > one.number "
        "where one.broker <> two.broker and two.what = 'came' "
        f"and one.at > two.at + {slack}",
        stays=stays,
    )
    whose = ("epoch", "client")
    text = "the stay %s of the session %s of %s is at %s and at %s"
    return [
        violations(twins, "moves", "two copies", text, "number", *whose, "one", "two"),
        violations(
            forked, "moves", "decided twice",
            "the session %s of %s has left to %s and to %s", *whose, "one", "two",
        ),
        violations(
            astray, "moves", "arrived elsewhere",
            "the session %s of %s has come to %s, and was to go to %s", *whose, "broker", "`to`",
        ),
        violations(
            both, "moves", "at two brokers",
            "the session %s of %s was still at %s at %s s, when %s had it already",
            *whose, "one", "at", "two",
        ),
    ]  # fmt: skip


def _runs(history: RecordedHistory) -> list[DataFrame]:
    """A copy that was killed with its broker has no recorded end, and is not compared."""
    slack = history.slack_s
    both = history.spark.sql(
        "select two.run, two.client, one.broker one, two.broker two, two.at from {runs} two "
        "join {runs} one on one.run = two.run and one.client = two.client "
        "and one.process <> two.process and one.what = 'began' "
        "join {runs} over on over.run = one.run and over.client = one.client "
        "and over.process = one.process and over.what = 'ended' "
        f"where two.what = 'began' and one.at <= two.at and two.at + {slack} < over.at",
        runs=history["runs"],
    )
    text = "a copy of %s ran at %s, and another one at %s, at %s s"
    return [violations(both, "moves", "two running copies", text, "client", "one", "two", "at")]
