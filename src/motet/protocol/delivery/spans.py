"""A span: complete knowledge of a range of ticks of one pubend, as far as it concerns its receiver.

The lattice of the paper (section 2.1), and how it lives here:

| state | meaning | here |
| --- | --- | --- |
| Q | not known | the tick is in no span |
| D | a publication, or a record of another kind | the tick is in `ticks` or in `records` |
| S, D*, F | nothing the receiver needs: never sent, filtered, done with | in no list of its span |
| E | contradiction | `InvariantError` |

A tick that nobody has any more is none of these: its span is `lost`, and stays different from F
all the way to the client. Accumulating is a least upper bound, so the order and the number of
arrivals do not matter. D against F is no contradiction between two frames: a filter may have
changed between them, and the subscription that made the difference is not owed the tick.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import lt

from msgspec import Struct

from motet.errors import ProtocolError
from motet.model import OpId
from motet.protocol.publication import Publication


class StartRecord(Struct, tag="start", array_like=True, frozen=True):
    """A subscription begins to be owed what comes after this tick."""

    tick: int
    op: OpId
    tentative: bool = False
    """Part of a transaction: what it is owed begins with a cut that is yet to come."""


class CutRecord(Struct, tag="cut", array_like=True, frozen=True):
    """A transaction takes effect. Each switch is a subscription, the tick above which it begins
    or ends, and whether it ends. The transaction's events follow, up to tick `last`."""

    tick: int
    tx: str
    switches: tuple[tuple[OpId, int, bool], ...]
    pubends: tuple[str, ...] = ()
    last: int = 0
    number: int = 0
    """Of its decision: all pubends cut in the order of these. 0: there was none, it is this
    pubend's own."""
    orders: tuple[str, ...] = ()
    """Of a transaction with events of several pubends: the place of each event, from the one after
    the cut on, among all events of the transaction. They sort as the events are ordered."""

    @property
    def is_shared(self) -> bool:
        """Have other pubends events in it as well?"""
        return bool(self.orders)


Record = StartRecord | CutRecord
"""What a tick may hold besides a publication."""


def ops_of(record: Record) -> tuple[OpId, ...]:
    """The subscriptions that a record is for."""
    if type(record) is StartRecord:
        return (record.op,)
    return tuple(op for op, _, _ in record.switches)  # type: ignore[union-attr]


class Span(Struct, array_like=True, frozen=True):
    """The closed range from `since` to `upto`. `ticks` and `batch` are parallel and ascending;
    `records` carry their ticks. The lists are shared between spans: never change them."""

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
    """Adjacent spans as one."""
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
    """What a peer sent: is it a span at all?"""
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
    """About how much a span holds. Of a long batch a few bodies are measured: what matters is that
    memory is bounded, and measuring each costs as much as delivering it."""
    batch = span.batch
    count = len(batch)
    if count <= 8:
        return OVERHEAD_BYTES + sum(len(memoryview(each.body)) for each in batch)
    step = count // 8
    sample = batch[::step]
    measured = sum(len(memoryview(each.body)) for each in sample)
    return OVERHEAD_BYTES + measured * count // len(sample)


OVERHEAD_BYTES = 400
"""What a span takes besides the bodies of its publications."""
