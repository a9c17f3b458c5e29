"""Joining and cutting frames changes how many there are, never what they say."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.broker.driver import contact
from motet.broker.driver.contact import (
    FRAME_EVENTS,
    STEP_BYTES,
    STEP_EVENTS,
    decoded,
    encoded,
    joined,
)
from motet.errors import FrameError, ProtocolError
from motet.model import EVERYTHING, OpId
from motet.protocol.frames import Beat, Frame
from motet.protocol.link.messages import Control, ControlAck, Publications
from motet.protocol.publication import Publication
from motet.protocol.routing.messages import Echo, Subscribe
from motet.protocol.session.messages import (
    Deliver,
    Delivery,
    Done,
    Publish,
    Published,
    Refusal,
    Status,
)
from motet.runtime.codec import decode, encode
from motet.runtime.transport import MAX_FRAME_BYTES


def raw(size: int = 10) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(bytes(size)))


def delivery(sequence: int) -> Delivery:
    return Delivery((1,), Publication("p", sequence, raw()))


def numbered(frames: list[Frame]) -> list[int]:
    """The numbers of all publications of a client, in order."""
    return [
        frame.first + i
        for frame in frames
        if isinstance(frame, Publish)
        for i in range(len(frame.bodies))
    ]


# ── in ───────────────────────────────────────────────────────────────────────────────────


def test_publications_that_follow_each_other_are_joined() -> None:
    bodies = [encode(Publish(1 + 3 * n, [raw()] * 3)) for n in range(5)]
    (frame,), wrong = decoded(bodies)
    assert wrong is None
    assert isinstance(frame, Publish)
    assert (frame.first, len(frame.bodies)) == (1, 15)


def test_a_gap_or_another_frame_between_them_keeps_them_apart() -> None:
    gap = [encode(Publish(1, [raw()])), encode(Publish(3, [raw()]))]
    assert len(decoded(gap)[0]) == 2
    between = [encode(Publish(1, [raw()])), encode(Beat()), encode(Publish(2, [raw()]))]
    assert [type(frame) for frame in decoded(between)[0]] == [Publish, Beat, Publish]


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [((4, 7), (5, 7), 1), ((4, 7), (6, 7), 2), ((4, 7), (5, 8), 2), ((5, 7), (5, 7), 2)],
)
def test_frames_of_a_link_are_joined_only_if_neither_counter_notices(
    first: tuple[int, int], second: tuple[int, int], count: int
) -> None:
    batch = [Publication("p", 1, raw())]
    frames, _ = decoded([encode(Publications(*first, batch)), encode(Publications(*second, batch))])
    assert len(frames) == count
    if count == 1:
        assert isinstance(frames[0], Publications)
        assert (frames[0].number, frames[0].after, len(frames[0].batch)) == (5, 7, 2)


def test_a_publish_and_a_publications_are_never_joined() -> None:
    mixed = [encode(Publish(1, [raw()])), encode(Publications(2, 0, []))]
    assert [type(frame) for frame in decoded(mixed)[0]] == [Publish, Publications]


def test_joined_frames_stay_small_enough_for_a_step() -> None:
    frames, _ = decoded([encode(Publish(1 + n, [raw(1)])) for n in range(3 * STEP_EVENTS)])
    assert [len(frame.bodies) for frame in frames] == [STEP_EVENTS] * 3  # type: ignore[union-attr]
    frames, _ = decoded([encode(Publish(1 + n, [raw(STEP_BYTES // 3)])) for n in range(6)])
    assert len(frames) == 3
    assert numbered(frames) == list(range(1, 7))


@given(
    sizes=st.lists(st.integers(0, 3000), min_size=0, max_size=40),
    limits=st.tuples(st.integers(1, 10), st.integers(1, 5000)),
)
@settings(max_examples=100, deadline=None)
def test_a_frame_too_large_for_a_step_is_cut(sizes: list[int], limits: tuple[int, int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contact, "STEP_EVENTS", limits[0])
        patch.setattr(contact, "STEP_BYTES", limits[1])
        frames, _ = decoded([encode(Publish(7, [raw(size) for size in sizes]))])
    assert numbered(frames) == list(range(7, 7 + len(sizes)))
    pieces = [frame for frame in frames if isinstance(frame, Publish)]
    assert [len(memoryview(body)) for piece in pieces for body in piece.bodies] == [
        len(memoryview(raw(size))) for size in sizes
    ]
    for piece in pieces:
        assert len(piece.bodies) <= limits[0]
        total = sum(len(memoryview(body)) for body in piece.bodies)
        assert total <= limits[1] or len(piece.bodies) == 1


def test_a_malformed_frame_ends_the_read_after_the_valid_ones() -> None:
    frames, wrong = decoded([encode(Done(1)), b"?", encode(Done(2))])
    assert frames == [Done(1)]
    assert isinstance(wrong, FrameError)


# ── out ──────────────────────────────────────────────────────────────────────────────────


def test_deliveries_answers_and_acknowledgements_are_joined_in_place() -> None:
    refusal = Refusal(2, "NotAdvertised", "outside")
    before = [delivery(1)]
    frames = joined(
        [
            Deliver(before, 3),
            Deliver([delivery(2)], 4),
            Published(1),
            Published(2, (refusal,)),
            Published(3),
            Done(1),
            ControlAck(1),
            ControlAck(2),
            Deliver([delivery(3)]),
        ]
    )
    assert frames[1:4] == [Published(3, (refusal,)), Done(1), ControlAck(2)]
    deliver = frames[0]
    assert isinstance(deliver, Deliver)
    assert [each.publication.sequence for each in deliver.batch] == [1, 2]
    assert deliver.dropped == 4
    assert len(before) == 1, "the list may belong to other connections too"
    assert len(frames) == 5


def test_frames_that_would_be_too_large_are_cut() -> None:
    large = Publication("p", 1, raw(3_000_000))
    parts, lost = encoded(Deliver([Delivery((1,), large)] * 5, 9))
    assert lost == 0
    assert len(parts) > 1
    assert all(len(part) <= MAX_FRAME_BYTES for part in parts)
    again = [decode(part) for part in parts]
    delivers = [frame for frame in again if isinstance(frame, Deliver)]
    assert sum(len(frame.batch) for frame in delivers) == 5
    assert [frame.dropped for frame in delivers] == [9] * len(parts)


def test_control_is_cut_with_its_numbers() -> None:
    op = OpId("c" * 3_000_000, "e", 1)
    parts, _ = encoded(Control(5, tuple(Echo(op) for _ in range(5))))
    again = [decode(part) for part in parts]
    assert len(again) > 1
    following = 5
    for frame in again:
        assert isinstance(frame, Control)
        assert frame.first == following
        following += len(frame.messages)
    assert following == 10


def test_refusals_are_cut_with_the_numbers_that_they_settle() -> None:
    text = "x" * 3_000_000
    refused = tuple(Refusal(sequence, "NotAdvertised", text) for sequence in (2, 3, 5, 7, 8))
    parts, _ = encoded(Published(9, refused))
    again = [decode(part) for part in parts]
    settled, heard = 0, []
    for frame in again:
        assert isinstance(frame, Published)
        assert all(settled < refusal.sequence <= frame.upto for refusal in frame.refused)
        settled = frame.upto
        heard += [refusal.sequence for refusal in frame.refused]
    assert (len(again) > 1, settled, heard) == (True, 9, [2, 3, 5, 7, 8])


def test_refusals_are_joined_only_as_far_as_a_step_goes() -> None:
    half = STEP_EVENTS // 2 + 1
    frames = [
        Published(n * half, tuple(Refusal(n * half, "E", "") for _ in range(half)))
        for n in range(1, 4)
    ]
    assert joined(list(frames)) == frames


def test_only_the_events_that_fit_no_frame_are_left_out() -> None:
    """An event for so many subscriptions of one client that they fill a frame."""
    crowded = Delivery(tuple(range(2**32, 2**32 + 1_000_000)), Publication("p", 2, raw()))
    parts, lost = encoded(Deliver([delivery(1), crowded, delivery(3)], 4))
    again = [decode(part) for part in parts]
    delivered = [d.publication.sequence for f in again for d in f.batch]  # type: ignore[union-attr]
    assert (delivered, lost) == ([1, 3], 1)
    huge = Publications(1, 0, [Publication("p", 1, raw(MAX_FRAME_BYTES))])
    assert encoded(huge) == ([], 1)


@pytest.mark.parametrize(
    "frame",
    [
        Status({"x": "y" * (MAX_FRAME_BYTES + 1)}),
        Published(1, (Refusal(1, "EventError", "y" * MAX_FRAME_BYTES),)),
        Control(1, (Echo(OpId("c" * MAX_FRAME_BYTES, "e", 1)),)),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_a_frame_that_cannot_be_split_is_named(frame: Frame) -> None:
    with pytest.raises(FrameError, match=f"a {type(frame).__name__} of .* bytes cannot be cut"):
        encoded(frame)


def test_a_message_within_the_limit_is_one_frame() -> None:
    assert len(encoded(Control(1, (Subscribe(OpId("c", "e", 1), EVERYTHING),)))[0]) == 1


def test_too_many_events_in_one_frame_are_the_peers_fault() -> None:
    body = encode(Publish(1, [raw()] * (FRAME_EVENTS + 1)))
    frames, wrong = decoded([encode(Publish(1, [])), body])
    assert len(frames) == 1
    assert isinstance(wrong, ProtocolError)
    assert "at most 4096" in str(wrong)
