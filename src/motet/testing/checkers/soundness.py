"""Nothing is delivered but what was published, was advertised, and matches its subscription.

An event lies in the advertised space if its session sent a matching advertisement before it and did
not send the withdrawal before it: the link from client to broker keeps that order. Where an
advertisement failed, the broker took it back at a moment that nobody outside can know; then both
acceptance and refusal are right. So they are for an event that had to be sent again, because its
broker had lost it, after the withdrawal, which it had not; or whose advertisement was lost with the
broker, and nobody is left who would ask for it again; or whose advertisement begins or ends with a
transaction that may have been decided by then. What a transaction publishes is its own business:
see `atomicity`. A sure event that was answered before a subscription was asked for is none of its
business, unless it reaches back.
"""

from __future__ import annotations

from motet.testing.checkers.verdict import Verdict
from motet.testing.history import Event, History


def check(history: History) -> Verdict:
    verdict = Verdict("soundness")
    spaces: dict[Event, tuple[bool, bool]] = {}
    for made in history.events:
        if made.session is None:
            continue
        if made.deal is not None:
            spaces[made] = (True, True)
            continue
        surely, maybe = spaces[made] = _advertised(made)
        if made.fate == "refused":
            verdict.expect(not surely, "{} was refused, though it was advertised", made)
        elif made.fate == "accepted":
            verdict.expect(maybe, "{} was accepted, though it was never advertised", made)
    for delivery in history.deliveries:
        event, operation = delivery.event, delivery.operation
        who = f"client {delivery.instance}"
        if event is None:
            verdict.expect(False, "{} got an event that nobody published", who)
        elif operation is None or operation.filter is None:
            verdict.expect(False, "{} got {} for no subscription of its session", who, event)
        else:
            verdict.expect(
                operation.filter.matches(event.attributes) and delivery.publisher == event.client,
                "{} was delivered as {}'s for {}",
                event,
                delivery.publisher,
                operation,
            )
            verdict.expect(
                spaces.get(event, (False, False))[1] and event.fate not in ("refused", "void"),
                "{} was delivered for {}, though it was not advertised, or never published",
                event,
                operation,
            )
            if (
                delivery.tick
                and not operation.since
                and event.fate == "accepted"
                and event.deal is None
            ):
                verdict.expect(
                    event.settled_at >= operation.requested_at,
                    "{}, published by {:.4f} s, was delivered for {}, which is younger",
                    event,
                    event.settled_at,
                    operation,
                )
    return verdict


def _advertised(event: Event) -> tuple[bool, bool]:
    """Whether an event lay in its session's space when it was sent: surely, and maybe."""
    surely = maybe = False
    assert event.session is not None
    forgotten = event.session.forgotten
    for operation in (*event.session.operations.values(), *forgotten):
        if operation.kind != "advertise" or operation.filter is None:
            continue
        if not operation.position < event.position < operation.ended_position:
            continue
        if operation.filter.matches(event.attributes):
            maybe = True
            ended = min(operation.ended_position, operation.doubted_position)
            ended_meanwhile = event.last_position > ended
            certain = operation.answer in ("Done", "") and operation not in forgotten
            certain = certain and operation.deal is None
            surely = surely or (certain and not ended_meanwhile)
    return surely, maybe
