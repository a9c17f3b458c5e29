"""The body of an event on the wire: a msgpack array of the attribute map and the payload.

Brokers route on the attributes and pass bodies on as they came, so the payload is not even
copied where nobody asks for it. Decoding checks form only; `check_attributes` checks content.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from motet.errors import EventError, FrameError
from motet.model.limits import INT_MAX, INT_MIN, MAX_ATTRIBUTES, MAX_NAME_CHARS
from motet.model.values import Value, check_name, check_value

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_all: Final = msgspec.msgpack.Decoder(tuple[dict[str, Any], bytes]).decode
_decode_some: Final = msgspec.msgpack.Decoder(tuple[dict[str, Any], msgspec.Raw]).decode
# A hostile body may be malformed, ill-typed, nested without end, not UTF-8 or of the year 10000.
_MALFORMED: Final = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)


def encode_event(attributes: Mapping[str, Value], payload: bytes) -> bytes:
    if type(attributes) is not dict:
        attributes = dict(attributes)
    return _encode((attributes, payload))


def decode_body(raw: bytes | memoryview | msgspec.Raw) -> tuple[dict[str, Value], bytes]:
    try:
        return _decode_all(raw)
    except _MALFORMED as error:
        raise FrameError(f"an event body is malformed: {error}") from None


def decode_attributes(raw: bytes | memoryview | msgspec.Raw) -> dict[str, Value]:
    """The attributes alone; the payload is skipped, though its presence is checked."""
    try:
        return _decode_some(raw)[0]
    except _MALFORMED as error:
        raise FrameError(f"an event body is malformed: {error}") from None


def check_attributes(attributes: dict[str, Value]) -> None:
    """Refuse attributes that no `Event` could have: for what an untrusted client sent."""
    if len(attributes) > MAX_ATTRIBUTES:
        raise EventError(
            f"an event has at most {MAX_ATTRIBUTES} attributes, this one {len(attributes)}"
        )
    for name, value in attributes.items():
        if not (
            type(name) is str
            and name.isidentifier()
            and name.isascii()
            and len(name) <= MAX_NAME_CHARS
        ):
            check_name(name)
        kind = type(value)
        if kind is str:
            if value.isascii():  # type: ignore[union-attr]
                continue
        elif kind is int:
            if INT_MIN <= value <= INT_MAX:  # type: ignore[operator]
                continue
        elif kind is float or kind is bool or (kind is datetime and value.tzinfo is UTC):  # type: ignore[union-attr]
            continue
        check_value(value, f"attribute {name!r}")
