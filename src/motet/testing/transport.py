"""The twin of `motet.runtime.transport`: connections in virtual time, and their faults.

A connection has two ends, each with a number that its owner assigns. Frames pass as objects; a
share of them goes through the codec, to find frames that cannot be encoded. Links to clients keep
the order of frames, and may break. Links between brokers may also lose, duplicate, delay and
reorder single frames, below the link layer, if the fault menu says so.
"""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Protocol

from motet.protocol.frames import Frame
from motet.protocol.link.messages import Control, ControlAck, LinkHello
from motet.protocol.session.messages import Deliver
from motet.runtime.codec import decode, encode
from motet.testing.clock import Agenda
from motet.testing.faults import FaultMenu
from motet.testing.history import Spans
from motet.testing.topology import Edge

CONTROL = (LinkHello, Control, ControlAck)
THROUGH_CODEC = 16
"""One of this many frames is encoded and decoded again."""
BACKLOG_FRAMES = 24
"""Frames that may wait for a client that does not read, before events are dropped."""

CLIENT_HOP_S = (0.0005, 0.003)
NOTICE_S = (0.0, 1.5)
"""The time until an end notices that its connection is dead."""
DELAY_S = (0.05, 2.0)
STRAY_S = (0.005, 0.3)


class ConnectionOwner(Protocol):
    """A broker or a client."""

    name: str

    def receive(self, end: End, frame: Frame) -> None: ...

    def lost(self, end: End) -> None:
        """The connection is gone; called once, unless the owner closed it."""


class End:
    """One side of a connection, with the frames that its owner has not sent yet."""

    __slots__ = (
        "backlog",
        "connection",
        "deaf",
        "dropped",
        "ended",
        "held",
        "last_arrival",
        "number",
        "open",
        "owner",
        "peer",
    )

    def __init__(self, owner: ConnectionOwner, number: int, connection: Connection) -> None:
        self.owner = owner
        self.number = number
        self.connection = connection
        self.peer: End = self
        self.open = True
        self.deaf = False
        """Nothing arrives here any more, though the owner may not know it yet."""
        self.ended = False
        """The owner has sent its last frame."""
        self.held: deque[tuple[int, Frame]] = deque()
        """Frames that wait for the owner's journal."""
        self.last_arrival = 0.0
        """Of the frames sent from here; where order is kept, none may arrive before it."""
        self.backlog = 0
        """Frames sent from here that the peer has not processed."""
        self.dropped = 0
        """Events not sent because the peer does not read."""


class Wire:
    """One edge of the tree: its fault rates, cuts and stalls."""

    __slots__ = (
        "control_loss",
        "cut",
        "dialler",
        "edge",
        "hop_s",
        "rates",
        "stalled_until",
        "strays",
        "trouble",
    )

    def __init__(self, edge: Edge, dialler: str, rates: tuple[float, ...], trouble: Spans) -> None:
        self.edge = edge
        self.dialler = dialler
        self.hop_s: tuple[float, float] | None = None
        """If it differs from that of the other edges."""
        self.rates = rates
        """Cumulative chances of loss, duplication, delay and reordering; or empty."""
        self.control_loss = 0.0
        self.trouble = trouble
        self.cut = 0
        """The number of cuts that have not healed."""
        self.stalled_until = 0.0
        """Nothing arrives before this time."""
        self.strays = 0
        """Frames in transit that later ones may overtake."""

    def heal(self) -> None:
        """End all frame faults, cuts and stalls."""
        self.rates, self.control_loss = (), 0.0
        self.cut, self.stalled_until = 0, 0.0


class Connection:
    __slots__ = ("alive", "ends", "wire")

    def __init__(
        self,
        one: ConnectionOwner,
        number: int,
        two: ConnectionOwner,
        other_number: int,
        wire: Wire | None,
    ) -> None:
        self.wire = wire
        self.alive = True
        self.ends = (End(one, number, self), End(two, other_number, self))
        self.ends[0].peer, self.ends[1].peer = self.ends[1], self.ends[0]


class Network:
    """Carries frames from end to end. All randomness comes from the given generator."""

    def __init__(
        self,
        agenda: Agenda,
        random: Random,
        faults: Counter[str],
        hop_s: tuple[float, float],
    ) -> None:
        self._agenda = agenda
        self._hop_s = hop_s
        self._random = random
        self._faults = faults
        self._carried = 0

    def wire(self, edge: Edge, menu: FaultMenu, trouble: Spans) -> Wire:
        """An edge with its fault rates; a random side dials."""
        random = self._random
        dialler = random.choice(edge)
        wire = Wire(edge, dialler, (), trouble)
        if random.random() < menu.rough_links:
            wire.rates = menu.rates
            wire.control_loss = menu.control_loss
        return wire

    def side_wire(self, edge: Edge, dialler: str, menu: FaultMenu) -> Wire:
        """A stream link of a cell."""
        rough = menu.rough_sides and self._random.random() < menu.rough_sides
        return Wire(edge, dialler, menu.rates if rough else (), Spans())

    # ── frames ───────────────────────────────────────────────────────────────────────────

    def carry(self, end: End, frame: Frame) -> None:
        """Send a frame. On a closed connection it is lost."""
        connection = end.connection
        if not connection.alive:
            return
        self._carried += 1
        if not self._carried % THROUGH_CODEC:
            frame = decode(encode(frame))
        wire = connection.wire
        if wire is None:
            self._in_order(end, frame, CLIENT_HOP_S)
        elif wire.control_loss and type(frame) in CONTROL:
            self._tell(end, frame, wire)
        elif not wire.rates or (chance := self._random.random()) >= wire.rates[-1]:
            self._in_order(end, frame, wire.hop_s or self._hop_s)
        else:
            self._in_bad_weather(end, frame, wire, chance)

    def _tell(self, end: End, frame: Frame, wire: Wire) -> None:
        """If control has a loss rate of its own, control is lost in one direction only."""
        if end.owner.name == wire.dialler and self._random.random() < wire.control_loss:
            self._faults["loss"] += 1
            wire.trouble.begin(self._agenda.now)
        else:
            self._in_order(end, frame, self._hop_s)

    def deliver(self, end: End, frame: Deliver) -> bool:
        """Events for a client; if it does not read, drop and count them and return false."""
        if end.backlog > BACKLOG_FRAMES:
            end.dropped += len(frame.batch)
            self._faults["overflow"] += len(frame.batch)
            return False
        if end.dropped:
            frame = Deliver(frame.batch, frame.dropped + end.dropped)
        self.carry(end, frame)
        return True

    def _in_order(self, end: End, frame: Frame, hop_s: tuple[float, float]) -> None:
        agenda = self._agenda
        arrival = agenda.now + hop_s[0] + (hop_s[1] - hop_s[0]) * self._random.random()
        if arrival < end.last_arrival:
            arrival = end.last_arrival
        wire = end.connection.wire
        if wire is not None and arrival < wire.stalled_until:
            arrival = wire.stalled_until
        end.last_arrival = arrival
        end.backlog += 1
        agenda.at(arrival, self._arrive, end.peer, frame)

    def _in_bad_weather(self, end: End, frame: Frame, wire: Wire, chance: float) -> None:
        now, random = self._agenda.now, self._random
        loss, doubling, delay, _ = wire.rates
        if chance < loss:
            self._faults["loss"] += 1
            wire.trouble.begin(now)
        elif chance < doubling:
            # The copy arrives at any time. That must do no harm: no trouble is recorded.
            self._faults["doubling"] += 1
            self._in_order(end, frame, self._hop_s)
            self._agenda.after(random.uniform(*STRAY_S), self._arrive, end.peer, frame)
        elif chance < delay:
            self._faults["delay"] += 1
            late_s = random.uniform(*DELAY_S)
            wire.trouble.touch(now, now + late_s + self._hop_s[1])
            self._in_order(end, frame, (late_s, late_s + self._hop_s[1]))
        else:
            self._faults["reordering"] += 1
            wire.trouble.begin(now)
            wire.strays += 1
            self._agenda.after(random.uniform(*STRAY_S), self._stray, end.peer, frame, wire)

    def _stray(self, end: End, frame: Frame, wire: Wire) -> None:
        wire.strays -= 1
        self._arrive(end, frame)

    def _arrive(self, end: End, frame: Frame) -> None:
        if end.open and not end.deaf:
            end.owner.receive(end, frame)

    # ── connections ──────────────────────────────────────────────────────────────────────

    def sever(self, connection: Connection) -> None:
        """The cable is pulled: frames in transit are lost, and each end notices in its own time."""
        if connection.alive:
            connection.alive = False
            for end in connection.ends:
                end.deaf = True
                self._notice(end, self._random.uniform(*NOTICE_S))

    def abandon(self, end: End) -> None:
        """The owner of this end died. The frames that it had sent still arrive."""
        end.open = False
        if end.connection.alive:
            end.connection.alive = False
            self._notice(end.peer, self._random.uniform(*NOTICE_S))

    def close(self, end: End) -> None:
        """The owner closes; the other end gets all frames sent before, and then the close."""
        end.open = False
        connection = end.connection
        if connection.alive:
            connection.alive = False
            at = max(end.last_arrival, self._agenda.now + CLIENT_HOP_S[0])
            self._agenda.at(at, self._gone, end.peer)

    def _notice(self, end: End, delay_s: float) -> None:
        self._agenda.after(delay_s, self._gone, end)

    def _gone(self, end: End) -> None:
        if end.open:
            end.open = False
            end.owner.lost(end)
