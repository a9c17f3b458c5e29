"""Facts: the inputs that change durable state, as the journal keeps them.

Whatever soft code learnt that matters (which brokers did not answer, say) is written into the
fact, so that applying it needs nothing but durable state.
"""

from __future__ import annotations

from msgspec import Struct

from motet.model import OpId
from motet.protocol.link.messages import Control
from motet.protocol.session.messages import Request


class SessionOpened(Struct, tag="open", array_like=True, frozen=True):
    client: str
    resume: str | None
    instance: str = ""
    keep_s: float = 0.0
    """Above 0 the session is durable. Whoever goes on with one resumes it, by its epoch."""
    total_order: bool = False
    published: int = 0
    """The last publication that its client has sent in the session it resumes."""


class SessionDropped(Struct, tag="drop", array_like=True, frozen=True):
    """The client's connection is gone; its lease runs. `cursors` say how far a durable client has
    come, by pubend, and `done` which of its subscriptions are further."""

    client: str
    epoch: str
    cursors: dict[str, int] = {}
    done: dict[int, dict[str, int]] = {}
    published: int = 0
    """The last publication that has come."""


class SessionEnded(Struct, tag="end", array_like=True, frozen=True):
    """By goodbye, or because the lease ran out."""

    client: str
    epoch: str


class RequestReceived(Struct, tag="request", array_like=True, frozen=True):
    client: str
    epoch: str
    request: Request
    tick: int = 0
    """The next one of our pubend: subscriptions that this starts begin there."""
    refused: tuple[str, str] = ("", "")
    """Why it cannot be, for a reason that durable state does not know: an error, and its text."""


class DeadlinePassed(Struct, tag="deadline", array_like=True, frozen=True):
    op: OpId
    missing: tuple[str, ...]


class ControlReceived(Struct, tag="control", array_like=True, frozen=True):
    neighbour: str
    control: Control
    tick: int = 0


class NeighbourMet(Struct, tag="met", array_like=True, frozen=True):
    """A neighbour came that starts empty, for the first time or after losing its state."""

    neighbour: str
    incarnation: int


class NeighbourLost(Struct, tag="lost", array_like=True, frozen=True):
    """A neighbour stayed away until more was kept for it than we keep; it is given up."""

    neighbour: str


class NeighboursChanged(Struct, tag="neighbours", array_like=True, frozen=True):
    """The operator changed the overlay: these are all neighbours from now on."""

    neighbours: tuple[str, ...]


class PubendFounded(Struct, tag="pubend", array_like=True, frozen=True):
    """This broker has a log for exactly-once events from now on."""

    pubend: str


class LogDestroyed(Struct, tag="log", array_like=True, frozen=True):
    """Our log up to this tick is gone, and the operator has accepted that. Only the journal and
    the clients still know what was numbered there."""

    upto: int


class FloorRaised(Struct, tag="floor", array_like=True, frozen=True):
    """All clients of ours are done with a pubend up to this tick."""

    pubend: str
    upto: int
    cursors: dict[str, int] = {}
    """By durable client that is further: how far."""


class LossLearnt(Struct, tag="destroyed", array_like=True, frozen=True):
    """A durable client knows that a pubend was destroyed; its later processes need not be told."""

    client: str
    epoch: str
    pubend: str


class StartLearnt(Struct, tag="start", array_like=True, frozen=True):
    """A subscription of a client of ours is owed a pubend above this tick. The stream has told it
    before control did; once ticks above it are acknowledged, only control could tell it again."""

    op: OpId
    pubend: str
    tick: int
    tentative: bool = False


class SwitchLearnt(Struct, tag="switch", array_like=True, frozen=True):
    """The same of a cut: a subscription of a client of ours begins, or ends, above this tick."""

    op: OpId
    pubend: str
    tick: int
    ended: bool


class SubscriptionOver(Struct, tag="passed", array_like=True, frozen=True):
    """A subscription that a transaction has ended has been given all that it was owed."""

    op: OpId


class TransactionOverdue(Struct, tag="overdue", array_like=True, frozen=True):
    tx: str


class CutMade(Struct, tag="cut", array_like=True, frozen=True):
    """Our pubend cuts for a transaction, at this tick, whatever happens."""

    tx: str
    tick: int


class CutLogged(Struct, tag="cut-logged", array_like=True, frozen=True):
    """The pubend's log has that cut, and the events behind it."""

    tx: str


class TicksReserved(Struct, tag="ticks", array_like=True, frozen=True):
    """Up to here we may say that nothing comes, or give others' events to clients in total order:
    whatever of it we did, after a restart our own events come above."""

    upto: int


class AdvertisementOver(Struct, tag="over", array_like=True, frozen=True):
    """Whoever is owed events published under a retired advertisement has them; none of them lies
    above tick `upto`."""

    target: OpId
    upto: int = 0


FactBody = (
    AdvertisementOver
    | TicksReserved
    | PubendFounded
    | LogDestroyed
    | FloorRaised
    | LossLearnt
    | StartLearnt
    | SwitchLearnt
    | SubscriptionOver
    | TransactionOverdue
    | CutMade
    | CutLogged
    | SessionOpened
    | SessionDropped
    | SessionEnded
    | RequestReceived
    | DeadlinePassed
    | ControlReceived
    | NeighbourMet
    | NeighbourLost
    | NeighboursChanged
)
