"""Definition 3.4: a transaction's operations have one order, and so have all transactions.

In every log, each transaction has one cut, and cuts come in the order of their numbers, which are
the same in all logs. Its events follow its cut, nothing between them, in the order of the
operations; a plan's own dependencies are obeyed. Of its own events a subscription that it begins
gets those behind it, and no other; one that it ends gets those before it, and no other.

That something is missing is excused as in `exactly_once`; that something is there which must not
be, never is.
"""

from __future__ import annotations

from motet.testing.checkers import excuses
from motet.testing.checkers.verdict import Verdict
from motet.testing.deals import Deal, Deed
from motet.testing.history import DONE, Cut, Event, History, Operation


def check(history: History) -> Verdict:
    verdict = Verdict("transaction-order")
    cuts = _check_cuts(history, verdict)
    arrived = excuses.arrivals(history)
    for deal in history.deals.values():
        _check_block(deal, cuts, verdict)
        if deal.committed:
            _check_own(history, deal, arrived, verdict)
    return verdict


def _check_cuts(history: History, verdict: Verdict) -> dict[tuple[str, str], Cut]:
    cuts: dict[tuple[str, str], Cut] = {}
    numbers: dict[str, Cut] = {}
    logs: dict[str, dict[int, Cut]] = {}
    for cut in history.cuts:
        other = cuts.setdefault((cut.tx, cut.pubend), cut)
        verdict.expect(
            other.tick == cut.tick,
            "{} has cut for {} at tick {} and again at tick {}",
            cut.pubend,
            cut.tx,
            other.tick,
            cut.tick,
        )
        known = numbers.setdefault(cut.tx, cut)
        verdict.expect(
            known.number == cut.number,
            "{} has number {} in {} and {} in {}",
            cut.tx,
            known.number,
            known.pubend,
            cut.number,
            cut.pubend,
        )
        logs.setdefault(cut.pubend, {})[cut.tick] = cut
    for pubend, found in logs.items():
        last: Cut | None = None
        for _, cut in sorted(found.items()):
            verdict.expect(
                last is None or last.number < cut.number or _was_away(history, cut),
                "{} cuts for {}, number {}, behind {}, number {}",
                pubend,
                cut.tx,
                cut.number,
                last.tx if last else "",
                last.number if last else 0,
            )
            last = cut
    return cuts


def _was_away(history: History, cut: Cut) -> bool:
    """The root has lost its state, or the log's broker has missed the decision: it obeys late."""
    path = history.tree.path(history.root, cut.pubend.rpartition(".")[0])
    deal = history.deals.get(cut.tx)
    since = deal.at if deal is not None else 0.0
    return history.forgot(path, since, cut.at) or history.forgot(path[:1], 0.0, cut.at)


def _check_block(deal: Deal, cuts: dict[tuple[str, str], Cut], verdict: Verdict) -> None:
    blocks: dict[str, list[Deed]] = {}
    for deed in deal.deeds:
        if deed.event is not None and deed.event.tick:
            blocks.setdefault(deed.event.pubend, []).append(deed)
    for pubend, deeds in blocks.items():
        deeds.sort(key=lambda deed: deed.order)
        cut = cuts.get((deal.id, pubend))
        ticks = [_event(deed).tick for deed in deeds]
        verdict.expect(
            cut is not None and ticks == list(range(cut.tick + 1, cut.tick + len(ticks) + 1)),
            "{} has its events at ticks {} of {}, which has cut for it at {}",
            deal,
            ticks,
            pubend,
            cut.tick if cut else "no tick",
        )
        places = {deed.order: _event(deed).tick for deed in deeds}
        for first, then in deal.before:
            if first in places and then in places:
                verdict.expect(
                    places[first] < places[then],
                    "{} has step {} behind step {} in {}, against its plan",
                    deal,
                    first,
                    then,
                    pubend,
                )


def _event(deed: Deed) -> Event:
    assert deed.event is not None
    return deed.event


def _check_own(
    history: History,
    deal: Deal,
    arrived: set[tuple[Event | None, Operation | None]],
    verdict: Verdict,
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
            verdict.expect(owed or not came, "{} came for {}, against its order", deed, operation)
            if owed and not came and event.pubend:
                _check_missing(history, deed, operation, since, verdict)


def _check_missing(
    history: History, deed: Deed, operation: Operation, since: Deed | None, verdict: Verdict
) -> None:
    """An event of the same transaction has not come for a subscription that it is for."""
    event, deal = _event(deed), deed.deal
    start = history.starts.get((operation.id, event.pubend))
    is_known = operation.id in event.audience and start is not None and start < event.tick
    if not is_known and (since is None or not _was_effective(operation, deed)):
        return
    if operation.answer != DONE or not excuses.stayed(history, operation):
        return
    if operation.gone and operation.finished_at == float("inf"):
        return  # it was taken back later, and nobody can say how far it had come
    verdict.expect(
        excuses.is_told_lost(history, event, operation.session)
        or excuses.pubend_forgot(history, event, operation, min(deal.at, operation.requested_at)),
        "{} never came for {}, which is before it",
        deed,
        operation,
    )


def _was_effective(operation: Operation, deed: Deed) -> bool:
    """Everybody on the way had the subscription when the event was staged, and the advertisement
    that carries it had been effective before."""
    return operation.answered_at <= deed.at and any(
        each.kind == "advertise"
        and each.deal is None
        and each.effective_at <= operation.requested_at
        and each.ended_at > deed.at
        and each.filter is not None
        and each.filter.matches(_event(deed).attributes)
        for each in deed.session.operations.values()
    )
