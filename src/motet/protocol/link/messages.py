"""Frames between neighbouring brokers.

Only `Control` is numbered and survives a broken connection. `Publications` carry two soft
counters: `number`, so that a doubled or late frame is dropped, and `after`, the last control
number sent before it, so that a publication never overtakes control.
"""

from __future__ import annotations

from msgspec import Struct

from motet.model import OpId
from motet.protocol.delivery.messages import DeliveryFrame
from motet.protocol.publication import Publication
from motet.protocol.routing.messages import RoutingMessage
from motet.protocol.transactions.messages import TxMessage

ControlMessage = RoutingMessage | TxMessage


class LinkHello(Struct, tag="link", array_like=True, frozen=True):
    """Opens a link on a new connection, in both directions.

    `incarnation` is the sender's life on this link: it grows when the sender has lost its state,
    or has given the receiver up. `known` is the life of the receiver that the sender remembers
    (0: none), and `received` how much control it has from it in this pair of lives.
    `heard` is true in an answer, which is never answered itself. `root` is who decides
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


class Control(Struct, tag="ctl", array_like=True, frozen=True):
    """Messages numbered `first`, `first + 1`, …"""

    first: int
    messages: tuple[ControlMessage, ...]


class ControlAck(Struct, tag="ack", array_like=True, frozen=True):
    """Everything up to `received` is durable here."""

    received: int


class Publications(Struct, tag="pubs", array_like=True, frozen=True):
    number: int
    after: int
    batch: list[Publication]


class Inquire(Struct, tag="ask", array_like=True, frozen=True):
    """Who has not yet answered for this operation? Soft: sent when someone's patience ends."""

    op: OpId


class Waiting(Struct, tag="wait", array_like=True, frozen=True):
    """The answer, passed back to who asked first: `broker` waits for these neighbours.

    Whoever is waited for and does not report itself is what keeps the operation from being
    effective."""

    op: OpId
    broker: str
    neighbours: tuple[str, ...]


LinkFrame = LinkHello | Control | ControlAck | Publications | Inquire | Waiting | DeliveryFrame
