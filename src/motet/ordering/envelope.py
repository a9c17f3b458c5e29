"""How events travel.

A batch of events of one topic is one message body of the service:

    5 bytes   mark: not the start of any text
    16 bytes  seal, if the mark says so
    msgpack   [[timestamp, …], [payload, …]]

Or an event is one message, whose body is its payload, with its timestamp in a header, followed by
the seal, if there is one:

    motet-order: [topic, number, [topic, number, …], [stream, …]];seal

A message with neither comes from a publisher that does not take part. The seal is a keyed hash of
all the rest, for clients that share a key. Anybody can publish on the same subjects: everything is
bounded here, and what does not fit is forged.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from motet.protocol.sequencing.messages import LAST_NUMBER, MAX_UNSETTLED, Timestamp

MARK: Final = b"\xc1MO\x00\x01"
"""The first byte is used by neither UTF-8 nor msgpack; the last one is the version."""
SEALED_MARK: Final = b"\xc1MO\x00\x02"
HEADER: Final = "motet-order"
SEAL_BYTES: Final = 16
SEPARATOR: Final = ";"
SHORTEST_KEY: Final = 16
LONGEST_KEY: Final = 64
"""Bytes of a key."""
MOST_BODY_BYTES: Final = 64 * 1024 * 1024
MOST_EVENTS: Final = MAX_UNSETTLED
"""Of one message."""
MOST_ENTRIES: Final = 1 << 18
"""Topics and numbers in all timestamps of one message."""
MOST_GONE: Final = 1 << 16
MOST_GONE_CHARS: Final = 200

Batch = tuple[tuple[Timestamp, ...], tuple[bytes, ...]]
Opened = list[tuple[Timestamp, bytes]]

_encode = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Batch)
_as_text = msgspec.json.Encoder().encode
_header_decoder: Final = msgspec.json.Decoder(Timestamp)


# ── batches ──────────────────────────────────────────────────────────────────────────────


def seal(stamps: Sequence[Timestamp], payloads: Sequence[bytes], key: bytes = b"") -> bytes:
    packed = _encode((stamps, payloads))
    return SEALED_MARK + _hash(key, packed) + packed if key else MARK + packed


def opened(body: bytes, key: bytes = b"") -> Opened | None:
    """The events in a body; None if it does not come from a publisher that takes part, and none if
    it is forged."""
    if body.startswith(MARK):
        packed = memoryview(body)[len(MARK) :]
        if key:
            return []
    elif body.startswith(SEALED_MARK):
        given = body[len(SEALED_MARK) :][:SEAL_BYTES]
        packed = memoryview(body)[len(SEALED_MARK) + SEAL_BYTES :]
        if key and not hmac.compare_digest(given, _hash(key, packed)):
            return []
    else:
        return None
    if len(packed) > MOST_BODY_BYTES:
        return []
    try:
        stamps, payloads = _decoder.decode(packed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    if len(stamps) != len(payloads) or not 0 < len(stamps) <= MOST_EVENTS:
        return []
    if len(packed) > MOST_GONE and not are_few(stamps):
        return []
    if not all(map(is_sound, stamps)):
        return []
    return list(zip(stamps, payloads, strict=True))


# ── headers ──────────────────────────────────────────────────────────────────────────────


def header_of(stamp: Timestamp, payload: bytes, key: bytes = b"") -> str:
    text = _as_text(stamp)
    if not key:
        return text.decode()
    return f"{text.decode()}{SEPARATOR}{_hash(key, text + payload).hex()}"


def opened_header(header: str, payload: bytes, key: bytes = b"") -> Opened:
    """The event of a message with a header; none if it is forged."""
    text, separator, given = (
        header.rpartition(SEPARATOR) if header[-1:] != "]" else (header, "", "")
    )
    try:
        packed = text.encode()
        if key and (
            not separator or not hmac.compare_digest(given, _hash(key, packed + payload).hex())
        ):
            return []
        stamp = _header_decoder.decode(packed)
    except (msgspec.DecodeError, UnicodeError, TypeError, RecursionError):
        return []
    return [(stamp, payload)] if are_few((stamp,)) and is_sound(stamp) else []


def _hash(key: bytes, *parts: bytes | memoryview) -> bytes:
    made = blake2b(key=key, digest_size=SEAL_BYTES)
    for part in parts:
        made.update(part)
    return made.digest()


# ── bounds ───────────────────────────────────────────────────────────────────────────────


def are_few(stamps: Sequence[Timestamp]) -> bool:
    """Whether the timestamps of one message name as much as is allowed. In a small message they
    cannot name more."""
    return (
        sum(len(stamp.entries) for stamp in stamps) <= MOST_ENTRIES
        and sum(len(stamp.gone) for stamp in stamps) <= MOST_GONE
    )


def is_sound(stamp: Timestamp) -> bool:
    """Whether a timestamp may be used."""
    entries = stamp.entries
    return (
        0 < stamp.number < LAST_NUMBER
        and 0 <= stamp.topic < LAST_NUMBER
        and len(entries) % 2 == 0
        and (not entries or (min(entries) >= 0 and max(entries) < LAST_NUMBER))
        and (not stamp.gone or max(map(len, stamp.gone)) <= MOST_GONE_CHARS)
    )
