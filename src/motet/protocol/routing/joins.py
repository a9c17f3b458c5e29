"""Where subscriptions of clients in total order start: above all that they have been given.

A client in total order merges the streams of several pubends by tick. What has been released of
one cannot be taken back, so another may take part only above it. From the fact on that tells our
broker of a pubend that a client of ours will merge, its merge stands still (`RoutingState.joins`),
and the pubend is asked to start the subscription above what was released by then: by the
subscription itself, if it goes there only now, else by a `Join` that follows it. A start that was
written before is written again. Both travel ahead of the echo of the advertisement, so when it is
effective everybody who merges has a start above what it was given.
"""

from __future__ import annotations

from motet.model import Hop
from motet.model.epochs import broker_of
from motet.protocol.routing.messages import Join, PubendHere, Started, Subscribe
from motet.protocol.routing.starts import HERE, Starts, broker_of_pubend
from motet.protocol.routing.state import Entry

FARTHEST = 100 * 366 * 86_400 * 1_000_000
"""How far a neighbour may push our ticks at once: a hundred years. They last for more than a
hundred thousand."""


class Joins(Starts):
    # ── at the subscriber's broker ───────────────────────────────────────────────────────

    def _merges(self, subscription: Entry) -> bool:
        return not subscription.source.is_broker and subscription.source.name in self.state.merging

    def _expect_starts(self, subscription: Entry, message: Subscribe) -> None:
        """A client of ours subscribes in total order: everybody who advertises will start it."""
        for advertisement in self.state.advertisements.overlapping(subscription.filter):
            if advertisement.source.is_broker:
                self._expect_start(subscription, advertisement, message.above)

    def _expect_start(self, subscription: Entry, advertisement: Entry, above: int) -> str:
        """The pubend whose start is expected from now on; none if it is already, or is known."""
        state = self.state
        pubend = self._pubend_of(broker_of(advertisement.id.epoch))
        awaited = state.joins.setdefault(subscription.id, {})
        if not pubend or pubend in awaited or pubend in state.starts.get(subscription.id, ()):
            return ""
        awaited[pubend] = above
        self._effects.awaiting[subscription.id.client] = None
        return pubend

    def _pubend_of(self, broker: str) -> str:
        found = [each for each in self.state.pubends if broker_of_pubend(each) == broker]
        return found[-1] if found else ""

    def _attract_merging(self, subscription: Entry, advertisement: Entry) -> int:
        """Above what it must start there, if the subscription is about to go there."""
        above = self.state.next_tick
        pubend = self._expect_start(subscription, advertisement, above)
        neighbour = advertisement.source.name
        if pubend and subscription.sent & self._bit(neighbour):
            self._send(neighbour, Join(subscription.id, pubend, above))
        return above if pubend else 0

    def _started(self, message: Started, source: Hop) -> None:
        """Of a client of ours in total order only the start that was asked for counts."""
        state = self.state
        entry = state.subscriptions.get(message.op)
        if entry is None or not self._merges(entry) or message.pubend == state.hosted:
            super()._started(message, source)
            return
        awaited = state.joins.get(message.op, {})
        if awaited.get(message.pubend, message.tick) < message.tick:
            del awaited[message.pubend]
            self._effects.awaiting[message.op.client] = None
            super()._started(message, source)

    def _expect_less(self, gone: Entry) -> None:
        """An advertisement is gone: nobody starts there what only it has attracted."""
        state, broker = self.state, broker_of(gone.id.epoch)
        for subscription in state.subscriptions.overlapping(gone.filter) if state.joins else ():
            awaited = state.joins.get(subscription.id, {})
            of_it = [pubend for pubend in awaited if broker_of_pubend(pubend) == broker]
            if of_it and not any(
                broker_of(other.id.epoch) == broker
                for other in state.advertisements.overlapping(subscription.filter)
            ):
                for pubend in of_it:
                    del awaited[pubend]
                self._effects.awaiting[subscription.id.client] = None

    def _pubend_here(self, message: PubendHere, source: Hop) -> None:
        """Whoever advertises there may have been heard of before."""
        super()._pubend_here(message, source)
        if self.state.merging and source.is_broker:
            broker = broker_of_pubend(message.pubend)
            for entry in [e for e in self.state.advertisements if e.source == source]:
                if broker_of(entry.id.epoch) == broker:
                    self._attract(entry)

    def _attract(self, advertisement: Entry) -> None:
        raise NotImplementedError

    # ── on the way, and at the pubend's broker ───────────────────────────────────────────

    def _join(self, message: Join, source: Hop) -> None:
        state = self.state
        hop = state.pubends.get(message.pubend)
        if hop is None or hop == source:
            return  # its advertisements are gone from here, too, and soon from where it came
        if hop != HERE:
            self._send(hop.name, message)
            return
        entry = state.subscriptions.get(message.op)
        if entry is None:
            return  # taken back before
        if entry.start > message.above:
            self._started(Started(entry.id, state.hosted, entry.start), HERE)
        else:
            entry.start = 0
            self._start_above(entry, message.above)

    def _start_above(self, entry: Entry, above: int) -> None:
        """Start it if somebody advertises here, above a tick that is not out of this world."""
        state = self.state
        if above:
            state.lost_starts.pop(entry.id, None)
        if 0 < above < state.next_tick + FARTHEST:
            state.next_tick = max(state.next_tick, above + 1)
        self._start(entry)
