"""Start ticks: the tick of a pubend after which a subscription is owed its events.

A subscription that reaches a broker where a client has an overlapping advertisement is started
there, at the next tick of the pubend. The fact that brings the subscription names this tick, so the
journal records a start once. The pubend's log also gets a record of it, so that the stream shows
it. The tick travels back to the subscriber's broker as control, ahead of the echo, and is kept
there as long as the subscription exists.

A client in total order merges the streams of several pubends by tick. Released events of one pubend
cannot be recalled, so another one may take part only above them (`Joins`). From the fact that tells
our broker of a pubend that a local client will merge, the client's merge stops (`Joins.awaited`),
and the pubend is asked to start the subscription above what was released by then: by the
subscription itself, if it goes there only now, otherwise by a `Join` that follows it. An earlier
start is replaced by a new one. Both travel ahead of the echo of the advertisement, so when it is
effective, every merging client has a start above the events it was given.
"""

from __future__ import annotations

from motet.model import Hop, OpId
from motet.protocol.changes import (
    PubendDestroyed,
    StartKnown,
    StartLapsed,
    StartMade,
    StartRecalled,
    StartsAwaited,
    SwitchKnown,
)
from motet.protocol.routing.messages import Confirmed, Join, Started, Subscribe, Switched
from motet.protocol.routing.obligations import Emitter
from motet.protocol.routing.state import HERE, Entry, EntryMarks, RoutingState

FARTHEST = 100 * 366 * 86_400 * 1_000_000
"""How far a neighbour may advance our ticks at once: a hundred years. Ticks last for more than a
hundred thousand."""


def broker_of_pubend(pubend: str) -> str:
    return pubend.rpartition(".")[0]


class Starts:
    """Where subscriptions begin and end in each pubend. Changed only while a fact is applied."""

    def __init__(self, tables: RoutingState, marks: EntryMarks, out: Emitter) -> None:
        self._tables = tables
        self._marks = marks
        self._out = out
        self.next_tick = 0
        """The next start of our own pubend: above all events given to clients in total order."""
        self.known: dict[OpId, dict[str, int]] = {}
        """Of local subscriptions: by pubend, the tick above which they are owed its events."""
        self.tentative: dict[OpId, dict[str, None]] = {}
        """Of those that begin with a transaction: pubends that have started and not yet cut."""
        self.ends: dict[OpId, dict[str, int]] = {}
        """Of those that end with one: by pubend that has cut, the last tick that they are owed."""
        self.lapsed: dict[OpId, dict[str, int]] = {}
        """By pubend without matching advertisements: starts up to this tick are void."""
        self.severed: dict[OpId, dict[str, None]] = {}
        """Pubends whose advertisements were lost on the way: events after the start remain owed."""
        self.forsaken: dict[OpId, None] = {}
        """Removed local subscriptions that stay for a while, because pubends expect them."""
        self.lost: dict[OpId, tuple[int, str]] = {}
        """Of subscriptions that a broker on the way has lost: their start in our own pubend, and
        the neighbour that they came from. They may come again until that neighbour is complete."""
        self.lost_ends: dict[OpId, int] = {}
        """Of some of them: the tick of our own pubend at which a transaction has ended them."""

    def lapsed_upto(self, op: OpId, pubend: str) -> int:
        """A start of a local subscription in a pubend up to this tick is void."""
        known = self.lapsed.get(op)
        return known.get(pubend, 0) if known is not None else 0

    def advance(self, tick: int) -> None:
        """The next tick of our pubend is at least this."""
        self.next_tick = max(self.next_tick, tick)

    # ── at the subscriber's broker, and on the way there ─────────────────────────────────

    def started(self, message: Started) -> None:
        """Passed on to the subscriber; a client that has unsubscribed is owed nothing."""
        entry = self._tables.subscriptions.get(message.op)
        if entry is None:
            return
        if entry.source.is_broker:
            self._out.send(entry.source.name, message)
            return
        if self._know_start(message.op, message.pubend, message.tick, message.tentative):
            self._out.changes.append(
                StartKnown(message.op, message.pubend, message.tick, message.tentative)
            )

    def _know_start(self, op: OpId, pubend: str, tick: int, tentative: bool) -> bool:
        if tick <= self.lapsed_upto(op, pubend) or op in self.forsaken:
            return False
        known = self.known.setdefault(op, {})
        waits = pubend in self.tentative.get(op, ())
        if pubend in known and not self._is_superseded(op, pubend, tick, tentative, waits):
            return False
        known[pubend] = tick
        if tentative:
            self.tentative.setdefault(op, {})[pubend] = None
        elif waits:
            self._untie(op, pubend)
        return True

    def know_own(self, entry: Entry) -> None:
        """A subscription that our own pubend has started is now one of a local client."""
        self._know_start(entry.id, self._tables.hosted, entry.start, False)

    def _is_superseded(
        self, op: OpId, pubend: str, tick: int, tentative: bool, waits: bool
    ) -> bool:
        """Does this start replace the known one? A later start does: the pubend starts a
        subscription again only after it was removed there. The first start crossed that removal:
        brokers on the way had withdrawn the subscription because of an unadvertisement, and the
        pubend started it for the next advertisement before it knew. Events between the two starts
        were never owed, and the log may have dropped them."""
        known = self.known[op]
        if tentative != waits:
            return waits  # it was started again, and no longer as part of a transaction
        if tick == known[pubend]:  # a broker on the way had forgotten it
            self._mend(op, pubend)
        return tick > known[pubend] and pubend not in self.severed.get(op, ())

    def forsake(self, op: OpId) -> None:
        """A local client has removed a subscription that must stay in the tables for now."""
        self.forget(op)
        self.forsaken[op] = None

    def forget(self, op: OpId) -> None:
        """A subscription has ended."""
        for ticks in (self.known, self.tentative, self.ends, self.lapsed, self.severed):
            ticks.pop(op, None)
        self.forsaken.pop(op, None)

    def lose(self, entry: Entry, neighbour: str) -> None:
        """A broker on the way has lost a subscription that comes from a neighbour."""
        if entry.start:
            self.lost[entry.id] = (entry.start, neighbour)
            if entry.end:
                self.lost_ends[entry.id] = entry.end

    def cut(self, entry: Entry, tick: int, *, ended: bool) -> None:
        """A transaction begins, or ends, a subscription after this tick of our own pubend."""
        if ended:
            entry.end = tick
        else:
            entry.start = tick

    def end_lost(self, op: OpId, tick: int) -> None:
        """A transaction has ended a lost subscription at this tick of our own pubend."""
        self.lost_ends[op] = tick

    def restart_lost(self, op: OpId, tick: int) -> None:
        """A lost subscription begins with a transaction, at this tick of our own pubend."""
        _, neighbour = self.lost[op]
        self.lost[op] = (tick, neighbour)

    def settle_end(self, op: OpId) -> None:
        """The end is known everywhere: forget it, unless the subscription may still come again."""
        if op not in self.lost:
            self.lost_ends.pop(op, None)

    def suspend(self, op: OpId) -> None:
        """It is over for its client; its removal waits for a transaction."""
        self.forsaken[op] = None

    def resume(self, op: OpId) -> None:
        """The removal of a suspended subscription is carried out now."""
        self.forsaken.pop(op, None)

    def whole(self, neighbour: str) -> None:
        """A neighbour is complete: a subscription that was lost there does not come again."""
        for op in [op for op, (_, name) in self.lost.items() if name == neighbour]:
            del self.lost[op]
            self.lost_ends.pop(op, None)

    def _mend(self, op: OpId, pubend: str) -> None:
        """The start in a pubend is valid as before, or void: see `severed`."""
        severed = self.severed.get(op)
        if severed is not None and severed.pop(pubend, 0) is None and not severed:
            del self.severed[op]

    def _untie(self, op: OpId, pubend: str) -> None:
        waiting = self.tentative[op]
        del waiting[pubend]
        if not waiting:
            del self.tentative[op]

    def settle(self, op: OpId) -> None:
        """All cuts of a transaction are made: where there is none, nothing has started."""
        known = self.known.get(op, {})
        for pubend in self.tentative.pop(op, ()):
            known.pop(pubend, None)
            self._mend(op, pubend)

    def learn(self, op: OpId, pubend: str, tick: int, tentative: bool) -> None:
        """The stream has shown a start before the control message arrived."""
        entry = self._tables.subscriptions.get(op)
        if entry is not None and (entry.tx or not tentative):  # else the cut decides
            self._know_start(op, pubend, tick, tentative)

    # ── cuts ─────────────────────────────────────────────────────────────────────────────

    def switched(self, message: Switched, source: Hop = HERE) -> None:
        """Passed on to the subscriber, like a start."""
        del source
        entry = self._tables.subscriptions.get(message.op)
        if entry is not None and entry.source.is_broker:
            self._out.send(entry.source.name, message)
        elif entry is not None and self._know_switch(message):
            self._out.changes.append(
                SwitchKnown(message.op, message.pubend, message.tick, message.ended)
            )

    def _know_switch(self, switch: Switched) -> bool:
        op, pubend = switch.op, switch.pubend
        if op in self.forsaken:
            return False
        if switch.ended:
            ends = self.ends.setdefault(op, {})
            if pubend in ends:
                return False
            ends[pubend] = switch.tick
            return True
        if pubend in self.tentative.get(op, ()):
            self._untie(op, pubend)
        elif pubend in self.known.get(op, {}):
            return False
        self.known.setdefault(op, {})[pubend] = switch.tick
        return True

    def learn_switch(self, switch: Switched) -> None:
        """The stream has shown a cut before the control message arrived."""
        if switch.op in self._tables.subscriptions:
            self._know_switch(switch)

    def confirmed(self, message: Confirmed, source: Hop) -> None:
        tables = self._tables
        for table in (tables.subscriptions, tables.advertisements):
            entry = table.get(message.op)
            if entry is None or entry.source != source:
                continue
            entry.tx = ""
            self._marks.watch(entry)
            for neighbour in tables.bits.names(entry.sent):
                self._out.send(neighbour, message)
            if table is tables.subscriptions and entry.start:
                entry.start = 0
                self.start(entry)

    # ── beginning ────────────────────────────────────────────────────────────────────────

    def start(self, entry: Entry) -> None:
        """Start the subscription here if a local client advertises matching events."""
        tables = self._tables
        if entry.start or not tables.hosted:
            return
        if tables.advertisements.overlapping_hops(entry.filter) & ~tables.bits.all_neighbours:
            if entry.ended and entry.id not in self.lost:
                self._end_late(entry)
                return
            lost, _ = self.lost.pop(entry.id, (0, ""))
            tentative = bool(entry.tx) or entry.id in self._marks.uncut
            entry.start = lost or self.next_tick
            record = (entry.start, entry.id, tentative)
            if lost:
                self._out.changes.append(StartRecalled(*record))
            else:
                self._out.changes.append(StartMade(*record))
                self.next_tick += 1
            self.started(Started(entry.id, tables.hosted, entry.start, tentative))
            entry.end = self.lost_ends.pop(entry.id, 0)
            if entry.end:  # we cut while it was lost: it is owed the events before the cut
                self.switched(Switched(entry.id, tables.hosted, entry.end, True))
            elif entry.ended and entry.id not in self._marks.unended:
                self._end_late(entry)

    def _end_late(self, entry: Entry) -> None:
        """A transaction has ended it, and our pubend has not cut for it: there was no matching
        advertisement here, or it was not here. It is owed none of our events from now on, or from
        the cut that it has missed. The record in the stream only shows that the tick has passed."""
        tables = self._tables
        cut = self.lost_ends.get(entry.id)
        if cut is not None:
            self.switched(Switched(entry.id, tables.hosted, cut, True))
            return
        tick = self.next_tick
        self.next_tick += 1
        self._out.changes.append(StartMade(tick, entry.id, True))
        self.switched(Switched(entry.id, tables.hosted, tick, True))

    def start_attracted(self, advertisement: Entry) -> None:
        """A local client advertises: subscriptions that are already here start now."""
        if self._tables.hosted:
            for entry in self._tables.subscriptions.overlapping(advertisement.filter):
                self.start(entry)

    # ── ending ───────────────────────────────────────────────────────────────────────────

    def end(self, gone: Entry) -> None:
        """Remote subscriptions consider their starts here void when the last local advertisement
        that matches them is gone. Those that stay here, because of advertisements behind us, start
        again with the next one."""
        tables = self._tables
        ours = ~tables.bits.all_neighbours
        for subscription in tables.subscriptions.overlapping(gone.filter):
            rests = tables.advertisements.overlapping_hops(subscription.filter) & ours
            remote = subscription.source.is_broker
            if subscription.start and remote and not rests:
                subscription.start = 0

    def lift(self, gone: Entry, upto: int) -> None:
        """An advertisement is gone. With a tick, all events published under it have arrived: a
        subscription that was owed events of its pubend only because of it is owed nothing up to
        this tick. Unknown ticks up to it are silence, and must not be requested once the log
        forgets them. Without a tick, a broker on the way has lost the advertisement."""
        tables, broker = self._tables, gone.home
        for subscription in tables.subscriptions.overlapping(gone.filter):
            known = self.known.get(subscription.id, {})
            of_it = [
                p
                for p, tick in known.items()
                if broker_of_pubend(p) == broker and (tick <= upto or not upto)
            ]
            if not of_it or any(
                other.home == broker
                for other in tables.advertisements.overlapping(subscription.filter)
            ):
                continue
            for pubend in of_it:
                if not upto:
                    self.severed.setdefault(subscription.id, {})[pubend] = None
                    continue
                self.lapse(subscription.id, pubend, upto)
                self._out.changes.append(StartLapsed(subscription.id, pubend, upto))

    def lapse(self, op: OpId, pubend: str, upto: int) -> None:
        """A subscription is owed nothing of a pubend any more; a later start is a new one."""
        self._mend(op, pubend)
        del self.known[op][pubend]
        self.lapsed.setdefault(op, {})[pubend] = upto
        if pubend in self.tentative.get(op, ()):
            self._untie(op, pubend)
        self.ends.get(op, {}).pop(pubend, None)

    def destroyed(self, successor: str) -> None:
        """A broker that has lost its state has lost its log: events of its former log that have not
        arrived are no longer owed."""
        broker = broker_of_pubend(successor)
        former = {
            pubend: None
            for known in self.known.values()
            for pubend in known
            if pubend != successor and broker_of_pubend(pubend) == broker
        }
        for op, known in self.known.items():
            for pubend in former:
                known.pop(pubend, None)
                self._mend(op, pubend)
        self._out.changes += map(PubendDestroyed, former)


class Joins:
    """Starts of subscriptions of clients in total order."""

    def __init__(self, tables: RoutingState, starts: Starts, out: Emitter) -> None:
        self._tables = tables
        self._starts = starts
        self._out = out
        self.merging: dict[str, None] = {}
        """Local clients in total order."""
        self.awaited: dict[OpId, dict[str, int]] = {}
        """Of their subscriptions: the pubends that will start them, each above a tick."""
        self.recalls = True
        """Whether the loss of a broker on the way voids starts: see `ControlReceived.recalls`."""

    def enter(self, client: str) -> None:
        """A local client in total order has a session."""
        self.merging[client] = None

    def leave(self, client: str) -> None:
        """The session of a local client has ended."""
        self.merging.pop(client, None)

    # ── at the subscriber's broker ───────────────────────────────────────────────────────

    def merges(self, subscription: Entry) -> bool:
        return not subscription.source.is_broker and subscription.source.name in self.merging

    def expect_starts(self, subscription: Entry, message: Subscribe) -> None:
        """A local client subscribes in total order: expect a start of every matching advertiser."""
        for advertisement in self._tables.advertisements.overlapping(subscription.filter):
            if advertisement.source.is_broker:
                self._expect_start(subscription, advertisement, message.above)

    def _expect_start(self, subscription: Entry, advertisement: Entry, above: int) -> str:
        """The pubend whose start is now expected; empty if it was expected before, or is known."""
        pubend = self._pubend_of(advertisement.home)
        awaited = self.awaited.setdefault(subscription.id, {})
        if not pubend or pubend in awaited or pubend in self._starts.known.get(subscription.id, ()):
            return ""
        awaited[pubend] = above
        self._out.changes.append(StartsAwaited(subscription.id.client))
        return pubend

    def _pubend_of(self, broker: str) -> str:
        found = [each for each in self._tables.pubends if broker_of_pubend(each) == broker]
        return found[-1] if found else ""

    def attract(self, subscription: Entry, advertisement: Entry) -> Join | None:
        """The start to ask for, if one is expected now, or is still expected although a broker on
        the way has lost the advertisement: it may have been made, or not."""
        above = self._starts.next_tick
        pubend = self._expect_start(subscription, advertisement, above)
        if not pubend and self.recalls and not self._rests(subscription, advertisement):
            awaited = self.awaited[subscription.id]
            pubend = self._pubend_of(advertisement.home)
            if pubend not in awaited:
                return None
            above = awaited[pubend]
            self._out.changes.append(StartsAwaited(subscription.id.client))
        return Join(subscription.id, pubend, above) if pubend else None

    def may_recall(self, asked: Join, source: Hop) -> bool:
        """Whether other pubends in this direction may have started the subscription before: they
        recall that start unless the subscription itself names a tick."""
        known, awaited = self._starts.known.get(asked.op, {}), self.awaited.get(asked.op, {})
        where = self._tables.pubends
        others = (p for p in (*known, *awaited) if p != asked.pubend)
        return self.recalls and any(where.get(pubend) == source for pubend in others)

    def _rests(self, subscription: Entry, gone: Entry) -> bool:
        """Does another advertisement of the same broker attract the subscription?"""
        return any(
            other.home == gone.home and other is not gone
            for other in self._tables.advertisements.overlapping(subscription.filter)
        )

    def started(self, message: Started, source: Hop) -> None:
        """For a local client in total order, only the requested start counts; and one of our own
        pubend, unless it was requested from another broker, before the client came here."""
        del source
        tables = self._tables
        entry = tables.subscriptions.get(message.op)
        awaited = self.awaited.get(message.op, {})
        if entry is None or not self.merges(entry):
            self._starts.started(message)
        elif message.pubend not in awaited:
            if message.pubend == tables.hosted:
                self._starts.started(message)
        elif awaited[message.pubend] < message.tick:
            del awaited[message.pubend]
            self._out.changes.append(StartsAwaited(message.op.client))
            self._starts.started(message)

    def expect_less(self, gone: Entry, upto: int) -> None:
        """An advertisement is gone: starts that only it would have caused are not expected. Without
        a tick it was lost on the way: it may come again, and events may be owed already."""
        if not self.awaited or (self.recalls and not upto):
            return
        for subscription in self._tables.subscriptions.overlapping(gone.filter):
            awaited = self.awaited.get(subscription.id, {})
            of_it = [pubend for pubend in awaited if broker_of_pubend(pubend) == gone.home]
            if of_it and not self._rests(subscription, gone):
                self._forgo(subscription.id, of_it)

    def lift_arrived(self, subscription: Entry) -> None:
        """See `Relocation.lift_starts`."""
        awaited = self.awaited.get(subscription.id)
        if not awaited:
            return
        advertisements = self._tables.advertisements.overlapping(subscription.filter)
        homes = {each.home for each in advertisements}
        gone = [pubend for pubend in awaited if broker_of_pubend(pubend) not in homes]
        if gone:
            self._forgo(subscription.id, gone)

    def _forgo(self, op: OpId, pubends: list[str]) -> None:
        for pubend in pubends:
            del self.awaited[op][pubend]
        self._out.changes.append(StartsAwaited(op.client))

    def destroyed(self, successor: str) -> None:
        """A broker has lost its log: its former pubend starts nothing any more."""
        broker = broker_of_pubend(successor)
        for op, awaited in self.awaited.items():
            former = [p for p in awaited if p != successor and broker_of_pubend(p) == broker]
            if former:
                self._forgo(op, former)

    def whole(self) -> None:
        """A neighbour is complete, or no longer a neighbour: an advertisement that was lost there
        and has not come again is gone, and so are the starts that only it would have caused."""
        tables = self._tables
        everything = not tables.bits.all_neighbours & ~tables.complete
        for op, awaited in self.awaited.items():
            entry = tables.subscriptions.get(op)
            if entry is None or not awaited:
                continue
            homes = {other.home for other in tables.advertisements.overlapping(entry.filter)}
            gone = [p for p in awaited if broker_of_pubend(p) not in homes]
            hops = {p: tables.pubends.get(p) for p in gone}
            over = [
                pubend
                for pubend, hop in hops.items()
                if everything or (hop is not None and tables.bits.bit(hop) & tables.complete)
            ]
            if over:
                self._forgo(op, over)

    # ── on the way, and at the pubend's broker ───────────────────────────────────────────

    def join(self, message: Join, source: Hop) -> None:
        tables = self._tables
        hop = tables.pubends.get(message.pubend)
        if hop is None or hop == source:
            return  # its advertisements are gone here, and soon also where this came from
        if hop != HERE:
            self._out.send(hop.name, message)
            return
        entry = tables.subscriptions.get(message.op)
        if entry is None:
            return  # already removed
        if entry.start > message.above:
            self._starts.started(Started(entry.id, tables.hosted, entry.start))
        else:
            entry.start = 0
            self.start_above(entry, message.above)

    def start_above(self, entry: Entry, above: int) -> None:
        """Start it if a local client advertises; `above` is ignored if beyond `FARTHEST`. A start
        that a broker on the way has lost stands if it is above: events after it are owed, and were
        perhaps published when all advertisements and subscriptions were effective."""
        starts = self._starts
        lost, _ = starts.lost.get(entry.id, (0, ""))
        if above and not (self.recalls and lost > above):
            starts.lost.pop(entry.id, None)
        if 0 < above < starts.next_tick + FARTHEST:
            starts.advance(above + 1)
        starts.start(entry)
