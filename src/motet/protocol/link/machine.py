"""The link machine: control messages reach the neighbour once, in order, whatever breaks.

Numbers, cumulative acknowledgement, resending after silence and after reconnecting; a newer
connection fences an older one; an incarnation that changed means that the neighbour has lost
its state, and both sides start from 1 again with a full transfer.

A neighbour that we have never met gets nothing queued: the transfer at the first meeting tells
it everything.
"""

from __future__ import annotations

from itertools import islice

from motet.errors import ProtocolError
from motet.protocol.contract import CancelTimer, Output, SetTimer
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.messages import Control, ControlAck, LinkHello, Publications
from motet.protocol.link.state import LinkRecord, LinkSoft, Phase
from motet.protocol.publication import Publication
from motet.protocol.routing.messages import RoutingMessage

CONTROL_CHUNK = 512
"""Messages per control frame, so that no frame comes near the size limit."""
FIRST_PATIENCE_S = 1.0
LAST_PATIENCE_S = 16.0

MOVES: dict[tuple[Phase, str], tuple[str, Phase]] = {
    (Phase.DOWN, "dialled"): ("greet", Phase.GREETING),
    (Phase.DOWN, "hello"): ("meet", Phase.UP),
    (Phase.DOWN, "closed"): ("ignore", Phase.DOWN),
    (Phase.GREETING, "dialled"): ("greet", Phase.GREETING),
    (Phase.GREETING, "hello"): ("meet", Phase.UP),
    (Phase.GREETING, "control"): ("ignore", Phase.GREETING),
    (Phase.GREETING, "ack"): ("ignore", Phase.GREETING),
    (Phase.GREETING, "publications"): ("ignore", Phase.GREETING),
    (Phase.GREETING, "question"): ("ignore", Phase.GREETING),
    (Phase.GREETING, "closed"): ("drop", Phase.DOWN),
    (Phase.UP, "dialled"): ("greet", Phase.GREETING),
    (Phase.UP, "hello"): ("meet", Phase.UP),
    (Phase.UP, "control"): ("accept", Phase.UP),
    (Phase.UP, "ack"): ("trim", Phase.UP),
    (Phase.UP, "publications"): ("accept", Phase.UP),
    (Phase.UP, "question"): ("accept", Phase.UP),
    (Phase.UP, "closed"): ("drop", Phase.DOWN),
}
"""While greeting, what a lossy transport delivers too early is ignored; it will be sent again."""


class Ledger:
    """The durable half of a link; changed only while a fact is applied."""

    def __init__(self, neighbour: str) -> None:
        self.record = LinkRecord(neighbour)

    def enqueue(self, message: RoutingMessage) -> None:
        record = self.record
        if record.incarnation:
            record.sent += 1
            record.outbox.append((record.sent, message))

    def take(self, control: Control) -> tuple[RoutingMessage, ...]:
        """The messages of a frame that are new; counts them as received."""
        fresh = self.fresh(control)
        self.record.received += len(fresh)
        return fresh

    def fresh(self, control: Control) -> tuple[RoutingMessage, ...]:
        """The messages of a frame that follow what we have; none if there is a gap."""
        have = self.record.received
        if control.first > have + 1:
            return ()
        return control.messages[have + 1 - control.first :]

    def restart(self, incarnation: int) -> None:
        """Begin from 1 with a neighbour that starts empty."""
        self.record.incarnation = incarnation
        self.record.sent = self.record.received = 0
        self.record.outbox.clear()

    def trim(self, received: int) -> bool:
        """Forget what the neighbour has; true if there was any."""
        outbox, trimmed = self.record.outbox, False
        while outbox and outbox[0][0] <= received:
            outbox.popleft()
            trimmed = True
        return trimmed


class Link:
    """The soft half: one neighbour's current connection."""

    def __init__(self, broker: str, incarnation: int, ledger: Ledger) -> None:
        self.ledger = ledger
        self.soft = LinkSoft()
        self.neighbour = ledger.record.neighbour
        self._broker = broker
        self._incarnation = incarnation
        self._alarm = ("link", self.neighbour)

    def move(self, event: str) -> str:
        """The action for an event in this phase; takes the step to the next phase."""
        row = MOVES.get((self.soft.phase, event))
        if row is None:
            raise ProtocolError(
                f"{self.neighbour} sent {event} while the link is {self.soft.phase.value}"
            )
        action, self.soft.phase = row
        return action

    @property
    def up(self) -> bool:
        return self.soft.phase is Phase.UP

    # ── the hello ────────────────────────────────────────────────────────────────────────

    def open(self, connection: int) -> None:
        """A connection takes over: nobody has greeted on it yet, its counters start again."""
        soft = self.soft
        soft.phase = Phase.DOWN
        soft.connection = connection
        soft.transmitted = soft.number = soft.seen = 0
        soft.patience_s = FIRST_PATIENCE_S

    def greet(self, out: Output, now: float, *, heard: bool) -> None:
        record = self.ledger.record
        hello = LinkHello(
            PROTOCOL_VERSION,
            self._broker,
            self._incarnation,
            record.incarnation,
            record.received,
            heard,
        )
        out.send.append((self.soft.connection, hello))
        if not heard:
            self._set_alarm(out, now)

    def resume(self, hello: LinkHello, out: Output, now: float) -> None:
        """Both hellos are known: forget what the neighbour has, send it the rest."""
        record = self.ledger.record
        remembered = hello.received if hello.known == self._incarnation else 0
        first = record.outbox[0][0] if record.outbox else record.sent + 1
        if not first - 1 <= remembered <= record.sent:
            raise ProtocolError(
                f"{hello.broker} has {remembered} control messages from us, but we keep "
                f"{first} to {record.sent}: one of us runs on an older copy of its state; "
                "start that broker without its state, so that it joins anew"
            )
        self.ledger.trim(remembered)
        self.soft.transmitted = remembered
        self.transmit(out, now)

    def drop(self, out: Output) -> None:
        self.soft.connection = 0
        out.timers.append(CancelTimer(self._alarm))

    # ── control ──────────────────────────────────────────────────────────────────────────

    def transmit(self, out: Output, now: float) -> None:
        """Send all control that has not gone out on this connection."""
        soft, record = self.soft, self.ledger.record
        if not self.up or soft.transmitted == record.sent:
            return
        newest_first = islice(reversed(record.outbox), record.sent - soft.transmitted)
        waiting = [message for _, message in newest_first][::-1]
        for start in range(0, len(waiting), CONTROL_CHUNK):
            chunk = tuple(waiting[start : start + CONTROL_CHUNK])
            out.send.append((soft.connection, Control(soft.transmitted + 1, chunk)))
            soft.transmitted += len(chunk)
        self._set_alarm(out, now)

    def acknowledge(self, out: Output) -> None:
        out.send.append((self.soft.connection, ControlAck(self.ledger.record.received)))

    def acknowledged(self, ack: ControlAck, out: Output, now: float) -> None:
        if ack.received > self.soft.transmitted:
            raise ProtocolError(f"{self.neighbour} acknowledged what was never sent")
        if self.ledger.trim(ack.received):
            self.soft.patience_s = FIRST_PATIENCE_S
            if self.ledger.record.outbox:
                self._set_alarm(out, now)
            else:
                out.timers.append(CancelTimer(self._alarm))

    def alarm(self, out: Output, now: float) -> None:
        """Silence for too long: greet again, or send again what was not acknowledged."""
        soft, outbox = self.soft, self.ledger.record.outbox
        soft.patience_s = min(2 * soft.patience_s, LAST_PATIENCE_S)
        if soft.phase is Phase.GREETING:
            self.greet(out, now, heard=False)
        elif self.up and outbox:
            soft.transmitted = outbox[0][0] - 1
            self.transmit(out, now)

    # ── publications ─────────────────────────────────────────────────────────────────────

    def publish(self, batch: list[Publication], out: Output) -> None:
        soft = self.soft
        if not self.up:
            soft.lost += len(batch)
            return
        soft.number += 1
        frame = Publications(soft.number, self.ledger.record.sent, batch)
        out.send.append((soft.connection, frame))

    def admit(self, frame: Publications) -> bool:
        """False for a frame that is doubled, late, or ahead of control that is missing."""
        soft = self.soft
        if frame.number <= soft.seen:
            return False
        soft.seen = frame.number
        if frame.after > self.ledger.record.received:
            soft.overtaken += len(frame.batch)
            return False
        return True

    def _set_alarm(self, out: Output, now: float) -> None:
        out.timers.append(SetTimer(self._alarm, now + self.soft.patience_s))
