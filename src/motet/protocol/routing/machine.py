"""The routing machine: which brokers hear of an advertisement or subscription, and the echoes.

Advertisements flood; subscriptions follow overlapping advertisements back; removals follow exactly
the `sent` marks that additions left. A neighbour's state from us is therefore always what our last
messages on that FIFO link said, whichever messages crossed on the way.

An operation is *effective* when its echo is complete (see `messages`). Of a crossing advertisement
and subscription, the one that arrives later at a broker has the obligation there: an advertisement
attracts before it echoes, a subscription is passed on before it echoes.

With covering, an entry is sent to a neighbour only if no other entry that was sent there covers it.
With `RETRACT`, an entry that is sent also takes back the entries there that it covers.

Only `apply`, `end`, `abandon` and the moves of neighbours (`forget`, `join`, `admit`, `dismiss`)
change the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec.structs import replace

from motet.errors import InvariantError
from motet.model import Hop, OpId
from motet.model.coverage import RETRACT, Covering
from motet.protocol.changes import (
    AdvertisementMade,
    AdvertisementRetired,
    Changes,
    ClientEnded,
    ClientHeard,
    Completed,
    PubendMoved,
    SubscriptionEnded,
)
from motet.protocol.contract import Change
from motet.protocol.routing.messages import (
    Advertise,
    ClientGone,
    ClientHere,
    Complete,
    Confirmed,
    Echo,
    Join,
    MovingRow,
    PubendGone,
    PubendHere,
    Rehome,
    RoutingMessage,
    Started,
    Subscribe,
    Switched,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.routing.obligations import Emitter, Obligations
from motet.protocol.routing.starts import Joins, Starts, broker_of_pubend
from motet.protocol.routing.state import (
    ARRIVAL,
    HERE,
    REMOVALS,
    WITHDRAW,
    Entry,
    EntryMarks,
    RoutingState,
    Table,
    Wait,
    announced_home,
)

VOID_WHEN_EMPTY = (*REMOVALS, WITHDRAW, ARRIVAL)
"""Operations that do not wait for a neighbour that has lost its state."""
RETIRED = Hop("retired", "")
"""The source of advertisements that their client has removed."""


class Routing:
    def __init__(
        self,
        life: str,
        neighbours: Sequence[str],
        marks: EntryMarks,
        *,
        covering: Covering = False,
    ) -> None:
        """`life` names this broker and its incarnation, for its own operations."""
        self.state = state = RoutingState(neighbours)
        self._out = out = Emitter(state.bits)
        self.marks = marks
        self.starts = Starts(state, marks, out)
        self.joins = Joins(state, self.starts, out)
        self.obligations = Obligations(life, state, self.starts, self.joins, out)
        self.name = life.rpartition("-")[0]
        self.covering = bool(covering)
        self.retracts = covering == RETRACT
        self.ignored = 0
        """Number of duplicate additions and of removals of unknown entries. A correct neighbour
        causes none; a journaled step cannot refuse them, so they are only counted."""
        self.moves: dict[type, Callable[[Any, Hop], None]] = {
            Advertise: self._advertise,
            Unadvertise: self._unadvertise,
            Subscribe: self._subscribe,
            Unsubscribe: self._unsubscribe,
            Echo: self.obligations.echoed,
            ClientHere: self._here,
            ClientGone: self._gone,
            Complete: self.obligations.completed,
            PubendHere: self._pubend_here,
            PubendGone: self._pubend_gone,
            Started: self.joins.started,
            Switched: self.starts.switched,
            Confirmed: self.starts.confirmed,
            Join: self.joins.join,
            Rehome: self._rehomed,
        }
        """Every control message of routing and its handler."""

    # ── the door ─────────────────────────────────────────────────────────────────────────

    def take(self) -> Changes:
        """The changes that were made since the last call."""
        return self._out.take()

    def report(self, change: Change) -> None:
        self._out.changes.append(change)

    def apply(self, message: RoutingMessage, source: Hop) -> Changes:
        """Apply one control message, from a neighbour or made from a client's request."""
        self.moves[type(message)](message, source)
        return self._out.take()

    def found(self, pubend: str) -> Changes:
        """Our broker has a pubend: announce where its log is."""
        self._pubend_here(PubendHere(pubend), HERE)
        return self._out.take()

    def excuse(self, op: OpId, *, late: bool) -> None:
        """A removal was `late` if it spent most of its timeout waiting for earlier events."""
        self.state.waits[op].retired = late

    def let_go(self, target: OpId, upto: int) -> Changes:
        """All events published under a retired advertisement have arrived: see `Unadvertise`."""
        state = self.state
        op = state.retired.pop(target)
        entry = state.advertisements.get(target)
        assert entry is not None
        state.advertisements.remove(entry)
        self.starts.end(entry)
        wait = state.waits.get(op) if op is not None else None
        if wait is None:  # no client waits for it
            op = None
        self._spread_unadvertise(entry, Unadvertise(target, op, upto))
        if wait is not None:
            wait.retired = False
            wait.missing = entry.sent
            if not wait.missing:
                self.obligations.settle(wait)
        return self._out.take()

    def abandon(self, op: OpId) -> None:
        """No client waits for this operation any more; the operation itself is unchanged."""
        wait = self.state.waits.get(op)
        if wait is not None:
            self.obligations.drop(wait)

    def reassure(self) -> Changes:
        self.obligations.reassure()
        return self._out.take()

    def end(self, client: str, epoch: str) -> Changes:
        """A session ended: remove all its entries, everywhere."""
        source = Hop.client(client)
        self._remove_all(source)
        self._gone(ClientGone(client, epoch), source)
        self.state.bits.release(source)
        return self._out.take()

    def forget(self, neighbour: str, *, empty: bool = True) -> Changes:
        """Everything that came from a neighbour is void: it is empty, because it lost its state; or
        it is away and was given up. In the second case it still has what we told it, and removals
        that wait for it keep waiting until it has restarted from scratch."""
        state, hop = self.state, Hop.broker(neighbour)
        bit = state.bits.bit(hop)
        state.complete &= ~bit
        self.obligations.declare()  # before the entries that came from it are removed
        self._untell(bit)
        self._remove_all(hop, lost=True)
        for (client, epoch), source in list(state.clients.items()):
            if source == hop:
                self._gone(ClientGone(client, epoch), hop)
        self._forget_pubends(hop)
        for wait in list(state.waits.values()):
            if wait.requester == hop and wait.what != WITHDRAW:
                self.obligations.drop(wait)
            elif wait.what in (VOID_WHEN_EMPTY if empty else (ARRIVAL,)):
                self.obligations.discharge(wait, bit)
        self.obligations.doubt(hop)
        return self._out.take()

    def _untell(self, bit: int) -> None:
        """A neighbour no longer has what we told it."""
        state = self.state
        state.declared &= ~bit
        state.met &= ~bit
        for table in (state.advertisements, state.subscriptions):
            for entry in table:
                entry.sent &= ~bit

    def join(self, neighbour: str) -> Changes:
        """A neighbour starts empty: send it everything. Its advertisements attract the rest."""
        state, hop = self.state, Hop.broker(neighbour)
        bit = state.bits.bit(hop)
        for pubend, source in state.pubends.items():
            if source != hop:
                self._out.send(neighbour, self._path_to(pubend))
        for (client, epoch), source in state.clients.items():
            if source != hop:
                self._out.send(neighbour, state.clients.as_told(client, epoch))
        for entry in state.advertisements:
            if entry.source != hop:
                wait = state.waits.get(entry.id)
                self._announce(entry, neighbour, echo=bool(wait and wait.missing & bit))
        for wait in state.waits.values():
            if wait.probe is not None and wait.what == "advertise" and wait.missing & bit:
                self._out.send(neighbour, Advertise(wait.op, wait.probe, echo=True, probe=True))
        state.met |= bit
        self.obligations.declare()
        return self._out.take()

    def admit(self, neighbour: str) -> Changes:
        """A neighbour is added: until it has reported everything behind it, we do not know
        everything, and subscriptions wait for it."""
        self.state.bits.admit(neighbour)
        self.obligations.declare()
        self.obligations.doubt(Hop.broker(neighbour))
        return self._out.take()

    def in_force(self, neighbour: str) -> tuple[list[str], int, int]:
        """What came from a neighbour and is in force: clients, advertisements, subscriptions."""
        state, hop = self.state, Hop.broker(neighbour)
        clients = [client for (client, _), source in state.clients.items() if source == hop]
        return clients, state.advertisements.count(hop), state.subscriptions.count(hop)

    def dismiss(self, neighbour: str) -> Changes:
        """A neighbour from which nothing is in force is removed. No operation waits for it any
        more, and what we told it needs no removal."""
        state, hop = self.state, Hop.broker(neighbour)
        if any(self.in_force(neighbour)):
            raise InvariantError(f"{neighbour} was removed while entries from it are in force")
        bit = state.bits.bit(hop)
        self._untell(bit)
        self._forget_pubends(hop)
        state.complete &= ~bit
        for wait in list(state.waits.values()):
            if wait.requester == hop and wait.what != WITHDRAW:
                self.obligations.drop(wait)
            else:
                self.obligations.discharge(wait, bit)
        state.bits.dismiss(neighbour)
        self.joins.whole()
        self.obligations.declare()
        return self._out.take()

    # ── advertisements ───────────────────────────────────────────────────────────────────

    def _advertise(self, message: Advertise, source: Hop) -> None:
        state = self.state
        entry: Entry | None = None
        if not message.probe:
            if message.id in state.advertisements:
                self.ignored += 1
                return
            told = (message.id, message.filter, source, message.tx)
            entry = state.advertisements.add(*told, home=self._home(message.id, source))
            self.marks.watch(entry)
            if source.is_broker:
                self.attract(entry)
            else:
                self.starts.start_attracted(entry)
                self._out.changes.append(AdvertisementMade(entry.id))
        others = state.bits.all_neighbours & ~state.bits.bit(source)
        for neighbour in state.bits.names(others):
            if entry is not None:
                self._announce(entry, neighbour, echo=message.echo)
            elif message.echo:
                self._out.send(neighbour, message)
        self.obligations.expect(message, "advertise", source, others, probe=message.probe)

    def _home(self, op: OpId, source: Hop) -> str:
        """Where the events of a new advertisement are. Its sender has told us if not at the broker
        that announced the session; what we know of the client may be older than its last move."""
        told = self.state.told_homes.pop(op, "")
        if told or source.is_broker:
            return told or announced_home(op.epoch)
        return self.state.clients.home_of(op.client, op.epoch)

    def _announce(self, entry: Entry, neighbour: str, *, echo: bool) -> None:
        """Tell a neighbour of an advertisement, unless one that it knows covers it."""
        if entry.home != announced_home(entry.id.epoch):
            self._out.send(neighbour, Rehome(entry.id, entry.home))
        self._tell(self.state.advertisements, Advertise, entry, neighbour, echo)

    def attract(self, advertisement: Entry, *, joins: bool = True) -> None:
        """Existing subscriptions follow a new advertisement back. Without `joins`, those of clients
        in total order must be followed by `ask_to_join`."""
        neighbour, bit = advertisement.source.name, self._bit(advertisement.source.name)
        for subscription in self.state.subscriptions.overlapping(advertisement.filter):
            if subscription.source == advertisement.source:
                continue
            merges = joins and self.joins.merges(subscription)
            asked = self.joins.attract(subscription, advertisement) if merges else None
            if not subscription.sent & bit:
                if asked is None or self.joins.may_recall(asked, advertisement.source):
                    self.pass_on(subscription, neighbour, echo=False)
                else:
                    self.pass_on(subscription, neighbour, echo=False, above=asked.above)
                    asked = None
            if asked is not None:
                self._out.send(neighbour, asked)

    def _unadvertise(self, message: Unadvertise, source: Hop) -> None:
        state = self.state
        entry = self._take_away(state.advertisements, message.target, source)
        if entry is None:
            self.obligations.echo(message.op, source)
            return
        if source.is_broker:
            self.joins.expect_less(entry, message.upto)
            if self.starts.known:
                self.starts.lift(entry, message.upto)
            self.withdraw_unsupported(entry)
        elif state.hosted:
            self._retire(entry, message.op)
            return
        self._spread_unadvertise(entry, message)
        self.obligations.expect(message, "unadvertise", source, entry.sent)

    def _retire(self, entry: Entry, op: OpId | None) -> None:
        """A local client removes an advertisement. No new events are published under it, but events
        still owed need its routes."""
        state = self.state
        kept = Entry(entry.id, entry.filter, RETIRED, entry.key, entry.sent, home=entry.home)
        state.advertisements.restore(kept)
        state.retired[entry.id] = op
        if op is not None:
            source = Hop.client(op.client)
            state.waits[op] = Wait(op, "unadvertise", source, 0, retired=True)
        self._out.changes.append(AdvertisementRetired(entry.id))

    def _spread_unadvertise(self, entry: Entry, message: Unadvertise) -> None:
        for neighbour in self.state.bits.names(entry.sent):
            if self.covering:
                for uncovered in self._uncovered(self.state.advertisements, entry, neighbour):
                    self._announce(uncovered, neighbour, echo=False)
            self._out.send(neighbour, message)

    def withdraw_unsupported(
        self, advertisement: Entry, keep: Collection[OpId] = frozenset()
    ) -> None:
        """Withdraw subscriptions from its source that were sent there only because of it, except
        for some to `keep`."""
        state, neighbour = self.state, advertisement.source.name
        bit = self._bit(neighbour)
        supported = state.advertisements.overlapping_hops
        for subscription in state.subscriptions.overlapping(advertisement.filter):
            if subscription.id in keep:
                continue
            if subscription.sent & bit and not supported(subscription.filter) & bit:
                self.withdraw(subscription, neighbour)
        if self.covering:
            # A probe was sent for covered subscriptions: no answer from there is expected now.
            for subscription in state.subscriptions.overlapping(advertisement.filter):
                wait = state.waits.get(subscription.id)
                unsupported = not supported(subscription.filter) & bit
                if wait and wait.missing & state.complete & bit and unsupported:
                    self.obligations.discharge(wait, bit)

    def withdraw(self, subscription: Entry, neighbour: str) -> None:
        """Remove a subscription at a neighbour that no longer advertises for it. If its client
        removes it meanwhile, from wherever it is by then, that is complete behind this."""
        bit = self._bit(neighbour)
        op = self.obligations.withdraw(subscription.id, subscription.source, bit)
        self._take_back(subscription, neighbour, op)

    def rehome(self, row: MovingRow, home: str, former: str, upto: int, towards: int) -> None:
        """Tell neighbours in whose log the events of an advertisement are from now on."""
        told = Rehome(row.id, home, former, row.residue, upto)
        for neighbour in self.state.bits.names(towards):
            self._out.send(neighbour, told)

    def _rehomed(self, message: Rehome, source: Hop) -> None:
        state, target = self.state, message.target
        entry = state.advertisements.get(target)
        if not message.former:  # the advertisement follows
            if entry is None:
                state.told_homes[target] = message.home
            return
        if entry is None or entry.source != source:
            self.ignored += 1
            return
        entry.home = message.home
        state.clients.set_home(target.client, target.epoch, message.home)
        others = state.bits.all_neighbours & ~state.bits.bit(source)
        row = MovingRow(target, entry.filter, residue=message.residue)
        self.rehome(row, message.home, message.former, message.upto, others)
        if message.residue is not None:
            if message.residue not in state.advertisements:
                where = (message.residue, entry.filter, source)
                residue = state.advertisements.add(*where, home=message.former)
                residue.sent = others
        else:
            gone = Entry(target, entry.filter, source, entry.key, home=message.former)
            self.joins.expect_less(gone, message.upto)
            if self.starts.known:
                self.starts.lift(gone, message.upto)
        if self.joins.merging:
            self.attract(entry)

    # ── subscriptions ────────────────────────────────────────────────────────────────────

    def ask_to_join(self, advertisement: Entry) -> None:
        """Clients of ours in total order expect starts in the log of an advertisement's events."""
        for subscription in self.state.subscriptions.overlapping(advertisement.filter):
            if self.joins.merges(subscription):
                asked = self.joins.attract(subscription, advertisement)
                if asked is not None:
                    self._out.send(advertisement.source.name, asked)

    def await_all(self, subscription: Entry) -> None:
        """A subscription of a client in total order has arrived with it: expect a start of every
        matching advertiser that has not started it."""
        for advertisement in self.state.advertisements.overlapping(subscription.filter):
            if not advertisement.source.is_broker:
                continue
            asked = self.joins.attract(subscription, advertisement)
            if asked is not None:
                self._out.send(advertisement.source.name, asked)

    def _subscribe(self, message: Subscribe, source: Hop) -> None:
        state = self.state
        entry: Entry | None = None
        if not message.probe:
            if message.id in state.subscriptions:
                self.ignored += 1
                return
            tagged = (message.tx, message.ended)
            entry = state.subscriptions.add(message.id, message.filter, source, *tagged)
            self.marks.subscribed(entry)
            self.joins.start_above(entry, message.above)
            if self.joins.merges(entry):
                self.joins.expect_starts(entry, message)
        towards = state.advertisements.overlapping_hops(message.filter)
        others = state.bits.all_neighbours & ~state.bits.bit(source)
        towards &= others
        for neighbour in state.bits.names(towards):
            if entry is not None:
                self.pass_on(entry, neighbour, echo=message.echo, above=message.above)
            elif message.echo:
                self._out.send(neighbour, message)
        # A neighbour that is not complete may also have a matching advertiser.
        unknown = others & ~state.complete
        self.obligations.expect(
            message, "subscribe", source, towards | unknown, probe=message.probe
        )

    def pass_on(self, entry: Entry, neighbour: str, *, echo: bool, above: int = 0) -> None:
        """Tell a neighbour of a subscription, unless one that it has from us covers it."""
        self._tell(self.state.subscriptions, Subscribe, entry, neighbour, echo, above)

    def _unsubscribe(self, message: Unsubscribe, source: Hop) -> None:
        state = self.state
        entry = self._take_away(state.subscriptions, message.target, source)
        if entry is None:
            self.obligations.echo(message.op, source)
            return
        self.marks.unsubscribed(entry)
        self.starts.forget(entry.id)
        self.joins.awaited.pop(entry.id, None)
        if source.kind == "client":
            self._out.changes.append(SubscriptionEnded(entry.id))
        elif message.lost:
            self.starts.lose(entry, source.name)
        sent = entry.sent
        for neighbour in state.bits.names(sent):
            self._take_back(entry, neighbour, message.op, lost=message.lost)
        self.obligations.expect(message, "unsubscribe", source, sent)

    def _take_back(
        self,
        entry: Entry,
        neighbour: str,
        op: OpId | None,
        *,
        lost: bool = False,
    ) -> None:
        """Remove a subscription at a neighbour; first send the ones that it covered there."""
        bit = self._bit(neighbour)
        entry.sent &= ~bit
        if self.covering:
            for uncovered in self._uncovered(self.state.subscriptions, entry, neighbour):
                self.pass_on(uncovered, neighbour, echo=False)
        self._out.send(neighbour, Unsubscribe(entry.id, op, lost))
        wait = self.state.waits.get(entry.id)
        if wait is not None and self.state.complete & bit:
            self.obligations.discharge(wait, bit)

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def _here(self, message: ClientHere, source: Hop) -> None:
        key = (message.client, message.epoch)
        if key in self.state.clients:
            self.ignored += 1
            return
        self.state.clients.hear(message, source)
        self._out.flood(message, source)
        if source.is_broker:
            self._out.changes.append(ClientHeard(message.client, message.epoch))

    def _gone(self, message: ClientGone, source: Hop) -> None:
        key = (message.client, message.epoch)
        if self.state.clients.get(key) != source:
            self.ignored += 1
            return
        del self.state.clients[key]
        self._out.flood(message, source)
        if source.is_broker:
            self._out.changes.append(ClientEnded(message.client, message.epoch))

    # ── where the logs are ───────────────────────────────────────────────────────────────

    def _pubend_here(self, message: PubendHere, source: Hop) -> None:
        state, pubend = self.state, message.pubend
        if pubend in state.pubends:
            self.ignored += 1
        else:
            state.pubends[pubend] = source
            state.paths[pubend] = message.path
            self._out.changes.append(PubendMoved())
            if source == HERE:
                state.hosted = pubend
            self.starts.destroyed(pubend)
            self.joins.destroyed(pubend)
            self._out.flood(self._path_to(pubend), source)
        if self.joins.merging and source.is_broker:  # its advertisers may be known already
            broker = broker_of_pubend(pubend)
            for entry in state.advertisements.from_source(source):
                if entry.home == broker:
                    self.attract(entry)

    def _path_to(self, pubend: str) -> PubendHere:
        return PubendHere(pubend, (self.name, *self.state.paths.get(pubend, ())))

    def _pubend_gone(self, message: PubendGone, source: Hop) -> None:
        if self.state.pubends.get(message.pubend) != source:
            self.ignored += 1
            return
        del self.state.pubends[message.pubend]
        self.state.paths.pop(message.pubend, None)
        self._out.changes.append(PubendMoved())
        self._out.flood(message, source)

    def _forget_pubends(self, source: Hop) -> None:
        for pubend in [p for p, hop in self.state.pubends.items() if hop == source]:
            self._pubend_gone(PubendGone(pubend), source)

    # ── shared moves ─────────────────────────────────────────────────────────────────────

    def _bit(self, neighbour: str) -> int:
        return self.state.bits.bit(Hop.broker(neighbour))

    def _tell(
        self,
        table: Table,
        message: type[Advertise | Subscribe],
        entry: Entry,
        neighbour: str,
        echo: bool,
        above: int = 0,
    ) -> None:
        """Send an addition, or only a probe for its echo if another one covers it."""
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
            self._out.send(neighbour, replace(told, tx=entry.tx) if entry.tx else told)
        if self.retracts and not covered:
            self._retract_covered(table, message, entry, neighbour)

    def _retract_covered(
        self, table: Table, message: type[Advertise | Subscribe], wide: Entry, neighbour: str
    ) -> None:
        """An entry was sent to a neighbour: take back the ones there that it covers. Whoever waits
        for one of them now waits for the echo of a probe behind the wider entry."""
        bit = self._bit(neighbour)
        removal = Unsubscribe if message is Subscribe else Unadvertise
        covered = table.covered(wide.filter)
        for entry in sorted(covered, key=lambda entry: entry.key):
            if entry is wide or not entry.sent & bit:
                continue
            entry.sent &= ~bit
            op = self.obligations.withdraw(entry.id, entry.source, bit)
            self._out.send(neighbour, removal(entry.id, op))
            wait = self.state.waits.get(entry.id)
            if wait is not None and wait.missing & bit:
                self._out.send(neighbour, message(entry.id, entry.filter, echo=True, probe=True))

    def _take_away(self, table: Table, target: OpId, source: Hop) -> Entry | None:
        """Remove an entry and the obligation to install it."""
        entry = table.get(target)
        if entry is None or entry.source != source:
            self.ignored += 1
            return None
        table.remove(entry)
        self.marks.unwatch(target)
        waits = self.state.waits
        for recheck in list(waits.rechecks.get(target, ())):
            del waits[recheck]
        wait = waits.pop(target, None)
        if wait is not None and not wait.requester.is_broker:
            self._out.changes.append(Completed(target, withdrawn=True))
        return entry

    def _uncovered(self, table: Table, leaving: Entry, neighbour: str) -> list[Entry]:
        """Entries to send to a neighbour because the one that covered them leaves; widest first."""
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
        """Raise if the state is inconsistent; the simulator calls this between steps."""
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
                raise InvariantError(f"{wait.op} waits, but no echo is missing")

    def validate_neighbours(self) -> None:
        """Raise if a neighbour sent invalid control. With correct neighbours, this means a bug on
        either side; otherwise the neighbour is at fault, and our state is intact."""
        if self.ignored:
            raise InvariantError(f"neighbours sent {self.ignored} invalid control messages")
