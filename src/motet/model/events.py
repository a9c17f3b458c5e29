"""Events: flat maps of named, typed attributes, and an opaque payload.

The body of an event on the wire is a msgpack array of the attribute map and the payload. Brokers
route on the attributes and pass bodies on unchanged, so the payload is not even copied where it is
not needed. Decoding checks form only; `check_attributes` checks content.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar, overload

import msgspec

from motet.errors import EventError, FrameError
from motet.model.limits import INT_MAX, INT_MIN, MAX_ATTRIBUTES, MAX_EVENT_BYTES, MAX_NAME_CHARS
from motet.model.values import Value, check_name, check_value, plain_value

# ── body ─────────────────────────────────────────────────────────────────────────────────

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_all: Final = msgspec.msgpack.Decoder(tuple[dict[str, Any], bytes]).decode
_decode_some: Final = msgspec.msgpack.Decoder(tuple[dict[str, Any], msgspec.Raw]).decode
# A hostile body may be malformed, ill-typed, deeply nested, not UTF-8 or of the year 10000.
_MALFORMED: Final = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)


def encode_event(attributes: Mapping[str, Value], payload: bytes) -> bytes:
    if type(attributes) is not dict:
        attributes = dict(attributes)
    return _encode((attributes, payload))


def decode_body(raw: bytes | memoryview | msgspec.Raw) -> tuple[dict[str, Value], bytes]:
    try:
        return _decode_all(raw)
    except _MALFORMED as error:
        raise FrameError(f"an event body is malformed: {error}") from None


def decode_attributes(raw: bytes | memoryview | msgspec.Raw) -> dict[str, Value]:
    """Only the attributes; the payload is skipped, but must be present."""
    try:
        return _decode_some(raw)[0]
    except _MALFORMED as error:
        raise FrameError(f"an event body is malformed: {error}") from None


def check_attributes(attributes: dict[str, Value]) -> None:
    """Refuse attributes from an untrusted client that no `Event` could have."""
    if len(attributes) > MAX_ATTRIBUTES:
        raise EventError(
            f"an event has at most {MAX_ATTRIBUTES} attributes, this one {len(attributes)}"
        )
    for name, value in attributes.items():
        if not (
            type(name) is str
            and name.isidentifier()
            and name.isascii()
            and len(name) <= MAX_NAME_CHARS
        ):
            check_name(name)
        kind = type(value)
        if kind is str:
            if value.isascii():  # type: ignore[union-attr]
                continue
        elif kind is int:
            if INT_MIN <= value <= INT_MAX:  # type: ignore[operator]
                continue
        elif kind is float or kind is bool or (kind is datetime and value.tzinfo is UTC):  # type: ignore[union-attr]
            continue
        check_value(value, f"attribute {name!r}")


# ── the event ────────────────────────────────────────────────────────────────────────────

_Default = TypeVar("_Default")

_ATOMS: Final = frozenset({bool, int, float, str})
# Names and fixed-size values cannot fill half the limit, and a character has at most 4 bytes:
# nearly every event is known to fit without being encoded.
_SURELY_FITS: Final = MAX_EVENT_BYTES // 2


class Source(Protocol):
    """The subscription that delivered an event."""

    def ack(self, pubend: str, tick: int, /) -> None: ...


class Event:
    """An event, as published and delivered. Frozen. `publisher` and `sequence` are set on delivery;
    so is its position in the stream (`pubend`, `tick`) if it is delivered exactly once.

    `event["step"]`, `event.get("step")` and `"step" in event` look attributes up. Two events are
    equal if all their fields are, with values of the same type: 1, 1.0 and True differ, and NaN
    equals NaN.
    """

    # Private slots behind read-only properties: frozen at no cost on creation.
    # `_pubend` and the following are not set where they do not apply, to create events faster.
    __slots__ = (
        "_attributes",
        "_payload",
        "_pubend",
        "_publisher",
        "_sequence",
        "_source",
        "_tick",
        "_transaction",
    )

    _attributes: dict[str, Value]
    _payload: bytes
    _publisher: str
    _sequence: int
    _pubend: str
    _tick: int
    _transaction: str
    _source: Source

    def __init__(
        self,
        attributes: Mapping[str, Value],
        payload: bytes = b"",
        publisher: str = "",
        sequence: int = 0,
    ) -> None:
        plain = dict(attributes)
        chars = 0
        for name, value in plain.items():
            kind = type(value)
            if kind is str:
                chars += len(value)  # type: ignore[arg-type]
            elif kind not in _ATOMS and not (kind is datetime and value.tzinfo is UTC):  # type: ignore[union-attr]
                # Replacing the value of a key does not disturb the iteration.
                plain[name] = plain_value(value, f"attribute {name!r:.80}")
                chars = MAX_EVENT_BYTES
        if type(payload) is not bytes:
            payload = _bytes(payload)
        check_attributes(plain)
        if len(payload) + 4 * chars > _SURELY_FITS:
            _check_size(plain, payload)
        self._attributes = plain
        self._payload = payload
        self._publisher = publisher
        self._sequence = sequence

    @staticmethod
    def of(*, payload: bytes = b"", **attributes: Value) -> Event:
        """`Event.of(process="p1", step=3, payload=b"...")`: attributes as keywords."""
        return Event(attributes, payload)

    @staticmethod
    def delivered(
        attributes: dict[str, Value],
        payload: bytes,
        publisher: str,
        sequence: int,
        pubend: str | None = None,
        tick: int | None = None,
        transaction: str = "",
        source: Source | None = None,
    ) -> Event:
        """An event that a broker has already checked. Takes over the dict; checks nothing."""
        event = _new(Event)
        event._attributes = attributes
        event._payload = payload
        event._publisher = publisher
        event._sequence = sequence
        if pubend is not None and tick is not None:
            event._pubend = pubend
            event._tick = tick
            if source is not None:
                event._source = source
        if transaction:
            event._transaction = transaction
        return event

    def ack(self) -> None:
        """The application has processed this event, though not necessarily earlier ones. The broker
        is told soon, up to the first event that is not processed. A best-effort event, or one that
        was not delivered by a subscription, needs no acknowledgement."""
        source = getattr(self, "_source", None)
        if source is not None:
            source.ack(self._pubend, self._tick)

    @property
    def attributes(self) -> Mapping[str, Value]:
        """All attributes, read-only."""
        return MappingProxyType(self._attributes)

    @property
    def payload(self) -> bytes:
        return self._payload

    @property
    def publisher(self) -> str:
        return self._publisher

    @property
    def sequence(self) -> int:
        return self._sequence

    @property
    def pubend(self) -> str | None:
        """The pubend in whose stream it was delivered; None if it was best effort."""
        return getattr(self, "_pubend", None)

    @property
    def tick(self) -> int | None:
        """Its position in that stream. Store it with the effects of the event, to know later which
        events have had their effects."""
        return getattr(self, "_tick", None)

    @property
    def transaction(self) -> str | None:
        """The id of the transaction that published it, for `client.outcome`, or of the batch of a
        sink; None if neither."""
        return getattr(self, "_transaction", None)

    def encode(self) -> bytes:
        """The body on the wire."""
        return encode_event(self._attributes, self._payload)

    # ── attributes by name ───────────────────────────────────────────────────────────────

    def __getitem__(self, name: str) -> Value:
        return self._attributes[name]

    @overload
    def get(self, name: str, /) -> Value | None: ...
    @overload
    def get(self, name: str, default: _Default, /) -> Value | _Default: ...
    def get(self, name: str, default: object = None, /) -> object:
        return self._attributes.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._attributes

    def __iter__(self) -> Iterator[str]:
        return iter(self._attributes)

    def keys(self) -> KeysView[str]:
        return self._attributes.keys()

    def items(self) -> ItemsView[str, Value]:
        return self._attributes.items()

    # ── as a value ───────────────────────────────────────────────────────────────────────

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return self is other or self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[object, ...]:
        typed = frozenset(
            (name, type(value), value if value == value else None)
            for name, value in self._attributes.items()
        )
        return typed, *self._origin()

    def _origin(self) -> tuple[object, ...]:
        where = (self.pubend, self.tick, self.transaction or "")
        return self._payload, self._publisher, self._sequence, *where

    def __reduce__(self) -> tuple[object, ...]:
        return Event.delivered, (self._attributes, *self._origin())

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._attributes.items())
        payload = f", payload={len(self._payload)} bytes" if self._payload else ""
        origin = f", from {self._publisher}#{self._sequence}" if self._publisher else ""
        return f"<Event {shown}{payload}{origin}>"


_new: Final = object.__new__


def _bytes(payload: object) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise EventError(
        f"the payload has the type {type(payload).__name__}, not bytes: encode it first, "
        "for example with json.dumps(...).encode()"
    )


def _check_size(attributes: dict[str, Value], payload: bytes) -> None:
    size = len(encode_event(attributes, payload))
    if size > MAX_EVENT_BYTES:
        raise EventError(
            f"the event has {size:,} bytes, more than {MAX_EVENT_BYTES:,}: store large data "
            "elsewhere and publish where it is"
        )
