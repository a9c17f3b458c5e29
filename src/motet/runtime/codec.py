"""Encodes and decodes frames. Whatever a peer sends, `decode` raises only `PeerError`.

Bodies of publications stay undecoded: a `Raw` is a view into its frame, so it costs no copy, but it
keeps that frame alive. Publications are not held for long, so they are not copied.
"""

from __future__ import annotations

from typing import Final

import msgspec

from motet.errors import FrameError, VersionError
from motet.model.filters import from_wire, to_wire
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.traits import SMALL_BYTES, TRAITS, tag_of

_VERSIONED: Final = frozenset(tag_of(kind) for kind, each in TRAITS.items() if each.versioned)


_encoder = msgspec.msgpack.Encoder(enc_hook=to_wire)
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame, dec_hook=from_wire)
_any_array: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])

encode = _encoder.encode
decode_unchecked = _decoder.decode
"""For callers that decode many frames at once: they pass its exceptions to `blame`, and frames
above `SMALL_BYTES` to `too_large`. `decode` does all three."""


def decode(body: bytes) -> Frame:
    try:
        frame = decode_unchecked(body)
    except Exception as problem:
        raise blame(body, problem) from None
    if len(body) > SMALL_BYTES and (wrong := too_large(frame, len(body))) is not None:
        raise wrong
    return frame


def too_large(frame: Frame, size: int) -> FrameError | None:
    """The error for a frame above the size limit of its type; None if the size is allowed."""
    most_bytes = TRAITS[type(frame)].most_bytes
    if most_bytes is None or size <= most_bytes:
        return None
    what = type(frame).__name__
    return FrameError(f"a {what} of {size} bytes; at most {most_bytes} are allowed")


def blame(body: bytes, problem: Exception) -> FrameError | VersionError:
    """The error for a frame that cannot be decoded. The peer sent all of it, so the peer is to
    blame, also for exceptions of the decoder's hooks."""
    version = _hello_version(body)
    if version is not None and version != PROTOCOL_VERSION:
        return VersionError(
            f"the peer speaks version {version} of the protocol, this side {PROTOCOL_VERSION}"
        )
    return FrameError(f"malformed frame of {len(body)} bytes: {problem}")


def _hello_version(body: bytes) -> int | None:
    """The version in a hello, even if its other fields are unknown: `[tag, version, …]`."""
    try:
        head = _any_array.decode(body)[:2]
        tag, version = (msgspec.msgpack.decode(part) for part in head)
    except Exception:
        return None
    known = isinstance(tag, str) and tag in _VERSIONED
    return version if known and type(version) is int else None
