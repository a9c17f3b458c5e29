"""The delivery machine of one broker: every door takes the time and writes into `Effects`.

    root:        host, published, advance, read_done, acknowledged
    neighbours:  receive (by the table `DOORS`), linked
    clients:     start, end, attach, detach, acked
    time:        alarm

Everything here is soft. After a restart the broker calls `host` for its pubends, `restore` for its
floors and `start` for what its subscriptions are owed; streams come back by talking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from motet.errors import InvariantError, MisuseError, ProtocolError
from motet.model import OpId
from motet.protocol.contract import CancelTimer, SetTimer, TimerKey
from motet.protocol.delivery.curiosity import MOST_RANGES, Liveness
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.messages import AckExpected, AckUp, DeliveryFrame, Knowledge, Nack
from motet.protocol.delivery.outstream import OutStream
from motet.protocol.delivery.ranges import Range
from motet.protocol.delivery.relay import Relay
from motet.protocol.delivery.spans import Record, Span, check, clip
from motet.protocol.delivery.state import (
    Effects,
    Floor,
    Limits,
    ReadWanted,
    SilenceWanted,
    Started,
    Stream,
)
from motet.protocol.delivery.subend import Position
from motet.protocol.publication import Publication


class Reader:
    """One client of this broker, in all pubends."""

    __slots__ = ("cursors", "positions", "present")

    def __init__(self) -> None:
        self.present = False
        self.cursors: dict[str, int] = {}
        """What the client said it has processed, of pubends that it has no position in yet."""
        self.positions: dict[str, Position] = {}


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
        self._streams: dict[str, Stream] = {}
        self._readers: dict[str, Reader] = {}
        self._floors: dict[str, int] = {}

    # ── the pubend's own broker ──────────────────────────────────────────────────────────

    def host(self, pubend: str, last: int, now: float, out: Effects) -> None:
        """This broker has the pubend's log, whose last decided tick is `last`."""
        stream = self._stream(pubend)
        stream.hosted = True
        stream.frontier = max(stream.frontier, last)
        stream.expected = stream.frontier
        if last:
            stream.known.add(1, last)
        self._expect(stream, stream.frontier, out)
        at = now + self._liveness.ack_expected_s
        out.timers.append(SetTimer(("delivery", "expect", pubend), at))

    def published(
        self,
        pubend: str,
        ticks: list[int],
        batch: list[Publication],
        now: float,
        out: Effects,
        records: tuple[Record, ...] = (),
    ) -> None:
        """Durable in the log: these publications and records, above everything before."""
        stream = self._hosted(pubend)
        since = stream.frontier + 1
        upto = max(ticks[-1] if ticks else 0, records[-1].tick if records else 0)
        if upto < since or (ticks and ticks[0] < since):
            raise MisuseError(f"ticks of {pubend} must be above {stream.frontier}")
        self._news(stream, Span(since, upto, ticks, batch, records), None, now, out)

    def advance(self, pubend: str, upto: int, now: float, out: Effects) -> None:
        """It is durable that no event gets a tick up to here any more."""
        stream = self._hosted(pubend)
        if upto > stream.frontier:
            self._news(stream, Span(stream.frontier + 1, upto), None, now, out)

    def read_done(self, want: ReadWanted, spans: list[Span], now: float, out: Effects) -> None:
        """The log was read: adjacent spans from the beginning of what was wanted, perhaps not to
        its end. What was trimmed comes as a lost span."""
        stream = self._hosted(want.pubend)
        upto = want.since - 1
        for span in spans:
            upto = span.upto
            cut = span is spans[-1] and upto < want.upto
            self._again(stream, span, None, cut, stream.frontier, now, out)
        if not spans:
            stream.asked.answered(want.since, want.upto, True)

    def acknowledged(self, pubend: str) -> int:
        """Everything up to here is done with everywhere and may go from the log."""
        stream = self._hosted(pubend)
        return min(self._settled(stream, stream.frontier), stream.frontier)

    def drop(self, pubend: str, out: Effects) -> None:
        """The pubend is gone for good: nothing of it is owed any more."""
        stream = self._streams.pop(pubend, None)
        if stream is None:
            return
        for client in stream.subend.positions:
            del self._readers[client].positions[pubend]
        for kind in ("ask", "ack", "expect", "delay"):
            out.timers.append(CancelTimer(("delivery", kind, pubend)))

    # ── neighbours ───────────────────────────────────────────────────────────────────────

    def receive(self, neighbour: str, frame: DeliveryFrame, now: float, out: Effects) -> None:
        try:
            DOORS[type(frame)](self, neighbour, frame, now, out)
        except InvariantError as error:
            raise ProtocolError(f"{neighbour} contradicts what is known: {error}") from error

    def linked(self, neighbour: str, now: float, out: Effects) -> None:
        """A link came up: what was told before may not have arrived."""
        for stream in self._streams.values():
            upstream = self._interest.upstream(stream.pubend)
            if neighbour == upstream:
                stream.asked.clear()
                stream.deep_asked.clear()
                stream.curiosity.hurry(stream.frontier, now)
                stream.deep.hurry(stream.frontier, now)
                self._reconsider(stream, now, out)
            elif stream.frontier:
                found = stream.outs.get(neighbour)
                if found is not None:
                    found.curious.clear()
                    found.deep.clear()
                self._expect(stream, stream.frontier, out, only=neighbour)

    def _on_knowledge(self, neighbour: str, frame: Knowledge, now: float, out: Effects) -> None:
        stream = self._stream(frame.pubend)
        if stream.hosted:
            raise ProtocolError(f"{neighbour} sends knowledge of {frame.pubend}, which is ours")
        check(frame.span)
        if frame.again or frame.span.lost:
            self._again(stream, frame.span, neighbour, frame.cut, frame.asof, now, out)
        else:
            self._news(stream, frame.span, neighbour, now, out)

    def _on_nack(self, neighbour: str, frame: Nack, now: float, out: Effects) -> None:
        stream = self._stream(frame.pubend)
        if len(frame.ranges) > MOST_RANGES or any(not 0 <= a <= b for a, b in frame.ranges):
            raise ProtocolError(f"{neighbour} sends a nack with malformed ranges")
        told = stream.out(neighbour, stream.frontier + 1)
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
            if cut:
                break
        if unknown:
            self._ask(stream, unknown, frame.asof, now, out)

    def _on_ack(self, neighbour: str, frame: AckUp, now: float, out: Effects) -> None:
        stream = self._stream(frame.pubend)
        stream.out(neighbour, stream.frontier + 1).acknowledge(frame.upto)
        self._arm_ack(stream, now, out)

    def _on_expected(self, neighbour: str, frame: AckExpected, now: float, out: Effects) -> None:
        stream = self._stream(frame.pubend)
        if stream.hosted:
            raise ProtocolError(f"{neighbour} expects acks of {frame.pubend}, which is ours")
        stream.frontier = max(stream.frontier, frame.upto)
        self._expect(stream, frame.upto, out, source=neighbour)
        self._reconsider(stream, now, out, hurry=frame.upto)
        self._acknowledge(stream, frame.upto, out, repeat=True)

    def _expect(
        self,
        stream: Stream,
        upto: int,
        out: Effects,
        source: str | None = None,
        only: str | None = None,
    ) -> None:
        """Ask those for an acknowledgement who have not given it; tell them silence before."""
        for neighbour in self._wanting(stream):
            told = stream.outs.get(neighbour)
            if neighbour == source or (only is not None and neighbour != only):
                continue
            if told is not None and told.acked is not None and told.acked >= upto:
                continue
            silence = told.untold() if told is not None else None
            if silence is not None:
                out.send.append((neighbour, Knowledge(stream.pubend, Span(*silence))))
            out.send.append((neighbour, AckExpected(stream.pubend, upto)))

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def restore(self, pubend: str, floor: int) -> None:
        """After a restart: a floor that was made durable before."""
        self._floors[pubend] = floor
        self._stream(pubend).floor = floor

    def start(
        self,
        client: str,
        op: OpId,
        pubend: str,
        tick: int,
        now: float,
        out: Effects,
        since: int | None = None,
    ) -> None:
        """The start tick of a subscription is known. With `since`, which is older, the client
        wants everything above that, read from the pubend's log."""
        stream = self._stream(pubend)
        self._begin(stream, client, op, tick, out, since)
        stream.frontier = max(stream.frontier, tick) if not stream.hosted else stream.frontier
        stream.subend.advance(out.deliver)
        self._pump(stream, out)
        self._reconsider(stream, now, out)

    def _begin(
        self,
        stream: Stream,
        client: str,
        op: OpId,
        tick: int,
        out: Effects,
        since: int | None = None,
    ) -> None:
        reader = self._readers.setdefault(client, Reader())
        subend = stream.subend
        position = subend.positions.get(client)
        if position is not None and op.sequence in position.starts:
            return
        begin = tick if since is None else min(since, tick)
        if position is None:
            given = max(begin, reader.cursors.pop(stream.pubend, 0))
            if begin == tick:
                given = max(given, stream.floor)
            position = Position(client, given)
            subend.positions[client] = reader.positions[stream.pubend] = position
            position.begin(op.sequence, begin)
            if begin < tick:
                position.deep_upto = position.deep_asof = tick
            if reader.present:
                subend.place(position)
        else:
            position.begin(op.sequence, begin)
        out.started.append(Started(client, op, stream.pubend, tick))

    def end(self, client: str, op: OpId, now: float, out: Effects) -> None:
        """A subscription is over: nothing more is owed to it."""
        reader = self._readers.get(client)
        if reader is None:
            return
        for pubend, position in list(reader.positions.items()):
            if position.starts.pop(op.sequence, None) is not None and not position.starts:
                stream = self._streams[pubend]
                stream.subend.remove(position)
                del reader.positions[pubend]
                self._reconsider(stream, now, out)
                self._arm_ack(stream, now, out)
        if not reader.positions and not reader.present:
            del self._readers[client]

    def attach(self, client: str, cursors: Mapping[str, int], now: float, out: Effects) -> None:
        """The client is here, and has processed each pubend up to its cursor."""
        reader = self._readers.setdefault(client, Reader())
        if reader.present:
            self.detach(client, now, out)
            reader = self._readers.setdefault(client, Reader())
        reader.present = True
        reader.cursors = {p: t for p, t in cursors.items() if p not in reader.positions}
        for pubend, position in reader.positions.items():
            stream = self._streams[pubend]
            floor = stream.floor if not position.deep_upto else 0
            position.given = max(position.given, cursors.get(pubend, 0), floor)
            position.acked = max(position.acked, position.given)
            stream.subend.place(position)
            stream.subend.advance(out.deliver)
            self._pump(stream, out)
            self._reconsider(stream, now, out)
            self._arm_ack(stream, now, out)

    def detach(self, client: str, now: float, out: Effects) -> None:
        """The client's connection is gone. What it is owed stays owed."""
        reader = self._readers.get(client)
        if reader is None:
            return
        reader.present = False
        for pubend, position in reader.positions.items():
            stream = self._streams[pubend]
            stream.subend.absent(position)
            self._reconsider(stream, now, out)
        if not reader.positions:
            del self._readers[client]

    def acked(self, client: str, pubend: str, tick: int, now: float, out: Effects) -> None:
        """The client has processed everything up to a tick, durably if it cares."""
        reader = self._readers.get(client)
        position = reader.positions.get(pubend) if reader is not None else None
        if position is None:
            return
        stream = self._streams[pubend]
        position.acknowledge(tick)
        if client in stream.subend.behind:
            stream.subend.pump(position, out.deliver)
            stream.subend.advance(out.deliver)
            self._reconsider(stream, now, out)
        self._arm_ack(stream, now, out)

    # ── time ─────────────────────────────────────────────────────────────────────────────

    def alarm(self, key: TimerKey, now: float, out: Effects) -> None:
        _, kind, pubend = key
        stream = self._streams.get(str(pubend))
        if stream is None:
            return
        if kind == "ask":
            stream.wake_at = None
            self._reconsider(stream, now, out)
        elif kind == "ack":
            stream.ack_armed = False
            self._acknowledge(stream, stream.frontier, out)
        elif kind == "expect" and stream.hosted:
            if self._settled(stream, stream.expected) < stream.expected:
                self._expect(stream, stream.expected, out)
            stream.expected = stream.frontier
            out.timers.append(SetTimer(key, now + self._liveness.ack_expected_s))

    # ── knowledge ────────────────────────────────────────────────────────────────────────

    def _news(
        self, stream: Stream, span: Span, source: str | None, now: float, out: Effects
    ) -> None:
        """First-time knowledge: passed on at once, each tick once, whatever is missing before."""
        known = stream.known
        if span.since <= known.top:
            parts = known.missing(span.since, span.upto)
            if len(parts) != 1 or parts[0] != (span.since, span.upto):
                for low, high in parts:
                    self._news(stream, clip(span, low, high), source, now, out)
                return
        known.add(span.since, span.upto)
        if len(known) > self._limits.known_ranges:
            known.bridge_lowest(self._limits.known_ranges)
        stream.frontier = max(stream.frontier, span.upto)
        stream.memory.accumulate(span)
        masks = self._interest.masks(span.batch) if span.batch else []
        self._relay.spread(stream, span, masks, source, out.send)
        if span.records:
            self._note(stream, span, out)
        subend = stream.subend
        if subend.horizon is not None:
            if span.since == subend.horizon + 1:
                subend.pass_on(span, masks, out.deliver)
            subend.advance(out.deliver)
            if subend.behind:
                self._pump(stream, out)
            if subend.behind or stream.curiosity or subend.horizon < stream.frontier:
                self._reconsider(stream, now, out)
        stream.memory.bound(subend.horizon)

    def _again(
        self,
        stream: Stream,
        span: Span,
        source: str | None,
        cut: bool,
        asof: int,
        now: float,
        out: Effects,
    ) -> None:
        """Knowledge that somebody asked for: it goes where it is wanted, and nowhere else."""
        stream.memory.accumulate(span)
        stream.known.add(span.since, span.upto)
        if len(stream.known) > self._limits.known_ranges:
            stream.known.bridge_lowest(self._limits.known_ranges)
        if not stream.hosted:
            stream.frontier = max(stream.frontier, span.upto)
        stream.asked.answered(span.since, span.upto, cut)
        self._relay.repeat(stream, span, source, cut, asof, out.send)
        if span.records:
            self._note(stream, span, out)
        if cut:
            stream.curiosity.go_on(span.upto, now)
        if asof:
            stream.deep_asked.answered(span.since, span.upto, cut)
            if cut:
                stream.deep.go_on(span.upto, now)
            for position in list(stream.subend.behind.values()):
                if position.given < position.deep_upto and asof >= position.deep_asof:
                    stream.subend.pump(position, out.deliver, span)
        stream.subend.advance(out.deliver)
        self._pump(stream, out)
        self._reconsider(stream, now, out)
        stream.memory.bound(stream.subend.horizon)

    def _note(self, stream: Stream, span: Span, out: Effects) -> None:
        """Records that concern clients of ours. What is filtered by ticks may be known early."""
        for record in span.records:
            mask = self._interest.record_mask(record)
            way = self._interest.way(mask) if mask else None
            if way is None:
                continue
            client = record.op.client
            if client in way.several or any(name == client for name, _ in way.single):
                self._begin(stream, client, record.op, record.tick, out)

    def _pump(self, stream: Stream, out: Effects) -> None:
        subend = stream.subend
        for position in list(subend.behind.values()):
            subend.pump(position, out.deliver)
        if subend.horizon is not None:
            subend.advance(out.deliver)

    # ── curiosity ────────────────────────────────────────────────────────────────────────

    def _reconsider(
        self, stream: Stream, now: float, out: Effects, hurry: int | None = None
    ) -> None:
        """Ask for what is missing if it is time, and wake up when it is."""
        patient, urgent = stream.subend.needs(stream.frontier)
        stream.curiosity.sync(patient, urgent, now)
        deep, asof = stream.subend.deep_needs()
        stream.deep.sync([], deep, now)
        if hurry is not None:
            stream.curiosity.hurry(hurry, now)
        ranges = stream.curiosity.due(now) if stream.curiosity else []
        if ranges:
            self._ask(stream, ranges, 0, now, out)
        ranges = stream.deep.due(now) if stream.deep else []
        if ranges:
            self._ask(stream, ranges, asof, now, out)
        times = [t for t in (stream.curiosity.next_at(), stream.deep.next_at()) if t is not None]
        at = min(times, default=None)
        if at != stream.wake_at:
            stream.wake_at = at
            key = ("delivery", "ask", stream.pubend)
            out.timers.append(CancelTimer(key) if at is None else SetTimer(key, at))

    def _ask(
        self, stream: Stream, ranges: list[Range], asof: int, now: float, out: Effects
    ) -> None:
        """Pass a question on: to the log if it is here, else upstream, once."""
        asked = stream.deep_asked if asof else stream.asked
        ranges = asked.fresh(ranges, now)
        if not ranges:
            return
        if stream.hosted:
            for low, high in ranges:
                if low <= stream.frontier:
                    out.reads.append(self._read(stream, low, min(high, stream.frontier)))
                if high > stream.frontier:
                    out.silences.append(SilenceWanted(stream.pubend, high))
            return
        upstream = self._interest.upstream(stream.pubend)
        if upstream is not None:
            for at in range(0, len(ranges), MOST_RANGES):
                part = tuple(ranges[at : at + MOST_RANGES])
                out.send.append((upstream, Nack(stream.pubend, part, asof)))

    def _read(self, stream: Stream, since: int, upto: int) -> ReadWanted:
        limits = self._limits
        return ReadWanted(stream.pubend, since, upto, limits.piece_events, limits.piece_bytes)

    # ── acknowledgements ─────────────────────────────────────────────────────────────────

    def _wanting(self, stream: Stream) -> list[str]:
        """Neighbours downstream that may be owed something."""
        interest = self._interest
        upstream = None if stream.hosted else interest.upstream(stream.pubend)
        everything = interest.pass_all()
        return [
            each
            for each in interest.neighbours()
            if each != upstream and (interest.wants(each) or interest.bit(each) & everything)
        ]

    def _settled(self, stream: Stream, unlimited: int) -> int:
        """Everything up to here is done with below and at this broker."""
        if self._interest.waiting():
            return 0  # what it will be owed may be below the horizon of others
        least = unlimited
        own = stream.subend.settled()
        if own is not None:
            least = min(least, own)
        for neighbour in self._wanting(stream):
            told = stream.outs.get(neighbour)
            if told is None or told.acked is None:
                return 0
            least = min(least, told.acked)
        return least

    def _arm_ack(self, stream: Stream, now: float, out: Effects) -> None:
        if not stream.ack_armed:
            stream.ack_armed = True
            key = ("delivery", "ack", stream.pubend)
            out.timers.append(SetTimer(key, now + self._liveness.ack_delay_s))

    def _acknowledge(
        self, stream: Stream, unlimited: int, out: Effects, repeat: bool = False
    ) -> None:
        own = stream.subend.settled()
        if own is not None and own > stream.floor and not self._interest.waiting():
            stream.floor = own
            out.floors.append(Floor(stream.pubend, own))
        if stream.hosted:
            return
        upto = self._settled(stream, unlimited)
        upstream = self._interest.upstream(stream.pubend)
        if upstream is not None and upto and (upto > stream.ack_sent or repeat):
            stream.ack_sent = max(upto, stream.ack_sent)
            out.send.append((upstream, AckUp(stream.pubend, upto)))

    # ── streams ──────────────────────────────────────────────────────────────────────────

    def _stream(self, pubend: str) -> Stream:
        found = self._streams.get(pubend)
        if found is None:
            found = Stream(pubend, self._interest, self._liveness, self._limits)
            self._streams[pubend] = found
        return found

    def _hosted(self, pubend: str) -> Stream:
        stream = self._streams.get(pubend)
        if stream is None or not stream.hosted:
            raise MisuseError(f"{pubend} is not hosted here")
        return stream

    def validate(self) -> None:
        for stream in self._streams.values():
            stream.known.validate()
            stream.memory.validate()
            stream.subend.validate()
            for out in stream.outs.values():
                assert isinstance(out, OutStream)
                out.curious.validate()


DOORS: dict[type, Callable[[DeliveryMachine, str, Any, float, Effects], None]] = {
    Knowledge: DeliveryMachine._on_knowledge,
    Nack: DeliveryMachine._on_nack,
    AckUp: DeliveryMachine._on_ack,
    AckExpected: DeliveryMachine._on_expected,
}
"""What a neighbour may send. Every frame is legal in every state: state may be lost at any time."""
