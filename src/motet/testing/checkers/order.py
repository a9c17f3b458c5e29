"""Every subscription sees the events of one publisher's session in the order of publishing: the
sure ones among each other, and the best-effort ones, which wait for no log and may be earlier. What
comes from one log comes in the order of its ticks, and everybody finds the same event on a tick.
Where events of transactions belong, `transaction_order` knows."""

from __future__ import annotations

from motet.testing.checkers.verdict import Verdict
from motet.testing.history import Event, History


def check(history: History) -> Verdict:
    verdict = Verdict("order")
    last: dict[tuple[int, int, str, str, bool], Event] = {}
    for delivery in history.deliveries:
        event = delivery.event
        if event is None or event.session is None or event.deal is not None:
            continue  # events of transactions have an order of their own
        whose = (event.client, event.session.epoch, event.sure)
        key = (delivery.instance, delivery.handle, *whose)
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
    _check_ticks(history, verdict)
    return verdict


def _check_ticks(history: History, verdict: Verdict) -> None:
    last: dict[tuple[int, int, str], int] = {}
    known: dict[tuple[str, int], Event | None] = {}
    for at, instance, handle, operation, event, _, pubend, tick, _ in history.deliveries:
        if not tick:
            continue
        before = last.get((instance, handle, pubend), 0)
        verdict.expect(
            before < tick,
            "{}, tick {} of {}, came after tick {} at {:.4f} s for {}",
            event,
            tick,
            pubend,
            before,
            at,
            operation,
        )
        last[instance, handle, pubend] = max(before, tick)
        other = known.setdefault((pubend, tick), event)
        verdict.expect(
            other is event, "tick {} of {} is {} and also {}", tick, pubend, other, event
        )
