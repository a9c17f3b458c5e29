"""Encodes and decodes records and headers, and walks from batch to batch through one file.

A file is a header and batches. A batch holds the records of one append, which have consecutive
sequences and one kind:

    checksum u32 | length u32 | sequence u64 | count u32 | kind u8 | flags u8 | data

where `length` is that of the data: the length of every payload as u32 (if there is more than
one), the payloads, and one byte that is not zero. One checksum for many records makes the log
nearly as fast as a bare file: no Python code runs per record.

The checksum covers everything after it and is seeded with the checksum of the batch before (that
of the first batch with the checksum of the header), so a batch that is missing, duplicated, swapped
or foreign breaks the chain. Two details distinguish damage from a torn tail (`damage`):

- A milestone precedes every group of batches that is synced at once: everything before it was
  synced before it was written. Its checksum is seeded from the chain, but does not continue it. It
  repeats its seed, so it can be verified alone, whatever happened to its neighbours.
- No batch ends in zero or contains a whole sector of zeros: data that would is masked (flag
  MASKED, preceded by the mask). A zero sector was therefore never written.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count, repeat
from typing import NamedTuple
from zlib import crc32

from motet.runtime.log.contract import MAX_APPEND_BYTES, USER_KINDS, Record

MAGIC = b"MotetLog"
FORMAT = 1
SECTOR_BYTES = 512

HEADER = struct.Struct("<8sHxxIQI32s")
HEADER_BYTES = HEADER.size + 4
MAX_PURPOSE_BYTES = 32

RECORD = struct.Struct("<IIQIBB")
RECORD_BYTES = RECORD.size
BODY = struct.Struct("<IQIBB")
U32 = struct.Struct("<I")

PLAIN = 0x80
"""Set in all flags: the byte before the data is never zero."""
MASKED = 0x01

MILESTONE = 0x10
"""The kind of the record before a group. Its sequence is that of the next record."""
SEAL = 0x11
"""The kind of the record that ends a file. Its sequence is that of the next record."""
_WORDS = {MILESTONE: b"+", SEAL: b"sealed"}
MILESTONE_BYTES = RECORD_BYTES + U32.size + len(_WORDS[MILESTONE])
SEAL_BYTES = RECORD_BYTES + U32.size + len(_WORDS[SEAL])

END = b"\xff"
_ZERO_SECTOR = bytes(SECTOR_BYTES)
_TABLES: dict[int, bytes] = {}


class Header(NamedTuple):
    purpose: str
    version: int
    first: int
    chain: int
    """The checksum of the last record before this file, or 0."""

    def encode(self) -> bytes:
        purpose = self.purpose.encode()
        assert 0 < len(purpose) <= MAX_PURPOSE_BYTES, self.purpose
        head = HEADER.pack(MAGIC, FORMAT, self.version, self.first, self.chain, purpose)
        return head + U32.pack(crc32(head))

    @property
    def seed(self) -> int:
        """The seed of the first record's checksum."""
        return int(U32.unpack(self.encode()[-4:])[0])


class BadHeader(Exception):
    """The bytes are not a header. `format` is set if they are one of another format."""

    def __init__(self, problem: str, format: int | None = None) -> None:
        self.format = format
        super().__init__(problem)


def decode_header(data: bytes) -> Header:
    if len(data) < HEADER_BYTES:
        raise BadHeader("the header is cut short")
    head = data[: HEADER.size]
    magic, format, version, first, chain, purpose = HEADER.unpack(head)
    if U32.unpack_from(data, HEADER.size)[0] != crc32(head):
        raise BadHeader("the header is damaged" if magic == MAGIC else "there is no header")
    if magic != MAGIC:
        raise BadHeader("there is no header")
    if format != FORMAT:
        raise BadHeader(f"the header has format {format}, not {FORMAT}", format)
    return Header(purpose.rstrip(b"\0").decode(errors="replace"), version, first, chain)


class Encoder:
    """Encodes payloads as batches and chains their checksums."""

    def __init__(self, sequence: int, chain: int) -> None:
        self.sequence = sequence
        """The last record encoded."""
        self.chain = chain

    def encode(self, payloads: Sequence[bytes], kind: int) -> tuple[bytes, bytes]:
        """One batch, in two pieces. Every record of every log passes here: the work per record is
        done by functions in C."""
        count = len(payloads)
        if count == 1:
            data = payloads[0] + END
        else:
            data = b"".join((_lengths(count).pack(*map(len, payloads)), *payloads, END))
        flags = PLAIN
        if len(data) > SECTOR_BYTES and _ZERO_SECTOR in data:
            data = _masked(data)
            flags |= MASKED
        body = BODY.pack(len(data), self.sequence + 1, count, kind, flags)
        self.chain = crc32(data, crc32(body, self.chain))
        self.sequence += count
        return U32.pack(self.chain) + body, data


@lru_cache(maxsize=1024)
def _lengths(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")


def milestone(sequence: int, seed: int) -> bytes:
    return _own(MILESTONE, sequence, seed)


def seal(sequence: int, seed: int) -> bytes:
    return _own(SEAL, sequence, seed)


def _own(kind: int, sequence: int, seed: int) -> bytes:
    data = U32.pack(seed) + _WORDS[kind]
    body = BODY.pack(len(data), sequence, 0, kind, PLAIN) + data
    return U32.pack(crc32(body, seed)) + body


def own_sequence(data: bytes, kind: int) -> int:
    """The sequence of the record after this milestone or seal; -1 if it is neither."""
    if len(data) < RECORD_BYTES + U32.size:
        return -1
    sequence = int(RECORD.unpack_from(data)[2])
    (seed,) = U32.unpack_from(data, RECORD_BYTES)
    return sequence if data == _own(kind, sequence, seed) else -1


def is_sound(length: int, count: int, kind: int, flags: int) -> bool:
    """Whether a batch may have these values."""
    if kind in _WORDS:
        return flags == PLAIN and count == 0 and length == U32.size + len(_WORDS[kind])
    if kind >= USER_KINDS or flags & ~MASKED != PLAIN:
        return False
    return 0 < count <= length <= 2 * MAX_APPEND_BYTES


def payloads_of(count: int, flags: int, data: bytes) -> list[bytes]:
    """The payloads in the data of a sound batch; none if the data contradicts its head."""
    if flags & MASKED:
        data = data[1:].translate(_table(data[0]))
    if not data.endswith(END):
        return []
    if count == 1:
        return [data[:-1]]
    start = U32.size * count
    if start >= len(data):
        return []
    payloads = []
    for length in _lengths(count).unpack_from(data):
        payloads.append(data[start : start + length])
        start += length
    return payloads if start == len(data) - 1 else []


def _masked(data: bytes) -> bytes:
    for mask in range(254, 0, -1):  # END must not become zero
        if bytes([mask]) * SECTOR_BYTES not in data:
            break
    # Only data of over 100 KB that was crafted for it still has a zero sector here.
    return bytes([mask]) + data.translate(_table(mask))


def _table(mask: int) -> bytes:
    if mask not in _TABLES:
        _TABLES[mask] = bytes(byte ^ mask for byte in range(256))
    return _TABLES[mask]


# ── from batch to batch ─────────────────────────────────────────────────────────────────

CHUNK_BYTES = 1 << 20


class LogPlace(NamedTuple):
    """Where a batch begins: its offset, its first sequence, and the seed of its checksum."""

    offset: int
    sequence: int
    chain: int


class ScannedBatch(NamedTuple):
    """A batch; or the seal, which has no payloads."""

    sequence: int
    kind: int
    payloads: list[bytes]
    after: LogPlace

    def records(self) -> Iterator[Record]:
        return map(Record, count(self.sequence), repeat(self.kind), self.payloads)


class Broken(Exception):
    """The record that begins at `place` is incomplete or damaged."""

    def __init__(self, place: LogPlace, problem: str) -> None:
        self.place = place
        super().__init__(problem)


def beginning(header: Header) -> LogPlace:
    return LogPlace(HEADER_BYTES, header.first, header.seed)


def pread(descriptor: int, size: int, offset: int) -> bytes:
    """All bytes of a range, or fewer where the file ends."""
    data = os.pread(descriptor, size, offset)
    while 0 < len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def walk(descriptor: int, place: LogPlace, end: int) -> Iterator[ScannedBatch]:
    """Every batch and the seal from `place` to `end`, the size of the file when it was opened;
    milestones are verified and skipped. Raises `Broken` at the first one that is not as it was
    written."""
    offset, sequence, chain = place
    buffer, at = b"", 0
    while offset < end:
        if len(buffer) - at < RECORD_BYTES:
            buffer, at = pread(descriptor, min(CHUNK_BYTES, end - offset), offset), 0
            if len(buffer) < RECORD_BYTES:
                raise Broken(LogPlace(offset, sequence, chain), "its header is cut short")
        stored, length, found, number, kind, flags = RECORD.unpack_from(buffer, at)
        stop = at + RECORD_BYTES + length
        if stop > len(buffer):
            size = RECORD_BYTES + length
            if size > end - offset:
                raise Broken(LogPlace(offset, sequence, chain), "it is cut short")
            buffer, at = pread(descriptor, min(max(CHUNK_BYTES, size), end - offset), offset), 0
            stop = size
            if stop > len(buffer):
                raise Broken(LogPlace(offset, sequence, chain), "it is cut short")
        body = buffer[at + 4 : stop]
        if crc32(body, chain) != stored:
            raise Broken(LogPlace(offset, sequence, chain), "its checksum is wrong")
        payloads: list[bytes] = []
        if found != sequence or not is_sound(length, number, kind, flags):
            raise Broken(LogPlace(offset, sequence, chain), "it does not belong here")
        if kind < MILESTONE:
            payloads = payloads_of(number, flags, body[RECORD_BYTES - 4 :])
            if not payloads:
                raise Broken(LogPlace(offset, sequence, chain), "it does not belong here")
            chain = stored
            sequence += number
        offset += stop - at
        at = stop
        if kind != MILESTONE:
            yield ScannedBatch(found, kind, payloads, LogPlace(offset, sequence, chain))
        if kind == SEAL:
            if offset < end:
                raise Broken(LogPlace(offset, sequence, chain), "it follows the seal")
            return


# ── a broken record ─────────────────────────────────────────────────────────────────────

_CRC_TABLE = [crc32(bytes([byte])) ^ crc32(b"\0") for byte in range(256)]
_UPPER = slice(3, 8)
"""The bytes of a sequence that all records of one file share, or nearly all."""


def damage(tail: bytes, place: LogPlace) -> str:
    """Why the broken record at `place` and the bytes after it are no torn tail; "" if they are one.
    `tail` is the rest of the file."""
    synced = _synced_behind(tail, place)
    if synced:
        return f"it was synced before record {synced} was written"
    if not _is_short(tail, place) and not _has_zero_sector(tail, place):
        return "it was written whole, and has changed since"
    if _bit_explains(tail, place):
        return "a bit of it has changed"
    return ""


def _synced_behind(tail: bytes, place: LogPlace) -> int:
    """The sequence of an intact milestone or seal after the broken record, or 0."""
    limit = place.sequence + len(tail) // RECORD_BYTES + 1
    uppers = {each.to_bytes(8, "little")[_UPPER] for each in (place.sequence, limit)}
    for upper in sorted(uppers):
        for kind, size in ((MILESTONE, MILESTONE_BYTES), (SEAL, SEAL_BYTES)):
            looks = upper + bytes((0, 0, 0, 0, kind, PLAIN))
            found = tail.find(looks, RECORD_BYTES - len(looks) + 1)
            while found >= 0:
                start = found + len(looks) - RECORD_BYTES
                sequence = own_sequence(tail[start : start + size], kind)
                if place.sequence <= sequence <= limit:
                    return sequence
                found = tail.find(looks, found + 1)
    return 0


def _is_short(tail: bytes, place: LogPlace) -> bool:
    """Whether the file ends before the record does. Then everything before the end is as it was
    written: a sound head, and no record after it."""
    if len(tail) < RECORD_BYTES:
        return True
    stored, length, sequence, count, kind, flags = RECORD.unpack_from(tail)
    if RECORD_BYTES + length <= len(tail):
        return False
    if sequence != place.sequence or not is_sound(length, count, kind, flags):
        return False
    # Its length may be what has changed. Then the next batch is found inside the claimed range.
    return not _stands_behind(tail, sequence + count, stored)


def _stands_behind(tail: bytes, sequence: int, seed: int) -> bool:
    """Whether a batch with this sequence follows that fits the seed, or fits its successor."""
    looks = sequence.to_bytes(8, "little")
    at = tail.find(looks, RECORD_BYTES)
    while at >= 0:
        batch = _at(tail, at - 8, sequence)
        if batch is not None:
            if crc32(batch.body, seed) == batch.stored:
                return True
            after = _at(tail, batch.stop, sequence + batch.records)
            if after is not None and crc32(after.body, batch.stored) == after.stored:
                return True
        at = tail.find(looks, at + 1)
    return False


class _Batch(NamedTuple):
    stored: int
    records: int
    body: bytes
    stop: int


def _at(tail: bytes, start: int, sequence: int) -> _Batch | None:
    """The batch that may begin at `start`, or None."""
    if start + RECORD_BYTES > len(tail):
        return None
    stored, length, found, count, kind, flags = RECORD.unpack_from(tail, start)
    stop = start + RECORD_BYTES + length
    if stop > len(tail) or found != sequence or not is_sound(length, count, kind, flags):
        return None
    return _Batch(stored, count, tail[start + 4 : stop], stop)


def _has_zero_sector(tail: bytes, place: LogPlace) -> bool:
    """Whether a sector of the broken record is missing. A sector that never reached the disk reads
    as zeros, and no record is written that has one (see `layout`)."""
    size = RECORD_BYTES
    if len(tail) >= RECORD_BYTES:
        size += RECORD.unpack_from(tail)[1]
    size = min(size, len(tail))
    start = 0
    while start < size:
        stop = start + SECTOR_BYTES - (place.offset + start) % SECTOR_BYTES
        piece = tail[start:stop]
        # The first piece may be as short as a checksum, which may be zero; with the sequence in it,
        # it cannot be all zeros.
        if not any(piece) and (start > 0 or stop >= 16 or stop >= len(tail)):
            return True
        start = stop
    return False


def _bit_explains(tail: bytes, place: LogPlace) -> bool:
    """Whether the record is as it was written, except for one bit or for its length."""
    if len(tail) < RECORD_BYTES:
        return False
    stored, length = RECORD.unpack_from(tail)[:2]
    lengths = [length ^ (1 << bit) for bit in range(32)]
    for other in (*lengths, len(tail) - RECORD_BYTES):
        if RECORD_BYTES + other <= len(tail):
            rest = tail[8 : RECORD_BYTES + other]
            if crc32(rest, crc32(U32.pack(other), place.chain)) == stored:
                return True
    if RECORD_BYTES + length > len(tail):
        return False
    body = tail[4 : RECORD_BYTES + length]
    difference = crc32(body, place.chain) ^ stored
    if difference.bit_count() <= 1:
        return True  # the checksum itself changed, or nothing: then it is whole, and foreign
    # The effect of a flipped bit on the checksum depends only on its distance from the end.
    effects = [_CRC_TABLE[1 << bit] for bit in range(8)]
    for _ in body:
        if difference in effects:
            return True
        effects = [(each >> 8) ^ _CRC_TABLE[each & 0xFF] for each in effects]
    return False
