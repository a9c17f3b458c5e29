"""Messages between brokers about routes. All of them are control: numbered and journaled.

`echo` asks for an `Echo` once the operation is complete behind the receiver. Links are FIFO, so
everything that the operation triggered there precedes the echo. "Effective" rests on this alone.
"""

from __future__ import annotations

from msgspec import Struct

from motet.model import Filter, OpId


class Advertise(Struct, tag="adv", array_like=True, frozen=True):
    """`probe`: covered on this link; do not install, only flood and echo. `tx`: part of this
    transaction, which is undecided as far as the sender knows."""

    id: OpId
    filter: Filter
    echo: bool = False
    probe: bool = False
    tx: str = ""


class Unadvertise(Struct, tag="unadv", array_like=True, frozen=True):
    """Remove `target`. `op` names the request to echo, if a client waits for it. All events
    published under it up to tick `upto` of its pubend, if any, have arrived; 0: unknown, because a
    broker on the way has lost the advertisement, or its client's broker has no pubend."""

    target: OpId
    op: OpId | None = None
    upto: int = 0


class Subscribe(Struct, tag="sub", array_like=True, frozen=True):
    """For a client in total order, starts must be `above` this tick. `tx` as with advertisements; a
    subscription that `ended` with a transaction gets no new starts."""

    id: OpId
    filter: Filter
    echo: bool = False
    probe: bool = False
    above: int = 0
    tx: str = ""
    ended: bool = False


class Unsubscribe(Struct, tag="unsub", array_like=True, frozen=True):
    """`lost`: the client has not unsubscribed, but a broker on the way has lost its state. If the
    subscription comes again, it continues from its earlier start."""

    target: OpId
    op: OpId | None = None
    lost: bool = False


class Echo(Struct, tag="echo", array_like=True, frozen=True):
    """The operation is complete at the sender and at every broker behind it."""

    op: OpId


class ClientHere(Struct, tag="here", array_like=True, frozen=True):
    """A session is in the direction this comes from; fills the client routing table. A `durable`
    session is not ended by a client that connects elsewhere with the same id. `plain`: it is not in
    total order; brokers of earlier releases do not say it."""

    client: str
    epoch: str
    durable: bool = False
    plain: bool = False


class ClientGone(Struct, tag="gone", array_like=True, frozen=True):
    client: str
    epoch: str


class Complete(Struct, tag="all", array_like=True, frozen=True):
    """Whether the sender knows everything that lies behind it, seen from the receiver.

    After a broker has lost its state this is false for a while, in every direction that leads to
    it: there may be advertisements that are not known yet."""

    whole: bool


class PubendHere(Struct, tag="pubend", array_like=True, frozen=True):
    """The log of this pubend is in the direction this comes from. Floods. `path` has the brokers on
    the way, from the sender to the pubend, so that every broker knows the whole tree."""

    pubend: str
    path: tuple[str, ...] = ()


class PubendGone(Struct, tag="pubend-", array_like=True, frozen=True):
    pubend: str


class Started(Struct, tag="started", array_like=True, frozen=True):
    """A subscription is owed every tick of a pubend above this one. Travels back to the origin of
    the subscription, ahead of any echo that depends on it."""

    op: OpId
    pubend: str
    tick: int
    tentative: bool = False
    """Part of a transaction: what it is owed begins with a future cut."""


class Switched(Struct, tag="switched", array_like=True, frozen=True):
    """A pubend has cut: a subscription begins, or ends, there above this tick."""

    op: OpId
    pubend: str
    tick: int
    ended: bool = False


class Confirmed(Struct, tag="confirmed", array_like=True, frozen=True):
    """A transaction was committed while its broker was away: its additions are in force. A
    subscription starts again, because cuts were made without it."""

    op: OpId


class Join(Struct, tag="join", array_like=True, frozen=True):
    """A client in total order merges this pubend from now on, and was given events of other pubends
    up to tick `above`: its subscription must start above that. Travels to the pubend."""

    op: OpId
    pubend: str
    above: int


class Rehome(Struct, tag="rehome", array_like=True, frozen=True):
    """The events of an advertisement are published at `home`, not at the broker that announced its
    session. Ahead of an advertisement it says so from the beginning. When a client has moved, it
    floods off the path: `residue` names the retired copy at `former`; without one, all events that
    were published there, up to tick `upto`, have arrived."""

    target: OpId
    home: str
    former: str = ""
    residue: OpId | None = None
    upto: int = 0


# ── parts of a move ──────────────────────────────────────────────────────────────────────


class MovingRow(Struct, array_like=True, frozen=True):
    """A subscription or advertisement of a moving client."""

    id: OpId
    filter: Filter
    ended: bool = False
    residue: OpId | None = None
    """Of an advertisement: its retired copy at the source, if events there are still owed."""


class MovingStarts(Struct, array_like=True, frozen=True):
    """Where the subscriptions of a moving client begin and end in each pubend: see `Starts` and
    `Joins`."""

    known: tuple[tuple[OpId, tuple[tuple[str, int], ...]], ...] = ()
    tentative: tuple[tuple[OpId, tuple[str, ...]], ...] = ()
    ends: tuple[tuple[OpId, tuple[tuple[str, int], ...]], ...] = ()
    lapsed: tuple[tuple[OpId, tuple[tuple[str, int], ...]], ...] = ()
    severed: tuple[tuple[OpId, tuple[str, ...]], ...] = ()
    awaited: tuple[tuple[OpId, tuple[tuple[str, int], ...]], ...] = ()


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
    | Rehome
)
