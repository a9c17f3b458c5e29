"""What became of the promises: a plain comparison of what everybody got with what was to be
published, Spark's proof, and the audit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from motet.demo.cast import Arrival
from motet.demo.comparing import (
    Came,
    compare,
    compare_blocks,
    compare_handlers,
    compare_watchers,
)
from motet.demo.handing import CONSOLIDATE
from motet.demo.promises import Promise, counted, of_audit

if TYPE_CHECKING:
    from motet.demo.outcome import Outcome

EVENTS, HANDS, CRASH = "events of the log", "transactions", "a broker killed"
SPARK, BACK = "Spark reads exactly once", "Spark writes back atomically"
ALL = ("lost", "doubled", "misrouted", "changed", "inverted", "torn")


def promises_of(told: Outcome) -> list[Promise]:
    return [
        *_of_events(told),
        *_of_transactions(told),
        *_of_crash(told),
        *_of_reading(told),
        *_of_writing(told),
        *of_audit(told.audit),
    ]


def _came(arrivals: Iterable[Arrival]) -> list[Came]:
    return [(each.key, each.attributes) for each in arrivals]


def _of_events(told: Outcome) -> list[Promise]:
    stretches = [(each.lot, _came(each.arrivals)) for each in told.heard.stretches]
    handlers = compare_handlers(told.script, stretches)
    watched = {name: _came(came) for name, came in told.heard.watched.items()}
    watchers = compare_watchers(told.script, watched)
    both = handlers + watchers
    return [
        Promise(EVENTS, "published", len(told.script), remark=told.source),
        Promise(
            EVENTS,
            "delivered",
            both.delivered,
            both.owed,
            remark="to one handler each, and to "
            f"{len(watched)} watchers who see all of them in total order",
        ),
        *counted(EVENTS, both, ALL, ""),
    ]


def _of_transactions(told: Outcome) -> list[Promise]:
    done = told.moves.done
    plans = [each for each in done if each.kind == CONSOLIDATE]
    seen = [(each.transaction, each.attributes["moved"]) for each in told.heard.moved]
    blocks = compare_blocks(seen, {each.tx: each.lots for each in plans})
    moves = sum(len(each.lots) for each in done)
    aborted = f"{told.moves.aborted} more were aborted, and tried again"
    return [
        Promise(HANDS, "hand-overs committed", len(done), remark=aborted),
        Promise(HANDS, "lots that changed hands", moves, 1, "at least"),
        Promise(
            HANDS,
            "told by plans, received whole",
            blocks.delivered,
            blocks.owed,
            remark="each in one block, in the order of the plan",
        ),
        *counted(HANDS, blocks, ("lost", "doubled", "misrouted", "torn"), ""),
    ]


def _of_crash(told: Outcome) -> list[Promise]:
    chronicle, sessions = told.chronicle, told.heard.lost_sessions
    down_s = (chronicle.back_at_s or 0.0) - (chronicle.killed_at_s or 0.0)
    return [
        Promise(CRASH, "SIGKILL to the broker in the middle", int(down_s > 0), 1),
        Promise(CRASH, "back, with all links", round(down_s, 1), unit="s"),
        Promise(CRASH, "longest silence for a watcher", round(told.silence_s, 1), unit="s"),
        Promise(CRASH, "sessions lost", sessions, 0, remark="clients come back to what they had"),
    ]


def _of_reading(told: Outcome) -> list[Promise]:
    came = [((who, number), event) for who, number, event in told.archived]
    tally = compare(told.script, came, told.script.steps)
    differ = sum(told.proof.differences.values()) if told.proof is not None else 1
    kept_away = told.in_logs - len(told.archived)
    return [
        Promise(
            SPARK,
            "archived",
            tally.delivered,
            tally.owed,
            remark=f"{kept_away:,} more in the logs were kept away by the filter, at the brokers",
        ),
        *counted(SPARK, tally, ("lost", "doubled", "misrouted", "changed"), ""),
        Promise(SPARK, "archive and logs differ", differ, 0, remark="row for row, by Spark"),
    ]


def _of_writing(told: Outcome) -> list[Promise]:
    seen = [(each.transaction, each.tick) for each in told.heard.insight]
    blocks = compare_blocks(seen, told.written)
    running = [tx for tx in told.written if tx.startswith("insight/")]
    numbers = sorted(int(tx.rpartition("/")[2]) for tx in running)
    missing = len(set(told.batches) ^ set(numbers))
    last = max(running, key=lambda tx: int(tx.rpartition("/")[2]), default="")
    totals = _totals(told.heard.insight, last)
    owed = len(told.script.counted)
    return [
        Promise(
            BACK,
            "results received whole",
            blocks.delivered,
            blocks.owed,
            remark="each batch of Spark's is one transaction, for a plain subscriber",
        ),
        *counted(BACK, blocks, ("lost", "doubled", "misrouted", "torn"), ""),
        Promise(
            BACK,
            "batches not published once",
            missing,
            0,
            remark=f"{len(told.batches)} are in Spark's own checkpoint",
        ),
        Promise(
            BACK,
            "events counted by the last result",
            totals,
            owed,
            remark="each once, though a broker was killed",
        ),
    ]


def _totals(insight: Sequence[Arrival], transaction: str) -> int:
    return sum(
        int(str(each.attributes["events"])) for each in insight if each.transaction == transaction
    )
