"""Every request and every publication is answered once; a timeout blames only the troubled.

An application that was killed hears nothing, of course. A broker that is named as not reached
must be one, and there must have been a reason just then: trouble on the way to it or behind it,
a clock that jumped at the broker that lost patience, or a timeout shorter than the overlay is
wide.
"""

from __future__ import annotations

from motet.testing.checkers.verdict import Verdict
from motet.testing.history import History, Operation

INQUIRY_S = 0.3
"""A broker asks around for at most so long before it names somebody."""


def check(history: History) -> Verdict:
    verdict = Verdict("answers")
    for call in history.calls:
        what = f"{call.kind} of {call.client} at {call.at:.4f} s"
        verdict.expect(len(call.answers) <= 1, "{} was answered {}", what, call.answers)
        if call.instance not in history.departed:
            verdict.expect(bool(call.answers), "{} was never answered", what)
    for event in history.events:
        if event.instance not in history.departed:
            verdict.expect(bool(event.fate), "nobody ever said what became of {}", event)
    for session in history.sessions:
        for operation in session.operations.values():
            if operation.answer == "NotEffective":
                _check_blame(operation, history, verdict)
    return verdict


def _check_blame(operation: Operation, history: History, verdict: Verdict) -> None:
    known = set(history.tree.brokers) - {operation.session.broker}
    named = operation.missing
    verdict.expect(bool(named), "{} was not effective, but nobody is named", operation)
    verdict.expect(known >= set(named), "{} names {}: not all are other brokers", operation, named)
    for name in named:
        if name in known:
            verdict.expect(
                _had_reason(operation, name, history),
                "{} was not effective within {:g} s and blames {}, but nothing was wrong there",
                operation,
                operation.timeout_s,
                name,
            )


def _had_reason(operation: Operation, name: str, history: History) -> bool:
    since, until = operation.requested_at, operation.answered_at
    home, tree = operation.session.broker, history.tree
    # There and back, to the farthest broker, and once more for what it had to wait for.
    widest_s = 4 * len(tree.brokers) * history.hop_s
    if operation.timeout_s <= widest_s or history.jumps[home].meets(since, until):
        return True
    if not history.disturbed[operation.session.instance].meets(since, until):
        # The answer came at once, so what was missing was missing just before.
        since = max(since, until - widest_s - INQUIRY_S)
    for beyond in (*tree.path(home, name), *tree.behind(home, name)):
        if history.disturbed[beyond].meets(since, until):
            return True
        if any(
            history.disturbed[edge].meets(since, until) for edge in tree.edges_between(home, beyond)
        ):
            return True
    return False
