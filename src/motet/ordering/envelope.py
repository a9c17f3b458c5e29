"""How events travel: a batch of one topic is one message body of the service.

    5 bytes   mark: not the start of any text
    msgpack   [[timestamp, …], [payload, …]]

A body without the mark comes from a publisher that does not take part. Payloads are not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from motet.protocol.sequencing.messages import LAST_NUMBER, Timestamp

MARK: Final = b"\xc1MO\x00\x01"
"""The first byte is used by neither UTF-8 nor msgpack; the last one is the version."""

Batch = tuple[tuple[Timestamp, ...], tuple[bytes, ...]]

_encode = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Batch)


def seal(stamps: Sequence[Timestamp], payloads: Sequence[bytes]) -> bytes:
    return MARK + _encode((stamps, payloads))


def opened(body: bytes) -> list[tuple[Timestamp, bytes]] | None:
    """The events in a body; None if it does not come from a publisher that takes part."""
    if not body.startswith(MARK):
        return None
    try:
        stamps, payloads = _decoder.decode(memoryview(body)[len(MARK) :])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if len(stamps) != len(payloads) or not all(map(is_sound, stamps)):
        return None
    return list(zip(stamps, payloads, strict=True))


def is_sound(stamp: Timestamp) -> bool:
    """Whether a timestamp may be used: others can publish on the same subjects."""
    entries = stamp.entries
    return (
        0 < stamp.number < LAST_NUMBER
        and stamp.topic >= 0
        and len(entries) % 2 == 0
        and (not entries or (min(entries) >= 0 and max(entries) < LAST_NUMBER))
    )
