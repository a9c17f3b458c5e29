"""Start ticks: from where on a subscription is owed the events of a pubend.

A subscription that reaches a broker where a client advertises something that it overlaps is
started there, at the next tick of the pubend, which the fact that brings it names: the journal
is where a start is written once. The pubend's log gets a record of it, too, so that the stream
shows it. The tick travels back to the subscriber's broker as control, ahead of the echo, and is
remembered there for as long as the subscription lives.

Where the logs are is flooded like advertisements.
"""

from __future__ import annotations

from motet.model import Hop, OpId
from motet.model.epochs import broker_of
from motet.protocol.routing.messages import (
    Confirmed,
    PubendGone,
    PubendHere,
    RoutingMessage,
    Started,
    Switched,
    Unadvertise,
)
from motet.protocol.routing.obligations import Obligations
from motet.protocol.routing.state import Entry, Wait

HERE = Hop("pubend", "")
"""The hop of a pubend of our own."""
RETIRED = Hop("retired", "")
"""Where advertisements come from whose client has taken them back."""


def broker_of_pubend(pubend: str) -> str:
    return pubend.rpartition(".")[0]


class Starts(Obligations):
    ignored: int
    name: str
    """Of this broker."""

    def host(self, pubend: str) -> None:
        """Our own log; told to everybody."""
        self._pubend_here(PubendHere(pubend), HERE)

    def _started(self, message: Started, source: Hop) -> None:
        """On its way to the subscriber; who has unsubscribed meanwhile is owed nothing."""
        del source
        entry = self.state.subscriptions.get(message.op)
        if entry is None:
            return
        if entry.source.is_broker:
            self._send(entry.source.name, message)
            return
        if self._know_start(message.op, message.pubend, message.tick, message.tentative):
            self._effects.started.append(message)

    def _know_start(self, op: OpId, pubend: str, tick: int, tentative: bool) -> bool:
        if tick <= self.state.lapsed_upto(op, pubend) or op in self.state.forsaken:
            return False
        known = self.state.starts.setdefault(op, {})
        waits = pubend in self.state.tentative.get(op, ())
        if pubend in known and (tentative or not waits):
            return False  # a broker on the way had forgotten it
        known[pubend] = tick
        if tentative:
            self.state.tentative.setdefault(op, {})[pubend] = None
        elif waits:  # it has started anew, and not as part of a transaction any more
            self._untie(op, pubend)
        return True

    def forsake(self, op: OpId) -> None:
        """A client of ours has taken a subscription back which must not leave the tables yet."""
        state = self.state
        state.forsaken[op] = None
        for ticks in (state.starts, state.tentative, state.ends, state.lapsed):
            ticks.pop(op, None)

    def _untie(self, op: OpId, pubend: str) -> None:
        waiting = self.state.tentative[op]
        del waiting[pubend]
        if not waiting:
            del self.state.tentative[op]

    def settle(self, op: OpId) -> None:
        """All cuts of a transaction are made: where there is none, nothing has started."""
        known = self.state.starts.get(op, {})
        for pubend in self.state.tentative.pop(op, ()):
            known.pop(pubend, None)

    def learn(self, op: OpId, pubend: str, tick: int, tentative: bool) -> None:
        """The stream has told a start before control did."""
        entry = self.state.subscriptions.get(op)
        if entry is not None and (entry.tx or not tentative):  # else only a cut can tell
            self._know_start(op, pubend, tick, tentative)

    # ── cuts ─────────────────────────────────────────────────────────────────────────────

    def _switched(self, message: Switched, source: Hop) -> None:
        """On its way to the subscriber, like a start."""
        del source
        entry = self.state.subscriptions.get(message.op)
        if entry is not None and entry.source.is_broker:
            self._send(entry.source.name, message)
        elif entry is not None and self._know_switch(message):
            self._effects.switched.append(message)

    def _know_switch(self, switch: Switched) -> bool:
        state, op, pubend = self.state, switch.op, switch.pubend
        if op in state.forsaken:
            return False
        if switch.ended:
            ends = state.ends.setdefault(op, {})
            if pubend in ends:
                return False
            ends[pubend] = switch.tick
            return True
        if pubend in state.tentative.get(op, ()):
            self._untie(op, pubend)
        elif pubend in state.starts.get(op, {}):
            return False
        state.starts.setdefault(op, {})[pubend] = switch.tick
        return True

    def learn_switch(self, switch: Switched) -> None:
        """The stream has shown a cut before control told of it."""
        if switch.op in self.state.subscriptions:
            self._know_switch(switch)

    def _confirmed(self, message: Confirmed, source: Hop) -> None:
        state = self.state
        for table in (state.subscriptions, state.advertisements):
            entry = table.get(message.op)
            if entry is None or entry.source != source:
                continue
            entry.tx = ""
            state.watch(entry)
            for neighbour in state.bits.names(entry.sent):
                self._send(neighbour, message)
            if table is state.subscriptions and entry.start:
                entry.start = 0
                self._start(entry)

    # ── beginning ────────────────────────────────────────────────────────────────────────

    def _start(self, entry: Entry) -> None:
        """If somebody here advertises what the subscription wants, it starts here."""
        state = self.state
        if entry.start or not state.hosted:
            return
        if state.advertisements.overlapping_hops(entry.filter) & ~state.bits.all_neighbours:
            if entry.ended and entry.id not in state.lost_starts:
                self._end_late(entry)
                return
            lost, _ = state.lost_starts.pop(entry.id, (0, ""))
            tentative = bool(entry.tx) or entry.id in state.uncut
            entry.start = lost or state.next_tick
            record = (entry.start, entry.id, tentative)
            if lost:
                self._effects.restarted.append(record)
            else:
                self._effects.starts.append(record)
                state.next_tick += 1
            self._started(Started(entry.id, state.hosted, entry.start, tentative), HERE)
            entry.end = state.lost_ends.pop(entry.id, 0)
            if entry.end:  # we have cut while it was lost: it is owed what lies before
                self._switched(Switched(entry.id, state.hosted, entry.end, True), HERE)
            elif entry.ended and entry.id not in state.unended:
                self._end_late(entry)

    def _end_late(self, entry: Entry) -> None:
        """A transaction has ended it, and our pubend has not cut for it: nobody here advertised
        what it wants, or it was not here. From now on nothing of ours is owed to it; or from the
        cut on that it has missed. The record in the stream only shows that the tick has passed."""
        state = self.state
        cut = state.lost_ends.get(entry.id)
        if cut is not None:
            self._switched(Switched(entry.id, state.hosted, cut, True), HERE)
            return
        tick = state.next_tick
        state.next_tick += 1
        self._effects.starts.append((tick, entry.id, True))
        self._switched(Switched(entry.id, state.hosted, tick, True), HERE)

    def _start_attracted(self, advertisement: Entry) -> None:
        """A client of ours advertises: subscriptions that are here already start now."""
        if self.state.hosted:
            for entry in self.state.subscriptions.overlapping(advertisement.filter):
                self._start(entry)

    # ── ending ───────────────────────────────────────────────────────────────────────────

    def _retire(self, entry: Entry, op: OpId | None) -> None:
        """A client of ours takes an advertisement back. Nobody publishes under it any more, but
        those who are owed events still need the routes that it holds."""
        state = self.state
        kept = Entry(entry.id, entry.filter, RETIRED, entry.key, entry.sent)
        state.advertisements.restore(kept)
        state.retired[entry.id] = op
        if op is not None:
            source = Hop.client(op.client)
            state.waits[op] = Wait(op, "unadvertise", source, 0, retired=True)
        self._effects.retired.append(entry.id)

    def over(self, target: OpId, upto: int) -> None:
        """All that was published under a retired advertisement has arrived."""
        state = self.state
        op = state.retired.pop(target)
        entry = state.advertisements.get(target)
        assert entry is not None
        state.advertisements.remove(entry)
        self._end_starts(entry)
        wait = state.waits.get(op) if op is not None else None
        if wait is None:  # nobody waits, or not any more
            op = None
        self._spread_unadvertise(entry, Unadvertise(target, op, upto))
        if wait is not None:
            wait.retired = False
            wait.missing = entry.sent
            if not wait.missing:
                self._settle(wait)

    def _spread_unadvertise(self, entry: Entry, message: Unadvertise) -> None:
        raise NotImplementedError

    def _end_starts(self, gone: Entry) -> None:
        """Subscriptions elsewhere take their starts here to be over when the last advertisement
        that they rest on has gone. Those that stay here, because of what is advertised behind us,
        start anew with the next one."""
        state = self.state
        ours = ~state.bits.all_neighbours
        for subscription in state.subscriptions.overlapping(gone.filter):
            rests = state.advertisements.overlapping_hops(subscription.filter) & ours
            if subscription.start and subscription.source.is_broker and not rests:
                subscription.start = 0

    def _lift_starts(self, gone: Entry, upto: int) -> None:
        """An advertisement has gone after all that was published under it had arrived. Who was
        owed events of its pubend only because of it is owed nothing up to this tick: what is not
        known of these ticks is silence, and must not be asked for once the log forgets it."""
        state, broker = self.state, broker_of(gone.id.epoch)
        for subscription in state.subscriptions.overlapping(gone.filter):
            known = state.starts.get(subscription.id, {})
            of_it = [
                p for p, tick in known.items() if broker_of_pubend(p) == broker and tick <= upto
            ]
            if not of_it or any(
                broker_of(other.id.epoch) == broker
                for other in state.advertisements.overlapping(subscription.filter)
            ):
                continue
            for pubend in of_it:
                del known[pubend]  # the next start, if one comes, is a new one
                state.lapsed.setdefault(subscription.id, {})[pubend] = upto
                if pubend in state.tentative.get(subscription.id, ()):
                    self._untie(subscription.id, pubend)
                state.ends.get(subscription.id, {}).pop(pubend, None)
                self._effects.lifted.append(Started(subscription.id, pubend, upto))

    # ── where the logs are ───────────────────────────────────────────────────────────────

    def _pubend_here(self, message: PubendHere, source: Hop) -> None:
        state = self.state
        if message.pubend in state.pubends:
            self.ignored += 1
            return
        state.pubends[message.pubend] = source
        state.paths[message.pubend] = message.path
        self._effects.rerouted = True
        if source == HERE:
            state.hosted = message.pubend
        self._destroyed(message.pubend)
        self._flood(self._path_to(message.pubend), source)

    def _path_to(self, pubend: str) -> PubendHere:
        return PubendHere(pubend, (self.name, *self.state.paths.get(pubend, ())))

    def _destroyed(self, successor: str) -> None:
        """A broker that has lost its state has lost its log: of the one it had before, nothing is
        owed any more that has not come."""
        broker = broker_of_pubend(successor)
        former = {
            pubend: None
            for known in self.state.starts.values()
            for pubend in known
            if pubend != successor and broker_of_pubend(pubend) == broker
        }
        for known in self.state.starts.values():
            for pubend in former:
                known.pop(pubend, None)
        self._effects.destroyed += former

    def _pubend_gone(self, message: PubendGone, source: Hop) -> None:
        if self.state.pubends.get(message.pubend) != source:
            self.ignored += 1
            return
        del self.state.pubends[message.pubend]
        self.state.paths.pop(message.pubend, None)
        self._effects.rerouted = True
        self._flood(message, source)

    def _forget_pubends(self, source: Hop) -> None:
        for pubend in [p for p, hop in self.state.pubends.items() if hop == source]:
            self._pubend_gone(PubendGone(pubend), source)

    def _flood(self, message: RoutingMessage, source: Hop) -> None:
        bits = self.state.bits
        for neighbour in bits.names(bits.all_neighbours & ~bits.bit(source)):
            self._send(neighbour, message)
