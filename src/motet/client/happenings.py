"""What a client's machine tells its driver. All but `Effects`, their list, are frozen values.

An operation (an advertisement, a subscription, or their inverse) is named by a *handle* that
stays the same for the life of the client; its sequence on the wire changes when a session is
lost and a new one begins. A publication is named by an *ordinal* in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from motet.client.operation import Operation
from motet.protocol.frames import Frame
from motet.protocol.publication import Publication
from motet.protocol.session.messages import Invited, Refusal


class Failure(NamedTuple):
    """Why something did not happen. `error` is the name of a class in `motet.errors`."""

    error: str
    text: str
    missing: tuple[str, ...] = ()


class Welcomed(NamedTuple):
    """The session is open. `lost`: the former one is gone, and events may have been missed.
    `adopted`: it is a durable one that another process of this client has left."""

    how: Literal["fresh", "resumed", "lost", "adopted"]
    broker: str
    epoch: str
    lease_s: float
    heartbeat_s: float


class Resolved(NamedTuple):
    """The one answer to an operation: done if `failure` is None. `value` is what was asked for."""

    handle: int
    failure: Failure | None
    value: str = ""


class Settled(NamedTuple):
    """All publications up to ordinal `upto` that were open until now are settled.

    With `unknown`, nobody can say whether they were accepted. Otherwise they were, but for
    those in `refused`, whose `sequence` is an ordinal here.
    """

    upto: int
    refused: tuple[Refusal, ...] = ()
    unknown: Failure | None = None


class Arrived(NamedTuple):
    """Best-effort events, each with the handles of the subscriptions it is for.

    `dropped` counts events that the broker has thrown away since the last report because this
    client did not read.
    """

    batch: list[tuple[tuple[int, ...], Publication]]
    dropped: int


class Brought(NamedTuple):
    """Exactly-once events of one pubend that are new to us, in the order of their ticks.

    They are for the subscriptions with the handles in `every`, or, if `each` is not empty, each
    for its own: it is parallel to the batch then. With them, everything up to tick `upto` that
    concerns us has come.
    """

    pubend: str
    upto: int
    ticks: list[int]
    batch: list[Publication]
    every: tuple[int, ...]
    each: list[tuple[int, ...]]


class Missed(NamedTuple):
    """Events of a pubend from tick `first` to tick `last` are lost for good: nobody has them any
    more, and nobody knows which subscriptions they were for."""

    pubend: str
    first: int
    last: int


class Lapsed(NamedTuple):
    """An operation that was in force could not be renewed after the session was lost."""

    handle: int
    failure: Failure


class Summoned(NamedTuple):
    """We are to take part in a transaction, by an event."""

    invited: Invited


class Concluded(NamedTuple):
    """A transaction in which we take part is over. None: nobody can say how, since the session
    is lost."""

    tx: str
    number: int
    committed: bool | None
    reason: str
    began: tuple[Operation, ...] = ()
    """What our broker has put in force for us, in a plan."""
    ended: tuple[int, ...] = ()
    """Handles of what has ended, and may still be owed events."""


class Finished(NamedTuple):
    """A subscription that a transaction has ended has given all that it was owed."""

    handle: int


class Hurried(NamedTuple):
    """Somebody waits to hear what the application is done with."""


class Parted(NamedTuple):
    """The broker ended the connection, not the session: connect again."""

    failure: Failure


class Ended(NamedTuple):
    """The client is over for good. Nothing follows."""

    failure: Failure


Happening = (
    Welcomed
    | Resolved
    | Settled
    | Arrived
    | Brought
    | Missed
    | Lapsed
    | Hurried
    | Summoned
    | Concluded
    | Finished
    | Parted
    | Ended
)


@dataclass(slots=True)
class Effects:
    """Carry out `send` first, in order, then tell the application what `happened`, in order."""

    send: list[Frame] = field(default_factory=list)
    happened: list[Happening] = field(default_factory=list)
