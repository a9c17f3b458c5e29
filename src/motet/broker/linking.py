"""The soft half of a broker towards its neighbours: hellos, control, and who the neighbours are.

`core` is built on this. Connections come and go here; what must last becomes a fact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from motet.broker import facts
from motet.broker.config import BrokerConfig
from motet.broker.durable import Durable
from motet.broker.inquiry import Inquiries
from motet.broker.router import Router
from motet.errors import (
    MisuseError,
    MotetError,
    ProtocolError,
    StaleState,
    UnknownBroker,
    VersionError,
)
from motet.protocol.cell.messages import CellFrame
from motet.protocol.contract import Close, Output
from motet.protocol.delivery.messages import AckUp, DeliveryFrame
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.machine import Link
from motet.protocol.link.messages import (
    Control,
    ControlAck,
    Inquire,
    LinkHello,
    Publications,
    Waiting,
)

if TYPE_CHECKING:
    from motet.broker.cell.membership import Membership
    from motet.broker.streams import Streams

SHOWN_CLIENTS = 3


class Peer(NamedTuple):
    """Who is at the other end of a connection."""

    kind: str
    name: str


class Counts(Struct):
    steps: int = 0
    published: int = 0
    received: int = 0
    expelled: dict[str, int] = field(default_factory=dict)


class Linking(ABC):
    config: BrokerConfig
    durable: Durable
    links: dict[str, Link]
    peers: dict[int, Peer]
    router: Router
    inquiries: Inquiries
    streams: Streams
    membership: Membership | None
    counts: Counts

    @abstractmethod
    def _journal(self, body: facts.FactBody, out: Output, now: float) -> None: ...

    @abstractmethod
    def _expel(self, connection: int, error: MotetError, out: Output, now: float) -> None: ...

    @abstractmethod
    def _unbind(self, connection: int) -> None: ...

    # ── frames ───────────────────────────────────────────────────────────────────────────

    def _link_hello(
        self, connection: int, peer: Peer | None, hello: LinkHello, out: Output, now: float
    ) -> None:
        if hello.version != PROTOCOL_VERSION:
            raise VersionError(
                f"{hello.broker} speaks version {hello.version}, we speak {PROTOCOL_VERSION}"
            )
        link = self.links.get(hello.broker)
        if link is None:
            known = ", ".join(self.links) or "none"
            raise UnknownBroker(
                f"{hello.broker!r} is not a neighbour of {self.config.name} (it has: {known}); "
                "add the link to the topology of both"
            )
        if hello.root and link.root and hello.root != link.root:
            raise ProtocolError(
                f"{hello.broker} takes {hello.root} for the root of the overlay, "
                f"{self.config.name} takes {link.root}: give both the same one"
            )
        if peer is not None and peer.name != hello.broker:
            raise ProtocolError(f"dialled {peer.name}, but {hello.broker} answered")
        if peer is None and connection < link.soft.connection:
            # A hello that was long on its way: whoever sent it has hung up since, and come again.
            out.close.append(Close(connection, "", "a newer connection took over"))
            return
        known_here = link.up and peer is not None
        stranger = link.ledger.record.incarnation != hello.incarnation
        if known_here and stranger:
            raise ProtocolError(f"{hello.broker} changed its life while connected")
        objection = "" if known_here else link.objection(hello)
        if objection:
            self._expel(connection, StaleState(objection), out, now)
            link.refuse(objection)
            return
        if peer is None:
            self._bind_link(connection, link, out)
        if stranger:
            self._journal(facts.NeighbourMet(hello.broker, hello.incarnation), out, now)
            link.begin_again()
        link.move("hello")  # only now may control leave: it follows our own hello
        if not hello.heard:
            link.greet(out, now, heard=True)
        if not known_here:  # else it was said twice because our answer got lost
            link.resume(hello, out, now)
            self._links_changed()
            self.streams.linked(link.neighbour, out, now)

    def _control(
        self, connection: int, peer: Peer, control: Control, out: Output, now: float
    ) -> None:
        del connection
        link = self.links[peer.name]
        if link.move("control") == "ignore":
            return
        if link.ledger.fresh(control):
            tick = self.streams.start_tick(now)
            self._journal(facts.ControlReceived(peer.name, control, tick), out, now)
        link.acknowledge(out)

    def _control_ack(
        self, connection: int, peer: Peer, ack: ControlAck, out: Output, now: float
    ) -> None:
        del connection
        link = self.links[peer.name]
        if link.move("ack") == "trim":
            link.acknowledged(ack, out, now)

    def _publications(
        self, connection: int, peer: Peer, frame: Publications, out: Output, now: float
    ) -> None:
        del connection, now
        link = self.links[peer.name]
        if link.move("publications") == "accept" and link.admit(frame):
            self.counts.received += len(frame.batch)
            self.router.forward(frame.batch, peer.name, out)

    def _inquire(
        self, connection: int, peer: Peer, question: Inquire, out: Output, now: float
    ) -> None:
        del connection, now
        if self.links[peer.name].move("question") == "accept":
            self.inquiries.asked(question.op, peer.name, out)

    def _waiting(
        self, connection: int, peer: Peer, answer: Waiting, out: Output, now: float
    ) -> None:
        del connection, now
        if self.links[peer.name].move("question") == "accept":
            self.inquiries.answered(answer, out)

    def _stream_frame(
        self, connection: int, peer: Peer, frame: DeliveryFrame, out: Output, now: float
    ) -> None:
        del connection
        if self.links[peer.name].move("question") == "accept":
            among = self.membership
            source = peer.name if among is None else among.asker(peer.name, frame)
            self.streams.received(source, frame, out, now)
            if among is not None and type(frame) is AckUp:
                among.acknowledged(peer.name, frame, out)

    def _cell_frame(
        self, connection: int, peer: Peer | None, frame: CellFrame, out: Output, now: float
    ) -> None:
        if self.membership is None:
            raise ProtocolError(f"{self.config.name} is in no cell, and next to none")
        self.membership.received(connection, peer, frame, out, now)

    # ── connections ──────────────────────────────────────────────────────────────────────

    def _dialled(self, connection: int, neighbour: str, out: Output, now: float) -> None:
        link = self.links.get(neighbour)
        if link is None:
            among = self.membership
            if among is not None and among.dialled(connection, neighbour, out, now):
                return
            text = f"{neighbour} is not a neighbour of {self.config.name} any more"
            out.close.append(Close(connection, "", text))
            return
        self._bind_link(connection, link, out)
        link.move("dialled")
        link.greet(out, now, heard=False)

    def _bind_link(self, connection: int, link: Link, out: Output) -> None:
        old = link.soft.connection
        if old:
            self._unbind(old)
            out.close.append(Close(old, "", "a newer connection took over"))
        self.peers[connection] = Peer("broker", link.neighbour)
        link.open(connection)
        self._links_changed()

    def _links_changed(self) -> None:
        """Streams may take another way from now on."""
        if self.membership is not None:
            self.membership.bundle.changed()

    # ── neighbours ───────────────────────────────────────────────────────────────────────

    def _give_up_the_absent(self, neighbour: str, out: Output, now: float) -> None:
        """Who is not there and would need more messages to go on than to begin anew."""
        link = self.links[neighbour]
        if link.soft.connection or link.kept <= self.config.outbox_bound:
            return
        state = self.durable.routing.state
        to_join = len(state.clients) + len(state.advertisements) + len(state.subscriptions)
        if link.kept > to_join:
            self._journal(facts.NeighbourLost(neighbour), out, now)
            link.begin_again()

    def objection_to(self, neighbours: tuple[str, ...]) -> str:
        """Why these cannot be the neighbours from now on; nothing if they can."""
        if self.config.name in neighbours:
            return f"{self.config.name} cannot be its own neighbour"
        for name in self.links:
            if name in neighbours:
                continue
            clients, advertisements, subscriptions = self.durable.routing.in_force(name)
            if clients:
                shown = ", ".join(clients[:SHOWN_CLIENTS])
                more = ", …" if len(clients) > SHOWN_CLIENTS else ""
                have = f"{len(clients)} client" + "s" * (len(clients) > 1)
                return f"{name} still has {have} behind it: {shown}{more}; disconnect them first"
            if advertisements or subscriptions:
                return (
                    f"{advertisements} advertisements and {subscriptions} subscriptions from "
                    f"{name} are still in force; wait until they are gone"
                )
        return ""

    def _reconfigured(self, neighbours: tuple[str, ...], out: Output, now: float) -> None:
        objection = self.objection_to(neighbours)
        if objection:
            raise MisuseError(objection)
        if set(neighbours) == set(self.links):
            return
        removed = [name for name in self.links if name not in neighbours]
        for name in removed:
            self._take_away(name, out)
        self._journal(facts.NeighboursChanged(neighbours), out, now)
        known = dict(self.links)
        self.links.clear()  # not replaced: others hold this very table
        for name, ledger in self.durable.ledgers.items():
            root = self.durable.transactions.root
            self.links[name] = known.get(name) or Link(self.config.name, ledger, root)
        self.config = replace(self.config, neighbours=tuple(neighbours))
        for name in removed:
            self.streams.gone(name, out, now)

    def _take_away(self, neighbour: str, out: Output) -> None:
        link = self.links.pop(neighbour)
        connection = link.soft.connection
        if connection:
            self._unbind(connection)
            text = f"{neighbour} is not a neighbour of {self.config.name} any more"
            out.close.append(Close(connection, "", text))
        link.drop(out)
        self._links_changed()
