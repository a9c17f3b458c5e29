"""Questions on their way up: from clients who miss something, and from neighbours who ask."""

from __future__ import annotations

from motet.model.ticks import TICKS_PER_S
from motet.protocol.contract import CancelTimer, SetTimer
from motet.protocol.delivery.curiosity import MOST_RANGES, Liveness
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.messages import Nack
from motet.protocol.delivery.ranges import Range
from motet.protocol.delivery.state import (
    INFINITY,
    Effects,
    Limits,
    ReadWanted,
    SilenceWanted,
    Stream,
)

MOMENT_S = 1e-6
"""Less than this does not matter: the last digit of a clock."""


class Asking:
    __slots__ = ("_delay_s", "_gap_s", "_interest", "_limits", "_repeat_most_s", "_repeat_s")

    def __init__(self, interest: Interest, liveness: Liveness, limits: Limits) -> None:
        self._interest = interest
        self._delay_s = liveness.delay_s
        self._gap_s = liveness.gap_s
        self._repeat_s = liveness.nack_repeat_s
        self._repeat_most_s = liveness.nack_repeat_most_s
        self._limits = limits

    def reconsider(
        self, stream: Stream, now: float, out: Effects, hurry: int | None = None
    ) -> None:
        """Ask for what clients miss if it is time, and wake up when it is."""
        if stream.is_calm and self._delay_s == INFINITY:
            return
        patient, urgent = stream.subend.needs(stream.frontier)
        stream.curiosity.sync(patient, urgent, now)
        deep, asof = stream.subend.deep_needs()
        stream.deep.sync([], deep, now)
        if hurry is not None:
            stream.curiosity.hurry(hurry, now)
            stream.deep.hurry(hurry, now)
        if stream.curiosity:
            self.ask(stream, stream.curiosity.due(now), 0, now, out)
        if stream.deep:
            self.ask(stream, stream.deep.due(now), asof, now, out)
        times = [t for t in (stream.curiosity.next_at(), stream.deep.next_at()) if t is not None]
        if stream.subend.merged:
            times += self._ask_for_silence(stream, now, out)
        if stream.held and self._unclear(stream):
            self.inquire(stream, now, out)
            times.append(stream.inquired_at + self._patience_s(stream))
        if stream.wondered_at is not None and not stream.hosted:
            times.append(self._wonder(stream, stream.wondered_at, now, out))
        at = min(times, default=None)
        if at != stream.wake_at:
            stream.wake_at = at
            key = ("delivery", "ask", stream.pubend)
            out.timers.append(CancelTimer(key) if at is None else SetTimer(key, at))

        if self._delay_s < INFINITY and not stream.delay_armed and stream.subend.live:
            stream.delay_armed = True
            out.timers.append(SetTimer(("delivery", "delay", stream.pubend), now + self._delay_s))

    def _ask_for_silence(self, stream: Stream, now: float, out: Effects) -> list[float]:
        """Those in total order wait until the pubend has passed ticks of others. When to ask
        for it again, if at all."""
        upto, hush = stream.subend.waited(), stream.hush
        hush.heard(stream.frontier)
        if upto <= stream.frontier:
            return []
        if stream.hosted or hush.due_at(upto) <= now + MOMENT_S:
            hush.ask(upto, now)
            if stream.hosted:
                out.silences.append(SilenceWanted(stream.pubend, upto))
            else:
                stream.asked.answered(stream.frontier + 1, upto, False)  # it is asked on purpose
                self.ask(stream, [(stream.frontier + 1, upto)], 0, now, out)
        return [] if stream.hosted else [hush.due_at(upto)]

    def _wonder(self, stream: Stream, since: float, now: float, out: Effects) -> float:
        """Somebody waits for a cut. Nearly always the stream shows it at once; if not, the pubend
        is asked how far it is. Returns when to do that."""
        at = max(since + self._gap_s, stream.inquired_at + self._patience_s(stream))
        if at > now + MOMENT_S:
            return at
        self.inquire(stream, now, out)
        stream.wondered_at = now  # whatever the answer is, the next question has time
        return stream.inquired_at + self._patience_s(stream)

    def _unclear(self, stream: Stream) -> bool:
        """Does somebody wait to hear which subscriptions have started?"""
        positions = stream.subend.positions
        return not stream.hosted and any(
            positions[client].unclear_upto > stream.cleared for client in stream.held
        )

    def _patience_s(self, stream: Stream) -> float:
        backoff: float = 2.0 ** min(stream.inquiries, 16)
        return min(self._repeat_s * backoff, self._repeat_most_s)

    def inquire(self, stream: Stream, now: float, out: Effects) -> None:
        """Ask the pubend's broker which subscriptions have started, but not all the time."""
        # The factor: a timer that fires exactly in time must find that it is time.
        if now - stream.inquired_at < self._patience_s(stream) * 0.99:
            return
        stream.inquiries = 0 if stream.inquired_at == -INFINITY else stream.inquiries + 1
        stream.inquired_at = now
        upstream = self._interest.upstream(stream.pubend)
        if upstream is not None:
            out.send.append((upstream, Nack(stream.pubend, ())))

    def delayed(self, stream: Stream, now: float, out: Effects) -> None:
        """Some time has passed: the horizon must not trail the clock by more than the delay."""
        stream.delay_armed = False
        upto = int((now - self._delay_s) * TICKS_PER_S)
        horizon = stream.subend.horizon
        if stream.subend.live and horizon is not None and horizon < upto and not stream.hosted:
            stream.frontier = max(stream.frontier, upto)
            self.reconsider(stream, now, out, hurry=upto)
        else:
            self.reconsider(stream, now, out)

    def ask(self, stream: Stream, ranges: list[Range], asof: int, now: float, out: Effects) -> None:
        """Pass a question on: to the log if it is here, else upstream; what was asked lately
        is on its way already."""
        asked = stream.deep_asked if asof else stream.asked
        # The past is remembered nowhere on the way: only what comes next is of any use.
        fresh = asked.fresh_heads if asof else asked.fresh
        ranges = fresh(ranges, now) if ranges else []
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
