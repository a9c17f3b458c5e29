"""Events of one transaction from several pubends: one client gets them together, in plan order.

Frames of a pubend wait from the first event of such a block on, until every pubend with events in
the transaction, as far as the client reads it, has passed its cut. Then all events of the
transaction go, in the order of the transaction, and what has come behind them follows.

Nothing waits for ever: cuts stand in the same order in all logs, so of all that wait, the
transaction that was decided first waits for nothing that waits itself. Who cannot be reached any
more, or is destroyed, is not waited for. And events of the block that waits first do not count
against the client's window, else a small window might never see the end of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from motet.protocol.delivery.cuts import Cuts
from motet.protocol.delivery.messages import Delivered
from motet.protocol.delivery.spans import CutRecord
from motet.protocol.publication import Publication

if TYPE_CHECKING:
    from motet.protocol.delivery.asking import Asking
    from motet.protocol.delivery.position import Position
    from motet.protocol.delivery.state import Effects, Stream


class Standing(NamedTuple):
    """Where the client stands in a pubend, and what is known of the pubend's cuts."""

    tick: int
    cuts: Cuts
    gone: bool
    """It cannot be reached, and not for a while only."""


class Part(NamedTuple):
    """A frame, or a piece of one, that lies inside one block, or outside of all shared ones."""

    told: Delivered
    record: CutRecord | None


class Together:
    __slots__ = ("_client", "_holders", "_positions", "_queues", "_standing", "wondering")

    def __init__(
        self,
        client: str,
        positions: Mapping[str, Position],
        standing: Callable[[str], Standing | None],
        holders: dict[str, Together],
    ) -> None:
        self._client = client
        self._positions = positions
        self._standing = standing
        self._holders = holders
        self._queues: dict[str, deque[Part]] = {}
        self.wondering: dict[str, None] = {}
        """Pubends of which must be found out whether they have cut."""

    @property
    def holding(self) -> bool:
        return bool(self._queues)

    # ── what comes ───────────────────────────────────────────────────────────────────────

    def pass_by(self, told: Delivered, cuts: Cuts) -> list[Delivered]:
        """What of a frame need not wait; the rest does."""
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

    def leave(self, pubend: str) -> None:
        """The client reads this pubend no more."""
        if pubend in self._queues:
            self._drop(pubend)

    # ── what goes ────────────────────────────────────────────────────────────────────────

    def release(self) -> list[Delivered]:
        """All that waits for nothing any more, in order."""
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
        """What stands before the next block of each pubend goes."""
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
        parts: list[Part] = []
        for pubend, queue in list(self._queues.items()):
            while queue and queue[0].record is not None and queue[0].record.number == number:
                parts.append(queue.popleft())
            if not queue:
                self._drop(pubend)
        return _in_order(parts)

    def _exempt(self, pubend: str) -> None:
        """Only the first block: memory must stay bounded."""
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


def _split(told: Delivered, cuts: Cuts) -> list[Part]:
    """One part per shared block, and what lies between; marked with all transactions in them."""
    if not told.ticks:
        return [Part(told, None)]
    blocks = [cuts.block_at(tick) for tick in told.ticks]
    if not any(block is not None and block.is_shared for block in blocks):
        return [Part(_marked(told, blocks), None)]
    parts: list[Part] = []
    begin = 0
    for shared, group in groupby(blocks, lambda b: b if b is not None and b.is_shared else None):
        end = begin + len(list(group))
        upto = told.upto if end == len(blocks) else told.ticks[end] - 1
        piece = slice(begin, end)
        cut = (told.ticks[piece], told.batch[piece], told.every, told.each[piece])
        parts.append(Part(_marked(Delivered(told.pubend, upto, *cut), blocks[piece]), shared))
        begin = end
    return parts


def _marked(told: Delivered, blocks: list[CutRecord | None]) -> Delivered:
    """With the transactions that its events belong to, in the order of the events."""
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


def _in_order(parts: list[Part]) -> list[Delivered]:
    """As one sequence of frames, of which none may be taken without the others."""
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
    """All clients of a broker for whom events wait."""

    __slots__ = ("_asking", "_holders", "_stream", "_wondered")

    def __init__(self, asking: Asking, stream: Callable[[str], Stream]) -> None:
        self._asking = asking
        self._stream = stream
        self._holders: dict[str, Together] = {}
        self._wondered: dict[str, None] = {}
        """Pubends of which they must hear whether they have cut."""

    def __bool__(self) -> bool:
        return bool(self._holders or self._wondered)

    def begin(self, client: str, positions: Mapping[str, Position]) -> Together:
        def standing(pubend: str) -> Standing | None:
            position = positions.get(pubend)
            if position is None:
                return None
            stream = self._stream(pubend)
            tick = position.standing(stream.subend.horizon)
            return Standing(tick, stream.subend.cuts, stream.alone)

        return Together(client, positions, standing, self._holders)

    def end(self, client: str) -> None:
        self._holders.pop(client, None)

    def release(self, now: float, out: Effects) -> None:
        """Something has moved: perhaps some wait for nothing any more."""
        wondered: dict[str, None] = {}
        for client, together in list(self._holders.items()):
            out.deliver.extend((client, each) for each in together.release())
            wondered |= together.wondering
        before, self._wondered = self._wondered, wondered
        for stream in map(self._stream, before):
            if stream.pubend not in wondered:
                stream.wondered_at = None
        for stream in map(self._stream, wondered):
            if stream.wondered_at is None:
                stream.wondered_at = now
                self._asking.reconsider(stream, now, out)
