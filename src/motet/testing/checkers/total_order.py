"""Sessions in total order see exactly-once events in one order.

Any two of them see any two events that both get in the same order; and each one's events come in
the order of their places, tick and pubend, which are the same for everybody. Nothing is excused:
an event may be missing, and other checkers ask why, but none may be out of order.
"""

from __future__ import annotations

from itertools import combinations, pairwise

from motet.testing.checkers.verdict import Verdict
from motet.testing.history import Delivery, Event, History, Session

Seen = dict[Event, Delivery]
"""What a session was given, each event once, in the order in which it came."""


def check(history: History) -> Verdict:
    verdict = Verdict("total-order")
    seen: dict[Session, Seen] = {}
    for delivery in history.deliveries:
        session, event = delivery.session, delivery.event
        if session is not None and session.total_order and event is not None and event.sure:
            seen.setdefault(session, {}).setdefault(event, delivery)
    for session, given in seen.items():
        _check_places(session, given, verdict)
    for one, other in combinations(seen, 2):
        _check_pair(one, seen[one], other, seen[other], verdict)
    return verdict


def _check_places(session: Session, given: Seen, verdict: Verdict) -> None:
    for (before, first), (event, second) in pairwise(given.items()):
        verdict.expect(
            (first.tick, first.pubend) < (second.tick, second.pubend),
            "{} at {} came after {} at {} to {} in {}",
            event,
            (second.tick, second.pubend),
            before,
            (first.tick, first.pubend),
            session.client,
            session.epoch,
        )


def _check_pair(one: Session, seen: Seen, other: Session, also: Seen, verdict: Verdict) -> None:
    rank = {event: at for at, event in enumerate(also)}
    common = [event for event in seen if event in rank]
    for before, event in pairwise(common):
        verdict.expect(
            rank[before] < rank[event],
            "{} came before {} to {}, and after it to {}",
            before,
            event,
            f"{one.client} in {one.epoch}",
            f"{other.client} in {other.epoch}",
        )
