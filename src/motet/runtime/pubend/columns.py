"""Reading sealed files: whole runs as they lie there, or the rows that a filter finds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from msgspec import Raw

from motet.errors import LogCorrupted
from motet.model import Filter
from motet.runtime.pubend.batches import BATCH_BYTES, Sieve, Sifted
from motet.runtime.pubend.index import (
    BOOL,
    FLOAT,
    INT,
    TEXT,
    TIME,
    Block,
    Column,
    Fetcher,
    Index,
    Runs,
    damaged,
    decode_runs,
)
from motet.runtime.pubend.records import (
    DECODERS,
    ONE,
    RUN,
    Run,
    Ticked,
    count_events,
    last_tick_of,
    packed,
)
from motet.runtime.pubend.selection import Selector

GATHER_SHARE: Final = 16
"""If fewer than one in so many rows are kept, only their bodies are read."""
GAP_BYTES: Final = 32 * 1024
"""Bodies that lie further apart are read one by one."""
Piece = tuple[int, int, int]
"""The number of a run, and rows of it: the first, and the one behind the last."""


def read_columns(path: Path, index: Index, since: int, upto: int, sieve: Sieve) -> Iterator[Sifted]:
    """What is kept of the ticks from `since` to `upto`, piece by piece."""
    for reader in blocks_between(path, index, since, upto):
        if sieve.filter is None or reader.has_leftovers(sieve.filter):
            yield from reader.all(sieve)
        else:
            yield from reader.matching(sieve, sieve.filter)


def blocks_between(path: Path, index: Index, since: int, upto: int) -> Iterator[BlockReader]:
    """Readers of the blocks that have ticks from `since` to `upto`."""
    blocks = index.blocks
    first = bisect_left(blocks, since, key=lambda block: block.last_tick)
    fetcher = Fetcher(path)
    try:
        for block in blocks[first:]:
            if block.first_tick > upto:
                return
            yield BlockReader(fetcher, index, block, since, upto)
    finally:
        fetcher.close()


class BlockReader:
    """Of one block, for the ticks from `since` to `upto`."""

    def __init__(self, fetcher: Fetcher, index: Index, block: Block, since: int, upto: int) -> None:
        self.fetcher = fetcher
        self.index = index
        self.block = block
        self.since = since
        self.upto = upto
        self.runs: Runs = decode_runs(block.runs)
        self._all: tuple[bytes, Sequence[int]] | None = None
        """All bodies, and where each begins."""

    def has_leftovers(self, filter: Filter) -> bool:
        """Does the filter ask for an attribute that may have values outside of the columns?"""
        return any(map(self.index.may_have, attributes_of(filter)))

    def all(self, sieve: Sieve) -> Iterator[Sifted]:
        """Run by run. No event is looked at unless the sieve wants to."""
        runs, names = self.runs, self.index.names
        bodies = memoryview(self.fetcher.chunk(self.block.bodies))
        since, upto = self.since, self.upto
        columns = zip(
            runs.kinds,
            runs.first_ticks,
            runs.publishers,
            runs.epochs,
            runs.first_sequences,
            pairwise(runs.first_rows),
            pairwise(runs.first_bytes),
            strict=True,
        )
        for kind, tick, publisher, epoch, sequence, (row, end_row), (at, end) in columns:
            count = end_row - row
            last_tick = tick + count - 1
            if last_tick < since:
                continue
            if tick > upto:
                return
            if kind != RUN:
                yield Sifted([DECODERS[kind](bodies[at:end])], tick, 0, 0, 0)  # type: ignore[list-item]
                continue
            data = packed(count, bodies[at:end])
            run = Run(tick, names[publisher], names[epoch], sequence, count, data)
            if tick < since or last_tick > upto:
                run = run.part(since, upto)
            yield sieve.sifted(run)

    # ── filtered ─────────────────────────────────────────────────────────────────────────

    def matching(self, sieve: Sieve, filter: Filter) -> Iterator[Sifted]:
        """The rows that the columns say match."""
        runs, block = self.runs, self.block
        selector = Selector(block.rows, self.columns_of, self.index.words)
        rows = selector.rows(filter)
        first = self.row_of(self.since)
        end = self.row_of(self.upto + 1)
        if first > 0 or end < block.rows:
            rows = rows[bisect_left(rows, first) : bisect_left(rows, end)]
        others = [
            row
            for kind, row in zip(runs.kinds, runs.first_rows, strict=False)
            if kind != RUN and first <= row < end
        ]
        if others:
            rows = sorted({*rows, *others})
        scanned = end - first - len(others)
        behind = min(self.upto, block.last_tick)
        if not rows:
            yield Sifted([], behind, scanned, 0, 0)
            return
        gather = self.gather_all if len(rows) * GATHER_SHARE > block.rows else self.gather
        pieces = self.pieces(rows)
        bodies = gather(pieces)
        for at, stop in _parcels(bodies):
            records = self._records(pieces[at:stop], bodies[at:stop])
            if sieve.projection is not None:
                records = [sieve.projected(each) if type(each) is Run else each for each in records]
            is_last = stop == len(pieces)
            yield Sifted(
                records,
                behind if is_last else last_tick_of(records[-1]),
                scanned if is_last else 0,
                count_events(records),
                sum(map(len, bodies[at:stop])),
            )

    def row_of(self, tick: int) -> int:
        """The first row with this tick or a later one."""
        runs = self.runs
        at = bisect_right(runs.first_ticks, tick) - 1
        if at < 0:
            return 0
        return min(runs.first_rows[at] + tick - runs.first_ticks[at], runs.first_rows[at + 1])

    def pieces(self, rows: Sequence[int]) -> list[Piece]:
        """Rows of the same run that follow each other become one piece."""
        firsts = self.runs.first_rows
        pieces = []
        first = stop = end = at = 0
        """The piece so far, and where its run ends."""
        for row in rows:
            if row == stop and row < end:
                stop += 1
                continue
            if stop:
                pieces.append((at, first, stop))
            if row >= end:
                at = bisect_right(firsts, row, at) - 1
                end = firsts[at + 1]
            first, stop = row, row + 1
        pieces.append((at, first, stop))
        return pieces

    def _records(self, pieces: list[Piece], bodies: list[bytes]) -> list[Ticked]:
        runs, names = self.runs, self.index.names
        kinds, firsts, ticks = runs.kinds, runs.first_rows, runs.first_ticks
        publishers, epochs, sequences = runs.publishers, runs.epochs, runs.first_sequences
        records: list[Ticked] = []
        for (at, first, stop), body in zip(pieces, bodies, strict=True):
            if kinds[at] != RUN:
                records.append(DECODERS[kinds[at]](body))  # type: ignore[arg-type]
                continue
            skipped, count = first - firsts[at], stop - first
            run = Run(
                ticks[at] + skipped,
                names[publishers[at]],
                names[epochs[at]],
                sequences[at] + skipped,
                count,
                packed(count, body) if count > 1 else Raw(ONE + body),
            )
            records.append(run)
        return records

    def gather_all(self, pieces: list[Piece]) -> list[bytes]:
        """The bodies of each piece, when they are many: read all, and verify that."""
        if self._all is None:
            fetch, block = self.fetcher.chunk, self.block
            self._all = fetch(block.bodies), memoryview(fetch(block.offsets)).cast("i")
        data, offsets = self._all
        return [data[offsets[first] : offsets[stop]] for _, first, stop in pieces]

    def gather(self, pieces: list[Piece]) -> list[bytes]:
        """The bodies of each piece, when they are few: read little more, and verify each body."""
        block, fetch = self.block, self.fetcher.bytes
        # Not verified: whatever is wrong with them, the body does not have its checksum then.
        offsets = memoryview(fetch(block.offsets.offset, block.offsets.size)).cast("i")
        checksums = memoryview(fetch(block.checksums.offset, block.checksums.size)).cast("I")
        begin, behind = block.bodies.offset, block.bodies.size
        bodies: list[bytes] = []
        data, start, end = b"", 0, -1
        """What was read last, and where that begins and ends."""
        for number, (_, first, stop) in enumerate(pieces):
            low, high = offsets[first], offsets[stop]
            if not end >= high >= low >= start:
                start, end = low, max(self._span(offsets, pieces, number), high)
                if not 0 <= start <= end <= behind:
                    raise self._changed(low)
                data = fetch(begin + start, end - start)
            body = data[low - start : high - start]
            if stop - first == 1:
                if crc32(body) != checksums[first]:
                    raise self._changed(low)
            else:
                for row in range(first, stop):
                    if crc32(body[offsets[row] - low : offsets[row + 1] - low]) != checksums[row]:
                        raise self._changed(offsets[row])
            bodies.append(body)
        return bodies

    def _span(self, offsets: Sequence[int], pieces: list[Piece], number: int) -> int:
        """How far to read at once from this piece on: what lies between two pieces that are near
        to each other costs less than asking the disk again."""
        end = offsets[pieces[number][2]]
        for _, first, stop in islice(pieces, number + 1, None):
            if offsets[first] - end > GAP_BYTES:
                break
            end = offsets[stop]
        return end

    def _changed(self, offset: int) -> LogCorrupted:
        place = self.block.bodies.offset + offset
        return damaged(self.fetcher.path, f"the event at offset {place} has changed")

    def columns_of(self, name: str) -> dict[str, Any]:
        import pyarrow  # only where columns are needed: it is large

        columns = self.block.columns.get(name, {})
        return {kind: self._array(pyarrow, name, kind, each) for kind, each in columns.items()}

    def _array(self, arrow: Any, name: str, kind: str, column: Column) -> Any:
        fetch = self.fetcher.chunk
        chunks = [column.validity, *column.data]
        buffers = [arrow.py_buffer(fetch(each)) if each is not None else None for each in chunks]
        if kind == TEXT and name in self.index.words:
            type_ = arrow.int16()
        else:
            type_ = arrow_type(arrow, kind, self.index.bits.get(name, 64))
        return arrow.Array.from_buffers(type_, self.block.rows, buffers)


def attributes_of(filter: Filter) -> Iterator[str]:
    """What a filter asks for."""
    for clause in filter.clauses:
        for name, _ in clause.constraints:
            yield name


def _parcels(bodies: list[bytes]) -> Iterator[tuple[int, int]]:
    """Cut what matches, all of a block perhaps, so that it fits into batches."""
    first, size = 0, 0
    for at, body in enumerate(bodies, 1):
        size += len(body)
        if size >= BATCH_BYTES or at == len(bodies):
            yield first, at
            first, size = at, 0


def arrow_type(arrow: Any, kind: str, bits: int = 64) -> Any:
    if kind == INT:
        return {8: arrow.int8, 16: arrow.int16, 32: arrow.int32, 64: arrow.int64}[bits]()
    if kind == TIME:
        return arrow.timestamp("us", tz="UTC")
    return {BOOL: arrow.bool_, FLOAT: arrow.float64, TEXT: arrow.string}[kind]()
