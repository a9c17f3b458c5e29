"""The history of a run as its clients saw it, and where something was broken at the time.

The cluster writes it, the checkers read it. It is independent of the protocols: requests, answers,
publications and deliveries, each with its virtual time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import NamedTuple

from motet.audit.files import HistoryWriter
from motet.audit.records import (
    ABORTED,
    ADDITIONS,
    COMMITTED,
    UNKNOWN,
    Deal,
    Deed,
    DeliveryRecord,
    EventRecord,
    LossRecord,
    MoveRecord,
    OperationRecord,
    SessionRecord,
    Stay,
    conclude,
    deed_row,
    event_row,
    move_row,
    operation_row,
    row_of,
    session_row,
    transaction_row,
)
from motet.model import Hop, OpId
from motet.model.coverage import Covering
from motet.testing.topology import Edge, Tree


class OpeningRecord(NamedTuple):
    """A broker opened a session, whether or not its client was told."""

    client: str
    instance: int
    epoch: str
    broker: str
    at: float
    resume: str | None
    """The epoch that the client wanted to resume; none if it was new."""
    present: tuple[str, ...]
    """Epochs in which other clients with the same id were connected then, and not yet outdone."""
    adopted: bool = False
    """A durable session that another process has left or was fenced out of."""


class Fencing(NamedTuple):
    """A client was told that another client with its id has taken over."""

    client: str
    instance: int
    epoch: str | None
    at: float


@dataclass(slots=True, eq=False)
class Call:
    """One request of an application, with all answers to it; there should be one."""

    client: str
    instance: int
    handle: int
    kind: str
    at: float
    answers: list[tuple[float, str]] = field(default_factory=list)


class LoggedCut(NamedTuple):
    """A pubend's cut for a transaction, whose events there end at tick `last`."""

    pubend: str
    tick: int
    last: int
    tx: str
    number: int
    at: float = 0.0
    switches: tuple[tuple[OpId, int, bool], ...] = ()
    """Subscriptions, the tick above which each begins or ends, and whether it ends."""


class Spans:
    """Intervals of time at one place, in order, without overlaps."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._at_least = 0.0
        self.open = False

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        """The start and end of each."""
        return iter(zip(self._starts, self._ends, strict=True))

    def begin(self, at: float) -> None:
        """Begin an interval with unknown end; extend the last one if it is not over."""
        self.open = True
        if self._ends and at <= self._ends[-1]:
            self._ends[-1] = inf
        else:
            self._starts.append(at)
            self._ends.append(inf)

    def end(self, at: float) -> None:
        if self.open:
            self.open = False
            self._ends[-1] = max(at, self._at_least)

    def touch(self, since: float, until: float) -> None:
        """Add an interval whose end is known."""
        self._at_least = max(self._at_least, until)
        if self._ends and since <= self._ends[-1]:
            self._ends[-1] = max(self._ends[-1], until)
        else:
            self._starts.append(since)
            self._ends.append(until)

    def end_of(self, since: float, until: float) -> float:
        """`until`, or the end of the last interval that overlaps this one."""
        found = (e for s, e in zip(self._starts, self._ends, strict=True) if s <= until)
        return max([until, *(end for end in found if end >= since)])

    def begin_of(self, since: float, until: float) -> float:
        """`since`, or the beginning of the first interval that overlaps this one."""
        found = (s for s, e in zip(self._starts, self._ends, strict=True) if e >= since)
        return min([since, *(begin for begin in found if begin <= until)])

    def meets(self, since: float, until: float) -> bool:
        """Does any interval overlap this one?"""
        first = bisect_left(self._ends, since)
        return first < len(self._starts) and self._starts[first] <= until


class Places(dict[str | Edge | int, Spans]):
    """Spans by broker name, by edge, or by client instance."""

    def __missing__(self, place: str | Edge | int) -> Spans:
        spans = self[place] = Spans()
        return spans


@dataclass(slots=True, eq=False)
class OrderRecord:
    """A move that an operator has asked a broker for."""

    client: str
    broker: str
    to: str
    at: float
    answers: list[str] = field(default_factory=list)
    """Names of errors; empty texts if it is decided."""
    lost: bool = False
    """The operator's connection broke."""
    absent: bool = False
    """The client was not connected when it was asked for."""

    def __str__(self) -> str:
        return f"the order of {self.broker} to move {self.client} to {self.to} at {self.at:.4f} s"


@dataclass(slots=True, eq=False)
class HandledRecord:
    """A copy of a hosted client has handled an event, which may be for several subscriptions."""

    at: float
    deliveries: tuple[DeliveryRecord, ...]
    outputs: list[EventRecord] = field(default_factory=list)
    """What it publishes upon the event."""

    def __str__(self) -> str:
        what = self.deliveries[0].event if self.deliveries else "a forgotten event"
        return f"the handling of {what} at {self.at:.4f} s"


class CopyRecord(NamedTuple):
    """A copy of a hosted client was given a state to continue with."""

    client: str
    epoch: str
    broker: str
    at: float
    number: int
    """Of the checkpoint that the state is said to be."""
    kept: int
    """The last checkpoint in this session that a copy was told to be durable."""
    is_right: bool
    """Whether it is the state of that checkpoint."""
    is_anew: bool
    """In a new session, although the client had a state."""

    def __str__(self) -> str:
        return (
            f"the copy of {self.client} at {self.broker} begins at {self.at:.4f} s with checkpoint "
            f"{self.number} of {self.epoch}"
        )


@dataclass(slots=True, eq=False)
class HostedRecord:
    """What the copies of a hosted client have done, and what its state says in the end."""

    client: str
    starts: list[CopyRecord] = field(default_factory=list)
    all: list[HandledRecord] = field(default_factory=list)
    """Everything that any copy has handled."""
    handled: list[HandledRecord] = field(default_factory=list)
    """What is in its state, in order."""
    undone: list[HandledRecord] = field(default_factory=list)
    """What is in no state, and never was in a durable one."""
    copies: tuple[str, ...] = ()
    """Where copies run in the end."""


class Stays(dict[tuple[str, str], list[Stay]]):
    """Where sessions have been, by client and epoch."""

    def __missing__(self, session: tuple[str, str]) -> list[Stay]:
        stays = self[session] = []
        return stays


@dataclass(slots=True, eq=False)
class History:
    """One run."""

    tree: Tree
    covering: Covering
    hop_s: float
    """The longest duration of an undisturbed hop, including the wait for the journal."""
    sessions: list[SessionRecord] = field(default_factory=list)
    openings: list[OpeningRecord] = field(default_factory=list)
    fencings: list[Fencing] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    deliveries: list[DeliveryRecord] = field(default_factory=list)
    losses: list[LossRecord] = field(default_factory=list)
    cuts: list[LoggedCut] = field(default_factory=list)
    starts: dict[tuple[OpId, str], int] = field(default_factory=dict)
    """By subscription and pubend: the tick above which it is owed all events."""
    first_starts: dict[tuple[OpId, str], int] = field(default_factory=dict)
    """The first of these: starts are removed with an advertisement, and another advertisement may
    bring new ones."""
    lost_upto: dict[str, int] = field(default_factory=dict)
    """By pubend: the tick up to which its log has dropped events that were still owed."""
    trimmed_upto: dict[str, int] = field(default_factory=dict)
    """By pubend: the tick up to which its log has dropped anything."""
    withdrawn_upto: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """By client, epoch and pubend: the tick up to which the past that a subscription wants, or
    wanted until it was removed, is no longer readable, as the client's broker knows."""
    disturbed: Places = field(default_factory=Places)
    """Where frames could be lost or late, or a process was not running or connected."""
    amnesia: Places = field(default_factory=Places)
    """When a broker lost its state, or both ends of an edge what they knew of each other."""
    unsure: Places = field(default_factory=Places)
    """When a broker did not know yet what is wanted behind some neighbour. It asks all others again
    before it answers."""
    jumps: Places = field(default_factory=Places)
    """When a broker's clock jumped ahead."""
    oddities: list[tuple[str, str]] = field(default_factory=list)
    """Violations that the recorder itself found: guarantee and detail."""
    settled_at: float = inf
    """When everything was quiet: from then on everything in force counts as effective."""
    living: list[SessionRecord] = field(default_factory=list)
    """Sessions that are open at the end."""
    present: set[int] = field(default_factory=set)
    """Instances of clients that are connected at the end."""
    durable: dict[int, bool] = field(default_factory=dict)
    """Instances of durable clients: whether their application stores its own cursors."""
    effects: list[DeliveryRecord] = field(default_factory=list)
    """Deliveries that applications of durable clients have processed."""
    deals: dict[str, Deal] = field(default_factory=dict)
    """Transactions, by name."""
    planned: dict[tuple[str, str, str], list[Deed]] = field(default_factory=dict)
    """Removals by plans: by client, kind, and the client's name for the operation."""
    ends: dict[tuple[OpId, str], int] = field(default_factory=dict)
    """By subscription and pubend: the last tick that it is owed."""
    root: str = ""
    """The broker that decides transactions."""
    departed: set[int] = field(default_factory=set)
    """Instances that were killed, so that answers cannot reach them."""
    stays: Stays = field(default_factory=Stays)
    """Where brokers have had sessions, if clients move."""
    travels: Places = field(default_factory=Places)
    """By instance: from when a client was sent to another broker until it was welcomed."""
    moves: list[MoveRecord] = field(default_factory=list)
    orders: list[OrderRecord] = field(default_factory=list)
    hosted: dict[str, HostedRecord] = field(default_factory=dict)
    """By name, hosted clients."""
    places: dict[tuple[str, str], str] = field(default_factory=dict)
    """By client and epoch: the broker that a client connected last to at the end."""

    def odd(self, guarantee: str, detail: str) -> None:
        self.oddities.append((guarantee, detail))

    def forgot(self, names: Sequence[str], since: float, until: float = inf) -> bool:
        """Has any of these brokers, or a broker or a link between them, lost its state?"""
        if not names:
            return False
        places: list[str | Edge] = [*self.tree.span(names), *self.tree.edges_within(names)]
        return any(self.amnesia[place].meets(since, until) for place in places)

    def source_at(self, broker: str, session: SessionRecord) -> Hop:
        """The hop from which a broker hears of a session: a neighbour, or the client itself."""
        path = self.tree.path(broker, session.home)
        return Hop.broker(path[1]) if len(path) > 1 else Hop.client(session.client)

    def taken(self) -> list[DeliveryRecord]:
        """Deliveries to applications. Durable clients get again what they have not processed, so
        for them only processed deliveries count."""
        ordinary = [each for each in self.deliveries if each.instance not in self.durable]
        return ordinary + self.effects

    def operations(self, kind: str) -> list[OperationRecord]:
        return [
            operation
            for session in self.sessions
            for operation in session.operations.values()
            if operation.kind == kind
        ]

    def in_force(self) -> list[OperationRecord]:
        """Operations of living sessions that were neither refused nor removed."""
        return [
            operation
            for session in self.living
            for operation in session.operations.values()
            if operation.kind in ADDITIONS and not operation.gone
        ]


# ── the end of a run ─────────────────────────────────────────────────────────────────────


def finish(history: History) -> None:
    """The run is over: set the outcome of every transaction, as far as it is known."""
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
        if deal.outcome != ABORTED:
            _note_unheard(history, deal)
    for event in history.events:
        if event.staged and not event.fate:
            event.fate = "void"  # it was never requested


def _note_unheard(history: History, deal: Deal) -> None:
    """A plan has advertised for a client that left without reading the decision. The broker has
    accepted what the client published in this space, although the client did not know of it."""
    heard = {deed.order for deed in deal.deeds if deed.planned and deed.operation is not None}
    for client, steps in deal.steps.items():
        spaces = [s.filter for s in steps if s.kind == "advertise" and s.order not in heard]
        for session in history.sessions if spaces else ():
            lived_then = session.opened_at <= deal.answered_at and deal.at <= session.ended_at
            if session.client != client or not lived_then:
                continue
            for space in spaces:
                number = -1 - len(session.forgotten)  # its own is unknown
                asked = (number, 0, "advertise", space, None, False, 0.0, 0, deal.at)
                session.forgotten.append(OperationRecord(session, *asked, deal=deal))


def _fate(deal: Deal, deed: Deed) -> str:
    if deal.outcome == UNKNOWN:
        return "unknown"
    if deal.committed:
        return "accepted" if deed.answer == "Done" else "unknown"
    return "void"


# ── as tables, for the audit ─────────────────────────────────────────────────────────────


def write_history(history: History, folder: Path | str, run: str) -> None:
    """Add one run to a folder of histories."""
    writer = HistoryWriter(folder, run=run, part=run)
    _write_overlay(history, writer)
    for session in history.sessions:
        own, lasting = history.durable.get(session.instance, False), session in history.living
        writer.add("sessions", **session_row(session, own_cursors=own, lasting=lasting))
        for operation in session.operations.values():
            stands = operation.kind in ADDITIONS and not operation.gone and lasting
            writer.add("operations", **operation_row(operation, lasting=stands))
        for operation in session.forgotten:
            writer.add("operations", **operation_row(operation, is_forgotten=True))
    for event in history.events:
        if event.session is not None:  # else its publisher never sent it
            row = event_row(event)
            writer.add("events", **row)
            if event.tick:
                audience = sorted(str(op) for op in event.audience)
                logged = {**row_of("logged", event), **row, "audience": audience}
                writer.add("logged", **logged)
    for (op, pubend), tick in history.starts.items():
        first = history.first_starts.get((op, pubend), tick)
        writer.add("starts", op=str(op), pubend=pubend, first=first, tick=tick)
    for (op, pubend), tick in history.ends.items():
        writer.add("ends", op=str(op), pubend=pubend, tick=tick)
    _write_deliveries(history, writer)
    for loss in history.losses:
        writer.add("losses", **row_of("losses", loss, process=str(loss.instance)))
    for pubend, tick in history.lost_upto.items():
        trimmed = history.trimmed_upto.get(pubend, 0)
        writer.add("logs", pubend=pubend, lost_upto=tick, trimmed_upto=trimmed)
    for cut in history.cuts:
        writer.add("cuts", **row_of("cuts", cut))
    for deal in history.deals.values():
        _write_deal(history, deal, writer)
    _write_moves(history, writer)
    writer.flush()


def _write_moves(history: History, writer: HistoryWriter) -> None:
    """A move of a client that was killed has no answer: nobody can tell."""
    for move in history.moves:
        if move.instance not in history.departed:
            writer.add("moves", **move_row(move))
    ordered = {order.client for order in history.orders if "" in order.answers}
    for (client, epoch), stays in history.stays.items():
        came_at = 0.0
        for number, stay in enumerate(stays):
            place = {"client": client, "epoch": epoch, "broker": stay.broker, "number": number}
            writer.add("stays", **place, what="came" if number else "opened", at=came_at)
            if stay.until < inf:
                to, at = stays[number + 1].broker, min(stay.left_at, stay.until)
                is_ordered = client in ordered
                writer.add("stays", **place, what="left", to=to, at=at, is_ordered=is_ordered)
            came_at = stay.until


def _write_overlay(history: History, writer: HistoryWriter) -> None:
    for broker in history.tree.brokers:
        writer.add("brokers", broker=broker, is_root=broker == history.root)
    for one, other in history.tree.edges:
        writer.add("links", one=one, other=other)
    for place, spans in history.amnesia.items():
        if isinstance(place, int):
            continue
        ends = (place, "") if isinstance(place, str) else place
        for since, until in spans:
            writer.add("amnesia", one=ends[0], other=ends[1], since=since, until=until)


def _write_deliveries(history: History, writer: HistoryWriter) -> None:
    for came, deliveries in ((True, history.deliveries), (False, history.effects)):
        for nth, delivery in enumerate(deliveries):
            event, operation = delivery.event, delivery.operation
            row = row_of(
                "deliveries",
                delivery,
                process=str(delivery.instance),
                op="" if operation is None else str(operation.id),
                nth=nth,
                number=-1 if event is None else event.number,
                came=came,
                taken=not came or delivery.instance not in history.durable,
            )
            writer.add("deliveries", **row)


def _write_deal(history: History, deal: Deal, writer: HistoryWriter) -> None:
    writer.add("transactions", **transaction_row(deal))
    for deed in deal.deeds:
        stays = deed.session in history.living and deed.process in history.present
        writer.add("deeds", **deed_row(deed, stays=stays))
    for first, then in sorted(deal.before):
        writer.add("before", tx=deal.id, first=first, then=then)
    for told in deal.told:
        writer.add("words", **row_of("words", told, tx=deal.id))
    for client, epoch in deal.heirs:
        writer.add("hearers", tx=deal.id, client=client, epoch=epoch)
    for called in deal.called:
        writer.add("calls", **row_of("calls", called, tx=deal.id, op=str(called.op)))
