"""Records the real clients of a run, for the checkers of the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from motet.audit.records import (
    ADDITIONS,
    DONE,
    DeliveryRecord,
    EventRecord,
    LossRecord,
    SessionRecord,
    Stay,
)
from motet.chaos.chronicle import LOOKBACK_S, Chronicle
from motet.client.history import Recorder
from motet.client.session.machine import ClientMachine
from motet.client.session.state import (
    Arrived,
    ClientOutput,
    Dismissed,
    Missed,
    Notice,
    Redirected,
    Resolved,
)
from motet.errors import Fenced
from motet.model import decode_body
from motet.protocol.frames import Frame
from motet.protocol.publication import Publication
from motet.protocol.session.messages import Welcome
from motet.testing.history import Fencing, OpeningRecord


class Witness(Recorder):
    def __init__(self, chronicle: Chronicle, instance: int, machine: ClientMachine) -> None:
        super().__init__(machine, instance)
        self._second = chronicle.recorder_of(machine)
        """Writes a history for the audit."""
        self.away_since = chronicle.now()
        self._chronicle = chronicle
        self._history = chronicle.history
        self._resolved: set[int] = set()
        self._trouble = chronicle.history.disturbed[instance]
        self._trouble.begin(chronicle.now())
        self._sent_on_at = inf
        """When a broker has sent the client to another one, until it is welcomed."""
        self._hangs_up = False
        """The client itself ends the connection, to go to that broker."""
        self.impatient = False
        """The client does not wait for its session any longer."""
        self.impatient_at = -inf
        """When it ceased to wait, the last time."""

    def now(self) -> float:
        return self._chronicle.now()

    # ── the second recorder ──────────────────────────────────────────────────────────────

    def heard(self, frame: Frame) -> None:
        if self._second is not None:
            self._second.heard(frame)
        super().heard(frame)

    def watch(self, output: ClientOutput) -> None:
        if self._second is not None:
            self._second.watch(output)
        super().watch(output)

    def published(self, ordinals: Iterable[int], bodies: Sequence[Any], sure: bool) -> None:
        ordinals = list(ordinals)
        if self._second is not None:
            self._second.published(ordinals, bodies, sure)
        super().published(ordinals, bodies, sure)

    def close(self) -> None:
        if self._second is not None:
            self._second.close()

    def odd(self, guarantee: str, detail: str) -> None:
        self._history.odd(guarantee, detail)

    # ── the connection, and the end ──────────────────────────────────────────────────────

    def closed(self) -> None:
        """The connection is lost, perhaps for a while already."""
        now = self.now()
        self.away_since = min(self.away_since, now)
        if self._hangs_up:
            self._hangs_up = False
        elif self._chronicle.recording:
            self._trouble.begin(max(0.0, now - LOOKBACK_S))

    def troubled(self) -> None:
        """Its connection is about to be broken."""
        self._trouble.begin(self.now())

    def lose_patience(self) -> None:
        """The client opens a new session, although one is on its way."""
        self.impatient, self.impatient_at = True, self.now()

    def takes_back(self, handle: int) -> None:
        """The application removes something, whenever the broker may hear of it."""
        operation = self.operations.get(handle)
        if operation is not None:
            operation.ended_at = min(operation.ended_at, self.now())

    def die(self) -> None:
        """Its process is killed: no application receives anything from now on."""
        self.troubled()
        self._history.departed.add(self.instance)
        self.end_session(self.now())

    def end_session(self, at: float) -> None:
        if self._chronicle.recording:
            super().end_session(at)

    # ── sessions ─────────────────────────────────────────────────────────────────────────

    def _welcomed(self, frame: Welcome) -> None:
        chronicle, now, client = self._chronicle, self.now(), self.machine.client
        before, place = self.session, (frame.epoch, frame.broker, now)
        if not frame.resumed:
            if frame.epoch in chronicle.epochs:
                self.odd("sessions", f"epoch {frame.epoch} was issued twice, to {client}")
            chronicle.epochs.add(frame.epoch)
            resume = before.epoch if before is not None else None
            opening = OpeningRecord(client, self.instance, *place, resume, ())
            self._history.openings.append(opening)
        chronicle.resumed += frame.resumed
        if before is None or before.epoch != frame.epoch:
            if before is not None:
                self._lost(before, now)
            self.operations.clear()
            self.session = SessionRecord(client, self.instance, *place)
            self.session.total_order = self.machine.total_order
            self.session.stays = self._history.stays[client, frame.epoch]
            self.session.stays.append(Stay(frame.broker))
            self._history.sessions.append(self.session)
        assert self.session is not None
        self._is_at(self.session, frame.broker, now)
        self.away_since = inf
        self._trouble.end(now)

    def _is_at(self, session: SessionRecord, broker: str, now: float) -> None:
        """The client has its session, perhaps at another broker than before."""
        stays = session.stays
        if stays[-1].broker != broker:
            stays[-1].left_at, stays[-1].until = min(now, self._sent_on_at), now
            stays.append(Stay(broker, stays[-1].left_at))
        self._history.places[session.client, session.epoch] = broker
        self._history.travels[self.instance].end(now)
        if self._sent_on_at < inf:
            self._chronicle.travelled(now - self._sent_on_at)
        self._sent_on_at, self.impatient = inf, False

    def _lost(self, before: SessionRecord, now: float) -> None:
        """Sessions are durable: unless its client left, only an expired lease may end one, or a
        client that does not wait for its session."""
        chronicle = self._chronicle
        if self.impatient:
            self.end_session(now)
            return
        chronicle.lost_sessions += 1
        away_s = now - self.away_since
        if away_s + LOOKBACK_S < chronicle.lease_s:
            chronicle.lost_operations += sum(
                operation.kind in ADDITIONS
                and operation.answer == DONE
                and operation.ended_at == inf
                for operation in before.operations.values()
            )
            self.odd(
                "durability",
                f"{before.broker} has forgotten the session {before.epoch} of {before.client}, "
                f"which was away for {away_s:.1f} s of a lease of {chronicle.lease_s:g} s",
            )
        self.end_session(now)

    # ── events ───────────────────────────────────────────────────────────────────────────

    def _sent(self, frame: Frame) -> None:
        if self._chronicle.recording:
            super()._sent(frame)

    def _event_made(self, body: bytes, sure: bool) -> EventRecord:
        """The payload of an event is its number."""
        del sure
        event = self._history.events[int(decode_body(body)[1])]
        self._chronicle.bodies[body] = event
        return event

    def _event_sent(self, session: SessionRecord, number: int, body: bytes) -> EventRecord:
        del session, number
        return self._chronicle.bodies[body]

    def _came(self, handle: int, publication: Publication, pubend: str, tick: int) -> None:
        if not self._chronicle.recording:
            return
        event = self._chronicle.bodies.get(bytes(publication.body))
        if event is not None and tick:
            event.pubend, event.tick = pubend, tick
        what = (self.operations.get(handle), event, publication.publisher, pubend, tick)
        delivery = DeliveryRecord(self.now(), self.instance, handle, *what)
        self._history.deliveries.append(delivery)

    def _missed(self, news: Missed) -> None:
        if self._chronicle.recording:
            self._history.losses.append(LossRecord(self.instance, *news))

    # ── other notices of the machine ─────────────────────────────────────────────────────

    def _happened(self, news: Notice) -> None:
        super()._happened(news)
        now, client = self.now(), self.machine.client
        if isinstance(news, Arrived) and news.dropped and self._chronicle.recording:
            self._trouble.touch(max(0.0, now - LOOKBACK_S), now)
        elif isinstance(news, Redirected):
            self._hangs_up = True
            self._sent_on_at = min(self._sent_on_at, now)
            self._history.travels[self.instance].begin(now)
        elif isinstance(news, Resolved):
            if news.handle in self._resolved:
                self.odd("answers", f"request {news.handle} of {client} resolved twice")
            self._resolved.add(news.handle)
        elif isinstance(news, Dismissed):
            if news.failure.error == Fenced.__name__:
                fencing = Fencing(client, self.instance, self.machine.epoch, now)
                self._history.fencings.append(fencing)
            else:
                self.odd("sessions", f"{client} was dismissed: {news.failure.text}")
            self._trouble.begin(now)
            self.end_session(now)
