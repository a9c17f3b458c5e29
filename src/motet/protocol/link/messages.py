"""Frames between neighbouring brokers.

Only `Control` is numbered and survives a broken connection. `Publications` carry two soft counters:
`number`, to drop duplicate and late frames, and `after`, the last control number sent before the
frame, so that a publication never overtakes control.
"""

from __future__ import annotations

from operator import attrgetter

from msgspec import Struct

from motet.model import OpId
from motet.protocol.delivery.messages import DeliveryFrame
from motet.protocol.mobility.messages import MobilityMessage
from motet.protocol.publication import Publication
from motet.protocol.routing.messages import RoutingMessage
from motet.protocol.sequencing.messages import SequencingMessage
from motet.protocol.traits import BROKER, SMALL_BYTES, STRANGER, frame
from motet.protocol.transactions.messages import TxMessage

ControlMessage = RoutingMessage | TxMessage | MobilityMessage | SequencingMessage


@frame(senders=(*STRANGER, *BROKER), hello=lambda hello: ("broker", hello.broker), versioned=True)
class LinkHello(Struct, tag="link", array_like=True, frozen=True):
    """Opens a link on a new connection, in both directions.

    `incarnation` is the sender's life on this link: it grows when the sender has lost its state, or
    has given the receiver up. `known` is the receiver's life that the sender remembers (0: none),
    and `received` the number of control messages that the sender has from it in this pair of lives.
    `heard` is true in an answer, which is not answered. `root` is the broker that decides
    transactions, as far as the sender knows.
    """

    version: int
    broker: str
    incarnation: int
    known: int
    received: int
    heard: bool = False
    credentials: bytes = b""
    root: str = ""


@frame(senders=BROKER)
class Control(Struct, tag="ctl", array_like=True, frozen=True):
    """Messages numbered `first`, `first + 1`, …"""

    first: int
    messages: tuple[ControlMessage, ...]


@frame(senders=BROKER, most_bytes=SMALL_BYTES)
class ControlAck(Struct, tag="ack", array_like=True, frozen=True):
    """Control up to `received` is durable at the sender of this frame."""

    received: int


@frame(senders=BROKER, soft=True, events=attrgetter("batch"))
class Publications(Struct, tag="pubs", array_like=True, frozen=True):
    number: int
    after: int
    batch: list[Publication]


@frame(senders=BROKER, most_bytes=SMALL_BYTES)
class Inquire(Struct, tag="ask", array_like=True, frozen=True):
    """Asks which brokers have not answered for this operation. Soft: sent when a deadline
    passes."""

    op: OpId


@frame(senders=BROKER)
class Waiting(Struct, tag="wait", array_like=True, frozen=True):
    """The answer, passed back to the broker that asked first: `broker` waits for these neighbours.

    A broker that is waited for and sends no report keeps the operation from being effective."""

    op: OpId
    broker: str
    neighbours: tuple[str, ...]


LinkFrame = LinkHello | Control | ControlAck | Publications | Inquire | Waiting | DeliveryFrame
