"""Reading sealed files: whole runs as they lie there, or the rows that a filter finds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from motet.model import Filter
from motet.runtime.pubend.batches import BATCH_BYTES, Sieve, Sifted, stretches
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
                yield Sifted([DECODERS[kind](bodies[at:end])], tick, 0)  # type: ignore[list-item]
                continue
            data = packed(count, bodies[at:end])
            run = Run(tick, names[publisher], names[epoch], sequence, count, data)
            if tick < since or last_tick > upto:
                run = run.part(since, upto)
            kept: list[Ticked] = [run] if sieve.keeps_all else list(sieve.sift(run))
            yield Sifted(kept, run.last_tick, run.count)

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
        records = self._records(rows) if rows else []
        if sieve.projection is not None:
            records = [
                each.piece(sieve.projected(each, each.bodies), 0, each.count)
                if isinstance(each, Run)
                else each
                for each in records
            ]
        events = end - first - len(others)
        first, size = 0, 0
        for at, each in enumerate(records):
            size += each.size_bytes if isinstance(each, Run) else 0
            if size >= BATCH_BYTES:
                yield Sifted(records[first : at + 1], last_tick_of(each), 0)
                first, size = at + 1, 0
        yield Sifted(records[first:], min(self._upto, block.last_tick), events)

    def _row_of(self, tick: int) -> int:
        """The first row with this tick or a later one."""
        runs = self._runs
        at = bisect_right(runs.first_ticks, tick) - 1
        if at < 0:
            return 0
        return min(runs.first_rows[at] + tick - runs.first_ticks[at], runs.first_rows[at + 1])

    def _records(self, rows: Sequence[int]) -> list[Ticked]:
        """Rows of the same run that follow each other become one run."""
        runs, names = self._runs, self._index.names
        firsts = runs.first_rows
        body_of = self._bodies(rows)
        records: list[Ticked] = []
        for first, count in stretches(rows):
            end = first + count
            while first < end:
                at = bisect_right(firsts, first) - 1
                stop = min(end, firsts[at + 1])
                body = body_of(first, stop)
                if runs.kinds[at] != RUN:
                    records.append(DECODERS[runs.kinds[at]](body))  # type: ignore[arg-type]
                else:
                    skipped = first - firsts[at]
                    run = Run(
                        runs.first_ticks[at] + skipped,
                        names[runs.publishers[at]],
                        names[runs.epochs[at]],
                        runs.first_sequences[at] + skipped,
                        stop - first,
                        packed(stop - first, body),
                    )
                    records.append(run)
                first = stop
        return records

    def _bodies(self, rows: Sequence[int]) -> Any:
        """Gives the bodies from one row up to another, verified."""
        block, fetch = self._block, self._fetcher
        offsets = memoryview(fetch.chunk(block.offsets)).cast("i")
        if len(rows) * FETCH_SINGLY > block.rows:
            bodies = memoryview(fetch.chunk(block.bodies))
            return lambda first, stop: bodies[offsets[first] : offsets[stop]]
        checksums = memoryview(fetch.chunk(block.checksums)).cast("I")
        begin = block.bodies.offset

        def singly(first: int, stop: int) -> bytes:
            start = offsets[first]
            data = fetch.bytes(begin + start, offsets[stop] - start)
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
        numbered = name in self._index.words
        return {kind: self._array(pyarrow, kind, numbered, each) for kind, each in columns.items()}

    def _array(self, arrow: Any, kind: str, numbered: bool, column: Column) -> Any:
        fetch = self._fetcher.chunk
        chunks = [column.validity, *column.data]
        buffers = [arrow.py_buffer(fetch(each)) if each is not None else None for each in chunks]
        type_ = arrow.int16() if kind == TEXT and numbered else arrow_type(arrow, kind)
        return arrow.Array.from_buffers(type_, self._block.rows, buffers)


def arrow_type(arrow: Any, kind: str) -> Any:
    if kind == TIME:
        return arrow.timestamp("us", tz="UTC")
    return {BOOL: arrow.bool_, INT: arrow.int64, FLOAT: arrow.float64, TEXT: arrow.string}[kind]()
