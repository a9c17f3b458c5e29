"""Frames of cells.

Between members of neighbouring cells: `MemberHello`, `Standing`, `MemberFrame`. Inside one cell
also `ImagePart`, `Facts` and `FactsAck` (mirror the head's durable state), `SidewaysFrame` and
`InwardFrame` (frames that another member carries), `Shared` (acknowledgements).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from motet.protocol.delivery.messages import AckUp, DeliveryFrame
from motet.protocol.traits import BROKER, SMALL_BYTES, STRANGER, events_of, frame, is_soft

MEMBER: Final = ("member",)
"""A process of a neighbouring cell other than its head."""
MATE: Final = ("mate",)
"""Another process of our own cell."""


@frame(
    senders=(*STRANGER, *MEMBER, *MATE),
    mate_senders=(*STRANGER, *MEMBER, *MATE),
    hello=lambda hello: ("broker", hello.member),
    versioned=True,
)
class MemberHello(Struct, tag="member", array_like=True, frozen=True):
    """Opens a stream link; sent by both sides. `heard` is true in a reply."""

    version: int
    cell: str
    member: str
    heard: bool = False


@frame(senders=(*MEMBER, *MATE, *BROKER), mate_senders=(*MEMBER, *MATE), soft=True)
class Standing(Struct, tag="standing", array_like=True, frozen=True):
    """A hint. `edge`: the head of the sender's cell has clients, so frames for the cell should go
    to the head. `reaches`: the neighbouring cells of which the sender reaches a member."""

    edge: bool
    reaches: tuple[str, ...]


@frame(
    senders=(*MEMBER, *BROKER),
    mate_senders=MEMBER,
    soft=lambda said: is_soft(said.frame),
    events=lambda said: events_of(said.frame),
)
class MemberFrame(Struct, tag="said", array_like=True, frozen=True):
    """A stream frame on the word of one member, `origin`, perhaps carried by another one.

    The head has `sync` 0: it knows all subscriptions of its cell. A mate's word counts for what it
    knew while it mirrored its head without a break, a period that `sync` names. On the link of the
    two cells, in the lives `life` (its own cell's) and `known` (the receiver's), these are the
    subscriptions up to `asked` that its cell has sent, and up to `told` that it has received. `to`
    names a member, if the frame is for that one only.
    """

    origin: str
    sync: int
    life: int
    known: int
    asked: int
    told: int
    frame: DeliveryFrame
    to: str = ""


@frame(senders=MATE, mate_senders=MATE, events=lambda frame: events_of(frame.said.frame))
class SidewaysFrame(Struct, tag="sideways", array_like=True, frozen=True):
    """To another member of the cell: send this, once, to a neighbour that I do not reach."""

    neighbour: str
    said: MemberFrame


@frame(senders=MATE, mate_senders=MATE, events=lambda frame: events_of(frame.said.frame))
class InwardFrame(Struct, tag="inward", array_like=True, frozen=True):
    """To another member of the cell: a frame of a neighbour that does not reach you."""

    neighbour: str
    said: MemberFrame


@frame(senders=MATE, mate_senders=MATE)
class Shared(Struct, tag="shared", array_like=True, frozen=True):
    """To another member of the cell: a neighbour has acknowledged, for all of its subscriptions up
    to `told` in this pair of lives."""

    neighbour: str
    life: int
    known: int
    told: int
    frame: AckUp


@frame(senders=MATE, mate_senders=MATE)
class ImagePart(Struct, tag="image", array_like=True, frozen=True):
    """From the head: part `at` of `count` of its durable state after fact `number`."""

    number: int
    at: int
    count: int
    payload: bytes


@frame(senders=MATE, mate_senders=MATE)
class Facts(Struct, tag="facts", array_like=True, frozen=True):
    """From the head: facts numbered from `first`. Up to `confirmed`, the head has waited for this
    mate: nothing that rests on these facts left the head before the mate had them."""

    first: int
    payloads: tuple[bytes, ...]
    confirmed: int


@frame(senders=MATE, most_bytes=SMALL_BYTES)
class FactsAck(Struct, tag="facts-ack", array_like=True, frozen=True):
    """From a mate: it has applied all facts up to this one."""

    upto: int


CellFrame = (
    MemberHello
    | Standing
    | MemberFrame
    | SidewaysFrame
    | InwardFrame
    | Shared
    | ImagePart
    | Facts
    | FactsAck
)
