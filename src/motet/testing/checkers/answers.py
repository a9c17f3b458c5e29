"""Every request and publication is answered once; a timeout names only brokers that had trouble.

Killed applications are not counted. A broker that is named as not reached must be another broker of
the overlay, and there must be a reason at that time: trouble on the path to it or behind it, a
broker on the path that asks again because it was unsure, a jump of the clock at the broker that
timed out, or a timeout shorter than a message needs through the overlay. A transaction that could
not begin in time needs a reason, too.
"""

from __future__ import annotations

from motet.audit.records import OperationRecord
from motet.testing.checkers.result import CheckResult
from motet.testing.history import Call, History
from motet.testing.topology import Edge

INQUIRY_S = 0.3
"""The longest time that a broker spends asking other brokers before it names one."""


GIVEN_UP = ("TimedOut", "Aborted")
"""Answers to a client that wants to begin a transaction, if brokers have waited in vain."""


def check(history: History) -> CheckResult:
    verdict = CheckResult("answers")
    for call in history.calls:
        what = f"{call.kind} of {call.client} at {call.at:.4f} s"
        verdict.expect(len(call.answers) <= 1, "{} was answered {}", what, call.answers)
        if call.instance not in history.departed:
            verdict.expect(bool(call.answers), "{} was never answered", what)
        if call.kind == "begin" and call.answers and call.answers[0][1] in GIVEN_UP:
            _check_begin(call, history, verdict)
    for event in history.events:
        if event.instance not in history.departed:
            verdict.expect(bool(event.fate), "the publisher never learned the result of {}", event)
    for session in history.sessions:
        for operation in session.operations.values():
            if operation.answer == "NotEffective":
                _check_blame(operation, history, verdict)
    return verdict


def _check_begin(call: Call, history: History, verdict: CheckResult) -> None:
    """A transaction begins in time if nothing is disturbed: a round trip to the root, and one of
    the root to all brokers."""
    until = call.answers[0][0]
    since = call.at - _widest_s(history)
    if until - call.at <= 2 * _widest_s(history) + INQUIRY_S:
        return  # the client did not wait that long
    places: list[int | str | Edge] = [call.instance, *history.tree.brokers, *history.tree.edges]
    verdict.expect(
        any(history.disturbed[place].meets(since, until) for place in places)
        or any(history.jumps[name].meets(since, until) for name in history.tree.brokers),
        "{} of {} at {:.4f} s was given up, and nothing was disturbed",
        call.kind,
        call.client,
        call.at,
    )


def _widest_s(history: History) -> float:
    """A round trip to the farthest broker, and another one for what that broker waited for."""
    return 4 * len(history.tree.brokers) * history.hop_s


def _check_blame(operation: OperationRecord, history: History, verdict: CheckResult) -> None:
    known = set(history.tree.brokers)
    # The answer of a former broker goes along if the client has moved meanwhile.
    homes = operation.session.homes(operation.requested_at, operation.answered_at)
    if len(homes) == 1:
        known -= set(homes)
    named = operation.missing
    verdict.expect(bool(named), "{} was not effective, but its error names no broker", operation)
    verdict.expect(
        known >= set(named),
        "the error of {} names {}, which are not all other brokers",
        operation,
        named,
    )
    for name in named:
        if name in known and not verdict.holds(_had_reason(operation, name, history)):
            verdict.violated(
                f"{operation} was not effective within {operation.timeout_s:g} s, and its error "
                f"names {name}, which had no fault"
            )


def _had_reason(operation: OperationRecord, name: str, history: History) -> bool:
    since, until = operation.requested_at, operation.answered_at
    homes = operation.session.homes(since, until)
    return any(_had_reason_at(home, operation, name, history) for home in homes)


def _had_reason_at(home: str, operation: OperationRecord, name: str, history: History) -> bool:
    since, until, tree = operation.requested_at, operation.answered_at, history.tree
    widest_s = _widest_s(history)
    if operation.timeout_s <= widest_s or history.jumps[home].meets(since, until):
        return True
    if not history.disturbed[operation.session.instance].meets(since, until):
        # The answer reached the client at once, so the trouble was shortly before it.
        since = max(since, until - widest_s - INQUIRY_S)
    path = tree.path(home, name)
    if any(history.unsure[each].meets(since, until) for each in path[:-1]):
        return True
    for beyond in (*path, *tree.behind(home, name)):
        if history.disturbed[beyond].meets(since, until):
            return True
        if any(
            history.disturbed[edge].meets(since, until) for edge in tree.edges_between(home, beyond)
        ):
            return True
    return False
