"""A broker that is the head of a cell, the neighbour of one, or both.

A broker with neither mates nor neighbours that are cells does not have this room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from motet.broker.core.cell.bundle import Bundle, Word
from motet.broker.core.image import parts_of
from motet.broker.core.records import Founded, encode
from motet.errors import ProtocolError
from motet.protocol.cell.messages import (
    CellFrame,
    Facts,
    FactsAck,
    ImagePart,
    InwardFrame,
    MemberFrame,
    MemberHello,
    Shared,
    SidewaysFrame,
    Standing,
)
from motet.protocol.contract import CancelTimer, Close, Output, SetTimer
from motet.protocol.delivery.messages import AckUp, DeliveryFrame, Nack
from motet.protocol.delivery.soft import Streams
from motet.protocol.link.machine import LinkRecord, widens
from motet.protocol.link.soft import SoftLinks
from motet.protocol.room import Peer, SoftRoom
from motet.protocol.shared import SharedState

if TYPE_CHECKING:
    from motet.broker.core.durable import Durable

CELL_FRAMES = (MemberHello, MemberFrame, Standing, InwardFrame, SidewaysFrame, Shared, FactsAck)
"""The frames that such a broker accepts."""


NONE = -1
"""Nothing is confirmed yet."""


@dataclass(slots=True)
class Mirrored:
    """One mate that is connected."""

    connection: int
    acked: int
    counts: bool = False
    floor: int = 0
    """Up to this fact, the head did not wait for the mate."""
    armed: bool = False
    target: int = 0

    @property
    def confirmed(self) -> int:
        """Up to here the head waited for the mate, or the mate's image had the facts."""
        return self.acked if self.counts and self.acked >= self.floor else NONE


class Mirror:
    """The head's side of a cell: mirrors its durable state to every mate.

    A mate that connects gets all of it, then every fact in order. Once it has caught up it counts:
    from then on nothing that rests on a fact leaves the head before the mate has that fact. A mate
    that takes too long is given up: its connection is closed, and it restarts from scratch.
    """

    def __init__(self, durable: Durable, patience_s: float) -> None:
        self._durable = durable
        self._patience_s = patience_s
        self.count = 0
        """Facts since this process started."""
        self.mates: dict[str, Mirrored] = {}

    def withheld(self) -> int:
        """How many of the last facts some mate that counts does not have."""
        had = [max(m.acked, m.floor) for m in self.mates.values() if m.counts]
        return self.count - min(had, default=self.count)

    def begin(self, mate: str, connection: int, out: Output) -> None:
        """A mate has connected: send it the whole state as of now."""
        assert not out.persist, "what a step has changed is not in the count yet"
        number = self.count
        payloads = list(image_of(self._durable))
        for at, payload in enumerate(payloads, 1):
            out.send.append((connection, ImagePart(number, at, len(payloads), payload)))
        self.mates[mate] = Mirrored(connection, number - 1)

    def acked(self, mate: str, ack: FactsAck, out: Output, now: float) -> None:
        mirrored = self.mates.get(mate)
        if mirrored is None or ack.upto <= mirrored.acked:
            return
        if ack.upto > self.count + len(out.persist):
            raise ProtocolError(f"{mate} acknowledges facts that are not there yet")
        mirrored.acked = ack.upto
        if not mirrored.counts:
            mirrored.counts = True
            mirrored.floor = self.count
        if mirrored.confirmed != NONE:
            out.send.append((mirrored.connection, Facts(ack.upto + 1, (), ack.upto)))
        self._watch(mate, mirrored, out, now)

    def after(self, out: Output, now: float) -> None:
        """At the end of a step: send its facts to all mates."""
        if not out.persist:
            return
        first = self.count + 1
        self.count += len(out.persist)
        if not self.mates:
            return
        payloads = tuple(encode(fact) for fact in out.persist)
        facts = [(m.connection, Facts(first, payloads, m.confirmed)) for m in self.mates.values()]
        out.send[:0] = facts  # before frames of this step that may wait for the mates
        for name, mirrored in self.mates.items():
            self._watch(name, mirrored, out, now)

    def _watch(self, mate: str, mirrored: Mirrored, out: Output, now: float) -> None:
        if mirrored.counts and not mirrored.armed and mirrored.acked < self.count:
            mirrored.armed = True
            mirrored.target = self.count
            out.timers.append(SetTimer(("mirror", mate), now + self._patience_s))

    def alarm(self, mate: str, out: Output, now: float) -> str:
        """Give up a mate that is too slow. Returns the reason; empty if it is not."""
        mirrored = self.mates.get(mate)
        if mirrored is None:
            return ""
        mirrored.armed = False
        if mirrored.counts and mirrored.acked < mirrored.target:
            text = f"{mate} has not taken a fact within {self._patience_s:g} s"
            out.close.append(Close(mirrored.connection, "", text))
            return text
        self._watch(mate, mirrored, out, now)
        return ""

    def gone(self, mate: str, connection: int, out: Output) -> None:
        mirrored = self.mates.get(mate)
        if mirrored is not None and mirrored.connection == connection:
            del self.mates[mate]
            out.timers.append(CancelTimer(("mirror", mate)))


def image_of(durable: Durable) -> list[bytes]:
    """The state that a mate starts with. It has no outboxes: only the head retransmits."""
    config = durable.config
    neighbours = tuple(durable.ledgers)
    founded = Founded(config.name, config.incarnation, neighbours, config.covering, config.root)
    return [encode(founded), *(encode(part) for part in parts_of(durable, outboxes=False))]


class Membership(SoftRoom):
    def __init__(
        self, shared: SharedState, durable: Durable, streams: Streams, links: SoftLinks
    ) -> None:
        self._shared = shared
        self._streams = streams
        self.bundle = Bundle(self, shared.config)
        self.mirror = Mirror(durable, shared.config.mirror_s)
        streams.cell = self
        links.rewired = self.bundle.changed
        links.dialled_elsewhere = self._dialled
        links.lost = self._link_lost

    def frames(self) -> Mapping[type, Callable[[int, Any, Any, Output, float], None]]:
        return dict.fromkeys(CELL_FRAMES, self._received)

    def closings(self) -> Mapping[str, Callable[[int, Peer, Output, float], None]]:
        return dict.fromkeys(("mate", "member"), self._closed)

    def account(self) -> dict[str, Any]:
        return {"cell": self.describe()}

    def timers(self) -> Mapping[str, Callable[[Any, Output, float], None]]:
        return {"member": self._alarm, "mirror": self._alarm}

    def _alarm(self, key: tuple[str, str], out: Output, now: float) -> None:
        kind, name = key
        if kind == "member":
            self.bundle.alarm(name, out, now)
        elif self.mirror.alarm(name, out, now):
            connection = self.bundle.members[name].connection
            peer = self._shared.peers.pop(connection, None)
            if peer is not None:
                self._closed(connection, peer, out, now)

    def send(self, neighbour: str, frame: DeliveryFrame, out: Output) -> None:
        self.bundle.send(neighbour, frame, out)

    # ── connections ──────────────────────────────────────────────────────────────────────

    def _dialled(self, connection: int, name: str, out: Output, now: float) -> bool:
        """Returns whether the connection leads to a member."""
        if name not in self.bundle.members:
            return False
        self._shared.peers[connection] = self.bundle.peer(name)
        self.bundle.dialled(connection, name, out, now)
        return True

    def _closed(self, connection: int, peer: Peer, out: Output, now: float) -> None:
        self.mirror.gone(peer.name, connection, out)
        self.bundle.closed(peer.name, connection, out, now)

    def _link_lost(self, neighbour: str, out: Output, now: float) -> None:
        """The link between the heads is down; other members may still be reachable."""
        self.bundle.lost(neighbour, neighbour, out, now)

    # ── frames ───────────────────────────────────────────────────────────────────────────

    def _received(
        self, connection: int, peer: Peer | None, frame: CellFrame, out: Output, now: float
    ) -> None:
        if isinstance(frame, MemberHello):
            name = self.bundle.hello(connection, frame, out, now)
            self._shared.peers[connection] = self.bundle.peer(name)
            return
        assert peer is not None
        if isinstance(frame, FactsAck):
            self.mirror.acked(peer.name, frame, out, now)
        else:
            self.bundle.received(peer, frame, out, now)

    def asker(self, neighbour: str, frame: DeliveryFrame) -> str:
        """The source name for a frame of a neighbour's head: answers to a nack go to its sender."""
        several = type(frame) is Nack and neighbour in self._shared.config.cells
        return f"{neighbour}/{neighbour}" if several else neighbour

    def acknowledged(self, neighbour: str, frame: AckUp, out: Output) -> None:
        """From the link between heads; a mate that passes the stream on may wait for it."""
        self.bundle.share(neighbour, frame, out)

    def stepped(self, out: Output, now: float) -> None:
        self.mirror.after(out, now)
        self.bundle.after(out)

    # ── for the bundle ───────────────────────────────────────────────────────────────────

    def neighbours(self) -> Iterable[str]:
        return self._shared.links

    def word(self, cell: str) -> Word:
        record = self.record(cell)
        if record is None:
            return (0, 0, 0, 0, 0)
        return (0, record.life, record.incarnation, record.asked, record.told)

    def record(self, cell: str) -> LinkRecord | None:
        ledger = self._shared.durable.ledgers.get(cell)
        return None if ledger is None else ledger.record

    def need(self, cell: str) -> int:
        """A subscription that was never sent has begun nowhere: mates must be believed without it
        while their head is away."""
        link = self._shared.links.get(cell)
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
        link = self._shared.links.get(cell)
        return link.soft.connection if link is not None and link.up else 0

    def edge(self) -> bool:
        return bool(self._shared.clients)

    def take(self, source: str, frame: DeliveryFrame, out: Output, now: float) -> None:
        self._streams.received(source, frame, out, now)

    def linked(self, cell: str, out: Output, now: float) -> None:
        self._streams.run(out, now, self._streams.machine.linked, cell)

    def met(self, member: str, connection: int, out: Output, now: float) -> None:
        del now
        self.mirror.begin(member, connection, out)

    def unasked(self, asker: str) -> None:
        self._streams.machine.unasked(asker)

    def describe(self) -> dict[str, Any]:
        return self.bundle.describe() | {
            "mirrored": {
                name: {"acked": mate.acked, "counts": mate.counts}
                for name, mate in self.mirror.mates.items()
            },
            "facts": self.mirror.count,
        }
