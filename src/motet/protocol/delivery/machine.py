"""The delivery machine of one broker: every door takes the time and writes into `Effects`.

    root:        host, published, advance, read_done, expect, acknowledged, destroyed
    neighbours:  receive (by the table `DOORS`), linked, gone, unasked
    clients:     restore, start, lift, effective, end, attach, detach, acked; and, of `durables`:
                 recall, done, ready, begun; and, of `merging`: awaits, blocked
    tables:      tables_changed, pubends, unreachable
    time:        alarm

Everything here is soft. After a restart the broker calls `host` for its pubends, `restore` for its
floors and `start` for what its subscriptions are owed; streams come back by talking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from motet.errors import InvariantError, MisuseError, ProtocolError
from motet.model import OpId
from motet.protocol.contract import CancelTimer, SetTimer, TimerKey
from motet.protocol.delivery.acknowledging import Acknowledging
from motet.protocol.delivery.asking import Asking
from motet.protocol.delivery.clients import Clients
from motet.protocol.delivery.curiosity import MOST_RANGES, Liveness
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.messages import AckExpected, AckUp, DeliveryFrame, Knowledge, Nack
from motet.protocol.delivery.outstream import OutStream
from motet.protocol.delivery.ranges import Range
from motet.protocol.delivery.reader import Durables, Merging
from motet.protocol.delivery.relay import Relay
from motet.protocol.delivery.spans import Record, Span, StartRecord, check, clip
from motet.protocol.delivery.state import INFINITY, Effects, Limits, ReadWanted, Stream
from motet.protocol.publication import Publication

MOST_STREAMS = 65_536
"""A peer that makes up names must not fill the memory."""


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
        self._asking = Asking(interest, self._liveness, self._limits)
        self._acks = Acknowledging(interest, self._liveness)
        self._streams: dict[str, Stream] = {}
        self._clients = Clients(interest, self._asking, self._acks, self._stream)
        self.durables: Durables = self._clients
        self.merging: Merging = self._clients

    # ── the pubend's own broker ──────────────────────────────────────────────────────────

    def host(
        self,
        pubend: str,
        last: int,
        now: float,
        out: Effects,
        starts: tuple[StartRecord, ...] = (),
        cut: tuple[int, int] = (0, 0),
    ) -> None:
        """This broker has the pubend's log, whose last decided tick is `last`. `starts` are the
        start records that may be unknown to others; `cut` is the last cut, see `AckExpected`."""
        stream = self._stream(pubend)
        stream.hosted = True
        stream.last_cut = cut
        self._clients.passed_cut(stream, cut, now, out)
        stream.frontier = max(stream.frontier, last)
        stream.expected = stream.frontier
        if last:
            stream.known.add(1, last)
        stream.note(starts)
        self._acks.expect(stream, stream.frontier, out)
        self._acks.expect_later(stream, now, out)

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
        stream.note(records)
        self._news(stream, Span(since, upto, ticks, batch, records), None, now, out)
        self._acks.expect_later(stream, now, out)

    def recall(self, pubend: str, starts: Iterable[StartRecord]) -> None:
        """Starts that are in the log are perhaps not known where they belong."""
        self._streams[pubend].note(tuple(starts))

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

    def expect(self, pubend: str, out: Effects) -> None:
        """Somebody waits for acknowledgements: ask for them now."""
        stream = self._hosted(pubend)
        self._acks.expect(stream, stream.frontier, out)

    def acknowledged(self, pubend: str) -> int:
        """Everything up to here is done with everywhere and may go from the log."""
        stream = self._hosted(pubend)
        return min(self._acks.settled(stream), stream.frontier)

    def destroyed(self, pubend: str, now: float, out: Effects) -> None:
        """The log is gone with its broker's memory: what has not come never will."""
        stream = self._streams.pop(pubend, None)
        if stream is None:
            return
        for client in stream.subend.positions:
            self._clients.destroyed(stream, client, now, out)
        for kind in ("ask", "ack", "expect", "delay", "gone"):
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
                stream.inquired_at = -INFINITY
                stream.hush.hurry()
                stream.asked.clear()
                stream.deep_asked.clear()
                stream.curiosity.hurry(stream.frontier, now)
                stream.deep.hurry(stream.frontier, now)
                self._asking.reconsider(stream, now, out)
            elif stream.frontier:
                found = stream.outs.get(neighbour)
                if found is not None:
                    found.curious.clear()
                    found.deep.clear()
                self._acks.expect(stream, stream.frontier, out, only=neighbour)

    def gone(self, neighbour: str, now: float, out: Effects) -> None:
        """The overlay has changed: this broker is no neighbour any more."""
        for stream in self._streams.values():
            stream.outs.pop(neighbour, None)
        self.tables_changed(now, out)

    def unasked(self, asker: str) -> None:
        """A member of a neighbouring cell is gone, and with it what it had asked."""
        for stream in self._streams.values():
            stream.outs.pop(asker, None)

    def _on_knowledge(self, neighbour: str, frame: Knowledge, now: float, out: Effects) -> None:
        stream = self._stream(frame.pubend)
        if stream.hosted:
            return  # it does not know where the pubend is, and tells everybody
        if self._interest.upstream(frame.pubend) is None:
            return  # it is gone; or control has not told of it yet, then it is asked for later
        stream.alone = False
        check(frame.span)
        if stream.curiosity:
            stream.curiosity.heard(now)
        if frame.again or frame.span.lost:
            self._again(stream, frame.span, neighbour, frame.cut, frame.asof, now, out)
        else:
            self._news(stream, frame.span, neighbour, now, out)

    def _on_nack(self, neighbour: str, frame: Nack, now: float, out: Effects) -> None:
        stream = self._stream(frame.pubend)
        if len(frame.ranges) > MOST_RANGES or any(not 0 <= a <= b for a, b in frame.ranges):
            raise ProtocolError(f"{neighbour} sends a nack with malformed ranges")
        told = stream.out(neighbour, stream.frontier + 1)
        stream.members = stream.members or "/" in neighbour
        if not frame.ranges:
            told.inquires = True
            if stream.hosted:
                self._acks.expect(stream, stream.frontier, out, only=neighbour)
            else:
                self._asking.inquire(stream, now, out)
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
            self._asking.ask(stream, unknown, frame.asof, now, out)

    def _on_ack(self, neighbour: str, frame: AckUp, now: float, out: Effects) -> None:
        stream = self._stream(frame.pubend)
        stream.out(neighbour, stream.frontier + 1).acknowledge(frame.upto)
        self._acks.arm(stream, now, out)

    def _on_expected(self, neighbour: str, frame: AckExpected, now: float, out: Effects) -> None:
        stream = self._stream(frame.pubend)
        if stream.hosted or self._interest.upstream(frame.pubend) != neighbour:
            return  # who does not know where the pubend is asks everybody
        stream.hush.hurry()
        stream.frontier = max(stream.frontier, frame.upto)
        if frame.starts is not None:
            self._clients.note(stream, frame.starts, out)
            stream.cleared = max(stream.cleared, frame.upto)
            self._clients.unheard(stream, frame.starts, frame.upto, now, out)
            stream.inquired_at = -INFINITY
            if stream.held or any(each.again for each in stream.subend.behind.values()):
                self._clients.catch_up(stream, now, out)
        self._clients.passed_cut(stream, frame.cut, now, out)
        self._acks.expect(stream, frame.upto, out, frame.starts, cut=frame.cut)
        self._asking.reconsider(stream, now, out, hurry=frame.upto)
        self._acks.send(stream, out, repeat=True)

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def restore(self, pubend: str, floor: int) -> None:
        """After a restart: a floor that was made durable before."""
        stream = self._stream(pubend)
        stream.floor = floor
        stream.cleared = max(stream.cleared, floor)

    def start(
        self,
        client: str,
        op: OpId,
        pubend: str,
        tick: int,
        now: float,
        out: Effects,
        tentative: bool = False,
    ) -> None:
        """The start tick of a subscription is known. A `tentative` one waits for a `switch`."""
        stream = self._stream(pubend)
        self._clients.begin(stream, client, op, tick, out, tentative)
        stream.subend.positions[client].told = True
        if not stream.hosted:
            stream.frontier = max(stream.frontier, tick)
        self._clients.catch_up(stream, now, out)

    def switch(
        self, op: OpId, pubend: str, tick: int, ended: bool, now: float, out: Effects
    ) -> None:
        """A cut: a subscription begins, or ends, above this tick."""
        stream = self._streams.get(pubend)
        if stream is not None and self._clients.switch(stream, op, tick, ended):
            self._clients.catch_up(stream, now, out)

    def passed(self, op: OpId, pubends: Iterable[str]) -> bool | None:
        """Is a subscription that has ended done with everything up to its end in these? None: not
        before its client acknowledges more."""
        return self._clients.passed(op, pubends)

    def lift(
        self, op: OpId, pubend: str, tick: int, now: float, out: Effects, *, over: bool = False
    ) -> None:
        """A subscription is owed nothing up to this tick any more; if it is `over` there, nor above
        before it starts again."""
        stream = self._streams.get(pubend)
        if stream is not None:
            self._clients.lift(stream, op, tick, now, out)
            if over:
                self._clients.lapse(stream, op, now, out)

    def effective(self, client: str, now: float, out: Effects) -> None:
        """Control has told all start ticks of a client's subscription: who was held may go."""
        self._clients.effective(client, now, out)
        self.tables_changed(now, out)

    def end(self, client: str, op: OpId, now: float, out: Effects) -> None:
        """A subscription is over: nothing more is owed to it. In total order, `awaits` follows."""
        self._clients.end(client, op, now, out)

    def attach(
        self,
        client: str,
        cursors: Mapping[str, int],
        now: float,
        out: Effects,
        awaited: Iterable[str] | None = None,
        hold: bool = False,
        durable: bool = False,
        resumes: bool = False,
    ) -> None:
        """The client is here, and has processed each pubend up to its cursor; has it only, if it
        `resumes`. With `awaited`, see `Merging`, it wants all pubends in one order. With `hold`,
        what it has not begun to read waits until it is `ready`. See `Floor` for durable ones."""
        self._clients.attach(client, cursors, now, out, awaited, hold, durable, resumes)

    def detach(self, client: str, now: float, out: Effects) -> None:
        """The client's connection is gone. What it is owed stays owed."""
        self._clients.detach(client, now, out)

    def acked(self, client: str, pubend: str, tick: int, now: float, out: Effects) -> None:
        """The client has processed everything up to a tick, durably if it cares."""
        stream = self._streams.get(pubend)
        if stream is not None:
            self._clients.acked(client, stream, tick, now, out)

    def pubends(self) -> list[str]:
        return list(self._streams)

    def unreachable(self, pubend: str, now: float, out: Effects) -> None:
        """The way to a pubend is gone from the tables. It may come back."""
        at = now + self._liveness.gone_s
        out.timers.append(SetTimer(("delivery", "gone", pubend), at))

    def tables_changed(self, now: float, out: Effects) -> None:
        """Somebody who was waited for may not want anything any more."""
        for stream in self._streams.values():
            self._acks.arm(stream, now, out)

    # ── time ─────────────────────────────────────────────────────────────────────────────

    def alarm(self, key: TimerKey, now: float, out: Effects) -> None:
        _, kind, pubend = key
        stream = self._streams.get(str(pubend))
        if stream is None:
            return
        if kind == "ask":
            now = max(now, stream.wake_at or now)  # the last digit of a clock must not matter
            stream.wake_at = None
            self._asking.reconsider(stream, now, out)
        elif kind == "delay":
            self._asking.delayed(stream, now, out)
        elif kind == "gone":
            if not stream.hosted and self._interest.upstream(stream.pubend) is None:
                self._clients.left_alone(stream, now, out)
        elif kind == "ack":
            stream.ack_armed = False
            self._acks.send(stream, out)
        elif kind == "expect" and stream.hosted:
            self._acks.remind(stream, now, out)

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
        if not stream.hosted:
            stream.clear(span)
        masks = self._interest.masks(span.batch) if span.batch else []
        self._relay.spread(stream, span, masks, source, out.send)
        if span.records:
            self._clients.note(stream, span.records, out)
        subend = stream.subend
        if subend.horizon is not None and span.since == subend.horizon + 1:
            subend.pass_on(span, masks, out.deliver)
        if (
            stream.held
            or subend.behind
            or subend.merged
            or stream.curiosity
            or self._clients.holding
            or (subend.horizon is not None and subend.horizon < stream.frontier)
        ):
            self._clients.catch_up(stream, now, out)
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
            self._clients.note(stream, span.records, out)
        if cut:
            stream.curiosity.go_on(span.since, span.upto, now)
        if asof:
            stream.deep_asked.begun(span.since, span.upto)
            if cut:
                stream.deep.go_on_behind(span.since, span.upto, now)
            for position in list(stream.subend.behind.values()):
                if position.given < position.deep_upto and asof >= position.deep_asof:
                    stream.subend.pump(position, out.deliver, span)
        self._clients.catch_up(stream, now, out)
        stream.memory.bound(stream.subend.horizon)

    # ── streams ──────────────────────────────────────────────────────────────────────────

    def _stream(self, pubend: str) -> Stream:
        found = self._streams.get(pubend)
        if found is None:
            if len(self._streams) >= MOST_STREAMS:
                raise ProtocolError("more pubends than any overlay has")
            found = Stream(pubend, self._interest, self._liveness, self._limits)
            self._streams[pubend] = found
        return found

    def _hosted(self, pubend: str) -> Stream:
        stream = self._streams.get(pubend)
        if stream is None or not stream.hosted:
            raise MisuseError(f"{pubend} is not hosted here")
        return stream

    def validate(self) -> None:
        self._clients.validate()
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
