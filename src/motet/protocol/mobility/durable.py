"""The durable half of mobility: the decision, the move along the path, the arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, msgpack
from msgspec.structs import replace

from motet.model import Hop, OpId
from motet.model.filters import from_own, to_wire
from motet.model.ids import LAST_TICK, is_newer
from motet.protocol.changes import (
    AdvertisementMade,
    ArrivalEchoed,
    ArrivalReported,
    ClientEnded,
    NeighbourDismissed,
    NeighbourForgotten,
    PathPassed,
    PredecessorsDue,
    PublisherAwaited,
    Sent,
    SessionArrived,
    SessionClosed,
    SessionDeparted,
    SessionPassed,
    StartLapsed,
    StartMade,
)
from motet.protocol.delivery.facts import FloorRaised
from motet.protocol.delivery.spans import Range
from motet.protocol.mobility.claims import decoded, is_counted
from motet.protocol.mobility.facts import MoveDecided, PublisherAdmitted
from motet.protocol.mobility.messages import MoveCommit, MoveDone, MovingPart
from motet.protocol.mobility.state import (
    Forwarding,
    HeldEcho,
    MobilityState,
    Pins,
    Transit,
    Travel,
    key_of,
    pinned_by,
)
from motet.protocol.room import Bus, DurableRoom, Handler
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import ClientGone, Echo, Unadvertise, Unsubscribe
from motet.protocol.routing.relocation import Relocated, Relocation
from motet.protocol.routing.starts import FARTHEST
from motet.protocol.session.durable import DurableSessions
from motet.protocol.session.machine import Sessions
from motet.protocol.session.state import Session
from motet.protocol.transactions.machine import Transactions
from motet.protocol.transactions.participant import ARRIVING

FENCED = Hop("fenced", "")
"""The source of rows that come with a session that ends on its way; they end at once."""


class DurableMobility(DurableRoom):
    name = "mobility"

    def __init__(
        self,
        bus: Bus,
        name: str,
        routing: Routing,
        sessions: Sessions,
        requests: DurableSessions,
        transactions: Transactions,
    ) -> None:
        self._bus = bus
        self._broker = name
        self._routing = routing
        self._sessions = sessions
        self._requests = requests
        self._transactions = transactions
        self._decisions = transactions.decisions
        self._relocation = Relocation(routing)
        self.state = MobilityState()
        self.pins = Pins()
        routing.obligations.holds = self._holds
        transactions.participant.arriving = self._is_arriving

    def facts(self) -> Mapping[type, Handler]:
        return {
            MoveDecided: self._decided,
            PublisherAdmitted: self._admitted,
            FloorRaised: self._floor_raised,
        }

    def reactions(self) -> Mapping[type, Handler]:
        return {
            SessionClosed: self._session_closed,
            ClientEnded: self._client_ended,
            NeighbourForgotten: self._forget,
            NeighbourDismissed: lambda change: self._release(change.neighbour),
            ArrivalEchoed: self._echoed,
            AdvertisementMade: self._advertised,
            StartMade: self._started,
        }

    def messages(self) -> Mapping[type, Callable[[Any, Hop], None]]:
        return {MoveCommit: self._committed, MoveDone: self._done}

    def image(self) -> bytes:
        image = replace(self.state, heard=self._decisions.state.heard)
        return msgpack.encode(image, enc_hook=to_wire) if image else b""

    def restore(self, image: bytes) -> None:
        self.state = msgpack.decode(image, type=MobilityState, dec_hook=from_own)
        self._decisions.state.heard, self.state.heard = self.state.heard, 0
        self.pins.renew(self.state.transits.values())

    def leftovers(self) -> list[str]:
        """What must be gone when all sessions have arrived and everything is acknowledged."""
        found = [f"{each.commit.client} is in transit" for each in self.state.transits.values()]
        clients = self._routing.state.clients
        for client, travel in self.state.travels.items():
            if self._sessions.current(client, travel.epoch) is None:
                found.append(f"{client} has no session, but has travelled")
        for client, forwarding in self.state.forwardings.items():
            if self._sessions.current(client, forwarding.epoch) is not None:
                found.append(f"{client} is here, but is sent on to {forwarding.broker}")
            elif clients.get((client, forwarding.epoch)) == Hop.client(client):
                found.append(f"{client} is not here, but the routing table says so")
        return found

    # ── looking ──────────────────────────────────────────────────────────────────────────

    def travel(self, client: str, epoch: str) -> Travel | None:
        found = self.state.travels.get(client)
        return found if found is not None and found.epoch == epoch else None

    def forwarding(self, client: str, epoch: str) -> Forwarding | None:
        """Where a session that was here has gone, while it exists."""
        found = self.state.forwardings.get(client)
        if found is None or found.epoch != epoch:
            return None
        return found if (client, epoch) in self._routing.state.clients else None

    # ── the source ───────────────────────────────────────────────────────────────────────

    def _decided(self, fact: MoveDecided) -> None:
        client, epoch, path = fact.client, fact.epoch, fact.path
        session = self._sessions.current(client, epoch)
        assert session is not None
        assert path[0] == self._broker
        self._routing.starts.advance(fact.tick + 1)  # our pubend may start what leaves now
        before, after = Hop.client(client), Hop.broker(path[1])
        state = self._routing.state
        residues: dict[OpId, OpId] = {}
        if fact.last:
            for entry in state.advertisements.from_source(before):
                residues[entry.id] = OpId(client, epoch, session.grant())
        travel = self.travel(client, epoch) or Travel(epoch)
        predecessors = self._still_owed(travel, client, epoch)
        trail = dict(travel.trail)
        if fact.last and state.hosted:
            predecessors[state.hosted] = fact.last
        if fact.logged and state.hosted:
            trail[state.hosted] = fact.logged
        subscriptions, advertisements = self._relocation.rows(client, residues)
        void = self._relocation.lift_own_starts(client)
        gone = {**fact.gone, **self._gone(session, void, fact.levels)}
        for lapsed in void:
            self._requests.forgo(lapsed.op, lapsed.pubend)
        handed = self._requests.hand_out(client, epoch)
        assert handed is not None
        commit = MoveCommit(
            client,
            epoch,
            travel.number + 1,
            path,
            (client, epoch) in state.clients.durable,
            handed,
            subscriptions,
            advertisements,
            self._relocation.take_starts(subscriptions),
            fact.levels,
            _highest(travel.doubts, fact.doubts),
            fact.tick,
            fact.cut,
            fact.upto,
            fact.refused,
            fact.forgotten,
            fact.carried,
            predecessors,
            tuple(self._hand_out(client, epoch)),
            trail,
            fact.unsettled,
            fact.forgot,
            gone,
        )
        self._requests.depart(session)
        self.state.travels.pop(client, None)
        self._routing.joins.leave(client)
        self.state.forwardings[client] = Forwarding(epoch, path[-1], fact.address, commit.number)
        self._pass_on(commit, before, after)
        state.bits.release(before)
        ops = tuple(each.id for each in subscriptions)
        self._bus.emit(SessionDeparted(client, epoch, ops))

    def _hand_out(self, client: str, epoch: str) -> Iterator[MovingPart]:
        for room in self._bus.rooms:
            part = None if room is self._requests else room.hand_out(client, epoch)
            if part is not None:
                yield MovingPart(room.name, msgpack.encode(part, enc_hook=to_wire))

    def _still_owed(self, travel: Travel, client: str, epoch: str) -> dict[str, int]:
        """The predecessors of a session whose events may not have arrived everywhere: there are
        still residues of its advertisements."""
        if not travel.predecessors:
            return {}
        homes = {
            entry.home
            for entry in self._routing.state.advertisements
            if entry.id[:2] == (client, epoch) and entry.source != Hop.client(client)
        }
        return {p: t for p, t in travel.predecessors.items() if p.rpartition(".")[0] in homes}

    def _gone(
        self, session: Session, void: Iterable[StartLapsed], levels: Mapping[str, int]
    ) -> dict[str, Range]:
        """By pubend: the past that subscriptions wanted which start there no more, as far as the
        client has not acknowledged it, and no other one of its subscriptions is owed it."""
        found: dict[str, Range] = {}
        for op, pubend, tick in ((each.op, each.pubend, each.tick) for each in void):
            wanted = session.since.get(op.sequence, {})
            since = max(wanted.get(pubend, wanted.get("", LAST_TICK)), levels.get(pubend, 0))
            known = self._routing.starts.known.items()
            upto = min([tick, *(p[pubend] for o, p in known if o[:2] == op[:2] and pubend in p)])
            if since < upto:
                low, high = found.get(pubend, (since + 1, upto))
                found[pubend] = (min(low, since + 1), max(high, upto))
        return found

    def predecessors(self, client: str, epoch: str) -> dict[str, int]:
        """What every subscriber must have received before further events of a local client."""
        travel = self.travel(client, epoch)
        if travel is None or not travel.predecessors:
            return {}
        return self._still_owed(travel, client, epoch)

    def passing(self, neighbour: str) -> list[str]:
        """The clients on their way from or to a neighbour: it cannot be taken away."""
        transits = self.state.transits.values()
        return [each.commit.client for each in transits if neighbour in (each.pre, each.suc)]

    # ── the path ─────────────────────────────────────────────────────────────────────────

    def _committed(self, commit: MoveCommit, source: Hop) -> None:
        path = commit.path
        at = path.index(self._broker) if self._broker in path else 0
        onward = path[at + 1] if at + 1 < len(path) else ""
        if (
            self._parts_in(commit) is None
            or not at
            or not self._may_come(commit, path[at - 1], source)
        ):
            self._routing.ignored += 1
            return
        if onward and onward not in self._routing.state.bits.neighbours:
            self._end(commit, source)  # it was taken out of the overlay meanwhile
            return
        heard = self._concerned(commit, self._bus.heard)
        unsettled = commit.unsettled
        if self._decisions.state.heard >= unsettled > 0:
            unsettled = self._decisions.unsettled(unsettled)
        commit = replace(commit, doubts=_highest(commit.doubts, heard), unsettled=unsettled)
        if onward:
            self._pass_on(commit, source, Hop.broker(onward))
        else:
            self._arrive(commit, source)

    def _may_come(self, commit: MoveCommit, before: str, source: Hop) -> bool:
        """Does it come along its path, from where the client was, and with its own rows only?"""
        key = (commit.client, commit.epoch)
        state = self._routing.state
        return (
            before == source.name
            and len(set(commit.path)) == len(commit.path)
            and state.clients.get(key, source) == source
            and all(row.id[:2] == key for row in (*commit.subscriptions, *commit.advertisements))
            and self._requests.fits(*key, commit.session)
            and is_counted(commit)
        )

    def _concerned(self, commit: MoveCommit, heard: Mapping[str, int]) -> Mapping[str, int]:
        """The pubends among these that the session may receive from."""
        if all(pubend in commit.levels or pubend in commit.doubts for pubend in heard):
            return heard
        overlapping = self._routing.state.advertisements.overlapping
        homes = {each.home for row in commit.subscriptions for each in overlapping(row.filter)}
        return {
            pubend: tick
            for pubend, tick in heard.items()
            if pubend in commit.levels
            or pubend in commit.doubts
            or pubend.rpartition(".")[0] in homes
        }

    def _pass_on(self, commit: MoveCommit, before: Hop, after: Hop) -> None:
        moving = _relocated(commit)
        transit = Transit(commit, before.name if before.is_broker else "", after.name)
        self.state.transits[key_of(commit.client, commit.epoch)] = transit
        self.pins.add(pinned_by(commit))
        self._bus.carry(self._relocation.turn(moving, before, after))
        self._bus.emit(Sent(after.name, commit))
        self._bus.emit(SessionPassed(commit.client, commit.epoch))
        self._bus.carry(self._relocation.begin(moving))

    def _done(self, done: MoveDone, source: Hop) -> None:
        transit = self.state.transits.get(key_of(done.client, done.epoch))
        if transit is None or transit.suc != source.name:
            return  # repeated after a link has restarted
        key = key_of(done.client, done.epoch)
        del self.state.transits[key]
        self.pins.renew(self.state.transits.values())
        commit = transit.commit
        self._sweep(source.name)
        self._bus.emit(PathPassed(source.name, pinned_by(commit)))
        if transit.pre:
            self._report(commit, transit.pre)
            before = Hop.broker(transit.pre)
            self._bus.carry(self._relocation.withdraw(commit.subscriptions, before))
        self._let_go(key)

    def _report(self, commit: MoveCommit, pre: str) -> None:
        self.state.fenced[pre] = None
        self._bus.emit(Sent(pre, MoveDone(commit.client, commit.epoch, commit.number)))
        self._bus.emit(ArrivalReported(tuple(pinned_by(commit))))

    # ── echoes that wait for clients on their way ────────────────────────────────────────

    def _holds(self, op: OpId, requester: str) -> bool:
        """A client in total order that an advertisement has missed asks for its start when it
        arrives. What it asks goes ahead of the report of its arrival."""
        transits = self.state.transits.items()
        behind = [key for key, each in transits if each.commit.session.session.total_order]
        if behind:
            self.state.echoes.append(HeldEcho(op, requester, dict.fromkeys(behind)))
        return bool(behind)

    def _let_go(self, key: str) -> None:
        """A client that passed here has arrived."""
        for held in list(self.state.echoes):
            held.behind.pop(key, None)
            if not held.behind:
                self.state.echoes.remove(held)
                self._bus.emit(Sent(held.requester, Echo(held.op)))

    def _sweep(self, neighbour: str) -> None:
        self.state.swept[neighbour] = self._bus.received

    # ── the target ───────────────────────────────────────────────────────────────────────

    def _parts_in(self, commit: MoveCommit) -> list[tuple[DurableRoom, Struct]] | None:
        return decoded(commit, {room.name: room for room in self._bus.rooms})

    def _arrive(self, commit: MoveCommit, source: Hop) -> None:
        client, epoch = commit.client, commit.epoch
        state = self._routing.state
        newest = state.clients.newest(client)
        moving = _relocated(commit)
        if newest is not None and is_newer(newest, than=epoch):
            self._end(commit, source)
            return
        self.state.forwardings.pop(client, None)
        travel = self.state.travels[client] = Travel(
            epoch,
            commit.number,
            commit.carried,
            dict(commit.levels),
            dict(commit.doubts),
            dict(commit.predecessors),
            dict(commit.trail),
            commit.cut,
            commit.unsettled,
            refused=commit.refused,
            forgotten=commit.forgotten,
            forgot=commit.forgot,
            gone=dict(commit.gone),
        )
        self._requests.take_in(client, epoch, commit.session)
        if commit.tick < self._routing.starts.next_tick + FARTHEST:
            self._routing.starts.advance(commit.tick + 1)
        self._bus.carry(self._relocation.turn(moving, source, Hop.client(client)))
        self._relocation.give_starts(commit.starts)
        self._relocation.know_own_starts(commit.subscriptions)
        void = self._relocation.lift_starts(commit.subscriptions)
        arrived = self._sessions.current(client, epoch)
        assert arrived is not None
        travel.gone.update(self._gone(arrived, void, commit.levels))
        for room, part in self._parts_in(commit) or ():
            room.take_in(client, epoch, part)
        self._bus.carry(self._relocation.begin(moving))
        self._report(commit, source.name)  # echoes that wait for it follow what it asks
        self._bus.carry(self._relocation.withdraw(commit.subscriptions, source))
        self._bus.emit(SessionArrived(client, epoch, source.name))
        travel.probe = self._relocation.probe(moving)
        self._bus.carry(self._routing.take())

    def _end(self, commit: MoveCommit, source: Hop) -> None:
        """A session ends on its way, with everything that it has."""
        self._bus.carry(self._relocation.turn(_relocated(commit), source, FENCED))
        self._report(commit, source.name)
        for row in commit.advertisements:
            self._bus.route(Unadvertise(row.id), FENCED)
        for row in commit.subscriptions:
            self._bus.route(Unsubscribe(row.id), FENCED)
        self._bus.route(ClientGone(commit.client, commit.epoch), FENCED)
        self._routing.state.bits.release(FENCED)

    def _is_arriving(self, client: str, epoch: str, publishes: bool) -> bool:
        """Whether a plan must wait: what a local client has sent may not be taken yet, or some
        subscriber may not know that it publishes here. Most clients take no part in plans, so that
        is asked about only for the first plan after a move that publishes."""
        travel = self.travel(client, epoch)
        if travel is None:
            return False
        if publishes and travel.announced is None:
            travel.announced = self._relocation.announce(client)
            self._bus.carry(self._routing.take())
        if not (travel.awaited or self.may_publish(travel)):
            travel.awaited = True
            self._bus.emit(PublisherAwaited(client))
        return self._holds_plans(travel)

    def _holds_plans(self, travel: Travel) -> bool:
        return travel.awaited or travel.announced in self._routing.state.waits

    def may_publish(self, travel: Travel) -> bool:
        """All subscriptions are known here, and our pubend has cut for every decision that its
        former one had cut for."""
        state = self._routing.state
        if state.unsure or travel.probe in state.waits:
            return False
        touched = self._transactions.cutter.state.touched.values()
        heard = self._decisions.state.heard >= travel.unsettled
        return heard and all(each.decide.number > travel.cut for each in touched)

    def _admitted(self, fact: PublisherAdmitted) -> None:
        travel = self.travel(fact.client, fact.epoch)
        if travel is not None:
            travel.awaited = False
            self._go_on_with_plans(fact.client, travel)

    def _echoed(self, echoed: ArrivalEchoed) -> None:
        for client, travel in self.state.travels.items():
            if travel.announced == echoed.op:
                self._go_on_with_plans(client, travel)

    def _go_on_with_plans(self, client: str, travel: Travel) -> None:
        if not self._holds_plans(travel):
            self._transactions.effective(OpId(client, travel.epoch, ARRIVING), failed=False)

    def _floor_raised(self, fact: FloorRaised) -> None:
        for travel in self.state.travels.values():
            travel.settle(fact.pubend, fact.upto)

    def _started(self, made: StartMade) -> None:
        if self.state.travels:
            self._bus.emit(PredecessorsDue(made.op))

    def _advertised(self, made: AdvertisementMade) -> None:
        """Its subscribers may have started for other clients' advertisements, above the record that
        was written when this client arrived."""
        if self.predecessors(made.op.client, made.op.epoch):
            self._bus.emit(PredecessorsDue(made.op))

    def _session_closed(self, closed: SessionClosed) -> None:
        self.state.travels.pop(closed.client, None)

    def _client_ended(self, ended: ClientEnded) -> None:
        """A session that was here has ended where it went: nobody is sent on any more."""
        forwarding = self.state.forwardings.get(ended.client)
        if forwarding is not None and forwarding.epoch == ended.epoch:
            del self.state.forwardings[ended.client]

    # ── neighbours ───────────────────────────────────────────────────────────────────────

    def _forget(self, forgotten: NeighbourForgotten) -> None:
        """The link restarts from scratch; so does the numbering of its control messages. Sessions
        on their way to this neighbour are behind it, or lost: if it has them, it announces them
        again, and acknowledges nothing that they need."""
        neighbour = forgotten.neighbour
        self._release(neighbour)
        self.state.echoes = [each for each in self.state.echoes if each.requester != neighbour]
        for key, transit in list(self.state.transits.items()):
            if transit.suc != neighbour:
                continue
            del self.state.transits[key]
            self.pins.renew(self.state.transits.values())
            self._bus.emit(PathPassed(neighbour, pinned_by(transit.commit)))
            if transit.pre:
                self._report(transit.commit, transit.pre)
            self._let_go(key)

    def _release(self, neighbour: str) -> None:
        """What its link has counted is void, and it need not be told of arrivals: it has forgotten
        the sessions that it has passed on to us, or will when it comes back."""
        self.state.fenced.pop(neighbour, None)
        self.state.swept.pop(neighbour, None)
        for transit in self.state.transits.values():
            if transit.pre == neighbour:
                transit.pre = ""


def _relocated(commit: MoveCommit) -> Relocated:
    return Relocated(
        commit.client,
        commit.epoch,
        commit.durable,
        not commit.session.session.total_order,
        commit.path[0],
        commit.path[-1],
        commit.subscriptions,
        commit.advertisements,
        commit.upto,
    )


def _highest(known: Mapping[str, int], also: Mapping[str, int]) -> dict[str, int]:
    return {p: max(known.get(p, 0), also.get(p, 0)) for p in (*known, *also)}
