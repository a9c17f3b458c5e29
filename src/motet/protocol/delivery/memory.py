"""What a broker remembers of a pubend's recent ticks: bounded, and free to forget at any time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from motet.errors import InvariantError
from motet.protocol.delivery.ranges import Range
from motet.protocol.delivery.spans import Span, clip, size_bytes


class Memory:
    """Disjoint spans in ascending order. Forgetting turns ticks into Q, never into F."""

    __slots__ = (
        "_costs",
        "_lows",
        "_most_bytes",
        "_most_events",
        "_spans",
        "bytes",
        "ceiling",
        "events",
    )

    def __init__(self, most_events: int, most_bytes: int) -> None:
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._lows: list[int] = []
        self._spans: list[Span] = []
        self._costs: list[int] = []
        self.events = 0
        self.bytes = 0
        self.ceiling: int | None = None
        """Above this there was no room for what lies beyond a gap: it is no use to ask for it
        before the gap is closed."""

    def __len__(self) -> int:
        return len(self._spans)

    # ── accumulating ─────────────────────────────────────────────────────────────────────

    def accumulate(self, span: Span) -> None:
        """Least upper bound: what was known stays, what was not known is added."""
        spans = self._spans
        if not spans or span.since > spans[-1].upto:
            self._insert(len(spans), span)
            return
        self._must_agree(span)
        for since, upto in self.missing(span.since, span.upto):
            self._insert(bisect_left(self._lows, since), clip(span, since, upto))

    def _insert(self, at: int, span: Span) -> None:
        if at and not span.ticks and not span.records:
            before = self._spans[at - 1]
            quiet = not (before.ticks or before.records)
            if quiet and before.upto + 1 == span.since and before.lost == span.lost:
                self._spans[at - 1] = Span(before.since, span.upto, lost=span.lost)
                return
        cost = size_bytes(span)
        self._lows.insert(at, span.since)
        self._spans.insert(at, span)
        self._costs.insert(at, cost)
        self.bytes += cost
        self.events += len(span.ticks)

    def _must_agree(self, span: Span) -> None:
        """Two different publications on one tick cannot be: ticks are given once."""
        if not span.ticks:
            return
        for known in self.pieces(span.since, span.upto):
            if not known.ticks:
                continue
            have = dict(zip(known.ticks, known.batch, strict=True))
            for tick, publication in zip(span.ticks, span.batch, strict=True):
                other = have.get(tick)
                if other is not None and (
                    other.sequence != publication.sequence
                    or other.publisher != publication.publisher
                ):
                    raise InvariantError(f"two different publications on tick {tick}")

    # ── looking ──────────────────────────────────────────────────────────────────────────

    def covering(self, tick: int) -> Span | None:
        at = bisect_right(self._lows, tick) - 1
        if at < 0 or self._spans[at].upto < tick:
            return None
        return self._spans[at]

    def pieces(self, since: int, upto: int) -> Iterator[Span]:
        """What is known of a range, clipped to it. Nothing must change while this runs."""
        first = max(0, bisect_right(self._lows, since) - 1)
        for at in range(first, bisect_right(self._lows, upto)):
            if self._spans[at].upto >= since:
                yield clip(self._spans[at], since, upto)

    def missing(self, since: int, upto: int) -> list[Range]:
        found: list[Range] = []
        first = max(0, bisect_right(self._lows, since) - 1)
        for at in range(first, bisect_right(self._lows, upto)):
            span = self._spans[at]
            if span.upto < since:
                continue
            if span.since > since:
                found.append((since, span.since - 1))
            since = span.upto + 1
        if since <= upto:
            found.append((since, upto))
        return found

    # ── forgetting ───────────────────────────────────────────────────────────────────────

    def bound(self, delivered: int | None) -> None:
        """Forget if there is too much: first the oldest that was delivered here, up to
        `delivered` (None: anything), then the newest, which the gap before it keeps from use."""
        if self.events <= self._most_events and self.bytes <= self._most_bytes:
            return
        self._forget_oldest(delivered)
        while self.events > self._most_events or self.bytes > self._most_bytes:
            if len(self._spans) == 1:
                return  # it is about to be used
            span = self._spans.pop()
            self._lows.pop()
            self.bytes -= self._costs.pop()
            self.events -= len(span.ticks)
            self.ceiling = span.since - 1

    def _forget_oldest(self, delivered: int | None) -> None:
        """A little more than needed at a time: the front of a list is dear."""
        events, volume = self._most_events * 7 // 8, self._most_bytes * 7 // 8
        count = 0
        for span, cost in zip(self._spans, self._costs, strict=True):
            enough = self.events <= events and self.bytes <= volume
            if enough or (delivered is not None and span.upto > delivered):
                break
            self.events -= len(span.ticks)
            self.bytes -= cost
            count += 1
        del self._spans[:count], self._lows[:count], self._costs[:count]

    def validate(self) -> None:
        before = -1
        for low, span in zip(self._lows, self._spans, strict=True):
            assert low == span.since > before
            assert span.upto >= span.since
            before = span.upto
        assert self.events == sum(len(each.ticks) for each in self._spans)
        assert self.bytes == sum(self._costs)
