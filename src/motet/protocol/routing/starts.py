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
    PubendGone,
    PubendHere,
    RoutingMessage,
    Started,
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
        known = self.state.starts.setdefault(message.op, {})
        if message.pubend not in known:  # else a broker on the way had forgotten it
            known[message.pubend] = message.tick
            self._effects.started.append(message)

    def learn(self, op: OpId, pubend: str, tick: int) -> None:
        """The stream has told a start before control did."""
        if op in self.state.subscriptions:
            self.state.starts.setdefault(op, {}).setdefault(pubend, tick)

    # ── beginning ────────────────────────────────────────────────────────────────────────

    def _start(self, entry: Entry) -> None:
        """If somebody here advertises what the subscription wants, it starts here."""
        state = self.state
        if entry.start or not state.hosted:
            return
        if state.advertisements.overlapping_hops(entry.filter) & ~state.bits.all_neighbours:
            lost, _ = state.lost_starts.pop(entry.id, (0, ""))
            if lost:
                self._effects.restarted.append((lost, entry.id))
            else:
                self._effects.starts.append((state.next_tick, entry.id))
                state.next_tick += 1
            entry.start = lost or state.next_tick - 1
            self._started(Started(entry.id, state.hosted, entry.start), HERE)

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
                self._effects.lifted.append(Started(subscription.id, pubend, upto))

    # ── where the logs are ───────────────────────────────────────────────────────────────

    def _pubend_here(self, message: PubendHere, source: Hop) -> None:
        state = self.state
        if message.pubend in state.pubends:
            self.ignored += 1
            return
        state.pubends[message.pubend] = source
        self._effects.rerouted = True
        if source == HERE:
            state.hosted = message.pubend
        self._destroyed(message.pubend)
        self._flood(message, source)

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
        self._effects.rerouted = True
        self._flood(message, source)

    def _forget_pubends(self, source: Hop) -> None:
        for pubend in [p for p, hop in self.state.pubends.items() if hop == source]:
            self._pubend_gone(PubendGone(pubend), source)

    def _flood(self, message: RoutingMessage, source: Hop) -> None:
        bits = self.state.bits
        for neighbour in bits.names(bits.all_neighbours & ~bits.bit(source)):
            self._send(neighbour, message)
