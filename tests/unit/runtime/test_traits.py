"""Frames declare what they are; codec, outbox, traffic and driver derive their lists from that."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from motet.errors import FrameError, VersionError
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.messages import ControlAck
from motet.protocol.reading.messages import Outline, OutlineRequest, ReaderAnswer, ReaderRequest
from motet.protocol.session.messages import ClientHello
from motet.protocol.sinks.messages import Dropped, RowsStaged, Sealed, StagedPart, StagingRequest
from motet.protocol.traits import SMALL_BYTES, TRAITS, is_soft, tag_of
from motet.runtime.codec import decode, encode


def test_every_frame_declares_what_it_is() -> None:
    assert set(get_args(Frame)) == set(TRAITS)


@pytest.mark.parametrize("kind", [*get_args(ReaderRequest), *get_args(StagingRequest), ClientHello])
def test_a_first_frame_of_another_release_is_a_version_error(kind: type[msgspec.Struct]) -> None:
    """`OutlineRequest` was missing in a list that was kept by hand."""
    newer = msgspec.msgpack.encode([tag_of(kind), PROTOCOL_VERSION + 1, {"unknown": "field"}])
    with pytest.raises(VersionError, match=f"version {PROTOCOL_VERSION + 1}"):
        decode(newer)


@pytest.mark.parametrize(
    "answer",
    [
        Outline(1, "B1.1", 0, 9, 9, False, ()),
        RowsStaged(1),
        Sealed(1, StagedPart(0, "a", 1, 1, 1)),
        Dropped(1),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_answers_beside_the_core_wait_for_no_fact(answer: Frame) -> None:
    assert is_soft(answer)


def test_every_answer_to_a_reader_is_soft() -> None:
    assert all(TRAITS[kind].soft for kind in get_args(ReaderAnswer))


def test_a_frame_above_the_limit_of_its_type_is_refused() -> None:
    assert decode(encode(ControlAck(7))) == ControlAck(7)
    padded = msgspec.msgpack.encode(["ack", 7, b"x" * SMALL_BYTES])
    with pytest.raises(FrameError, match=f"at most {SMALL_BYTES}"):
        decode(padded)


def test_only_readers_send_what_is_answered_beside_the_core() -> None:
    assert TRAITS[OutlineRequest].senders == ("reader",)
