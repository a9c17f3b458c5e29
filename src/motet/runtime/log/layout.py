"""Records and headers as bytes, and back.

A file is a header and batches. A batch holds the records of one append, which have consecutive
sequences and one kind:

    checksum u32 | length u32 | sequence u64 | count u32 | kind u8 | flags u8 | data

where `length` is that of the data: the length of every payload as u32 (if there is more than
one), the payloads, and one byte that is not zero. One checksum for many records is what makes
the log nearly as fast as a bare file: nothing is done in Python for every record.

The checksum covers everything behind it and is seeded with the checksum of the batch before (the
first one with that of the header), so a batch that is missing, doubled, swapped or foreign
breaks the chain. Two details make damage tellable from a torn tail (`tail`):

- A milestone stands before every group of batches that is synced at once: everything in front of
  it was synced before it was written. It hangs on the chain without being a part of it, and
  repeats its seed, so it can be verified where it stands, whatever happened to its neighbours.
- No batch ends in zero or contains a whole sector of zeros: data that would is masked (flag
  MASKED, and the mask in front). A zero sector was therefore never written.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from motet.runtime.log.contract import MAX_APPEND_BYTES, USER_KINDS

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
"""The kind of the record before a group. Its sequence is that of the record behind it."""
SEAL = 0x11
"""The kind of the record that ends a file. Its sequence is that of the record to come."""
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
        """What the checksum of the first record is seeded with."""
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
    """Turns payloads into batches, chaining their checksums."""

    def __init__(self, sequence: int, chain: int) -> None:
        self.sequence = sequence
        """The last record encoded."""
        self.chain = chain

    def encode(self, payloads: Sequence[bytes], kind: int) -> tuple[bytes, bytes]:
        """One batch, in two pieces. Every record of every log comes by here: nothing is done
        for each of them but by functions in C."""
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
    """The record that comes behind this milestone or seal; -1 if it is not one."""
    if len(data) < RECORD_BYTES + U32.size:
        return -1
    sequence = int(RECORD.unpack_from(data)[2])
    (seed,) = U32.unpack_from(data, RECORD_BYTES)
    return sequence if data == _own(kind, sequence, seed) else -1


def is_sound(length: int, count: int, kind: int, flags: int) -> bool:
    """May a batch have these?"""
    if kind in _WORDS:
        return flags == PLAIN and count == 0 and length == U32.size + len(_WORDS[kind])
    if kind >= USER_KINDS or flags & ~MASKED != PLAIN:
        return False
    return 0 < count <= length <= 2 * MAX_APPEND_BYTES


def payloads_of(count: int, flags: int, data: bytes) -> list[bytes]:
    """The payloads in the data of a sound batch; none if they are not what it says."""
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
    # Only data of over 100 KB that was made for it is left with a zero sector here.
    return bytes([mask]) + data.translate(_table(mask))


def _table(mask: int) -> bytes:
    if mask not in _TABLES:
        _TABLES[mask] = bytes(byte ^ mask for byte in range(256))
    return _TABLES[mask]
