"""Knowledge of the ticks of one pubend: ranges, spans, and a bounded memory of spans.

A span is complete knowledge of a range of ticks, as far as it concerns its receiver. The lattice of
the paper (section 2.1) and its representation here:

| state | meaning | here |
| --- | --- | --- |
| Q | not known | the tick is in no span |
| D | a publication, or a record of another kind | the tick is in `ticks` or in `records` |
| S, D*, F | not needed by the receiver: silence, filtered, acknowledged | in no list of its span |
| E | contradiction | `InvariantError` |

A tick that is gone from every log and memory is none of these: its span is `lost`, which stays
distinct from F all the way to the client. Accumulating is a least upper bound, so order and
duplicates do not matter. D in one frame and F in another is no contradiction: a filter may have
changed between them, and the subscription that made the difference is not owed the tick.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import lt

from msgspec import Struct

from motet.errors import InvariantError, ProtocolError
from motet.model import OpId
from motet.protocol.publication import Publication

Range = tuple[int, int]
"""Lowest and highest tick, both included."""


class RangeSet:
    """Disjoint ranges; adjacent ones are merged."""

    __slots__ = ("_highs", "_lows")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        for low, high in ranges:
            self.add(low, high)

    def __iter__(self) -> Iterator[Range]:
        return iter(list(zip(self._lows, self._highs, strict=True)))

    def __len__(self) -> int:
        return len(self._lows)

    def __contains__(self, tick: int) -> bool:
        at = bisect_right(self._lows, tick) - 1
        return at >= 0 and tick <= self._highs[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    @property
    def top(self) -> int:
        """The highest tick, 0 if there is none."""
        return self._highs[-1] if self._highs else 0

    def add(self, low: int, high: int) -> None:
        lows, highs = self._lows, self._highs
        if highs and lows[-1] <= low <= highs[-1] + 1:  # at the end: the common case
            if high > highs[-1]:
                highs[-1] = high
            return
        first = bisect_left(highs, low - 1)
        last = bisect_right(lows, high + 1)
        if first < last:
            low = min(low, lows[first])
            high = max(high, highs[last - 1])
        lows[first:last] = [low]
        highs[first:last] = [high]

    def remove(self, low: int, high: int) -> None:
        lows, highs = self._lows, self._highs
        first = bisect_left(highs, low)
        last = bisect_right(lows, high)
        if first >= last:
            return
        left = [(lows[first], low - 1)] if lows[first] < low else []
        right = [(high + 1, highs[last - 1])] if highs[last - 1] > high else []
        kept = left + right
        lows[first:last] = [each[0] for each in kept]
        highs[first:last] = [each[1] for each in kept]

    def overlaps(self, low: int, high: int) -> list[Range]:
        """The parts of a range that are in the set."""
        lows, highs = self._lows, self._highs
        found: list[Range] = []
        for at in range(bisect_left(highs, low), bisect_right(lows, high)):
            found.append((max(low, lows[at]), min(high, highs[at])))
        return found

    def missing(self, low: int, high: int) -> list[Range]:
        """The parts of a range that are not in the set."""
        found: list[Range] = []
        for begin, end in self.overlaps(low, high):
            if begin > low:
                found.append((low, begin - 1))
            low = end + 1
        if low <= high:
            found.append((low, high))
        return found

    def clear(self) -> None:
        self._lows.clear()
        self._highs.clear()

    def forget_lowest(self, count: int) -> None:
        """Keep the `count` highest ranges."""
        excess = len(self._lows) - count
        if excess > 0:
            del self._lows[:excess]
            del self._highs[:excess]

    def bridge_lowest(self, count: int) -> None:
        """Fill the lowest gaps until at most `count` ranges remain."""
        excess = len(self._lows) - count
        if excess > 0:
            del self._lows[1 : excess + 1]
            del self._highs[:excess]

    def validate(self) -> None:
        before = None
        for low, high in zip(self._lows, self._highs, strict=True):
            assert low <= high
            assert before is None or before + 1 < low
            before = high


class StartRecord(Struct, tag="start", array_like=True, frozen=True):
    """A subscription is owed everything after this tick."""

    tick: int
    op: OpId
    tentative: bool = False
    """Part of an undecided transaction: it is owed nothing before a later cut."""


class CutRecord(Struct, tag="cut", array_like=True, frozen=True):
    """A transaction takes effect. A switch: a subscription, the tick above which it begins or
    ends, and whether it ends. The transaction's events follow, up to tick `last`."""

    tick: int
    tx: str
    switches: tuple[tuple[OpId, int, bool], ...]
    pubends: tuple[str, ...] = ()
    last: int = 0
    number: int = 0
    """Of the decision: all pubends cut in this order. 0: no decision, only this pubend cuts."""
    orders: tuple[str, ...] = ()
    """If several pubends have events of the transaction: for each event after the cut, a key that
    sorts it among all events of the transaction."""

    @property
    def is_shared(self) -> bool:
        """Do other pubends have events of the transaction as well?"""
        return bool(self.orders)


class PredecessorRecord(Struct, tag="after", array_like=True, frozen=True):
    """Later events of this publisher come behind those that it published elsewhere before: up to a
    tick of each of these pubends. Nobody is given later ticks before that. If it names none, it is
    only for readers of the log (`LogPredecessors.trail`)."""

    tick: int
    publisher: str
    predecessors: tuple[tuple[str, int], ...]
    cut: tuple[int, int] = (0, 0)
    """Number and tick: see `AckExpected.cut`. Includes all cuts of the predecessors."""


Record = StartRecord | CutRecord | PredecessorRecord
"""The contents of a tick that has no publication."""


def ops_of(record: Record) -> tuple[OpId, ...]:
    """The subscriptions that a record is for."""
    if type(record) is StartRecord:
        return (record.op,)
    if type(record) is CutRecord:
        return tuple(op for op, _, _ in record.switches)
    return ()


class Span(Struct, array_like=True, frozen=True):
    """The closed range from `since` to `upto`. `ticks` and `batch` are parallel and ascending;
    `records` carry their ticks. The lists are shared between spans: never modify them."""

    since: int
    upto: int
    ticks: list[int] = []
    batch: list[Publication] = []
    records: tuple[Record, ...] = ()
    lost: bool = False


def clip(span: Span, since: int, upto: int) -> Span:
    """The part of a span inside a range that overlaps it."""
    if since <= span.since and upto >= span.upto:
        return span
    since, upto = max(since, span.since), min(upto, span.upto)
    ticks, batch, records = span.ticks, span.batch, span.records
    if ticks and (ticks[0] < since or ticks[-1] > upto):
        first, last = bisect_left(ticks, since), bisect_right(ticks, upto)
        ticks, batch = ticks[first:last], batch[first:last]
    if records:
        records = tuple(each for each in records if since <= each.tick <= upto)
    return Span(since, upto, ticks, batch, records, span.lost)


def joined(pieces: list[Span]) -> Span:
    """Adjacent spans, merged into one."""
    if len(pieces) == 1:
        return pieces[0]
    ticks: list[int] = []
    batch: list[Publication] = []
    records: tuple[Record, ...] = ()
    for each in pieces:
        ticks += each.ticks
        batch += each.batch
        records += each.records
    return Span(pieces[0].since, pieces[-1].upto, ticks, batch, records)


def shortened(span: Span, count: int) -> Span:
    """The span up to its publication number `count`, if it has more."""
    if len(span.ticks) <= count:
        return span
    return clip(span, span.since, span.ticks[count - 1])


def check(span: Span) -> None:
    """Raise if a span that a peer sent is malformed."""
    ticks, records = span.ticks, span.records
    if not 0 <= span.since <= span.upto or len(ticks) != len(span.batch):
        raise ProtocolError("a span whose range or lists do not fit")
    if ticks and (
        ticks[0] < span.since
        or ticks[-1] > span.upto
        or not all(map(lt, ticks, ticks[1:]))
        or span.lost
    ):
        raise ProtocolError("a span whose ticks are not ascending inside its range")
    if records:
        own = [each.tick for each in records]
        if (
            own[0] < span.since
            or own[-1] > span.upto
            or not all(map(lt, own, own[1:]))
            or not set(own).isdisjoint(ticks)
            or span.lost
        ):
            raise ProtocolError("a span whose records are not ascending inside its range")


def size_bytes(span: Span) -> int:
    """The approximate size of a span. Only a few bodies of a long batch are measured: this suffices
    to bound memory, and measuring each costs as much as delivering it."""
    batch = span.batch
    count = len(batch)
    if count <= 8:
        return OVERHEAD_BYTES + sum(len(memoryview(each.body)) for each in batch)
    step = count // 8
    sample = batch[::step]
    measured = sum(len(memoryview(each.body)) for each in sample)
    return OVERHEAD_BYTES + measured * count // len(sample)


OVERHEAD_BYTES = 400
"""The size of a span without the bodies of its publications."""


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
        """Above this, spans after a gap were dropped for lack of room: do not request them before
        the gap is closed."""

    def __len__(self) -> int:
        return len(self._spans)

    # ── accumulating ─────────────────────────────────────────────────────────────────────

    def accumulate(self, span: Span) -> None:
        """Least upper bound: known ticks stay as they are, unknown ones are added."""
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
        """Two different publications on one tick are a contradiction: ticks are unique."""
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
        """The known spans of a range, clipped to it. Do not modify the memory meanwhile."""
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
        """Forget spans above the limits: first the oldest that were delivered here, up to
        `delivered` (None: any), then the newest, which are unusable behind a gap."""
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
        """Forget more than needed, because deleting at the front of a list is expensive."""
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
