"""A client's part in transactions: requests that belong to one, and what becomes of them.

What a transaction adds is ours once it is committed; what it ends is ours until it has given all
that it was owed. Nothing of an open transaction outlives its session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from motet.client.happenings import Called, Concluded, Failure, Finished, Lapsed
from motet.client.operation import Kind, Operation
from motet.client.requests import Requests
from motet.model import Filter
from motet.protocol.session.messages import (
    Decided,
    EndRequest,
    ExecuteRequest,
    Failed,
    FollowRequest,
    Invited,
    Over,
    Tag,
    TxRequest,
)

GONE = Failure("Aborted", "the session was lost, and the transaction with it")


@dataclass(slots=True)
class Share:
    """What this client does in one transaction."""

    added: list[Operation] = field(default_factory=list)
    ended: list[Operation] = field(default_factory=list)
    """What it takes back, if the transaction commits."""


Addition = tuple[Kind, Filter, str]
"""Advertise or subscribe, to this filter, under this name."""
Ending = tuple[Kind, int]
"""Unadvertise or unsubscribe what has this handle."""


class Transacting(Requests):
    epoch: str | None

    def __init__(self) -> None:
        super().__init__()
        self._shares: dict[str, Share] = {}
        self._ending: dict[int, Operation] = {}
        """By sequence: subscriptions that a transaction has ended, and that are owed events."""
        self._called: dict[tuple[str, str], None] = {}

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def ask(self, request: TxRequest) -> int:
        """Send a request about a transaction; its number is put in here. Returns its handle."""
        self._check_asking("ask")
        operation = self._issue("ask", None, None, True, request.timeout_s, asks=request)
        return operation.handle

    def sequence_of(self, handle: int) -> int:
        """The number of a request that is not answered yet."""
        return next(o.sequence for o in self._unanswered.values() if o.handle == handle)

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

    def follow(
        self, tx: str, added: Sequence[Addition], ended: Sequence[Ending], wait_s: float
    ) -> list[int]:
        """Do a client's part of a plan in one request. Returns the handles of what it adds, and
        its own behind them."""
        self._check_asking("ask")
        share = self._shares.setdefault(tx, Share())
        targets = [self._taken_back_in(share, kind, handle) for kind, handle in ended]
        request = FollowRequest(0, tx, targets=tuple(o.sequence for o in targets), timeout_s=wait_s)
        tag = Tag(tx, "")
        made: list[Operation] = []
        for kind, wanted, name in added:
            self._handles += 1
            operation = Operation(
                self._handles, kind, wanted, None, True, wait_s, self.made, awaited=False
            )
            operation.name, operation.tag = name, tag
            self._number(operation)
            made.append(operation)
        share.added += made
        share.ended += targets
        follow = self._issue("ask", None, None, True, wait_s, asks=request, carries=made)
        return [*(operation.handle for operation in made), follow.handle]

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
        asks, tag, target = refused.asks, refused.tag, refused.target
        ended: tuple[int, ...] = () if target is None else (target.sequence,)
        added = [refused]
        tx = tag.tx if tag is not None else ""
        if isinstance(asks, FollowRequest):
            tx, added, ended = asks.tx, refused.carries, asks.targets
        share = self._shares.get(tx)
        if share is not None:
            share.added = [each for each in share.added if each not in added]
            share.ended = [each for each in share.ended if each.sequence not in ended]

    def _on_invited(self, frame: Invited) -> None:
        key = (frame.tx, str(frame.op))
        if key not in self._called:  # else it was sent again, because the connection broke
            self._called[key] = None
            self._effects.happened.append(Called(frame))

    def _on_decided(self, frame: Decided) -> None:
        share = self._shares.pop(frame.tx, Share())
        self._called = {key: None for key in self._called if key[0] != frame.tx}
        if frame.committed:
            for operation in share.added:
                operation.tag = None  # renewed in another session, it is like any other
        gone = share.ended if frame.committed else share.added
        for operation in gone:
            operation.gone = True
            self._standing.pop(operation.handle, None)
            if frame.committed and operation.kind == "subscribe":
                self._ending[operation.sequence] = operation
            else:
                self._forget(operation)
        reason = "" if frame.committed else frame.reason
        concluded = Concluded(frame.tx, frame.number, frame.committed, reason)
        self._effects.happened.append(concluded)
        if not frame.committed:
            for operation in share.added:
                failure = Failure("Aborted", frame.reason)
                self._effects.happened.append(Lapsed(operation.handle, failure))

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
        self._ending.clear()
        self._called.clear()
        return added


def how_to_know(tx: str) -> str:
    return f"client.outcome({tx!r}) says what became of it"


def numbered(request: TxRequest, sequence: int) -> TxRequest:
    return replace(request, sequence=sequence)
