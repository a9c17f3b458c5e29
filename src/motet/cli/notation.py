"""Events as people type them and as programs exchange them.

Words on the command line:

    symbol=ACME price=12.5 quantity=3 urgent=true at=2026-01-31T09:30:00Z
    code:=0042    always text;  so is  'code="0042"'

Numbers are read as JSON writes them (so `007` and `+5` are text), `true` and `false` are bools,
UTC timestamps end in `Z`, everything else is text.

JSON lines: `{"attributes": {"symbol": "ACME", "price": 12.5}, "payload": "…"}`, or simply the
attributes: `{"symbol": "ACME", "price": 12.5}`, of which null ones, as tables have them, are left
out. Values that JSON lacks are tagged: `{"timestamp": "2026-01-31T09:30:00Z"}`,
`{"float": "nan"}`; a payload that is not text is in
`payload_base64`. `motet pub` reads the output of `motet sub --json`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from math import isfinite
from typing import Any, Final

from motet.cli.console import Misuse
from motet.model import Event, Value
from motet.model.values import parse_timestamp, show_timestamp

LONGEST_INTEGER = 20
_INTEGER: Final = re.compile(r"-?(0|[1-9]\d*)\Z")
_DECIMAL: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?\Z")
_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?Z\Z")
_FIELDS: Final = frozenset({"attributes", "payload", "payload_base64", "publisher", "sequence"})


# ── words ────────────────────────────────────────────────────────────────────────────────


def attributes_of(words: Iterable[str]) -> dict[str, Value]:
    """Parse `name=value …` into attributes; `Misuse` names the invalid word."""
    attributes: dict[str, Value] = {}
    for word in words:
        name, separator, text = word.partition("=")
        forced = name.endswith(":")
        name = name.removesuffix(":")
        if not separator or not name:
            raise Misuse(
                f"{word!r} is neither the address of a broker nor name=value",
                "for example: motet pub motet://127.0.0.1:7701 symbol=ACME price=12.5",
            )
        if name in attributes:
            raise Misuse(f"the attribute {name!r} is given twice")
        attributes[name] = text if forced else value_of(text)
    return attributes


def value_of(text: str) -> Value:
    """The value that a word most likely means."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.match(text):
        if len(text) > LONGEST_INTEGER:
            raise Misuse(f"an integer of {len(text)} digits", "integers have 64 bits; use text")
        return int(text)
    if _DECIMAL.match(text):
        return float(text)
    if _TIMESTAMP.match(text):
        return _timestamp(text)
    return text


def _timestamp(text: str) -> datetime:
    try:
        return parse_timestamp(text)
    except ValueError as problem:
        raise Misuse(
            f"{text!r} is not a timestamp: {problem}", "name:=value makes it text"
        ) from None


def words_of(event: Event) -> str:
    """An event on one line, for people."""
    return words_of_attributes(event.attributes)


def words_of_attributes(attributes: Mapping[str, Value]) -> str:
    return "  ".join(f"{name}={_word(value)}" for name, value in attributes.items())


def _word(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return show_timestamp(value)
    if isinstance(value, str):
        plain = value.isprintable() and value != "" and " " not in value
        return value if plain and value_of(value) == value else json.dumps(value)
    return repr(value)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────


def to_json(event: Event) -> dict[str, Any]:
    """A delivered event as plain JSON values, without loss."""
    said: dict[str, Any] = {"attributes": {k: _to_json(v) for k, v in event.items()}}
    if event.payload:
        try:
            said["payload"] = event.payload.decode()
        except UnicodeDecodeError:
            said["payload_base64"] = base64.b64encode(event.payload).decode()
    return said | {"publisher": event.publisher, "sequence": event.sequence}


def _to_json(value: Value) -> Any:
    if isinstance(value, datetime):
        return {"timestamp": show_timestamp(value)}
    if isinstance(value, float) and not isfinite(value):
        return {"float": repr(value)}
    return value


def from_json(line: str) -> tuple[dict[str, Value], bytes]:
    """Attributes and payload of one JSON line."""
    try:
        said = json.loads(line)
    except ValueError as problem:
        raise Misuse(f"not JSON: {problem}: {line.strip()[:60]!r}") from None
    if not isinstance(said, dict):
        raise Misuse(f"an event is a JSON object, not {line.strip()[:60]!r}")
    if not isinstance(said.get("attributes"), dict):
        return _attributes(_without_nulls(said)), b""
    unknown = sorted(said.keys() - _FIELDS)
    if unknown:
        raise Misuse(f"an event has no field {unknown[0]!r}", "attributes, payload, payload_base64")
    return _attributes(said["attributes"]), _payload(said)


def _attributes(said: Mapping[str, Any]) -> dict[str, Value]:
    return {name: _from_json(name, value) for name, value in said.items()}


def _without_nulls(said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}


def _from_json(name: str, value: Any) -> Value:
    match value:
        case bool() | int() | float() | str():
            return value
        case {"timestamp": str(text)} if len(value) == 1:
            return _timestamp(text)
        case {"float": ("nan" | "inf" | "-inf") as text} if len(value) == 1:
            return float(text)
    if value is None:
        raise Misuse(f"attribute {name!r} is null", "omit it: events have no null values")
    raise Misuse(
        f"attribute {name!r} is {json.dumps(value)[:60]}",
        "values are bools, numbers and text, or tagged like {'timestamp': '2026-01-31T09:30:00Z'}",
    )


def _payload(said: Mapping[str, Any]) -> bytes:
    if "payload_base64" in said:
        try:
            return base64.b64decode(said["payload_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as problem:
            raise Misuse(f"payload_base64: {problem}") from None
    payload = said.get("payload", "")
    if not isinstance(payload, str):
        raise Misuse("the payload of an event is text; other bytes go into payload_base64")
    return payload.encode()
