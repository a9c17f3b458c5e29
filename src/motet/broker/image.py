"""The durable half as a picture: everything that `Durable` knows, in parts that can be written.

One definition serves three: a snapshot is all parts, restoring takes them in, and the digest that
compares a replayed broker with the one that crashed is a hash of them. Whatever is forgotten here
is therefore missed by a test, not by a user.

Order matters: tables are listed in the order of arrival, because later steps walk them in it.
Sets of hops are lists of bit numbers here, since they may have any number of bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from motet.errors import InvariantError
from motet.model import Filter, Hop, OpId
from motet.protocol.link.machine import Ledger
from motet.protocol.link.messages import ControlMessage
from motet.protocol.link.state import LinkRecord
from motet.protocol.routing.state import Entry, Table, Wait, Withdrawal
from motet.protocol.session.state import Session
from motet.protocol.sinks.state import SinkState
from motet.protocol.transactions.state import Outcome, TxState

if TYPE_CHECKING:
    from motet.broker.durable import Durable

CHUNK = 256
"""Entries in one part: small enough that writing one never takes long."""

Bits = tuple[int, ...]
T = TypeVar("T")


class Head(Struct, tag="head", array_like=True, frozen=True):
    """What there is one of."""

    now: float
    issued: int
    lives: int
    removals: int
    ignored: int
    met: Bits
    complete: Bits
    declared: Bits
    next_keys: tuple[int, int]
    next_tick: int = 0
    reserved: int = 0
    destroyed: tuple[int, int] = (0, 0)


class Hops(Struct, tag="hops", array_like=True, frozen=True):
    """Which bit stands for whom, and which are free, in the order in which they will be used."""

    slots: tuple[Hop | None, ...]
    free: tuple[int, ...]
    neighbours: Bits


class EntryImage(Struct, array_like=True, frozen=True):
    id: OpId
    filter: Filter
    source: int
    key: int
    sent: Bits
    start: int = 0
    tx: str = ""
    ended: bool = False
    version: int = 0
    ended_at: int = 0
    end: int = 0


class Advertisements(Struct, tag="advs", array_like=True, frozen=True):
    entries: tuple[EntryImage, ...]


class Subscriptions(Struct, tag="subs", array_like=True, frozen=True):
    entries: tuple[EntryImage, ...]


class Clients(Struct, tag="clients", array_like=True, frozen=True):
    rows: tuple[tuple[str, str, Hop], ...]


class DurableClients(Struct, tag="lasting", array_like=True, frozen=True):
    """Which of them are durable, by client and epoch."""

    rows: tuple[tuple[str, str], ...]


class WaitImage(Struct, array_like=True, frozen=True):
    op: OpId
    what: str
    requester: Hop
    missing: Bits
    probe: Filter | None
    target: OpId | None
    retired: bool = False


class Waits(Struct, tag="waits", array_like=True, frozen=True):
    rows: tuple[WaitImage, ...]


class Withdrawals(Struct, tag="withdrawals", array_like=True, frozen=True):
    rows: tuple[tuple[OpId, tuple[OpId, ...], tuple[OpId, ...]], ...]


class Pubends(Struct, tag="pubends", array_like=True, frozen=True):
    """Where logs are, which one is ours, how far our clients have come."""

    hosted: str
    rows: tuple[tuple[str, Hop], ...]
    floors: tuple[tuple[str, int], ...]
    paths: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Retired(Struct, tag="retired", array_like=True, frozen=True):
    rows: tuple[tuple[OpId, OpId | None], ...]


class StartTicks(Struct, tag="starts", array_like=True, frozen=True):
    rows: tuple[tuple[OpId, tuple[tuple[str, int], ...]], ...]


class Windows(Struct, tag="windows", array_like=True, frozen=True):
    """Of subscriptions that begin or end with transactions: pubends that have yet to cut; ends;
    ends of lost ones. And of any: starts that are over."""

    tentative: tuple[tuple[OpId, tuple[str, ...]], ...]
    ends: tuple[tuple[OpId, tuple[tuple[str, int], ...]], ...]
    lost: tuple[tuple[OpId, int], ...]
    lapsed: tuple[tuple[OpId, tuple[tuple[str, int], ...]], ...]


class Versions(Struct, tag="versions", array_like=True, frozen=True):
    """What isolated transactions may read."""

    version: int
    watched: bool
    ghosts: tuple[tuple[GhostImage, int], ...]


class GhostImage(Struct, array_like=True, frozen=True):
    id: OpId
    filter: Filter
    source: Hop
    version: int


class TransactionState(Struct, tag="transactions", array_like=True, frozen=True):
    """All but the outcomes, of which there are many."""

    state: TxState


class Outcomes(Struct, tag="outcomes", array_like=True, frozen=True):
    rows: tuple[tuple[str, Outcome], ...]


class SinkImage(Struct, tag="sinks", array_like=True, frozen=True):
    state: SinkState


class LostStarts(Struct, tag="lost", array_like=True, frozen=True):
    rows: tuple[tuple[OpId, int, str], ...]


class JoinTicks(Struct, tag="joins", array_like=True, frozen=True):
    rows: tuple[tuple[OpId, tuple[tuple[str, int], ...]], ...]


class SessionList(Struct, tag="sessions", array_like=True, frozen=True):
    sessions: tuple[Session, ...]


class Ledgers(Struct, tag="ledgers", array_like=True, frozen=True):
    records: tuple[LinkRecord, ...]


class Outbox(Struct, tag="outbox", array_like=True, frozen=True):
    """Some of what one neighbour has not acknowledged, numbered from `first`."""

    neighbour: str
    first: int
    messages: tuple[ControlMessage, ...]


class Deadlines(Struct, tag="deadlines", array_like=True, frozen=True):
    rows: tuple[tuple[OpId, float, float], ...]


Part = (
    Head
    | Hops
    | Advertisements
    | Subscriptions
    | Clients
    | DurableClients
    | Waits
    | Withdrawals
    | Pubends
    | Retired
    | StartTicks
    | LostStarts
    | Windows
    | Versions
    | TransactionState
    | Outcomes
    | SinkImage
    | JoinTicks
    | SessionList
    | Ledgers
    | Outbox
    | Deadlines
)


# ── out ──────────────────────────────────────────────────────────────────────────────────


def parts_of(durable: Durable, *, outboxes: bool = True) -> Iterator[Part]:
    """Everything. Without `outboxes` nothing is missing that a journaled step could read: they
    shrink whenever an acknowledgement comes, which is no fact."""
    state = durable.routing.state
    advertisements, subscriptions = state.advertisements, state.subscriptions
    yield Head(
        durable.now,
        durable.sessions.issued,
        durable.lives,
        state.removals,
        durable.routing.ignored,
        _numbers(state.met),
        _numbers(state.complete),
        _numbers(state.declared),
        (advertisements.next_key, subscriptions.next_key),
        state.next_tick,
        durable.reserved,
        durable.destroyed,
    )
    bits = state.bits
    yield Hops(tuple(bits.slots), tuple(bits.free), _numbers(bits.all_neighbours))
    for chunk in _chunks(_entries(advertisements, durable)):
        yield Advertisements(chunk)
    for chunk in _chunks(_entries(subscriptions, durable)):
        yield Subscriptions(chunk)
    for rows in _chunks((*who, hop) for who, hop in state.clients.items()):
        yield Clients(rows)
    for lasting in _chunks(state.clients.durable):
        yield DurableClients(lasting)
    for waits in _chunks(map(_wait, state.waits.values())):
        yield Waits(waits)
    for withdrawals in _chunks(
        (target, tuple(w.under_way), tuple(w.held)) for target, w in state.withdrawals.items()
    ):
        yield Withdrawals(withdrawals)
    paths = tuple(state.paths.items())
    yield Pubends(state.hosted, tuple(state.pubends.items()), tuple(durable.floors.items()), paths)
    for retired in _chunks(state.retired.items()):
        yield Retired(retired)
    for ticks in _chunks((op, tuple(known.items())) for op, known in state.starts.items()):
        yield StartTicks(ticks)
    for lost in _chunks((op, *start) for op, start in state.lost_starts.items()):
        yield LostStarts(lost)
    yield from _transactional(durable)
    for ticks in _chunks((op, tuple(known.items())) for op, known in state.joins.items()):
        yield JoinTicks(ticks)
    for sessions in _chunks(durable.sessions):
        yield SessionList(sessions)
    yield Ledgers(tuple(ledger.record for ledger in durable.ledgers.values()))
    if outboxes:
        yield from _outboxes(durable)
    for deadlines in _chunks((op, at, s) for op, (at, s) in durable.deadlines.items()):
        yield Deadlines(deadlines)


def _transactional(durable: Durable) -> Iterator[Part]:
    state = durable.routing.state
    tentative = tuple((op, tuple(known)) for op, known in state.tentative.items())
    ends = tuple((op, tuple(known.items())) for op, known in state.ends.items())
    lost = tuple(state.lost_ends.items())
    lapsed = tuple((op, tuple(known.items())) for op, known in state.lapsed.items())
    if tentative or ends or lost or lapsed:
        yield Windows(tentative, ends, lost, lapsed)
    ghosts = tuple(
        (GhostImage(entry.id, entry.filter, entry.source, entry.version), gone)
        for entry, gone in state.ghosts
    )
    yield Versions(state.version, state.watched, ghosts)
    transactions = durable.transactions.state
    yield TransactionState(replace(transactions, outcomes={}, keys={}))
    for rows in _chunks(transactions.outcomes.items()):
        yield Outcomes(rows)
    if durable.sinks.state:
        yield SinkImage(durable.sinks.state)


def _entries(table: Table, durable: Durable) -> Iterator[EntryImage]:
    number = durable.routing.state.bits.number
    for entry in table:
        source = number(entry.source)
        sent = _numbers(entry.sent)
        tagged = (entry.tx, entry.ended, entry.version, entry.ended_at, entry.end)
        yield EntryImage(entry.id, entry.filter, source, entry.key, sent, entry.start, *tagged)


def _wait(wait: Wait) -> WaitImage:
    missing = _numbers(wait.missing)
    return WaitImage(
        wait.op, wait.what, wait.requester, missing, wait.probe, wait.target, wait.retired
    )


def _outboxes(durable: Durable) -> Iterator[Outbox]:
    for neighbour, ledger in durable.ledgers.items():
        for chunk in _chunks(ledger.outbox):
            yield Outbox(neighbour, chunk[0][0], tuple(message for _, message in chunk))


def _chunks(rows: Iterable[T]) -> Iterator[tuple[T, ...]]:
    left = iter(rows)
    while chunk := tuple(islice(left, CHUNK)):
        yield chunk


def _numbers(mask: int) -> Bits:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)


# ── in ───────────────────────────────────────────────────────────────────────────────────


def take_in(durable: Durable, parts: Iterable[Part]) -> None:
    """Fill a `Durable` that is as new; afterwards it is the one the parts were taken from."""
    state = durable.routing.state
    for part in parts:
        match part:
            case Head():
                _take_head(durable, part)
            case Hops(slots, free, neighbours):
                state.bits.restore(slots, free, _mask(neighbours))
            case Advertisements(entries):
                _take_entries(durable, state.advertisements, entries)
            case Subscriptions(entries):
                _take_entries(durable, state.subscriptions, entries)
            case Clients(rows):
                for client, epoch, hop in rows:
                    state.clients[client, epoch] = hop
            case DurableClients(lasting):
                state.clients.durable.update(dict.fromkeys(lasting))
            case Waits(waits):
                for image in waits:
                    state.waits[image.op] = _wait_from(image)
            case Withdrawals(withdrawals):
                for target, under_way, held in withdrawals:
                    state.withdrawals[target] = Withdrawal(dict.fromkeys(under_way), list(held))
            case Pubends():
                _take_pubends(durable, part)
            case Retired(retired):
                state.retired.update(retired)
            case StartTicks(ticks):
                state.starts.update((op, dict(known)) for op, known in ticks)
            case SinkImage(sinks):
                durable.sinks.state = sinks
            case Windows() | Versions() | TransactionState() | Outcomes():
                _take_transactional(durable, part)
            case LostStarts(lost):
                state.lost_starts.update((op, (tick, name)) for op, tick, name in lost)
            case JoinTicks(ticks):
                state.joins.update((op, dict(known)) for op, known in ticks)
            case SessionList(sessions):
                for session in sessions:
                    durable.sessions.restore(session)
                    if session.total_order:
                        state.merging[session.client] = None
            case Ledgers(records):
                durable.ledgers = {record.neighbour: Ledger.restored(record) for record in records}
            case Outbox(neighbour, first, messages):
                durable.ledgers[neighbour].outbox.extend(enumerate(messages, first))
            case Deadlines(deadlines):
                durable.deadlines.update((op, (at, s)) for op, at, s in deadlines)
            case _:
                raise InvariantError(f"{type(part).__name__} is no part of an image")


def _take_head(durable: Durable, head: Head) -> None:
    state = durable.routing.state
    durable.now = head.now
    durable.sessions.issued = head.issued
    durable.lives = head.lives
    durable.routing.ignored = head.ignored
    state.removals = head.removals
    state.met, state.complete = _mask(head.met), _mask(head.complete)
    state.declared = _mask(head.declared)
    state.advertisements.next_key, state.subscriptions.next_key = head.next_keys
    state.next_tick = head.next_tick
    durable.reserved = head.reserved
    durable.destroyed = head.destroyed


def _take_pubends(durable: Durable, part: Pubends) -> None:
    state = durable.routing.state
    state.hosted = part.hosted
    state.pubends.update(part.rows)
    state.paths.update(part.paths)
    durable.floors.update(part.floors)


def _take_transactional(
    durable: Durable, part: Windows | Versions | TransactionState | Outcomes
) -> None:
    state = durable.routing.state
    match part:
        case Windows(tentative, ends, lost, lapsed):
            state.lost_ends.update(lost)
            state.tentative.update((op, dict.fromkeys(known)) for op, known in tentative)
            state.ends.update((op, dict(known)) for op, known in ends)
            state.lapsed.update((op, dict(known)) for op, known in lapsed)
        case Versions(version, watched, ghosts):
            state.version, state.watched = version, watched
            state.ghosts = [
                (Entry(g.id, g.filter, g.source, 0, version=g.version), gone) for g, gone in ghosts
            ]
        case TransactionState(transactions):
            durable.transactions.state = transactions
            waiting = [each.decide for each in transactions.active.values() if each.cutting]
            state.uncut |= {begun.op: None for decide in waiting for begun in decide.begun}
            state.unended |= {ended.op: None for decide in waiting for ended in decide.ended}
            state.forsaken |= {op: None for each in transactions.held if (op := each.forsaken)}
        case Outcomes(rows):
            for tx, outcome in rows:
                durable.transactions.state.remember(tx, outcome)


def _take_entries(durable: Durable, table: Table, images: Sequence[EntryImage]) -> None:
    slots = durable.routing.state.bits.slots
    for image in images:
        source = slots[image.source]
        if source is None:
            raise InvariantError(f"{image.id} comes from nobody")
        sent = _mask(image.sent)
        tagged = (image.tx, image.ended, image.version, image.ended_at, image.end)
        entry = Entry(image.id, image.filter, source, image.key, sent, image.start, *tagged)
        table.restore(entry)
        durable.routing.state.watch(entry)


def _wait_from(image: WaitImage) -> Wait:
    missing = _mask(image.missing)
    return Wait(
        image.op, image.what, image.requester, missing, image.probe, image.target, image.retired
    )


def _mask(numbers: Bits) -> int:
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask
