"""The routing machine: who hears of which advertisement and subscription, and who may know it.

Advertisements flood; subscriptions follow overlapping advertisements back; removals follow
exactly the `sent` marks that additions left. What a neighbour holds from us is therefore always
what our last messages on that FIFO link said, whatever crossed on the way.

An operation is *effective* when its echo is complete (see `messages`). Whichever of a crossing
advertisement and subscription arrives later at a broker carries the obligation there: an
advertisement attracts before it echoes, a subscription is passed on before it echoes.

One door: `apply`, `end`, `abandon` and the moves of neighbours (`forget`, `join`, `admit`,
`dismiss`) change the state; nobody else does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from motet.errors import InvariantError
from motet.model import Hop, OpId
from motet.protocol.routing.completeness import Completeness
from motet.protocol.routing.messages import (
    Advertise,
    ClientGone,
    ClientHere,
    Complete,
    Confirmed,
    Echo,
    Join,
    PubendGone,
    PubendHere,
    RoutingMessage,
    Started,
    Subscribe,
    Switched,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.routing.obligations import Completed, Effects
from motet.protocol.routing.state import Entry, RoutingState, Table, Wait, Withdrawal


class Routing(Completeness):
    def __init__(self, life: str, neighbours: Sequence[str], *, covering: bool = False) -> None:
        """`life` names this broker in this incarnation, for operations of its own."""
        super().__init__(RoutingState(neighbours))
        self._life = life
        self.name = life.rpartition("-")[0]
        self.covering = covering
        self.ignored = 0
        """Additions of what is there and removals of what is not. A correct neighbour causes
        none; a journaled step cannot refuse them, so they change nothing and are counted."""

    # ── the door ─────────────────────────────────────────────────────────────────────────

    def apply(self, message: RoutingMessage, source: Hop) -> Effects:
        """One control message, from a neighbour or made from a client's request."""
        MOVES[type(message)](self, message, source)
        return self._take_effects()

    def found(self, pubend: str) -> Effects:
        """Our broker has a pubend: everybody hears where its log is."""
        self.host(pubend)
        return self._take_effects()

    def let_go(self, target: OpId, upto: int) -> Effects:
        """A retired advertisement is needed no more; see `Unadvertise`."""
        self.over(target, upto)
        return self._take_effects()

    def end(self, client: str, epoch: str) -> Effects:
        """A session ended: everything it has in force goes, everywhere."""
        source = Hop.client(client)
        self._remove_all(source)
        self._gone(ClientGone(client, epoch), source)
        self.state.bits.release(source)
        return self._take_effects()

    def forget(self, neighbour: str, *, empty: bool = True) -> Effects:
        """Nothing that came from a neighbour holds any more: it is empty, because it has lost its
        state; or it is away, and we have given it up. Then it still has what we told it, and who
        waits for a removal there goes on waiting until it has begun anew."""
        state, hop = self.state, Hop.broker(neighbour)
        bit = state.bits.bit(hop)
        state.complete &= ~bit
        self._declare()  # before what came from it is taken back
        self._untell(bit)
        self._remove_all(hop, lost=True)
        for (client, epoch), source in list(state.clients.items()):
            if source == hop:
                self._gone(ClientGone(client, epoch), hop)
        self._forget_pubends(hop)
        for wait in list(state.waits.values()):
            if wait.requester == hop and wait.what != "withdraw":
                del state.waits[wait.op]
            elif empty and wait.what in ("unadvertise", "unsubscribe", "withdraw"):
                self._discharge(wait, bit)
        self._doubt(hop)
        return self._take_effects()

    def _untell(self, bit: int) -> None:
        """A neighbour does not have what we have told it."""
        state = self.state
        state.declared &= ~bit
        state.met &= ~bit
        for table in (state.advertisements, state.subscriptions):
            for entry in table:
                entry.sent &= ~bit

    def join(self, neighbour: str) -> Effects:
        """A neighbour starts empty: tell it all there is. Its answers attract the rest."""
        state, hop = self.state, Hop.broker(neighbour)
        bit = state.bits.bit(hop)
        for pubend, source in state.pubends.items():
            if source != hop:
                self._send(neighbour, self._path_to(pubend))
        for (client, epoch), source in state.clients.items():
            if source != hop:
                self._send(neighbour, state.clients.as_told(client, epoch))
        for entry in state.advertisements:
            if entry.source != hop:
                wait = state.waits.get(entry.id)
                self._announce(entry, neighbour, echo=bool(wait and wait.missing & bit))
        for wait in state.waits.values():
            if wait.probe is not None and wait.what == "advertise" and wait.missing & bit:
                self._send(neighbour, Advertise(wait.op, wait.probe, echo=True, probe=True))
        state.met |= bit
        self._declare()
        return self._take_effects()

    def admit(self, neighbour: str) -> Effects:
        """The overlay grows: until the new neighbour has told all that lies behind it, we do not
        know everything, and subscriptions wait for it."""
        self.state.bits.admit(neighbour)
        self._declare()
        self._doubt(Hop.broker(neighbour))
        return self._take_effects()

    def in_force(self, neighbour: str) -> tuple[list[str], int, int]:
        """What has come from a neighbour and holds: clients, advertisements, subscriptions."""
        state, hop = self.state, Hop.broker(neighbour)
        clients = [client for (client, _), source in state.clients.items() if source == hop]
        return clients, state.advertisements.count(hop), state.subscriptions.count(hop)

    def dismiss(self, neighbour: str) -> Effects:
        """The overlay shrinks by a neighbour from which nothing is in force. Nobody waits for it
        any longer, and what was told to it needs no taking back."""
        state, hop = self.state, Hop.broker(neighbour)
        if any(self.in_force(neighbour)):
            raise InvariantError(f"{neighbour} was to go while something from it is in force")
        bit = state.bits.bit(hop)
        self._untell(bit)
        self._forget_pubends(hop)
        state.complete &= ~bit
        for wait in list(state.waits.values()):
            if wait.requester == hop and wait.what != "withdraw":
                state.waits.pop(wait.op, None)
            else:
                self._discharge(wait, bit)
        state.bits.dismiss(neighbour)
        self._declare()
        return self._take_effects()

    # ── advertisements ───────────────────────────────────────────────────────────────────

    def _advertise(self, message: Advertise, source: Hop) -> None:
        state = self.state
        entry: Entry | None = None
        if not message.probe:
            if message.id in state.advertisements:
                self.ignored += 1
                return
            entry = state.advertisements.add(message.id, message.filter, source, message.tx)
            state.watch(entry)
            if source.is_broker:
                self._attract(entry)
            else:
                self._start_attracted(entry)
        others = state.bits.all_neighbours & ~state.bits.bit(source)
        for neighbour in state.bits.names(others):
            if entry is not None:
                self._announce(entry, neighbour, echo=message.echo)
            elif message.echo:
                self._send(neighbour, message)
        self._await(message, "advertise", source, others, probe=message.probe)

    def _announce(self, entry: Entry, neighbour: str, *, echo: bool) -> None:
        """Tell a neighbour of an advertisement, unless one it knows covers it."""
        self._tell(self.state.advertisements, Advertise, entry, neighbour, echo)

    def _attract(self, advertisement: Entry) -> None:
        """Subscriptions that were here first follow the new advertisement back."""
        neighbour, bit = advertisement.source.name, self._bit(advertisement.source.name)
        for subscription in self.state.subscriptions.overlapping(advertisement.filter):
            if subscription.source == advertisement.source:
                continue
            merges = self._merges(subscription)
            above = self._attract_merging(subscription, advertisement) if merges else 0
            if not subscription.sent & bit:
                self._pass_on(subscription, neighbour, echo=False, above=above)

    def _unadvertise(self, message: Unadvertise, source: Hop) -> None:
        state = self.state
        entry = self._take_away(state.advertisements, message.target, source)
        if entry is None:
            self._echo_at_once(message.op, source)
            return
        if source.is_broker:
            self._expect_less(entry)
            if message.upto:
                self._lift_starts(entry, message.upto)
            self._withdraw_unsupported(entry)
        elif state.hosted:
            self._retire(entry, message.op)
            return
        self._spread_unadvertise(entry, message)
        self._await(message, "unadvertise", source, entry.sent)

    def _spread_unadvertise(self, entry: Entry, message: Unadvertise) -> None:
        for neighbour in self.state.bits.names(entry.sent):
            if self.covering:
                for uncovered in self._uncovered(self.state.advertisements, entry, neighbour):
                    self._announce(uncovered, neighbour, echo=False)
            self._send(neighbour, message)

    def _withdraw_unsupported(self, advertisement: Entry) -> None:
        """Subscriptions that went to its source only because of it are taken back from there."""
        state, neighbour = self.state, advertisement.source.name
        bit = self._bit(neighbour)
        supported = state.advertisements.overlapping_hops
        for subscription in state.subscriptions.overlapping(advertisement.filter):
            if subscription.sent & bit and not supported(subscription.filter) & bit:
                self._withdraw(subscription, neighbour)
        if self.covering:
            # A probe was sent for what is covered: nobody at the other end owes an answer now.
            for subscription in state.subscriptions.overlapping(advertisement.filter):
                wait = state.waits.get(subscription.id)
                unsupported = not supported(subscription.filter) & bit
                if wait and wait.missing & state.complete & bit and unsupported:
                    self._discharge(wait, bit)

    def _withdraw(self, subscription: Entry, neighbour: str) -> None:
        """Take a subscription back where nobody advertises for it any more. The removal asks for
        an echo, because whoever unsubscribes meanwhile must wait for it, too."""
        state, target = self.state, subscription.id
        state.removals += 1
        op = OpId("", self._life, state.removals)
        state.waits[op] = Wait(
            op, "withdraw", subscription.source, self._bit(neighbour), target=target
        )
        state.withdrawals.setdefault(target, Withdrawal()).under_way[op] = None
        self._take_back(subscription, neighbour, op)

    # ── subscriptions ────────────────────────────────────────────────────────────────────

    def _subscribe(self, message: Subscribe, source: Hop) -> None:
        state = self.state
        entry: Entry | None = None
        if not message.probe:
            if message.id in state.subscriptions:
                self.ignored += 1
                return
            tagged = (message.tx, message.ended)
            entry = state.subscriptions.add(message.id, message.filter, source, *tagged)
            state.version += 1
            entry.version = state.version
            state.watch(entry)
            self._start_above(entry, message.above)
            if self._merges(entry):
                self._expect_starts(entry, message)
        towards = state.advertisements.overlapping_hops(message.filter)
        others = state.bits.all_neighbours & ~state.bits.bit(source)
        towards &= others
        for neighbour in state.bits.names(towards):
            if entry is not None:
                self._pass_on(entry, neighbour, echo=message.echo, above=message.above)
            elif message.echo:
                self._send(neighbour, message)
        # Who has not told us everything yet may have an advertiser that matches, too.
        unknown = others & ~state.complete
        self._await(message, "subscribe", source, towards | unknown, probe=message.probe)

    def _pass_on(self, entry: Entry, neighbour: str, *, echo: bool, above: int = 0) -> None:
        """Tell a neighbour of a subscription, unless one it has from us covers it."""
        self._tell(self.state.subscriptions, Subscribe, entry, neighbour, echo, above)

    def _unsubscribe(self, message: Unsubscribe, source: Hop) -> None:
        entry = self._take_away(self.state.subscriptions, message.target, source)
        if entry is None:
            self._echo_at_once(message.op, source)
            return
        self.state.version += 1
        if self.state.watched and not entry.tx:
            self.state.ghosts.append((entry, self.state.version))
        state = self.state
        for ticks in (state.starts, state.tentative, state.ends, state.lapsed, state.joins):
            ticks.pop(entry.id, None)
        state.forsaken.pop(entry.id, None)
        if not source.is_broker:
            self._effects.ended.append(entry.id)
        elif message.lost and entry.start:
            self.state.lost_starts[entry.id] = (entry.start, source.name)
            if entry.end:
                self.state.lost_ends[entry.id] = entry.end
        sent = entry.sent
        for neighbour in self.state.bits.names(sent):
            self._take_back(entry, neighbour, message.op, lost=message.lost)
        self._await(message, "unsubscribe", source, sent)

    def _take_back(
        self, entry: Entry, neighbour: str, op: OpId | None, *, lost: bool = False
    ) -> None:
        """Remove a subscription at a neighbour; what it covered there is sent first."""
        bit = self._bit(neighbour)
        entry.sent &= ~bit
        if self.covering:
            for uncovered in self._uncovered(self.state.subscriptions, entry, neighbour):
                self._pass_on(uncovered, neighbour, echo=False)
        self._send(neighbour, Unsubscribe(entry.id, op, lost))
        wait = self.state.waits.get(entry.id)
        if wait is not None and self.state.complete & bit:
            self._discharge(wait, bit)

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def _here(self, message: ClientHere, source: Hop) -> None:
        key = (message.client, message.epoch)
        if key in self.state.clients:
            self.ignored += 1
            return
        self.state.clients.hear(message, source)
        self._flood(message, source)

    def _gone(self, message: ClientGone, source: Hop) -> None:
        key = (message.client, message.epoch)
        if self.state.clients.get(key) != source:
            self.ignored += 1
            return
        del self.state.clients[key]
        self._flood(message, source)

    # ── shared moves ─────────────────────────────────────────────────────────────────────

    def _tell(
        self,
        table: Table,
        message: type[Advertise | Subscribe],
        entry: Entry,
        neighbour: str,
        echo: bool,
        above: int = 0,
    ) -> None:
        """An addition, or only a probe for its echo where another one covers it."""
        bit = self._bit(neighbour)
        covered = self.covering and any(
            other.sent & bit and other is not entry for other in table.covering(entry.filter)
        )
        if not covered:
            entry.sent |= bit
        if not covered or echo:
            told = message(entry.id, entry.filter, echo, covered)
            if above or entry.ended:
                told = replace(told, above=above, ended=entry.ended)
            self._send(neighbour, replace(told, tx=entry.tx) if entry.tx else told)

    def _take_away(self, table: Table, target: OpId, source: Hop) -> Entry | None:
        """Remove an entry and the obligation to install it."""
        entry = table.get(target)
        if entry is None or entry.source != source:
            self.ignored += 1
            return None
        table.remove(entry)
        self.state.unwatch(target)
        wait = self.state.waits.pop(target, None)
        if wait is not None and not wait.requester.is_broker:
            self._effects.completed.append(Completed(target, withdrawn=True))
        return entry

    def _uncovered(self, table: Table, leaving: Entry, neighbour: str) -> list[Entry]:
        """What a neighbour must hear of because the one that covered it leaves; widest first."""
        bit, hop = self._bit(neighbour), Hop.broker(neighbour)
        candidates = [
            entry
            for entry in table.covered(leaving.filter)
            if entry is not leaving and entry.source != hop and not entry.sent & bit
        ]
        if table is self.state.subscriptions:
            wanted = self.state.advertisements.overlapping_hops
            candidates = [entry for entry in candidates if wanted(entry.filter) & bit]
        keys = {entry.key for entry in candidates}

        def narrowness(entry: Entry) -> int:
            return sum(1 for other in table.covering(entry.filter) if other.key in keys)

        return sorted(candidates, key=lambda entry: (narrowness(entry), entry.key))

    def _remove_all(self, source: Hop, *, lost: bool = False) -> None:
        for entry in self.state.advertisements.from_source(source):
            self._unadvertise(Unadvertise(entry.id), source)
        for entry in self.state.subscriptions.from_source(source):
            self._unsubscribe(Unsubscribe(entry.id, lost=lost), source)

    # ── self-check ───────────────────────────────────────────────────────────────────────

    def validate(self) -> None:
        """Raise if the state contradicts itself; the simulator calls this between steps."""
        state = self.state
        for table in (state.advertisements, state.subscriptions):
            if len(table) != len(table.index):
                raise InvariantError("a table and its index differ in size")
            for entry in table:
                if entry.sent & ~state.bits.all_neighbours or entry.sent & state.bits.bit(
                    entry.source
                ):
                    raise InvariantError(f"{entry.id} was sent where it came from")
        for wait in state.waits.values():
            if not state.missing(wait) and not wait.retired:
                raise InvariantError(f"{wait.op} waits for nobody")

    def validate_neighbours(self) -> None:
        """Raise if a neighbour sent what makes no sense. Where all of them are correct, one of us
        two is broken; elsewhere it is theirs to answer for, and our state is as good as before."""
        if self.ignored:
            raise InvariantError(f"{self.ignored} messages of neighbours made no sense")


MOVES: dict[type, Callable[[Routing, Any, Hop], None]] = {
    Advertise: Routing._advertise,
    Unadvertise: Routing._unadvertise,
    Subscribe: Routing._subscribe,
    Unsubscribe: Routing._unsubscribe,
    Echo: Routing._echo,
    ClientHere: Routing._here,
    ClientGone: Routing._gone,
    Complete: Routing._complete_now,
    PubendHere: Routing._pubend_here,
    PubendGone: Routing._pubend_gone,
    Started: Routing._started,
    Switched: Routing._switched,
    Confirmed: Routing._confirmed,
    Join: Routing._join,
}
"""Every control message of routing and what it does."""
