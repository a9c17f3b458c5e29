"""The client's own machine, with someone beside it who writes everything down.

It takes the place of `ClientMachine` in a real client and changes nothing: what goes out is
written as it goes out, what comes in as it comes in. What the simulator's clients record of
themselves, this records of real ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from secrets import token_hex
from typing import Any

from motet.chaos.chronicle import LOOKBACK_S, Chronicle
from motet.client.happenings import (
    Arrived,
    Brought,
    Effects,
    Ended,
    Happening,
    Missed,
    Resolved,
    Settled,
    Welcomed,
)
from motet.client.machine import ClientMachine, Kind
from motet.errors import Fenced, PeerError
from motet.model import Filter, decode_body
from motet.protocol.frames import Frame
from motet.protocol.session.messages import (
    AdvertiseRequest,
    Deliver,
    Done,
    Failed,
    Goodbye,
    Publish,
    RoutingRequest,
    SubscribeRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
    Welcome,
)
from motet.testing.history import (
    ADDITIONS,
    DONE,
    Delivery,
    Event,
    Fencing,
    Loss,
    Opening,
    Operation,
    Session,
)

KINDS: dict[type, Kind] = {
    AdvertiseRequest: "advertise",
    UnadvertiseRequest: "unadvertise",
    SubscribeRequest: "subscribe",
    UnsubscribeRequest: "unsubscribe",
}


class WitnessedMachine(ClientMachine):
    def __init__(self, chronicle: Chronicle, instance: int, client: str) -> None:
        super().__init__(client, instance=token_hex(8))
        self.instance = instance
        self.session: Session | None = None
        self.away_since = chronicle.now()
        self._chronicle = chronicle
        self._asked: dict[int, Operation] = {}
        """By handle: the operation of the current session."""
        self._resolved: set[int] = set()
        self._made_events: dict[int, Event] = {}
        """By ordinal, until they are settled."""
        self._fated = 0
        self._noted_sends = self._noted_happenings = 0
        self._trouble = chronicle.history.disturbed[instance]
        self._trouble.begin(chronicle.now())

    @property
    def at_rest(self) -> bool:
        """Connected, with nothing under way."""
        return self.state == "open" and not self._unanswered and self.settled == self.made

    # ── the machine's doors ──────────────────────────────────────────────────────────────

    def take(self) -> Effects:
        self._note()
        self._noted_sends = self._noted_happenings = 0
        return super().take()

    def request(
        self,
        kind: Kind,
        filter: Filter | None = None,
        *,
        target: int | None = None,
        wait: bool = True,
        timeout_s: float = 10.0,
        name: str = "",
        since: Mapping[str, int] | None = None,
    ) -> int:
        handle = super().request(
            kind, filter, target=target, wait=wait, timeout_s=timeout_s, name=name, since=since
        )
        operation = self._asked.get(target) if target is not None else None
        if operation is not None:
            operation.ended_at = min(operation.ended_at, self._chronicle.now())
        return handle

    def publish(self, bodies: Any, sure: bool = True) -> range:
        ordinals = super().publish(bodies, sure)
        for ordinal, body in zip(ordinals, bodies, strict=True):
            raw = bytes(body)
            number = int(decode_body(raw)[1])
            event = self._chronicle.history.events[number]
            self._chronicle.bodies[raw] = self._made_events[ordinal] = event
        return ordinals

    def received(self, frame: Frame) -> None:
        self._before(frame)
        try:
            super().received(frame)
        except PeerError as problem:
            detail = f"{self.client} cannot take {frame}: {type(problem).__name__} {problem}"
            self._chronicle.history.odd("invariants", detail)
            raise
        if type(frame) is Welcome:
            self._welcomed(frame)
        elif type(frame) is Deliver:
            self._arrived(frame)
        self._note()

    def closed(self) -> None:
        super().closed()
        now = self._chronicle.now()
        self.away_since = min(self.away_since, now)
        if self._chronicle.recording:
            self._trouble.begin(max(0.0, now - LOOKBACK_S))

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def troubled(self) -> None:
        """Somebody is about to break its connection."""
        self._trouble.begin(self._chronicle.now())

    def die(self) -> None:
        """Its process is killed: whoever it was for hears nothing more."""
        self.troubled()
        self._chronicle.history.departed.add(self.instance)
        self._end_session()

    def _end_session(self) -> None:
        if self.session is not None and self._chronicle.recording:
            self.session.end(self._chronicle.now())

    # ── what comes in ────────────────────────────────────────────────────────────────────

    def _before(self, frame: Frame) -> None:
        """Answers as they stand on the wire: sent again or not, they must never change."""
        if not isinstance(frame, Done | Failed) or self.session is None:
            return
        operation = self.session.operations.get(frame.sequence)
        if operation is None:
            return
        failed = frame if isinstance(frame, Failed) else None
        answer, missing = (failed.error, failed.missing) if failed else (DONE, ())
        is_first = not operation.answer
        odd = operation.answered(answer, self._chronicle.now(), missing)
        if odd:
            self._chronicle.history.odd("answers", odd)
        if is_first and operation.wait and operation.target is None and failed is None:
            operation.effective_at = operation.answered_at

    def _welcomed(self, frame: Welcome) -> None:
        """Before anything of the session is recorded."""
        chronicle, now = self._chronicle, self._chronicle.now()
        if not frame.resumed:
            if frame.epoch in chronicle.epochs:
                chronicle.history.odd(
                    "sessions", f"epoch {frame.epoch} was issued twice, to {self.client}"
                )
            chronicle.epochs.add(frame.epoch)
            resume = self.session.epoch if self.session is not None else None
            opening = (self.client, self.instance, frame.epoch, frame.broker, now, resume, ())
            chronicle.history.openings.append(Opening(*opening))
        chronicle.resumed += frame.resumed
        before = self.session
        if before is None or before.epoch != frame.epoch:
            if before is not None:
                self._lost(before, now)
            self._asked.clear()
            self.session = Session(self.client, self.instance, frame.epoch, frame.broker, now)
            chronicle.history.sessions.append(self.session)
        self.away_since = inf
        self._trouble.end(now)

    def _lost(self, before: Session, now: float) -> None:
        """Sessions are durable: only a lease that ran out may end one that nobody has left."""
        chronicle = self._chronicle
        chronicle.lost_sessions += 1
        away_s = now - self.away_since
        if away_s + LOOKBACK_S < chronicle.lease_s:
            chronicle.lost_operations += sum(
                operation.kind in ADDITIONS
                and operation.answer == "Done"
                and operation.ended_at == inf
                for operation in before.operations.values()
            )
            chronicle.history.odd(
                "durability",
                f"{before.broker} has forgotten the session {before.epoch} of {self.client}, "
                f"which was away for {away_s:.1f} s of a lease of {chronicle.lease_s:g} s",
            )
        self._end_session()

    def _arrived(self, frame: Deliver) -> None:
        arrived = self._effects.happened[-1] if self._effects.happened else None
        if not isinstance(arrived, Arrived) or not self._chronicle.recording:
            return
        history, now = self._chronicle.history, self._chronicle.now()
        if arrived.dropped:
            self._trouble.touch(max(0.0, now - LOOKBACK_S), now)
        for (handles, publication), wire in zip(arrived.batch, frame.batch, strict=True):
            event = self._chronicle.bodies.get(bytes(publication.body))
            if len(handles) != len(wire.subscriptions):
                history.odd(
                    "soundness",
                    f"{self.client} got {event} for subscriptions {wire.subscriptions}, "
                    "not all of which are in force",
                )
            for handle in handles:
                operation = self._asked.get(handle)
                delivery = Delivery(
                    now, self.instance, handle, operation, event, publication.publisher
                )
                history.deliveries.append(delivery)

    def _brought(self, news: Brought) -> None:
        """Sure events; a broker that redelivers is none of the application's business."""
        history, now = self._chronicle.history, self._chronicle.now()
        if not self._chronicle.recording:
            return
        for at, (tick, publication) in enumerate(zip(news.ticks, news.batch, strict=True)):
            event = self._chronicle.bodies.get(bytes(publication.body))
            if event is not None:
                event.pubend, event.tick = news.pubend, tick
            for handle in news.each[at] if news.each else news.every:
                operation = self._asked.get(handle)
                delivery = Delivery(
                    now,
                    self.instance,
                    handle,
                    operation,
                    event,
                    publication.publisher,
                    news.pubend,
                    tick,
                )
                history.deliveries.append(delivery)

    # ── what goes out ────────────────────────────────────────────────────────────────────

    def _note(self) -> None:
        """Write down what has been decided since the last look; each thing once."""
        effects = self._effects
        for frame in effects.send[self._noted_sends :]:
            if type(frame) in KINDS:
                self._note_request(frame)  # type: ignore[arg-type]
            elif type(frame) is Publish:
                self._note_events(frame)
            elif type(frame) is Goodbye:
                self._end_session()
        for happening in effects.happened[self._noted_happenings :]:
            self._note_happening(happening)
        self._noted_sends, self._noted_happenings = len(effects.send), len(effects.happened)

    def _note_request(self, frame: RoutingRequest) -> None:
        session, now = self.session, self._chronicle.now()
        assert session is not None
        if frame.sequence in session.operations or not self._chronicle.recording:
            return  # sent again after the connection broke
        kind, handle = KINDS[type(frame)], self._unanswered[frame.sequence].handle
        target, filter = None, None
        session.sent += 1
        if isinstance(frame, UnadvertiseRequest | UnsubscribeRequest):
            target = session.operations[frame.target]
            target.ended_at = min(target.ended_at, now)
            target.ended_position = min(target.ended_position, session.sent)
        else:
            filter = frame.filter
        operation = session.operations[frame.sequence] = Operation(
            session,
            frame.sequence,
            handle,
            kind,
            filter,
            target,
            frame.wait,
            frame.timeout_s,
            session.sent,
            now,
        )
        if kind in ADDITIONS:
            self._asked[handle] = operation

    def _note_events(self, frame: Publish) -> None:
        session = self.session
        assert session is not None
        for body in frame.bodies:
            session.sent += 1
            event = self._chronicle.bodies[bytes(body)]
            if event.session is None:
                event.session, event.position = session, session.sent
            elif event.session is not session:
                self._chronicle.history.odd("duplicates", f"{event} was sent in two sessions")
            # The broker has said that it does not have it: what counts is the last time.
            event.sent_at = self._chronicle.now()

    def _note_happening(self, happening: Happening) -> None:
        history = self._chronicle.history
        match happening:
            case Settled():
                self._settle_events(happening)
            case Brought():
                self._brought(happening)
            case Missed(pubend, first, last):
                if self._chronicle.recording:
                    history.losses.append(Loss(self.instance, pubend, first, last))
            case Resolved(handle, _):
                if handle in self._resolved:
                    history.odd("answers", f"request {handle} of {self.client} resolved twice")
                self._resolved.add(handle)
            case Ended(failure):
                now = self._chronicle.now()
                if failure.error == Fenced.__name__:
                    fencing = Fencing(self.client, self.instance, self.epoch, now)
                    history.fencings.append(fencing)
                else:
                    history.odd("sessions", f"{self.client} was dismissed: {failure.text}")
                self._trouble.begin(now)
                self._end_session()
            case Welcomed():
                pass

    def _settle_events(self, settled: Settled) -> None:
        refused = {refusal.sequence for refusal in settled.refused}
        for ordinal in range(self._fated + 1, settled.upto + 1):
            event = self._made_events.pop(ordinal)
            bad = "refused" if ordinal in refused else "accepted"
            event.fate = "unknown" if settled.unknown is not None else bad
            event.settled_at = self._chronicle.now()
        self._fated = settled.upto
