"""From batch to batch through one file, verifying the chain."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count, repeat
from typing import NamedTuple
from zlib import crc32

from motet.runtime.log.contract import Record
from motet.runtime.log.layout import (
    HEADER_BYTES,
    MILESTONE,
    RECORD,
    RECORD_BYTES,
    SEAL,
    Header,
    is_sound,
    payloads_of,
)

CHUNK_BYTES = 1 << 20


class Place(NamedTuple):
    """Where a batch begins: its offset, its first sequence, and what its checksum is seeded
    with."""

    offset: int
    sequence: int
    chain: int


class Step(NamedTuple):
    """A batch; or the seal, which has no payloads."""

    sequence: int
    kind: int
    payloads: list[bytes]
    after: Place

    def records(self) -> Iterator[Record]:
        return map(Record, count(self.sequence), repeat(self.kind), self.payloads)


class Broken(Exception):
    """What begins at `place` is not there whole."""

    def __init__(self, place: Place, problem: str) -> None:
        self.place = place
        super().__init__(problem)


def beginning(header: Header) -> Place:
    return Place(HEADER_BYTES, header.first, header.seed)


def pread(descriptor: int, size: int, offset: int) -> bytes:
    """All bytes of a range, or fewer where the file ends."""
    data = os.pread(descriptor, size, offset)
    while 0 < len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def walk(descriptor: int, place: Place, end: int) -> Iterator[Step]:
    """Every batch from `place` to `end`, which is where the file ended when somebody looked, and
    the seal; milestones are verified and passed. Raises `Broken` at the first one that is not as
    it was written."""
    offset, sequence, chain = place
    buffer, at = b"", 0
    while offset < end:
        if len(buffer) - at < RECORD_BYTES:
            buffer, at = pread(descriptor, min(CHUNK_BYTES, end - offset), offset), 0
            if len(buffer) < RECORD_BYTES:
                raise Broken(Place(offset, sequence, chain), "its header is cut short")
        stored, length, found, number, kind, flags = RECORD.unpack_from(buffer, at)
        stop = at + RECORD_BYTES + length
        if stop > len(buffer):
            size = RECORD_BYTES + length
            if size > end - offset:
                raise Broken(Place(offset, sequence, chain), "it is cut short")
            buffer, at = pread(descriptor, min(max(CHUNK_BYTES, size), end - offset), offset), 0
            stop = size
            if stop > len(buffer):
                raise Broken(Place(offset, sequence, chain), "it is cut short")
        body = buffer[at + 4 : stop]
        if crc32(body, chain) != stored:
            raise Broken(Place(offset, sequence, chain), "its checksum is wrong")
        payloads: list[bytes] = []
        if found != sequence or not is_sound(length, number, kind, flags):
            raise Broken(Place(offset, sequence, chain), "it does not belong here")
        if kind < MILESTONE:
            payloads = payloads_of(number, flags, body[RECORD_BYTES - 4 :])
            if not payloads:
                raise Broken(Place(offset, sequence, chain), "it does not belong here")
            chain = stored
            sequence += number
        offset += stop - at
        at = stop
        if kind != MILESTONE:
            yield Step(found, kind, payloads, Place(offset, sequence, chain))
        if kind == SEAL:
            if offset < end:
                raise Broken(Place(offset, sequence, chain), "it stands behind the seal")
            return
