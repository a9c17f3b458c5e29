"""Records of what clients saw, which recorders write and checkers read, and their rows.

Records hold requests, answers, publications and deliveries, each with its time. They are
independent of protocols. `row_of` turns one into a row of its table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, TypeAlias

from motet.audit.schema import TABLES
from motet.model import Filter, OpId, Value, encode_event

ADDITIONS = ("advertise", "subscribe")
DONE = "Done"
ENDLESS = 1 << 60
IN_TRANSACTION = "InTransaction"
"""The answer to a removal of something that an open transaction holds: it stays in force."""
UNHEARD = "unheard"
"""The answer of an operation that failed while its client was away."""
COMMITTED, ABORTED, RUNNING, EXPIRED = "committed", "aborted", "in progress", "expired"
UNKNOWN = "unknown"
Instance: TypeAlias = Any
"""Distinguishes processes with the same client id: a number in a simulator, else a name."""


@dataclass(slots=True, eq=False)
class OperationRecord:
    """One request of one session. A request renewed in a new session is another operation."""

    session: SessionRecord
    sequence: int
    handle: int
    kind: str
    filter: Filter | None
    target: OperationRecord | None
    wait: bool
    timeout_s: float
    position: int
    """Its position among all frames of its session: the connection keeps this order."""
    requested_at: float
    answered_at: float = inf
    answer: str = ""
    """"Done", or the name of the error."""
    missing: tuple[str, ...] = ()
    effective_at: float = inf
    """When its broker answered that it is effective across the overlay."""
    ended_at: float = inf
    """When its end began: it was removed, or its session ended, or could have."""
    ended_position: int = ENDLESS
    gone: bool = False
    """Its removal, or its failure, has been answered."""
    since: dict[str, int] = field(default_factory=dict)
    """The ticks, by pubend, after which a subscription asks for past events."""
    deal: Deal | None = None
    """The transaction that it is part of."""
    doubted_position: int = ENDLESS
    """From this position on a transaction may have ended it."""
    doubts: frozenset[int] = frozenset()
    """Requests that remove it in transactions that may still commit."""
    stayed: bool = False
    """Its client tried to remove it, and was refused."""
    dealt: bool = False
    """A transaction has removed it, or has never added it."""
    finished_at: float = inf
    """When its client was told that it has received all events owed to it, after a transaction has
    ended it."""
    version: int = 0
    """How often its row was written."""

    @property
    def id(self) -> OpId:
        return OpId(self.session.client, self.session.epoch, self.sequence)

    def answered(self, answer: str, at: float, missing: tuple[str, ...] = ()) -> str:
        """An answer is on the wire: "Done", or the name of an error. The first one counts; returns
        a complaint if a later one differs."""
        if self.answer not in ("", UNHEARD):
            changed = self.answer != answer
            return f"{self} was answered {self.answer}, then {answer}" if changed else ""
        self.answer, self.answered_at, self.missing = answer, at, missing
        if self.target is not None:
            if answer == IN_TRANSACTION:
                self.target.stays()
            elif self.deal is None:
                self.target.gone = True
        elif answer != DONE:
            self.gone = True
            self.ended_at = min(self.ended_at, self.requested_at)
        return ""

    @property
    def is_being_removed(self) -> bool:
        """Its removal was requested outside of transactions, and has not failed."""
        return self.ended_position < ENDLESS

    def stays(self) -> None:
        """Its removal has failed."""
        self.stayed = True
        self.ended_position = ENDLESS
        if not (self.doubts or self.gone) and self.session.ended_at == inf:
            self.ended_at = inf

    def __str__(self) -> str:
        what = f"({self.filter})" if self.filter is not None else ""
        return f"{self.kind} {self.id} {what} at {self.session.home}".replace("  ", " ")


@dataclass(slots=True, eq=False)
class Stay:
    """A session at one broker. While it is on its way, the stays at both ends overlap."""

    broker: str
    since: float = -inf
    left_at: float = inf
    """When this broker decided that the session moves."""
    until: float = inf
    """When it arrived at the next broker."""


@dataclass(slots=True, eq=False)
class SessionRecord:
    """One epoch, as its client knew it. `instance` tells two clients with one id apart."""

    client: str
    instance: Instance
    epoch: str
    broker: str
    """The broker that opened it."""
    opened_at: float
    ended_at: float = inf
    sent: int = 0
    """How many frames the client has sent in it: the next position."""
    operations: dict[int, OperationRecord] = field(default_factory=dict)
    asks: dict[int, PendingRequest] = field(default_factory=dict)
    """Requests about transactions, by number."""
    numbered: dict[int, EventRecord] = field(default_factory=dict)
    """Of a durable session: its publications, by number."""
    total_order: bool = False
    forgotten: list[OperationRecord] = field(default_factory=list)
    """Operations that may have been in force: requested in a durable session by a process that is
    gone, and lost with its broker before they were durable; or advertised by a plan whose decision
    the client has never read. Events that were published under them may be durable."""
    stays: list[Stay] = field(default_factory=list)
    """Where it has been, if its moves are recorded; shared by all records of one session."""

    @property
    def home(self) -> str:
        """The broker that has it, or had it last."""
        return self.stays[-1].broker if self.stays else self.broker

    def homes(self, since: float = -inf, until: float = inf) -> tuple[str, ...]:
        """The brokers that may have had it at some time between these."""
        found = [s.broker for s in self.stays if s.since <= until and since <= s.until]
        return tuple(dict.fromkeys(found)) or (self.home,)

    def end(self, at: float) -> None:
        """It ends, or could have, and with it everything that it has in force."""
        if self.ended_at == inf:
            self.ended_at = at
            for operation in self.operations.values():
                operation.ended_at = min(operation.ended_at, at)


@dataclass(slots=True, eq=False)
class MoveRecord:
    """A move that a client has asked for. `before` and `after` are broker and epoch, as the client
    knew them when it asked and when it was answered."""

    client: str
    instance: Instance
    handle: int
    to: str
    timeout_s: float
    at: float
    before: tuple[str | None, str | None]
    after: tuple[str | None, str | None] = (None, None)
    answered_at: float = inf
    answer: str = ""
    """"Done", or the name of an error."""
    value: str = ""
    text: str = ""
    missing: tuple[str, ...] = ()
    impatient: bool = False
    """The client did not wait for its session."""
    answers: int = 0
    """How often its client was answered, if that is counted."""
    version: int = 0
    """How often its row was written."""
    kind: str = ""
    """What its client was when it was answered: publisher, subscriber, both or neither; perhaps in
    total order, or durable."""

    def __str__(self) -> str:
        return f"the move of {self.client} to {self.to} at {self.at:.4f} s"


@dataclass(slots=True, eq=False)
class EventRecord:
    """One publication. `fate` is "accepted", "refused" or "unknown" once it is settled."""

    number: int
    client: str
    instance: Instance
    attributes: dict[str, Value]
    session: SessionRecord | None = None
    position: int = -1
    sent_at: float = inf
    fate: str = ""
    """Also "void": a later process of its client was told that it was never published."""
    sure: bool = False
    """Published exactly once."""
    settled_at: float = inf
    """When its publisher heard its fate."""
    inherited: bool = False
    """A later process of its publisher heard its fate."""
    pubend: str = ""
    tick: int = 0
    """Its place in the log of a pubend, if known."""
    audience: frozenset[OpId] = frozenset()
    """Subscriptions that had started there when it was logged, and match it."""
    last_position: int = -1
    """Where it was last retransmitted, after its broker had lost it."""
    deal: Deal | None = None
    """The transaction that publishes it, if it commits."""
    staged: bool = False
    """A transaction is to publish it."""
    body: bytes = b""
    """The encoded event, if it is not decoded."""

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.attributes.items())
        return f"event {self.number} {{{shown}}} of {self.client}"


class DeliveryRecord(NamedTuple):
    """An event given to the application, for one of its subscriptions."""

    at: float
    instance: Instance
    handle: int
    operation: OperationRecord | None
    event: EventRecord | None
    publisher: str
    pubend: str = ""
    tick: int = 0
    """Of an exactly-once event: its place in its stream."""
    session: SessionRecord | None = None


class LossRecord(NamedTuple):
    """A client was told that a range of ticks is lost."""

    instance: Instance
    pubend: str
    first: int
    last: int
    withdrawn: bool = False
    """The past events that it asked for can no longer be read: no advertisement there matches."""


class OutcomeHeard(NamedTuple):
    """A client was told the outcome of a transaction, or that it is in progress."""

    at: float
    asked_at: float
    who: str
    outcome: str
    number: int = 0
    """Its place in the order of all transactions, if known."""


class InvitationHeard(NamedTuple):
    """A client was invited by an event."""

    at: float
    client: str
    epoch: str
    op: OpId
    subscriptions: tuple[int, ...] = ()
    """Those of its subscriptions that the event matches."""


@dataclass(slots=True, eq=False)
class Deed:
    """One operation of one client in a transaction."""

    deal: Deal
    kind: str
    order: str
    """Its place: these sort as Definition 3.4 orders operations."""
    session: SessionRecord
    sequence: int
    at: float
    process: Instance
    """The instance of its client."""
    operation: OperationRecord | None = None
    """The operation that is added or removed."""
    event: EventRecord | None = None
    attributes: dict[str, Value] = field(default_factory=dict)
    """Of an invitation."""
    carried: bool = False
    """An invitation within an advertisement that was effective before the transaction."""
    answer: str = ""
    concluded: bool = False
    planned: bool = False
    """The broker does it: its client hears of it with the decision."""
    candidates: list[OperationRecord] = field(default_factory=list)
    """Until then, all operations of this name that a plan may remove."""

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
    session: SessionRecord
    at: float
    key: str = ""
    before: frozenset[tuple[str, str]] = frozenset()
    """Of a plan: pairs of places, the first of which must come before the second."""
    steps: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Of a plan: the steps of each client."""
    commit_at: float = inf
    """When its coordinator asked for the commit."""
    answered_at: float = inf
    """When its coordinator was told that it is committed."""
    deeds: list[Deed] = field(default_factory=list)
    called: list[InvitationHeard] = field(default_factory=list)
    told: list[OutcomeHeard] = field(default_factory=list)
    heirs: dict[tuple[str, str], None] = field(default_factory=dict)
    """Sessions, as client and epoch, that have heard its outcome."""
    refused: bool = False
    """It was not begun: the root, or a client of the plan, was unreachable."""
    outcome: str = UNKNOWN
    """The final outcome, as far as known."""
    version: int = 0
    """How often its row was written."""

    @property
    def committed(self) -> bool:
        return self.outcome == COMMITTED

    def additions(self) -> list[OperationRecord]:
        return [d.operation for d in self.deeds if d.operation is not None and _adds(d)]

    def endings(self) -> list[Deed]:
        return [d for d in self.deeds if d.kind == "unsubscribe" and d.answer == "Done"]

    def beginnings(self) -> list[Deed]:
        return [d for d in self.deeds if d.kind == "subscribe" and d.answer == "Done"]

    def events(self) -> list[Deed]:
        return [d for d in self.deeds if d.event is not None and d.answer == "Done"]

    @property
    def ready_at(self) -> float:
        """It cannot have been committed before this time: a part was not done yet."""
        return self.at if self.kind == "static" else self.commit_at

    def __str__(self) -> str:
        return f"transaction {self.id} ({self.kind})"


def _adds(deed: Deed) -> bool:
    return deed.kind in ("advertise", "subscribe") and deed.answer == "Done"


class PendingRequest(NamedTuple):
    """A request about a transaction, in its session."""

    kind: str
    deal: Deal | None
    at: float
    deed: Deed | None = None
    tx: str = ""


# ── consequences of outcomes ─────────────────────────────────────────────────────────────


def tell(deal: Deal, told: OutcomeHeard, session: SessionRecord | None = None) -> None:
    """A client was told an outcome; conclude the operations of its session."""
    deal.told.append(told)
    if told.outcome == ABORTED:
        for deed in deal.deeds:
            if deed.planned:  # its client never hears of it
                release(deed)
    if session is None or told.outcome not in (COMMITTED, ABORTED):
        return
    if (session.client, session.epoch) in deal.heirs:
        return  # operations that it has tried since then are too late
    deal.heirs[session.client, session.epoch] = None
    for deed in deal.deeds:
        if deed.session is session:
            conclude(deed, told.outcome == COMMITTED, session)


def doubt(deed: Deed, operation: OperationRecord) -> None:
    """A plan may remove it, or may have removed it already."""
    session = operation.session
    deed.candidates.append(operation)
    operation.doubts |= {deed.sequence}
    operation.ended_at = min(operation.ended_at, max(deed.at, operation.requested_at))
    operation.doubted_position = min(operation.doubted_position, session.sent)


def release(deed: Deed, but: OperationRecord | None = None) -> None:
    """A plan has not removed these."""
    for operation in deed.candidates:
        if operation is but:
            continue
        operation.doubts -= {deed.sequence}
        stays = not (operation.doubts or operation.gone or operation.is_being_removed)
        if stays and operation.session.ended_at == inf:
            operation.ended_at = inf
    deed.candidates = []


def conclude(deed: Deed, committed: bool, session: SessionRecord) -> None:
    """Apply the outcome to one operation."""
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


# ── rows ─────────────────────────────────────────────────────────────────────────────────


def row_of(table: str, record: object, **said: Any) -> dict[str, Any]:
    """The attributes of a record that are columns of the table, and the values in `said`."""
    known = {name: getattr(record, name) for name in TABLES[table] if hasattr(record, name)}
    return {**known, **said}


def session_row(session: SessionRecord, **more: Any) -> dict[str, Any]:
    return row_of("sessions", session, process=str(session.instance), **more)


def operation_row(operation: OperationRecord, **more: Any) -> dict[str, Any]:
    session, target, deal = operation.session, operation.target, operation.deal
    return row_of(
        "operations",
        operation,
        op=str(operation.id),
        client=session.client,
        epoch=session.epoch,
        process=str(session.instance),
        number=operation.sequence,
        filter="" if operation.filter is None else str(operation.filter),
        target="" if target is None else str(target.id),
        is_gone=operation.gone,
        tx="" if deal is None else deal.id,
        since=operation.since or None,
        **more,
    )


def event_row(event: EventRecord, **more: Any) -> dict[str, Any]:
    assert event.session is not None
    return row_of(
        "events",
        event,
        epoch=event.session.epoch,
        is_sure=event.sure,
        tx="" if event.deal is None else event.deal.id,
        body=event.body or encode_event(event.attributes, b""),
        **more,
    )


def move_row(move: MoveRecord, **more: Any) -> dict[str, Any]:
    """A client may ask before it has a session, and may get another one meanwhile: a move that is
    done has brought the one that the client has then."""
    source, epoch = move.before
    if move.answer == DONE:
        epoch = move.after[1] or epoch
    return row_of(
        "moves",
        move,
        process=str(move.instance),
        number=move.handle,
        epoch=epoch or "",
        source=source or "",
        broker=move.after[0] or "",
        answers=move.answers or int(bool(move.answer)),
        **more,
    )


def transaction_row(deal: Deal) -> dict[str, Any]:
    whose = {"client": deal.session.client, "epoch": deal.session.epoch}
    return row_of("transactions", deal, tx=deal.id, **whose)


def deed_row(deed: Deed, **more: Any) -> dict[str, Any]:
    return row_of(
        "deeds",
        deed,
        tx=deed.deal.id,
        place=deed.order,
        client=deed.session.client,
        epoch=deed.session.epoch,
        number=deed.sequence,
        op="" if deed.operation is None else str(deed.operation.id),
        event=0 if deed.event is None else deed.event.number,
        body=encode_event(deed.attributes, b"") if deed.kind == "invite" else None,
        is_carried=deed.carried,
        is_planned=deed.planned,
        **more,
    )
