"""Reading sealed files: whole runs as they lie there, or the rows that a filter finds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from motet.model import Filter
from motet.runtime.pubend.batches import Sieve, Sifted, stretches
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
from motet.runtime.pubend.records import DECODERS, RUN, Run, Ticked, last_tick_of, packed
from motet.runtime.pubend.selection import Selector

FETCH_SINGLY: Final = 16
"""If fewer than one in so many rows are kept, only their bodies are read."""


PIECE_ROWS: Final = 4096
"""How many matching rows come at once."""

BodyOf = Callable[[int, int], bytes | memoryview]
"""The bodies from one row up to another, verified."""


def read_columns(path: Path, index: Index, since: int, upto: int, sieve: Sieve) -> Iterator[Sifted]:
    """What is kept of the ticks from `since` to `upto`, piece by piece."""
    blocks = index.blocks
    first = bisect_left(blocks, since, key=lambda block: block.last_tick)
    fetcher = Fetcher(path)
    try:
        for block in blocks[first:]:
            if block.first_tick > upto:
                return
            reader = _Reader(fetcher, index, block, since, upto)
            if sieve.filter is None or reader.has_leftovers(sieve.filter):
                yield from reader.all(sieve)
            else:
                yield from reader.matching(sieve, sieve.filter)
    finally:
        fetcher.close()


class _Reader:
    """Of one block."""

    def __init__(self, fetcher: Fetcher, index: Index, block: Block, since: int, upto: int) -> None:
        self._fetcher = fetcher
        self._index = index
        self._block = block
        self._since = since
        self._upto = upto
        self._runs: Runs = decode_runs(block.runs)

    def has_leftovers(self, filter: Filter) -> bool:
        """Does the filter ask for an attribute that may have values outside of the columns?"""
        return any(
            self._index.may_have(name)
            for clause in filter.clauses
            for name, _ in clause.constraints
        )

    def all(self, sieve: Sieve) -> Iterator[Sifted]:
        """Run by run. No event is looked at unless the sieve wants to."""
        runs, names = self._runs, self._index.names
        bodies = memoryview(self._fetcher.chunk(self._block.bodies))
        since, upto = self._since, self._upto
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
        runs, block = self._runs, self._block
        selector = Selector(block.rows, self._columns, self._index.words)
        rows = selector.rows(filter)
        first = self._row_of(self._since)
        end = self._row_of(self._upto + 1)
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
        behind = min(self._upto, block.last_tick)
        if not rows:
            yield Sifted([], behind, scanned, 0, 0)
            return
        body_of = self._bodies(rows)
        for at in range(0, len(rows), PIECE_ROWS):
            piece = rows[at : at + PIECE_ROWS]
            records, events, size = self._records(piece, body_of)
            if sieve.projection is not None:
                records = [sieve.projected(each) if type(each) is Run else each for each in records]
                size = sum(each.size_bytes for each in records if type(each) is Run)
            is_last = at + PIECE_ROWS >= len(rows)
            upto = behind if is_last else last_tick_of(records[-1])
            yield Sifted(records, upto, scanned if is_last else 0, events, size)

    def _row_of(self, tick: int) -> int:
        """The first row with this tick or a later one."""
        runs = self._runs
        at = bisect_right(runs.first_ticks, tick) - 1
        if at < 0:
            return 0
        return min(runs.first_rows[at] + tick - runs.first_ticks[at], runs.first_rows[at + 1])

    def _records(self, rows: Sequence[int], body_of: BodyOf) -> tuple[list[Ticked], int, int]:
        """Rows of the same run that follow each other become one run. How many events these
        are, and their size."""
        runs, names = self._runs, self._index.names
        kinds, firsts, first_ticks = runs.kinds, runs.first_rows, runs.first_ticks
        records: list[Ticked] = []
        events = size = 0
        for first, count in stretches(rows):
            end = first + count
            while first < end:
                at = bisect_right(firsts, first) - 1
                stop = min(end, firsts[at + 1])
                body = body_of(first, stop)
                if kinds[at] != RUN:
                    records.append(DECODERS[kinds[at]](body))  # type: ignore[arg-type]
                    first = stop
                    continue
                skipped, number = first - firsts[at], stop - first
                run = Run(
                    first_ticks[at] + skipped,
                    names[runs.publishers[at]],
                    names[runs.epochs[at]],
                    runs.first_sequences[at] + skipped,
                    number,
                    packed(number, body),
                )
                records.append(run)
                events += number
                size += len(body)
                first = stop
        return records, events, size

    def _bodies(self, rows: Sequence[int]) -> BodyOf:
        """Gives the bodies from one row up to another, verified."""
        block, fetch = self._block, self._fetcher
        if len(rows) * FETCH_SINGLY > block.rows:
            offsets = memoryview(fetch.chunk(block.offsets)).cast("i")
            bodies = memoryview(fetch.chunk(block.bodies))
            return lambda first, stop: bodies[offsets[first] : offsets[stop]]
        # Not verified: whatever is wrong with them, the body does not have its checksum then.
        offsets = memoryview(fetch.bytes(block.offsets.offset, block.offsets.size)).cast("i")
        checksums = memoryview(fetch.bytes(block.checksums.offset, block.checksums.size)).cast("I")
        begin, read = block.bodies.offset, fetch.bytes

        def singly(first: int, stop: int) -> bytes:
            start = offsets[first]
            size = offsets[stop] - start
            if start < 0 or not 0 <= size <= block.bodies.size:
                raise damaged(fetch.path, f"row {first} has no body")
            data = read(begin + start, size)
            if stop - first == 1 and crc32(data) == checksums[first]:
                return data
            for row in range(first, stop):
                body = data[offsets[row] - start : offsets[row + 1] - start]
                if crc32(body) != checksums[row]:
                    raise damaged(
                        fetch.path, f"the event at offset {begin + offsets[row]} has changed"
                    )
            return data

        return singly

    def _columns(self, name: str) -> dict[str, Any]:
        import pyarrow  # only where columns are needed: it is large

        columns = self._block.columns.get(name, {})
        return {kind: self._array(pyarrow, name, kind, each) for kind, each in columns.items()}

    def _array(self, arrow: Any, name: str, kind: str, column: Column) -> Any:
        fetch = self._fetcher.chunk
        chunks = [column.validity, *column.data]
        buffers = [arrow.py_buffer(fetch(each)) if each is not None else None for each in chunks]
        if kind == TEXT and name in self._index.words:
            type_ = arrow.int16()
        else:
            type_ = arrow_type(arrow, kind, self._index.bits.get(name, 64))
        return arrow.Array.from_buffers(type_, self._block.rows, buffers)


def arrow_type(arrow: Any, kind: str, bits: int = 64) -> Any:
    if kind == INT:
        return {8: arrow.int8, 16: arrow.int16, 32: arrow.int32, 64: arrow.int64}[bits]()
    if kind == TIME:
        return arrow.timestamp("us", tz="UTC")
    return {BOOL: arrow.bool_, FLOAT: arrow.float64, TEXT: arrow.string}[kind]()
