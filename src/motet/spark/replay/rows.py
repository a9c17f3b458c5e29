"""A row of a plan as an event: what is null is left out, and what attributes cannot hold is written
as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import msgspec

from motet.errors import EventError
from motet.model.values import Value, is_name
from motet.spark.replay.kinds import is_exact

PREFIX: Final = "_"
"""Columns of the plan itself begin like this; none of an event does."""
PACKED, PAYLOAD = "_packed", "_payload"
_OTHERS: Final = {"case:concept:name": "case", "concept:name": "step", "org:resource": "agent",
                  "org:group": "group", "time:timestamp": "time",
                  "lifecycle:transition": "transition"}  # fmt: skip
"""What the standard of event logs calls things, and what they are called here."""

_decode: Final = msgspec.msgpack.Decoder(dict[str, Any]).decode


def attribute_name(column: str, chosen: Mapping[str, str]) -> str:
    """What a column of a foreign log is called as an attribute. `chosen`: attribute by column."""
    name = chosen.get(column) or _OTHERS.get(column)
    if name is not None:
        return name
    name = "".join(
        char
        if char.isascii() and (char.isalnum() or char in "_.")
        else ("." if char == ":" else "_")
        for char in column.strip()
    ).lstrip("._")
    return name if is_name(name) else f"column_{name}"


def event_of(row: Mapping[str, Any]) -> tuple[dict[str, Value], bytes]:
    """Attributes and payload."""
    if row.get(PACKED) is not None:
        return _decode(row[PACKED]), row.get(PAYLOAD) or b""
    attributes = {
        name: value_of(value)
        for name, value in row.items()
        if value is not None and not name.startswith(PREFIX)
    }
    return attributes, b""


def value_of(value: Any) -> Value:
    match value:
        case bool() | int() | float() | str():
            return value
        case datetime():
            return value if value.tzinfo else value.replace(tzinfo=UTC)
        case date():
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        case Decimal():
            return _number(value)
        case bytes():
            return _text(value)
    return json.dumps(value, default=str, ensure_ascii=False)


def _number(value: Decimal) -> int | float:
    """Whole numbers stay whole; others become floats, unless digits would be lost."""
    if value.as_tuple().exponent == 0:
        return int(value)
    if not is_exact(value):
        raise EventError(f"the number {value} has more digits than events keep; make it a text")
    return float(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as problem:
        raise EventError(f"byte {problem.start + 1} of a binary value is not UTF-8 text") from None
