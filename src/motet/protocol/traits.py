"""Properties of frames for codec, outbox, traffic and driver, declared at the frame.

    @frame(senders=CLIENT, events=attrgetter("bodies"))
    class Publish(Struct, tag="pub", array_like=True, frozen=True): ...

These parts derive their lists from the declarations, so a new frame needs no entry elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import Struct

S = TypeVar("S", bound=Struct)

STRANGER: Final = ("nobody",)
"""A peer that has not yet sent its hello."""
OPERATOR: Final = (*STRANGER, "operator")
"""A peer that changes a broker, or looks into it, from outside any session."""
CLIENT: Final = ("client",)
BROKER: Final = ("broker",)
CONTAINER: Final = ("container",)
"""The part of the broker's own process that runs hosted clients."""
READER: Final = ("reader",)
"""A peer whose requests are answered outside the core: it reads a log, or stages rows."""
ANYBODY: Final = ("anybody",)
"""The driver accepts it on any connection; the core never sees it."""

SMALL_BYTES: Final = 64 * 1024
"""The size limit of frames without a list, map or body."""


class Traits(NamedTuple):
    senders: tuple[str, ...]
    """Peers that may send it to a broker; empty: only brokers send it, to clients and readers."""
    mate_senders: tuple[str, ...]
    """Peers that may send it to a mate of a cell."""
    soft: bool | Callable[[Any], bool]
    """It reveals no durable state, so it waits for no facts except those of its own step."""
    inside: bool
    """Only code in the broker's own process may send it."""
    hello: Callable[[Any], tuple[str, str]] | None
    """Of a hello: returns the kind and the name of the peer."""
    versioned: bool
    """It may be the first frame of a peer; its first field is the protocol version."""
    events: Callable[[Any], Sized] | None
    """The events it carries, or something as long. An `attrgetter` costs no Python call."""
    most_bytes: int | None
    """A larger frame is refused; None: only the limit of the transport applies."""


TRAITS: Final[dict[type, Traits]] = {}
"""By type of frame."""


def frame(
    *,
    senders: tuple[str, ...] = (),
    mate_senders: tuple[str, ...] = (),
    soft: bool | Callable[[Any], bool] = False,
    inside: bool = False,
    hello: Callable[[Any], tuple[str, str]] | None = None,
    versioned: bool = False,
    events: Callable[[Any], Sized] | None = None,
    most_bytes: int | None = None,
) -> Callable[[type[S]], type[S]]:
    """Declare a struct as a frame of the wire."""

    def declare(kind: type[S]) -> type[S]:
        TRAITS[kind] = Traits(
            senders, mate_senders, soft, inside, hello, versioned, events, most_bytes
        )
        return kind

    return declare


def is_soft(frame: Struct) -> bool:
    soft = TRAITS[type(frame)].soft
    return soft(frame) if callable(soft) else soft


def events_of(frame: Struct) -> Sized:
    """The events that a frame carries, with any kind of delivery; or something as long."""
    events = TRAITS[type(frame)].events
    return () if events is None else events(frame)


def tag_of(kind: type[Struct]) -> str:
    tag = kind.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
