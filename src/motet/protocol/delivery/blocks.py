"""Blocks: a client gets the events of a transaction together, even from several pubends.

Frames of a pubend wait from the first event of such a block on, until every pubend that has events
of the transaction, and that the client reads, has passed its cut. Then all events of the
transaction are released in the order of the transaction, and later events follow.

No block waits for ever: all pubends cut in the order of the decisions, so the transaction that was
decided first does not wait for another waiting one. Unreachable and destroyed pubends are not
waited for. And events of the first waiting block do not count against the client's window, because
a small window might never see the end of the block.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from motet.protocol.delivery.messages import Delivered
from motet.protocol.delivery.spans import CutRecord
from motet.protocol.publication import Publication

if TYPE_CHECKING:
    from motet.protocol.delivery.neighbours import Nacks
    from motet.protocol.delivery.stream import Effects, Stream
    from motet.protocol.delivery.subend import Position

MOST_BLOCKS = 1024
"""Blocks remembered per pubend: more than those of the events in a broker's memory."""
MOST_CUTS = 2048


class Cuts:
    __slots__ = ("_blocks", "_passed", "_ticks", "top")

    def __init__(self) -> None:
        self._ticks: list[int] = []
        self._blocks: list[CutRecord] = []
        self._passed: list[tuple[int, int]] = []
        """Number and tick, ascending: all cuts of decisions up to the number lie up to the tick."""
        self.top = 0
        """No event above this tick belongs to a known block."""

    def note(self, record: CutRecord) -> None:
        """A cut was seen in the stream."""
        if record.number:  # else it belongs to no decision, and has no order among them
            self.passed(record.number - 1, record.tick - 1)
            self.passed(record.number, record.last)
        if record.last <= record.tick:
            return
        at = bisect_left(self._ticks, record.tick)
        if at < len(self._ticks) and self._ticks[at] == record.tick:
            return
        self._ticks.insert(at, record.tick)
        self._blocks.insert(at, record)
        self.top = max(self.top, record.last)
        if len(self._blocks) > MOST_BLOCKS:
            del self._ticks[0], self._blocks[0]

    def passed(self, number: int, tick: int) -> None:
        """All cuts of decisions up to this number lie at or below a tick."""
        if not number:
            return
        if not self._passed or self._passed[-1] < (number, tick):  # nearly always
            self._passed.append((number, tick))
        else:
            at = bisect_left(self._passed, (number, tick))
            if self._passed[at] == (number, tick):
                return
            self._passed.insert(at, (number, tick))
        if len(self._passed) > MOST_CUTS:
            del self._passed[0]

    def end_of(self, number: int) -> int | None:
        """The tick by which the cut of a decision and its block have certainly passed. None: they
        may be yet to come."""
        at = bisect_left(self._passed, (number, 0))
        return min((tick for _, tick in self._passed[at : at + 8]), default=None)

    def block_at(self, tick: int) -> CutRecord | None:
        """The block that an event belongs to."""
        at = bisect_right(self._ticks, tick) - 1
        if at < 0 or not self._ticks[at] < tick <= self._blocks[at].last:
            return None
        return self._blocks[at]


class CutProgress(NamedTuple):
    """The client's position in a pubend, and the known cuts of the pubend."""

    tick: int
    cuts: Cuts
    gone: bool
    """The pubend has been unreachable for too long."""


class BlockPart(NamedTuple):
    """A frame, or a part of one, inside one shared block or outside of all."""

    told: Delivered
    record: CutRecord | None


class BlockQueues:
    """By pubend: parts of blocks that wait, of one client, for the cuts of other pubends."""

    __slots__ = ("_client", "_holders", "_positions", "_queues", "_standing", "wondering")

    def __init__(
        self,
        client: str,
        positions: Mapping[str, Position],
        standing: Callable[[str], CutProgress | None],
        holders: dict[str, BlockQueues],
    ) -> None:
        self._client = client
        self._positions = positions
        self._standing = standing
        self._holders = holders
        self._queues: dict[str, deque[BlockPart]] = {}
        self.wondering: dict[str, None] = {}
        """Pubends of which it is not known whether they have cut."""

    @property
    def holding(self) -> bool:
        return bool(self._queues)

    # ── input ────────────────────────────────────────────────────────────────────────────

    def pass_by(self, told: Delivered, cuts: Cuts) -> list[Delivered]:
        """Return the parts of a frame that need not wait; queue the rest."""
        parts = _split(told, cuts)
        queue = self._queues.get(told.pubend)
        passing: list[Delivered] = []
        for part in parts:
            if queue is None and part.record is None:
                passing.append(part.told)
                continue
            if queue is None:
                queue = self._queues[told.pubend] = deque()
                self._holders[self._client] = self
            queue.append(part)
        if queue is not None:
            self._exempt(told.pubend)
        return passing

    def holds(self, pubend: str, tick: int) -> bool:
        """Does something of this pubend wait that lies at or below a tick?"""
        queue = self._queues.get(pubend)
        if not queue:
            return False
        told = queue[0].told
        return (told.ticks[0] if told.ticks else told.lost[0][0]) <= tick

    def leave(self, pubend: str) -> None:
        """The client does not read this pubend any more."""
        if pubend in self._queues:
            self._drop(pubend)

    # ── release ──────────────────────────────────────────────────────────────────────────

    def release(self) -> list[Delivered]:
        """All frames that need not wait any more, in order."""
        found: list[Delivered] = []
        self.wondering.clear()
        moved = True
        while moved:
            moved = self._flow(found)
            heads = [queue[0].record for queue in self._queues.values()]
            waiting = {each.number: each for each in heads if each is not None}
            for number in sorted(waiting):
                if self._complete(waiting[number]):
                    found += self._take(number)
                    moved = True
                    break
        for pubend in list(self._queues):
            self._exempt(pubend)
        return found

    def _flow(self, found: list[Delivered]) -> bool:
        """Release the frames before the next block of each pubend."""
        before = len(found)
        for pubend, queue in list(self._queues.items()):
            while queue and queue[0].record is None:
                found.append(queue.popleft().told)
            if not queue:
                self._drop(pubend)
        return len(found) > before

    def _drop(self, pubend: str) -> None:
        del self._queues[pubend]
        if not self._queues:
            self._holders.pop(self._client, None)
        position = self._positions.get(pubend)
        if position is not None:
            position.exempt = 0

    def _complete(self, record: CutRecord) -> bool:
        complete = True
        for pubend in record.pubends:
            standing = self._standing(pubend)
            if standing is None or standing.gone:
                continue
            end = standing.cuts.end_of(record.number)
            if end is None:
                self.wondering[pubend] = None
                complete = False
            elif standing.tick < end:
                complete = False
        return complete

    def _take(self, number: int) -> list[Delivered]:
        """The events of one transaction, from the heads of all queues."""
        parts: list[BlockPart] = []
        for pubend, queue in list(self._queues.items()):
            while queue and queue[0].record is not None and queue[0].record.number == number:
                parts.append(queue.popleft())
            if not queue:
                self._drop(pubend)
        return _in_order(parts)

    def _exempt(self, pubend: str) -> None:
        """Exempt only the first block from the window: memory must stay bounded."""
        position = self._positions.get(pubend)
        if position is None:
            return
        first: CutRecord | None = None
        count = 0
        for told, record in self._queues.get(pubend, ()):
            if record is None:
                continue
            if first is None:
                first = record
            if record is not first:
                break
            count += len(told.ticks)
        position.exempt = count


def _split(told: Delivered, cuts: Cuts) -> list[BlockPart]:
    """Parts for shared blocks and the events between them; each marked with its transactions."""
    if not told.ticks:
        return [BlockPart(told, None)]
    blocks = [cuts.block_at(tick) for tick in told.ticks]
    if not any(block is not None and block.is_shared for block in blocks):
        return [BlockPart(_marked(told, blocks), None)]
    parts: list[BlockPart] = []
    begin = 0
    for shared, group in groupby(blocks, lambda b: b if b is not None and b.is_shared else None):
        end = begin + len(list(group))
        upto = told.upto if end == len(blocks) else told.ticks[end] - 1
        piece = slice(begin, end)
        cut = (told.ticks[piece], told.batch[piece], told.every, told.each[piece])
        parts.append(BlockPart(_marked(Delivered(told.pubend, upto, *cut), blocks[piece]), shared))
        begin = end
    return parts


def _marked(told: Delivered, blocks: list[CutRecord | None]) -> Delivered:
    """The frame with the transactions of its events, in the order of the events."""
    marks = dict.fromkeys([(b.tx, b.tick, b.last) for b in blocks if b is not None])
    fields = (told.ticks, told.batch, told.every, told.each)
    return Delivered(told.pubend, told.upto, *fields, blocks=tuple(marks))


class _Event(NamedTuple):
    order: str
    pubend: str
    tick: int
    publication: Publication
    subscriptions: tuple[int, ...]
    block: tuple[str, int, int]


def _in_order(parts: list[BlockPart]) -> list[Delivered]:
    """One sequence of frames, which the client must take together."""
    events: list[_Event] = []
    upto: dict[str, int] = {}
    for told, record in parts:
        assert record is not None
        upto[told.pubend] = max(told.upto, upto.get(told.pubend, 0))
        block = (record.tx, record.tick, record.last)
        for at, (tick, publication) in enumerate(zip(told.ticks, told.batch, strict=True)):
            subscriptions = told.each[at] if told.each else told.every
            order = record.orders[tick - record.tick - 1]
            events.append(_Event(order, told.pubend, tick, publication, subscriptions, block))
    events.sort(key=lambda event: event[:3])
    runs = [list(group) for _, group in groupby(events, lambda event: event.pubend)]
    frames = [_frame(run) for run in runs]
    found: list[Delivered] = []
    for at, frame in reversed(list(enumerate(frames))):
        end = upto.pop(frame.pubend, frame.upto)  # the last frame of its pubend ends its block
        fields = (frame.ticks, frame.batch, frame.every, frame.each, (), frame.blocks)
        found.append(Delivered(frame.pubend, end, *fields, more=at < len(frames) - 1))
    return found[::-1]


def _frame(run: list[_Event]) -> Delivered:
    each = [event.subscriptions for event in run]
    every: tuple[int, ...] = ()
    if each.count(each[0]) == len(each):
        every, each = each[0], []
    ticks = [event.tick for event in run]
    batch = [event.publication for event in run]
    return Delivered(run[0].pubend, ticks[-1], ticks, batch, every, each, blocks=(run[0].block,))


class Holding:
    """All clients of a broker that have waiting blocks."""

    __slots__ = ("_holders", "_nacks", "_stream", "_wondered")

    def __init__(self, nacks: Nacks, stream: Callable[[str], Stream]) -> None:
        self._nacks = nacks
        self._stream = stream
        self._holders: dict[str, BlockQueues] = {}
        self._wondered: dict[str, None] = {}
        """Pubends of which it is not known whether they have cut."""

    def __bool__(self) -> bool:
        return bool(self._holders or self._wondered)

    def begin(self, client: str, positions: Mapping[str, Position]) -> BlockQueues:
        def standing(pubend: str) -> CutProgress | None:
            position = positions.get(pubend)
            if position is None:
                return None
            stream = self._stream(pubend)
            tick = position.standing(stream.subend.horizon)
            return CutProgress(tick, stream.subend.cuts, stream.alone)

        return BlockQueues(client, positions, standing, self._holders)

    def end(self, client: str) -> None:
        self._holders.pop(client, None)

    def release(self, out: Effects) -> None:
        """After a change: release blocks that need not wait any more."""
        wondered: dict[str, None] = {}
        for client, block_queues in list(self._holders.items()):
            out.deliver.extend((client, each) for each in block_queues.release())
            wondered |= block_queues.wondering
        before, self._wondered = self._wondered, wondered
        for stream in map(self._stream, before):
            if stream.pubend not in wondered:
                stream.wondered_at = None
        for stream in map(self._stream, wondered):
            if stream.wondered_at is None:
                stream.wondered_at = out.now
                self._nacks.reconsider(stream, out)
