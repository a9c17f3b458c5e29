"""Events, their checks and their bodies."""

from __future__ import annotations

import copy
import enum
import pickle
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from math import nan
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.errors import EventError, FrameError
from motet.model import (
    Event,
    Filter,
    Value,
    check_attributes,
    decode_attributes,
    decode_body,
    encode_event,
)
from motet.model.limits import MAX_EVENT_BYTES
from tests.unit.model.strategies import any_attributes

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def test_attributes_are_looked_up_by_name() -> None:
    event = Event({"process": "p1", "step": 3}, b"data")
    assert (event["step"], event.get("process"), event.payload) == (3, "p1", b"data")
    assert (event.get("none"), event.get("none", 5)) == (None, 5)
    assert "step" in event
    assert "other" not in event
    assert list(event) == ["process", "step"]
    assert dict(event) == dict(event.attributes) == {"process": "p1", "step": 3}
    assert (event.publisher, event.sequence) == ("", 0)
    assert Filter.parse("step = 3").matches(event)
    with pytest.raises(KeyError):
        event["other"]


def test_keywords_make_events() -> None:
    assert Event.of(process="p1", step=3, payload=b"x") == Event({"process": "p1", "step": 3}, b"x")


def test_events_are_frozen() -> None:
    given_attributes: dict[str, Value] = {"a": 1}
    event = Event(given_attributes)
    given_attributes["a"] = 2
    assert event["a"] == 1
    with pytest.raises(AttributeError):
        event.payload = b""  # type: ignore[misc]
    with pytest.raises(AttributeError):
        event.other = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        event.attributes["a"] = 2  # type: ignore[index]


def test_equality_knows_types_and_nan() -> None:
    assert Event({"a": 1}) != Event({"a": True})
    assert Event({"a": 1}) != Event({"a": 1.0})
    assert Event({"a": float("nan")}) == Event({"a": nan})
    assert Event({"a": 1, "b": 2}) == Event({"b": 2, "a": 1})
    assert hash(Event({"a": nan, "b": 2})) == hash(Event({"b": 2, "a": -nan}))
    assert Event({"a": 1}) != Event({"a": 1}, b"x")
    assert Event.delivered({"a": 1}, b"", "p", 1) != Event.delivered({"a": 1}, b"", "p", 2)
    assert Event({}) != {}


def test_events_are_copied_and_pickled() -> None:
    event = Event.delivered({"a": nan, "b": NOON}, b"x", "p", 7)
    assert pickle.loads(pickle.dumps(event)) == event
    assert copy.deepcopy(event) == event
    assert "p#7" in repr(event)


def test_values_become_plain() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    class Level(enum.IntEnum):
        LOW = 1

    there = NOON.astimezone(timezone(timedelta(hours=-5)))
    event = Event({"c": Colour.RED, "l": Level.LOW, "t": there}, memoryview(b"x"))  # type: ignore[arg-type]
    assert [type(value) for value in event.attributes.values()] == [str, int, datetime]
    assert event["t"] == NOON
    assert event["t"].tzinfo is UTC  # type: ignore[union-attr]
    assert type(event.payload) is bytes


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"a": None}, "'a' is None: omit"),
        ({"a": b"x"}, "payload"),
        ({"a": [1]}, "'a' is an object of type list"),
        ({"a": 2**63}, "'a' is an integer beyond 64 bits"),
        ({"a": -(2**63) - 1}, "64 bits"),
        ({"a": "x\ud800"}, "surrogate at position 1"),
        ({"a": datetime(2026, 1, 2)}, "without a time zone"),
        ({"a b": 1}, "'a b' cannot name"),
        ({"": 1}, "cannot name"),
        ({5: 1}, "cannot name"),
        ({"x" * 129: 1}, "cannot name"),
        ({f"a{i}": 1 for i in range(257)}, "at most 256"),
        ({"a": "x" * MAX_EVENT_BYTES}, "bytes, more than"),
        ({"a": "é" * (MAX_EVENT_BYTES // 2)}, "bytes, more than"),
    ],
)
def test_invalid_attributes_of_an_event_are_refused(attributes: dict[str, Any], says: str) -> None:
    with pytest.raises(EventError, match=says):
        Event(attributes)


def test_the_payload_is_bytes_and_bounded() -> None:
    with pytest.raises(EventError, match="encode it first"):
        Event({}, "text")  # type: ignore[arg-type]
    with pytest.raises(EventError, match="more than"):
        Event({"a": 1}, b"x" * MAX_EVENT_BYTES)
    assert Event({"a": "x" * 500_000}, b"x" * 500_000)


@given(any_attributes(), st.binary(max_size=50))
def test_bodies_return_the_same_event(attributes: dict[str, Value], payload: bytes) -> None:
    event = Event(attributes, payload)
    body = event.encode()
    assert body == encode_event(attributes, payload)
    for raw in (body, memoryview(body), msgspec.Raw(body)):
        assert Event(*decode_body(raw)) == event
        assert Event(decode_attributes(raw), payload) == event
    check_attributes(decode_attributes(body))


@pytest.mark.parametrize(
    "attributes",
    [
        {"a": 2**63},
        {"a": None},
        {"a": [1]},
        {"a": {}},
        {"a": b"x"},
        {"a": NOON.replace(tzinfo=None)},
        {"a": NOON.astimezone(timezone(timedelta(hours=2)))},
        {"a": msgspec.msgpack.Ext(5, b"")},
        {"a": "\ud800"},
        {"a b": 1},
        {"é": 1},
        {1: 1},
        {f"a{i}": 1 for i in range(257)},
    ],
)
def test_a_broker_refuses_invalid_attributes(attributes: dict[str, Any]) -> None:
    with pytest.raises(EventError):
        check_attributes(attributes)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x92",
        msgspec.msgpack.encode([{}]),
        msgspec.msgpack.encode([{}, b"", 1]),
        msgspec.msgpack.encode([{1: 1}, b""]),
        msgspec.msgpack.encode([[], b""]),
        msgspec.msgpack.encode({}),
        msgspec.msgpack.encode([{}, b""]) + b"\0",
        b"\x92\x81\xa1a\xa1\xff\xc4\x00",
        b"\x92\x81\xa1a\xa3\xed\xa0\x80\xc4\x00",
        b"\x92\x81\xa1a" + b"\x91" * 100_000 + b"\xc4\x00",
        b"\x92\xdf\xff\xff\xff\xff",
        b"\x92\x81\xa1a\xc7\x0c\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xc4\x00",
    ],
)
def test_malformed_bodies_are_the_peers_fault(raw: bytes) -> None:
    for decode in (decode_body, decode_attributes):
        with pytest.raises(FrameError):
            decode(raw)


@settings(max_examples=200, deadline=None)
@given(st.data(), any_attributes())
def test_mutated_bodies_raise_only_their_errors(
    data: st.DataObject, attributes: dict[str, Value]
) -> None:
    body = bytearray(encode_event(attributes, b"payload"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    with suppress(FrameError, EventError):
        found, payload = decode_body(bytes(body))
        check_attributes(found)
        Event(found, payload).encode()


@given(st.binary(max_size=60))
def test_random_bodies_raise_only_their_errors(raw: bytes) -> None:
    with suppress(FrameError, EventError):
        check_attributes(decode_attributes(raw))
