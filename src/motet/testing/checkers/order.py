"""Every subscription gets the events of one publisher's session in the order of publishing. Sure
and best-effort events are ordered separately, because the latter wait for no log. Events of one log
come in the order of their ticks, and a tick has the same event for every client. The order of
events of transactions is checked by `transaction_order`."""

from __future__ import annotations

from motet.audit.records import EventRecord
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History


def check(history: History) -> CheckResult:
    verdict = CheckResult("order")
    last: dict[tuple[int, int, str, str, bool], EventRecord] = {}
    for delivery in history.deliveries:
        event = delivery.event
        if event is None or event.session is None or event.deal is not None:
            continue  # events of transactions have an order of their own
        whose = (event.client, event.session.epoch, event.sure)
        key = (delivery.instance, delivery.handle, *whose)
        before = last.get(key)
        if before is not None and not verdict.holds(before.position <= event.position):
            verdict.violated(
                f"{event} was delivered after {before} at {delivery.at:.4f} s to "
                f"{delivery.operation}"
            )
        last[key] = event
    _check_ticks(history, verdict)
    return verdict


def _check_ticks(history: History, verdict: CheckResult) -> None:
    last: dict[tuple[int, int, str], int] = {}
    known: dict[tuple[str, int], EventRecord | None] = {}
    for at, instance, handle, operation, event, _, pubend, tick, _ in history.deliveries:
        if not tick:
            continue
        before = last.get((instance, handle, pubend), 0)
        if not verdict.holds(before < tick):
            verdict.violated(
                f"{event}, tick {tick} of {pubend}, was delivered after tick {before} at "
                f"{at:.4f} s to {operation}"
            )
        last[instance, handle, pubend] = max(before, tick)
        other = known.setdefault((pubend, tick), event)
        verdict.expect(
            other is event, "tick {} of {} is {} and also {}", tick, pubend, other, event
        )
