"""Every move is answered once. A done one has brought the session where the client was told, in the
same epoch; a refused one has changed nothing, and had a reason. At rest no broker keeps anything of
a move: no pin, doubt, transit or residue.

Reasons for a refusal: an unknown broker, a short timeout, transactions, an operator's order for the
same client, an unadvertisement of the client that waits for slow subscribers, or trouble at the
client or between the two brokers. Also trouble anywhere, if the client had a request open, or had
moved before: a request waits for all brokers, and so does the first publication after a move. An
epoch may change if the client had trouble, or did not wait for its session. A client may give up,
for the same reasons, if its own broker does not tell it in time. Clients that were killed, or have
left, may be without an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from motet.audit.records import DONE, MoveRecord
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History
from motet.testing.topology import Edge

OVER = ("ClosedError", "Fenced", "UnavailableError")
"""The client has ended, or has lost its session."""
GIVEN_UP = "NoAnswer"
"""Its broker did not tell a client in time how it decided: it may move or stay."""
LONGEST_S = 10.0
"""The longest time that an operator gives a move."""
SHORT_S = 2.0
"""Within this time a request that the session waits for may still be unanswered."""


def check(history: History) -> CheckResult:
    verdict = CheckResult("moves")
    for move in history.moves:
        if not verdict.holds(bool(move.answer) or move.instance in history.departed):
            verdict.violated(f"{move} was never answered")
        elif move.answer == DONE:
            _check_done(history, move, verdict)
        elif move.answer == GIVEN_UP:
            verdict.expect(_has_reason(history, move), "{} was given up, without a reason", move)
        elif move.answer and move.answer not in OVER:
            _check_refused(history, move, verdict)
    for order in history.orders:
        verdict.expect(len(order.answers) <= 1, "{} was answered {}", order, order.answers)
        verdict.expect(bool(order.answers) or order.lost, "{} was never answered", order)
    return verdict


def check_rest(leftovers: Mapping[str, Iterable[str]]) -> CheckResult:
    """What brokers still keep of moves, when everything is at rest."""
    verdict = CheckResult("moves")
    for broker, texts in leftovers.items():
        left = list(texts)
        verdict.expect(not left, "{} still keeps {}", broker, "; ".join(left))
    return verdict


def _check_done(history: History, move: MoveRecord, verdict: CheckResult) -> None:
    broker, epoch = move.after
    verdict.expect(move.to in history.tree.brokers, "{} is done, but there is no such broker", move)
    if not verdict.holds(move.value == broker == move.to):
        verdict.violated(f"{move} is done with {move.value!r}, but its client is at {broker}")
    if not verdict.holds(_may_change(history, move) or epoch == move.before[1]):
        verdict.violated(f"{move} is done, but {move.before[1]} has become {epoch}")
    stays = history.stays.get((move.client, epoch or ""), [])
    there = (s.since <= move.answered_at and s.broker == broker for s in stays)
    verdict.expect(any(there), "{} is done, but {} never had the session {}", move, broker, epoch)


def _check_refused(history: History, move: MoveRecord, verdict: CheckResult) -> None:
    told = f"{move} was refused ({move.answer}: {move.text})"
    verdict.expect(bool(move.text), "{}, without a text", told)
    (broker, epoch), (former, before) = move.after, move.before
    if not verdict.holds(epoch == before or _may_change(history, move)):
        verdict.violated(f"{told}, but {before} has become {epoch}")
    elif epoch == before and not verdict.holds(
        broker == former or _is_ordered(history, move) or _was_given_up(history, move)
    ):
        verdict.violated(f"{told}, but its client is at {broker} and no longer at {former}")
    verdict.expect(_has_reason(history, move), "{}, without a reason", told)


def _may_change(history: History, move: MoveRecord) -> bool:
    """Could the client get another session meanwhile?"""
    since, until = move.at, move.answered_at
    if move.impatient or history.disturbed[move.instance].meets(since, until):
        return True
    # A session that waits for its client ends early where the clock jumps.
    if move.to in history.jumps and history.jumps[move.to].meets(since, until):
        return True
    # One that is on its way is lost with a link that starts from scratch, or a broker's state.
    homes = [each for each in (move.before[0], move.after[0], move.to) if each is not None]
    known = [each for each in homes if each in history.tree.brokers]
    return history.forgot(known, since, until)


def _is_ordered(history: History, move: MoveRecord) -> bool:
    """Has an operator moved the client meanwhile, or begun to before?"""
    since, until = move.at - LONGEST_S, move.answered_at
    return any(o.client == move.client and since <= o.at <= until for o in history.orders)


def _unadvertises(history: History, move: MoveRecord) -> bool:
    """Does the client end an advertisement meanwhile? That takes until all subscribers, also slow
    and absent ones, have acknowledged its events, and a move waits for open requests."""
    sessions = (s for s in history.sessions if (s.client, s.epoch) == (move.client, move.before[1]))
    return any(
        operation.kind == "unadvertise"
        and operation.requested_at <= move.answered_at <= operation.answered_at + SHORT_S
        for session in sessions
        for operation in session.operations.values()
    )


def _was_given_up(history: History, move: MoveRecord) -> bool:
    """Has the client given up an earlier move to where it is now? Its broker may not know."""
    return any(
        each.instance == move.instance and each.answer == GIVEN_UP and each.to == move.after[0]
        for each in history.moves
        if each.at < move.at
    )


def _has_reason(history: History, move: MoveRecord) -> bool:
    former, since, until = move.before[0], move.at - SHORT_S, move.answered_at
    if move.to not in history.tree.brokers or former is None or move.timeout_s <= SHORT_S:
        return True
    if history.root and history.deals:
        return True
    if _is_ordered(history, move) or history.disturbed[move.instance].meets(since, until):
        return True
    if _unadvertises(history, move):
        return True
    if (held_since := _held_since(history, move)) is not None:
        places: list[str | Edge] = [*history.tree.brokers, *history.tree.edges]
        if any(history.disturbed[place].meets(held_since, until) for place in places):
            return True
    path = history.tree.path(former, move.to)
    edges = history.tree.edges_between(former, move.to)
    return (
        any(history.disturbed[broker].meets(since, until) for broker in path)
        or any(history.disturbed[edge].meets(since, until) for edge in edges)
        or any(history.jumps[broker].meets(since, until) for broker in path)
        or history.forgot(path, 0.0)
    )


def _held_since(history: History, move: MoveRecord) -> float | None:
    """Since when the client may have waited for any broker: it had moved before, or had a request
    open when it was refused."""
    former, epoch = move.before
    stays = history.stays.get((move.client, epoch or ""), [])
    here = [s.since for s in stays[1:] if s.broker == former and s.since <= move.answered_at]
    since = here[-1:]
    for session in history.sessions:
        if session.instance == move.instance and session.epoch == epoch:
            since += [
                operation.requested_at
                for operation in session.operations.values()
                if operation.requested_at <= move.answered_at <= operation.answered_at
            ]
    return min(since, default=None)
