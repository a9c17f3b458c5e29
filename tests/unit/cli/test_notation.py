"""Events as words and as JSON lines."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import inf, isnan, nan

import pytest

from motet.cli import notation
from motet.cli.console import Misuse
from motet.model import Event

MOMENT = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("0", 0),
        ("2.5", 2.5),
        ("1e3", 1000.0),
        ("-0.5", -0.5),
        ("true", True),
        ("false", False),
        ("True", "True"),
        ("007", "007"),
        ("+5", "+5"),
        ("nan", "nan"),
        ("1_000", "1_000"),
        ("٣", "٣"),
        ("ACME", "ACME"),
        ("", ""),
        ('"42"', "42"),
        ("'true'", "true"),
        ("2026-01-31T09:30:00Z", MOMENT),
        ("2026-01-31T09:30Z", MOMENT),
        ("2026-01-31", "2026-01-31"),
        ("2026-01-31T09:30:00+00:00", "2026-01-31T09:30:00+00:00"),
    ],
)
def test_an_argument_has_the_type_of_its_literal(text: str, value: object) -> None:
    found = notation.value_of(text)
    assert found == value
    assert type(found) is type(value)


def test_arguments_become_attributes_and_a_colon_forces_text() -> None:
    attributes = notation.attributes_of(["a=1", "b:=1", "c=x=y", "d:=", "e.f=true"])
    assert attributes == {"a": 1, "b": "1", "c": "x=y", "d": "", "e.f": True}


@pytest.mark.parametrize("words", [["a"], ["=1"], [":=1"], ["a=1", "a=2"], ["t=2026-13-01T00:00Z"]])
def test_wrong_words_are_misuse(words: list[str]) -> None:
    with pytest.raises(Misuse):
        notation.attributes_of(words)


def test_printed_json_is_read_back_unchanged() -> None:
    values = {
        "b": True,
        "i": 2**62 + 1,
        "f": 1.0,
        "inf": inf,
        "s": "2026-01-31T09:30:00Z",
        "t": MOMENT,
    }
    for payload in (b"", "grüße".encode(), b"\xff\x00"):
        event = Event.delivered(dict(values), payload, "p", 7)
        line = json.dumps(notation.to_json(event), allow_nan=False)
        attributes, again = notation.from_json(line)
        assert attributes == values
        assert [type(v) for v in attributes.values()] == [type(v) for v in values.values()]
        assert again == payload


def test_nan_survives_json() -> None:
    event = Event.delivered({"x": nan}, b"", "p", 1)
    attributes, _ = notation.from_json(json.dumps(notation.to_json(event), allow_nan=False))
    assert isnan(attributes["x"])  # type: ignore[arg-type]


def test_a_plain_object_is_the_attributes_and_nulls_are_left_out() -> None:
    assert notation.from_json('{"a": 1, "b": null, "payload": "x"}') == (
        {"a": 1, "payload": "x"},
        b"",
    )


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "3",
        '{"a": [1]}',
        '{"a": {"timestamp": "yesterday"}}',
        '{"a": {"float": "1"}}',
        '{"attributes": {"a": null}}',
        '{"attributes": {}, "frob": 1}',
        '{"attributes": {}, "payload": 3}',
        '{"attributes": {}, "payload_base64": "?"}',
        '{"attributes": {}, "payload_base64": 3}',
    ],
)
def test_wrong_lines_are_misuse(line: str) -> None:
    with pytest.raises(Misuse):
        notation.from_json(line)


def test_events_for_people_say_what_is_text() -> None:
    event = Event.of(a=1, b="1", c="x y", d="plain", e=True, f=MOMENT)
    said = notation.words_of(event)
    assert said == 'a=1  b="1"  c="x y"  d=plain  e=true  f=2026-01-31T09:30:00Z'
