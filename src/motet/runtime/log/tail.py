"""A broken record: was its group torn by a crash, or is it damage?

A group that a crash tore was never acknowledged and may be cut. Anything else may have been, and
must stop whoever opens the log. Decision 0014 argues the rule that `damage` applies.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from motet.runtime.log.layout import (
    MILESTONE,
    MILESTONE_BYTES,
    PLAIN,
    RECORD,
    RECORD_BYTES,
    SEAL,
    SEAL_BYTES,
    SECTOR_BYTES,
    U32,
    is_sound,
    own_sequence,
)
from motet.runtime.log.scan import Place

_CRC_TABLE = [crc32(bytes([byte])) ^ crc32(b"\0") for byte in range(256)]
_UPPER = slice(3, 8)
"""The bytes of a sequence that all records of one file share, or nearly all."""


def damage(tail: bytes, place: Place) -> str:
    """Why what begins with a broken record at `place` is no torn tail; "" if it is one.
    `tail` is the rest of the file."""
    synced = _synced_behind(tail, place)
    if synced:
        return f"it was synced before record {synced} was written"
    if not _is_short(tail, place) and not _has_zero_sector(tail, place):
        return "it was written whole, and has changed since"
    if _bit_explains(tail, place):
        return "a bit of it has changed"
    return ""


def _synced_behind(tail: bytes, place: Place) -> int:
    """The sequence of an intact milestone or seal behind the broken record, or 0."""
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


def _is_short(tail: bytes, place: Place) -> bool:
    """Does the file end before the record does? Then everything before the end is as it was
    written: a sound head, and no record behind it."""
    if len(tail) < RECORD_BYTES:
        return True
    stored, length, sequence, count, kind, flags = RECORD.unpack_from(tail)
    if RECORD_BYTES + length <= len(tail):
        return False
    if sequence != place.sequence or not is_sound(length, count, kind, flags):
        return False
    # Its length may be what has changed. Then another one stands where it claims to be.
    return not _stands_behind(tail, sequence + count, stored)


def _stands_behind(tail: bytes, sequence: int, seed: int) -> bool:
    """Is there a batch with this sequence that agrees with the seed, or its successor with it?"""
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
    """The batch that may begin here."""
    if start + RECORD_BYTES > len(tail):
        return None
    stored, length, found, count, kind, flags = RECORD.unpack_from(tail, start)
    stop = start + RECORD_BYTES + length
    if stop > len(tail) or found != sequence or not is_sound(length, count, kind, flags):
        return None
    return _Batch(stored, count, tail[start + 4 : stop], stop)


def _has_zero_sector(tail: bytes, place: Place) -> bool:
    """Is a sector of the broken record missing? A sector that never reached the disk reads as
    zeros, and no record is written that has one (see `layout`)."""
    size = RECORD_BYTES
    if len(tail) >= RECORD_BYTES:
        size += RECORD.unpack_from(tail)[1]
    size = min(size, len(tail))
    start = 0
    while start < size:
        stop = start + SECTOR_BYTES - (place.offset + start) % SECTOR_BYTES
        piece = tail[start:stop]
        # The first piece may be as short as a checksum that happens to be zero; with the
        # sequence in it, it cannot be.
        if not any(piece) and (start > 0 or stop >= 16 or stop >= len(tail)):
            return True
        start = stop
    return False


def _bit_explains(tail: bytes, place: Place) -> bool:
    """Is the record as it was written, but for one bit, or for its length?"""
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
        return True  # the checksum itself, or nothing: then it is whole, and foreign
    # What a flipped bit does to the checksum depends only on how far it is from the end.
    effects = [_CRC_TABLE[1 << bit] for bit in range(8)]
    for _ in body:
        if difference in effects:
            return True
        effects = [(each >> 8) ^ _CRC_TABLE[each & 0xFF] for each in effects]
    return False
