"""What is where in a sealed file: beside every Arrow file lies its index.

A sealed file is an ordinary Arrow IPC file, for whoever likes to open it. We read it without its
metadata: the index knows where each buffer of each column lies, and its checksum, so that a read
fetches and verifies only what it needs.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from motet.errors import LogCorrupted, WrittenByAnotherVersion
from motet.runtime.log.files import unreadable
from motet.runtime.log.scan import pread

FORMAT: Final = 1

BOOL, INT, FLOAT, TEXT, TIME = KINDS = ("bool", "int", "float", "text", "time")
"""The kinds of values, each of which has columns of its own."""


class Chunk(Struct, array_like=True, frozen=True, gc=False):
    """A buffer in the file."""

    offset: int
    size: int
    checksum: int


class Column(Struct, array_like=True, frozen=True):
    """The values of one kind of one attribute in one block."""

    validity: Chunk | None
    """None if every row has one."""
    data: list[Chunk]


class Runs(Struct, array_like=True, frozen=True):
    """The records of a block, side by side. A run of events is several rows, all else is one."""

    kinds: list[int]
    first_ticks: list[int]
    publishers: list[int]
    epochs: list[int]
    first_sequences: list[int]
    first_rows: list[int]
    """One more at the end: the number of rows."""
    first_bytes: list[int]
    """Where their bodies begin; one more at the end."""


class Block(Struct, array_like=True, frozen=True):
    """A record batch."""

    rows: int
    first_tick: int
    last_tick: int
    bodies: Chunk
    offsets: Chunk
    """Where each body begins and ends, as int32."""
    checksums: Chunk
    """Of each body, as uint32."""
    columns: dict[str, dict[str, Column]]
    """By attribute and kind. A missing kind: no row has one."""
    runs: Raw
    payload_sizes: Chunk | None = None
    """As uint32. None if a body is not written in the shortest way: who wants its payload, or its
    attributes, has to decode it."""


class Index(Struct, array_like=True, frozen=True):
    format: int
    names: list[str]
    """Of publishers and epochs, which are numbers elsewhere."""
    words: dict[str, list[str]]
    """By attribute, its texts, if there are few: the column has numbers then."""
    bits: dict[str, int]
    """By attribute, how wide its ints are."""
    leftovers: list[str] | None
    """Attributes that have no columns, but values; None if they are too many to say."""
    blocks: list[Block]

    def may_have(self, name: str) -> bool:
        """Might there be values of this attribute outside of all columns?"""
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
    if index.format != FORMAT:
        raise WrittenByAnotherVersion(
            f"{path} has format {index.format}, and this release reads format {FORMAT}; start the "
            f"release that wrote it"
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
"""What the runs of a block say of every row."""


def stream_columns(
    arrow: Any, runs: Runs, names: list[str], wanted: Iterable[str] = STREAM
) -> Iterator[tuple[str, Any]]:
    """What the runs say, row by row: as many of `STREAM` as are wanted."""
    counts = [after - before for before, after in pairwise(runs.first_rows)]
    rows = sum(counts)
    words = arrow.array(names, arrow.string())
    of_row = _run_numbers(arrow, counts) if len(counts) < rows else None

    def spread(values: Iterable[int], type_: Any) -> Any:
        found = arrow.array(values, type_)
        return found if of_row is None else found.take(of_row)

    def numbered(firsts: list[int]) -> Any:
        """Each run counts on from its first."""
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
    """By row, the number of its run."""
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
