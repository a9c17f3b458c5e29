"""What brokers say to each other about routes. All of it is control: numbered and journaled.

`echo` asks for an `Echo` once the operation is complete behind the receiver. Because links are
FIFO, everything that the operation triggered there precedes the echo: that is the whole secret
behind "effective".
"""

from __future__ import annotations

from msgspec import Struct

from motet.model import Filter, OpId


class Advertise(Struct, tag="adv", array_like=True, frozen=True):
    """`probe`: covered on this link; do not install, only flood on and echo."""

    id: OpId
    filter: Filter
    echo: bool = False
    probe: bool = False


class Unadvertise(Struct, tag="unadv", array_like=True, frozen=True):
    """Take `target` away. `op` names the request to echo, if anyone waits for it."""

    target: OpId
    op: OpId | None = None


class Subscribe(Struct, tag="sub", array_like=True, frozen=True):
    id: OpId
    filter: Filter
    echo: bool = False
    probe: bool = False


class Unsubscribe(Struct, tag="unsub", array_like=True, frozen=True):
    target: OpId
    op: OpId | None = None


class Echo(Struct, tag="echo", array_like=True, frozen=True):
    """The operation is complete at the sender and everywhere behind it."""

    op: OpId


class ClientHere(Struct, tag="here", array_like=True, frozen=True):
    """A session lives in the direction this comes from; fills the client routing table."""

    client: str
    epoch: str


class ClientGone(Struct, tag="gone", array_like=True, frozen=True):
    client: str
    epoch: str


class Complete(Struct, tag="all", array_like=True, frozen=True):
    """Whether the sender knows everything that lies behind it, seen from the receiver.

    After a broker has lost its state this is false for a while, in every direction that leads
    to it: an advertisement that is not known yet may still be there."""

    whole: bool


RoutingMessage = (
    Advertise | Unadvertise | Subscribe | Unsubscribe | Echo | ClientHere | ClientGone | Complete
)
