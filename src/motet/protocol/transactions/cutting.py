"""Where a transaction meets tables and streams: versions that are read, and cuts that are made.

Versions need no copies: every entry knows the version of the tables from which on it is in force,
and while an isolated transaction is open, what is removed is remembered beside the tables.

A cut is one tick of our own pubend, above which the subscriptions that a transaction begins begin,
and those that it ends end; its events follow as one block. Where an operation stands behind events
of the same transaction, it begins or ends behind them. Cuts are made in the order of the decisions.
"""

from __future__ import annotations

from msgspec.structs import replace

from motet.model import Filter, OpId, Value, decode_attributes, overlap
from motet.protocol.routing.messages import Advertise, RoutingMessage, Subscribe, Switched
from motet.protocol.routing.starts import HERE
from motet.protocol.routing.state import Entry
from motet.protocol.session.messages import Done
from motet.protocol.transactions.effects import Office
from motet.protocol.transactions.messages import Begun, Decide, Ended, Invite
from motet.protocol.transactions.state import Active, Block, Read, Staged, Switch


class Cutting(Office):
    # ── versions ─────────────────────────────────────────────────────────────────────────

    def _snapshot(self, tx: str) -> None:
        self.state.bases[tx] = self.routing.version
        self.routing.watched = True

    def _readable(self, invite: Invite, attributes: dict[str, Value]) -> list[Entry]:
        """The subscriptions that an invitation meets: committed when its transaction began, or
        its own. One that is not isolated meets whatever is committed now."""
        base = self.state.bases.get(invite.tx)
        return [
            entry
            for entry in self._matching(attributes, base)
            if entry.tx == invite.tx or not entry.tx
        ]

    def _matching(self, attributes: dict[str, Value], base: int | None) -> list[Entry]:
        found = self.routing.subscriptions.matching(attributes)
        if base is None:
            return [entry for entry in found if not entry.ended]
        now = [e for e in found if e.tx or (e.version <= base and not _ended_by(e, base))]
        before = [
            entry
            for entry, gone in self.routing.ghosts
            if entry.version <= base < gone and entry.filter.matches(attributes)
        ]
        return [*now, *before]

    def _stale(self, tx: str) -> str:
        """What an isolated transaction has read here and is different now."""
        if tx not in self.state.bases:
            return f"{self.name} knows nothing of it, or not any more: run it again"
        for read in self.state.reads.get(tx, ()):
            if self._hops_now(tx, read) != read.hops:
                return (
                    f"one of its invitations would reach others at {self.name} by now, because "
                    "subscriptions have changed since: run it again"
                )
        return ""

    def _hops_now(self, tx: str, read: Read) -> tuple[str, ...]:
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
        return (*sorted(neighbours), *(f"client {name}" for name in sorted(clients)))

    def _forget_reads(self, tx: str) -> None:
        self.state.reads.pop(tx, None)
        if self.state.bases.pop(tx, None) is not None:
            self.routing.remember_since(min(self.state.bases.values(), default=None))

    # ── tables ───────────────────────────────────────────────────────────────────────────

    def _mark(self, message: Decide) -> None:
        """What begins is tentative no more; what ends, ends."""
        table = self.routing.subscriptions
        if message.committed:
            for begun in message.begun:
                entry = table.get(begun.op)
                if entry is not None:
                    self._in_force(entry)
            for ended in message.ended:
                entry = table.get(ended.op)
                if entry is not None:
                    self.routing.version += 1
                    entry.ended = True
                    entry.ended_at = self.routing.version
                    self.routing.watch(entry)
            for entry in list(self.routing.undecided.values()):
                if entry.tx == message.tx:
                    self._in_force(entry)

    def _in_force(self, entry: Entry) -> None:
        self.routing.version += 1
        entry.tx, entry.version = "", self.routing.version
        self.routing.watch(entry)

    def normalised(self, message: RoutingMessage) -> RoutingMessage:
        """What a neighbour sent before it had heard of a decision that we know."""
        if not self.state.active or not isinstance(message, (Advertise, Subscribe)):
            return message
        active = self.state.active.get(message.tx) if message.tx else None
        if active is not None and active.decide.committed:
            message = replace(message, tx="")
        if isinstance(message, Subscribe) and not message.ended:
            for each in self.state.active.values():
                if any(ended.op == message.id for ended in each.decide.ended):
                    return replace(message, ended=True)
        return message

    # ── cuts ─────────────────────────────────────────────────────────────────────────────

    def _is_touched(self, message: Decide) -> bool:
        """Does our pubend publish in it, or owe events to what it begins or ends?"""
        if message.tx in self.state.staged:
            return True
        table = self.routing.subscriptions
        ends = (entry for each in message.ended if (entry := table.get(each.op)) is not None)
        if any(entry.start for entry in ends):
            return True
        if any(self._is_missing(each) for each in message.ended):
            return True
        concerned = {begun.op for begun in message.begun} | {ended.op for ended in message.ended}
        if not concerned.isdisjoint(self.routing.lost_starts):
            return True
        return any(self._begins_here(begun) for begun in message.begun)

    def _begins_here(self, begun: Begun) -> bool:
        entry = self.routing.subscriptions.get(begun.op)
        if entry is not None:
            return bool(entry.start)
        return self._is_coming(begun.op, begun.filter)

    def _is_missing(self, ended: Ended) -> bool:
        """It was withdrawn from here when nobody advertised what it wants, and comes again; where
        its client is, a start of before may count until then."""
        missing = ended.op not in self.routing.subscriptions
        return missing and self._is_coming(ended.op, ended.filter)

    def _is_coming(self, op: OpId, filter: Filter) -> bool:
        """Somebody here advertises what it wants, so it must be on its way; unless its session
        has gone."""
        routing = self.routing
        here = routing.advertisements.overlapping_hops(filter) & ~routing.bits.all_neighbours
        return bool(here) and (op.client, op.epoch) in routing.clients

    def due(self) -> str:
        """The transaction whose cut can be made now; empty if there is none."""
        first: Active | None = None
        for active in self.state.active.values():
            if active.cutting and (first is None or active.decide.number < first.decide.number):
                first = active
        if first is None:
            return ""
        if first.settled and not self.routing.unsure:
            return first.decide.tx  # all is here that was anywhere when we heard of it
        table = self.routing.subscriptions
        missing = [b for b in first.decide.begun if b.op not in table]
        if any(self._is_coming(begun.op, begun.filter) for begun in missing):
            return ""
        return first.decide.tx

    def cut(self, tx: str, tick: int) -> None:
        """The cut of a transaction is at this tick: it is written once, and here."""
        active = self.state.active[tx]
        active.cutting = False
        for begun in active.decide.begun:
            self.routing.uncut.pop(begun.op, None)
        for ended in active.decide.ended:
            self.routing.unended.pop(ended.op, None)
        block = self._block(active.decide, tick)
        self.state.blocks[tx] = block
        for at, event in enumerate(block.events, tick + 1):
            self.state.published[event.client] = at
        self.state.last_cut = (block.number, block.last_tick)
        self.routing.next_tick = max(self.routing.next_tick, block.last_tick + 1)
        self._effects.blocks.append(block)
        for switch in block.switches:
            told = Switched(switch.op, self.routing.hosted, switch.tick, switch.ended)
            self._effects.routes.append((told, HERE))
        if self.state.postponed:
            self._postponed_no_longer()

    def postpone(self, op: OpId) -> bool:
        """Everybody knows an advertisement of a client of ours. But subscriptions that were
        committed meanwhile begin here only with our cut, and it is not effective before."""
        waits = self._waits_for_cut(op)
        if waits:
            self.state.postponed.append(op)
        return waits

    def _waits_for_cut(self, op: OpId) -> bool:
        entry = self.routing.advertisements.get(op) if self.routing.uncut else None
        if entry is None or entry.source.is_broker:
            return False
        cutting = [each.decide for each in self.state.active.values() if each.cutting]
        begun = [each.filter for decide in cutting for each in decide.begun]
        return any(overlap(entry.filter, each) for each in begun)

    def _postponed_no_longer(self) -> None:
        for op in [op for op in self.state.postponed if not self._waits_for_cut(op)]:
            self.state.postponed.remove(op)
            self._answer(op, Done(op.sequence))

    def _block(self, decide: Decide, tick: int) -> Block:
        staged = [
            (order, client, body)
            for client, events in self.state.staged.pop(decide.tx, {}).items()
            for order, body in events
        ]
        staged.sort(key=lambda each: each[:2])
        orders = [order for order, _, _ in staged]
        switches: list[Switch] = []
        table = self.routing.subscriptions
        for ended, operations in ((False, decide.begun), (True, decide.ended)):
            for each in operations:
                entry = table.get(each.op)
                is_here = entry is not None and entry.start
                lost = self.routing.lost_starts.get(each.op)
                is_missing = isinstance(each, Ended) and self._is_missing(each)
                if not is_here and lost is None and not is_missing:
                    continue
                at = tick + sum(1 for order in orders if order < each.order)
                if entry is None or not is_here:  # it is told when it comes again
                    if ended:
                        self.routing.lost_ends[each.op] = at
                        switches.append(Switch(each.op, at, ended))
                    elif lost is not None:
                        self.routing.lost_starts[each.op] = (at, lost[1])
                    continue
                switches.append(Switch(each.op, at, ended))
                if ended:
                    entry.end = at
                else:
                    entry.start = at
        events = tuple(Staged(c, at, body) for at, (_, c, body) in enumerate(staged))
        shared = tuple(orders) if len(decide.pubends) > 1 else ()
        told = (decide.tx, decide.number, tick, tuple(switches), decide.pubends)
        return Block(*told, events, shared)

    def staging(self) -> set[str]:
        """Clients of ours whose events wait for a decision, for a cut, or for the log to have
        them."""
        waiting = {client for staged in self.state.staged.values() for client in staged}
        for local in self.state.locals.values():
            waiting |= {client for client, part in local.parts.items() if part.staged}
        return waiting | {e.client for b in self.state.blocks.values() for e in b.events}

    def logged(self, tx: str) -> None:
        """The log has a block: nobody needs to write it again."""
        self.state.blocks.pop(tx, None)


def _ended_by(entry: Entry, base: int) -> bool:
    return entry.ended and entry.ended_at <= base
