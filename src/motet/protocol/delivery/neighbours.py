"""Frames to neighbours: knowledge goes downstream, nacks and acknowledgements go upstream."""

from __future__ import annotations

from collections import deque
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from motet.model.ids import TICKS_PER_S
from motet.protocol.contract import CancelTimer, SetTimer
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.messages import AckExpected, AckUp, DeliveryFrame, Knowledge, Nack
from motet.protocol.delivery.spans import (
    Range,
    Record,
    Span,
    StartRecord,
    clip,
    joined,
    shortened,
    size_bytes,
)
from motet.protocol.delivery.stream import (
    INFINITY,
    MOST_RANGES,
    Effects,
    Floor,
    Limits,
    Liveness,
    ReadWanted,
    SilenceWanted,
    Stream,
)
from motet.protocol.publication import Publication

Send = list[tuple[str, DeliveryFrame]]
Part = tuple[list[int], list[Publication], list[Record]]


class Relay:
    __slots__ = ("_interest", "_limits")

    def __init__(self, interest: Interest, limits: Limits) -> None:
        self._interest = interest
        self._limits = limits

    # ── for the first time ───────────────────────────────────────────────────────────────

    def spread(
        self, stream: Stream, span: Span, masks: list[int], source: str | None, send: Send
    ) -> None:
        """Send news at once to interested neighbours; for others it is silence, sent later."""
        interest = self._interest
        neighbours = interest.neighbours()
        if not neighbours and not stream.members:
            return
        everything = interest.pass_all()
        parts: dict[str, Part | None] = {}
        if not span.records and masks and masks.count(masks[0]) == len(masks):
            for neighbour in interest.way(masks[0] | everything).neighbours:
                parts[neighbour] = None
        elif masks or span.records:
            self._sort(span, masks, everything, parts)
        for neighbour in neighbours:
            if neighbour == source:
                continue
            if neighbour in parts:
                self._tell(stream, neighbour, span, parts[neighbour], send)
                continue
            out = stream.outs.get(neighbour)
            if out is None:
                continue
            if out.curious and out.curious.overlaps(span.since, span.upto):
                self._tell(stream, neighbour, span, ([], [], []), send)
            else:
                out.silent(span.since, span.upto)
        if stream.members:  # a member that asked gets the answer, even if another gets the news
            self.repeat(stream, span, source, False, 0, send)

    def _sort(
        self, span: Span, masks: list[int], everything: int, parts: dict[str, Part | None]
    ) -> None:
        way = self._interest.way
        for tick, publication, mask in zip(span.ticks, span.batch, masks, strict=True):
            for neighbour in way(mask | everything).neighbours:
                part = parts.setdefault(neighbour, ([], [], []))
                assert part is not None
                part[0].append(tick)
                part[1].append(publication)
        for record in span.records:
            mask = self._interest.record_mask(record) | everything
            for neighbour in way(mask).neighbours:
                part = parts.setdefault(neighbour, ([], [], []))
                assert part is not None
                part[2].append(record)

    def _tell(
        self, stream: Stream, neighbour: str, span: Span, part: Part | None, send: Send
    ) -> None:
        out = stream.out(neighbour, span.since)
        since = out.telling(span.since, span.upto)
        if out.curious:
            out.curious.remove(since, span.upto)
        if part is None:
            if since != span.since:
                span = Span(since, span.upto, span.ticks, span.batch)
        else:
            span = Span(since, span.upto, part[0], part[1], tuple(part[2]))
        send.append((neighbour, Knowledge(stream.pubend, span)))

    # ── again ────────────────────────────────────────────────────────────────────────────

    def repeat(
        self, stream: Stream, span: Span, source: str | None, cut: bool, asof: int, send: Send
    ) -> None:
        """Send repeated knowledge only to neighbours that requested it, and only that part."""
        for neighbour, out in stream.outs.items():
            if neighbour == source or not (out.curious or out.deep):
                continue
            for low, high in out.wanted(span.since, span.upto, asof):
                self._resend(stream, neighbour, clip(span, low, high), cut, asof, send)

    def answer(
        self, stream: Stream, neighbour: str, since: int, upto: int, asof: int, send: Send
    ) -> tuple[list[Range], bool]:
        """Send what memory has of a range. Returns the missing parts, and whether one piece was too
        small: then the rest of the range was not examined."""
        limits = self._limits
        missing = stream.memory.missing(since, upto)
        events, volume = 0, 0
        run: list[Span] = []
        for piece in stream.memory.pieces(since, upto):
            piece = shortened(piece, limits.piece_events - events)
            if run and (run[-1].upto + 1 != piece.since or run[-1].lost or piece.lost):
                self._resend(stream, neighbour, joined(run), False, asof, send)
                run = []
            run.append(piece)
            events += len(piece.ticks)
            volume += size_bytes(piece)
            full = events >= limits.piece_events or volume >= limits.piece_bytes
            if full and piece.upto < upto:
                self._resend(stream, neighbour, joined(run), True, asof, send)
                return [part for part in missing if part[1] < piece.since], True
        if run:
            self._resend(stream, neighbour, joined(run), False, asof, send)
        return missing, False

    def _resend(
        self, stream: Stream, neighbour: str, span: Span, cut: bool, asof: int, send: Send
    ) -> None:
        bit = self._interest.bit(neighbour)
        if not bit & self._interest.pass_all():
            span = self._filtered(span, bit)
        send.append((neighbour, Knowledge(stream.pubend, span, True, cut, asof)))

    def _filtered(self, span: Span, bit: int) -> Span:
        ticks, batch, records = span.ticks, span.batch, span.records
        if batch:
            masks = self._interest.masks(batch)
            keep = [at for at, mask in enumerate(masks) if mask & bit]
            if len(keep) < len(batch):
                ticks = [ticks[at] for at in keep]
                batch = [batch[at] for at in keep]
        if records:
            records = tuple(each for each in records if self._interest.record_mask(each) & bit)
        if batch is span.batch and len(records) == len(span.records):
            return span
        return Span(span.since, span.upto, ticks, batch, records, span.lost)


MOMENT_S = 1e-6
"""Shorter times do not matter: they are rounding errors of the clock."""


class Nacks:
    __slots__ = ("_delay_s", "_gap_s", "_interest", "_limits", "_repeat_most_s", "_repeat_s")

    def __init__(self, interest: Interest, liveness: Liveness, limits: Limits) -> None:
        self._interest = interest
        self._delay_s = liveness.delay_s
        self._gap_s = liveness.gap_s
        self._repeat_s = liveness.nack_repeat_s
        self._repeat_most_s = liveness.nack_repeat_most_s
        self._limits = limits

    def reconsider(self, stream: Stream, out: Effects, hurry: int | None = None) -> None:
        """Request what clients miss if it is due, and set the timer for the next request."""
        if stream.is_calm and self._delay_s == INFINITY:
            return
        patient, urgent = stream.subend.needs(stream.frontier)
        stream.curiosity.sync(patient, urgent, out.now)
        deep, asof = stream.subend.deep_needs()
        stream.deep.sync([], deep, out.now)
        if hurry is not None:
            stream.curiosity.hurry(hurry, out.now)
            stream.deep.hurry(hurry, out.now)
        if stream.curiosity:
            self.ask(stream, stream.curiosity.due(out.now), 0, out)
        if stream.deep:
            self.ask(stream, stream.deep.due(out.now), asof, out)
        times = [t for t in (stream.curiosity.next_at(), stream.deep.next_at()) if t is not None]
        if stream.subend.merged:
            times += self._ask_for_silence(stream, out)
        if stream.held and self._unclear(stream):
            self.inquire(stream, out)
            times.append(stream.inquired_at + self._patience_s(stream))
        if stream.wondered_at is not None and not stream.hosted:
            times.append(self._wonder(stream, stream.wondered_at, out))
        at = min(times, default=None)
        if at != stream.wake_at:
            stream.wake_at = at
            key = ("delivery", "ask", stream.pubend)
            out.timers.append(CancelTimer(key) if at is None else SetTimer(key, at))

        if self._delay_s < INFINITY and not stream.delay_armed and stream.subend.live:
            stream.delay_armed = True
            out.timers.append(
                SetTimer(("delivery", "delay", stream.pubend), out.now + self._delay_s)
            )

    def _ask_for_silence(self, stream: Stream, out: Effects) -> list[float]:
        """Merges wait until the pubend has passed ticks of other pubends. Returns when to request
        that again, if at all."""
        upto, silence_requests = stream.subend.waited(), stream.silence_requests
        silence_requests.heard(stream.frontier)
        if upto <= stream.frontier:
            return []
        if stream.hosted or silence_requests.due_at(upto) <= out.now + MOMENT_S:
            silence_requests.ask(upto, out.now)
            if stream.hosted:
                out.silences.append(SilenceWanted(stream.pubend, upto))
            else:
                stream.asked.answered(stream.frontier + 1, upto, False)  # repeat on purpose
                self.ask(stream, [(stream.frontier + 1, upto)], 0, out)
        return [] if stream.hosted else [silence_requests.due_at(upto)]

    def _wonder(self, stream: Stream, since: float, out: Effects) -> float:
        """A block waits for a cut. Nearly always the stream shows it at once; if not, the pubend is
        asked how far it is. Returns when to do that."""
        at = max(since + self._gap_s, stream.inquired_at + self._patience_s(stream))
        if at > out.now + MOMENT_S:
            return at
        self.inquire(stream, out)
        stream.wondered_at = out.now  # whatever the answer is, the next inquiry can wait
        return stream.inquired_at + self._patience_s(stream)

    def _unclear(self, stream: Stream) -> bool:
        """Is a client held until it is known which subscriptions have started?"""
        positions = stream.subend.positions
        return not stream.hosted and any(
            positions[client].unclear_upto > stream.cleared for client in stream.held
        )

    def _patience_s(self, stream: Stream) -> float:
        backoff: float = 2.0 ** min(stream.inquiries, 16)
        return min(self._repeat_s * backoff, self._repeat_most_s)

    def inquire(self, stream: Stream, out: Effects) -> None:
        """Ask the pubend's broker which subscriptions have started, unless asked recently."""
        # The factor allows for rounding: a timer that fires exactly on time must pass.
        if out.now - stream.inquired_at < self._patience_s(stream) * 0.99:
            return
        stream.inquiries = 0 if stream.inquired_at == -INFINITY else stream.inquiries + 1
        stream.inquired_at = out.now
        upstream = self._interest.upstream(stream.pubend)
        if upstream is not None:
            out.send.append((upstream, Nack(stream.pubend, ())))

    def answered(self, stream: Stream, out: Effects) -> None:
        """The pubend's broker has said which subscriptions have started. If that does not suffice,
        the rest is nearly always on its way: the log has not synced it yet."""
        if self._unclear(stream):
            stream.inquiries = 0
            stream.inquired_at = out.now + self._gap_s - self._repeat_s
        else:
            stream.inquired_at = -INFINITY

    def delayed(self, stream: Stream, out: Effects) -> None:
        """The timer has fired: the horizon must not trail the clock by more than the delay."""
        stream.delay_armed = False
        upto = int((out.now - self._delay_s) * TICKS_PER_S)
        horizon = stream.subend.horizon
        if stream.subend.live and horizon is not None and horizon < upto and not stream.hosted:
            stream.frontier = max(stream.frontier, upto)
            self.reconsider(stream, out, hurry=upto)
        else:
            self.reconsider(stream, out)

    def ask(self, stream: Stream, ranges: list[Range], asof: int, out: Effects) -> None:
        """Pass a request on: to the log if it is at this broker, else upstream. Ranges that were
        requested recently are on their way already."""
        asked = stream.deep_asked if asof else stream.asked
        # No broker on the path has the past in memory: only the next piece is of any use.
        fresh = asked.fresh_heads if asof else asked.fresh
        ranges = fresh(ranges, out.now) if ranges else []
        if not ranges:
            return
        if stream.hosted:
            for low, high in ranges:
                self._ask_log(stream, low, high, out)
            return
        upstream = self._interest.upstream(stream.pubend)
        if upstream is not None:
            for at in range(0, len(ranges), MOST_RANGES):
                part = tuple(ranges[at : at + MOST_RANGES])
                out.send.append((upstream, Nack(stream.pubend, part, asof)))

    def _ask_log(self, stream: Stream, low: int, high: int, out: Effects) -> None:
        limits, frontier = self._limits, stream.frontier
        if low <= frontier:
            upto = min(high, frontier)
            events, volume = limits.piece_events, limits.piece_bytes
            out.reads.append(ReadWanted(stream.pubend, low, upto, events, volume))
        if high > frontier:
            out.silences.append(SilenceWanted(stream.pubend, high))


class Acknowledgements:
    """Only acknowledgements by clients and neighbours count. The paper counts filtered ticks as
    acknowledged where they are filtered; but then a pubend could trim a tick before downstream
    brokers have heard that it is silent, and would have to call it lost when they ask."""

    __slots__ = ("_interest", "_liveness")

    def __init__(self, interest: Interest, liveness: Liveness) -> None:
        self._interest = interest
        self._liveness = liveness

    def wanting(self, stream: Stream) -> list[str]:
        """Downstream neighbours that may be owed something."""
        interest = self._interest
        upstream = None if stream.hosted else interest.upstream(stream.pubend)
        everything = interest.pass_all()
        return [
            each
            for each in interest.neighbours()
            if each != upstream and (interest.wants(each) or interest.bit(each) & everything)
        ]

    def settled(self, stream: Stream) -> int:
        """Everything up to here is acknowledged, downstream and at this broker. 0 while not all
        interest of neighbours is known."""
        if self._interest.pass_all():
            return 0
        least = stream.frontier if stream.hosted else stream.cleared
        least = min(least, self._interest.pinned(stream.pubend))
        own = self._own(stream)
        if own is not None:
            least = min(least, own)
        for neighbour in self.wanting(stream):
            told = stream.outs.get(neighbour)
            if told is None or told.acked is None:
                return 0
            least = min(least, told.acked)
        return least

    @staticmethod
    def _own(stream: Stream) -> int | None:
        """What clients of this broker have acknowledged, also after a restart; None if there are
        none."""
        own, levels = stream.subend.settled(), stream.subend.levels(stream.doubtful)
        return None if own is None else min(own, stream.floor, *levels)

    def behind(self, stream: Stream, upto: int) -> list[str]:
        """The neighbours that have not acknowledged everything up to this tick; "": clients of this
        broker have not."""
        own = self._own(stream)
        found = [""] if own is not None and own < upto else []
        for neighbour in self.wanting(stream):
            told = stream.outs.get(neighbour)
            if told is None or told.acked is None or told.acked < upto:
                found.append(neighbour)
        return found

    def arm(self, stream: Stream, out: Effects) -> None:
        if not stream.ack_armed:
            stream.ack_armed = True
            key = ("delivery", "ack", stream.pubend)
            out.timers.append(SetTimer(key, out.now + self._liveness.ack_delay_s))

    def send(self, stream: Stream, out: Effects, repeat: bool = False) -> None:
        """Raise the floor of this broker's clients; acknowledge upstream if there is news."""
        own = stream.subend.settled()
        if own is not None and not stream.hosted:
            own = min(own, stream.cleared)
        raised = own is not None and own > stream.floor
        if own is not None and raised:
            stream.floor = own
        notes = stream.subend.notes(stream.floor) if stream.lasting else {}
        passed = stream.subend.passed(stream.doubtful, stream.floor) if stream.doubtful else ()
        if raised or notes or passed:
            # The floor may be older than a client that has moved here, which is below it.
            upto = stream.floor if raised else 0
            out.floors.append(Floor(stream.pubend, upto, notes, passed))
        if stream.hosted:
            return
        upto = self.settled(stream)
        upstream = self._interest.upstream(stream.pubend)
        if upstream is not None and upto and (upto > stream.ack_sent or repeat):
            stream.ack_sent = max(upto, stream.ack_sent)
            out.send.append((upstream, AckUp(stream.pubend, upto)))

    def expect(
        self,
        stream: Stream,
        upto: int,
        out: Effects,
        starts: tuple[StartRecord, ...] | None = None,
        only: str | None = None,
        cut: tuple[int, int] = (0, 0),
    ) -> None:
        """Ask neighbours that have not acknowledged, or have asked about their subscriptions, for
        an acknowledgement; send them silence before. A hosted pubend knows its starts."""
        if only is None:
            for client, position in stream.subend.positions.items():
                if position.present and position.outstanding:
                    out.hurried[client] = None
        if stream.hosted:
            stands = self._interest.stands
            stream.starts = {op: each for op, each in stream.starts.items() if stands(each)}
            starts = tuple(stream.starts.values())
            cut = stream.last_cut
        inquiring = [name for name, told in stream.outs.items() if told.inquires]
        for neighbour in dict.fromkeys((*self.wanting(stream), *inquiring)):
            told = stream.outs.get(neighbour)
            if only is not None and neighbour != only:
                continue
            acked = told.acked if told is not None and told.acked is not None else -1
            inquires = told is not None and told.inquires and starts is not None
            if acked >= upto and not inquires:
                continue
            if told is not None and starts is not None:
                told.inquires = False
            silence = told.untold() if told is not None else None
            if silence is not None:
                out.send.append((neighbour, Knowledge(stream.pubend, Span(*silence))))
            own = None if starts is None else self._of(neighbour, starts)
            out.send.append((neighbour, AckExpected(stream.pubend, upto, own, cut)))

    def expect_later(self, stream: Stream, out: Effects) -> None:
        """Set the timer for a reminder. It runs only while something is owed."""
        if not stream.expecting:
            stream.expecting = True
            at = out.now + self._liveness.ack_expected_s
            out.timers.append(SetTimer(("delivery", "expect", stream.pubend), at))

    def remind(self, stream: Stream, out: Effects) -> None:
        """A hosted pubend asks for missing acknowledgements of ticks before the last reminder."""
        self.send(stream, out)
        settled = self.settled(stream)
        stream.starts = {op: each for op, each in stream.starts.items() if each.tick > settled}
        if settled < stream.expected:
            self.expect(stream, stream.expected, out)
        stream.expected = stream.frontier
        stream.expecting = False
        if settled < stream.frontier:
            self.expect_later(stream, out)

    def _of(self, neighbour: str, starts: tuple[StartRecord, ...]) -> tuple[StartRecord, ...]:
        bit = self._interest.bit(neighbour)
        everything = bit & self._interest.pass_all()
        record_mask = self._interest.record_mask
        return tuple(each for each in starts if everything or record_mask(each) & bit)


Direction = Literal["sent", "received"]

RECENT_NACKS = 256


class NackSeen(NamedTuple):
    """One nack, at a time of the broker's clock."""

    at: float
    way: Direction
    neighbour: str
    pubend: str
    ranges: int
    ticks: int


class Passed(Struct):
    """Frames in one direction."""

    knowledge: int = 0
    """First-time knowledge."""
    answers: int = 0
    """Knowledge that was requested."""
    events_again: int = 0
    """Events in those answers."""
    nacks: int = 0
    nack_ranges: int = 0
    nack_ticks: int = 0
    inquiries: int = 0
    """Nacks that ask which subscriptions have started."""
    acks: int = 0
    acks_expected: int = 0

    def add(self, frame: DeliveryFrame) -> None:
        if type(frame) is Knowledge:
            if frame.again:
                self.answers += 1
                self.events_again += len(frame.span.ticks)
            else:
                self.knowledge += 1
        elif type(frame) is AckUp:
            self.acks += 1
        elif type(frame) is AckExpected:
            self.acks_expected += 1


class Tally:
    def __init__(self) -> None:
        self.sent = Passed()
        self.received = Passed()
        self.recent: deque[NackSeen] = deque(maxlen=RECENT_NACKS)

    def note(self, way: Direction, neighbour: str, frame: DeliveryFrame, now: float) -> None:
        passed = self.sent if way == "sent" else self.received
        if type(frame) is not Nack:
            passed.add(frame)
        elif frame.ranges:
            ticks = sum(high - low + 1 for low, high in frame.ranges)
            passed.nacks += 1
            passed.nack_ranges += len(frame.ranges)
            passed.nack_ticks += ticks
            seen = NackSeen(now, way, neighbour, frame.pubend, len(frame.ranges), ticks)
            self.recent.append(seen)
        else:
            passed.inquiries += 1

    def account(self) -> dict[str, Any]:
        """Plain values only."""
        return {
            "sent": asdict(self.sent),
            "received": asdict(self.received),
            "recent_nacks": [each._asdict() for each in self.recent],
        }
