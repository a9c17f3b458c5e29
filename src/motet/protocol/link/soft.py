"""The soft half of links: hellos, control, and the set of neighbours.

Connections are handled here; durable changes become facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from motet.errors import ProtocolError, UnknownBroker, VersionError
from motet.model import OpId
from motet.protocol.changes import Grouped, Sent
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Close, Dialled, Output, Reconfigured, SetTimer
from motet.protocol.delivery.soft import Streams
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.facts import (
    ControlReceived,
    NeighbourLost,
    NeighbourMet,
    NeighboursChanged,
)
from motet.protocol.link.machine import Link
from motet.protocol.link.messages import Control, ControlAck, Inquire, LinkHello, Waiting
from motet.protocol.room import Objection, Peer, SoftRoom
from motet.protocol.routing.messages import Echo
from motet.protocol.routing.state import RECHECK, RoutingState
from motet.protocol.shared import SharedState

T = TypeVar("T")
SHOWN_CLIENTS = 3
REMEMBERED = 4096
"""Number of forwarded inquiries whose answers can still be sent back."""


class Inquiries:
    """Finds the brokers that keep an operation from being effective, once its deadline passed.
    Soft.

    The inquiry follows the waiting brokers outwards, every broker reports what it waits for, and
    the reports travel back. A broker that is waited for and never reports was not reached. One that
    has echoed may have nothing left to report of; so whoever hears an echo later reports again.
    """

    def __init__(self, config: BrokerConfig, state: RoutingState, links: dict[str, Link]) -> None:
        self._config = config
        self._state = state
        self._links = links
        self._own: dict[OpId, dict[str, tuple[str, ...]]] = {}
        self._asked_by: dict[OpId, str] = {}
        self._meant: dict[OpId, OpId] = {}
        """By the name of a probe that was asked about: the operation whose echo it brings. By that
        of a removal: another one that waits for it."""

    def begin(self, op: OpId, out: Output, now: float) -> None:
        """A deadline passed: ask, and set the timer of the verdict."""
        if op not in self._state.waits:
            return
        self._own[op] = {self._config.name: self._ask(op, out)}
        out.timers.append(SetTimer(("verdict", *op), now + self._config.inquiry_s))

    def asked(self, op: OpId, neighbour: str, out: Output) -> None:
        state = self._state
        if op in state.waits:
            waiting = self._ask(op, out)
        elif op in state.advertisements or op in state.subscriptions:
            waiting = ()
        else:
            return
        if waiting:
            _remember(self._asked_by, op, neighbour)
        self._report(Waiting(op, self._config.name, waiting), neighbour, out)

    def answered(self, answer: Waiting, out: Output) -> None:
        answer = replace(answer, op=self._meant.get(answer.op, answer.op))
        if answer.op in self._own:
            self._own[answer.op][answer.broker] = answer.neighbours
        elif answer.op in self._asked_by:
            self._report(answer, self._asked_by[answer.op], out)

    def concerned(self, control: Control) -> list[OpId]:
        """The operations that we were asked about, and that control is about to echo."""
        if not self._asked_by:
            return []
        echoed = (each.op for each in control.messages if isinstance(each, Echo))
        return [op for op in map(self._subject, echoed) if op in self._asked_by]

    def echoed(self, op: OpId, out: Output) -> None:
        """A neighbour has echoed an operation that we were asked about."""
        waiting = self._waiting(op)
        if waiting:  # else our own echo says so
            self._report(Waiting(op, self._config.name, waiting), self._asked_by[op], out)

    def verdict(self, op: OpId) -> tuple[str, ...]:
        """The brokers not reached; if all have reported, those that are merely slow."""
        reports = self._own.pop(op, {})
        if op in self._state.waits:
            reports[self._config.name] = self._waiting(op)
        waited_for: dict[str, None] = {}
        follow = [self._config.name]
        while follow:  # reports of brokers that nobody waits for any more do not count
            fresh = [name for name in reports.get(follow.pop(), ()) if name not in waited_for]
            waited_for |= dict.fromkeys(fresh)
            follow += fresh
        return tuple(sorted(waited_for.keys() - reports.keys() or waited_for))

    def _subject(self, op: OpId) -> OpId:
        """The operation that a name stands for: its own, or that of a probe for its echo."""
        wait = self._state.waits.get(op)
        if wait is not None and wait.what == RECHECK and wait.target is not None:
            return wait.target
        return self._meant.get(op, op)

    def _waiting(self, op: OpId) -> tuple[str, ...]:
        state = self._state
        wait = state.waits.get(op)
        return tuple(state.bits.names(state.missing(wait))) if wait is not None else ()

    def _ask(self, op: OpId, out: Output) -> tuple[str, ...]:
        """Pass the inquiry on; returns the neighbours that we wait for."""
        for name, asked in self._questions(op):
            if asked != op:
                _remember(self._meant, asked, op)
            link = self._links[name]
            if link.up:
                out.send.append((link.soft.connection, Inquire(asked)))
        return self._waiting(op)

    def _questions(self, op: OpId) -> Iterator[tuple[str, OpId]]:
        """The neighbours that we wait for, each with the name under which it knows the operation. A
        neighbour does not know a removal that was not sent there, but the one that it waits for."""
        state = self._state
        wait, names = state.waits[op], state.bits.names
        probes = {
            state.waits[each].requester.name: each for each in state.waits.rechecks.get(op, ())
        }
        for name in names(wait.missing):
            yield name, probes.get(name, op)
        for each, missing in state.ahead(wait):
            for name in names(missing):
                yield name, each

    def _report(self, answer: Waiting, neighbour: str, out: Output) -> None:
        link = self._links.get(neighbour)
        if link is not None and link.up:
            out.send.append((link.soft.connection, answer))


def _remember(known: dict[OpId, T], op: OpId, value: T) -> None:
    known[op] = value
    if len(known) > REMEMBERED:
        del known[next(iter(known))]


def _nothing() -> None: ...


def _nobody(connection: int, name: str, out: Output, now: float) -> bool:
    del connection, name, out, now
    return False


class SoftLinks(SoftRoom):
    concerns = frozenset({Sent})

    def __init__(self, shared: SharedState, streams: Streams, inquiries: Inquiries) -> None:
        self._shared = shared
        self._streams = streams
        self._inquiries = inquiries
        self.rewired: Callable[[], None] = _nothing
        """Called when links have changed: streams may take another route."""
        self.dialled_elsewhere: Callable[[int, str, Output, float], bool] = _nobody
        """Called when a process that is not a neighbour was dialled: maybe a member of a cell."""
        self.lost: Callable[[str, Output, float], None] = lambda *_: None
        """Called when the connection to a neighbour is gone."""
        self.heard: dict[type, Callable[[Control], dict[str, int]]] = {}
        """By kind of control message: returns the soft state that messages in a frame need; see
        `ControlReceived.heard`."""
        self.ahead: dict[type, Callable[[Any, Output, float], None]] = {}
        """By kind of control message: called with one that is about to be taken."""
        self.passing: Callable[[str], list[str]] = lambda _: []
        """The clients on their way from or to a neighbour."""
        self.confirmed: list[Callable[[Output, float], None]] = []
        """Called when a neighbour may have confirmed control, or cannot do so any more."""

    def frames(self) -> Mapping[type, Callable[[int, Any, Any, Output, float], None]]:
        return {
            LinkHello: self._link_hello,
            Control: self._control,
            ControlAck: self._control_ack,
            Inquire: self._question,
            Waiting: self._question,
        }

    def inputs(self) -> Mapping[type, Callable[[Any, Output, float], None]]:
        return {Dialled: self._dialled, Reconfigured: self._reconfigured}

    def closings(self) -> Mapping[str, Callable[[int, Peer, Output, float], None]]:
        return {"broker": self._closed}

    def timers(self) -> Mapping[str, Callable[[Any, Output, float], None]]:
        return {"link": self._alarm}

    def account(self) -> dict[str, Any]:
        return {
            "links": {
                name: {
                    "phase": link.condition,
                    "refusal": link.soft.refusal,
                    "life": link.ledger.record.life,
                    "losses": link.ledger.record.losses,
                    "sent": link.ledger.record.sent,
                    "received": link.ledger.record.received,
                    "unacknowledged": len(link.ledger.outbox),
                    "round_trip_s": round(link.soft.round_trip_s, 6),
                    "lost_publications": link.soft.lost,
                    "overtaken_publications": link.soft.overtaken,
                }
                for name, link in self._shared.links.items()
            }
        }

    def changed(self, changes: Grouped, out: Output, now: float) -> None:
        for neighbour in dict.fromkeys(each.neighbour for each in changes.get(Sent, ())):
            if neighbour in self._shared.links:  # else it was just given up or removed
                self._shared.links[neighbour].transmit(out, now)

    def concluded(self, changes: Grouped, out: Output, now: float) -> None:
        """Giving a neighbour up is a separate fact; the reactions to this one come first."""
        for neighbour in dict.fromkeys(each.neighbour for each in changes.get(Sent, ())):
            if neighbour in self._shared.links:
                self._give_up_the_absent(neighbour, out, now)

    def _alarm(self, key: tuple[str, str], out: Output, now: float) -> None:
        if key[1] in self._shared.links:
            self._shared.links[key[1]].alarm(out, now)

    def _closed(self, connection: int, peer: Peer, out: Output, now: float) -> None:
        del connection
        link = self._shared.links[peer.name]
        if link.move("closed") == "drop":
            link.drop(out)
        self._give_up_the_absent(peer.name, out, now)
        self.lost(peer.name, out, now)
        self._confirm(out, now)

    # ── frames ───────────────────────────────────────────────────────────────────────────

    def _link_hello(
        self, connection: int, peer: Peer | None, hello: LinkHello, out: Output, now: float
    ) -> None:
        if hello.version != PROTOCOL_VERSION:
            raise VersionError(
                f"{hello.broker} speaks version {hello.version}, we speak {PROTOCOL_VERSION}"
            )
        link = self._shared.links.get(hello.broker)
        if link is None:
            known = ", ".join(self._shared.links) or "none"
            raise UnknownBroker(
                f"{hello.broker!r} is not a neighbour of {self._shared.name} (it has: {known}); "
                "add the link to the topology of both"
            )
        if hello.root and link.root and hello.root != link.root:
            raise ProtocolError(
                f"{hello.broker} has the root {hello.root}, but {self._shared.name} has the root "
                f"{link.root}; use the same root in all topologies"
            )
        if peer is not None and peer.name != hello.broker:
            raise ProtocolError(f"dialled {peer.name}, but {hello.broker} answered")
        if peer is None and connection < link.soft.connection:
            # A delayed hello: its sender has closed that connection since, and reconnected.
            out.close.append(Close(connection, "", "a newer connection took over"))
            return
        known_here = link.up and peer is not None
        stranger = link.ledger.record.incarnation != hello.incarnation
        if known_here and stranger:
            raise ProtocolError(f"{hello.broker} changed its life while connected")
        objection = None if known_here else link.objection(hello)
        if objection is not None:
            self._shared.expel(connection, objection.exception(), out, now)
            link.refuse(objection.text)
            return
        if peer is None:
            self._bind_link(connection, link, out)
        if stranger:
            self._shared.journal(
                NeighbourMet(hello.broker, hello.incarnation, recalls=True), out, now
            )
            link.begin_again()
        link.move("hello")  # only now may control leave: it follows our own hello
        if not hello.heard:
            link.greet(out, now, heard=True)
        if not known_here:  # else it was repeated because our answer got lost
            link.resume(hello, out, now)
            self._confirm(out, now)
            self.rewired()
            self._streams.run(out, now, self._streams.machine.linked, link.neighbour)

    def _control(
        self, connection: int, peer: Peer, control: Control, out: Output, now: float
    ) -> None:
        del connection
        link = self._shared.links[peer.name]
        if link.move("control") == "ignore":
            return
        if link.ledger.fresh(control):
            for message in control.messages:
                if type(message) in self.ahead:
                    self.ahead[type(message)](message, out, now)
            tick = self._streams.next_tick(now)
            heard: dict[str, int] = {}
            for kind in map(type, control.messages):
                if kind in self.heard:
                    heard |= self.heard[kind](control)
            fact = ControlReceived(
                peer.name, control, tick, rechecks=True, recalls=True, heard=heard
            )
            concerned = self._inquiries.concerned(control)
            self._shared.journal(fact, out, now)
            for op in concerned:
                self._inquiries.echoed(op, out)
        link.acknowledge(out)

    def _control_ack(
        self, connection: int, peer: Peer, ack: ControlAck, out: Output, now: float
    ) -> None:
        del connection
        link = self._shared.links[peer.name]
        if link.move("ack") == "trim":
            link.acknowledged(ack, out, now)
            self._confirm(out, now)

    def _question(
        self, connection: int, peer: Peer, frame: Inquire | Waiting, out: Output, now: float
    ) -> None:
        del connection, now
        if self._shared.links[peer.name].move("question") == "ignore":
            return
        if isinstance(frame, Inquire):
            self._inquiries.asked(frame.op, peer.name, out)
        else:
            self._inquiries.answered(frame, out)

    def _confirm(self, out: Output, now: float) -> None:
        for each in self.confirmed:
            each(out, now)

    # ── connections ──────────────────────────────────────────────────────────────────────

    def _dialled(self, news: Dialled, out: Output, now: float) -> None:
        connection, neighbour = news
        link = self._shared.links.get(neighbour)
        if link is None:
            if self.dialled_elsewhere(connection, neighbour, out, now):
                return
            text = f"{neighbour} is not a neighbour of {self._shared.name} any more"
            out.close.append(Close(connection, "", text))
            return
        self._bind_link(connection, link, out)
        link.move("dialled")
        link.greet(out, now, heard=False)

    def _bind_link(self, connection: int, link: Link, out: Output) -> None:
        old = link.soft.connection
        if old:
            self._shared.unbind(old)
            out.close.append(Close(old, "", "a newer connection took over"))
        self._shared.peers[connection] = Peer("broker", link.neighbour)
        link.open(connection)
        self.rewired()

    # ── neighbours ───────────────────────────────────────────────────────────────────────

    def _give_up_the_absent(self, neighbour: str, out: Output, now: float) -> None:
        """Give up an absent neighbour that needs more messages to continue than to join again."""
        link = self._shared.links[neighbour]
        if link.soft.connection or link.kept <= self._shared.config.outbox_bound:
            return
        state = self._shared.durable.routing.state
        to_join = len(state.clients) + len(state.advertisements) + len(state.subscriptions)
        if link.kept > to_join:
            self._shared.journal(NeighbourLost(neighbour, recalls=True), out, now)
            link.begin_again()

    def objection_to(self, neighbours: tuple[str, ...]) -> Objection | None:
        """Why these cannot become the neighbours."""
        if self._shared.name in neighbours:
            return Objection("MisuseError", f"{self._shared.name} cannot be its own neighbour")
        for name in self._shared.links:
            if name in neighbours:
                continue
            clients, advertisements, subscriptions = self._shared.durable.routing.in_force(name)
            if clients:
                shown = ", ".join(clients[:SHOWN_CLIENTS])
                more = ", …" if len(clients) > SHOWN_CLIENTS else ""
                have = f"{len(clients)} client" + "s" * (len(clients) > 1)
                text = f"{name} still has {have} behind it: {shown}{more}; disconnect them first"
                return Objection("MisuseError", text)
            if passing := self.passing(name):
                text = f"{passing[0]} is on its way from or to {name}; wait until it has arrived"
                return Objection("MisuseError", text)
            if advertisements or subscriptions:
                return Objection(
                    "MisuseError",
                    f"{advertisements} advertisements and {subscriptions} subscriptions from "
                    f"{name} are still in force; wait until they are removed",
                )
        return None

    def _reconfigured(self, news: Reconfigured, out: Output, now: float) -> None:
        neighbours = news.neighbours
        objection = self.objection_to(neighbours)
        if objection is not None:
            raise objection.exception()
        if set(neighbours) == set(self._shared.links):
            return
        removed = [name for name in self._shared.links if name not in neighbours]
        for name in removed:
            self._take_away(name, out)
        self._shared.journal(NeighboursChanged(neighbours), out, now)
        known = dict(self._shared.links)
        self._shared.links.clear()  # not replaced: other rooms hold this very table
        for name, ledger in self._shared.durable.ledgers.items():
            root = self._shared.durable.transactions.root
            self._shared.links[name] = known.get(name) or Link(self._shared.name, ledger, root)
        self._shared.config = replace(self._shared.config, neighbours=tuple(neighbours))
        for name in removed:
            self._streams.run(out, now, self._streams.machine.gone, name)

    def _take_away(self, neighbour: str, out: Output) -> None:
        link = self._shared.links.pop(neighbour)
        connection = link.soft.connection
        if connection:
            self._shared.unbind(connection)
            text = f"{neighbour} is not a neighbour of {self._shared.name} any more"
            out.close.append(Close(connection, "", text))
        link.drop(out)
        self.rewired()
