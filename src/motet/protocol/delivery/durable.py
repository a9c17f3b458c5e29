"""Durable state of exactly-once delivery: this broker's log, and the progress of its clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from motet.model import OpId
from motet.model.ids import number_of
from motet.protocol.changes import (
    PubendDestroyed,
    PublisherGone,
    SessionClosed,
    SessionDeparted,
)
from motet.protocol.delivery.facts import (
    AdvertisementOver,
    FloorRaised,
    LogDestroyed,
    LossLearnt,
    PubendFounded,
    StartLearnt,
    TicksReserved,
)
from motet.protocol.image import HeadImage, PubendsImage
from motet.protocol.room import Bus, DurableRoom, Handler
from motet.protocol.routing.machine import Routing
from motet.protocol.session.machine import Sessions


class DurableDelivery(DurableRoom):
    def __init__(
        self,
        bus: Bus,
        routing: Routing,
        sessions: Sessions,
        deadlines: Mapping[OpId, tuple[float, float]],
    ) -> None:
        self._bus = bus
        self._routing = routing
        self._sessions = sessions
        self._deadlines = deadlines
        self.floors: dict[str, int] = {}
        """By pubend: the tick up to which all clients of this broker have acknowledged it."""
        self.reserved = 0
        """After a restart this broker's events get ticks above this."""
        self.destroyed = (0, 0)
        """The last tick of this broker's destroyed log, and the last epoch issued by then."""

    def facts(self) -> Mapping[type, Handler]:
        return {
            PubendFounded: self._pubend_founded,
            LogDestroyed: self._log_destroyed,
            FloorRaised: self._floor_raised,
            LossLearnt: self._loss_learnt,
            StartLearnt: self._start_learnt,
            TicksReserved: self._ticks_reserved,
            AdvertisementOver: self._advertisement_over,
        }

    def reactions(self) -> Mapping[type, Handler]:
        return {
            PubendDestroyed: self._forget_floor,
            SessionClosed: self._session_closed,
            SessionDeparted: self._session_closed,
        }

    def parts(self) -> Mapping[type[Struct], Iterable[Any]]:
        return {
            HeadImage: [{"reserved": self.reserved, "destroyed": self.destroyed}],
            PubendsImage: [{"floors": tuple(self.floors.items())}],
        }

    def takers(self) -> Mapping[type[Struct], Handler]:
        return {
            HeadImage: self._take_head,
            PubendsImage: lambda part: self.floors.update(part.floors),
        }

    def _take_head(self, head: HeadImage) -> None:
        self.reserved, self.destroyed = head.reserved, head.destroyed

    def lost_with(self, epoch: str) -> int:
        """The last tick that a session may have published in the destroyed log; 0 if none."""
        upto, issued = self.destroyed
        return upto if number_of(epoch) <= issued else 0

    def _forget_floor(self, destroyed: PubendDestroyed) -> None:
        self.floors.pop(destroyed.pubend, None)

    def _session_closed(self, closed: SessionClosed | SessionDeparted) -> None:
        self._routing.joins.leave(closed.client)
        self._forget_publisher(closed.client)

    def _forget_publisher(self, client: str) -> None:
        """The record of a client's publications in transactions is needed as long as its session
        or a retired advertisement of it exists."""
        state = self._routing.state
        if self._sessions.get(client) is None and not any(
            op.client == client for op in state.retired
        ):
            self._bus.emit(PublisherGone(client))

    def _pubend_founded(self, fact: PubendFounded) -> None:
        self._bus.carry(self._routing.found(fact.pubend))

    def _log_destroyed(self, fact: LogDestroyed) -> None:
        self.destroyed = (fact.upto, self._sessions.issued)
        for session in self._sessions:
            session.published = max(session.published, session.taken)
            session.uncounted = session.advertised and session.left_at is None

    def _advertisement_over(self, fact: AdvertisementOver) -> None:
        op = self._routing.state.retired[fact.target]
        self._bus.carry(self._routing.let_go(fact.target, fact.upto))
        self._forget_publisher(fact.target.client)
        if op is not None and op in self._deadlines:
            # If the events took half of the timeout, brokers are not blamed for the rest of it.
            at, timeout_s = self._deadlines[op]
            self._routing.excuse(op, late=at - self._bus.now < timeout_s / 2)

    def _ticks_reserved(self, fact: TicksReserved) -> None:
        self.reserved = max(self.reserved, fact.upto)

    def _floor_raised(self, fact: FloorRaised) -> None:
        self.floors[fact.pubend] = max(fact.upto, self.floors.get(fact.pubend, 0))
        for client, upto in fact.cursors.items():
            session = self._sessions.get(client)
            if session is not None and session.durable:
                session.note({fact.pubend: upto})

    def _loss_learnt(self, fact: LossLearnt) -> None:
        session = self._sessions.current(fact.client, fact.epoch)
        if session is not None:
            session.cursors.pop(fact.pubend, None)

    def _start_learnt(self, fact: StartLearnt) -> None:
        self._routing.starts.learn(fact.op, fact.pubend, fact.tick, fact.tentative)
