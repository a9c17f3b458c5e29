"""The image of the durable half: all state of `Durable`, in parts that can be written.

One definition has three uses: a snapshot consists of all parts, restoring reads them, and the
digest that compares a replayed broker with the crashed one is a hash of them. Each room makes its
own parts; state that a room omits is therefore noticed by a test, not by a user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct

from motet.errors import InvariantError
from motet.protocol.image import SHARED, HeadImage, PubendsImage
from motet.protocol.link.machine import LedgersImage, OutboxImage
from motet.protocol.routing.image import (
    AdvertisementsImage,
    ClientsImage,
    DurableClientsImage,
    HomesImage,
    HopsImage,
    JoinsImage,
    LostStartsImage,
    PlainClientsImage,
    RetiredImage,
    StartsImage,
    SubscriptionsImage,
    WaitsImage,
    WindowsImage,
    WithdrawalsImage,
)
from motet.protocol.session.state import DeadlinesImage, SessionsImage
from motet.protocol.sinks.state import SinksImage
from motet.protocol.transactions.state import OutcomesImage, TransactionsImage, VersionsImage

if TYPE_CHECKING:
    from motet.broker.core.durable import Durable


class RoomState(Struct, tag="room", array_like=True, frozen=True):
    """All state of one room, in its own encoding."""

    room: str
    state: bytes


ORDER: tuple[type[Struct], ...] = (
    HeadImage,
    HopsImage,
    AdvertisementsImage,
    SubscriptionsImage,
    ClientsImage,
    DurableClientsImage,
    PlainClientsImage,
    HomesImage,
    WaitsImage,
    WithdrawalsImage,
    PubendsImage,
    RetiredImage,
    StartsImage,
    LostStartsImage,
    WindowsImage,
    VersionsImage,
    TransactionsImage,
    OutcomesImage,
    SinksImage,
    JoinsImage,
    SessionsImage,
    LedgersImage,
    OutboxImage,
    DeadlinesImage,
)
"""The order of parts; newer rooms come last, as `RoomState`."""


def parts_of(durable: Durable, *, outboxes: bool = True) -> Iterator[Struct]:
    """All parts. Those without `outboxes` still contain everything that a journaled step can read:
    outboxes shrink with each acknowledgement, which is not a fact."""
    shown = [room.parts() for room in durable.rooms]
    shown.append({HeadImage: [{"now": durable.now}]})
    for kind in ORDER:
        if kind is OutboxImage and not outboxes:
            continue
        made = chain.from_iterable(parts.get(kind, ()) for parts in shown)
        if kind in SHARED:
            yield kind(**{name: value for fields in made for name, value in fields.items()})
        else:
            yield from made
    for room in durable.rooms:
        if state := room.image():
            yield RoomState(room.name, state)


def restore_from(durable: Durable, parts: Iterable[Struct]) -> None:
    """Restore an empty `Durable` from the parts of another one."""
    takers = [room.takers() for room in durable.rooms]
    named = {room.name: room for room in durable.rooms}
    for part in parts:
        kind = type(part)
        if isinstance(part, RoomState):
            named[part.room].restore(part.state)
        elif kind not in ORDER:
            raise InvariantError(f"{kind.__name__} is no part of an image")
        if isinstance(part, HeadImage):
            durable.now = part.now
        for take in takers:
            if kind in take:
                take[kind](part)
