"""A hosted client continues with its last checkpoint, and each event takes effect once.

The state that a copy is given is that of the checkpoint which it is said to be, and no older one
than that which any copy was told to be durable. In the end the state has each event once, those of
one publisher in order; everything published upon these events is published, and nothing published
upon events that are not in the state. `exactly_once` checks that all events are in it.

Excused: the state is lost with its session, if a broker has lost its state or a link was given up.
"""

from __future__ import annotations

from motet.audit.records import EventRecord
from motet.testing.checkers import order
from motet.testing.checkers.result import CheckResult
from motet.testing.history import HandledRecord, History, HostedRecord


def check(history: History) -> CheckResult:
    verdict = CheckResult("checkpoints")
    forgot = history.forgot(history.tree.brokers, 0.0)
    delivered = {each.event for each in history.deliveries}
    for hosted in history.hosted.values():
        _check_starts(hosted, verdict, forgot=forgot)
        _check_once(hosted, verdict)
        taken = [each for handled in hosted.handled for each in handled.deliveries]
        order.check_sequence(history, taken, lambda each: each.operation, verdict)
        for handled in hosted.handled:
            for event in handled.outputs:
                is_out = event.fate == "accepted" or forgot
                text = "{} was never published, but {} has taken effect"
                verdict.expect(is_out, text, event, handled)
        for handled in hosted.undone:
            _check_undone(handled, delivered, verdict)
    return verdict


def _check_starts(hosted: HostedRecord, verdict: CheckResult, *, forgot: bool) -> None:
    for start in hosted.starts:
        verdict.expect(start.is_right, "{} has another state than that checkpoint", start)
        verdict.expect(
            start.number >= start.kept, "{}, although checkpoint {} was durable", start, start.kept
        )
        verdict.expect(forgot or not start.is_anew, "{}, although there was a state", start)


def _check_once(hosted: HostedRecord, verdict: CheckResult) -> None:
    seen: set[tuple[str, int]] = set()
    for handled in hosted.handled:
        for delivery in handled.deliveries:
            if delivery.event is not None:
                key = (str(delivery.operation), delivery.event.number)
                verdict.expect(key not in seen, "{} is twice in its state", handled)
                seen.add(key)


def _check_undone(
    handled: HandledRecord, delivered: set[EventRecord | None], verdict: CheckResult
) -> None:
    for event in handled.outputs:
        is_out = bool(event.tick) or event in delivered
        verdict.expect(not is_out, "{} was published, but {} has not taken effect", event, handled)
