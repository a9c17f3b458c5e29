"""Only events that were published, were advertised and match the subscription are delivered.

An event is in the advertised space if its session sent a matching advertisement before it and no
withdrawal before it: the link from client to broker keeps that order. Both acceptance and refusal
are right if the advertisement failed, because the time of its removal cannot be known from outside;
if the event was retransmitted after the withdrawal, because its broker had lost the event; if the
advertisement was lost with the broker, and no process is left to request it again; or if it begins
or ends in a transaction that may have been decided by then.

Events of transactions are checked by `atomicity`. A sure event that was accepted before a
subscription was requested must not reach it, unless the subscription reaches back.
"""

from __future__ import annotations

from motet.audit.records import EventRecord
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History


def check(history: History) -> CheckResult:
    verdict = CheckResult("soundness")
    spaces: dict[EventRecord, tuple[bool, bool]] = {}
    for made in history.events:
        if made.session is None:
            continue
        if made.deal is not None:
            spaces[made] = (True, True)
            continue
        surely, maybe = spaces[made] = _advertised(made)
        if made.fate == "refused":
            verdict.expect(not surely, "{} was refused, although it was advertised", made)
        elif made.fate == "accepted":
            verdict.expect(maybe, "{} was accepted, although it was never advertised", made)
    for delivery in history.deliveries:
        event, operation = delivery.event, delivery.operation
        who = f"client {delivery.instance}"
        if event is None:
            verdict.expect(False, "{} received an event that was never published", who)
        elif operation is None or operation.filter is None:
            verdict.expect(False, "{} received {} for no subscription of its session", who, event)
        else:
            if not verdict.holds(
                operation.filter.matches(event.attributes) and delivery.publisher == event.client
            ):
                verdict.violated(f"{event} was delivered to {operation} as of {delivery.publisher}")
            if not verdict.holds(
                spaces.get(event, (False, False))[1] and event.fate not in ("refused", "void")
            ):
                verdict.violated(
                    f"{event} was delivered to {operation}, although it was not advertised, or "
                    "never published"
                )
            if (
                delivery.tick
                and not operation.since
                and event.fate == "accepted"
                and event.deal is None
            ) and not verdict.holds(event.settled_at >= operation.requested_at):
                verdict.violated(
                    f"{event}, published by {event.settled_at:.4f} s, was delivered to "
                    f"{operation}, which was requested later"
                )
    return verdict


def _advertised(event: EventRecord) -> tuple[bool, bool]:
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
