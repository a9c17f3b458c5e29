"""Best-effort events that follow a client: no log has them, and they wait for no move.

    A ══ Strays, last ══▶ b1 ══ Strays of A, its own, last ══▶ b2 ══ … ══▶ B

A broker on the path that has re-pointed the client's rows still gets events for it from the next
one, until that one has done the same. It sends them back, behind those of the brokers before it.
When the next one acknowledges the move, all of them have come, because a link keeps order.

The target keeps what comes over the new rows until the last stray has come and the client is
connected. If anything on the path breaks meanwhile, best-effort events may be lost, but none comes
twice, or late: what is not awaited any more is dropped. Soft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from motet.errors import MotetError
from motet.model import Hop, OpId, decode_attributes
from motet.model.limits import MAX_EVENT_BYTES
from motet.protocol.changes import (
    Grouped,
    NeighbourForgotten,
    SessionArrived,
    SessionClosed,
    SessionPassed,
)
from motet.protocol.contract import CancelTimer, Output, SetTimer
from motet.protocol.delivery.neighbours import MOMENT_S
from motet.protocol.link.machine import Link
from motet.protocol.link.soft import SoftLinks
from motet.protocol.mobility.durable import DurableMobility
from motet.protocol.mobility.messages import MoveCommit, Strays
from motet.protocol.mobility.soft import SoftMobility
from motet.protocol.mobility.state import Transit, key_of
from motet.protocol.publication import Publication
from motet.protocol.room import Peer, SoftRoom
from motet.protocol.routing.soft import Router
from motet.protocol.session.messages import Delivery
from motet.protocol.session.soft import SoftSessions
from motet.protocol.shared import SharedState

LAST_S = 2.0
"""How long the target waits for the last stray."""
CLIENT_S = 10.0
"""How long it keeps events for a client that is not connected, from its arrival on."""
MOST_EVENTS = 8192
MOST_BYTES = 4 << 20
"""Kept for one client, or sent behind it."""
MOST_BYTES_TOGETHER = 64 << 20
"""Kept for all clients."""
FRAME_EVENTS = 256
FRAME_BYTES = 256 << 10
EVENT_BYTES = 100
"""The approximate cost of an event in addition to its body."""


class Passing(Struct, eq=False):
    """A session that has gone on from here."""

    client: str
    epoch: str
    move: int
    ops: frozenset[OpId]
    suc: str
    upto: int
    """The number of the commit in the control to the next broker, which sends back no events any
    more when it has acknowledged that."""
    pre: str = ""
    connection: int = 0
    """The connection to the broker before, which still has strays; 0: it has none any more."""
    kept: list[Publication] = field(default_factory=list)
    """Our own strays, which come behind those."""
    kept_bytes: int = 0
    sent_bytes: int = 0


class Arriving(Struct, eq=False):
    """A session that has arrived here, and whose strays or client have not."""

    client: str
    epoch: str
    move: int
    ops: frozenset[int]
    pre: str
    connection: int
    """The connection to the broker before; 0: no more strays come."""
    gives_up_at: float
    kept: list[Delivery] = field(default_factory=list)
    """Strays, for a client that is not connected."""
    newer: list[Delivery] = field(default_factory=list)
    """What has come over the new rows."""
    kept_bytes: int = 0


class SoftStrays(SoftRoom):
    concerns = frozenset({SessionPassed, SessionArrived, SessionClosed, NeighbourForgotten})

    def __init__(
        self,
        shared: SharedState,
        router: Router,
        durable: DurableMobility,
        moves: SoftMobility,
        sessions: SoftSessions,
        links: SoftLinks,
    ) -> None:
        self._shared = shared
        self._router = router
        self._durable = durable
        self._passing: dict[str, Passing] = {}
        """By client and epoch: see `key_of`."""
        self._arriving: dict[str, Arriving] = {}
        """By client."""
        self._kept_bytes = 0
        self._counts = dict.fromkeys(("sent", "taken", "dropped"), 0)
        moves.follows = self._follows
        sessions.welcomed = self._welcomed
        self._links = links
        for transit in durable.state.transits.values():
            self._pass(transit, 0)

    def frames(self) -> Mapping[type, Callable[[int, Any, Any, Output, float], None]]:
        return {Strays: self._received}

    def timers(self) -> Mapping[str, Callable[[Any, Output, float], None]]:
        return {"strays": self._alarm}

    def account(self) -> dict[str, Any]:
        passing, arriving = len(self._passing), len(self._arriving)
        kept = {"passing": passing, "arriving": arriving, "kept_bytes": self._kept_bytes}
        return {"strays": {**kept, **self._counts}}

    def changed(self, changes: Grouped, out: Output, now: float) -> None:
        for passed in changes.get(SessionPassed, ()):
            self._passed(passed, out)
        for arrived in changes.get(SessionArrived, ()):
            self._arrived(arrived, out, now)
        for closed in changes.get(SessionClosed, ()):
            arriving = self._arriving.get(closed.client)
            if arriving is not None and arriving.epoch == closed.epoch:
                self._forget(arriving, out)
        for forgotten in changes.get(NeighbourForgotten, ()):
            for passing in list(self._passing.values()):
                if passing.suc == forgotten.neighbour:
                    self._drop(passing)
            self._confirmed(out, now)

    # ── a broker that a session has passed ───────────────────────────────────────────────

    def _passed(self, passed: SessionPassed, out: Output) -> None:
        key = key_of(passed.client, passed.epoch)
        transit = self._durable.state.transits.get(key)
        if key in self._passing:
            self._drop(self._passing[key])
        follows: list[Publication] = []
        arriving = self._arriving.get(passed.client)
        if arriving is not None and arriving.epoch == passed.epoch:
            # Its client was not connected here between two moves.
            follows = [each.publication for each in (*arriving.kept, *arriving.newer)]
            self._forget(arriving, out)
        if transit is None:
            return
        link = self._shared.links.get(transit.pre)
        passing = self._pass(transit, link.soft.connection if link is not None else 0)
        if passing is not None:
            self._send(passing, follows, out)

    def _pass(self, transit: Transit, connection: int) -> Passing | None:
        """After a restart of ours the broker before has no `connection` to send strays on."""
        commit, suc = transit.commit, transit.suc
        link = self._shared.links.get(suc)
        ops = frozenset(row.id for row in commit.subscriptions)
        if link is None or not ops:
            return None
        who = (commit.client, commit.epoch, commit.number)
        passing = Passing(*who, ops, suc, _number_of(commit, link), transit.pre, connection)
        self._passing[key_of(commit.client, commit.epoch)] = passing
        self._watch_links()
        self._router.turned[suc] = self._turned
        return passing

    def _drop(self, passing: Passing) -> None:
        del self._passing[key_of(passing.client, passing.epoch)]
        self._kept_bytes -= passing.kept_bytes
        if all(each.suc != passing.suc for each in self._passing.values()):
            self._router.turned.pop(passing.suc, None)

    def _turned(self, batch: list[Publication], neighbour: str, out: Output) -> None:
        """Events of a neighbour that may have come before it knew that clients are behind it."""
        found: dict[str, list[Publication]] = {}
        source = Hop.broker(neighbour)
        for publication in batch:
            for op, hop in self._matching(publication):
                passing = self._passing.get(key_of(op.client, op.epoch))
                if hop != source or passing is None or op not in passing.ops:
                    continue
                if self._is_known(passing):
                    continue  # it has been sent to where the client is, too
                strays = found.setdefault(key_of(op.client, op.epoch), [])
                if not strays or strays[-1] is not publication:
                    strays.append(publication)
        for key, strays in found.items():
            passing = self._passing[key]
            if not passing.connection:
                self._send(passing, strays, out)
                continue
            for each in strays:
                size = _size_of(each)
                if self._may_keep(len(passing.kept), passing.kept_bytes, size):
                    passing.kept.append(each)
                    passing.kept_bytes += size

    def _matching(self, publication: Publication) -> list[tuple[OpId, Hop]]:
        """Subscriptions that match an event, and where they come from."""
        table = self._shared.durable.routing.state.subscriptions
        if not table.index.hops_encoded(publication.body):  # none, or the body is malformed
            return []
        try:
            keys = table.index.match(decode_attributes(publication.body))
        except MotetError:
            return []
        return [(entry.id, entry.source) for entry in map(table.entry, keys)]

    def _watch_links(self) -> None:
        if self._confirmed not in self._links.confirmed:
            self._links.confirmed.append(self._confirmed)

    def _confirmed(self, out: Output, now: float) -> None:
        """A link has come, has gone, or has acknowledged control."""
        for passing in list(self._passing.values()):
            if passing.connection and not self._is_up(passing.pre, passing.connection):
                self._let_go(passing, out)
            self._end_when_done(passing, out)
        for arriving in list(self._arriving.values()):
            if arriving.connection and not self._is_up(arriving.pre, arriving.connection):
                self._all_came(arriving, out, now)

    def _is_up(self, neighbour: str, connection: int) -> bool:
        link = self._shared.links.get(neighbour)
        return link is not None and link.up and link.soft.connection == connection

    def _let_go(self, passing: Passing, out: Output) -> None:
        """The broker before has no more strays: send our own."""
        passing.connection = 0
        kept, passing.kept = passing.kept, []
        self._kept_bytes -= passing.kept_bytes
        passing.kept_bytes = 0
        self._send(passing, kept, out)

    def _end_when_done(self, passing: Passing, out: Output) -> None:
        link = self._shared.links.get(passing.suc)
        if link is None:
            self._drop(passing)
        elif not passing.connection and self._is_known(passing):
            self._send(passing, [], out, last=True)
            self._drop(passing)

    def _is_known(self, passing: Passing) -> bool:
        """Has the next broker acknowledged that the session has come?"""
        return self._shared.links[passing.suc].ledger.confirmed >= passing.upto

    def _send(
        self, passing: Passing, batch: list[Publication], out: Output, *, last: bool = False
    ) -> None:
        link = self._shared.links.get(passing.suc)
        if link is None or not link.up:
            self._counts["dropped"] += len(batch)
            return
        client, epoch, move = passing.client, passing.epoch, passing.move
        for part in _parts(batch):
            passing.sent_bytes += sum(map(_size_of, part))
            if passing.sent_bytes > MOST_BYTES:  # a broker that acknowledges nothing
                self._counts["dropped"] += len(part)
                continue
            self._counts["sent"] += len(part)
            frame = Strays(*link.count(), client, epoch, move, part)
            out.send.append((link.soft.connection, frame))
        if last:
            frame = Strays(*link.count(), client, epoch, move, last=True)
            out.send.append((link.soft.connection, frame))

    # ── strays of the broker before ──────────────────────────────────────────────────────

    def _received(
        self, connection: int, peer: Peer, frame: Strays, out: Output, now: float
    ) -> None:
        link = self._shared.links[peer.name]
        if link.move("publications") != "accept" or not link.admit(frame):
            return
        sane = [each for each in frame.batch if len(memoryview(each.body)) <= MAX_EVENT_BYTES]
        sender = (frame.epoch, frame.move, peer.name, connection)
        passing = self._passing.get(key_of(frame.client, frame.epoch))
        arriving = self._arriving.get(frame.client)
        if passing is not None and sender == _awaited(passing):
            self._send(passing, sane, out)
            if frame.last:
                self._let_go(passing, out)
                self._end_when_done(passing, out)
        elif arriving is not None and sender == _awaited(arriving):
            self._take(arriving, sane, out)
            if frame.last:
                self._all_came(arriving, out, now)
        else:
            self._counts["dropped"] += len(frame.batch)

    # ── the target ───────────────────────────────────────────────────────────────────────

    def _arrived(self, arrived: SessionArrived, out: Output, now: float) -> None:
        client, epoch = arrived.client, arrived.epoch
        key = key_of(client, epoch)
        if key in self._passing:  # it has come back
            self._drop(self._passing[key])
        travel = self._durable.travel(client, epoch)
        table = self._shared.durable.routing.state.subscriptions
        ops = frozenset(each.id.sequence for each in table.from_source(Hop.client(client)))
        if travel is None or not ops:
            return
        connection = self._shared.links[arrived.neighbour].soft.connection
        who = (client, epoch, travel.number)
        arriving = Arriving(*who, ops, arrived.neighbour, connection, now + CLIENT_S)
        self._arriving[client] = arriving
        self._watch_links()
        self._router.keepers[client] = lambda batch: self._keep(arriving, arriving.newer, batch)
        out.timers.append(SetTimer(("strays", client, epoch), now + LAST_S))

    def _follows(self, client: str) -> str:
        arriving = self._arriving.get(client)
        return "events that follow it" if arriving is not None and arriving.connection else ""

    def _take(self, arriving: Arriving, batch: list[Publication], out: Output) -> None:
        """Strays go only to the client that they follow, for subscriptions that it has brought."""
        strays: list[Delivery] = []
        hop = Hop.client(arriving.client)
        for publication in batch:
            found = [op.sequence for op, source in self._matching(publication) if source == hop]
            subscriptions = tuple(each for each in found if each in arriving.ops)
            if subscriptions:
                strays.append(Delivery(subscriptions, publication))
        strays = self._router.heard(arriving.client, strays)
        self._counts["taken"] += len(strays)
        if self._is_connected(arriving) and strays:
            self._router.give(arriving.client, strays, out)
        else:
            self._keep(arriving, arriving.kept, strays)

    def _keep(self, arriving: Arriving, where: list[Delivery], batch: Iterable[Delivery]) -> None:
        for each in batch:
            size = _size_of(each.publication)
            count = len(arriving.kept) + len(arriving.newer)
            if self._may_keep(count, arriving.kept_bytes, size):
                where.append(each)
                arriving.kept_bytes += size
            else:
                self._shared.clients[arriving.client].lost += 1

    def _may_keep(self, count: int, kept_bytes: int, size: int) -> bool:
        if (
            count >= MOST_EVENTS
            or kept_bytes + size > MOST_BYTES
            or self._kept_bytes + size > MOST_BYTES_TOGETHER
        ):
            self._counts["dropped"] += 1
            return False
        self._kept_bytes += size
        return True

    def _welcomed(self, client: str, out: Output, now: float) -> None:
        arriving = self._arriving.get(client)
        if arriving is None:
            return
        if arriving.connection:
            strays, arriving.kept = arriving.kept, []
            self._give(client, strays, out)
        else:
            self._all_came(arriving, out, now)

    def _all_came(self, arriving: Arriving, out: Output, now: float) -> None:
        """No more strays come."""
        arriving.connection = 0
        if not self._is_connected(arriving):
            if now < arriving.gives_up_at - MOMENT_S:
                key = ("strays", arriving.client, arriving.epoch)
                out.timers.append(SetTimer(key, arriving.gives_up_at))
                return
            kept = len(arriving.kept) + len(arriving.newer)
            self._shared.clients[arriving.client].lost += kept
        self._forget(arriving, out)
        if self._is_connected(arriving):
            self._give(arriving.client, arriving.kept + arriving.newer, out)

    def _give(self, client: str, events: list[Delivery], out: Output) -> None:
        """Subscriptions may have been removed since the events came."""
        if not events:
            return
        own = self._shared.durable.routing.state.subscriptions.from_source(Hop.client(client))
        standing = {each.id.sequence for each in own}
        wanted: list[Delivery] = []
        for each in events:
            subscriptions = tuple([s for s in each.subscriptions if s in standing])
            if subscriptions:
                wanted.append(Delivery(subscriptions, each.publication))
        wanted = self._router.heard(client, wanted)
        if wanted:
            self._router.give(client, wanted, out)

    def _is_connected(self, arriving: Arriving) -> bool:
        return bool(self._shared.clients[arriving.client].connection)

    def _forget(self, arriving: Arriving, out: Output) -> None:
        del self._arriving[arriving.client]
        del self._router.keepers[arriving.client]
        self._kept_bytes -= arriving.kept_bytes
        out.timers.append(CancelTimer(("strays", arriving.client, arriving.epoch)))

    def _alarm(self, key: tuple[str, str, str], out: Output, now: float) -> None:
        _, client, epoch = key
        arriving = self._arriving.get(client)
        if arriving is not None and arriving.epoch == epoch:
            self._all_came(arriving, out, now)

    def validate(self) -> None:
        kept_bytes = sum(each.kept_bytes for each in self._passing.values())
        kept_bytes += sum(each.kept_bytes for each in self._arriving.values())
        assert self._kept_bytes == kept_bytes
        assert self._router.keepers.keys() == self._arriving.keys()
        assert self._router.turned.keys() == {each.suc for each in self._passing.values()}
        for client, arriving in self._arriving.items():
            assert self._shared.clients[client].epoch == arriving.epoch


def _number_of(commit: MoveCommit, link: Link) -> int:
    """0, if it is acknowledged."""
    who = (commit.client, commit.epoch, commit.number)
    for number, message in reversed(link.ledger.outbox):
        if type(message) is MoveCommit and (message.client, message.epoch, message.number) == who:
            return number
    return 0


def _awaited(each: Passing | Arriving) -> tuple[str, int, str, int]:
    """Whose strays, of which move, from whom, on which connection."""
    return each.epoch, each.move, each.pre, each.connection


def _size_of(publication: Publication) -> int:
    return len(memoryview(publication.body)) + EVENT_BYTES


def _parts(batch: list[Publication]) -> Iterable[list[Publication]]:
    """Batches that fit a frame."""
    part: list[Publication] = []
    size = 0
    for each in batch:
        if part and (len(part) == FRAME_EVENTS or size + _size_of(each) > FRAME_BYTES):
            yield part
            part, size = [], 0
        part.append(each)
        size += _size_of(each)
    if part:
        yield part
