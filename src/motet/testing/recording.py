"""What a simulated client writes down of what it sends, of what it hears, and of what became of
it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from motet.broker.carrying import NOWHERE
from motet.broker.core import BrokerCore
from motet.client.happenings import Settled
from motet.client.operation import Kind
from motet.model import OpId
from motet.protocol.frames import Frame
from motet.protocol.link.messages import Control
from motet.protocol.routing.messages import Unadvertise
from motet.protocol.session.messages import (
    AdvertiseRequest,
    Decided,
    Done,
    Failed,
    Goodbye,
    Invited,
    Over,
    Publish,
    RoutingRequest,
    SubscribeRequest,
    TxRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
)
from motet.testing import transacting
from motet.testing.history import ADDITIONS, DONE, History, Operation

if TYPE_CHECKING:
    from motet.testing.clients import SimulatedClient

REQUESTS: dict[type, Kind] = {
    AdvertiseRequest: "advertise",
    UnadvertiseRequest: "unadvertise",
    SubscribeRequest: "subscribe",
    UnsubscribeRequest: "unsubscribe",
}
HEARD = (Done, Failed, Invited, Decided, Over)
"""What may tell something of a transaction."""


def sent(client: SimulatedClient, frame: Frame) -> None:
    if type(frame) in REQUESTS:
        request(client, frame)  # type: ignore[arg-type]
    elif type(frame) is Publish:
        events(client, frame)
    elif isinstance(frame, TxRequest):
        transacting.ask(client, frame)
    elif type(frame) is Goodbye and not frame.stay:
        client.end_session(client.cluster.agenda.now)


def heard(client: SimulatedClient, frame: Frame) -> None:
    """Answers as they stand on the wire: sent again or not, they must never change."""
    if isinstance(frame, HEARD):
        transacting.heard(client, frame)
    if not isinstance(frame, Done | Failed) or client.session is None:
        return
    operation = client.session.operations.get(frame.sequence)
    if operation is None:
        return
    failed = frame if isinstance(frame, Failed) else None
    answer, missing = (failed.error, failed.missing) if failed else (DONE, ())
    odd = operation.answered(answer, client.cluster.agenda.now, missing)
    if odd:
        client.cluster.history.odd("answers", odd)


def request(client: SimulatedClient, frame: RoutingRequest) -> None:
    session = client.session
    if session is None or frame.sequence in session.operations:
        return  # another process has the session already; or it is sent again
    kind = REQUESTS[type(frame)]
    handle = client.machine._unanswered[frame.sequence].handle
    target, filter = None, None
    session.sent += 1
    now = client.cluster.agenda.now
    deal = transacting.deal_of(client, frame.tag) if frame.tag is not None else None
    if isinstance(frame, UnadvertiseRequest | UnsubscribeRequest):
        target = session.operations[frame.target]
        target.ended_at = min(target.ended_at, now)
        if deal is None:
            target.ended_position = min(target.ended_position, session.sent)
        else:
            target.doubted_position = min(target.doubted_position, session.sent)
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
        deal=deal,
    )
    session.operations[frame.sequence] = operation
    if deal is not None and frame.tag is not None:
        transacting.noted(session, deal, frame.tag, operation, client.instance)
    if kind in ADDITIONS:
        client.operations[handle] = operation
        transacting.expect_end(client.cluster.history, operation)


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


def withdrawn(history: History, core: BrokerCore, control: Control) -> None:
    """A broker hears that nobody advertises something any more: those of its clients who wanted
    the past of it hear that it is lost, perhaps only when they have taken that wish back."""
    if not any(isinstance(message, Unadvertise) for message in control.messages):
        return
    lapsed_upto, known = core.durable.routing.state.lapsed_upto, history.withdrawn_upto
    for session in core.durable.sessions:
        for sequence, since in session.since.items():
            op = OpId(session.client, session.epoch, sequence)
            for pubend in (p for p, tick in since.items() if tick == NOWHERE):
                place = (op.client, op.epoch, pubend)
                known[place] = max(known.get(place, 0), lapsed_upto(op, pubend))
