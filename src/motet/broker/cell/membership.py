"""A broker among cells: head of one, or neighbour of one, or both.

An ordinary broker whose neighbours are all single processes has none of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from motet.broker.cell.bundle import Bundle, Word
from motet.broker.cell.mirror import Mirror
from motet.broker.linking import Peer
from motet.errors import ProtocolError
from motet.protocol.cell.messages import (
    CellFrame,
    FactsAck,
    Inward,
    MemberHello,
    Said,
    Shared,
    Sideways,
    Standing,
)
from motet.protocol.contract import Output
from motet.protocol.delivery.messages import AckUp, DeliveryFrame, Nack
from motet.protocol.link.state import LinkRecord
from motet.protocol.routing.messages import widens

if TYPE_CHECKING:
    from motet.broker.core import BrokerCore

CELL_FRAMES: dict[type, tuple[str, ...]] = {
    MemberHello: ("nobody", "member", "mate"),
    Said: ("member", "broker"),
    Standing: ("member", "mate", "broker"),
    Inward: ("mate",),
    Sideways: ("mate",),
    Shared: ("mate",),
    FactsAck: ("mate",),
}
"""Which frame a broker takes from whom."""


class Membership:
    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self.bundle = Bundle(self, core.config)
        self.mirror = Mirror(core.durable, core.config.mirror_s)

    # ── connections ──────────────────────────────────────────────────────────────────────

    def dialled(self, connection: int, name: str, out: Output, now: float) -> bool:
        """Whether this was one of ours."""
        if name not in self.bundle.members:
            return False
        self._core.peers[connection] = self.bundle.peer(name)
        self.bundle.dialled(connection, name, out, now)
        return True

    def closed(self, connection: int, peer: Peer, out: Output, now: float) -> None:
        self.mirror.gone(peer.name, connection, out)
        self.bundle.closed(peer.name, connection, out, now)

    def link_lost(self, neighbour: str, out: Output, now: float) -> None:
        """The link between the heads is down; its members may be there all the same."""
        self.bundle.lost(neighbour, neighbour, out, now)

    def alarm(self, kind: str, name: str, out: Output, now: float) -> None:
        if kind == "member":
            self.bundle.alarm(name, out, now)
        elif self.mirror.alarm(name, out, now):
            connection = self.bundle.members[name].connection
            peer = self._core.peers.pop(connection, None)
            if peer is not None:
                self.closed(connection, peer, out, now)

    # ── frames ───────────────────────────────────────────────────────────────────────────

    def received(
        self, connection: int, peer: Peer | None, frame: CellFrame, out: Output, now: float
    ) -> None:
        if isinstance(frame, MemberHello):
            name = self.bundle.hello(connection, frame, out, now)
            self._core.peers[connection] = self.bundle.peer(name)
            return
        assert peer is not None
        match frame:
            case Said():
                self.bundle.heard(self._cell_of(peer), frame, out, now)
            case Standing():
                self.bundle.stands(peer.name, frame, out, now)
            case Inward(neighbour, said):
                self.bundle.weigh(neighbour, said, out, now)
            case Sideways():
                self.bundle.carry(frame, out)
            case Shared():
                self.bundle.shared(frame, out, now)
            case FactsAck():
                self.mirror.acked(peer.name, frame, out, now)
            case _:
                raise ProtocolError(f"a head does not take {type(frame).__name__}")

    def _cell_of(self, peer: Peer) -> str:
        return peer.name if peer.kind == "broker" else self.bundle.members[peer.name].cell

    def asker(self, neighbour: str, frame: DeliveryFrame) -> str:
        """Under which name a frame from a neighbour's head is taken: answers go to who asked."""
        several = type(frame) is Nack and neighbour in self._core.config.cells
        return f"{neighbour}/{neighbour}" if several else neighbour

    def acknowledged(self, neighbour: str, frame: AckUp, out: Output) -> None:
        """On the link between heads: who passes the stream on may be a mate, and waits for it."""
        self.bundle.share(neighbour, frame, out)

    def after(self, out: Output, now: float) -> None:
        self.mirror.after(out, now)
        self.bundle.after(out)

    # ── for the bundle ───────────────────────────────────────────────────────────────────

    def neighbours(self) -> Iterable[str]:
        return self._core.links

    def word(self, cell: str) -> Word:
        record = self.record(cell)
        if record is None:
            return (0, 0, 0, 0, 0)
        return (0, record.life, record.incarnation, record.asked, record.told)

    def record(self, cell: str) -> LinkRecord | None:
        ledger = self._core.durable.ledgers.get(cell)
        return None if ledger is None else ledger.record

    def need(self, cell: str) -> int:
        """A subscription that never left us has begun nowhere: a head that is away must not keep
        its mates from being believed."""
        link = self._core.links.get(cell)
        if link is None:
            return 0
        asked, offered = link.ledger.record.asked, link.soft.offered
        if asked <= offered:
            return asked
        for number, message in reversed(link.ledger.outbox):
            if number <= offered and widens(message):
                return number
        return min(link.ledger.confirmed, offered)

    def head_link(self, cell: str) -> int:
        link = self._core.links.get(cell)
        return link.soft.connection if link is not None and link.up else 0

    def edge(self) -> bool:
        return bool(self._core.clients)

    def take(self, source: str, frame: DeliveryFrame, out: Output, now: float) -> None:
        self._core.streams.received(source, frame, out, now)

    def linked(self, cell: str, out: Output, now: float) -> None:
        self._core.streams.linked(cell, out, now)

    def met(self, member: str, connection: int, out: Output, now: float) -> None:
        del now
        self.mirror.begin(member, connection, out)

    def unasked(self, asker: str) -> None:
        self._core.streams.machine.unasked(asker)

    def describe(self) -> dict[str, Any]:
        return self.bundle.describe() | {
            "mirrored": {
                name: {"acked": mate.acked, "counts": mate.counts}
                for name, mate in self.mirror.mates.items()
            },
            "facts": self.mirror.count,
        }
