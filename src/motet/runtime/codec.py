"""Frames to bytes and back. Whatever a peer sends, only `PeerError` comes out of `decode`.

Bodies of publications stay undecoded: a `Raw` is a view into the frame it came in, so it costs
no copy, and it keeps that frame alive. Nobody holds publications for long, so nobody copies.
"""

from __future__ import annotations

import msgspec

from motet.errors import FrameError, VersionError
from motet.model.travel import from_wire, to_wire
from motet.protocol.frames import PROTOCOL_VERSION, Frame

_HELLO_TAGS = ("client", "link", "member", "read?", "logs?", "cursor?", "rows?", "seal?", "drop?")
"""Frames that may be the first of a peer: their first field is its version."""


_encoder = msgspec.msgpack.Encoder(enc_hook=to_wire)
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame, dec_hook=from_wire)
_any_array: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])

encode = _encoder.encode


def decode(body: bytes) -> Frame:
    try:
        return _decoder.decode(body)
    except Exception as problem:
        # Everything above comes from the peer's bytes, the hooks included: it is to blame.
        raise _blame(body, problem) from None


def _blame(body: bytes, problem: Exception) -> FrameError | VersionError:
    version = _hello_version(body)
    if version is not None and version != PROTOCOL_VERSION:
        return VersionError(
            f"the peer speaks version {version} of the protocol, this side {PROTOCOL_VERSION}"
        )
    return FrameError(f"malformed frame of {len(body)} bytes: {problem}")


def _hello_version(body: bytes) -> int | None:
    """The version of a hello whose other fields we may not understand: `[tag, version, …]`."""
    try:
        head = _any_array.decode(body)[:2]
        tag, version = (msgspec.msgpack.decode(part) for part in head)
    except Exception:
        return None
    return version if tag in _HELLO_TAGS and type(version) is int else None
