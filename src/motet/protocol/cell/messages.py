"""Frames of cells.

Between members of neighbouring cells: `MemberHello`, `Standing`, `Said`. Inside one cell also
`ImagePart`, `Facts` and `FactsAck` (the head's durable state, mirrored), `Sideways` and `Inward`
(frames that another member carries), `Shared` (acknowledgements).
"""

from __future__ import annotations

from msgspec import Struct

from motet.protocol.delivery.messages import AckUp, DeliveryFrame


class MemberHello(Struct, tag="member", array_like=True, frozen=True):
    """Opens a stream link, in both directions. `heard` is true in an answer."""

    version: int
    cell: str
    member: str
    heard: bool = False


class Standing(Struct, tag="standing", array_like=True, frozen=True):
    """A hint. `edge`: the head of the sender's cell has clients, so what is for the cell had best
    come to the head. `reaches`: the neighbouring cells of which the sender reaches a member."""

    edge: bool
    reaches: tuple[str, ...]


class Said(Struct, tag="said", array_like=True, frozen=True):
    """A stream frame on the word of one member, `origin`, perhaps carried by another one.

    The head has `sync` 0: it knows all that its cell has ever agreed to. A mate's word counts for
    what it knew while it mirrored its head without a break, which `sync` names: of the link
    between the two cells, in the lives `life` (its own cell's) and `known` (the receiver's), the
    subscriptions up to number `asked` that its cell has sent, and up to `told` that it was sent.
    `to` names a member that the frame is for, if any other will not do."""

    origin: str
    sync: int
    life: int
    known: int
    asked: int
    told: int
    frame: DeliveryFrame
    to: str = ""


class Sideways(Struct, tag="sideways", array_like=True, frozen=True):
    """To another member of the cell: send this to a neighbour that I do not reach. Once only."""

    neighbour: str
    said: Said


class Inward(Struct, tag="inward", array_like=True, frozen=True):
    """To another member of the cell: a neighbour that does not reach you has said this."""

    neighbour: str
    said: Said


class Shared(Struct, tag="shared", array_like=True, frozen=True):
    """To another member of the cell: a neighbour has acknowledged, and knew of all that it had
    told us up to `told` in this pair of lives."""

    neighbour: str
    life: int
    known: int
    told: int
    frame: AckUp


class ImagePart(Struct, tag="image", array_like=True, frozen=True):
    """From the head: part `at` of `count` of its durable state after fact `number`."""

    number: int
    at: int
    count: int
    payload: bytes


class Facts(Struct, tag="facts", array_like=True, frozen=True):
    """From the head: facts numbered from `first`, and how many of those it has waited for until
    this mate had them. What rests on them has not left the head before."""

    first: int
    payloads: tuple[bytes, ...]
    confirmed: int


class FactsAck(Struct, tag="facts-ack", array_like=True, frozen=True):
    """From a mate: it has applied everything up to this fact."""

    upto: int


CellFrame = (
    MemberHello | Standing | Said | Sideways | Inward | Shared | ImagePart | Facts | FactsAck
)
