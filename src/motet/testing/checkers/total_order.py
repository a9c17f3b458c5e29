"""Sessions in total order get exactly-once events in one order.

Any two of them get any two common events in the same order, and each gets its events in the order
of their places, tick and pubend, which are the same for all. Nothing is excused: other checkers
check for missing events, but no event may be out of order.
"""

from __future__ import annotations

from itertools import combinations, pairwise

from motet.audit.records import DeliveryRecord, EventRecord, SessionRecord
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History

Seen = dict[EventRecord, DeliveryRecord]
"""The events that a session was given, each once, in order of arrival."""


def check(history: History) -> CheckResult:
    verdict = CheckResult("total-order")
    seen: dict[SessionRecord, Seen] = {}
    for delivery in history.deliveries:
        session, event = delivery.session, delivery.event
        if session is not None and session.total_order and event is not None and event.sure:
            seen.setdefault(session, {}).setdefault(event, delivery)
    for session, given in seen.items():
        _check_places(session, given, verdict)
    for one, other in combinations(seen, 2):
        _check_pair(one, seen[one], other, seen[other], verdict)
    return verdict


def _check_places(session: SessionRecord, given: Seen, verdict: CheckResult) -> None:
    for (before, first), (event, second) in pairwise(given.items()):
        if not verdict.holds((first.tick, first.pubend) < (second.tick, second.pubend)):
            verdict.violated(
                f"{event} at {(second.tick, second.pubend)} was delivered after {before} at "
                f"{(first.tick, first.pubend)} to {session.client} in {session.epoch}"
            )


def _check_pair(
    one: SessionRecord, seen: Seen, other: SessionRecord, also: Seen, verdict: CheckResult
) -> None:
    rank = {event: at for at, event in enumerate(also)}
    common = [event for event in seen if event in rank]
    for before, event in pairwise(common):
        if not verdict.holds(rank[before] < rank[event]):
            verdict.violated(
                f"{before} was delivered before {event} to {one.client} in {one.epoch}, but after "
                f"it to {other.client} in {other.epoch}"
            )
