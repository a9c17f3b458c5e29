"""What brokers say to each other about routes. All of it is control: numbered and journaled.

`echo` asks for an `Echo` once the operation is complete behind the receiver. Because links are
FIFO, everything that the operation triggered there precedes the echo: that is the whole secret
behind "effective".
"""

from __future__ import annotations

from msgspec import Struct

from motet.model import Filter, OpId


class Advertise(Struct, tag="adv", array_like=True, frozen=True):
    """`probe`: covered on this link; do not install, only flood on and echo. `tx`: part of a
    transaction that is not decided yet, as far as the sender knows."""

    id: OpId
    filter: Filter
    echo: bool = False
    probe: bool = False
    tx: str = ""


class Unadvertise(Struct, tag="unadv", array_like=True, frozen=True):
    """Take `target` away. `op` names the request to echo, if anyone waits for it. Up to tick `upto`
    of its pubend, all that was published under it has arrived; 0: nobody says so."""

    target: OpId
    op: OpId | None = None
    upto: int = 0


class Subscribe(Struct, tag="sub", array_like=True, frozen=True):
    """For a client in total order, where it starts, it starts `above` a tick. `tx` as with
    advertisements; one that has `ended` with a transaction starts nowhere any more."""

    id: OpId
    filter: Filter
    echo: bool = False
    probe: bool = False
    above: int = 0
    tx: str = ""
    ended: bool = False


class Unsubscribe(Struct, tag="unsub", array_like=True, frozen=True):
    """`lost`: nobody has unsubscribed, but a broker on the way has lost its state. If the
    subscription comes again, it goes on from where it had started."""

    target: OpId
    op: OpId | None = None
    lost: bool = False


class Echo(Struct, tag="echo", array_like=True, frozen=True):
    """The operation is complete at the sender and everywhere behind it."""

    op: OpId


class ClientHere(Struct, tag="here", array_like=True, frozen=True):
    """A session lives in the direction this comes from; fills the client routing table. A
    `durable` one is not ended by somebody who comes elsewhere under the same name."""

    client: str
    epoch: str
    durable: bool = False


class ClientGone(Struct, tag="gone", array_like=True, frozen=True):
    client: str
    epoch: str


class Complete(Struct, tag="all", array_like=True, frozen=True):
    """Whether the sender knows everything that lies behind it, seen from the receiver.

    After a broker has lost its state this is false for a while, in every direction that leads
    to it: an advertisement that is not known yet may still be there."""

    whole: bool


class PubendHere(Struct, tag="pubend", array_like=True, frozen=True):
    """The log of this pubend lies in the direction this comes from. Floods. `path` has the brokers
    on the way, from the sender to where it is: so everybody knows the whole tree."""

    pubend: str
    path: tuple[str, ...] = ()


class PubendGone(Struct, tag="pubend-", array_like=True, frozen=True):
    pubend: str


class Started(Struct, tag="started", array_like=True, frozen=True):
    """A subscription is owed every tick of a pubend above this one. Travels back to where the
    subscription came from, ahead of any echo that rests on it."""

    op: OpId
    pubend: str
    tick: int
    tentative: bool = False
    """Part of a transaction: what it is owed begins with a cut that is yet to come."""


class Switched(Struct, tag="switched", array_like=True, frozen=True):
    """A pubend has cut: there, a subscription begins, or ends, above this tick."""

    op: OpId
    pubend: str
    tick: int
    ended: bool = False


class Confirmed(Struct, tag="confirmed", array_like=True, frozen=True):
    """A transaction was committed while its broker was away: what it has added is in force. A
    subscription starts anew, since cuts were made without it."""

    op: OpId


def widens(message: object) -> bool:
    """Must the receiver pass on to the sender, from now on, what it would have kept back?"""
    return isinstance(message, Subscribe) or (isinstance(message, Complete) and not message.whole)


class Join(Struct, tag="join", array_like=True, frozen=True):
    """A client in total order merges this pubend from now on, and has been given events of
    others up to a tick: there its subscription must start above that. Travels to the pubend."""

    op: OpId
    pubend: str
    above: int


RoutingMessage = (
    Advertise
    | Unadvertise
    | Subscribe
    | Unsubscribe
    | Echo
    | ClientHere
    | ClientGone
    | Complete
    | PubendHere
    | PubendGone
    | Started
    | Switched
    | Confirmed
    | Join
)
