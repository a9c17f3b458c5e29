"""The durable part of fail-over at one replica: who leads, as far as it knows."""

from __future__ import annotations

from msgspec import Struct


class Seat(Struct, tag="seat", array_like=True, frozen=True):
    """A fact, and a part of the image: what one replica knows of its site. It is its own, and is
    never mirrored."""

    me: int
    """The name of this replica. Its folder keeps it."""
    term: int = 1
    leads: bool = True
    founding: int = 0
    """Which site it has the state of; 0: it has none yet."""
    standby: int = 0
    """As primary: nothing leaves before this replica has it. Noted before the witness is asked."""
    in_step: bool = False
    """As standby: nothing leaves the primary before we have it."""
    leader: int = 0
    """As standby: the primary of this term."""
    other: str = ""
    """Where the other replica is."""
    witness: int = 0
    """Which witness has granted this; 0: none."""


class ImagePartTaken(Struct, tag="image", array_like=True, frozen=True):
    """A fact of a standby. The last part replaces its state."""

    at: int
    count: int
    payload: bytes


OWN_FACTS = (Seat, ImagePartTaken)
"""Facts that are not mirrored."""


def first_seat(me: int, *, waits: bool) -> Seat:
    """Of a folder that is founded. One that waits needs the state of a primary, or the word of a
    witness."""
    return Seat(me, 0, leads=False) if waits else Seat(me, founding=me)
