"""The state that all parts of a client's machine share: the session's state, and the outputs.

An operation (an advertisement, a subscription, or their inverse) is named by a *handle* that
stays the same for the life of the client; its sequence on the wire changes when a session is
lost and a new one begins. A publication is named by an *ordinal* in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from msgspec.structs import replace

from motet import errors
from motet.model import Filter
from motet.protocol.frames import Frame
from motet.protocol.publication import Publication
from motet.protocol.session.messages import (
    AdvertiseRequest,
    Invited,
    Refusal,
    Request,
    SubscribeRequest,
    Tag,
    TxRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
)
from motet.protocol.transactions.messages import TimeoutReason, parse_reason

State = Literal["offline", "greeting", "open", "ended"]

MOVES: dict[State, dict[str, State]] = {
    "offline": {"opened": "greeting", "closed": "offline", "goodbye": "ended"},
    "greeting": {
        "Welcome": "open",
        "Moved": "offline",
        "invited back": "offline",
        "dismissed": "ended",
        "closed": "offline",
        "goodbye": "ended",
    },
    "open": {
        "Done": "open",
        "Failed": "open",
        "Published": "open",
        "Deliver": "open",
        "Delivered": "open",
        "Invited": "open",
        "Decided": "open",
        "Over": "open",
        "ProgressQuery": "open",
        "MoveRefusal": "open",
        "Moved": "offline",
        "invited back": "offline",
        "dismissed": "ended",
        "closed": "offline",
        "goodbye": "ended",
    },
    # Frames that still arrive after the goodbye are read and ignored.
    "ended": {
        "Welcome": "ended",
        "Done": "ended",
        "Failed": "ended",
        "Published": "ended",
        "Deliver": "ended",
        "Delivered": "ended",
        "Invited": "ended",
        "Decided": "ended",
        "Over": "ended",
        "ProgressQuery": "ended",
        "MoveRefusal": "ended",
        "Moved": "ended",
        "invited back": "ended",
        "dismissed": "ended",
        "closed": "ended",
        "goodbye": "ended",
    },
}


Kind = Literal["advertise", "unadvertise", "subscribe", "unsubscribe", "ask"]
"""`ask` is every other request of a transaction."""

INVERSE: dict[Kind, Kind] = {"advertise": "unadvertise", "subscribe": "unsubscribe"}


@dataclass(slots=True, eq=False)
class Operation:
    """In progress, in force, or both while it is renewed in a new session."""

    handle: int
    kind: Kind
    filter: Filter | None
    target: Operation | None
    wait: bool
    timeout_s: float
    after: int
    """Ordinal of the last publication made before it: they are sent in this order."""
    awaited: bool = True
    """A caller waits for the answer."""
    sequence: int = 0
    name: str = ""
    """The name by which plans, and later processes of a durable client, find the registration."""
    since: dict[str, int] = field(default_factory=dict)
    """The ticks, by pubend, after which a subscription asks for past events."""
    tag: Tag | None = None
    """The transaction that it is part of."""
    gone: bool = False
    """Ended by a transaction, or aborted with it: no later answer puts it in force."""
    asks: TxRequest | None = None

    def frame(self) -> Request:
        match self.kind:
            case "advertise" | "subscribe":
                assert self.filter is not None
                what = (self.sequence, self.filter, self.wait, self.timeout_s, self.name)
                if self.kind == "advertise":
                    return AdvertiseRequest(*what, self.tag)
                return SubscribeRequest(*what, self.since, self.tag)
            case "unadvertise" | "unsubscribe":
                assert self.target is not None
                undo = UnadvertiseRequest if self.kind == "unadvertise" else UnsubscribeRequest
                what_of = (self.sequence, self.target.sequence, self.wait, self.timeout_s)
                return undo(*what_of, self.tag)
            case "ask":
                assert self.asks is not None
                return replace(self.asks, sequence=self.sequence)


class Failure(NamedTuple):
    """Why a request failed. `error` is the name of a class in `motet.errors`."""

    error: str
    text: str
    missing: tuple[str, ...] = ()


class Welcomed(NamedTuple):
    """The session is open. `lost`: the former one is gone, and events may have been missed.
    `adopted`: it is the durable session of another process of this client."""

    how: Literal["fresh", "resumed", "lost", "adopted"]
    broker: str
    epoch: str
    lease_s: float
    heartbeat_s: float


class Resolved(NamedTuple):
    """The one answer to an operation: done if `failure` is None. `value` is the result."""

    handle: int
    failure: Failure | None
    value: str = ""


class Settled(NamedTuple):
    """All unsettled publications up to ordinal `upto` are now settled.

    With `unknown`, it is unknown whether they were accepted. Otherwise they were, except for
    those in `refused`, whose `sequence` is an ordinal here.
    """

    upto: int
    refused: tuple[Refusal, ...] = ()
    unknown: Failure | None = None


class Arrived(NamedTuple):
    """Best-effort events, each with the handles of the subscriptions it is for.

    `dropped` counts events that the broker has dropped since the last report because this client
    did not read.
    """

    batch: list[tuple[tuple[int, ...], Publication]]
    dropped: int


class StreamBatch(NamedTuple):
    """New exactly-once events of one pubend, in the order of their ticks.

    They are for the subscriptions with the handles in `every`; if `each` is not empty, it is
    parallel to the batch and has the handles for each event. With them, everything for this
    client up to tick `upto` has arrived.
    """

    pubend: str
    upto: int
    ticks: list[int]
    batch: list[Publication]
    every: tuple[int, ...]
    each: list[tuple[int, ...]]


class Missed(NamedTuple):
    """Events of a pubend from tick `first` to tick `last` are permanently lost; it is unknown
    which subscriptions they were for."""

    pubend: str
    first: int
    last: int


class Lapsed(NamedTuple):
    """An operation that was in force could not be renewed after the session was lost."""

    handle: int
    failure: Failure


class ReceivedInvitation(NamedTuple):
    """An event invites this client to take part in a transaction."""

    invited: Invited


class Concluded(NamedTuple):
    """A transaction of this client is over. `committed` is None if the outcome is unknown because
    the session is lost."""

    tx: str
    number: int
    committed: bool | None
    reason: str
    began: tuple[Operation, ...] = ()
    """Operations of a plan that the broker has put in force for this client."""
    ended: tuple[int, ...] = ()
    """Handles of subscriptions that have ended; they may still be owed events."""


class Finished(NamedTuple):
    """A subscription that a transaction has ended has received all events owed to it."""

    handle: int


class ProgressDemand(NamedTuple):
    """The broker waits for acknowledgements."""


class Kept(NamedTuple):
    """A checkpoint of a hosted client is durable."""

    number: int


class Redirected(NamedTuple):
    """The session is at another broker, or on its way there: close the connection, and connect to
    `address`. It is empty if the broker has none."""

    broker: str
    address: str


class ConnectionEnd(NamedTuple):
    """The broker ended the connection, not the session: reconnect."""

    failure: Failure


class Dismissed(NamedTuple):
    """The client has ended permanently. No notice follows."""

    failure: Failure


Notice = (
    Welcomed
    | Resolved
    | Settled
    | Arrived
    | StreamBatch
    | Missed
    | Lapsed
    | ProgressDemand
    | ReceivedInvitation
    | Concluded
    | Finished
    | Kept
    | Redirected
    | ConnectionEnd
    | Dismissed
)


class ClientOutput(NamedTuple):
    """Carry out `send` first, in order, then tell the application what `happened`, in order."""

    send: list[Frame]
    happened: list[Notice]


@dataclass(slots=True)
class SessionState:
    """State shared by all parts. Only the machine changes `state`; all parts add outputs."""

    client: str
    state: State = "offline"
    epoch: str | None = None
    send: list[Frame] = field(default_factory=list)
    happened: list[Notice] = field(default_factory=list)

    def move(self, name: str, blame: type[errors.MotetError] = errors.InvariantError) -> None:
        after = MOVES[self.state].get(name)
        if after is None:
            raise blame(f"{name} is not legal while the session is {self.state}")
        self.state = after


def aborted(reason: str) -> errors.Aborted:
    """The exception for an aborted transaction; a `TimeoutError` if it took too long."""
    if isinstance(parse_reason(reason), TimeoutReason):
        return errors.TransactionTimedOut(reason)
    return errors.Aborted(reason)


def error_of(failure: Failure, operation: str = "", timeout_s: float = 0.0) -> errors.MotetError:
    """The exception to raise for a failure; `UnavailableError` if its name is unknown."""
    kind = getattr(errors, failure.error, None)
    if kind is errors.NotEffective:
        return errors.NotEffective(operation, failure.missing, timeout_s)
    if kind is errors.EventsLost:  # it is reported in ticks, never by name
        return errors.UnavailableError(failure.text)
    if kind is errors.Aborted:
        return aborted(failure.text)
    if isinstance(kind, type) and issubclass(kind, errors.MotetError):
        return kind(failure.text)
    return errors.UnavailableError(f"{failure.error}: {failure.text}")
