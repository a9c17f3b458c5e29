"""Sealed files: their layout, and reading them; beside every Arrow file lies its index.

A sealed file is an ordinary Arrow IPC file, which other programs can open. We read it without its
metadata: the index has the place and the checksum of each buffer of each column, so that a read
fetches and verifies only what it needs.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from motet.errors import LogCorrupted, WrittenByAnotherVersion
from motet.model import Filter
from motet.runtime.log.files import unreadable
from motet.runtime.log.layout import pread
from motet.runtime.pubend.reading import BATCH_BYTES, RecordSlice, sifted
from motet.runtime.pubend.records import (
    DECODERS,
    ONE,
    RUN,
    EventRun,
    Ticked,
    count_events,
    last_tick_of,
    packed,
)
from motet.runtime.pubend.selection import BOOL, FLOAT, INT, TEXT, TIME, Selector

FORMAT: Final = 1
WITH_PREDECESSORS: Final = 2
"""The format of files that have records of this kind, which earlier releases do not know."""


class Chunk(Struct, array_like=True, frozen=True, gc=False):
    """A buffer in the file."""

    offset: int
    size: int
    checksum: int


class FileColumn(Struct, array_like=True, frozen=True):
    """The values of one kind of one attribute in one block."""

    validity: Chunk | None
    """None if every row has one."""
    data: list[Chunk]


class Runs(Struct, array_like=True, frozen=True):
    """The records of a block, by column. A run of events is several rows, any other record one."""

    kinds: list[int]
    first_ticks: list[int]
    publishers: list[int]
    epochs: list[int]
    first_sequences: list[int]
    first_rows: list[int]
    """One more at the end: the number of rows."""
    first_bytes: list[int]
    """Where their bodies begin; one more at the end."""


class FileBlock(Struct, array_like=True, frozen=True):
    """A record batch."""

    rows: int
    first_tick: int
    last_tick: int
    bodies: Chunk
    offsets: Chunk
    """Where each body begins and ends, as int32."""
    checksums: Chunk
    """The checksum of each body, as uint32."""
    columns: dict[str, dict[str, FileColumn]]
    """By attribute and kind. No row has a value of a kind that is missing."""
    runs: Raw
    payload_sizes: Chunk | None = None
    """As uint32. None if a body is not in the shortest encoding: then its payload and its
    attributes can only be found by decoding it."""


class Index(Struct, array_like=True, frozen=True):
    format: int
    names: list[str]
    """The names of publishers and epochs, which are numbers elsewhere."""
    words: dict[str, list[str]]
    """The texts of an attribute, if they are few: its column then has numbers."""
    bits: dict[str, int]
    """The width of an attribute's ints."""
    leftovers: list[str] | None
    """Attributes that have values but no columns; None if they are too many to list."""
    blocks: list[FileBlock]

    def may_have(self, name: str) -> bool:
        """Whether this attribute may have values outside of all columns."""
        return self.leftovers is None or name in self.leftovers


_decode_index: Final = msgspec.msgpack.Decoder(Index).decode
decode_runs: Final = msgspec.msgpack.Decoder(Runs).decode


def damaged(path: Path, problem: str) -> LogCorrupted:
    return LogCorrupted(
        f"{path} is damaged: {problem}; restore this file from a backup, or open the log so that "
        f"it accepts the loss: then the ticks in it are reported as lost"
    )


def read_index(path: Path, checksum: int) -> Index:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    if crc32(data) != checksum:
        raise damaged(path, "its checksum is wrong")
    try:
        index = _decode_index(data)
    except msgspec.MsgspecError as error:
        raise damaged(path, f"it is no index ({error})") from None
    if index.format not in (FORMAT, WITH_PREDECESSORS):
        raise WrittenByAnotherVersion(
            f"{path} has format {index.format}, and this release reads formats {FORMAT} and "
            f"{WITH_PREDECESSORS}; start the release that wrote it"
        )
    return index


class Fetcher:
    """Reads chunks of one file and verifies them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)

    def chunk(self, chunk: Chunk) -> bytes:
        data = self.bytes(chunk.offset, chunk.size)
        if crc32(data) != chunk.checksum:
            raise damaged(
                self.path, f"the checksum of {chunk.size} bytes at offset {chunk.offset} is wrong"
            )
        return data

    def bytes(self, offset: int, size: int) -> bytes:
        """Not verified."""
        try:
            data = pread(self._descriptor, size, offset)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if len(data) != size:
            raise damaged(self.path, f"it ends before offset {offset + size}")
        return data

    def close(self) -> None:
        os.close(self._descriptor)


STREAM: Final = ("tick", "kind", "publisher", "epoch", "sequence")
"""The columns that the runs of a block determine for every row."""


def stream_columns(
    arrow: Any, runs: Runs, names: list[str], wanted: Iterable[str] = STREAM
) -> Iterator[tuple[str, Any]]:
    """The wanted columns of `STREAM`, row by row."""
    counts = [after - before for before, after in pairwise(runs.first_rows)]
    rows = sum(counts)
    words = arrow.array(names, arrow.string())
    of_row = _run_numbers(arrow, counts) if len(counts) < rows else None

    def spread(values: Iterable[int], type_: Any) -> Any:
        found = arrow.array(values, type_)
        return found if of_row is None else found.take(of_row)

    def numbered(firsts: list[int]) -> Any:
        """Each run counts up from its first."""
        before = (first - row for first, row in zip(firsts, runs.first_rows, strict=False))
        return arrow.compute.add(spread(before, arrow.int64()), _upward(arrow, rows))

    for name in wanted:
        match name:
            case "tick":
                yield name, numbered(runs.first_ticks)
            case "kind":
                yield name, spread(runs.kinds, arrow.uint8())
            case "sequence":
                yield name, numbered(runs.first_sequences)
            case "publisher" | "epoch":
                numbers = runs.publishers if name == "publisher" else runs.epochs
                indices = spread(numbers, arrow.int32())
                yield name, arrow.DictionaryArray.from_arrays(indices, words)


def _run_numbers(arrow: Any, counts: list[int]) -> Any:
    """The number of the run of each row."""
    numbers = array("i")
    for number, count in enumerate(counts):
        numbers += array("i", (number,)) * count
    return arrow.Array.from_buffers(arrow.int32(), len(numbers), [None, arrow.py_buffer(numbers)])


def _upward(arrow: Any, count: int) -> Any:
    """0, 1, 2, …"""
    size = max(1 << (count - 1).bit_length(), 1 << 14) if count else 1
    return _numbers(arrow, size).slice(0, count)


@lru_cache(4)
def _numbers(arrow: Any, count: int) -> Any:
    numbers = arrow.py_buffer(array("q", range(count)))
    return arrow.Array.from_buffers(arrow.int64(), count, [None, numbers])


# ── whole runs, or the rows that match a filter ──────────────────────────────────────────

GATHER_SHARE: Final = 16
"""If fewer than one in this many rows match, only their bodies are read."""
GAP_BYTES: Final = 32 * 1024
"""Bodies that lie further apart are read one by one."""
Piece = tuple[int, int, int]
"""The number of a run, and a range of its rows: the first, and the one after the last."""


def read_columns(
    path: Path, index: Index, since: int, upto: int, filter: Filter | None
) -> Iterator[RecordSlice]:
    """The matching records from tick `since` to tick `upto`, piece by piece."""
    for reader in blocks_between(path, index, since, upto):
        if filter is None or reader.has_leftovers(filter):
            yield from reader.all(filter)
        else:
            yield from reader.matching(filter)


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
    """Reads the ticks from `since` to `upto` of one block."""

    def __init__(
        self, fetcher: Fetcher, index: Index, block: FileBlock, since: int, upto: int
    ) -> None:
        self.fetcher = fetcher
        self.index = index
        self.block = block
        self.since = since
        self.upto = upto
        self.runs: Runs = decode_runs(block.runs)
        self._all: tuple[bytes, Sequence[int]] | None = None
        """All bodies, and where each begins."""

    def has_leftovers(self, filter: Filter) -> bool:
        """Whether the filter uses an attribute that may have values outside of the columns."""
        return any(map(self.index.may_have, attributes_of(filter)))

    def all(self, filter: Filter | None) -> Iterator[RecordSlice]:
        """All records, run by run. Events are decoded only if there is a filter."""
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
                yield RecordSlice([DECODERS[kind](bodies[at:end])], tick, 0, 0, 0)  # type: ignore[list-item]
                continue
            data = packed(count, bodies[at:end])
            run = EventRun(tick, names[publisher], names[epoch], sequence, count, data)
            if tick < since or last_tick > upto:
                run = run.part(since, upto)
            yield sifted(run, filter)

    # ── filtered ─────────────────────────────────────────────────────────────────────────

    def matching(self, filter: Filter) -> Iterator[RecordSlice]:
        """The rows that match according to the columns."""
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
            yield RecordSlice([], behind, scanned, 0, 0)
            return
        gather = self.gather_all if len(rows) * GATHER_SHARE > block.rows else self.gather
        pieces = self.pieces(rows)
        bodies = gather(pieces)
        for at, stop in _parcels(bodies):
            records = self._records(pieces[at:stop], bodies[at:stop])
            is_last = stop == len(pieces)
            yield RecordSlice(
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
        """Consecutive rows of the same run become one piece."""
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
            run = EventRun(
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
        """The bodies of each piece, if they are many: read and verify all bodies of the block."""
        if self._all is None:
            fetch, block = self.fetcher.chunk, self.block
            self._all = fetch(block.bodies), memoryview(fetch(block.offsets)).cast("i")
        data, offsets = self._all
        return [data[offsets[first] : offsets[stop]] for _, first, stop in pieces]

    def gather(self, pieces: list[Piece]) -> list[bytes]:
        """The bodies of each piece, if they are few: read little more, and verify each body."""
        block, fetch = self.block, self.fetcher.bytes
        # Not verified: if they are damaged, the body does not match its checksum.
        offsets = memoryview(fetch(block.offsets.offset, block.offsets.size)).cast("i")
        checksums = memoryview(fetch(block.checksums.offset, block.checksums.size)).cast("I")
        begin, behind = block.bodies.offset, block.bodies.size
        bodies: list[bytes] = []
        data, start, end = b"", 0, -1
        """The bytes that were read last, and where they begin and end."""
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
        """How far to read at once from this piece on: reading a short gap between two pieces costs
        less than another read."""
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
        import pyarrow  # imported only where columns are needed: it is large

        columns = self.block.columns.get(name, {})
        return {kind: self._array(pyarrow, name, kind, each) for kind, each in columns.items()}

    def _array(self, arrow: Any, name: str, kind: str, column: FileColumn) -> Any:
        fetch = self.fetcher.chunk
        chunks = [column.validity, *column.data]
        buffers = [arrow.py_buffer(fetch(each)) if each is not None else None for each in chunks]
        if kind == TEXT and name in self.index.words:
            type_ = arrow.int16()
        else:
            type_ = arrow_type(arrow, kind, self.index.bits.get(name, 64))
        return arrow.Array.from_buffers(type_, self.block.rows, buffers)


def attributes_of(filter: Filter) -> Iterator[str]:
    """The attributes that a filter constrains."""
    for clause in filter.clauses:
        for name, _ in clause.constraints:
            yield name


def _parcels(bodies: list[bytes]) -> Iterator[tuple[int, int]]:
    """Split the matches, perhaps a whole block, so that they fit into batches."""
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
