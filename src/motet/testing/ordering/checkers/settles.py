"""Without faults and without requests everything comes to rest: nobody waits for anything.

Nothing is excused: the recorder lists what was still waited for when the run ended, long after the
last fault, and publications of living processes without an outcome are added.
"""

from __future__ import annotations

from motet.testing.checkers.result import CheckResult
from motet.testing.ordering.history import OrderHistory

GUARANTEE = "settles"


def check(history: OrderHistory) -> CheckResult:
    verdict = CheckResult(GUARANTEE)
    for wait in history.waits:
        verdict.violated(f"{wait.who} waits for {wait.what}")
    for publication in history.publications.values():
        verdict.expect(
            bool(publication.outcome) or publication.excused,
            "{} has no receipt for event {} on {}",
            publication.client,
            publication.event,
            publication.topic,
        )
    return verdict
