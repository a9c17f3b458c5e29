"""Definition 3.4: the operations of a transaction have one order, and so have all transactions.

In every log, each transaction has one cut, and cuts are in the order of their numbers, which are
the same in all logs. A transaction's events follow its cut without a gap, in the order of the
operations; a plan's own dependencies are obeyed. A subscription that the transaction begins gets
exactly those of its events that come after it, and one that it ends exactly those that come before
it.

A missing event is excused as in `exactly_once`; an event that must not be there never is.
"""

from __future__ import annotations

from motet.audit.records import DONE, Deal, Deed, EventRecord, OperationRecord
from motet.testing.checkers import excuses
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History, LoggedCut


def check(history: History) -> CheckResult:
    verdict = CheckResult("transaction-order")
    cuts = _check_cuts(history, verdict)
    arrived = excuses.arrivals(history)
    for deal in history.deals.values():
        _check_block(deal, cuts, verdict)
        if deal.committed:
            _check_own(history, deal, arrived, verdict)
    return verdict


def _check_cuts(history: History, verdict: CheckResult) -> dict[tuple[str, str], LoggedCut]:
    cuts: dict[tuple[str, str], LoggedCut] = {}
    numbers: dict[str, LoggedCut] = {}
    logs: dict[str, dict[int, LoggedCut]] = {}
    for cut in history.cuts:
        other = cuts.setdefault((cut.tx, cut.pubend), cut)
        if not verdict.holds(other.tick == cut.tick):
            verdict.violated(
                f"{cut.pubend} has cut for {cut.tx} at tick {other.tick} and again at tick "
                f"{cut.tick}"
            )
        known = numbers.setdefault(cut.tx, cut)
        if not verdict.holds(known.number == cut.number):
            verdict.violated(
                f"{cut.tx} has number {known.number} in {known.pubend} and {cut.number} in "
                f"{cut.pubend}"
            )
        logs.setdefault(cut.pubend, {})[cut.tick] = cut
    for pubend, found in logs.items():
        last: LoggedCut | None = None
        for _, cut in sorted(found.items()):
            if not verdict.holds(
                last is None or last.number < cut.number or _was_away(history, cut)
            ):
                verdict.violated(
                    f"{pubend} cuts for {cut.tx}, number {cut.number}, after "
                    f"{last.tx if last else ''}, number {last.number if last else 0}"
                )
            last = cut
    return cuts


def _was_away(history: History, cut: LoggedCut) -> bool:
    """The root has lost its state, or the log's broker missed the decision and obeys late."""
    path = history.tree.path(history.root, cut.pubend.rpartition(".")[0])
    deal = history.deals.get(cut.tx)
    since = deal.at if deal is not None else 0.0
    return history.forgot(path, since, cut.at) or history.forgot(path[:1], 0.0, cut.at)


def _check_block(deal: Deal, cuts: dict[tuple[str, str], LoggedCut], verdict: CheckResult) -> None:
    blocks: dict[str, list[Deed]] = {}
    for deed in deal.deeds:
        if deed.event is not None and deed.event.tick:
            blocks.setdefault(deed.event.pubend, []).append(deed)
    for pubend, deeds in blocks.items():
        deeds.sort(key=lambda deed: deed.order)
        cut = cuts.get((deal.id, pubend))
        ticks = [_event(deed).tick for deed in deeds]
        if not verdict.holds(
            cut is not None and ticks == list(range(cut.tick + 1, cut.tick + len(ticks) + 1))
        ):
            verdict.violated(
                f"{deal} has its events at ticks {ticks} of {pubend}, but its cut there is at "
                f"{cut.tick if cut else 'no tick'}"
            )
        places = {deed.order: _event(deed).tick for deed in deeds}
        for first, then in deal.before:
            if first in places and then in places:
                text = "{} has step {} after step {} in {}, contrary to its plan"
                verdict.expect(places[first] < places[then], text, deal, first, then, pubend)


def _event(deed: Deed) -> EventRecord:
    assert deed.event is not None
    return deed.event


def _check_own(
    history: History,
    deal: Deal,
    arrived: set[tuple[EventRecord | None, OperationRecord | None]],
    verdict: CheckResult,
) -> None:
    begun = {deed.operation: deed for deed in deal.beginnings()}
    ended = {deed.operation: deed for deed in deal.endings()}
    for operation in dict.fromkeys((*begun, *ended)):
        assert operation is not None
        for deed in deal.events():
            event = _event(deed)
            if not event.tick or not excuses.matches(operation.filter, event):
                continue
            since, until = begun.get(operation), ended.get(operation)
            owed = (since is None or excuses.behind(deed, since)) and (
                until is None or excuses.behind(until, deed)
            )
            came = (event, operation) in arrived
            verdict.expect(
                owed or not came, "{} was delivered to {}, contrary to its order", deed, operation
            )
            if owed and not came and event.pubend:
                _check_missing(history, deed, operation, since, verdict)


def _check_missing(
    history: History,
    deed: Deed,
    operation: OperationRecord,
    since: Deed | None,
    verdict: CheckResult,
) -> None:
    """An event of the same transaction has not arrived at a subscription that is owed it."""
    event, deal = _event(deed), deed.deal
    start = history.starts.get((operation.id, event.pubend))
    is_known = operation.id in event.audience and start is not None and start < event.tick
    if not is_known and (since is None or not _was_effective(operation, deed)):
        return
    if operation.answer != DONE or not excuses.stayed(history, operation):
        return
    if operation.gone and operation.finished_at == float("inf"):
        return  # it was removed later; how far it had got is unknown
    if not verdict.holds(
        excuses.is_told_lost(history, event, operation.session)
        or excuses.pubend_forgot(history, event, operation, min(deal.at, operation.requested_at))
    ):
        verdict.violated(f"{deed} was never delivered to {operation}, which precedes it")


def _was_effective(operation: OperationRecord, deed: Deed) -> bool:
    """The subscription was effective when the event was staged, and an advertisement that matches
    the event had been effective before."""
    return operation.answered_at <= deed.at and any(
        each.kind == "advertise"
        and each.deal is None
        and each.effective_at <= operation.requested_at
        and each.ended_at > deed.at
        and each.filter is not None
        and each.filter.matches(_event(deed).attributes)
        for each in deed.session.operations.values()
    )
