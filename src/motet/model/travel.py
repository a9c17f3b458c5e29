"""How msgspec carries the values of this room that it does not know."""

from __future__ import annotations

from typing import Any

from motet.model.filters import Filter


def to_wire(value: object) -> Any:
    """For `enc_hook`."""
    if isinstance(value, Filter):
        return value.to_bytes()
    raise NotImplementedError(f"{type(value).__name__} does not travel")


def from_own(kind: type, wire: Any) -> Any:
    """For `dec_hook`, of what we have written down ourselves, behind a checksum."""
    if kind is Filter and type(wire) is bytes:
        return Filter.from_own_bytes(wire)
    return from_wire(kind, wire)


def from_wire(kind: type, wire: Any) -> Any:
    """For `dec_hook`."""
    if kind is Filter:
        return Filter.from_bytes(wire)
    raise NotImplementedError(f"{kind.__name__} does not travel")
