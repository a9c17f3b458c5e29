"""Every subscription gets the events of one publisher's session in the order of publishing. Sure
and best-effort events are ordered separately, because the latter wait for no log. Events of one log
come in the order of their ticks, and a tick has the same event for every client. The order of
events of transactions is checked by `transaction_order`.

Past events that a subscription asks for come in the order of their log. Logs are read beside each
other, and some only when a later advertisement starts the subscription there. So if a publisher has
moved, such an event may come after later ones from another log. The same holds if the log of the
later ones has lost, and the client was told so, what it noted about the earlier ones; or if, after
the event was sent, a link between its log and the subscriber was given up or taken out of the
overlay: nobody waits for a log that is not in the overlay, and it may come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from motet.audit.records import DeliveryRecord, EventRecord
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History


def check(history: History) -> CheckResult:
    verdict = CheckResult("order")
    check_sequence(history, history.deliveries, lambda each: (each.instance, each.handle), verdict)
    _check_ticks(history, verdict)
    return verdict


def check_sequence(
    history: History,
    deliveries: Iterable[DeliveryRecord],
    receiver: Callable[[DeliveryRecord], object],
    verdict: CheckResult,
) -> None:
    """Are the events of each publisher's session in order, for each receiver?"""
    last: dict[tuple[object, str, str, bool], EventRecord] = {}
    for delivery in deliveries:
        event = delivery.event
        if event is None or event.session is None or event.deal is not None:
            continue  # events of transactions have an order of their own
        whose = (event.client, event.session.epoch, event.sure)
        key = (receiver(delivery), *whose)
        before = last.get(key)
        if before is not None and not verdict.holds(
            before.position <= event.position or _is_unordered(history, delivery, before)
        ):
            verdict.violated(
                f"{event} was delivered after {before} at {delivery.at:.4f} s to "
                f"{delivery.operation}"
            )
        if before is None or before.position < event.position:
            last[key] = event


def _is_unordered(history: History, delivery: DeliveryRecord, before: EventRecord) -> bool:
    """May an event come after a later one, because that one is in another log?"""
    if not delivery.tick or delivery.pubend == before.pubend:
        return False
    return (
        _is_past(history, delivery)
        or _is_lost_before(history, delivery, before)
        or _was_out(history, delivery)
    )


def _is_past(history: History, delivery: DeliveryRecord) -> bool:
    """Is the event older than the first start of the subscription in its log?"""
    operation = delivery.operation
    if operation is None or not operation.since:
        return False
    start = history.first_starts.get((operation.id, delivery.pubend))
    return start is not None and delivery.tick <= start


def _is_lost_before(history: History, delivery: DeliveryRecord, event: EventRecord) -> bool:
    """Was the receiver told that its log has lost something before this event?"""
    operation = delivery.operation
    return operation is not None and any(
        loss.instance == operation.session.instance
        and loss.pubend == event.pubend
        and loss.last < event.tick
        for loss in history.losses
    )


def _was_out(history: History, delivery: DeliveryRecord) -> bool:
    """Was a link on the way from the event's log forgotten after the event was sent?"""
    event, operation = delivery.event, delivery.operation
    if event is None or operation is None:
        return False
    log = delivery.pubend.rpartition(".")[0]
    homes = operation.session.homes(event.sent_at, delivery.at)
    return any(
        event.sent_at <= since <= delivery.at
        for edge in history.tree.edges_within((log, *homes))
        for since, _ in history.amnesia[edge]
    )


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
