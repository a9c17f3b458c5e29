"""Nothing of a transaction is visible before it is committed, and nothing of an aborted one ever.

Its events are delivered only after its coordinator has asked for the commit (or, of a plan, every
client has done its part) and after the log has the cut. The subscriptions that it begins get
nothing before that, and those of an aborted one nothing at all. Nothing is excused.
"""

from __future__ import annotations

from math import inf

from motet.audit.records import ABORTED, Deal, DeliveryRecord
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History


def check(history: History) -> CheckResult:
    verdict = CheckResult("visibility")
    cut_at: dict[tuple[str, str], float] = {}
    for cut in history.cuts:
        key = (cut.tx, cut.pubend)
        cut_at[key] = min(cut.at, cut_at.get(key, inf))
    for delivery in history.deliveries:
        event, operation = delivery.event, delivery.operation
        if event is not None and event.deal is not None:
            _check(event.deal, delivery, f"{event}", verdict)
            at = cut_at.get((event.deal.id, delivery.pubend), inf)
            if not verdict.holds(at <= delivery.at):
                verdict.violated(
                    f"{event} of {event.deal} was delivered at {delivery.at:.4f} s from "
                    f"{delivery.pubend}, which had not cut for it"
                )
        if operation is not None and operation.deal is not None:
            _check(operation.deal, delivery, f"{event} for {operation}", verdict)
    return verdict


def _check(deal: Deal, delivery: DeliveryRecord, what: str, verdict: CheckResult) -> None:
    if not verdict.holds(deal.ready_at <= delivery.at):
        verdict.violated(
            f"{what} was delivered at {delivery.at:.4f} s, but {deal} could not be committed "
            f"before {deal.ready_at:.4f} s"
        )
    verdict.expect(deal.outcome != ABORTED, "{} was delivered, but {} was aborted", what, deal)
