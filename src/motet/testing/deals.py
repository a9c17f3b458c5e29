"""Transactions as their clients saw them: who did what in each, and what everybody was told.

A deal is what applications know of a transaction. Its deeds are their operations in it, each with
its place in the order; `told` is every word about its outcome, whoever heard it and why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from motet.model import OpId, Value
from motet.protocol.transactions.messages import Step

if TYPE_CHECKING:
    from motet.testing.history import Event, History, Operation, Session

COMMITTED, ABORTED, RUNNING, EXPIRED = "committed", "aborted", "in progress", "expired"
UNKNOWN = "unknown"


class Told(NamedTuple):
    """Somebody was told how a transaction ended, or that it has not."""

    at: float
    asked_at: float
    who: str
    outcome: str
    number: int = 0
    """Its place in the order of all transactions, if that was told."""


class Summoned(NamedTuple):
    """A client was asked to take part, by an event."""

    at: float
    client: str
    epoch: str
    op: OpId
    subscriptions: tuple[int, ...] = ()
    """Because of which of its subscriptions."""


@dataclass(slots=True, eq=False)
class Deed:
    """One operation of one client in a transaction."""

    deal: Deal
    kind: str
    order: str
    """Its place: these sort as Definition 3.4 orders operations."""
    session: Session
    sequence: int
    at: float
    process: int
    """The instance of its client."""
    operation: Operation | None = None
    """What is added, or taken back."""
    event: Event | None = None
    attributes: dict[str, Value] = field(default_factory=dict)
    """Of an invitation."""
    carried: bool = False
    """An invitation inside what its client had advertised, effectively, before the transaction."""
    answer: str = ""
    concluded: bool = False
    planned: bool = False
    """The broker does it: its client hears of it when it is decided."""
    candidates: list[Operation] = field(default_factory=list)
    """Until then, what a plan may take back: all that its client calls so."""

    @property
    def op(self) -> OpId:
        return OpId(self.session.client, self.session.epoch, self.sequence)

    def __str__(self) -> str:
        return f"{self.kind} {self.order} of {self.session.client} in {self.deal.id}"


@dataclass(slots=True, eq=False)
class Deal:
    """One transaction."""

    id: str
    kind: str
    """static, isolated or open."""
    session: Session
    at: float
    key: str = ""
    before: frozenset[tuple[str, str]] = frozenset()
    """Of a plan: pairs of places of which the first must come before the second."""
    steps: dict[str, tuple[Step, ...]] = field(default_factory=dict)
    """Of a plan: what each of its clients is to do."""
    commit_at: float = inf
    """When its coordinator asked for the commit."""
    answered_at: float = inf
    """When its coordinator was told that it is committed."""
    deeds: list[Deed] = field(default_factory=list)
    called: list[Summoned] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    heirs: dict[tuple[str, str], None] = field(default_factory=dict)
    """Sessions, as client and epoch, that have heard how it ended."""
    refused: bool = False
    """It was not even begun: there was no way to the root, or to somebody in the plan."""
    outcome: str = UNKNOWN
    """In the end, as far as anybody could find out."""

    @property
    def committed(self) -> bool:
        return self.outcome == COMMITTED

    def additions(self) -> list[Operation]:
        return [d.operation for d in self.deeds if d.operation is not None and _adds(d)]

    def endings(self) -> list[Deed]:
        return [d for d in self.deeds if d.kind == "unsubscribe" and d.answer == "Done"]

    def beginnings(self) -> list[Deed]:
        return [d for d in self.deeds if d.kind == "subscribe" and d.answer == "Done"]

    def events(self) -> list[Deed]:
        return [d for d in self.deeds if d.event is not None and d.answer == "Done"]

    @property
    def ready_at(self) -> float:
        """Before this nobody can have committed it: somebody had not done its part yet."""
        return self.at if self.kind == "static" else self.commit_at

    def __str__(self) -> str:
        return f"transaction {self.id} ({self.kind})"


def _adds(deed: Deed) -> bool:
    return deed.kind in ("advertise", "subscribe") and deed.answer == "Done"


class Asking(NamedTuple):
    """A request about a transaction, in its session."""

    kind: str
    deal: Deal | None
    at: float
    deed: Deed | None = None
    tx: str = ""


# ── what follows from what was told ──────────────────────────────────────────────────────


def tell(deal: Deal, told: Told, session: Session | None = None) -> None:
    """Somebody was told; what its own operations in it come to, it knows now, too."""
    deal.told.append(told)
    if told.outcome == ABORTED:
        for deed in deal.deeds:
            if deed.planned:  # who was to do it never hears of it
                release(deed)
    if session is None or told.outcome not in (COMMITTED, ABORTED):
        return
    if (session.client, session.epoch) in deal.heirs:
        return  # what it has tried since then comes too late
    deal.heirs[session.client, session.epoch] = None
    for deed in deal.deeds:
        if deed.session is session:
            conclude(deed, told.outcome == COMMITTED, session)


def doubt(deed: Deed, operation: Operation) -> None:
    """A plan may take it back, or may have done so already."""
    session = operation.session
    deed.candidates.append(operation)
    operation.doubts |= {deed.sequence}
    operation.ended_at = min(operation.ended_at, max(deed.at, operation.requested_at))
    operation.doubted_position = min(operation.doubted_position, session.sent)


def release(deed: Deed, but: Operation | None = None) -> None:
    """A plan has not taken these back."""
    for operation in deed.candidates:
        if operation is but:
            continue
        operation.doubts -= {deed.sequence}
        stays = not (operation.doubts or operation.gone or operation.is_being_removed)
        if stays and operation.session.ended_at == inf:
            operation.ended_at = inf
    deed.candidates = []


def conclude(deed: Deed, committed: bool, session: Session) -> None:
    """What one operation came to."""
    operation = deed.operation
    if operation is None or deed.concluded:
        return
    deed.concluded = True
    if deed.kind in ("advertise", "subscribe"):
        if not committed:
            operation.gone = operation.dealt = True
            operation.ended_at = min(operation.ended_at, operation.requested_at)
            operation.ended_position = min(operation.ended_position, session.sent + 1)
        return
    operation.doubts -= {deed.sequence}
    if deed.answer not in ("", "Done"):
        return
    if committed:
        operation.gone = operation.dealt = True
        operation.ended_position = min(operation.ended_position, session.sent + 1)
    elif session.ended_at == inf and not (
        operation.gone or operation.doubts or operation.is_being_removed
    ):
        operation.ended_at = inf


def finish(history: History) -> None:
    """The run is over: what became of every transaction, as far as anybody can say."""
    for deal in history.deals.values():
        said = [told.outcome for told in deal.told if told.outcome in (COMMITTED, ABORTED)]
        deal.outcome = said[-1] if said else UNKNOWN
        for deed in deal.deeds:
            if deal.outcome != UNKNOWN:
                conclude(deed, deal.committed, deed.session)
            event = deed.event
            if event is not None and not event.fate:
                event.fate = _fate(deal, deed)
                event.settled_at = deal.answered_at
    for event in history.events:
        if event.staged and not event.fate:
            event.fate = "void"  # nobody came to do it


def _fate(deal: Deal, deed: Deed) -> str:
    if deal.outcome == UNKNOWN:
        return "unknown"
    if deal.committed:
        return "accepted" if deed.answer == "Done" else "unknown"
    return "void"
