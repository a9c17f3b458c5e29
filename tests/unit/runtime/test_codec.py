"""The codec: every frame makes the round trip, and no bytes whatever break it."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from motet.errors import FrameError, PeerError, VersionError
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.messages import (
    Control,
    ControlMessage,
    LinkHello,
    Publications,
)
from motet.protocol.publication import Publication
from motet.protocol.session.messages import (
    ClientHello,
    Done,
    Publish,
    Status,
    SubscribeRequest,
)
from motet.protocol.transactions.messages import (
    Letter,
    LetterBody,
)
from motet.runtime.codec import decode, encode
from tests.unit.examples import BODY, FILTER, frames

FRAMES = frames()
CONTROL = [message for frame in FRAMES if isinstance(frame, Control) for message in frame.messages]
LETTERS = [message.body for message in CONTROL if isinstance(message, Letter)]

by_kind = pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)


@by_kind
def test_round_trip(frame: Frame) -> None:
    body = encode(frame)
    again = decode(body)
    assert type(again) is type(frame)
    assert encode(again) == body


def test_every_kind_of_frame_is_tried() -> None:
    assert {type(frame) for frame in FRAMES} == set(Frame.__args__)
    assert {type(message) for message in CONTROL} == set(ControlMessage.__args__)
    assert {type(letter) for letter in LETTERS} == set(LetterBody.__args__)


def test_filters_come_back_equal() -> None:
    again = decode(encode(SubscribeRequest(1, FILTER)))
    assert isinstance(again, SubscribeRequest)
    assert again.filter == FILTER


def test_bodies_stay_undecoded_and_are_passed_on_as_they_came() -> None:
    again = decode(encode(Publish(1, [BODY])))
    assert isinstance(again, Publish)
    assert bytes(again.bodies[0]) == bytes(BODY)
    onward = decode(encode(Publications(1, 0, [Publication("c", 1, again.bodies[0])])))
    assert isinstance(onward, Publications)
    assert bytes(onward.batch[0].body) == bytes(BODY)


# ── versions ─────────────────────────────────────────────────────────────────────────────


def packed(*fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


def test_a_hello_of_another_version_is_decoded_as_long_as_its_fields_are_known() -> None:
    hello = decode(packed("client", 99, "c", None, b"", "a field of the future"))
    assert isinstance(hello, ClientHello)
    assert hello.version == 99
    assert isinstance(decode(packed("link", 99, "B1", 1, 0, 0)), LinkHello)


@pytest.mark.parametrize(
    "body",
    [
        packed("client", 99, {"id": "c"}),
        packed("client", PROTOCOL_VERSION + 1),
        packed("link", 0, "B1"),
        packed("link", PROTOCOL_VERSION + 2, ["B1"], 1, 0, 0, True, b"", 1),
    ],
)
def test_a_hello_that_only_another_version_understands(body: bytes) -> None:
    with pytest.raises(VersionError, match=f"this side {PROTOCOL_VERSION}"):
        decode(body)


def test_a_malformed_hello_of_our_version_is_malformed() -> None:
    with pytest.raises(FrameError):
        decode(packed("client", PROTOCOL_VERSION, 7))


# ── hostile bytes ────────────────────────────────────────────────────────────────────────


def only_peer_errors(body: bytes) -> None:
    try:
        frame = decode(body)
    except (FrameError, VersionError):
        return
    encode(frame)


HOSTILE = {
    "nothing": b"",
    "not an array": b"\xa3abc",
    "trailing bytes": encode(Done(1)) + b"\x00",
    "unknown tag": packed("nonsense", 1),
    "a nesting bomb": b"\x92\xa6status\x81\xa1a" + b"\x91" * 1_000_000,
    "a nesting bomb in a body": b"\x93\xa3pub\x01\x91" + b"\x91" * 1_000_000,
    "a nesting bomb for a filter": b"\x93\xa4+sub\x01" + b"\x91" * 1_000_000,
    "a nesting bomb in a filter": packed("+sub", 1, b"\x91" * 1_000_000),
    "a huge array in a filter": packed("+sub", 1, b"\xdd\xff\xff\xff\xff"),
    "a huge array": b"\x93\xa3pub\x01\xdd\xff\xff\xff\xff",
    "a huge tuple": b"\x93\xa3ctl\x01\xdd\xff\xff\xff\xff",
    "a huge map": b"\x92\xa6status\xdf\xff\xff\xff\xff",
    "a huge string": b"\x92\xa6closed\xdb\xff\xff\xff\xff",
    "huge arrays in each other": b"\x92\xa6status\x81\xa1a" + b"\xdc\xff\xff" * 900,
    "text that is not UTF-8": b"\x93\xa6closed\xa1\xff\xa1\xff",
    "an impossible time": b"\x92\xa6status\x81\xa1a\xc7\x0c\xff" + b"\xff" * 12,
    "a number where a name belongs": packed("client", PROTOCOL_VERSION, 7),
    "a number beyond 64 bits": packed("done", 1.5),
    "a filter that is not in bytes": packed("+sub", 1, [[["x", 2, 1]]]),
    "a filter that is none": packed("+sub", 1, msgspec.msgpack.encode([[["x", 99, "?"]]])),
    "a filter with an impossible range": packed(
        "+sub", 1, msgspec.msgpack.encode([[["x", 3, 1, "a", {}, 0]]])
    ),
    "an operation with too few parts": packed("ask", ["c", "e"]),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes(body: bytes) -> None:
    with pytest.raises(FrameError, match="malformed frame"):
        decode(body)


@by_kind
def test_every_truncation(frame: Frame) -> None:
    body = encode(frame)
    for length in range(len(body)):
        with pytest.raises(PeerError):
            decode(body[:length])


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
@example(b"\x92\xa4done\xcf\xff\xff\xff\xff\xff\xff\xff\xff")
def test_random_bytes(body: bytes) -> None:
    only_peer_errors(body)


@given(
    frame=st.sampled_from(FRAMES),
    cuts=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 3), st.binary(max_size=4)), min_size=1, max_size=4
    ),
)
@settings(max_examples=400, deadline=None)
def test_mutated_frames(frame: Frame, cuts: list[tuple[float, int, bytes]]) -> None:
    body = bytearray(encode(frame))
    for where, removed, added in cuts:
        start = int(where * len(body))
        body[start : start + removed] = added
    only_peer_errors(bytes(body))


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
anything = st.recursive(
    leaves | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
wrong_fields = st.lists(anything, max_size=6)


def tags(*things: msgspec.Struct) -> st.SearchStrategy[str]:
    return st.sampled_from(sorted({str(each.__struct_config__.tag) for each in things}))


@given(tag=tags(*FRAMES), fields=wrong_fields)
@settings(max_examples=250, deadline=None)
def test_right_tags_with_wrong_fields(tag: str, fields: list[object]) -> None:
    only_peer_errors(packed(tag, *fields))


@given(tag=tags(*CONTROL), fields=wrong_fields)
@settings(max_examples=150, deadline=None)
def test_control_with_wrong_fields(tag: str, fields: list[object]) -> None:
    only_peer_errors(packed("ctl", 1, [[tag, *fields]]))


@given(tag=tags(*LETTERS), fields=wrong_fields)
@settings(max_examples=100, deadline=None)
def test_letters_with_wrong_fields(tag: str, fields: list[object]) -> None:
    only_peer_errors(packed("ctl", 1, [["letter", "B3", [tag, *fields]]]))


@given(form=anything)
@settings(max_examples=150, deadline=None)
def test_any_form_as_a_filter(form: object) -> None:
    only_peer_errors(packed("+sub", 1, form))


def test_encoding_an_unsupported_type_raises_not_implemented() -> None:
    with pytest.raises(NotImplementedError):
        encode(Status({"x": struct.Struct("I")}))
