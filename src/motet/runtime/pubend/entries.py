"""Records of the stream without what is in them. Of sealed parts only the index is read, and the
cuts of transactions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from motet.runtime.pubend.columns import BlockReader, blocks_between
from motet.runtime.pubend.index import Index, Runs
from motet.runtime.pubend.records import CUT, DECODERS, RUN, Cut, Run, Ticked


class Grain(NamedTuple):
    """Neighbouring runs need not be told apart if they are not more than this together."""

    events: int
    size_bytes: int


class Entry(NamedTuple):
    """A record of the stream, or several runs of events, but for what is in them."""

    first_tick: int
    last_tick: int
    events: int
    size_bytes: int
    is_block: bool = False
    """It has events of a transaction."""
    cut: Cut | None = None

    @property
    def is_solid(self) -> bool:
        """Is there an event at every tick?"""
        return self.last_tick - self.first_tick + 1 == self.events


def entry_of(record: Ticked) -> Entry:
    if isinstance(record, Run):
        first, last = record.first_tick, record.last_tick
        return Entry(first, last, record.count, record.size_bytes, not record.epoch)
    cut = record if isinstance(record, Cut) else None
    return Entry(record.tick, record.tick, 0, 0, cut=cut)


def sealed_entries(
    path: Path, index: Index, since: int, upto: int, grain: Grain
) -> Iterator[Entry]:
    for reader in blocks_between(path, index, since, upto):
        block = reader.block
        is_inside = since <= block.first_tick and block.last_tick <= upto
        if is_inside and _is_plain(reader.runs, index):
            most = min(grain.events, grain.size_bytes * block.rows // max(block.bodies.size, 1))
            yield from _joined(reader.runs, most)
        else:
            yield from _block_entries(reader, index, since, upto)


def _is_plain(runs: Runs, index: Index) -> bool:
    """Is there nothing but events outside of transactions?"""
    return {*runs.kinds} == {RUN} and all(index.names[epoch] for epoch in {*runs.epochs})


def _joined(runs: Runs, most_events: int) -> Iterator[Entry]:
    """Several runs as one entry, because most logs have very many small ones."""
    ticks, rows, sizes = runs.first_ticks, runs.first_rows, runs.first_bytes
    at = 0
    while at < len(ticks):
        end = max(bisect_right(rows, rows[at] + most_events) - 1, at + 1)
        last = ticks[end - 1] + rows[end] - rows[end - 1] - 1
        yield Entry(ticks[at], last, rows[end] - rows[at], sizes[end] - sizes[at])
        at = end


def _block_entries(reader: BlockReader, index: Index, since: int, upto: int) -> Iterator[Entry]:
    runs = reader.runs
    cuts = [(at, runs.first_rows[at]) for at, kind in enumerate(runs.kinds) if kind == CUT]
    pieces = [(at, row, row + 1) for at, row in cuts]
    bodies = dict(zip((at for at, _ in cuts), reader.gather(pieces), strict=True)) if cuts else {}
    spans = zip(pairwise(runs.first_rows), pairwise(runs.first_bytes), strict=True)
    for at, ((row, end_row), (begin, end)) in enumerate(spans):
        first, count, size = runs.first_ticks[at], end_row - row, end - begin
        last = first + count - 1
        if last < since:
            continue
        if first > upto:
            return
        if runs.kinds[at] != RUN:
            cut: Cut | None = DECODERS[CUT](bodies[at]) if at in bodies else None  # type: ignore[assignment]
            yield Entry(first, first, 0, 0, cut=cut)
            continue
        kept_first, kept_last = max(first, since), min(last, upto)
        kept = kept_last - kept_first + 1
        is_block = not index.names[runs.epochs[at]]
        yield Entry(kept_first, kept_last, kept, size * kept // count, is_block)
