"""The delivery machine of one broker. Every entry point writes to `Effects`, which hold the time.

    root:        host, published, recall, advance, read_done, expect, acknowledged, destroyed
    neighbours:  receive (by the table `DOORS`), linked, gone, unasked
    clients:     restore, started, effective; and those of `clients`
    tables:      tables_changed, pubends, unreachable
    time:        alarm

Everything here is soft. After a restart the broker calls `host` for its pubend, `restore` for its
floors and `clients.start` for its subscriptions; neighbours supply the rest on request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from motet.errors import InvariantError, MisuseError, ProtocolError
from motet.model.ids import LAST_TICK
from motet.protocol.contract import CancelTimer, SetTimer, TimerKey
from motet.protocol.delivery.clients import Clients
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.messages import AckExpected, AckUp, DeliveryFrame, Knowledge, Nack
from motet.protocol.delivery.neighbours import Acknowledgements, Nacks, Relay
from motet.protocol.delivery.spans import Range, Record, Span, StartRecord, check, clip
from motet.protocol.delivery.stream import (
    INFINITY,
    MOST_RANGES,
    Effects,
    Limits,
    Liveness,
    OutStream,
    ReadWanted,
    Stream,
)
from motet.protocol.publication import Publication

MOST_STREAMS = 65_536
"""Bounds the memory that a peer can fill with invented names."""


class DeliveryMachine:
    def __init__(
        self,
        interest: Interest,
        liveness: Liveness | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._interest = interest
        self._liveness = liveness or Liveness()
        self._limits = limits or Limits()
        self._relay = Relay(interest, self._limits)
        self._nacks = Nacks(interest, self._liveness, self._limits)
        self._acks = Acknowledgements(interest, self._liveness)
        self._streams: dict[str, Stream] = {}
        self.clients = Clients(interest, self._nacks, self._acks, self._stream)

    # ── the pubend's own broker ──────────────────────────────────────────────────────────

    def host(
        self,
        pubend: str,
        last: int,
        out: Effects,
        starts: tuple[StartRecord, ...] = (),
        cut: tuple[int, int] = (0, 0),
    ) -> None:
        """This broker has the pubend's log, whose last decided tick is `last`. `starts`: start
        records that other brokers may not know. `cut`: see `AckExpected.cut`."""
        stream = self._stream(pubend)
        stream.hosted = stream.subend.remembers_all = True
        stream.last_cut = cut
        self.clients.passed_cut(stream, cut, out)
        stream.frontier = max(stream.frontier, last)
        stream.last_event = last
        stream.expected = stream.frontier
        if last:
            stream.known.add(1, last)
        stream.note(starts)
        self._acks.expect(stream, stream.frontier, out)
        self._acks.expect_later(stream, out)

    def published(
        self,
        pubend: str,
        ticks: list[int],
        batch: list[Publication],
        out: Effects,
        records: tuple[Record, ...] = (),
    ) -> None:
        """These publications and records are durable in the log, above all earlier ticks."""
        stream = self._hosted(pubend)
        since = stream.frontier + 1
        upto = max(ticks[-1] if ticks else 0, records[-1].tick if records else 0)
        if upto < since or (ticks and ticks[0] < since):
            raise MisuseError(f"ticks of {pubend} must be above {stream.frontier}")
        stream.note(records)
        if ticks:
            stream.last_event = ticks[-1]
        self._news(stream, Span(since, upto, ticks, batch, records), None, out)
        self._acks.expect_later(stream, out)

    def recall(self, pubend: str, starts: Iterable[StartRecord]) -> None:
        """The subscribers' brokers may not know these starts, although they are in the log."""
        self._streams[pubend].note(tuple(starts))

    def advance(self, pubend: str, upto: int, out: Effects) -> None:
        """It is durable that no further event gets a tick up to here."""
        stream = self._hosted(pubend)
        if upto > stream.frontier:
            self._news(stream, Span(stream.frontier + 1, upto), None, out)

    def read_done(self, want: ReadWanted, spans: list[Span], out: Effects) -> None:
        """The log was read: adjacent spans from the beginning of the wanted range, possibly not to
        its end. Trimmed ticks are a lost span."""
        stream = self._hosted(want.pubend)
        upto = want.since - 1
        for span in spans:
            upto = span.upto
            cut = span is spans[-1] and upto < want.upto
            self._again(stream, span, None, cut, stream.frontier, out, want.upto)
        if not spans:
            stream.asked.answered(want.since, want.upto, True)

    def expect(self, pubend: str, out: Effects) -> None:
        """Ask for acknowledgements now instead of at the next reminder."""
        stream = self._hosted(pubend)
        self._acks.expect(stream, stream.frontier, out)

    def acknowledged(self, pubend: str) -> int:
        """Everything up to here is acknowledged by all brokers and may be trimmed from the log."""
        stream = self._hosted(pubend)
        return min(self._acks.settled(stream), stream.frontier)

    def owed(self, pubend: str) -> tuple[bool, list[str]]:
        """Whether some event of the hosted pubend is not acknowledged by everybody; and the
        neighbours that have not acknowledged it, "" for clients of this broker."""
        stream = self._hosted(pubend)
        if self._acks.settled(stream) >= stream.last_event:
            return False, []
        return True, self._acks.behind(stream, stream.last_event)

    def destroyed(self, pubend: str, out: Effects) -> None:
        """The pubend's broker has lost its log: events that have not arrived never will."""
        stream = self._streams.pop(pubend, None)
        if stream is None:
            return
        for client in stream.subend.positions:
            self.clients.destroyed(stream, client, out)
        for kind in ("ask", "ack", "expect", "delay", "gone"):
            out.timers.append(CancelTimer(("delivery", kind, pubend)))

    # ── neighbours ───────────────────────────────────────────────────────────────────────

    def receive(self, neighbour: str, frame: DeliveryFrame, out: Effects) -> None:
        try:
            DOORS[type(frame)](self, neighbour, frame, out)
        except InvariantError as error:
            raise ProtocolError(f"{neighbour} sent contradictory knowledge: {error}") from error

    def linked(self, neighbour: str, out: Effects) -> None:
        """A link came up: frames sent before may not have arrived."""
        for stream in self._streams.values():
            upstream = self._interest.upstream(stream.pubend)
            if neighbour == upstream:
                stream.inquired_at = -INFINITY
                stream.silence_requests.hurry()
                stream.asked.clear()
                stream.deep_asked.clear()
                stream.curiosity.hurry(stream.frontier, out.now)
                stream.deep.hurry(stream.frontier, out.now)
                self._nacks.reconsider(stream, out)
            elif stream.frontier:
                found = stream.outs.get(neighbour)
                if found is not None:
                    found.curious.clear()
                    found.deep.clear()
                self._acks.expect(stream, stream.frontier, out, only=neighbour)

    def gone(self, neighbour: str, out: Effects) -> None:
        """The overlay has changed: the broker is not a neighbour any more."""
        for stream in self._streams.values():
            stream.outs.pop(neighbour, None)
        self.tables_changed(out)

    def unasked(self, asker: str) -> None:
        """A member of a neighbouring cell is gone: drop its requests."""
        for stream in self._streams.values():
            stream.outs.pop(asker, None)

    def _on_knowledge(self, neighbour: str, frame: Knowledge, out: Effects) -> None:
        stream = self._stream(frame.pubend)
        if stream.hosted:
            return  # the sender does not know where the pubend is, and sends to all neighbours
        if self._interest.upstream(frame.pubend) is None:
            return  # it is gone; or control has not announced it yet, and it is requested later
        stream.alone = False
        check(frame.span)
        if stream.curiosity:
            stream.curiosity.heard(out.now)
        if frame.again or frame.span.lost:
            self._again(stream, frame.span, neighbour, frame.cut, frame.asof, out)
        else:
            self._news(stream, frame.span, neighbour, out)

    def _on_nack(self, neighbour: str, frame: Nack, out: Effects) -> None:
        stream = self._stream(frame.pubend)
        if len(frame.ranges) > MOST_RANGES or any(not 0 <= a <= b for a, b in frame.ranges):
            raise ProtocolError(f"{neighbour} sent a nack with malformed ranges")
        told = stream.out(neighbour, stream.frontier + 1)
        stream.members = stream.members or "/" in neighbour
        if not frame.ranges:
            told.inquires = True
            if stream.hosted:
                self._acks.expect(stream, stream.frontier, out, only=neighbour)
            else:
                self._nacks.inquire(stream, out)
            return
        if frame.asof:
            told.need(frame.ranges[0][0])
        unknown: list[Range] = []
        for low, high in frame.ranges:
            if frame.asof and not stream.hosted:
                missing, cut = [(low, high)], False
            else:
                asof = stream.frontier if stream.hosted else 0
                missing, cut = self._relay.answer(stream, neighbour, low, high, asof, out.send)
            for begin, end in missing:
                told.want(begin, end, frame.asof)
            unknown += missing
            if cut and not frame.asof:  # the past is read range by range
                break
        if unknown:
            self._nacks.ask(stream, unknown, frame.asof, out)

    def _on_ack(self, neighbour: str, frame: AckUp, out: Effects) -> None:
        stream = self._stream(frame.pubend)
        stream.out(neighbour, stream.frontier + 1).acknowledge(frame.upto)
        self._acks.arm(stream, out)

    def _on_expected(self, neighbour: str, frame: AckExpected, out: Effects) -> None:
        stream = self._stream(frame.pubend)
        if stream.hosted or self._interest.upstream(frame.pubend) != neighbour:
            return  # the sender does not know where the pubend is, and asks all neighbours
        stream.silence_requests.hurry()
        stream.frontier = max(stream.frontier, frame.upto)
        if frame.starts is not None:
            self.clients.note(stream, frame.starts, out)
            stream.cleared = max(stream.cleared, frame.upto)
            self.clients.unheard(stream, frame.starts, frame.upto, out)
            self._nacks.answered(stream, out)
            if stream.held or any(each.again for each in stream.subend.behind.values()):
                self.clients.catch_up(stream, out)
        self.clients.passed_cut(stream, frame.cut, out)
        self._acks.expect(stream, frame.upto, out, frame.starts, cut=frame.cut)
        self._nacks.reconsider(stream, out, hurry=frame.upto)
        self._acks.send(stream, out, repeat=True)

    def again(self, neighbour: str, pinned: Mapping[str, int], out: Effects) -> None:
        """A client is behind this neighbour now: what the neighbour had acknowledged before, above
        these ticks, did not include it."""
        for pubend, tick in pinned.items():
            stream = self._streams.get(pubend)
            if stream is None:
                continue
            told = stream.outs.get(neighbour)
            if told is not None and neighbour != self._interest.upstream(pubend):
                told.need(tick + 1)
            stream.ack_sent = -1
            self._acks.arm(stream, out)

    def repeat(self, pubends: Iterable[str], out: Effects) -> None:
        """Acknowledge these again, even if nothing has changed."""
        for pubend in pubends:
            stream = self._streams.get(pubend)
            if stream is not None:
                stream.ack_sent = -1
                self._acks.arm(stream, out)

    def frontier(self, pubend: str) -> int:
        """The highest tick heard of, also before a restart."""
        stream = self._streams.get(pubend)
        return max(stream.frontier, stream.floor) if stream is not None else 0

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def unclear(self, pubend: str) -> None:
        """A subscription has arrived that may have started here without us knowing."""
        self._stream(pubend).cleared = 0

    def restore(self, pubend: str, floor: int) -> None:
        """After a restart: the floor in the durable state."""
        stream = self._stream(pubend)
        stream.floor = floor
        stream.cleared = max(stream.cleared, floor)

    def started(self, pubends: Iterable[str], out: Effects) -> None:
        """Several starts were reported in these pubends."""
        for pubend in pubends:
            self.clients.catch_up(self._stream(pubend), out)

    def effective(self, client: str, out: Effects) -> None:
        """Control has reported all starts of a client's subscription: held positions may go."""
        self.clients.effective(client, out)
        self.tables_changed(out)

    def pubends(self) -> list[str]:
        return list(self._streams)

    def unreachable(self, pubend: str, out: Effects) -> None:
        """The routing tables have lost the path to a pubend. It may come back."""
        self._stream(pubend)
        at = out.now + self._liveness.gone_s
        out.timers.append(SetTimer(("delivery", "gone", pubend), at))

    def tables_changed(self, out: Effects) -> None:
        """A neighbour whose acknowledgement is missing may not want anything any more."""
        for stream in self._streams.values():
            self._acks.arm(stream, out)

    # ── time ─────────────────────────────────────────────────────────────────────────────

    def alarm(self, key: TimerKey, out: Effects) -> None:
        _, kind, pubend = key
        stream = self._streams.get(str(pubend))
        if stream is None:
            return
        if kind == "ask":
            # The clock may be a rounding error early.
            out.now = max(out.now, stream.wake_at or out.now)
            stream.wake_at = None
            self._nacks.reconsider(stream, out)
        elif kind == "delay":
            self._nacks.delayed(stream, out)
        elif kind == "gone":
            if not stream.hosted and self._interest.upstream(stream.pubend) is None:
                self.clients.left_alone(stream, out)
        elif kind == "ack":
            stream.ack_armed = False
            self._acks.send(stream, out)
        elif kind == "expect" and stream.hosted:
            self._acks.remind(stream, out)

    # ── knowledge ────────────────────────────────────────────────────────────────────────

    def _news(self, stream: Stream, span: Span, source: str | None, out: Effects) -> None:
        """First-time knowledge: forwarded at once, each tick once, despite gaps before it."""
        known = stream.known
        if span.since <= known.top:
            parts = known.missing(span.since, span.upto)
            if len(parts) != 1 or parts[0] != (span.since, span.upto):
                for low, high in parts:
                    self._news(stream, clip(span, low, high), source, out)
                return
        known.add(span.since, span.upto)
        if len(known) > self._limits.known_ranges:
            known.bridge_lowest(self._limits.known_ranges)
        stream.frontier = max(stream.frontier, span.upto)
        stream.memory.accumulate(span)
        if not stream.hosted:
            stream.clear(span)
        masks = self._interest.masks(span.batch) if span.batch else []
        self._relay.spread(stream, span, masks, source, out.send)
        if span.records:
            self.clients.note(stream, span.records, out)
        subend = stream.subend
        if subend.horizon is not None and span.since == subend.horizon + 1:
            subend.pass_on(span, masks, out.deliver)
        if (
            stream.held
            or subend.behind
            or subend.merged
            or stream.curiosity
            or self.clients.holding
            or self.clients.gates.waiting
            or (subend.horizon is not None and subend.horizon < stream.frontier)
        ):
            self.clients.catch_up(stream, out)
        stream.memory.bound(subend.horizon)

    def _again(
        self,
        stream: Stream,
        span: Span,
        source: str | None,
        cut: bool,
        asof: int,
        out: Effects,
        end: int = LAST_TICK,
    ) -> None:
        """Requested knowledge: it goes only to neighbours and clients that want it. `end`: the
        request that it answers went so far."""
        stream.memory.accumulate(span)
        if not stream.hosted:
            stream.clear(span)
        stream.known.add(span.since, span.upto)
        if len(stream.known) > self._limits.known_ranges:
            stream.known.bridge_lowest(self._limits.known_ranges)
        if not stream.hosted:
            stream.frontier = max(stream.frontier, span.upto)
        stream.asked.answered(span.since, span.upto, cut)
        self._relay.repeat(stream, span, source, cut, asof, out.send)
        if span.records:
            self.clients.note(stream, span.records, out)
        if cut:
            stream.curiosity.go_on(span.since, span.upto, out.now, end)
        if asof:
            stream.deep_asked.begun(span.since, span.upto)
            if cut:
                stream.deep.go_on_behind(span.since, span.upto, out.now)
            for position in list(stream.subend.behind.values()):
                if position.given < position.deep_upto and asof >= position.deep_asof:
                    stream.subend.pump(position, out.deliver, span)
        self.clients.catch_up(stream, out)
        stream.memory.bound(stream.subend.horizon)

    # ── streams ──────────────────────────────────────────────────────────────────────────

    def _stream(self, pubend: str) -> Stream:
        found = self._streams.get(pubend)
        if found is None:
            if len(self._streams) >= MOST_STREAMS:
                raise ProtocolError(f"more than {MOST_STREAMS} pubends")
            found = Stream(pubend, self._interest, self._liveness, self._limits)
            self._streams[pubend] = found
        return found

    def _hosted(self, pubend: str) -> Stream:
        stream = self._streams.get(pubend)
        if stream is None or not stream.hosted:
            raise MisuseError(f"{pubend} is not hosted here")
        return stream

    def validate(self) -> None:
        self.clients.validate()
        for stream in self._streams.values():
            stream.known.validate()
            stream.memory.validate()
            stream.subend.validate()
            for out in stream.outs.values():
                assert isinstance(out, OutStream)
                out.curious.validate()


DOORS: dict[type, Callable[[DeliveryMachine, str, Any, Effects], None]] = {
    Knowledge: DeliveryMachine._on_knowledge,
    Nack: DeliveryMachine._on_nack,
    AckUp: DeliveryMachine._on_ack,
    AckExpected: DeliveryMachine._on_expected,
}
"""Frames from neighbours. Each is legal in every state, because state may be lost at any time."""
