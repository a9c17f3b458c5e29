"""The results of an audit: per guarantee, what was checked and what violates it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

GUARANTEES: Final = {
    "exactly-once": "every accepted event was delivered to every subscriber it was owed to",
    "duplicates": "no event was delivered twice",
    "soundness": "only published events that match were delivered",
    "order": "events were delivered in publisher order and in tick order",
    "total-order": "subscribers in total order saw common events in the same order",
    "atomicity": "each transaction has one outcome, and all of its events or none",
    "visibility": "no event of a transaction was delivered before its commit",
    "transaction-order": "operations have one order, the same in all logs (Definition 3.4)",
    "handover": "each event of a stream that was handed over went to exactly one side",
    "serializability": "isolated transactions are equivalent to some serial order",
    "moves": "every move was answered once, and one broker at a time had the session",
    "notification-order": "streams that got two events got them in the same order",
    "causality": "effects came behind their causes, and all streams fit into one order",
    "numbers": "each number has one event, each request one number, as its receipt says",
    "completeness": "streams got every event with a receipt in its turn, or were told",
}
"""The guarantees, in the order in which they are reported."""

EXAMPLES: Final = 5
"""At most this many violations of one kind are shown; all are counted."""


@dataclass(slots=True)
class Finding:
    """One kind of violation: how often, and the events that prove it."""

    guarantee: str
    kind: str
    count: int
    examples: list[str]
    run: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "guarantee": self.guarantee,
            "kind": self.kind,
            "run": self.run,
            "count": self.count,
            "examples": self.examples,
        }


@dataclass(slots=True)
class Audit:
    """The result for one history."""

    checked: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def broken(self, run: str | None = None) -> set[str]:
        """Guarantees that are violated, in one run or in any."""
        return {f.guarantee for f in self.findings if run is None or f.run == run}

    def kinds(self, run: str | None = None) -> set[str]:
        return {f.kind for f in self.findings if run is None or f.run == run}

    def violations(self, guarantee: str) -> int:
        return sum(each.count for each in self.findings if each.guarantee == guarantee)

    def extend(self, found: Iterable[Finding]) -> None:
        self.findings.extend(found)

    def as_dict(self) -> dict[str, Any]:
        return {
            "clean": self.is_clean,
            "seconds": round(self.seconds, 3),
            "guarantees": {
                name: {"checked": self.checked.get(name, 0), "violations": self.violations(name)}
                for name in GUARANTEES
            },
            "findings": [each.as_dict() for each in self.findings],
        }
