"""Frames of mobility: between a client and its broker, and between the brokers on the path.

    client ── MoveRequest ──▶ A                       A decides; nothing is durable before
    A ══ MoveOffer ══▶ B   A ◀══ MoveReply ══ B       soft, hop by hop, repeated
    A ── Moved ──▶ client                             its session is on the way to B
    A ══ MoveCommit ══▶ B   A ◀══ MoveDone ══ B       control, one of each per hop
    A ══ Strays ══▶ B                                 soft: best-effort events, and their end
    client ── ArrivalHello ──▶ B                      answered when the session is there

A move is named by client, epoch and number: it is the session's number-th move.
"""

from __future__ import annotations

from operator import attrgetter

from msgspec import Struct

from motet.protocol.delivery.messages import AckUp
from motet.protocol.delivery.spans import Range
from motet.protocol.publication import Publication
from motet.protocol.routing.messages import MovingRow, MovingStarts
from motet.protocol.session.messages import ClientHello, Refusal
from motet.protocol.session.state import MovingSession
from motet.protocol.traits import BROKER, CLIENT, OPERATOR, SMALL_BYTES, STRANGER, frame

OPERATING = ("operator", "")
"""The kind and the name of an operator: every order may be the first frame of a connection."""

# ── between a client and a broker ────────────────────────────────────────────────────────


@frame(senders=CLIENT, most_bytes=SMALL_BYTES)
class MoveRequest(Struct, tag="move", array_like=True, frozen=True):
    """Move this client to another broker. `number` names the request in its answer. A client that
    reconnects to its old broker sends it again."""

    number: int
    to: str
    timeout_s: float = 10.0


@frame(senders=OPERATOR, hello=lambda _: OPERATING, most_bytes=SMALL_BYTES)
class MoveOrder(Struct, tag="move!", array_like=True, frozen=True):
    """An operator moves a client of this broker. Answered by `MoveOrdered`."""

    client: str
    to: str
    timeout_s: float = 10.0


@frame(soft=True)
class MoveRefusal(Struct, tag="move-", array_like=True, frozen=True):
    """The client stays where it is; nothing has changed. `error` names a class in
    `motet.errors`."""

    number: int
    error: str
    text: str
    missing: tuple[str, ...] = ()


@frame()
class MoveOrdered(Struct, tag="move=", array_like=True, frozen=True):
    """The answer to an operator: the move is decided, or refused with an `error`."""

    client: str
    error: str = ""
    text: str = ""
    missing: tuple[str, ...] = ()


@frame()
class Moved(Struct, tag="moved", array_like=True, frozen=True):
    """The session of this client is at `broker`, or on its way there: connect to `address` with an
    `ArrivalHello`. The last frame on a connection."""

    broker: str
    address: str
    number: int = 0
    """The session's move that brings it there; 0: unknown."""


@frame(
    senders=STRANGER,
    hello=lambda arrival: ("client", arrival.hello.client),
    versioned=True,
)
class ArrivalHello(Struct, tag="arrive", array_like=True, frozen=True):
    """The hello of a client that was told that its session is coming here. If the session is still
    on its way, the broker answers when it has arrived."""

    version: int
    hello: ClientHello
    number: int = 0
    """As in `Moved`. A broker that the session has left with this move or a later one sends the
    client on."""


# ── draining a broker ────────────────────────────────────────────────────────────────────


@frame(senders=OPERATOR, hello=lambda _: OPERATING, most_bytes=SMALL_BYTES)
class DrainOrder(Struct, tag="drain!", array_like=True, frozen=True):
    """An operator wants this broker to take in no sessions any more, or to take them in again.
    Answered by `DrainOrdered`."""

    draining: bool


@frame()
class DrainOrdered(Struct, tag="drain=", array_like=True, frozen=True):
    """The order is durable, or refused with an `error`. `changed`: it was otherwise before."""

    changed: bool
    error: str = ""
    text: str = ""


@frame(senders=OPERATOR, hello=lambda _: OPERATING, most_bytes=SMALL_BYTES)
class SessionsRequest(Struct, tag="sessions?", array_like=True, frozen=True):
    """An operator asks for the sessions of this broker, those after client `after`. Answered by
    `SessionsListed`."""

    after: str = ""


class SessionAccount(Struct, array_like=True, frozen=True):
    client: str
    connected: bool
    durable: bool
    stays: str = ""
    """Why it cannot move, if that does not change by itself."""


@frame()
class SessionsListed(Struct, tag="sessions", array_like=True, frozen=True):
    """Sorted by client. `more`: further ones follow after the last of these."""

    sessions: tuple[SessionAccount, ...]
    more: bool = False


# ── between brokers: soft ────────────────────────────────────────────────────────────────


@frame(senders=BROKER, soft=True)
class MoveOffer(Struct, tag="offer", array_like=True, frozen=True):
    """From the source along the path: will the target take this client? `path` begins with the
    source and ends with the target."""

    client: str
    epoch: str
    number: int
    path: tuple[str, ...]
    credentials: bytes = b""
    hosted: bool = False
    """Its code runs in the container of its broker."""


@frame(senders=BROKER, soft=True)
class MoveReply(Struct, tag="reply-move", array_like=True, frozen=True):
    """The answer, along the path to the source: the target's address, or an error. `missing`: the
    offer cannot go on, because these brokers are not connected."""

    client: str
    epoch: str
    number: int
    path: tuple[str, ...]
    address: str = ""
    error: str = ""
    text: str = ""
    missing: tuple[str, ...] = ()


@frame(senders=BROKER, soft=True, events=attrgetter("batch"))
class Strays(Struct, tag="strays", array_like=True, frozen=True):
    """Best-effort events that a client has moved away from follow it along the path. `number` and
    `after` are those of `Publications`, which are counted together with these frames; `move` is the
    number of the move. `last`: the sender has no more of them."""

    number: int
    after: int
    client: str
    epoch: str
    move: int
    batch: list[Publication] = []
    last: bool = False


@frame(senders=BROKER)
class FencedAck(Struct, tag="ackup+", array_like=True, frozen=True):
    """An acknowledgement that was sent after control message `after`. If a move has lowered the
    acknowledgements of this link since, it is void."""

    after: int
    ack: AckUp


# ── between brokers: control ─────────────────────────────────────────────────────────────


class MovingPart(Struct, array_like=True, frozen=True):
    """State of a session that a room has handed out."""

    room: str
    state: bytes


class MoveCommit(Struct, tag="mv", array_like=True, frozen=True):
    """The session is on its way from the source to the target. Each broker on the path re-points
    the client's rows to the next one. Complete in itself: it may be repeated after a link has
    restarted from scratch."""

    client: str
    epoch: str
    number: int
    path: tuple[str, ...]
    durable: bool
    session: MovingSession
    subscriptions: tuple[MovingRow, ...]
    advertisements: tuple[MovingRow, ...]
    starts: MovingStarts
    levels: dict[str, int]
    """By pubend: everything up to this tick was acknowledged; nobody may forget what is above."""
    doubts: dict[str, int]
    """By pubend: the highest tick that any broker on the path had heard of before its rows were
    re-pointed. The target reads up to it from the log."""
    tick: int = 0
    """The target's pubend continues above it."""
    cut: int = 0
    """The number of the last decision for which the source's pubend has cut."""
    upto: int = 0
    """If no advertisement leaves a residue: all events published before lie up to this tick of the
    source's pubend, and all have arrived."""
    refused: tuple[Refusal, ...] = ()
    forgotten: int = 0
    carried: int = 0
    """Publications up to this number are in other logs, or were refused."""
    predecessors: dict[str, int] = {}
    """By pubend: the last tick of the client's publications there, if some are still owed."""
    parts: tuple[MovingPart, ...] = ()
    trail: dict[str, int] = {}
    """By pubend: the last tick of the client's publications there, owed or not."""
    unsettled: int = 0
    """The last decision up to `cut` that the target's broker may not have heard of; the others are
    in effect everywhere."""
    forgot: bool = False
    """The source does not know which best-effort publications it has received, and the client may
    not know that."""
    gone: dict[str, Range] = {}
    """By pubend: the part of a wanted past that cannot be read any more, if the client has not
    acknowledged yet that this is lost."""


class MoveDone(Struct, tag="mv-done", array_like=True, frozen=True):
    """The session has arrived."""

    client: str
    epoch: str
    number: int


MobilityMessage = MoveCommit | MoveDone

MobilityFrame = (
    MoveRequest
    | MoveOrder
    | MoveRefusal
    | MoveOrdered
    | Moved
    | ArrivalHello
    | DrainOrder
    | DrainOrdered
    | SessionsRequest
    | SessionsListed
    | MoveOffer
    | MoveReply
    | Strays
    | FencedAck
)
