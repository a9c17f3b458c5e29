"""Advertise, subscribe and their inverses as requests of clients: from request to table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from motet.model import Hop, OpId
from motet.protocol.changes import (
    NeighbourAdmitted,
    NeighbourDismissed,
    NeighbourForgotten,
    NeighbourJoined,
    SubscriptionEnded,
)
from motet.protocol.room import Bus, DurableRoom, Handler, Objection
from motet.protocol.routing import image
from motet.protocol.routing.image import take_other_homes
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import (
    Advertise,
    RoutingMessage,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.session.durable import DurableSessions, Terms
from motet.protocol.session.facts import DeadlinePassed
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import (
    AdvertiseRequest,
    Done,
    Failed,
    RoutingRequest,
    SubscribeRequest,
    Tag,
    UnadvertiseRequest,
    UnsubscribeRequest,
)
from motet.protocol.session.state import Session


class RequestGuard(Protocol):
    """How transactions check a request before it takes effect."""

    @property
    def active(self) -> Collection[str]:
        """Decisions that are not in effect everywhere."""

    def admit(self, op: OpId, request: RoutingRequest, session: Session) -> Objection | bool: ...
    def note(self, op: OpId, request: RoutingRequest, tag: Tag) -> bool: ...
    def normalised(self, message: RoutingMessage) -> RoutingMessage: ...


class DurableRouting(DurableRoom):
    name = "routing"

    def __init__(
        self,
        bus: Bus,
        routing: Routing,
        sessions: Sessions,
        answers: DurableSessions,
        guard: RequestGuard,
    ) -> None:
        self._bus = bus
        self._routing = routing
        self._sessions = sessions
        self._answers = answers
        self._guard = guard
        answers.requests |= dict.fromkeys(
            (AdvertiseRequest, UnadvertiseRequest, SubscribeRequest, UnsubscribeRequest), self._obey
        )

    def facts(self) -> Mapping[type, Handler]:
        return {DeadlinePassed: self._deadline_passed}

    def messages(self) -> Mapping[type, Callable[[Any, Hop], None]]:
        return dict.fromkeys(self._routing.moves, self._take)

    def reactions(self) -> Mapping[type, Handler]:
        routing, carry = self._routing, self._bus.carry
        return {
            NeighbourForgotten: lambda n: carry(routing.forget(n.neighbour, empty=n.empty)),
            NeighbourJoined: lambda n: carry(routing.join(n.neighbour)),
            NeighbourAdmitted: lambda n: carry(routing.admit(n.neighbour)),
            NeighbourDismissed: lambda n: carry(routing.dismiss(n.neighbour)),
        }

    def parts(self) -> Mapping[type[Struct], Iterable[Any]]:
        return image.parts(self._routing)

    def takers(self) -> Mapping[type[Struct], Handler]:
        return image.takers(self._routing)

    def image(self) -> bytes:
        return image.other_homes(self._routing)

    def restore(self, image: bytes) -> None:
        take_other_homes(self._routing, image)

    def validate(self) -> None:
        self._routing.validate()

    def _take(self, message: RoutingMessage, source: Hop) -> None:
        """Apply a message, adjusted to the transactions known here."""
        if self._guard.active:
            message = self._guard.normalised(message)
        self._bus.carry(self._routing.apply(message, source))

    def _obey(self, op: OpId, request: RoutingRequest, terms: Terms) -> None:
        session = self._sessions.current(op.client, op.epoch)
        assert session is not None
        message = self._message(op, request)
        admitted = terms.refused or self._guard.admit(op, request, session)
        if isinstance(admitted, Objection):
            self._answers.refuse(op, admitted)
            return
        if not admitted:
            self._forsake(session, request)
            return
        if isinstance(message, Objection):
            self._answers.refuse(op, message)
            return
        if request.tag is not None and not self._guard.note(op, request, request.tag):
            self._answers.answer(op, Done(request.sequence))
            return
        self._name(session, request)
        self._bus.route(message, Hop.client(session.client))
        if not request.wait:
            self._answers.answer(op, Done(request.sequence))
        elif request.sequence in session.unanswered:  # else it was effective at once
            self._answers.expect(op, request.timeout_s)

    def _message(self, op: OpId, request: RoutingRequest) -> RoutingMessage | Objection:
        state = self._routing.state
        tx = request.tag.tx if request.tag is not None else ""
        if isinstance(request, AdvertiseRequest):
            return Advertise(op, request.filter, echo=request.wait, tx=tx)
        if isinstance(request, SubscribeRequest):
            merges = op.client in self._routing.joins.merging
            above = self._routing.starts.next_tick if merges else 0
            return Subscribe(op, request.filter, echo=request.wait, above=above, tx=tx)
        target = OpId(op.client, op.epoch, request.target)
        waiting = op if request.wait else None
        if isinstance(request, UnadvertiseRequest):
            what, table = "advertisement", state.advertisements
            message: RoutingMessage = Unadvertise(target, waiting)
        else:
            what, table = "subscription", state.subscriptions
            message = Unsubscribe(target, waiting)
        entry = table.get(target)
        if entry is None or entry.source != Hop.client(op.client):
            # Retired ones stay, and those of a client that has moved are at its former broker.
            return Objection(
                "NoSuchOperation",
                f"{what} {request.target} of {op.client} is not in force: "
                "it was never made, was taken away before, or failed",
            )
        return message

    def _forsake(self, session: Session, request: RoutingRequest) -> None:
        """The request must wait. For its client, the removed subscription has ended all the same:
        otherwise a subscription made after it would get the same events again."""
        if isinstance(request, UnsubscribeRequest) and request.tag is None:
            target = OpId(session.client, session.epoch, request.target)
            self._routing.starts.forsake(target)
            self._name(session, request)
            self._bus.emit(SubscriptionEnded(target))

    def _name(self, session: Session, request: RoutingRequest) -> None:
        """Record the name of an entry, and how far it reaches into the past."""
        if isinstance(request, UnadvertiseRequest | UnsubscribeRequest):
            self._sessions.forget(session, request.target)
            return
        session.advertised = session.advertised or isinstance(request, AdvertiseRequest)
        if session.durable or request.name:
            self._sessions.name(session, request.sequence, request.name)
        if isinstance(request, SubscribeRequest) and request.since:
            session.since[request.sequence] = request.since

    def _deadline_passed(self, fact: DeadlinePassed) -> None:
        op, deadlines = fact.op, self._answers.deadlines
        wait = self._routing.state.waits.get(op)
        if wait is None or op not in deadlines:
            return
        _, timeout_s = deadlines[op]
        self._routing.abandon(op)
        text = f"not effective within {timeout_s:g} s"
        if wait.what == "advertise":
            self._bus.route(Unadvertise(op), Hop.client(op.client))
        elif wait.what == "subscribe":
            self._bus.route(Unsubscribe(op), Hop.client(op.client))
        session = self._sessions.current(op.client, op.epoch)
        if session is not None and wait.what in ("advertise", "subscribe"):
            self._sessions.forget(session, op.sequence)
        if wait.what == "unadvertise" and (wait.retired or not fact.missing):
            text = f"not all events published under it have arrived within {timeout_s:g} s"
            self._answers.answer(op, Failed(op.sequence, "StillOwed", text))
            return
        self._answers.answer(op, Failed(op.sequence, "NotEffective", text, fact.missing))
