"""Envelopes and headers: what was put in comes out, and what anybody else writes raises nothing."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.ordering.envelope import (
    MARK,
    MOST_ENTRIES,
    MOST_EVENTS,
    MOST_GONE,
    MOST_GONE_CHARS,
    SEAL_BYTES,
    SEALED_MARK,
    header_of,
    is_sound,
    opened,
    opened_header,
    seal,
)
from motet.protocol.sequencing.messages import LAST_NUMBER, Timestamp

KEY = bytes(range(32))
KEYS = st.sampled_from((b"", KEY))
STAMPS = st.builds(
    Timestamp,
    st.integers(0, 2**40),
    st.integers(1, 2**60),
    st.lists(st.integers(0, 2**40), max_size=3).map(lambda some: tuple(some * 2)),
    st.lists(st.text(max_size=5), max_size=2).map(tuple),
)
EVENTS = st.lists(st.tuples(STAMPS, st.binary(max_size=50)), min_size=1, max_size=5)
Events = list[tuple[Timestamp, bytes]]


def sealed(events: Events, key: bytes = b"") -> bytes:
    return seal([stamp for stamp, _ in events], [payload for _, payload in events], key)


@given(EVENTS, KEYS)
def test_an_envelope_leaves_its_events_as_they_are(events: Events, key: bytes) -> None:
    assert opened(sealed(events, key), key) == events
    assert opened(sealed(events, key)) == events, "who has no key believes all"


@given(STAMPS, st.binary(max_size=50), KEYS)
def test_a_header_leaves_its_event_as_it_is(stamp: Timestamp, payload: bytes, key: bytes) -> None:
    header = header_of(stamp, payload, key)
    assert "\n" not in header
    assert "\r" not in header
    assert opened_header(header, payload, key) == [(stamp, payload)]
    assert opened_header(header, payload) == [(stamp, payload)]


@given(st.binary(max_size=80), st.sampled_from((b"", MARK, SEALED_MARK)), KEYS)
def test_any_bytes_are_foreign_or_forged_and_raise_nothing(
    rest: bytes, mark: bytes, key: bytes
) -> None:
    found = opened(mark + rest, key)
    if mark:
        assert found is not None
        assert all(is_sound(stamp) for stamp, _ in found)
        assert not (found and key)
    elif not rest.startswith(MARK[:1]):
        assert found is None


@given(st.text(max_size=80), st.binary(max_size=20), KEYS)
def test_any_header_is_forged_and_raises_nothing(header: str, payload: bytes, key: bytes) -> None:
    found = opened_header(header, payload, key)
    assert all(is_sound(stamp) for stamp, _ in found)
    assert not (found and key)


@given(EVENTS, st.data(), KEYS)
def test_a_damaged_envelope_has_nothing_unsound(
    events: Events, data: st.DataObject, key: bytes
) -> None:
    body = bytearray(sealed(events, key))
    at = data.draw(st.integers(len(MARK), len(body) - 1))
    if data.draw(st.booleans()):
        del body[at:]
    else:
        body[at] ^= data.draw(st.integers(1, 255))
    found = opened(bytes(body), key)
    assert found is not None
    assert all(is_sound(stamp) for stamp, _ in found)
    if key:
        assert found == []


@given(STAMPS, st.binary(max_size=20), st.data())
def test_a_damaged_header_does_not_fit_its_seal(
    stamp: Timestamp, payload: bytes, data: st.DataObject
) -> None:
    header = header_of(stamp, payload, KEY)
    at = data.draw(st.integers(0, len(header) - 1))
    other = data.draw(st.characters().filter(lambda char: char != header[at]))
    assert opened_header(header[:at] + other + header[at + 1 :], payload, KEY) == []
    assert opened_header(header[:at], payload, KEY) == []
    assert opened_header(header, payload + b"x", KEY) == []


def test_who_has_a_key_wants_seals_of_this_key() -> None:
    events = [(Timestamp(0, 1), b"x")]
    assert opened(sealed(events), KEY) == []
    assert opened(sealed(events, KEY[:-1]), KEY) == []
    assert opened_header(header_of(*events[0]), b"x", KEY) == []
    assert opened_header(header_of(*events[0], KEY[:-1]), b"x", KEY) == []
    assert opened(b"plain", KEY) is None, "it does not say that it takes part"


UNSOUND = {
    "number 0": Timestamp(0, 0),
    "a negative number": Timestamp(0, -1),
    "a huge number": Timestamp(0, LAST_NUMBER),
    "more than a number": Timestamp(0, 2**64 - 1),
    "a negative topic": Timestamp(-1, 1),
    "a huge topic": Timestamp(2**63, 1),
    "half an entry": Timestamp(0, 1, (1,)),
    "a negative entry": Timestamp(0, 1, (1, -1)),
    "a huge entry": Timestamp(0, 1, (1, LAST_NUMBER)),
    "too many entries": Timestamp(0, 1, (1,) * (MOST_ENTRIES + 2)),
    "too many streams": Timestamp(0, 1, (), ("",) * (MOST_GONE + 1)),
    "a stream with a long name": Timestamp(0, 1, (), ("x" * (MOST_GONE_CHARS + 1),)),
}


@pytest.mark.parametrize("what", UNSOUND)
def test_unsound_timestamps_are_forged(what: str) -> None:
    stamp = UNSOUND[what]
    assert opened(seal([stamp], [b""])) == []
    assert opened(seal([Timestamp(0, 1), stamp], [b"", b""])) == [], "all of the batch"
    assert opened_header(header_of(stamp, b""), b"") == []


def test_giant_and_crooked_batches_are_forged() -> None:
    one = Timestamp(0, 1)
    most = [one] * MOST_EVENTS
    assert len(opened(seal(most, [b""] * len(most))) or ()) == MOST_EVENTS
    assert opened(seal([*most, one], [b""] * (len(most) + 1))) == []
    assert opened(seal([one], [])) == []
    assert opened(seal([], [])) == []
    half = Timestamp(0, 1, (1, 1) * (MOST_ENTRIES // 4))
    assert opened(seal([half, half], [b"", b""])) is not None
    assert opened(seal([half, half, half], [b""] * 3)) == []


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"\x92\xdd\xff\xff\xff\xff",
        b"\x92\x91\x93\x01\x01\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x92\x91\x92\x01\xc0\x91\xc4\x00",
        msgspec.msgpack.encode([[[0, 1]], ["text"]]),
        b"\0" * SEAL_BYTES,
    ],
)
def test_lies_about_lengths_and_types_are_forged(rest: bytes) -> None:
    assert opened(MARK + rest) == []
    assert opened(SEALED_MARK + rest) == []


def test_deep_json_is_forged() -> None:
    assert opened_header("[" * 100_000 + "]" * 100_000, b"") == []
