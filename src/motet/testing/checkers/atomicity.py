"""A committed transaction takes effect completely, an aborted one not at all. It has one outcome,
the same for all clients. At most one transaction per client and key is committed.

Every event of a committed transaction has a tick in the log of its publisher's broker; no event of
another one has. Every participant that is still connected was told the outcome. The checkers of
routing tables check that begun entries exist and ended ones are gone.

Excused: a participant's broker, the root, or a broker between them has lost its state. But an
aborted transaction may have a cut only if a neighbour of the root was away before the root lost its
state; otherwise all of them knew the decision.
"""

from __future__ import annotations

from motet.audit.records import ABORTED, COMMITTED, DONE, EXPIRED, RUNNING, UNKNOWN, Deal
from motet.testing.checkers.excuses import is_cut_off, is_decided_again, root_forgot
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History


def check(history: History) -> CheckResult:
    verdict = CheckResult("atomicity")
    cut = {each.tx for each in history.cuts}
    for deal in history.deals.values():
        _check_words(history, deal, verdict)
        _check_events(history, deal, verdict)
        if deal.outcome == ABORTED:
            undone = deal.id not in cut or is_decided_again(history, deal)
            verdict.expect(undone, "{} was aborted, but has a cut", deal)
        _check_audience(history, deal, verdict)
    _check_keys(history, verdict)
    return verdict


def _check_words(history: History, deal: Deal, verdict: CheckResult) -> None:
    said = [told for told in deal.told if told.outcome in (COMMITTED, ABORTED)]
    for told in said[1:]:
        if not verdict.holds(told.outcome == said[0].outcome or root_forgot(history, deal)):
            verdict.violated(
                f"{deal} was reported {said[0].outcome} to {said[0].who} at {said[0].at:.4f} s, "
                f"but {told.outcome} to {told.who} at {told.at:.4f} s"
            )
    numbers = {told.number for told in said if told.number}
    verdict.expect(
        len(numbers) <= 1 or root_forgot(history, deal), "{} has numbers {}", deal, numbers
    )
    for told in deal.told:
        if told.outcome == RUNNING:
            if not verdict.holds(told.asked_at <= deal.answered_at):
                verdict.violated(
                    f"{deal} was committed by {deal.answered_at:.4f} s, but reported in progress "
                    f"to {told.who} at {told.at:.4f} s"
                )
        elif told.outcome == EXPIRED and said and said[0].at <= told.asked_at:
            knew = f"{deal} was {said[0].outcome}"
            text = "{}, but was reported unknown to {} at {:.4f} s"
            verdict.expect(root_forgot(history, deal, told.at), text, knew, told.who, told.at)


def _check_events(history: History, deal: Deal, verdict: CheckResult) -> None:
    for deed in deal.deeds:
        event = deed.event
        if event is None:
            continue
        if deal.committed and deed.answer == DONE:
            if not verdict.holds(bool(event.tick) or is_cut_off(history, deal, deed.session)):
                verdict.violated(f"{deal} is committed, but {event} was never published")
        elif deal.outcome == ABORTED:
            verdict.expect(not event.tick, "{} was aborted, but {} was published", deal, event)


def _check_audience(history: History, deal: Deal, verdict: CheckResult) -> None:
    """Every participant is told the outcome, except clients whose operations were rejected."""
    if deal.outcome == UNKNOWN:
        return
    deeds = [deed for deed in deal.deeds if deed.answer not in ("TransactionOver", "NotInvited")]
    if deal.outcome == ABORTED:  # clients that an aborted plan names are not told
        deeds = [deed for deed in deeds if not deed.planned]
    for session, process in dict.fromkeys((deed.session, deed.process) for deed in deeds):
        if (
            session in history.living
            and process in history.present
            and not verdict.holds(
                (session.client, session.epoch) in deal.heirs or is_cut_off(history, deal, session)
            )
        ):
            verdict.violated(
                f"{deal} is {deal.outcome}, but its participant {session.client} was never told"
            )


def _check_keys(history: History, verdict: CheckResult) -> None:
    done: dict[tuple[str, str], Deal] = {}
    for deal in history.deals.values():
        if not deal.key or not deal.committed:
            continue
        key = (deal.session.client, deal.key)
        other = done.setdefault(key, deal)
        if not verdict.holds(other is deal or root_forgot(history, other)):
            verdict.violated(
                f"{other} and {deal} are both committed, with the same key {deal.key!r} of "
                f"{deal.session.client}"
            )
