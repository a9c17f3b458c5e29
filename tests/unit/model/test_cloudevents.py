"""CloudEvents out and in."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from math import inf, nan
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from motet.errors import EventError
from motet.model import Event, Value, from_cloudevent, to_cloudevent
from tests.unit.model.strategies import any_attributes, any_values

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)

FOREIGN = {
    "specversion": "1.0",
    "id": "A234-1234",
    "source": "https://example.com/orders",
    "type": "com.example.order",
    "subject": "42",
    "time": "2026-01-02T12:00:00.123456789Z",
    "dataschema": "https://example.com/schema",
    "datacontenttype": "application/json",
    "traceparent": "00-abc",
    "retries": 3,
    "urgent": True,
    "nothing": None,
    "5g": "yes",
    "data": {"total": 1.5, "who": "é"},
}

awkward_names = st.sampled_from(
    [
        *("id", "source", "type", "time", "subject", "datacontenttype", "dataschema"),
        *("specversion", "data", "data_base64", "motet", "ID", "i_d", "id1"),
        *("a.b", "a_b", "ab", "AB", "_", "x", "x1"),
    ]
)


def test_a_foreign_event_comes_in() -> None:
    event = from_cloudevent(json.dumps(FOREIGN))
    assert dict(event) == {
        "id": "A234-1234",
        "source": "https://example.com/orders",
        "type": "com.example.order",
        "subject": "42",
        "time": NOON.replace(microsecond=123456),
        "dataschema": "https://example.com/schema",
        "datacontenttype": "application/json",
        "traceparent": "00-abc",
        "retries": 3,
        "urgent": True,
        "_5g": "yes",
    }
    assert json.loads(event.payload) == FOREIGN["data"]
    again = to_cloudevent(event)
    assert again["data"] == FOREIGN["data"]
    assert (again["subject"], again["retries"], again["id"]) == ("42", 3, "A234-1234")


def test_an_event_goes_out_readable() -> None:
    event = Event(
        {"id": "7", "time": NOON, "step": 3, "Step.ratio": 0.1, "big": 2**40, "due": NOON}, b"\xff"
    )
    made = to_cloudevent(event, source="/here", type="t")
    notes = json.loads(made.pop("motet"))
    assert made == {
        "specversion": "1.0",
        "id": "7",
        "source": "/here",
        "type": "t",
        "time": "2026-01-02T12:00:00Z",
        "step": 3,
        "stepratio": "0.1",
        "big": "1099511627776",
        "due": "2026-01-02T12:00:00Z",
        "datacontenttype": "application/octet-stream",
        "data_base64": "/w==",
    }
    assert notes == {
        "names": {"stepratio": "Step.ratio"},
        "types": {"big": "int", "due": "timestamp", "stepratio": "float"},
        "added": ["source", "type", "datacontenttype"],
    }


@pytest.mark.parametrize(
    ("content_type", "payload", "data"),
    [
        ("application/json", b'{"a":[1,2.5,null]}', {"a": [1, 2.5, None]}),
        ("application/cloudevents+json; charset=utf-8", b'"text"', "text"),
        ("application/json", b'{"a": 1}', None),
        ("application/json", b"null", None),
        ("application/json", b"NaN", None),
        ("application/json", b'{"a":1,"a":1}', None),
        ("application/json", b"no json", None),
        ("text/plain", "é\n".encode(), "é\n"),
        ("text/plain", b"\xff", None),
        ("image/png", b"text", None),
    ],
)
def test_data_is_readable_if_it_converts_without_loss(
    content_type: str, payload: bytes, data: object
) -> None:
    event = Event({"datacontenttype": content_type}, payload)
    made = to_cloudevent(event)
    assert made.get("data") == data
    assert ("data_base64" in made) == (data is None)
    assert from_cloudevent(json.dumps(made)) == event


def test_ids_without_an_id() -> None:
    assert to_cloudevent(Event.delivered({}, b"", "p1", 7))["id"] == "p1/7"
    one = to_cloudevent(Event({"a": 1, "b": 2}))["id"]
    assert one == to_cloudevent(Event({"b": 2, "a": 1}))["id"]
    assert one != to_cloudevent(Event({"a": 1, "b": 3}))["id"]
    assert to_cloudevent(Event({}), id="5")["id"] == "5"
    with pytest.raises(EventError, match="'source'"):
        to_cloudevent(Event({}), source="")


@settings(max_examples=200, deadline=None)
@given(
    any_attributes() | st.dictionaries(awkward_names, any_values(), max_size=8),
    st.binary(max_size=20),
    st.sampled_from([("", 0), ("p", 0), ("p/1", 9)]),
)
@example({"time": "noon", "id": "", "source": 5, "type": True, "x": nan, "y": -inf}, b"{}", ("", 0))
@example({"datacontenttype": "", "subject": "\0"}, b"null", ("", 0))
@example({"datacontenttype": 5}, b"null", ("", 0))
def test_nothing_is_lost(
    attributes: dict[str, Value], payload: bytes, origin: tuple[str, int]
) -> None:
    event = Event(attributes, payload, *origin)
    made = to_cloudevent(event)
    for name, value in made.items():
        assert re.fullmatch("[a-z0-9]{1,20}|data_base64", name)
        assert name == "data" or isinstance(value, str | bool | int)
    for name in ("id", "source", "type"):
        assert isinstance(made[name], str)
        assert made[name]
    text = json.dumps(made, allow_nan=False)
    assert from_cloudevent(made) == from_cloudevent(text) == from_cloudevent(text.encode()) == event


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"specversion": None}, "specversion"),
        ({"id": ""}, "'id' must be"),
        ({"type": 5}, "'type' must be"),
        ({"source": None}, "'source' must be"),
        ({"time": "noon"}, "'time' is no timestamp"),
        ({"time": 5}, "'time' must be"),
        ({"deep": {"a": 1}}, "'deep' must be text"),
        ({"retries": 2**70}, "64 bits"),
        ({"data_base64": "AA=="}, "not both"),
        ({"data": None, "data_base64": "%"}, "base64"),
        ({"data": None, "data_base64": 5}, "base64"),
        ({"data": {1, 2}}, "cannot be encoded"),
        ({"data": nan}, "cannot be encoded"),
        ({"data": "\ud800"}, "cannot be encoded"),
        ({"motet": "5"}, "'motet' must be"),
        ({"motet": "{"}, "'motet' must be"),
        ({"motet": 5}, "'motet' must be"),
        ({"motet": '{"names":[]}'}, "'names' in"),
        ({"motet": '{"types":{"id":5}}'}, "'types' in"),
        ({"motet": '{"added":[[]]}'}, "'added' in"),
        ({"motet": '{"sequence":true}'}, "'sequence' in"),
        ({"motet": '{"types":{"id":"wild"}}'}, "'id' must be a wild"),
        ({"motet": '{"types":{"subject":"bool"}}'}, "'subject' is no bool"),
        ({"motet": '{"names":{"subject":"a b"}}'}, "cannot name"),
        ({"motet": '{"names":{"subject":"id"}}'}, "twice"),
        ({"bad name": "x"}, "cannot name"),
    ],
)
def test_an_invalid_cloudevent_is_explained(change: dict[str, Any], says: str) -> None:
    with pytest.raises(EventError, match=says):
        from_cloudevent(FOREIGN | change)


@pytest.mark.parametrize(
    "given", ["", "[]", "5", b"\xff", "[" * 100_000, '{"a":' + "9" * 5000 + "}"]
)
def test_a_cloudevent_that_is_not_a_json_object_is_explained(given: str | bytes) -> None:
    with pytest.raises(EventError, match="JSON object"):
        from_cloudevent(given)
