"""Every subscription sees the events of one publisher's session in the order of publishing."""

from __future__ import annotations

from motet.testing.checkers.verdict import Verdict
from motet.testing.history import Event, History


def check(history: History) -> Verdict:
    verdict = Verdict("order")
    last: dict[tuple[int, int, str, str], Event] = {}
    for delivery in history.deliveries:
        event = delivery.event
        if event is None or event.session is None:
            continue
        key = (delivery.instance, delivery.handle, event.client, event.session.epoch)
        before = last.get(key)
        if before is not None:
            verdict.expect(
                before.position <= event.position,
                "{} came after {} at {:.4f} s for {}",
                event,
                before,
                delivery.at,
                delivery.operation,
            )
        last[key] = event
    return verdict
