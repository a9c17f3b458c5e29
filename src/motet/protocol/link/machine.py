"""The link machine: control messages reach the neighbour once and in order, despite failures.

Control is numbered, acknowledged cumulatively, and retransmitted after silence and after a
reconnect; a newer connection fences an older one. Each side has a *life* on a link. A higher life
means that this side restarts from scratch, because it lost its state or gave the other side up;
then both sides start from 1 with a full transfer. Numbers count within one pair of lives.

Nothing is queued for a neighbour that we have never met: the transfer at the first meeting tells it
everything. A neighbour that is away until too much is queued for it is given up, and from then on
counts as never met.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from itertools import islice

from msgspec import Struct

from motet.errors import ProtocolError, StaleState
from motet.protocol.contract import CancelTimer, Output, SetTimer
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.messages import (
    Control,
    ControlAck,
    ControlMessage,
    LinkHello,
    Publications,
)
from motet.protocol.mobility.messages import Strays
from motet.protocol.publication import Publication
from motet.protocol.room import Objection
from motet.protocol.routing.messages import Complete, Subscribe

CONTROL_CHUNK = 512
"""Messages per control frame, so that no frame comes near the size limit."""
FIRST_PATIENCE_S = 1.0
LAST_PATIENCE_S = 16.0


class LinkRecord(Struct):
    """Durable. `sent` and `received` count control messages of this pair of lives."""

    neighbour: str
    life: int = 1
    """Our own life on this link: it starts as the broker's incarnation and grows with each loss."""
    incarnation: int = 0
    """The life of the neighbour; 0 until we first meet it in our current life."""
    sent: int = 0
    received: int = 0
    losses: int = 0
    """How often the neighbour was given up because it was away too long."""
    asked: int = 0
    """The last message sent that extends what the neighbour must forward to us."""
    told: int = 0
    """The last message received that extends what we must forward."""


class Phase(Enum):
    DOWN = "down"
    GREETING = "greeting"
    UP = "up"


class LinkSoft(Struct):
    """Soft: the current connection and its counters."""

    phase: Phase = Phase.DOWN
    connection: int = 0
    transmitted: int = 0
    """Control numbers up to this were sent on the current connection."""
    offered: int = 0
    """Control numbers up to this were ever sent to the neighbour, in this life or before a
    recovery: it cannot have others."""
    number: int = 0
    """Frames of publications sent on the current connection."""
    seen: int = 0
    """The last such frame received."""
    kept_from: int = 0
    """Control numbers above this count as kept for an absent neighbour. Acknowledged ones do not
    count, nor those restored by a recovery, because it is unknown how many of them it has."""
    refusal: str = ""
    """Why the last connection of this neighbour was refused, until one is accepted again."""
    patience_s: float = 0.0
    """How long to wait before retransmitting unacknowledged control."""
    timed: int = 0
    """The control number whose acknowledgement is being timed; 0: none."""
    timed_at: float = 0.0
    round_trip_s: float = 0.0
    """Smoothed time from sending control to its acknowledgement, which means it is durable."""
    alarm_at: float = 0.0
    """When to retransmit; 0: no retransmission is pending."""
    lost: int = 0
    """Publications for this neighbour that were dropped because the link was down."""
    overtaken: int = 0
    """Publications dropped because control before them was missing."""


class LedgersImage(Struct, tag="ledgers", array_like=True, frozen=True):
    records: tuple[LinkRecord, ...]


class OutboxImage(Struct, tag="outbox", array_like=True, frozen=True):
    """A part of the messages that a neighbour has not acknowledged, numbered from `first`."""

    neighbour: str
    first: int
    messages: tuple[ControlMessage, ...]


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
"""While greeting, frames that a lossy transport delivers too early are ignored, then sent again."""


def widens(message: ControlMessage) -> bool:
    """Must the receiver now forward events to the sender that it would have held back?"""
    return isinstance(message, Subscribe) or (isinstance(message, Complete) and not message.whole)


class Ledger:
    """The durable half of a link; changed only while a fact is applied."""

    def __init__(self, neighbour: str, life: int) -> None:
        self.record = LinkRecord(neighbour, life)
        self.outbox: deque[tuple[int, ControlMessage]] = deque()
        """Messages that may have to be retransmitted. Replay regenerates it. Acknowledged messages
        may be removed at any time, so no journaled step ever reads it."""

    @staticmethod
    def restored(record: LinkRecord) -> Ledger:
        """Restore a ledger from a snapshot; its outbox follows."""
        ledger = Ledger(record.neighbour, record.life)
        ledger.record = record
        return ledger

    def enqueue(self, message: ControlMessage) -> None:
        record = self.record
        if record.incarnation:
            record.sent += 1
            self.outbox.append((record.sent, message))
            if widens(message):
                record.asked = record.sent

    def is_kept_by(self, again: Ledger) -> bool:
        """Whether a replay of all facts, or of all but the last, has everything that may have to be
        retransmitted. It may have more, because acknowledgements are not facts."""
        ours, theirs = self.record, again.record
        if (ours.life, ours.incarnation) != (theirs.life, theirs.incarnation):
            return True  # the last facts restarted the link
        due = [each for each in self.outbox if each[0] <= theirs.sent]
        return not due or list(again.outbox)[-len(due) :] == due

    def take(self, control: Control) -> tuple[ControlMessage, ...]:
        """The new messages of a frame; counts them as received."""
        record, fresh = self.record, self.fresh(control)
        for message in fresh:
            record.received += 1
            if widens(message):
                record.told = record.received
        return fresh

    def fresh(self, control: Control) -> tuple[ControlMessage, ...]:
        """The messages of a frame that follow those we have; none if there is a gap."""
        have = self.record.received
        if control.first > have + 1:
            return ()
        return control.messages[have + 1 - control.first :]

    def restart(self, incarnation: int) -> None:
        """Number from 1 again, for a neighbour that starts empty."""
        self.record.incarnation = incarnation
        self.record.sent = self.record.received = 0
        self.record.asked = self.record.told = 0
        self.outbox.clear()

    def lose(self, life: int) -> None:
        """Give the neighbour up: in our new life we have never met it."""
        self.restart(0)
        self.record.life = life
        self.record.losses += 1

    @property
    def confirmed(self) -> int:
        """Our control up to this number need not be kept."""
        return self.outbox[0][0] - 1 if self.outbox else self.record.sent

    def has_confirmed(self, message: ControlMessage) -> bool:
        """Whether the neighbour has a message that was sent to it. Not for facts: see `outbox`."""
        return bool(self.record.incarnation) and all(each != message for _, each in self.outbox)

    def trim(self, received: int) -> bool:
        """Remove acknowledged messages from the outbox; true if there were any."""
        outbox, trimmed = self.outbox, False
        while outbox and outbox[0][0] <= received:
            outbox.popleft()
            trimmed = True
        return trimmed


class Link:
    """The soft half of a link: the current connection to one neighbour."""

    def __init__(self, broker: str, ledger: Ledger, root: str = "") -> None:
        self.ledger = ledger
        self.root = root
        sent = ledger.record.sent
        self.soft = LinkSoft(kept_from=sent, offered=sent)
        self.neighbour = ledger.record.neighbour
        self._broker = broker
        self._alarm = ("link", self.neighbour)

    def move(self, event: str) -> str:
        """The action for an event in this phase; moves to the next phase."""
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

    @property
    def condition(self) -> str:
        """For the status: the phase, or that the neighbour was refused."""
        soft = self.soft
        refused = soft.refusal and soft.phase is Phase.DOWN
        return "refused" if refused else soft.phase.value

    @property
    def kept(self) -> int:
        """Number of messages that an absent neighbour has not acknowledged, as far as we know."""
        return self.ledger.record.sent - self.soft.kept_from

    def begin_again(self) -> None:
        """Numbers restart, and so do the counters about them."""
        self.soft.kept_from = self.soft.transmitted = self.soft.offered = 0

    # ── the hello ────────────────────────────────────────────────────────────────────────

    def open(self, connection: int) -> None:
        """A connection takes over: its greeting is still to come, and its counters are reset."""
        soft = self.soft
        soft.phase = Phase.DOWN
        soft.connection = connection
        soft.transmitted = soft.number = soft.seen = soft.timed = 0
        soft.patience_s = FIRST_PATIENCE_S
        soft.refusal = ""

    def greet(self, out: Output, now: float, *, heard: bool) -> None:
        record = self.ledger.record
        hello = LinkHello(
            PROTOCOL_VERSION,
            self._broker,
            record.life,
            record.incarnation,
            record.received,
            heard,
            root=self.root,
        )
        out.send.append((self.soft.connection, hello))
        if not heard:
            self._set_alarm(out, now)

    def objection(self, hello: LinkHello) -> Objection | None:
        """Why the neighbour is refused, if its hello shows that it runs on an older copy of its
        state; raises `StaleState` if we do.

        A broker that crashes before it has journaled that it met the other has sent nothing in this
        pair of lives, because control and hellos wait for the disk. So neither side is considered
        stale then.
        """
        record, them = self.ledger.record, hello.broker
        remembered = self._remembered(hello)
        # Control that was numbered but never sent does not count: an older copy of us may have
        # reused the numbers before it meets the neighbour that has the first messages with them.
        sent = self.soft.offered if hello.incarnation == record.incarnation else 0
        if hello.known > record.life:
            raise StaleState(
                f"{them} knows {self._broker} in life {hello.known}, but we are in life "
                f"{record.life}: {way_out(self._broker)}"
            )
        if hello.incarnation >= record.incarnation and remembered > sent:
            raise StaleState(
                f"{them} has {remembered} control messages of {self._broker}, but we have sent "
                f"only {sent}: {way_out(self._broker)}"
            )
        if hello.incarnation < record.incarnation:
            return Objection(
                "StaleState",
                f"{self._broker} knows {them} in life {record.incarnation}, but it comes in life "
                f"{hello.incarnation}: {way_out(them)}",
            )
        gone = self.ledger.confirmed
        if hello.incarnation == record.incarnation and remembered < gone:
            return Objection(
                "StaleState",
                f"{them} has acknowledged {gone} control messages of {self._broker}, but has "
                f"only {remembered}: {way_out(them)}",
            )
        return None

    def _remembered(self, hello: LinkHello) -> int:
        """How many of our messages of this life the neighbour has."""
        return hello.received if hello.known == self.ledger.record.life else 0

    def refuse(self, why: str) -> None:
        self.soft.refusal = why

    def resume(self, hello: LinkHello, out: Output, now: float) -> None:
        """Both hellos are known: drop what the neighbour has, send it the rest."""
        remembered = self._remembered(hello)
        self.ledger.trim(remembered)
        self.soft.transmitted = self.soft.kept_from = remembered
        self.transmit(out, now)

    def drop(self, out: Output) -> None:
        self.soft.connection = 0
        self._cancel_alarm(out)

    # ── control ──────────────────────────────────────────────────────────────────────────

    def transmit(self, out: Output, now: float) -> None:
        """Send all control that was not sent on this connection yet."""
        soft, record = self.soft, self.ledger.record
        if not self.up or soft.transmitted == record.sent:
            return
        newest_first = islice(reversed(self.ledger.outbox), record.sent - soft.transmitted)
        waiting = [message for _, message in newest_first][::-1]
        for start in range(0, len(waiting), CONTROL_CHUNK):
            chunk = tuple(waiting[start : start + CONTROL_CHUNK])
            out.send.append((soft.connection, Control(soft.transmitted + 1, chunk)))
            soft.transmitted += len(chunk)
        soft.offered = max(soft.offered, soft.transmitted)
        if not soft.timed:
            soft.timed, soft.timed_at = soft.transmitted, now
        if soft.alarm_at <= now:  # postponing an alarm could delay older messages for ever
            self._set_alarm(out, now)

    def acknowledge(self, out: Output) -> None:
        out.send.append((self.soft.connection, ControlAck(self.ledger.record.received)))

    def acknowledged(self, ack: ControlAck, out: Output, now: float) -> None:
        if ack.received > self.soft.transmitted:
            raise ProtocolError(f"{self.neighbour} acknowledged messages that were never sent")
        self._take_time(ack.received, now)
        if self.ledger.trim(ack.received):
            self.soft.kept_from = ack.received
            self.soft.patience_s = FIRST_PATIENCE_S
            if self.ledger.outbox:
                self._set_alarm(out, now)
            else:
                self._cancel_alarm(out)

    def _take_time(self, received: int, now: float) -> None:
        soft = self.soft
        if soft.timed and received >= soft.timed:
            took_s = now - soft.timed_at
            before_s = soft.round_trip_s
            soft.round_trip_s = took_s if not before_s else before_s + (took_s - before_s) / 8
            soft.timed = 0

    def alarm(self, out: Output, now: float) -> None:
        """Silence for too long: greet again, or retransmit unacknowledged control."""
        soft, outbox = self.soft, self.ledger.outbox
        soft.patience_s = min(2 * soft.patience_s, LAST_PATIENCE_S)
        soft.alarm_at = 0.0
        if soft.phase is Phase.GREETING:
            self.greet(out, now, heard=False)
        elif self.up and outbox:
            soft.timed = 0  # a retransmitted message cannot be timed
            soft.transmitted = outbox[0][0] - 1
            self.transmit(out, now)

    # ── publications ─────────────────────────────────────────────────────────────────────

    def publish(self, batch: list[Publication], out: Output) -> None:
        if not self.up:
            self.soft.lost += len(batch)
            return
        out.send.append((self.soft.connection, Publications(*self.count(), batch)))

    def count(self) -> tuple[int, int]:
        """The soft counters of the next frame of events."""
        self.soft.number += 1
        return self.soft.number, self.ledger.record.sent

    def admit(self, frame: Publications | Strays) -> bool:
        """False for a frame that is a duplicate, late, or ahead of missing control."""
        soft = self.soft
        if frame.number <= soft.seen:
            return False
        soft.seen = frame.number
        if frame.after > self.ledger.record.received:
            soft.overtaken += len(frame.batch)
            return False
        return True

    def _set_alarm(self, out: Output, now: float) -> None:
        self.soft.alarm_at = now + self.soft.patience_s
        out.timers.append(SetTimer(self._alarm, self.soft.alarm_at))

    def _cancel_alarm(self, out: Output) -> None:
        self.soft.alarm_at = 0.0
        out.timers.append(CancelTimer(self._alarm))


def way_out(broker: str) -> str:
    """What to do with a broker whose state is older than what its peers have seen of it."""
    return (
        f"{broker} runs on an older copy of its state (a restored backup, or a clock that was set "
        f"back while it had none); stop {broker}, move its data folder away, and start it "
        "without: it joins the overlay again, and its clients reconnect"
    )
