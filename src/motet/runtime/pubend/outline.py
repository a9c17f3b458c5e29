"""Outlines: sizes and transactions along the stream, without the content of its events. Of sealed
parts only the index and the cuts of transactions are read."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from motet.protocol.reading.messages import REST, LogStep
from motet.runtime.pubend.columns import BlockReader, Index, Runs, blocks_between
from motet.runtime.pubend.reading import Lost, StreamReading
from motet.runtime.pubend.records import (
    CUT,
    DECODERS,
    PREDECESSORS,
    RUN,
    EventRun,
    StoredCut,
    StoredPredecessors,
    Ticked,
)
from motet.runtime.pubend.state import Part, SealedPart


class Grain(NamedTuple):
    """Adjacent runs may be joined if together they are not larger than this."""

    events: int
    size_bytes: int


class OutlineEntry(NamedTuple):
    """A record of the stream, or several runs of events, without the content."""

    first_tick: int
    upto: int
    """The last tick."""
    events: int
    size_bytes: int
    is_block: bool = False
    """It has events of a transaction."""
    cut: StoredCut | None = None
    after: tuple[tuple[str, int], ...] = ()
    """Later entries come behind these pubends, each up to a tick."""

    @property
    def is_solid(self) -> bool:
        """Whether there is an event at every tick."""
        return self.upto - self.first_tick + 1 == self.events


def entry_of(record: Ticked) -> OutlineEntry:
    if isinstance(record, EventRun):
        first, last = record.first_tick, record.last_tick
        return OutlineEntry(first, last, record.count, record.size_bytes, not record.epoch)
    cut = record if isinstance(record, StoredCut) else None
    after = named_by(record) if isinstance(record, StoredPredecessors) else ()
    return OutlineEntry(record.tick, record.tick, 0, 0, cut=cut, after=after)


def named_by(record: StoredPredecessors) -> tuple[tuple[str, int], ...]:
    """Every pubend that a reader must have read first."""
    return (*record.predecessors, *record.trail)


def sealed_entries(
    path: Path, index: Index, since: int, upto: int, grain: Grain
) -> Iterator[OutlineEntry]:
    for reader in blocks_between(path, index, since, upto):
        block = reader.block
        is_inside = since <= block.first_tick and block.last_tick <= upto
        if is_inside and _is_plain(reader.runs, index):
            most = min(grain.events, grain.size_bytes * block.rows // max(block.bodies.size, 1))
            yield from _joined(reader.runs, most)
        else:
            yield from _block_entries(reader, index, since, upto)


def _is_plain(runs: Runs, index: Index) -> bool:
    """Whether there are only events outside of transactions."""
    return {*runs.kinds} == {RUN} and all(index.names[epoch] for epoch in {*runs.epochs})


def _joined(runs: Runs, most_events: int) -> Iterator[OutlineEntry]:
    """Several runs as one entry, because most logs have very many small ones."""
    ticks, rows, sizes = runs.first_ticks, runs.first_rows, runs.first_bytes
    at = 0
    while at < len(ticks):
        end = max(bisect_right(rows, rows[at] + most_events) - 1, at + 1)
        last = ticks[end - 1] + rows[end] - rows[end - 1] - 1
        yield OutlineEntry(ticks[at], last, rows[end] - rows[at], sizes[end] - sizes[at])
        at = end


def _block_entries(
    reader: BlockReader, index: Index, since: int, upto: int
) -> Iterator[OutlineEntry]:
    runs = reader.runs
    wanted = [at for at, kind in enumerate(runs.kinds) if kind in (CUT, PREDECESSORS)]
    pieces = [(at, runs.first_rows[at], runs.first_rows[at] + 1) for at in wanted]
    bodies = dict(zip(wanted, reader.gather(pieces), strict=True)) if wanted else {}
    spans = zip(pairwise(runs.first_rows), pairwise(runs.first_bytes), strict=True)
    for at, ((row, end_row), (begin, end)) in enumerate(spans):
        first, count, size = runs.first_ticks[at], end_row - row, end - begin
        last = first + count - 1
        if last < since:
            continue
        if first > upto:
            return
        if runs.kinds[at] != RUN:
            if at in bodies:
                yield entry_of(DECODERS[runs.kinds[at]](bodies[at]))  # type: ignore[arg-type]
            else:
                yield OutlineEntry(first, first, 0, 0)
            continue
        kept_first, kept_last = max(first, since), min(last, upto)
        kept = kept_last - kept_first + 1
        is_block = not index.names[runs.epochs[at]]
        yield OutlineEntry(kept_first, kept_last, kept, size * kept // count, is_block)


# ── steps ────────────────────────────────────────────────────────────────────────────────

OUTLINE_S: Final = 0.1
"""The answer to a request for an outline is sent after this time at the latest."""
MOST_STEPS: Final = 4096
GRAINS: Final = 16
"""A step may exceed its size by one part in this many."""


class Measure(Struct, frozen=True):
    """A request: steps of about `step_events` or `step_bytes`, up to the totals `most_events` or
    `most_bytes`. With `every_block`, transactions of a single pubend are separate steps, too."""

    step_events: int
    step_bytes: int
    most_events: int
    most_bytes: int
    every_block: bool = False

    @property
    def grain(self) -> Grain:
        return Grain(self.step_events // GRAINS, self.step_bytes // GRAINS)


class Outlined(Struct, frozen=True):
    """The steps of the stream from tick `since` to tick `upto`. If `lost`, it is not kept."""

    since: int
    upto: int
    lost: bool
    steps: list[LogStep]


class OutlineReading:
    def __init__(self, stream: StreamReading) -> None:
        self._stream = stream

    @property
    def gone_cut(self) -> int:
        """The number of the last cut that is no longer kept; 0 if all are."""
        return self._stream.parts()[0].cut_before

    def piece(self, since: int, last: int, measure: Measure) -> Outlined:
        """The first piece of the ticks from `since` to `last`, which are durable. It ends before a
        transaction whose events are not all there."""

        def read(part: Part, first: int, upto: int) -> Iterator[OutlineEntry]:
            if isinstance(part, SealedPart):
                return self._stream.shelf.entries(part, first, upto, measure.grain)
            batches = self._stream.batches_of_rows(first, upto, None)
            return (entry_of(record) for batch in batches for record in batch.records)

        steps = Steps(since, last, measure)
        until_s = time.monotonic() + OUTLINE_S
        for found in self._stream.along(since, last, read):
            if isinstance(found, Lost):
                if found.since > since:
                    return steps.outlined(found.since - 1)
                return Outlined(since, found.upto, True, [])
            steps.take(found)
            if steps.is_full or (steps.steps and time.monotonic() > until_s):
                return steps.outlined(found.upto)
        return steps.outlined(last)


class Steps:
    """Collects entries into steps. No step ends within a transaction's events."""

    def __init__(self, since: int, last: int, measure: Measure) -> None:
        self.steps: list[LogStep] = []
        self._since = since
        self._last = last
        self._measure = measure
        self._closed = since - 1
        """The last tick of the last finished step."""
        self._passed = since - 1
        """The last tick of the current step so far."""
        self._events = self._bytes = 0
        self._all_events = self._all_bytes = 0
        self._cut: StoredCut | None = None
        self._block_events = self._block_bytes = 0
        self._is_cut_off = False
        """Some entries were not taken."""
        self._after: dict[str, int] = {}
        """Of the current step."""

    @property
    def is_full(self) -> bool:
        measure = self._measure
        return (
            self._is_cut_off
            or len(self.steps) >= MOST_STEPS
            or self._all_events >= measure.most_events
            or self._all_bytes >= measure.most_bytes
        )

    def take(self, entry: OutlineEntry) -> None:
        cut = entry.cut
        if cut is not None and cut.last > cut.tick:
            if cut.last > self._last:
                self._is_cut_off = True
            else:
                self._cut, self._block_events, self._block_bytes = cut, 0, 0
        elif self._cut is not None:
            self._block_events += entry.events
            self._block_bytes += entry.size_bytes
            if entry.upto >= self._cut.last:
                self._block(self._cut)
        elif entry.is_block:
            self._step_before(entry.first_tick)
            self._count(entry.upto, entry.events, entry.size_bytes)
            self._step(entry.upto, REST)
        elif entry.events and not entry.is_solid:
            self._count(entry.upto, entry.events, entry.size_bytes)
            self._look()
        elif entry.after:
            self._step_before(entry.first_tick)
            for pubend, tick in entry.after:
                self._after[pubend] = max(tick, self._after.get(pubend, 0))
            self._passed = entry.upto
        else:
            self._run(entry)

    def _block(self, cut: StoredCut) -> None:
        """All events of a transaction are counted."""
        self._cut = None
        is_own = self._measure.every_block or len(cut.pubends) > 1
        if is_own:
            self._step_before(cut.tick)
        self._count(cut.last, self._block_events, self._block_bytes)
        if is_own:
            self._step(cut.last, cut.number, cut.tx, cut.pubends)
        else:
            self._look()

    def _run(self, entry: OutlineEntry) -> None:
        first, left, size = entry.first_tick, entry.events, entry.size_bytes
        if not left:
            self._passed = entry.upto
        while left and not self.is_full:
            each = max(size // left, 1)
            room = self._measure.step_events - self._events
            room = min(room, max((self._measure.step_bytes - self._bytes) // each, 1))
            taken = min(left, room)
            taken_bytes = size * taken // left
            self._count(first + taken - 1, taken, taken_bytes)
            self._look()
            first, left, size = first + taken, left - taken, size - taken_bytes
        self._is_cut_off = left > 0

    def _count(self, upto: int, events: int, size_bytes: int) -> None:
        self._passed = upto
        self._events += events
        self._bytes += size_bytes
        self._all_events += events
        self._all_bytes += size_bytes

    def _look(self) -> None:
        measure = self._measure
        if self._events >= measure.step_events or self._bytes >= measure.step_bytes:
            self._step(self._passed)

    def _step_before(self, tick: int) -> None:
        if self._events:
            self._step(tick - 1)

    def _step(
        self, upto: int, number: int = 0, tx: str = "", pubends: tuple[str, ...] = ()
    ) -> None:
        if upto > self._closed:
            after = tuple(self._after.items())
            self.steps.append(LogStep(upto, self._events, self._bytes, number, tx, pubends, after))
            self._closed = self._passed = upto
            self._events = self._bytes = 0
            self._after = {}

    def outlined(self, upto: int) -> Outlined:
        """Finish: all up to this tick was taken, or follows an entry that cannot be taken."""
        if self._is_cut_off or self._cut is not None:
            upto = self._passed
        self._step(max(upto, self._passed))
        return Outlined(self._since, self._closed, False, self.steps)
