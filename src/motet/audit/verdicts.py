"""What an audit says: guarantee by guarantee, what was put to the test and what broke it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

GUARANTEES: Final = {
    "exactly-once": "what was accepted came to everybody it was owed to, without a gap",
    "duplicates": "nothing came twice",
    "soundness": "nothing came but what was published and matches",
    "order": "publishers' order, and the order of ticks",
    "total-order": "any two subscribers saw any two common events in one order",
    "atomicity": "transactions have one outcome, and all of their events or none",
    "visibility": "nothing of a transaction was seen before it was committed",
    "transaction-order": "Definition 3.4: one order of operations, in all logs",
    "handover": "of a stream that is handed over, each event went to one side",
    "serializability": "isolated transactions could have run one after the other",
}
"""What is judged, in the order in which it is told."""

EXAMPLES: Final = 5
"""So many violations of one kind are shown; all are counted."""


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
    """What one history came to."""

    checked: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def broken(self, run: str | None = None) -> set[str]:
        """Guarantees that do not hold, in one run or at all."""
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
