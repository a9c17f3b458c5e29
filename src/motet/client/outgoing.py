"""From what an application publishes to the body that travels.

Brokers check every event they accept, so the checks here exist to raise the error where the
mistake was made. An event whose attribute names were seen before and whose values are plain
needs no further look: that is nearly every event, and it saves most of the cost of publishing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from motet.errors import MisuseError
from motet.model import Event, Value, encode_event

PLAIN: Final = frozenset({bool, float, str})
SHAPES_REMEMBERED: Final = 4096
SURELY_FITS_BYTES: Final = 256 * 1024
INT_BOUND: Final = 2**63

Publishable = Event | Mapping[str, Value]


class Outgoing:
    def __init__(self) -> None:
        self._shapes: set[tuple[str, ...]] = set()

    def body(self, event: Publishable, payload: bytes = b"") -> Raw:
        """The encoded event; `EventError` or `MisuseError` if there can be no such event."""
        if type(event) is dict and type(payload) is bytes and tuple(event) in self._shapes:
            for value in event.values():
                kind = type(value)
                if kind is int:
                    if not -INT_BOUND <= value < INT_BOUND:
                        break
                elif kind not in PLAIN:
                    break
            else:
                try:
                    body = encode_event(event, payload)
                except ValueError:  # a lone surrogate: the careful way has the words for it
                    return self._carefully(event, payload)
                if len(body) <= SURELY_FITS_BYTES:
                    return Raw(body)
        return self._carefully(event, payload)

    def _carefully(self, event: Publishable, payload: bytes) -> Raw:
        if isinstance(event, Event):
            if payload:
                raise MisuseError("an Event has its payload already; do not give another one")
            return Raw(event.encode())
        if not isinstance(event, Mapping):
            raise MisuseError(
                f"cannot publish a {type(event).__name__}: give a motet.Event, or a dict of "
                "attributes and payload=..."
            )
        made = Event(event, payload)
        if len(self._shapes) >= SHAPES_REMEMBERED:
            self._shapes.clear()
        self._shapes.add(tuple(event))
        return Raw(made.encode())
