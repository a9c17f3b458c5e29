"""A client's part in transactions: requests that belong to one, and what becomes of them.

What a transaction adds is ours once it is committed; what it ends is ours until it has given all
that it was owed. Nothing of an open transaction outlives its session.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from motet.client.happenings import Concluded, Failure, Finished, Lapsed, Summoned
from motet.client.operation import Kind, Operation
from motet.client.requests import RENEWED_TIMEOUT_S, Requests
from motet.model import Filter
from motet.protocol.delivery.messages import Delivered
from motet.protocol.session.messages import (
    ConsentRequest,
    Decided,
    EndRequest,
    ExecuteRequest,
    Failed,
    Invited,
    Over,
    Stands,
    Tag,
    TxRequest,
)
from motet.protocol.session.state import GRANTED

MOST_PAST = 1024
GONE = Failure("Aborted", "the session was lost, and the transaction with it")


@dataclass(slots=True)
class Share:
    """What this client does in one transaction."""

    added: list[Operation] = field(default_factory=list)
    ended: list[Operation] = field(default_factory=list)
    """What it takes back, if the transaction commits."""


class Transacting(Requests):
    epoch: str | None

    def __init__(self) -> None:
        super().__init__()
        self._shares: dict[str, Share] = {}
        self._ending: dict[int, Operation] = {}
        """By sequence: subscriptions that a transaction has ended, and that are owed events."""
        self._called: dict[tuple[str, str], None] = {}
        self._consents = False
        """Our broker may do our part of plans."""
        self._planning = False
        """It may have done so, or be about to."""
        self._past: dict[int, None] = {}
        """What a plan has put in force and is over: events for it may still be on their way."""

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def ask(self, request: TxRequest) -> int:
        """Send a request about a transaction; its number is put in here. Returns its handle."""
        self._check_asking("ask")
        self._consents = self._consents or isinstance(request, ConsentRequest)
        self._planning = self._planning or isinstance(request, ConsentRequest | ExecuteRequest)
        operation = self._issue("ask", None, None, True, request.timeout_s, asks=request)
        return operation.handle

    def commits(self, handle: int) -> str:
        """The transaction that a request is to commit; empty if it commits none."""
        for operation in self._unanswered.values():
            if operation.handle == handle:
                return self._committed_by(operation)
        return ""

    def _committed_by(self, operation: Operation) -> str:
        asks = operation.asks
        if isinstance(asks, ExecuteRequest):
            return f"{self.client}/{self.epoch}/{operation.sequence}"
        return asks.tx if isinstance(asks, EndRequest) and asks.commit else ""

    def _lost_answer(self, operation: Operation) -> Failure:
        """What is known of a request whose session is lost."""
        tx = self._committed_by(operation) if operation.sequence <= self._shown else ""
        if not tx:
            return GONE
        text = f"the session was lost before the answer came: {how_to_know(tx)}"
        return Failure("OutcomeUnknown", text)

    def request_in(
        self,
        tag: Tag,
        kind: Kind,
        filter: Filter | None = None,
        *,
        target: int | None = None,
        timeout_s: float = 10.0,
        name: str = "",
    ) -> int:
        """Advertise, subscribe, or take back, as part of a transaction."""
        self._check_asking(kind)
        share = self._shares.setdefault(tag.tx, Share())
        undone = None
        if target is not None:
            undone = self._taken_back_in(share, kind, target)
        operation = self._issue(kind, filter, undone, True, timeout_s, name=name, tag=tag)
        if undone is None:
            share.added.append(operation)
        else:
            share.ended.append(undone)
        return operation.handle

    def _taken_back_in(self, share: Share, kind: Kind, target: int) -> Operation:
        for operation in share.added:
            if operation.handle == target and operation not in share.ended:
                return operation
        operation = self._undoable(kind, target)
        if any(operation in each.ended for each in self._shares.values()):
            raise self._nothing_there(kind)
        return operation

    def _undecided(self, operation: Operation) -> Tag | None:
        for share in self._shares.values():
            if operation in share.added:
                share.ended.append(operation)
                return operation.tag
        return None

    # ── hearing ──────────────────────────────────────────────────────────────────────────

    def _on_failed(self, frame: Failed) -> None:
        refused = self._unanswered.get(frame.sequence)
        if refused is not None:
            self._leave_out(refused)
        super()._on_failed(frame)

    def _leave_out(self, refused: Operation) -> None:
        """What was refused is no part of its transaction, however that ends."""
        share = self._shares.get(refused.tag.tx) if refused.tag is not None else None
        if share is not None:
            share.added = [each for each in share.added if each is not refused]
            share.ended = [each for each in share.ended if each is not refused.target]

    def _on_invited(self, frame: Invited) -> None:
        key = (frame.tx, str(frame.op))
        if key not in self._called:  # else it was sent again, because the connection broke
            self._called[key] = None
            self._effects.happened.append(Summoned(frame))

    def _on_decided(self, frame: Decided) -> None:
        share = self._shares.pop(frame.tx, Share())
        if self._called:
            self._called = {key: None for key in self._called if key[0] != frame.tx}
        if frame.committed:
            for operation in share.added:
                operation.tag = None  # renewed in another session, it is like any other
            share.ended += [o for number in frame.ended if (o := self._known(number)) is not None]
        began = self._begin_planned(frame.added)
        gone = share.ended if frame.committed else share.added
        for operation in gone:
            operation.gone = True
            self._standing.pop(operation.handle, None)
            if frame.committed and operation.kind == "subscribe":
                self._ending[operation.sequence] = operation
            else:
                self._forget(operation)
        reason = "" if frame.committed else frame.reason
        ended = tuple(operation.handle for operation in gone) if frame.committed else ()
        concluded = Concluded(frame.tx, frame.number, frame.committed, reason, began, ended)
        self._effects.happened.append(concluded)
        if not frame.committed:
            for operation in share.added:
                failure = Failure("Aborted", frame.reason)
                self._effects.happened.append(Lapsed(operation.handle, failure))

    def _known(self, sequence: int) -> Operation | None:
        """What is in force under a number, or about to be, and not ended yet."""
        operation = self._subscribed.get(sequence)
        if operation is None:
            all_others = (*self._standing.values(), *self._unanswered.values())
            operation = next((o for o in all_others if o.sequence == sequence), None)
        return None if operation is None or operation.gone else operation

    def _is_unheard_of(self, frame: Delivered) -> bool:
        """It has events for what a plan has put in force, and has overtaken the word of that."""
        known, past, routes = self._subscribed, self._past, self._routes
        return self._planning and any(
            number > GRANTED and number not in known and number not in past
            for each in (frame.every, *frame.each)
            if each not in routes
            for number in each
        )

    def _renew_consent(self) -> None:
        """A new session does not know of it."""
        asked = any(isinstance(o.asks, ConsentRequest) for o in self._unanswered.values())
        if self._consents and not asked:
            self._handles += 1
            wait_s = RENEWED_TIMEOUT_S
            operation = Operation(self._handles, "ask", None, None, True, wait_s, 0, False)
            operation.asks = ConsentRequest(0, RENEWED_TIMEOUT_S)
            self._number(operation)

    def _begin_planned(self, added: tuple[Stands, ...]) -> tuple[Operation, ...]:
        """Our broker has put this in force for us, in a plan. Of what it tells again, because the
        connection broke, we know some."""
        began: list[Operation] = []
        undone = {o.target.sequence for o in self._unanswered.values() if o.target is not None}
        for each in added:
            number = each.sequence
            known = number in self._subscribed or number in self._past or number in undone
            if known or self._known(number) is not None:
                continue
            operation = self._found(each)
            self._install(operation, each)
            began.append(operation)
        return tuple(began)

    def _forget(self, operation: Operation) -> None:
        number = operation.sequence
        self._ending.pop(number, None)
        if number > GRANTED:
            self._past[number] = None
            if len(self._past) > MOST_PAST:
                del self._past[next(iter(self._past))]
        super()._forget(operation)

    def _on_over(self, frame: Over) -> None:
        operation = self._ending.pop(frame.sequence, None)
        if operation is None:  # an earlier process has ended, or added, what we have adopted
            found = [o for o in self._standing.values() if o.sequence == frame.sequence]
            operation = found[0] if found else None
        if operation is not None:
            self._standing.pop(operation.handle, None)
            self._forget(operation)
            self._effects.happened.append(Finished(operation.handle))

    # ── the session ──────────────────────────────────────────────────────────────────────

    def _drop_transactions(self) -> list[Operation]:
        """The session is lost: what was not decided, as far as we know, is void."""
        added = [operation for share in self._shares.values() for operation in share.added]
        for tx in self._shares:
            self._effects.happened.append(Concluded(tx, 0, None, GONE.text))
        for operation in added:
            self._standing.pop(operation.handle, None)
            self._effects.happened.append(Lapsed(operation.handle, GONE))
        for operation in self._ending.values():
            self._effects.happened.append(Finished(operation.handle))
        self._shares.clear()
        self._past.clear()
        self._ending.clear()
        self._called.clear()
        return added


def how_to_know(tx: str) -> str:
    return f"client.outcome({tx!r}) says what became of it"
