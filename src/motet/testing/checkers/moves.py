"""Every move is answered once. A done one has brought the session where the client was told, in the
same epoch; a refused one has changed nothing, and had a reason. At rest no broker keeps anything of
a move: no pin, doubt, transit or residue.

Until a move is decided, no broker writes anything because of it, except, when it is refused, the
requests that its client has made meanwhile and what they cause. The move of a client without
advertisements is told to brokers on its path only, so the tables of all others stay as they are,
unless the session ends, or an advertisement crosses the move, or one that has waited for
acknowledgements is over in the same step. Its subscriptions are sent to an overlapping
advertisement from where both meet; one that was sent before the target had heard of it is taken
back with the news of the arrival, and comes again from there.

Reasons for a refusal: an unknown broker, a short timeout, transactions, an operator's order for the
same client, an unadvertisement of the client that waits for slow subscribers, or trouble at the
client or between the two brokers. Also trouble anywhere, if the client had a request open, or had
moved before: a request waits for all brokers, and so does the first publication after a move. An
epoch may change if the client had trouble, or did not wait for its session, or if the clock jumped
where its session waited for it: the lease ends early. A client may give up,
for the same reasons, if its own broker does not tell it in time. Clients that were killed, or have
left, may be without an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import get_args

from motet.audit.records import DONE, MoveRecord
from motet.model import Filter
from motet.protocol.contract import Input, Output, Received, TimerFired
from motet.protocol.delivery.facts import AdvertisementOver, DeliveryFact
from motet.protocol.hosted.messages import HostedHalted
from motet.protocol.link.facts import NeighbourLost
from motet.protocol.link.messages import Control, LinkHello
from motet.protocol.mobility.facts import MoveDecided
from motet.protocol.mobility.messages import (
    MoveCommit,
    MoveDone,
    MoveOffer,
    MoveOrder,
    MoveOrdered,
    MoveRefusal,
    MoveReply,
    MoveRequest,
)
from motet.protocol.routing.messages import (
    Advertise,
    ClientGone,
    ClientHere,
    Rehome,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.session.facts import RequestReceived
from motet.protocol.transactions.facts import TransactionFact
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
UNDECIDED = (MoveRequest, MoveOrder, MoveOffer, MoveReply, HostedHalted)
"""Frames upon which a move may be refused, or come nearer to its decision."""

OF_TABLES = (
    *(Advertise, Unadvertise, Subscribe, Unsubscribe),
    *(ClientHere, ClientGone, Rehome),
)
INCIDENTAL = (*get_args(DeliveryFact), *get_args(TransactionFact))
"""Facts of streams and transactions: what they wait for may come true in any step."""


class MoveWatch:
    """Called at every step of a broker, because histories do not have what brokers write."""

    def __init__(self) -> None:
        self.verdict = CheckResult("moves")
        self._paths: dict[tuple[str, str, int], tuple[str, ...]] = {}
        """Of moves of clients without advertisements."""

    def step(
        self,
        broker: str,
        given: Input,
        out: Output,
        name_of: Callable[[int], str],
        attracts: Callable[[str, Filter], bool],
        now: float,
    ) -> None:
        """`name_of` returns the peer at the other end of a connection, and `attracts` whether this
        broker has an advertisement from a neighbour that overlaps a filter."""
        facts = [fact.body for fact in out.persist]
        is_decided = any(type(fact) is MoveDecided for fact in facts)
        if _is_undecided(given) and not is_decided:
            refuses = any(map(_is_refusal, (frame for _, frame in out.deliver)))
            kinds = [type(fact) for fact in facts]
            for what in _unexpected(kinds, refuses):
                self.verdict.violated(f"{broker} writes {what} for an undecided move at {now}")
            self.verdict.checked += 1
        control = [(number, each) for number, each in out.send if isinstance(each, Control)]
        if type(given) is Received and type(given.frame) is LinkHello:
            return  # what the neighbour has missed is sent again
        if is_decided and len(facts) == 1:
            sent = (message for _, frame in control for message in frame.messages)
            cause: object = next((each for each in sent if type(each) is MoveCommit), None)
        elif type(given) is Received and type(given.frame) is Control:
            messages = given.frame.messages
            cause = messages[0] if len(messages) == 1 else None
        else:
            return
        path = () if _ends(cause, control) else self._path_of(cause)
        over = {fact.target for fact in facts if type(fact) is AdvertisementOver}
        for number, frame in control if path else ():
            aside = name_of(number)
            told = [
                each
                for each in frame.messages
                if type(each) in OF_TABLES
                and not (type(each) is Subscribe and attracts(aside, each.filter))
                and not (type(each) is Unadvertise and each.target in over)
            ]
            if not self.verdict.holds(aside in path or not told):
                what = ", ".join(type(each).__name__ for each in told)
                text = f"{broker} tells {aside}, off the path {'-'.join(path)}, of a move at {now}"
                self.verdict.violated(f"{text}: {what}")

    def _path_of(self, cause: object) -> tuple[str, ...]:
        """The path of a move that concerns no other brokers; empty if it may."""
        if type(cause) is MoveCommit and not cause.advertisements:
            self._paths[cause.client, cause.epoch, cause.number] = cause.path
            return cause.path
        if type(cause) is MoveDone:
            return self._paths.get((cause.client, cause.epoch, cause.number), ())
        return ()


def _ends(cause: object, control: Iterable[tuple[int, Control]]) -> bool:
    """Has the session ended with its move? Everybody hears of that."""
    return type(cause) is MoveCommit and any(
        type(each) is ClientGone and (each.client, each.epoch) == (cause.client, cause.epoch)
        for _, frame in control
        for each in frame.messages
    )


def _is_undecided(given: Input) -> bool:
    if type(given) is TimerFired:
        return given.key[:2] == ("move", "offer")
    return type(given) is Received and type(given.frame) in UNDECIDED


def _unexpected(kinds: Iterable[type], refuses: bool) -> Iterator[str]:
    """The facts that an undecided move has no reason for. A refused one lets the requests through
    that its client has made meanwhile, and their messages may be too many for a neighbour that is
    away."""
    allowed: tuple[type, ...] = INCIDENTAL
    for kind in kinds:
        if refuses and kind is RequestReceived:
            allowed = (*INCIDENTAL, RequestReceived, NeighbourLost)
        if kind not in allowed:
            yield kind.__name__


def _is_refusal(frame: object) -> bool:
    return type(frame) is MoveRefusal or (type(frame) is MoveOrdered and bool(frame.error))


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
    if _may_have_ended(history, move):
        return True
    # One that is on its way is lost with a link that starts from scratch, or a broker's state.
    homes = [each for each in (move.before[0], move.after[0], move.to) if each is not None]
    known = [each for each in homes if each in history.tree.brokers]
    return history.forgot(known, since, until)


def _may_have_ended(history: History, move: MoveRecord) -> bool:
    """Was the client still on its way to its session when it asked, and has the clock jumped where
    the session waited for it?"""
    travels, at = history.travels[move.instance], move.at
    if not travels.meets(at, at):
        return False
    sent_on_at, welcomed_at = travels.begin_of(at, at), travels.end_of(at, at)
    return any(
        history.jumps[stay.broker].meets(stay.since, min(welcomed_at, stay.until))
        for stay in history.stays[move.client, move.before[1] or ""]
        if stay.left_at > sent_on_at
    )


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
