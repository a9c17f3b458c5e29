"""The codec: every frame makes the round trip, and no bytes whatever break it."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from motet.errors import FrameError, PeerError, VersionError
from motet.model import Filter, OpId, encode_event
from motet.protocol.cell.messages import (
    Facts,
    FactsAck,
    ImagePart,
    Inward,
    MemberHello,
    Said,
    Shared,
    Sideways,
    Standing,
)
from motet.protocol.delivery.messages import AckExpected, AckUp, Delivered, Knowledge, Nack
from motet.protocol.delivery.spans import CutRecord, Span, StartRecord
from motet.protocol.frames import PROTOCOL_VERSION, Beat, Frame
from motet.protocol.link.messages import (
    Control,
    ControlAck,
    ControlMessage,
    Inquire,
    LinkHello,
    Publications,
    Waiting,
)
from motet.protocol.publication import Publication
from motet.protocol.reading.messages import (
    CursorAccount,
    CursorRequest,
    CursorSet,
    Described,
    DescribeRequest,
    LogStep,
    Outline,
    OutlineRequest,
    PubendAccount,
    ReadAnswer,
    ReadRequest,
    Refused,
    Wanted,
)
from motet.protocol.routing.messages import (
    Advertise,
    ClientGone,
    ClientHere,
    Complete,
    Confirmed,
    Echo,
    Join,
    PubendGone,
    PubendHere,
    Started,
    Subscribe,
    Switched,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.session.messages import (
    AdvertiseRequest,
    AnswerRequest,
    BeginRequest,
    ClientHello,
    CommitRequest,
    ConsentRequest,
    Decided,
    Deliver,
    Delivery,
    Done,
    EndRequest,
    ExecuteRequest,
    Failed,
    Goodbye,
    Goodnight,
    HowFar,
    Invited,
    InviteRequest,
    OutcomeRequest,
    Over,
    Processed,
    Publish,
    Published,
    Ready,
    Refusal,
    StageRequest,
    Stands,
    Status,
    StatusRequest,
    SubscribeRequest,
    Tag,
    UnadvertiseRequest,
    UnsubscribeRequest,
    Welcome,
)
from motet.protocol.sinks.messages import (
    Attempt,
    Dropped,
    DropRequest,
    RowsRequest,
    RowsStaged,
    Sealed,
    SealRequest,
    StagedPart,
)
from motet.protocol.transactions.messages import (
    Ask,
    Begun,
    Contribution,
    Decide,
    Echoed,
    Effective,
    Ended,
    Engage,
    Engaged,
    Invite,
    Letter,
    LetterBody,
    Open,
    Opening,
    Prepare,
    Query,
    Reply,
    Settle,
    Step,
    Submit,
    Tell,
    Verdict,
    Withdraw,
)
from motet.runtime.codec import decode, encode

OP = OpId("c", "B1-7", 3)
FILTER = Filter.parse("process = 'p1' and step between 1 and 9 and name like 'ab%' or x is null")
BODY = msgspec.Raw(encode_event({"step": 5, "name": "abc", "ok": True, "x": 1.5}, b"payload"))
PUBLICATION = Publication("c", 9, BODY)

STARTS = (StartRecord(4, OpId("c", "B1-7.1", 2)),)
SAID = Said("b2", 1, 5, 4, 3, 2, Nack("B1.7", ((1, 2),)), "b1")
TX = "c/B1-7.1/3"
TAG = Tag(TX, "00000001/d/00000002")
STEPS = (Step("subscribe", "1", "x", FILTER), Step("publish", "2", body=bytes(BODY)))
PART = Contribution(
    "c", 3, (Begun(OP, FILTER, "1"),), (Ended(OP, FILTER, "2"),), 4, "B1.7", (BODY,), 99, "B2"
)
LETTERS: tuple[LetterBody, ...] = (
    Engage(TX, "d", STEPS, 2.5, ("c", "d"), "key"),
    Engaged(TX, PART, 2.5, ("c", "d"), "key"),
    Open(TX, 2.5),
    Submit(TX, (PART,), "key", True),
    Withdraw(TX, "B2", "no", "key"),
    Query(TX, "B2"),
    Verdict(TX, 7, True),
    Ask(TX, OP, "B2"),
    Tell(OP, "committed"),
    Effective(TX),
)
CUT = CutRecord(5, TX, ((OP, 5, False), (OP, 6, True)), ("B1.7",), 6, 7)
ATTEMPT = Attempt("levels", "query", 4, 0, "17-abc")
STAGED_PART = StagedPart(0, "17-abc", 3, 99, 12345)
FRAMES: list[Frame] = [
    Control(8, tuple(Letter("B3", letter) for letter in LETTERS)),
    Control(
        17,
        (
            Subscribe(OP, FILTER, tx=TX, ended=True),
            Started(OP, "B1.7", 4, True),
            Switched(OP, "B1.7", 5, True),
            Invite(TX, OP, "00000001", BODY, 2.5, True),
            Reply(OP, (PART,), 2, "no"),
            Opening(TX),
            Prepare(TX),
            Decide(TX, 7, True, "", PART.begun, PART.ended, ("B1.7",)),
            Echoed(TX, "prepare", "changed"),
            Settle(TX),
        ),
    ),
    Knowledge("B1.7", Span(5, 6, [6], [PUBLICATION], (CUT,))),
    BeginRequest(1, False, 2.5, "key"),
    ExecuteRequest(2, (("d", STEPS),), 2.5, "key"),
    SubscribeRequest(3, FILTER, tag=TAG),
    StageRequest(4, TAG, BODY, 2.5),
    InviteRequest(5, TAG, BODY, 2.5),
    AnswerRequest(6, TX, OP, "no"),
    ConsentRequest(9, 2.5),
    EndRequest(7, TX, False, "no"),
    OutcomeRequest(8, TX),
    CommitRequest(9, "query", 4, (STAGED_PART,), FILTER, takeover=True),
    CommitRequest(9, "job", None, (STAGED_PART,), FILTER, key="k"),
    Invited(TX, 2.5, "00000001/c", OP, bytes(BODY), (1, 2)),
    Decided(TX, 7, False, "no"),
    Decided(TX, 7, True, added=(Stands(1 << 40, "subscribe", "x", FILTER),), ended=(3, 4)),
    Over(3),
    Beat(),
    LinkHello(PROTOCOL_VERSION, "B1", 5, 4, 3, True, b"secret"),
    Control(
        7,
        (
            Advertise(OP, FILTER, echo=True, probe=True),
            Unadvertise(OP, OP),
            Subscribe(OP, FILTER),
            Unsubscribe(OP),
            Echo(OP),
            ClientHere("c", "B1-7"),
            ClientGone("c", "B1-7"),
            Complete(False),
            PubendHere("B1.7", ("B2", "B1")),
            PubendGone("B1.7"),
            Confirmed(OP),
            Join(OP, "B1.7", 9),
        ),
    ),
    ControlAck(2**40),
    Publications(1, 2, [PUBLICATION] * 3),
    Inquire(OP),
    Waiting(OP, "B1", ("B2", "B3")),
    ClientHello(PROTOCOL_VERSION, "c", "B1-7", b"secret"),
    AdvertiseRequest(1, FILTER, False, 2.5),
    UnadvertiseRequest(2, 1),
    SubscribeRequest(3, FILTER),
    UnsubscribeRequest(4, 3, wait=False),
    Publish(10, [BODY] * 5),
    Goodbye(True, {1: {"B1.7": 9}}),
    Ready(),
    StatusRequest(),
    Welcome("B1", "B1-7", True, -1, 30.0, (Refusal(9, "E", ""),), 8, 0.5),
    Done(1),
    Failed(1, "NotEffective", "not in time", ("B2",)),
    Published(14, (Refusal(12, "NotAdvertised", "outside"),)),
    Deliver([Delivery((1, 2), PUBLICATION)] * 2, 7),
    Delivered("B1.7", 9, [5, 9], [PUBLICATION] * 2, (), [(1,), (1, 2)], ((2, 4),)),
    Processed("B1.7", 9),
    Knowledge(
        "B1.7",
        Span(3, 9, [5], [PUBLICATION], (StartRecord(4, OpId("c", "B1-7.1", 2)),)),
        True,
        True,
        3,
    ),
    Nack("B1.7", ((1, 2), (4, 9)), 3),
    AckUp("B1.7", 9),
    AckExpected("B1.7", 9),
    ReadRequest(PROTOCOL_VERSION, 1, "B1.7", 3, 9, (Wanted("tick"),), FILTER, ("event",), 5),
    DescribeRequest(PROTOCOL_VERSION, 2),
    OutlineRequest(PROTOCOL_VERSION, 3, "B1.7", 1, 9, 10, 11, 12, 13, True),
    Outline(
        3, "B1.7", 1, 9, 9, False, (LogStep(4, 3, 99), LogStep(9, 2, 9, 7, "a/1/2", ("B1.7",)))
    ),
    CursorRequest(PROTOCOL_VERSION, 3, "B1.7", "spark", 9),
    RowsRequest(PROTOCOL_VERSION, 1, ATTEMPT, 0, FILTER, [BODY]),
    SealRequest(PROTOCOL_VERSION, 2, ATTEMPT, 1),
    DropRequest(PROTOCOL_VERSION, 3, "levels", "query", 4),
    RowsStaged(1),
    Sealed(2, STAGED_PART),
    Dropped(3),
    ReadAnswer(
        *(1, "B1.7", 3, 9, 9, False, 1, 4),
        *((Wanted("level", "level", "int"),), {"level": 2}, b"arrow"),
    ),
    Described(
        2, "B1", (PubendAccount("B1.7", 1, 9, 4, 3, 2, 1, 0, 0, (CursorAccount("spark", 9, 1.5),)),)
    ),
    CursorSet(3),
    Refused(4, "MisuseError", "not so"),
    MemberHello(PROTOCOL_VERSION, "B1", "b2", True),
    Standing(True, ("B2", "B3")),
    SAID,
    Sideways("B2", SAID),
    Inward("B2", SAID),
    Shared("B2", 5, 4, 3, AckUp("B1.7", 9)),
    ImagePart(7, 1, 2, b"part"),
    Facts(7, (b"one", b"two"), 6),
    FactsAck(8),
    HowFar(),
    Goodnight("Fenced", "another client"),
    Status({"broker": "B1", "tables": {"n": 1}, "list": [1, 2.5, None, True]}),
]

CONTROL = [message for frame in FRAMES if isinstance(frame, Control) for message in frame.messages]

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
