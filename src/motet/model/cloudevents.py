"""Events as CloudEvents 1.0 in the structured JSON format, both ways and without loss.

Every attribute becomes a context attribute. CloudEvents has fewer names and types than Motet, so
one extension attribute, `motet`, holds as JSON text what would otherwise be lost:

    names      context attribute -> name in Motet, where CloudEvents does not allow the name
    types      context attribute -> "int", "float", "timestamp" or "escaped", where its value is
               written as text and is not text (`time` is a timestamp without being listed)
    added      the required attributes that the event does not have
    publisher, sequence   of a delivered event

A CloudEvent without it, made by other software, is read by the types of JSON: text, bool and
numbers as they are, `time` as a timestamp; nulls are omitted; `data` becomes the payload.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

from motet.errors import EventError
from motet.model.events import Event
from motet.model.ids import is_name
from motet.model.values import Value, parse_timestamp, show_timestamp

_EXTENSION: Final = "motet"
_TAKEN: Final = frozenset({"specversion", "data", "data_base64", _EXTENSION})
_TEXT_ONLY: Final = frozenset(
    {"id", "source", "type", "subject", "datacontenttype", "dataschema", "time"}
)
_NAME_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_MAX_NAME: Final = 20
_INT32: Final = 2**31


# ── out ──────────────────────────────────────────────────────────────────────────────────


def to_cloudevent(
    event: Event, *, id: str | None = None, source: str = "/motet", type: str = "motet.event"
) -> dict[str, Any]:
    """A dict ready for `json.dumps`.

    `id`, `source` and `type` are used if the event has no such attribute. Without `id`, a delivered
    event is named after its publisher and sequence, any other after its content.
    """
    made: dict[str, Any] = {"specversion": "1.0"}
    notes: dict[str, Any] = {"names": {}, "types": {}, "added": []}
    # Attributes that keep their names come first, so that derived names avoid them.
    for name, value in sorted(event.items(), key=lambda item: not _is_context_name(item[0])):
        context_name = name
        if not _is_context_name(name):
            context_name = _derived_name(name, made)
            notes["names"][context_name] = name
        written, kind = _written(context_name, value)
        made[context_name] = written
        if kind:
            notes["types"][context_name] = kind
    if "id" not in made and id is None:
        id = _own_id(event)
    defaults = {"id": id, "source": source, "type": type}
    if event.payload:
        defaults["datacontenttype"] = "application/octet-stream"
    for name, default in defaults.items():
        if name not in made:
            if not isinstance(default, str) or not default:
                raise EventError(f"the CloudEvents attribute {name!r} must be a non-empty string")
            made[name] = default
            notes["added"].append(name)
    if event.publisher or event.sequence:
        notes |= {"publisher": event.publisher, "sequence": event.sequence}
    noted = {key: note for key, note in notes.items() if note or key == "sequence"}
    if noted:
        made[_EXTENSION] = json.dumps(noted, separators=(",", ":"))
    _put_data(made, event.payload)
    return made


def _is_context_name(name: str) -> bool:
    return name not in _TAKEN and len(name) <= _MAX_NAME and _NAME_CHARS.issuperset(name)


def _derived_name(name: str, taken: Mapping[str, Any]) -> str:
    stem = "".join(char for char in name.lower() if char in _NAME_CHARS)[:_MAX_NAME] or "x"
    derived, count = stem, 0
    while derived in taken or derived in _TAKEN or derived in _TEXT_ONLY:
        count += 1
        derived = stem[: _MAX_NAME - len(str(count))] + str(count)
    return derived


def _written(name: str, value: Value) -> tuple[object, str]:
    """The value as CloudEvents represents it, and its type where that does not show it."""
    match value:
        case bool():
            return (value, "") if name not in _TEXT_ONLY else (str(value).lower(), "bool")
        case int() if -_INT32 <= value < _INT32 and name not in _TEXT_ONLY:
            return value, ""
        case int():
            return str(value), "int"
        case float():
            return repr(value), "float"
        case datetime():
            return show_timestamp(value), "" if name == "time" else "timestamp"
    if value.isprintable() and (value or name not in _TEXT_ONLY):
        return value, "text" if name == "time" else ""
    # With quotes: control characters are not allowed, and some attributes must not be empty.
    return json.dumps(value), "escaped"


def _own_id(event: Event) -> str:
    if event.publisher:
        return f"{event.publisher}/{event.sequence}"
    content = Event(dict(sorted(event.items())), event.payload).encode()
    return sha256(content).hexdigest()[:32]


def _put_data(made: dict[str, Any], payload: bytes) -> None:
    """As readable `data` if reading it back gives the same bytes, otherwise as base64."""
    if not payload:
        return
    content_type = made["datacontenttype"]
    try:
        text = payload.decode()
        data = json.loads(text) if _is_json(content_type) else text
        readable = _is_json(content_type) or content_type.startswith("text/")
        # JSON's null would be read as no data at all.
        if readable and data is not None and _payload_of(data, content_type) == payload:
            made["data"] = data
            return
    except (ValueError, RecursionError):
        pass
    made["data_base64"] = base64.b64encode(payload).decode()


def _is_json(content_type: str) -> bool:
    essence = content_type.partition(";")[0].strip().lower()
    return essence.endswith(("/json", "+json"))


def _payload_of(data: object, content_type: str) -> bytes:
    if isinstance(data, str) and not _is_json(content_type):
        return data.encode()
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


# ── in ───────────────────────────────────────────────────────────────────────────────────


def from_cloudevent(given: Mapping[str, Any] | str | bytes) -> Event:
    """Read a structured CloudEvent: a parsed JSON object, or its text."""
    parsed = _parsed(given)
    if parsed.get("specversion") != "1.0":
        raise EventError(
            f"only CloudEvents of specversion '1.0' are understood, not "
            f"{str(parsed.get('specversion'))[:40]!r}"
        )
    for name in ("id", "source", "type"):
        if not isinstance(parsed.get(name), str) or not parsed[name]:
            raise EventError(f"the CloudEvents attribute {name!r} must be a non-empty string")
    notes = _notes(parsed.get(_EXTENSION))
    attributes: dict[str, Value] = {}
    for name, written in parsed.items():
        if name in _TAKEN or name in notes["added"] or written is None:
            continue
        own_name = notes["names"].get(name) or _own_name(name)
        kind = notes["types"].get(name) or ("timestamp" if name == "time" else "")
        if own_name in attributes:
            raise EventError(f"the CloudEvent names the attribute {own_name!r} twice")
        attributes[own_name] = _read(name, written, kind)
    return Event(attributes, _data(parsed), notes["publisher"], notes["sequence"])


def _parsed(given: Mapping[str, Any] | str | bytes) -> Mapping[str, Any]:
    parsed: object = given
    if isinstance(given, str | bytes | bytearray):
        try:
            parsed = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise EventError(
                f"a CloudEvent is a JSON object, but this is no JSON: {error}"
            ) from None
    if not isinstance(parsed, Mapping) or not all(isinstance(name, str) for name in parsed):
        raise EventError(f"a CloudEvent is a JSON object, not {type(parsed).__name__}")
    return parsed


def _notes(written: object) -> dict[str, Any]:
    """The content of the `motet` extension, with its form checked."""
    notes: dict[str, Any] = {"names": {}, "types": {}, "added": [], "publisher": "", "sequence": 0}
    if written is None:
        return notes
    try:
        found = json.loads(written) if isinstance(written, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise EventError("the CloudEvents attribute 'motet' must be a JSON object as text")
    for key, default in notes.items():
        note = found.get(key, default)
        entries = note.values() if isinstance(note, dict) else note if key == "added" else ()
        if type(note) is not type(default) or not all(isinstance(entry, str) for entry in entries):
            raise EventError(f"{key!r} in the CloudEvents attribute 'motet' has the wrong form")
        notes[key] = note
    return notes


def _own_name(name: str) -> str:
    """The name itself, or the nearest one that Motet allows: CloudEvents allows a leading digit."""
    return name if is_name(name) else "_" + name


_READERS: Final[dict[str, Callable[[str], Value]]] = {
    "int": int,
    "float": float,
    "timestamp": parse_timestamp,
    "bool": lambda written: {"true": True, "false": False}[written],
    "text": str,
    "escaped": lambda written: str(json.loads(written)),
}


def _read(name: str, written: object, kind: str) -> Value:
    if not kind and isinstance(written, str | bool | int | float):
        return written
    if kind in _READERS and isinstance(written, str):
        try:
            return _READERS[kind](written)
        except (ValueError, KeyError, RecursionError) as error:
            raise EventError(f"the CloudEvents attribute {name!r} is no {kind}: {error}") from None
    wanted = f"a {kind} as text" if kind else "text, a bool or a number"
    raise EventError(
        f"the CloudEvents attribute {name!r} must be {wanted}, not {type(written).__name__}"
    )


def _data(parsed: Mapping[str, Any]) -> bytes:
    plain, encoded = parsed.get("data"), parsed.get("data_base64")
    if encoded is None:
        if plain is None:
            return b""
        content_type = parsed.get("datacontenttype") or "application/json"
        try:
            return _payload_of(plain, str(content_type))
        except (ValueError, TypeError, RecursionError) as error:
            raise EventError(f"the data of the CloudEvent cannot be encoded: {error}") from None
    if plain is not None:
        raise EventError("a CloudEvent has 'data' or 'data_base64', not both")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise EventError(f"'data_base64' of the CloudEvent is no base64: {error}") from None
