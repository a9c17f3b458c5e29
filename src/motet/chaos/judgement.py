"""What the checkers say about a run, and everything worth counting, as one report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from motet.chaos import autopsy
from motet.chaos.chronicle import Chronicle
from motet.chaos.plan import Plan
from motet.runtime.journal import VOLATILE
from motet.testing.checkers import routing
from motet.testing.checkers.by_history import CHECKERS
from motet.testing.checkers.verdict import Verdict

SHOWN = 10
"""Violations of one guarantee that are told; the rest are usually its echoes."""


class Violation(Struct, frozen=True):
    guarantee: str
    detail: str


class Report(Struct, frozen=True):
    plan: Plan
    faults: dict[str, int]
    operations: dict[str, int]
    events: dict[str, int]
    sessions: dict[str, int]
    delivery: dict[str, int]
    """Of the events that are to arrive exactly once; empty if there were none."""
    longest_silence_s: float
    """The longest time that a subscriber heard nothing between two such events."""
    recoveries: int
    longest_outage_s: float
    checked: dict[str, int]
    violated: dict[str, int]
    """How often, by guarantee; only those that were."""
    violations: tuple[Violation, ...]
    transactions: dict[str, int] = {}
    """Empty if there were none."""

    @property
    def kept(self) -> bool:
        return not self.violated

    def to_json(self) -> dict[str, Any]:
        return {
            "brokers": self.plan.brokers,
            "shape": self.plan.shape,
            "profile": self.plan.profile,
            "seconds": self.plan.seconds,
            "seed": self.plan.seed,
            "durability": self.plan.durability,
            "faults": self.faults,
            "recoveries": self.recoveries,
            "longest_outage_s": round(self.longest_outage_s, 3),
            "operations": self.operations,
            "events": self.events,
            "sessions": self.sessions,
            "delivery": self.delivery,
            "transactions": self.transactions,
            "longest_silence_s": round(self.longest_silence_s, 3),
            "checked": self.checked,
            "violations": [
                {"guarantee": violation.guarantee, "detail": violation.detail}
                for violation in self.violations
            ],
            "kept": self.kept,
        }


def judge(plan: Plan, chronicle: Chronicle, folders: Mapping[str, Path]) -> Report:
    """`folders` are those of the brokers, which have stopped."""
    history = chronicle.history
    verdicts = [Verdict(guarantee, 0, [detail]) for guarantee, detail in history.oddities]
    durability, lost = Verdict("durability", chronicle.resumed), 0
    if plan.durability != VOLATILE:  # else there is no folder to look into
        cores = autopsy.rebuild(folders, durability)
        if len(cores) == len(folders):
            lost = autopsy.check_losses(history, cores, durability)
            autopsy.rejoin(cores, history.tree, durability)
            verdicts.append(routing.check(history, cores))
    found = {verdict.guarantee: verdict for verdict in (c.check(history) for c in CHECKERS)}
    verdicts += [durability, *found.values(), *chronicle.verdicts, Verdict("settles", 1)]
    checked: Counter[str] = Counter()
    details: dict[str, list[str]] = {}
    for verdict in verdicts:
        checked[verdict.guarantee] += verdict.checked
        if verdict.violations:
            details.setdefault(verdict.guarantee, []).extend(verdict.violations)
    return Report(
        plan=plan,
        faults=dict(sorted(chronicle.faults.items())),
        operations=_operations(chronicle, lost + chronicle.lost_operations),
        events=_events(chronicle, found["completeness"]),
        sessions={
            "opened": len(history.sessions),
            "resumed": chronicle.resumed,
            "lost": chronicle.lost_sessions,
        },
        delivery=_delivery(chronicle, found) if plan.sure else {},
        transactions=chronicle.transactions,
        longest_silence_s=_longest_silence_s(chronicle),
        recoveries=chronicle.recoveries,
        longest_outage_s=chronicle.longest_outage_s,
        checked=dict(sorted(checked.items())),
        violated={guarantee: len(found) for guarantee, found in details.items()},
        violations=tuple(
            Violation(guarantee, detail)
            for guarantee, found in details.items()
            for detail in found[:SHOWN]
        ),
    )


def _operations(chronicle: Chronicle, lost: int) -> dict[str, int]:
    made = [
        operation
        for session in chronicle.history.sessions
        for operation in session.operations.values()
    ]
    done = sum(operation.answer == "Done" for operation in made)
    answered = sum(bool(operation.answer) for operation in made)
    return {
        "asked": len(made),
        "acknowledged": done,
        "refused": answered - done,
        "unanswered": len(made) - answered,
        "lost": lost,
    }


def _events(chronicle: Chronicle, owed: Verdict) -> dict[str, int]:
    history = chronicle.history
    fates = Counter(event.fate for event in history.events)
    return {
        "published": len(history.events),
        "accepted": fates["accepted"],
        "refused": fates["refused"],
        "unknown": fates["unknown"] + fates[""],
        "delivered": len(history.deliveries),
        "owed": owed.checked,
        "lost": len(owed.violations),
    }


def _delivery(chronicle: Chronicle, found: Mapping[str, Verdict]) -> dict[str, int]:
    history, owed = chronicle.history, found["exactly-once"]
    sure = [event for event in history.events if event.sure]
    return {
        "published": len(sure),
        "durable": sum(event.fate == "accepted" for event in sure),
        "owed": owed.checked,
        "delivered": sum(delivery.tick > 0 for delivery in history.deliveries),
        "lost": len(owed.violations),
        "doubled": len(found["duplicates"].violations),
        "out_of_order": len(found["order"].violations),
        "nacks": sum(chronicle.nacks.values()),
    }


def _longest_silence_s(chronicle: Chronicle) -> float:
    """Between two sure events that came to one client, whatever was broken meanwhile."""
    last: dict[int, float] = {}
    longest_s = 0.0
    for delivery in chronicle.history.deliveries:
        if delivery.tick:
            before = last.get(delivery.instance, delivery.at)
            longest_s = max(longest_s, delivery.at - before)
            last[delivery.instance] = delivery.at
    return longest_s
