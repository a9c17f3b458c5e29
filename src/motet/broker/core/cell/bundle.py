"""A link between two cells is a bundle: each member of one has a stream link to each of the other.

The sender alone chooses the link for a stream: among the members that it reaches, the one with the
highest hash together with the pubend's name. When links break or recover, the choice changes, and
no agreement is needed. A member that reaches no member of a neighbour hands the frame sideways to
a member of its own cell that does.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Protocol

from msgspec.structs import replace

from motet.errors import ProtocolError, UnknownBroker, VersionError
from motet.protocol.cell.belief import Beliefs
from motet.protocol.cell.messages import (
    CellFrame,
    InwardFrame,
    MemberFrame,
    MemberHello,
    Shared,
    SidewaysFrame,
    Standing,
)
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import CancelTimer, Close, Output, SetTimer
from motet.protocol.delivery.messages import AckExpected, AckUp, DeliveryFrame, Knowledge, Nack
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.machine import LinkRecord
from motet.protocol.room import Peer
from motet.protocol.routing.starts import broker_of_pubend

GREET_AGAIN_S = 1.0
NOWHERE = Standing(False, ())


Word = tuple[int, int, int, int, int]
"""`sync`, `life`, `known`, `asked`, `told`: see `MemberFrame`."""


class Owner(Protocol):
    """The core whose streams travel in bundles."""

    def word(self, cell: str) -> Word: ...

    def neighbours(self) -> Iterable[str]: ...

    def record(self, cell: str) -> LinkRecord | None:
        """The durable record of our cell's link to a neighbour."""

    def need(self, cell: str) -> int:
        """The last subscription of ours that may have reached the neighbour's head."""

    def head_link(self, cell: str) -> int:
        """The connection of the link between the heads, if it is up and ours; else 0."""

    def edge(self) -> bool:
        """Does our cell have clients of its own?"""

    def take(self, source: str, frame: DeliveryFrame, out: Output, now: float) -> None: ...

    def linked(self, cell: str, out: Output, now: float) -> None: ...

    def met(self, member: str, connection: int, out: Output, now: float) -> None:
        """A member of our own cell has connected."""

    def unasked(self, asker: str) -> None: ...


class Member:
    """Another process, of our cell or of a neighbouring one."""

    __slots__ = ("cell", "connection", "dialled", "greeted", "live", "name", "told")

    def __init__(self, name: str, cell: str) -> None:
        self.name = name
        self.cell = cell
        self.drop()

    def drop(self) -> None:
        self.connection = 0
        self.dialled = self.greeted = self.live = False
        self.told: Standing | None = None


class Bundle:
    def __init__(self, owner: Owner, config: BrokerConfig) -> None:
        self._owner = owner
        self.me = config.name
        self.cell = config.head or config.name
        self.members: dict[str, Member] = {}
        self.mates: list[Member] = []
        """The other members of our own cell."""
        self._cells: dict[str, list[Member]] = {}
        for name in (config.head, *config.mates):
            if name and name != self.me:
                self.mates.append(self._member(name, self.cell))
        for cell in dict.fromkeys((*config.neighbours, *config.cells)):
            others = config.cells.get(cell, ())
            for name in (cell, *others) if config.head else others:
                self._cells.setdefault(cell, []).append(self._member(name, cell))
        self.open = not config.head
        """May we send? A mate may not before it has its head's state."""
        self._beliefs = Beliefs()
        self._ways: dict[tuple[str, str], tuple[int, str]] = {}
        self._standings: dict[str, Standing] = {}
        """The last `Standing` of each member of our cell and of neighbours."""
        self._told = NOWHERE
        self._stirred = True
        self.sideways = 0

    def _member(self, name: str, cell: str) -> Member:
        found = self.members[name] = Member(name, cell)
        return found

    # ── connections ──────────────────────────────────────────────────────────────────────

    def peer(self, name: str) -> Peer:
        return Peer("mate" if self.members[name].cell == self.cell else "member", name)

    def dialled(self, connection: int, name: str, out: Output, now: float) -> None:
        member = self.members[name]
        self._bind(member, connection, out)
        member.dialled = True
        if self._speaks_to(member):
            self._greet(member, out, now)

    def hello(self, connection: int, hello: MemberHello, out: Output, now: float) -> str:
        """A member introduces itself. Returns its name."""
        if hello.version != PROTOCOL_VERSION:
            raise VersionError(
                f"{hello.member} speaks version {hello.version}, we speak {PROTOCOL_VERSION}"
            )
        member = self.members.get(hello.member)
        if member is None or member.cell != hello.cell:
            known = ", ".join(f"{m.name} of {m.cell}" for m in self.members.values()) or "none"
            raise UnknownBroker(
                f"{self.me} knows no member {hello.member} of cell {hello.cell} (it has: {known}); "
                "use the same topology on both sides"
            )
        if member.connection != connection:
            self._bind(member, connection, out)
        member.greeted = True
        if self._speaks_to(member):
            if not hello.heard:
                out.send.append((connection, self._hello(heard=True)))
            self._live(member, out, now)
        return member.name

    def open_up(self, out: Output, now: float) -> None:
        """From now on we may send."""
        self.open = True
        for member in self.members.values():
            if member.connection and not member.live:
                if member.greeted:
                    out.send.append((member.connection, self._hello(heard=True)))
                    self._live(member, out, now)
                elif member.dialled:
                    self._greet(member, out, now)

    def _speaks_to(self, member: Member) -> bool:
        return self.open or member.cell == self.cell

    def _hello(self, *, heard: bool) -> MemberHello:
        return MemberHello(PROTOCOL_VERSION, self.cell, self.me, heard)

    def _greet(self, member: Member, out: Output, now: float) -> None:
        out.send.append((member.connection, self._hello(heard=False)))
        out.timers.append(SetTimer(("member", member.name), now + GREET_AGAIN_S))

    def alarm(self, name: str, out: Output, now: float) -> None:
        """Greet again if no answer came: frames may get lost."""
        member = self.members.get(name)
        if member is None or not member.connection or member.live:
            return
        if self._speaks_to(member):
            self._greet(member, out, now)

    def _bind(self, member: Member, connection: int, out: Output) -> None:
        if member.connection:
            text = "a newer connection took over"
            out.close.append(Close(member.connection, "", text))
        member.drop()
        member.connection = connection
        self.changed()

    def _live(self, member: Member, out: Output, now: float) -> None:
        if member.live:
            return
        member.live = True
        out.timers.append(CancelTimer(("member", member.name)))
        self.changed()
        if member.cell == self.cell:
            self._owner.met(member.name, member.connection, out, now)
        else:
            self._owner.linked(member.cell, out, now)

    def closed(self, name: str, connection: int, out: Output, now: float) -> None:
        """A connection to a member has closed; frames in transit may be lost."""
        member = self.members[name]
        if member.connection != connection:
            return
        member.drop()
        self._standings.pop(name, None)
        self.changed()
        if member.cell != self.cell:
            self.lost(member.cell, name, out, now)

    def lost(self, cell: str, member: str, out: Output, now: float) -> None:
        """A link to a neighbour's member is down; streams continue at once on others, if any."""
        self._standings.pop(member, None)
        self.changed()
        self._owner.unasked(f"{cell}/{member}")
        if self.reaches(cell) or self._bearer(cell) is not None:
            self._owner.linked(cell, out, now)

    def changed(self) -> None:
        """A link has come up or gone down."""
        self._ways.clear()
        self._stirred = True

    # ── choosing ─────────────────────────────────────────────────────────────────────────

    def reaches(self, cell: str) -> bool:
        if self._owner.head_link(cell):
            return True
        return any(member.live for member in self._cells.get(cell, ()))

    def _choose(self, pubend: str, cell: str) -> tuple[int, str]:
        """The connection that carries a stream to a neighbour, and the member there; (0, "") if
        none is reached."""
        way = self._ways.get((pubend, cell))
        if way is None:
            way = self._ways[pubend, cell] = self._look(pubend, cell)
        return way

    def _look(self, pubend: str, cell: str) -> tuple[int, str]:
        live = [(m.connection, m.name) for m in self._cells.get(cell, ()) if m.live]
        direct = self._owner.head_link(cell)
        if direct:
            live.append((direct, cell))
        members = (cell, *(member.name for member in self._cells.get(cell, ())))
        edge = any(self._standing(name).edge for name in members)
        for connection, name in live:
            if name == cell and (edge or broker_of_pubend(pubend) == cell):
                return connection, name
        if broker_of_pubend(pubend) == cell:
            live = []  # the log is at its head, which another member of our cell may reach

        def rank(each: tuple[int, str]) -> tuple[int, bytes]:
            """A member that has just come back may not reach the other cells yet."""
            return len(self._standing(each[1]).reaches), _rank(pubend, each[1])

        return max(live, key=rank, default=(0, ""))

    def _standing(self, name: str) -> Standing:
        return self._standings.get(name, NOWHERE)

    def _bearer(self, cell: str) -> Member | None:
        """A member of our cell that reaches a neighbour."""
        able = [m for m in self.mates if m.live and cell in self._standing(m.name).reaches]
        return max(able, key=lambda m: _rank(cell, m.name), default=None)

    # ── out ──────────────────────────────────────────────────────────────────────────────

    def send(self, name: str, frame: DeliveryFrame, out: Output) -> None:
        """To a neighbour, or to the member of it that has asked (`cell/member`)."""
        cell, _, to = name.partition("/")
        if to:
            direct = self._direct(cell, to)
            if direct:
                self._put(direct, to, cell, frame, "", out)
                return
        connection, member = self._choose(frame.pubend, cell)
        if connection:
            self._put(connection, member, cell, frame, "" if to == member else to, out)
            return
        bearer = self._bearer(cell)
        if bearer is not None:
            self.sideways += 1
            said = MemberFrame(self.me, *self._owner.word(cell), frame, to)
            out.send.append((bearer.connection, SidewaysFrame(cell, said)))

    def _direct(self, cell: str, member: str) -> int:
        if member == cell and (connection := self._owner.head_link(cell)):
            return connection
        found = self.members.get(member)
        return found.connection if found is not None and found.live else 0

    def _put(
        self, connection: int, member: str, cell: str, frame: DeliveryFrame, to: str, out: Output
    ) -> None:
        if member == cell and not to and connection == self._owner.head_link(cell):
            out.send.append((connection, frame))
            return
        out.send.append((connection, MemberFrame(self.me, *self._owner.word(cell), frame, to)))

    def share(self, neighbour: str, frame: AckUp, out: Output) -> None:
        """Tell the other members of our cell what a neighbour has acknowledged."""
        record = self._owner.record(neighbour)
        if record is None:
            return
        shared = Shared(neighbour, record.life, record.incarnation, record.told, frame)
        for mate in self.mates:
            if mate.live:
                out.send.append((mate.connection, shared))

    def after(self, out: Output) -> None:
        """At the end of a step: send our `Standing` if it has changed."""
        edge = self._owner.edge()
        if not self._stirred and edge == self._told.edge:
            return
        self._stirred = False
        reached = tuple(cell for cell in self._owner.neighbours() if self.reaches(cell))
        now = self._told = Standing(edge, reached)
        for member in self.members.values():
            if member.live and member.told != now:
                member.told = now
                out.send.append((member.connection, now))
        if self.mates and self.me == self.cell:
            for cell in reached:
                connection = self._owner.head_link(cell)
                if connection:
                    out.send.append((connection, now))

    # ── in ───────────────────────────────────────────────────────────────────────────────

    def received(self, peer: Peer, frame: CellFrame, out: Output, now: float) -> None:
        """A frame from a member, or from the head of a neighbour."""
        match frame:
            case MemberFrame():
                of_head = peer.kind == "broker"
                cell = peer.name if of_head else self.members[peer.name].cell
                self.heard(cell, frame, out, now)
            case Standing():
                self._stands(peer.name, frame, out, now)
            case InwardFrame(neighbour, said):
                self._weigh(neighbour, said, out, now)
            case SidewaysFrame():
                self._carry(frame, out)
            case Shared():
                self._shared(frame, out, now)
            case _:
                raise ProtocolError(f"a head does not take {type(frame).__name__}")

    def _stands(self, name: str, standing: Standing, out: Output, now: float) -> None:
        """A member, or the head of a neighbour, sends its `Standing`."""
        before, self._standings[name] = self._standing(name), standing
        self._ways.clear()
        member = self.members.get(name)
        if member is not None and member.cell == self.cell:
            for cell in standing.reaches:
                if cell not in before.reaches and not self.reaches(cell):
                    self._owner.linked(cell, out, now)

    def heard(self, cell: str, said: MemberFrame, out: Output, now: float) -> None:
        """A frame from a member of a neighbouring cell, sent by itself or by another member."""
        if said.to and said.to != self.me:
            mate = self.members.get(said.to)
            if mate is not None and mate.cell == self.cell and mate.live:
                out.send.append((mate.connection, InwardFrame(cell, said)))
            return
        self._weigh(cell, said, out, now)
        if self._told.edge and self.me != self.cell:
            self._relay(cell, said, out)

    def _relay(self, cell: str, said: MemberFrame, out: Output) -> None:
        """The sender does not know that our head has clients, or does not reach it."""
        head, frame = self.members[self.cell], said.frame
        if head.live and isinstance(frame, Knowledge | AckExpected):
            if isinstance(frame, Knowledge):  # we have passed it on to the neighbours ourselves
                frame = replace(frame, again=True)
            out.send.append((head.connection, InwardFrame(cell, replace(said, frame=frame))))

    def _weigh(self, cell: str, said: MemberFrame, out: Output, now: float) -> None:
        if not self.open:
            return
        record = self._owner.record(cell)
        if record is None:
            return  # removed from the topology, and does not know it yet
        for frame in self._beliefs.weigh(said, record, self._owner.need(cell)):
            if type(frame) is Nack:
                self._owner.take(f"{cell}/{said.origin}", frame, out, now)
                continue
            self._owner.take(cell, frame, out, now)
            if type(frame) is AckUp:
                self.share(cell, frame, out)

    def _carry(self, frame: SidewaysFrame, out: Output) -> None:
        """Carry a frame for a member of our cell that does not reach a neighbour. If we do not
        either, the frame is lost, and will be asked for again."""
        to = frame.said.to
        connection = self._direct(frame.neighbour, to) if to else 0
        if not connection:
            connection, _ = self._choose(frame.said.frame.pubend, frame.neighbour)
        if connection:
            out.send.append((connection, frame.said))

    def _shared(self, frame: Shared, out: Output, now: float) -> None:
        """An acknowledgement that another member has received. It counts if that member knew all
        subscriptions of the neighbour that we know."""
        record = self._owner.record(frame.neighbour)
        if (
            self.open
            and record is not None
            and (frame.life, frame.known) == (record.life, record.incarnation)
            and frame.told >= record.told
        ):
            self._owner.take(frame.neighbour, frame.frame, out, now)

    def forget_doubts(self) -> None:
        self._beliefs = Beliefs()

    # ── inspection ───────────────────────────────────────────────────────────────────────

    def describe(self) -> dict[str, Any]:
        return {
            "cell": self.cell,
            "sideways": self.sideways,
            "members": {
                member.name: {"cell": member.cell, "live": member.live}
                for member in self.members.values()
            },
        }


def _rank(pubend: str, member: str) -> bytes:
    return blake2b(f"{pubend}|{member}".encode(), digest_size=8).digest()
