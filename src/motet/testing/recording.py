"""What a simulated client writes down of what it sends, and of what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from motet.client.happenings import Settled
from motet.client.operation import Kind
from motet.protocol.session.messages import (
    AdvertiseRequest,
    Publish,
    Request,
    SubscribeRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
)
from motet.testing.history import ADDITIONS, Operation

if TYPE_CHECKING:
    from motet.testing.clients import SimulatedClient

REQUESTS: dict[type, Kind] = {
    AdvertiseRequest: "advertise",
    UnadvertiseRequest: "unadvertise",
    SubscribeRequest: "subscribe",
    UnsubscribeRequest: "unsubscribe",
}


def request(client: SimulatedClient, frame: Request) -> None:
    session = client.session
    if session is None or frame.sequence in session.operations:
        return  # another process has the session already; or it is sent again
    kind = REQUESTS[type(frame)]
    handle = client.machine._unanswered[frame.sequence].handle
    target, filter = None, None
    session.sent += 1
    now = client.cluster.agenda.now
    if isinstance(frame, UnadvertiseRequest | UnsubscribeRequest):
        target = session.operations[frame.target]
        target.ended_at = min(target.ended_at, now)
        target.ended_position = min(target.ended_position, session.sent)
    else:
        filter = frame.filter
    operation = Operation(
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
        ended_at=session.ended_at,
        since=frame.since if isinstance(frame, SubscribeRequest) else {},
    )
    session.operations[frame.sequence] = operation
    if kind in ADDITIONS:
        client.operations[handle] = operation


def events(client: SimulatedClient, frame: Publish) -> None:
    session = client.session
    if session is None:
        return  # another process has it already: this goes nowhere
    for number, body in enumerate(frame.bodies, frame.first):
        session.sent += 1
        event = client.cluster.bodies[bytes(body)]
        if client.process is not None:
            session.numbered[number] = event
        if event.session is None:
            event.session = session
            event.position = session.sent
        elif event.session.epoch != session.epoch:
            client.cluster.history.odd("duplicates", f"{event} was sent in two sessions")
        # The broker has said that it does not have it: what counts is the last time.
        event.last_position = session.sent
        event.sent_at = client.cluster.agenda.now


def settle(client: SimulatedClient, settled: Settled) -> None:
    refused = {refusal.sequence for refusal in settled.refused}
    for ordinal in range(client.settled + 1, settled.upto + 1):
        event = client.published[ordinal - 1]
        bad = "refused" if ordinal in refused else "accepted"
        fate = "unknown" if settled.unknown is not None else bad
        if event.fate and not (event.inherited and fate in (event.fate, "unknown")):
            was = f"{event} was settled twice: {event.fate}, then {fate}"
            client.cluster.history.odd("answers", was)
        event.fate = event.fate or fate
        event.settled_at = client.cluster.agenda.now
    client.settled = settled.upto
