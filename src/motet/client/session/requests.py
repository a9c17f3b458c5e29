"""The requests of a client: made, numbered, answered once; and the registrations they result in.

This part of the client's machine does not handle events. An operation keeps its handle for the
life of the client; its number is valid in one session. What a transaction adds belongs to the
client once it is committed; what it ends stays until all events owed to it have arrived. Nothing of
an open transaction outlives its session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType

from motet import errors
from motet.client.session.state import (
    INVERSE,
    Concluded,
    Failure,
    Finished,
    Kind,
    Lapsed,
    Operation,
    ReceivedInvitation,
    Resolved,
    SessionState,
)
from motet.client.session.streams import Routes, Window
from motet.model import Filter
from motet.protocol.delivery.messages import Delivered
from motet.protocol.session.messages import (
    BeginRequest,
    ConsentRequest,
    Decided,
    Done,
    EndRequest,
    ExecuteRequest,
    Failed,
    Invited,
    Over,
    Request,
    StandingEntry,
    Tag,
    TxRequest,
)
from motet.protocol.session.state import GRANTED

MAX_REQUESTS = 1024
RENEWED_TIMEOUT_S = 10.0


class Requests:
    def __init__(self, session: SessionState, window: Window) -> None:
        self._session = session
        self._window = window
        self._handles = 0
        self._sequences = 0
        self.shown = 0
        """The broker may know requests up to this sequence."""
        self.answered_upto = 0
        """The broker has answered this request, so it has all before it."""
        self.unanswered: dict[int, Operation] = {}
        """By sequence, in the order they were made."""
        self.standing: dict[int, Operation] = {}
        """By handle: in force, and to be renewed in a new session."""
        self.subscribed: dict[int, Operation] = {}
        """By sequence: the subscriptions that deliveries go to."""
        self.routes = Routes(self.subscribed)
        self.on_forgotten: Callable[[Operation], None] | None = None
        """Called with each operation that can receive no more events."""

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def check_asking(self, kind: Kind) -> None:
        if self._session.state == "ended":
            client = self._session.client
            raise errors.ClosedError(f"cannot {kind}: the session of {client!r} has ended")
        if len(self.unanswered) >= MAX_REQUESTS:
            raise errors.MisuseError(f"more than {MAX_REQUESTS} requests are unanswered")

    def abandon(self, handle: int, undecided: Callable[[Operation], Tag | None]) -> None:
        """The caller no longer waits for this request; withdraw what it may have put in force, in
        the `undecided` transaction that it is part of."""
        # If it is in force, the answer came, but its caller was cancelled before reading it.
        operation = self.standing.get(handle) or self._awaited(handle)
        if operation is None:
            return
        if operation.target is not None and operation.tag is None:
            return  # the holder of its target must hear whether that has ended
        operation.awaited = False
        if operation.kind not in INVERSE or self._being_undone(operation):
            return
        self.standing.pop(handle, None)
        if operation.sequence > self.shown:
            self._unmake(operation)
        else:
            undo = INVERSE[operation.kind]
            wait_s, tag = operation.timeout_s, undecided(operation)
            self.issue(undo, None, operation, False, wait_s, awaited=False, tag=tag)

    def _awaited(self, handle: int) -> Operation | None:
        waiting = (o for o in self.unanswered.values() if o.handle == handle and o.awaited)
        return next(waiting, None)

    def _unmake(self, operation: Operation) -> None:
        """It was never sent, so its number can be reused: later requests move up."""
        behind = [o for o in self.unanswered.values() if o.sequence >= operation.sequence]
        for other in behind:
            del self.unanswered[other.sequence]
            self.subscribed.pop(other.sequence, None)
        self.routes.clear()
        self._sequences = operation.sequence - 1
        for other in behind[1:]:
            self._number(other)

    def issue(
        self,
        kind: Kind,
        wanted: Filter | None,
        target: Operation | None,
        wait: bool,
        timeout_s: float,
        awaited: bool = True,
        name: str = "",
        since: Mapping[str, int] = MappingProxyType({}),
        tag: Tag | None = None,
        asks: TxRequest | None = None,
    ) -> Operation:
        operation = Operation(
            *(self.next_handle(), kind, wanted, target, wait, timeout_s, self._window.made),
            awaited=awaited,
            name=name,
            since=dict(since),
            tag=tag,
            asks=asks,
        )
        self._number(operation)
        if self._session.state == "open":
            self.shown = self._sequences
            self._session.send.append(operation.frame())
        return operation

    def next_handle(self) -> int:
        self._handles += 1
        return self._handles

    def _number(self, operation: Operation) -> None:
        self._sequences += 1
        operation.sequence = self._sequences
        self.unanswered[operation.sequence] = operation
        if operation.kind == "subscribe":
            self.subscribed[operation.sequence] = operation

    def take_back(self, kind: Kind, target: int | None) -> Operation:
        """Stop renewing the operation."""
        operation = self.undoable(kind, target)
        self.standing.pop(operation.handle, None)
        return operation

    def undoable(self, kind: Kind, target: int | None) -> Operation:
        for operation in self._known():
            undoable = operation.handle == target and INVERSE.get(operation.kind) == kind
            if undoable and not self._being_undone(operation):
                return operation
        raise nothing_there(kind)

    def _known(self) -> Iterator[Operation]:
        return chain(self.standing.values(), self.unanswered.values())

    def _being_undone(self, operation: Operation) -> bool:
        """Certainly: a removal in a transaction is void if that aborts, and does not count."""
        others = self.unanswered.values()
        return operation.gone or any(
            other.target is operation and other.tag is None for other in others
        )

    # ── answers ──────────────────────────────────────────────────────────────────────────

    def resolve(self, operation: Operation, failure: Failure | None, value: str = "") -> None:
        if operation.awaited:
            operation.awaited = False
            self._session.happened.append(Resolved(operation.handle, failure, value))

    def _answered(self, sequence: int) -> Operation | None:
        """The operation that an answer is for; None if it was answered before."""
        if not 0 < sequence <= self._sequences:
            raise errors.ProtocolError(f"an answer to request {sequence}, which was never made")
        self.answered_upto = max(self.answered_upto, sequence)
        return self.unanswered.pop(sequence, None)

    def done(self, frame: Done) -> None:
        operation = self._answered(frame.sequence)
        if operation is None:
            return
        if operation.kind == "ask" or (operation.tag is not None and operation.target is not None):
            pass  # a removal in a transaction takes effect when that commits
        elif operation.target is not None:
            self.forget(operation.target)
        elif not self._being_undone(operation):
            self.standing[operation.handle] = operation
        self.resolve(operation, None, frame.value)

    def failed(self, frame: Failed) -> None:
        operation = self._answered(frame.sequence)
        if operation is None:
            return
        failure = Failure(frame.error, frame.text, frame.missing)
        if frame.error == errors.InTransaction.__name__ and operation.target is not None:
            target = operation.target  # it stays in force, or its answer is still to come
            if not target.gone and target.sequence not in self.unanswered:
                self.standing[target.handle] = target
        elif operation.kind == "ask" or (
            operation.tag is not None and operation.target is not None
        ):
            pass
        elif operation.target is not None:
            self.forget(operation.target)  # our broker has removed it, whatever other brokers did
        else:
            self.forget(operation)  # the broker has removed a failed operation itself
            if self.standing.pop(operation.handle, None) is not None:
                self._session.happened.append(Lapsed(operation.handle, failure))
        self.resolve(operation, failure)

    def forget(self, operation: Operation) -> None:
        """It can receive no more events."""
        if self.on_forgotten is not None:
            self.on_forgotten(operation)
        if self.subscribed.pop(operation.sequence, None) is not None:
            self.routes.clear()

    def find(self, sequence: int) -> Operation | None:
        """The operation with this number that is in force, or requested, and has not ended."""
        operation = self.subscribed.get(sequence)
        if operation is None:
            operation = next((o for o in self._known() if o.sequence == sequence), None)
        return None if operation is None or operation.gone else operation

    # ── sessions ─────────────────────────────────────────────────────────────────────────

    def in_force(self) -> list[Operation]:
        """Advertisements and subscriptions that are in force, or requested, and not being
        removed."""
        return [o for o in self._known() if o.kind in INVERSE and not self._being_undone(o)]

    def handle_of(self, sequence: int) -> int:
        """The handle of an unanswered request; 0 if there is none with this number."""
        operation = self.unanswered.get(sequence)
        return 0 if operation is None else operation.handle

    def await_answer(self, handle: int) -> bool:
        """Whether an operation is still unanswered; if so, its answer will be reported."""
        waiting = next((o for o in self.unanswered.values() if o.handle == handle), None)
        if waiting is not None:
            waiting.awaited = True
        return waiting is not None

    def send_again(self) -> Iterator[tuple[int, Request]]:
        """Every unanswered request, with the ordinal of the last publication made before it."""
        self.shown = self._sequences
        for operation in self.unanswered.values():
            yield operation.after, operation.frame()

    def end(self, failure: Failure) -> None:
        for operation in self.unanswered.values():
            if operation.awaited:
                self._session.happened.append(Resolved(operation.handle, failure))
        self.unanswered.clear()
        self.standing.clear()
        self.subscribed.clear()
        self.routes.clear()

    def reach_no_further(self) -> None:
        """Past events that subscriptions asked for have arrived: do not ask for them again."""
        for operation in self._known():
            operation.since = {}

    def begin_again(
        self,
        since: Mapping[str, int],
        void: list[Operation],
        lost_answer: Callable[[Operation], Failure],
    ) -> None:
        """Renew everything that was in force in the new session, then send what is unanswered."""
        unanswered = list(self.unanswered.values())
        standing = list(self.standing.values())
        gone = {operation.handle: lost_answer(operation) for operation in unanswered}
        self._sequences = self.shown = self.answered_upto = 0
        self.unanswered.clear()
        self.subscribed.clear()
        self.routes.clear()
        for kind in INVERSE:
            for operation in standing:
                if operation.kind == kind:
                    operation.awaited = operation.wait = False
                    operation.after = 0
                    if operation.kind == "subscribe" and since:
                        operation.since = {**operation.since, **since}
                    self._number(operation)
        undone = {each.target for each in unanswered if each.tag is None}
        for operation in unanswered:
            asks = operation.asks
            is_void = asks is not None and not isinstance(asks, ConsentRequest)
            if is_void or operation.tag is not None or operation in void:
                self.resolve(operation, gone[operation.handle])
            elif operation.target is not None:
                self.resolve(operation, None)  # its target ended with the session
            elif operation in undone or operation.gone:
                self.resolve(operation, Failure("Withdrawn", "cancelled before it was answered"))
            elif operation.handle not in self.standing:
                self._number(operation)

    def renew(self, request: TxRequest) -> None:
        """Send a request again in a new session; no caller waits for the answer."""
        rest = (None, None, True, RENEWED_TIMEOUT_S, 0, False)
        self._number(Operation(self.next_handle(), "ask", *rest, asks=request))

    # ── registrations of an earlier process ──────────────────────────────────────────────

    def take_over(self, requests: int, standing: tuple[StandingEntry, ...]) -> None:
        """Adopt a durable session with the requests of another process. Its registrations belong to
        this client now; requests for the same names are answered by them."""
        asked = list(self.unanswered.values())
        self.unanswered.clear()
        self.subscribed.clear()
        self.routes.clear()
        self._sequences = self.shown = self.answered_upto = requests
        for each in standing:
            same = (o for o in asked if (o.kind, o.name) == (each.kind, each.name))
            operation = next(same, None)
            if operation is not None and operation.filter != each.filter:
                text = f"{each.name!r} is already in force with the filter {each.filter}"
                asked.remove(operation)
                self.resolve(operation, Failure("NameTaken", text))
                operation = None
            if operation is None:
                operation = self._found(each)
            else:
                asked.remove(operation)
            self._install(operation, each)
        for operation in asked:
            self._number(operation)

    def install(self, stands: StandingEntry) -> Operation:
        """Add a registration that this process has not requested."""
        operation = self._found(stands)
        self._install(operation, stands)
        return operation

    def _found(self, stands: StandingEntry) -> Operation:
        what = (stands.kind, stands.filter, None, True, RENEWED_TIMEOUT_S, 0, False)
        return Operation(self.next_handle(), *what, name=stands.name)

    def _install(self, operation: Operation, stands: StandingEntry) -> None:
        operation.sequence = stands.sequence
        if operation.kind == "subscribe":
            self.subscribed[operation.sequence] = operation
        if stands.answered:
            self.standing[operation.handle] = operation
            self.resolve(operation, None)
        else:
            self.unanswered[operation.sequence] = operation

    # ── for tests and the simulator ──────────────────────────────────────────────────────

    def claims(self) -> dict[str, bool]:
        """Invariants."""
        return {
            "sequences are keys": all(s == o.sequence for s, o in self.unanswered.items()),
            "requests are in order": list(self.unanswered) == sorted(self.unanswered),
            "only requests that were made were shown": self.shown <= self._sequences,
            "only subscriptions get events": all(
                o.kind == "subscribe" for o in self.subscribed.values()
            ),
        }


def nothing_there(kind: Kind) -> errors.NoSuchOperation:
    return errors.NoSuchOperation(f"{kind}: this handle has no such operation in force")


MOST_PAST = 1024
UNREAD = "it was cancelled while it began"
GONE = Failure("Aborted", "the session was lost, and the transaction with it")


@dataclass(slots=True)
class Share:
    """The operations of this client in one transaction."""

    added: list[Operation] = field(default_factory=list)
    ended: list[Operation] = field(default_factory=list)
    """Operations that it removes if the transaction commits."""


class Parts:
    def __init__(self, session: SessionState, requests: Requests) -> None:
        self._session = session
        self._requests = requests
        requests.on_forgotten = self._forgotten
        self.ending: dict[int, Operation] = {}
        """By sequence: subscriptions that a transaction has ended, and that are still owed
        events."""
        self.planning = False
        """The broker may have done this client's part of a plan, or be about to."""
        self._shares: dict[str, Share] = {}
        self._called: dict[tuple[str, str], None] = {}
        self._consents = False
        """The broker may do this client's part of plans."""
        self._begun: dict[str, int] = {}
        """Open transactions that this client began: the handles of those requests."""
        self._past: dict[int, None] = {}
        """Registrations begun by plans that have ended: events for them may still arrive."""

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def ask(self, request: TxRequest) -> int:
        """Send a request about a transaction, and number it. Returns its handle."""
        self._requests.check_asking("ask")
        self._consents = self._consents or isinstance(request, ConsentRequest)
        self.planning = self.planning or isinstance(request, ConsentRequest | ExecuteRequest)
        operation = self._requests.issue("ask", None, None, True, request.timeout_s, asks=request)
        return operation.handle

    def abandon(self, handle: int) -> None:
        """The caller that was to get this transaction was cancelled: abort it."""
        tx = next((tx for tx, begun in self._begun.items() if begun == handle), "")
        if tx and self._session.state != "ended":
            del self._begun[tx]
            request = EndRequest(0, tx, False, UNREAD, RENEWED_TIMEOUT_S)
            rest = (True, request.timeout_s)
            self._requests.issue("ask", None, None, *rest, awaited=False, asks=request)

    def commits(self, handle: int) -> str:
        """The transaction that a request commits; empty if none."""
        for operation in self._requests.unanswered.values():
            if operation.handle == handle:
                return self._committed_by(operation)
        return ""

    def _committed_by(self, operation: Operation) -> str:
        asks = operation.asks
        if isinstance(asks, ExecuteRequest):
            return f"{self._session.client}/{self._session.epoch}/{operation.sequence}"
        return asks.tx if isinstance(asks, EndRequest) and asks.commit else ""

    def lost_answer(self, operation: Operation) -> Failure:
        """The failure of a request whose session is lost."""
        tx = self._committed_by(operation) if operation.sequence <= self._requests.shown else ""
        if not tx:
            return GONE
        text = f"the session was lost before the answer arrived: {how_to_know(tx)}"
        return Failure("OutcomeUnknown", text)

    def request(
        self,
        tag: Tag,
        kind: Kind,
        filter: Filter | None = None,
        *,
        target: int | None = None,
        timeout_s: float = 10.0,
        name: str = "",
    ) -> int:
        """Advertise, subscribe, or remove, as part of a transaction."""
        self._requests.check_asking(kind)
        share = self._shares.setdefault(tag.tx, Share())
        undone = None
        if target is not None:
            undone = self._taken_back_in(share, kind, target)
        operation = self._requests.issue(kind, filter, undone, True, timeout_s, name=name, tag=tag)
        if undone is None:
            share.added.append(operation)
        else:
            share.ended.append(undone)
        return operation.handle

    def _taken_back_in(self, share: Share, kind: Kind, target: int) -> Operation:
        for operation in share.added:
            if operation.handle == target and operation not in share.ended:
                return operation
        operation = self._requests.undoable(kind, target)
        if any(operation in each.ended for each in self._shares.values()):
            raise nothing_there(kind)
        return operation

    def undecided(self, operation: Operation) -> Tag | None:
        """The undecided transaction in which an operation has to be removed."""
        for share in self._shares.values():
            if operation in share.added:
                share.ended.append(operation)
                return operation.tag
        return None

    # ── messages from the broker ─────────────────────────────────────────────────────────

    def done(self, frame: Done) -> None:
        operation = self._requests.unanswered.get(frame.sequence)
        begins = operation is not None and isinstance(operation.asks, BeginRequest)
        awaited = operation is not None and operation.awaited
        self._requests.done(frame)
        if operation is not None and begins:
            self._begun[frame.value] = operation.handle
            if not awaited:
                self.abandon(operation.handle)

    def failed(self, frame: Failed) -> None:
        """A refused operation is not part of its transaction, however that ends."""
        refused = self._requests.unanswered.get(frame.sequence)
        if refused is None or refused.tag is None:
            return
        share = self._shares.get(refused.tag.tx)
        if share is not None:
            share.added = [each for each in share.added if each is not refused]
            share.ended = [each for each in share.ended if each is not refused.target]

    def invited(self, frame: Invited) -> None:
        key = (frame.tx, str(frame.op))
        if key not in self._called:  # else it was retransmitted after a reconnect
            self._called[key] = None
            self._session.happened.append(ReceivedInvitation(frame))

    def decided(self, frame: Decided) -> None:
        share = self._shares.pop(frame.tx, Share())
        find = self._requests.find
        if self._called:
            self._called = {key: None for key in self._called if key[0] != frame.tx}
        if frame.committed:
            for operation in share.added:
                operation.tag = None  # in a new session it is renewed like any other
            share.ended += [o for number in frame.ended if (o := find(number)) is not None]
        began = self._begin_planned(frame.added)
        gone = share.ended if frame.committed else share.added
        for operation in gone:
            operation.gone = True
            self._requests.standing.pop(operation.handle, None)
            if frame.committed and operation.kind == "subscribe":
                self.ending[operation.sequence] = operation
            else:
                self._requests.forget(operation)
        self._begun.pop(frame.tx, None)
        reason = "" if frame.committed else frame.reason
        ended = tuple(operation.handle for operation in gone) if frame.committed else ()
        concluded = Concluded(frame.tx, frame.number, frame.committed, reason, began, ended)
        self._session.happened.append(concluded)
        if not frame.committed:
            for operation in share.added:
                failure = Failure("Aborted", frame.reason)
                self._session.happened.append(Lapsed(operation.handle, failure))

    def is_unheard_of(self, frame: Delivered) -> bool:
        """It has events for a registration of a plan, and has overtaken the plan's decision."""
        if not self.planning:
            return False
        known, past, routes = self._requests.subscribed, self._past, self._requests.routes
        return any(
            number > GRANTED and number not in known and number not in past
            for each in (frame.every, *frame.each)
            if each not in routes
            for number in each
        )

    def _begin_planned(self, added: tuple[StandingEntry, ...]) -> tuple[Operation, ...]:
        """Add what the broker has put in force for this client, in a plan. Some of it is known
        already if the broker retransmits it after a reconnect."""
        began: list[Operation] = []
        requests = self._requests
        undone = {o.target.sequence for o in requests.unanswered.values() if o.target is not None}
        for each in added:
            number = each.sequence
            known = number in requests.subscribed or number in self._past or number in undone
            if not known and requests.find(number) is None:
                began.append(requests.install(each))
        return tuple(began)

    def _forgotten(self, operation: Operation) -> None:
        number = operation.sequence
        self.ending.pop(number, None)
        if number > GRANTED:
            self._past[number] = None
            if len(self._past) > MOST_PAST:
                del self._past[next(iter(self._past))]

    def over(self, frame: Over) -> None:
        operation = self.ending.pop(frame.sequence, None)
        standing = self._requests.standing
        if operation is None:  # an earlier process has ended, or added, an adopted operation
            found = [o for o in standing.values() if o.sequence == frame.sequence]
            operation = found[0] if found else None
        if operation is not None:
            standing.pop(operation.handle, None)
            self._requests.forget(operation)
            self._session.happened.append(Finished(operation.handle))

    # ── the session ──────────────────────────────────────────────────────────────────────

    def drop(self) -> list[Operation]:
        """The session is lost: all transactions without a known decision are void."""
        added = [operation for share in self._shares.values() for operation in share.added]
        for tx in self._shares:
            self._session.happened.append(Concluded(tx, 0, None, GONE.text))
        for operation in added:
            self._requests.standing.pop(operation.handle, None)
            self._session.happened.append(Lapsed(operation.handle, GONE))
        for operation in self.ending.values():
            self._session.happened.append(Finished(operation.handle))
        self._shares.clear()
        self._begun.clear()
        self._past.clear()
        self.ending.clear()
        self._called.clear()
        return added

    def renew_consent(self) -> None:
        """A new session does not have the consent."""
        unanswered = self._requests.unanswered.values()
        asked = any(isinstance(o.asks, ConsentRequest) for o in unanswered)
        if self._consents and not asked:
            self._requests.renew(ConsentRequest(0, RENEWED_TIMEOUT_S))


def how_to_know(tx: str) -> str:
    return f"client.outcome({tx!r}) returns its outcome"
