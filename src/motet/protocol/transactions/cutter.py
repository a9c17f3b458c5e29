"""Cuts of our own pubend, where transactions meet its stream.

A cut is one tick. After it, the subscriptions that a transaction begins begin, and those that it
ends end; its events follow as one block. An operation that comes after events of the same
transaction begins or ends after them. Cuts are made in the order of the decisions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container
from dataclasses import dataclass, field

from msgspec import Raw

from motet.model import Filter, OpId, Value, decode_attributes, overlap
from motet.protocol.room import Objection
from motet.protocol.routing.messages import Switched
from motet.protocol.routing.starts import Starts
from motet.protocol.routing.state import HERE, Entry, RoutingState
from motet.protocol.session.messages import Done
from motet.protocol.transactions.courier import Courier, Outgoing
from motet.protocol.transactions.messages import Begun, Decide, Ended, Invite, Opening, Prepare
from motet.protocol.transactions.state import (
    Block,
    CutterState,
    Flood,
    Held,
    Ignored,
    InvitationRead,
    Marks,
    Move,
    Moves,
    StagedEvent,
    Switch,
    Touched,
    VersionState,
)

MOST_MADE = 1000
"""How many of its cuts a pubend remembers by transaction."""


class CutPhase(Move):
    UNTOUCHED = "not touched"
    TOUCHED = "touched"
    URGENT = "settled everywhere else"
    CUT = "cut"
    LOGGED = "logged"


class CutEvent(Move):
    DECISION = "a decision that touches our pubend"
    SETTLE = "its effect everywhere else"
    CUT = "its cut"
    LOG = "its log record"


LOST_CUT = Ignored("the journal has lost the cut, and makes another: the digest of a replay tells")
MOVES: Moves[CutPhase, CutEvent] = Moves(
    "the cut of",
    {
        CutPhase.UNTOUCHED: {
            CutEvent.DECISION: CutPhase.TOUCHED,
            CutEvent.SETTLE: Ignored("our pubend has nothing to do with it"),
            CutEvent.LOG: Ignored("a sink has published it"),
        },
        CutPhase.TOUCHED: {
            CutEvent.SETTLE: CutPhase.URGENT,
            CutEvent.CUT: CutPhase.CUT,
            CutEvent.LOG: LOST_CUT,
        },
        CutPhase.URGENT: {
            CutEvent.SETTLE: CutPhase.URGENT,
            CutEvent.CUT: CutPhase.CUT,
            CutEvent.LOG: LOST_CUT,
        },
        CutPhase.CUT: {
            CutEvent.SETTLE: Ignored("there is nothing to hurry"),
            CutEvent.LOG: CutPhase.LOGGED,
        },
        CutPhase.LOGGED: {},  # then it is forgotten, and so UNTOUCHED
    },
)


@dataclass(eq=False)
class TxTables:
    """The routing tables, as transactions read and write them.

    An entry knows the undecided transaction that it belongs to, the version of the tables since
    which it is in force, and where it begins and ends in our own pubend. The root opens an isolated
    transaction with a question to all brokers, which fixes a version of the tables at each. Its
    invitations match the subscriptions of that version. Before the decision, a second question asks
    whether they would match the same ones now. Versions need no copies: while an isolated
    transaction is open, removed entries are remembered beside the tables.
    """

    _courier: Courier
    _tables: RoutingState
    starts: Starts
    merging: Container[str]
    """Local clients in total order."""
    marks: Marks
    state: VersionState = field(default_factory=VersionState, init=False)

    # ── versions ─────────────────────────────────────────────────────────────────────────

    def is_open(self, tx: str) -> bool:
        """Whether an isolated transaction is undecided, as far as we know."""
        return tx in self.state.bases

    def open(self, message: Opening, source: str) -> Flood | None:
        self.marks.watched = True
        self.state.bases[message.tx] = self.marks.version
        return self._courier.ask(message, source)

    def check(self, message: Prepare, source: str) -> Flood | None:
        found = self.objection(message.tx)
        return self._courier.ask(message, source, "" if found is None else found.text)

    def readable(self, invite: Invite, attributes: dict[str, Value]) -> list[Entry]:
        """The subscriptions that an invitation matches: of its own transaction, or committed when
        that was opened; if it is not isolated, committed now."""
        found = self._matching(attributes, self.state.bases.get(invite.tx))
        return [entry for entry in found if entry.tx in (invite.tx, "")]

    def note(self, tx: str, read: InvitationRead) -> None:
        self.state.reads.setdefault(tx, []).append(read)

    def forget(self, tx: str) -> None:
        self.state.reads.pop(tx, None)
        if self.state.bases.pop(tx, None) is not None:
            oldest = min(self.state.bases.values(), default=None)
            marks = self.marks
            marks.watched = oldest is not None
            marks.ghosts = [] if oldest is None else [g for g in marks.ghosts if g[1] > oldest]

    def objection(self, tx: str) -> Objection | None:
        """Why an isolated transaction fails validation here."""
        if tx not in self.state.bases:
            text = f"{self._courier.name} does not know it, or no longer; run it again"
            return Objection("Aborted", text)
        for read in self.state.reads.get(tx, ()):
            if self._hops_now(tx, read) != read.hops:
                return Objection(
                    "Aborted",
                    f"one of its invitations would reach others at {self._courier.name} by now, "
                    "because subscriptions have changed since: run it again",
                )
        return None

    def _matching(self, attributes: dict[str, Value], base: int | None) -> list[Entry]:
        found = self._tables.subscriptions.matching(attributes)
        if base is None:
            return [entry for entry in found if not entry.ended]
        now = [
            entry
            for entry in found
            if entry.tx or (entry.version <= base and not (entry.ended and entry.ended_at <= base))
        ]
        before = [
            entry
            for entry, gone in self.marks.ghosts
            if entry.version <= base < gone and entry.filter.matches(attributes)
        ]
        return [*now, *before]

    def _hops_now(self, tx: str, read: InvitationRead) -> tuple[str, ...]:
        neighbours: dict[str, None] = {}
        clients: dict[str, None] = {}
        for entry in self._matching(decode_attributes(read.body), None):
            if entry.tx and (entry.tx != tx or entry.id not in read.own):
                continue
            if not entry.source.is_broker:
                if read.op is None or entry.id[:2] != read.op[:2]:
                    clients[entry.source.name] = None
            elif entry.source.name != read.source:
                neighbours[entry.source.name] = None
        return hops_of(neighbours, clients)

    # ── decisions ────────────────────────────────────────────────────────────────────────

    def take_effect(self, decide: Decide) -> None:
        """What begins is no longer tentative; what ends stays only for events that it is owed."""
        tables, marks = self._tables, self.marks
        for begun in decide.begun:
            entry = tables.subscriptions.get(begun.op)
            if entry is not None:
                marks.put_in_force(entry)
        for ended in decide.ended:
            entry = tables.subscriptions.get(ended.op)
            if entry is not None:
                marks.end(entry)
        for entry in list(marks.undecided.values()):
            if entry.tx == decide.tx:
                marks.put_in_force(entry)

    def await_cut(self, decide: Decide) -> None:
        self.marks.uncut |= dict.fromkeys(each.op for each in decide.begun)
        self.marks.unended |= dict.fromkeys(each.op for each in decide.ended)

    def cut(self, decide: Decide) -> None:
        for begun in decide.begun:
            self.marks.uncut.pop(begun.op, None)
        for ended in decide.ended:
            self.marks.unended.pop(ended.op, None)

    def settle(self, decide: Decide) -> None:
        """Forget the ends of lost subscriptions that will not come again."""
        for ended in decide.ended:
            self.starts.settle_end(ended.op)

    # ── requests that wait ───────────────────────────────────────────────────────────────

    def hold(self, held: Held) -> None:
        """The subscription is over for its client, but stays until the request is released."""
        if held.forsaken is not None:
            self.starts.suspend(held.forsaken)

    def release(self, held: Held) -> None:
        """The request that removes this subscription is carried out now."""
        if held.forsaken is not None:
            self.starts.resume(held.forsaken)


def hops_of(neighbours: dict[str, None], clients: dict[str, None]) -> tuple[str, ...]:
    return (*sorted(neighbours), *(f"client {name}" for name in sorted(clients)))


@dataclass(eq=False)
class Cutter:
    _out: Outgoing
    _tables: RoutingState
    _versions: TxTables
    state: CutterState = field(default_factory=CutterState, init=False)

    def phase(self, tx: str) -> CutPhase:
        touched = self.state.touched.get(tx)
        if touched is not None:
            return CutPhase.URGENT if touched.settled else CutPhase.TOUCHED
        return CutPhase.CUT if tx in self.state.blocks else CutPhase.UNTOUCHED

    def must_cut(self, tx: str) -> bool:
        return tx in self.state.touched

    # ── touched ──────────────────────────────────────────────────────────────────────────

    def stage(self, tx: str, events: dict[str, list[tuple[str, Raw]]]) -> None:
        """The events, by client, that a committed transaction publishes here."""
        if events:
            self.state.staged[tx] = events

    def touch(self, decide: Decide) -> None:
        """If our pubend has to cut, nothing begins or ends there permanently before that."""
        if decide.tx not in self.state.made and self._is_touched(decide):
            MOVES.next(self.phase(decide.tx), CutEvent.DECISION, decide.tx)
            self.state.touched[decide.tx] = Touched(decide)
            self._versions.await_cut(decide)

    def hurry(self, tx: str) -> bool:
        """All other pubends have cut. Returns whether that is new and ours still has to."""
        if MOVES.next(self.phase(tx), CutEvent.SETTLE, tx) is None:
            return False
        touched = self.state.touched[tx]
        news, touched.settled = not touched.settled, True
        return news

    def _is_touched(self, decide: Decide) -> bool:
        """Does our pubend publish in it, or owe events to subscriptions that it begins or ends?"""
        if decide.tx in self.state.staged:
            return True
        table = self._tables.subscriptions
        ends = (entry for each in decide.ended if (entry := table.get(each.op)) is not None)
        if any(entry.start for entry in ends):
            return True
        if any(self._is_missing(each) for each in decide.ended):
            return True
        concerned = {begun.op for begun in decide.begun} | {ended.op for ended in decide.ended}
        if not concerned.isdisjoint(self._versions.starts.lost):
            return True
        return any(self._begins_here(begun) for begun in decide.begun)

    def _begins_here(self, begun: Begun) -> bool:
        entry = self._tables.subscriptions.get(begun.op)
        if entry is not None:
            return bool(entry.start)
        return self._is_coming(begun.op, begun.filter)

    def _is_missing(self, ended: Ended) -> bool:
        """The subscription was withdrawn from here because no advertisement matched it, and comes
        again; at its client's broker an earlier start may count until then."""
        missing = ended.op not in self._tables.subscriptions
        return missing and self._is_coming(ended.op, ended.filter)

    def _is_coming(self, op: OpId, filter: Filter) -> bool:
        """A local client advertises what it matches, so it must be on its way, unless its session
        is gone."""
        tables = self._tables
        here = tables.advertisements.overlapping_hops(filter) & ~tables.bits.all_neighbours
        return bool(here) and (op.client, op.epoch) in tables.clients

    # ── cut ──────────────────────────────────────────────────────────────────────────────

    def due(self) -> str:
        """The transaction whose cut can be made now; empty if there is none."""
        if not self.state.touched:
            return ""
        first = min(self.state.touched.values(), key=lambda each: each.decide.number)
        if first.settled and not self._tables.unsure:
            return first.decide.tx  # whatever existed when we heard of it has arrived
        table = self._tables.subscriptions
        missing = [b for b in first.decide.begun if b.op not in table]
        if any(self._is_coming(begun.op, begun.filter) for begun in missing):
            return ""
        return first.decide.tx

    def cut(self, tx: str, tick: int) -> None:
        """Cut for a transaction at this tick; the cut is recorded once, here."""
        MOVES.next(self.phase(tx), CutEvent.CUT, tx)
        decide = self.state.touched.pop(tx).decide
        self._versions.cut(decide)
        block = self._block(decide, tick)
        self.state.blocks[tx] = block
        for at, event in enumerate(block.events, tick + 1):
            self.note_published(event.client, at)
        self.state.last_cut = (block.number, block.last_tick)
        self._note_made(tx)
        self._versions.starts.advance(block.last_tick + 1)
        self._out.effects.blocks.append(block)
        for switch in block.switches:
            told = Switched(switch.op, self._tables.hosted, switch.tick, switch.ended)
            self._out.route(told, HERE)
        self._answer_postponed()

    def _note_made(self, tx: str) -> None:
        made = self.state.made
        made[tx] = None
        if len(made) > MOST_MADE:
            del made[next(iter(made))]

    def _block(self, decide: Decide, tick: int) -> Block:
        staged = [
            (order, client, body)
            for client, events in self.state.staged.pop(decide.tx, {}).items()
            for order, body in events
        ]
        staged.sort(key=lambda each: each[:2])
        orders = [order for order, _, _ in staged]
        switches: list[Switch] = []
        operations: list[Begun | Ended] = [*decide.begun, *decide.ended]
        for each in operations:
            at = tick + bisect_left(orders, each.order)
            if self._switch(each, at):
                switches.append(Switch(each.op, at, isinstance(each, Ended)))
        events = tuple(StagedEvent(c, at, body) for at, (_, c, body) in enumerate(staged))
        shared = tuple(orders) if len(decide.pubends) > 1 else ()
        told = (decide.tx, decide.number, tick, tuple(switches), decide.pubends)
        return Block(*told, events, shared)

    def _switch(self, each: Begun | Ended, at: int) -> bool:
        """Begin or end a subscription at a tick of ours. Returns whether the cut announces that:
        the start of a lost subscription is announced when it comes again."""
        entry = self._tables.subscriptions.get(each.op)
        starts, ends = self._versions.starts, isinstance(each, Ended)
        if entry is not None and entry.start:
            starts.cut(entry, at, ended=ends)
            return True
        is_lost = each.op in starts.lost
        if isinstance(each, Ended) and (is_lost or self._is_missing(each)):
            starts.end_lost(each.op, at)
            return True
        if is_lost:
            starts.restart_lost(each.op, at)
        return False

    # ── logged ───────────────────────────────────────────────────────────────────────────

    def logged(self, tx: str) -> None:
        """The log has the block, so it need not be written again."""
        if MOVES.next(self.phase(tx), CutEvent.LOG, tx) is not None:
            del self.state.blocks[tx]

    def note_published(self, client: str, tick: int) -> None:
        self.state.published[client] = tick

    def forget_published(self, client: str) -> None:
        self.state.published.pop(client, None)

    def staging(self) -> set[str]:
        """Local clients whose events wait for a cut, or to be logged."""
        waiting = {client for staged in self.state.staged.values() for client in staged}
        return waiting | {e.client for b in self.state.blocks.values() for e in b.events}

    # ── advertisements that wait for a cut ───────────────────────────────────────────────

    def postpone(self, op: OpId) -> bool:
        """All brokers know a local client's advertisement. But subscriptions that were committed
        meanwhile begin here only with our cut; the advertisement is not effective before."""
        waits = self._waits_for_cut(op)
        if waits:
            self.state.postponed.append(op)
        return waits

    def _waits_for_cut(self, op: OpId) -> bool:
        entry = self._tables.advertisements.get(op) if self._versions.marks.uncut else None
        if entry is None or entry.source.is_broker:
            return False
        touched = self.state.touched.values()
        begun = [each.filter for one in touched for each in one.decide.begun]
        return any(overlap(entry.filter, each) for each in begun)

    def _answer_postponed(self) -> None:
        for op in [op for op in self.state.postponed if not self._waits_for_cut(op)]:
            self.state.postponed.remove(op)
            self._out.answer(op, Done(op.sequence))
