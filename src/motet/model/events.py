"""Events: flat maps of named, typed attributes, and an opaque payload."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, TypeVar, overload

from motet.errors import EventError
from motet.model.body import check_attributes, encode_event
from motet.model.limits import MAX_EVENT_BYTES
from motet.model.values import Value, plain_value

_Default = TypeVar("_Default")

_ATOMS: Final = frozenset({bool, int, float, str})
# Names and fixed-size values cannot fill half the limit, and a character has at most 4 bytes:
# nearly every event is known to fit without encoding it.
_SURELY_FITS: Final = MAX_EVENT_BYTES // 2


class Event:
    """What is published and delivered. Frozen; `publisher` and `sequence` are set on delivery,
    and so is its place in the stream (`pubend`, `tick`) if it is delivered exactly once.

    `event["step"]`, `event.get("step")` and `"step" in event` look attributes up. Two events are
    equal when all their fields are, with values of the same type: 1, 1.0 and True differ here,
    and NaN is NaN.
    """

    # Private slots behind read-only properties: frozen without paying for it on creation.
    # `_pubend` and what follows are not even set where there are none: most are made quickly.
    __slots__ = (
        "_attributes",
        "_payload",
        "_pubend",
        "_publisher",
        "_sequence",
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
    ) -> Event:
        """An event that a broker has checked before. Takes the dict over; checks nothing."""
        event = _new(Event)
        event._attributes = attributes
        event._payload = payload
        event._publisher = publisher
        event._sequence = sequence
        if pubend is not None and tick is not None:
            event._pubend = pubend
            event._tick = tick
        if transaction:
            event._transaction = transaction
        return event

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
        """The stream that it was delivered in; None if it was best effort."""
        return getattr(self, "_pubend", None)

    @property
    def tick(self) -> int | None:
        """Its place in that stream. Whoever stores it with the effects of the event knows later
        which events have had their effects."""
        return getattr(self, "_tick", None)

    @property
    def transaction(self) -> str | None:
        """The transaction that published it, as `client.outcome` knows it, or the batch of a sink;
        None if it was neither."""
        return getattr(self, "_transaction", None)

    def encode(self) -> bytes:
        """The body as it travels: see `motet.model.body`."""
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
        f"the payload is a {type(payload).__name__}, not bytes: encode it first, "
        "for example with json.dumps(...).encode()"
    )


def _check_size(attributes: dict[str, Value], payload: bytes) -> None:
    size = len(encode_event(attributes, payload))
    if size > MAX_EVENT_BYTES:
        raise EventError(
            f"the event has {size:,} bytes, more than {MAX_EVENT_BYTES:,}: store large data "
            "elsewhere and publish where it is"
        )
