"""The contract of a protocol: the interface between a broker and its rooms.

A protocol has a durable half, which changes only while a fact is applied, and a soft half, which
knows connections and decides what becomes a fact. Both declare their handlers as tables; a broker
composes all rooms of `motet.broker.core.protocols`, in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from msgspec import Struct

from motet import errors
from motet.errors import MotetError
from motet.model import Hop
from motet.protocol.changes import Changes, Grouped

if TYPE_CHECKING:
    from motet.protocol.contract import Change, Output, SetTimer
    from motet.protocol.link.messages import ControlMessage


class Objection(NamedTuple):
    """Why a request is refused: the name of a class in `motet.errors`, and the text."""

    error: str
    text: str

    def exception(self) -> MotetError:
        """For those who raise it."""
        kind: type[MotetError] = getattr(errors, self.error)
        return kind(self.text)


class Peer(NamedTuple):
    """The peer at the other end of a connection."""

    kind: str
    name: str


class Bus(Protocol):
    """What a durable room may call of its broker while a fact is applied."""

    now: float
    heard: Mapping[str, int]
    """See `ControlReceived.heard`, of the fact that is being applied."""
    received: int
    """The number of the last control message in that fact."""
    rooms: tuple[DurableRoom, ...]
    at_end: list[Callable[[], None]]
    """Calls of rooms that must run after the rest of the fact has been applied."""

    def route(self, message: ControlMessage, source: Hop) -> None:
        """Apply a control message from a neighbour, or one made from a client's request."""

    def carry(self, changes: Changes) -> None:
        """Let other rooms react to changes; then pass them to the soft half."""

    def emit(self, change: Change) -> None:
        """The same for one change."""

    def settle(self) -> None:
        """Let all rooms finish their pending work now."""


Handler = Callable[[Any], None]


class DurableRoom:
    """The durable half of a protocol. Each table is read once, when the broker is composed."""

    def facts(self) -> Mapping[type, Handler]:
        """The handler of each fact. A fact may concern several rooms."""
        return {}

    def reactions(self) -> Mapping[type, Handler]:
        """The handler of each change made by another room, within the same fact."""
        return {}

    def messages(self) -> Mapping[type, Callable[[Any, Hop], None]]:
        """The handler of each control message: (message, source). Each concerns one room."""
        return {}

    unsettled: Sized = ()
    """`settle` is called only while this is not empty. It is always the same object."""

    def settle(self) -> None:
        """Finish pending work before anything else happens. Called after a fact was applied, and
        when a room asks for it."""

    def parts(self) -> Mapping[type[Struct], Iterable[Any]]:
        """All durable state of this room as parts of the image, by kind: see `protocol.image`."""
        return {}

    def takers(self) -> Mapping[type[Struct], Handler]:
        """How an empty room restores its state from such parts."""
        return {}

    name: ClassVar[str] = ""
    """Name of the room in an image, if it has state that is in no part."""

    def image(self) -> bytes:
        """All other durable state of this room, encoded; empty if there is none."""
        return b""

    def restore(self, image: bytes) -> None:
        """Restore the state from an image."""
        del image

    moving: ClassVar[type[Struct] | None] = None
    """What `hand_out` returns, if this room has state of sessions. It needs a name then."""

    def hand_out(self, client: str, epoch: str) -> Struct | None:
        """State that moves with a session to another broker, or None. It also stays here until
        `SessionDeparted`."""
        del client, epoch
        return None

    def fits(self, client: str, epoch: str, part: Struct) -> bool:
        """Can this be what a neighbour's room has handed out? Asked before anything is taken in."""
        del client, epoch, part
        return True

    def take_in(self, client: str, epoch: str, part: Struct) -> None:
        """A session moves here, with the state that this room handed out at another broker."""

    def recover(self, now: float) -> Iterable[SetTimer]:
        """Timers to set after a replay."""
        del now
        return ()

    def validate(self) -> None:
        """Raise `InvariantError` if the state contradicts itself."""


Journal = Callable[[Any, "Output", float], None]
"""Writes a fact: applies it, and lets all rooms react to its changes."""


class SoftRoom:
    """The soft half of a protocol: which inputs it accepts, and which become facts."""

    def frames(self) -> Mapping[type, Callable[[int, Any, Any, Output, float], None]]:
        """The handler of each frame: (connection, peer, frame, out, now). The allowed senders are
        declared at the frame."""
        return {}

    def inputs(self) -> Mapping[type, Callable[[Any, Output, float], None]]:
        """The handler of each other input."""
        return {}

    def timers(self) -> Mapping[str, Callable[[Any, Output, float], None]]:
        """The handler of each timer, by the first word of its key."""
        return {}

    def closings(self) -> Mapping[str, Callable[[int, Peer, Output, float], None]]:
        """The handler of the end of a connection, by kind of peer."""
        return {}

    concerns: ClassVar[frozenset[type]] = frozenset()
    """The kinds of changes that are passed to `changed` and `concluded`."""

    def changed(self, changes: Grouped, out: Output, now: float) -> None:
        """A fact has made these changes."""

    def concluded(self, changes: Grouped, out: Output, now: float) -> None:
        """All rooms have reacted to the changes of a fact."""

    due: Sized = ()
    """`journaled` is called only while this is not empty. It is always the same object."""

    def journaled(self, out: Output, now: float) -> None:
        """A fact is written, and all rooms have reacted: another fact may have become due."""

    astir: tuple[Sized, ...] = ()
    """`stepped` is called only while one of these is not empty, or after each step if there are
    none. They are always the same objects."""

    def stepped(self, out: Output, now: float) -> None:
        """A step is complete."""

    def account(self) -> dict[str, Any]:
        """This room's part of the status: plain values, and lists of at most `LISTED` items."""
        return {}

    def validate(self) -> None:
        """Raise `InvariantError` if the state contradicts itself."""


LISTED = 1000
"""Maximum length of lists in a status; nothing that needs a longer scan is counted."""
