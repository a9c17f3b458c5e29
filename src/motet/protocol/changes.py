"""How protocols notify each other: one ordered list of frozen values.

While a fact is applied, each protocol reports its changes (`Changes.append`), and other protocols
react. The durable half reacts at once, because its reaction is part of the same fact. The soft half
gets the whole list after the fact was applied. So a protocol does not name those that react. It may
import messages, facts and state of some others, and call those that it is composed with:
`tools/rooms.py` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from motet.model import OpId
from motet.protocol.contract import Change

if TYPE_CHECKING:
    from motet.protocol.link.messages import ControlMessage
    from motet.protocol.session.messages import Decided, Done, Failed, Invited, Over
    from motet.protocol.sinks.state import StagedBlock
    from motet.protocol.transactions.state import Block


# ── of links ─────────────────────────────────────────────────────────────────────────────


class NeighbourForgotten(Change, frozen=True):
    """Everything that came from a neighbour is void: it is `empty` (it lost its state), or it was
    away too long and was given up."""

    neighbour: str
    empty: bool


class NeighbourJoined(Change, frozen=True):
    """A neighbour starts empty, and its link restarts from scratch."""

    neighbour: str


class NeighbourAdmitted(Change, frozen=True):
    """A neighbour was added to the overlay."""

    neighbour: str


class NeighbourDismissed(Change, frozen=True):
    """A neighbour was removed from the overlay; nothing that came from it is in effect."""

    neighbour: str


# ── of routing ───────────────────────────────────────────────────────────────────────────


class Sent(Change, frozen=True):
    """A control message for a neighbour."""

    neighbour: str
    message: ControlMessage


class Completed(Change, frozen=True):
    """A local client's operation is effective, or was withdrawn while it waited."""

    op: OpId
    withdrawn: bool = False


class PublisherAwaited(Change, frozen=True):
    """A plan waits until a local client, which has moved here, may publish."""

    client: str


class ArrivalEchoed(Change, frozen=True):
    """The brokers that want events of a client that has moved here have echoed its arrival."""

    op: OpId


class AdvertisementMade(Change, frozen=True):
    """A local client advertises, and its subscribers have started in our own pubend."""

    op: OpId


class StartMade(Change, frozen=True):
    """A subscription starts in our own pubend, and the log must record it. `tentative`: it is part
    of an undecided transaction."""

    tick: int
    op: OpId
    tentative: bool


class StartRecalled(Change, frozen=True):
    """A start that is in our log is valid again."""

    tick: int
    op: OpId
    tentative: bool


class StartKnown(Change, frozen=True):
    """A subscription of a local client is owed the events of a pubend above this tick."""

    op: OpId
    pubend: str
    tick: int
    tentative: bool = False


class SwitchKnown(Change, frozen=True):
    """A subscription of a local client begins, or ends, at a cut of this pubend."""

    op: OpId
    pubend: str
    tick: int
    ended: bool


class StartLapsed(Change, frozen=True):
    """A subscription of a local client is owed no events of this pubend up to this tick."""

    op: OpId
    pubend: str
    tick: int


class SubscriptionEnded(Change, frozen=True):
    """A subscription of a local client has ended."""

    op: OpId


class ClientHeard(Change, frozen=True):
    """A session of a client lives at another broker."""

    client: str
    epoch: str


class ClientEnded(Change, frozen=True):
    """A session of a client that lived elsewhere has ended."""

    client: str
    epoch: str


class AdvertisementRetired(Change, frozen=True):
    """A local client's advertisement is closed to new events and ends when earlier ones arrived."""

    op: OpId


class PubendDestroyed(Change, frozen=True):
    """The log of this pubend no longer exists."""

    pubend: str


class PubendMoved(Change, frozen=True):
    """The route to some pubend has changed."""


class StartsAwaited(Change, frozen=True):
    """The set of starts that a local client in total order waits for has changed."""

    client: str


# ── of sessions ──────────────────────────────────────────────────────────────────────────


class Answered(Change, frozen=True):
    """A request of a local client was answered."""

    client: str
    reply: Done | Failed


class ClientTold(Change, frozen=True):
    """A notification for a local client about a transaction."""

    client: str
    told: Invited | Decided | Over


class SessionInterrupted(Change, frozen=True):
    """The transactions of a session cannot continue: it ends, or another process adopts it."""

    client: str
    epoch: str


class SessionFenced(Change, frozen=True):
    """A session here has ended because its client has a newer one at another broker."""

    client: str
    newer: str


class SessionClosed(Change, frozen=True):
    """A session has ended here, for any reason."""

    client: str
    epoch: str


class PublisherGone(Change, frozen=True):
    """No process will ask any more what a local client has published in transactions."""

    client: str


# ── of mobility ──────────────────────────────────────────────────────────────────────────


class SessionDeparted(Change, frozen=True):
    """A session of this broker is on its way to another one."""

    client: str
    epoch: str
    ended: tuple[OpId, ...]
    """Its subscriptions, which are not ours any more."""


class SessionPassed(Change, frozen=True):
    """A session has gone on to the next broker of its path, from here or through here."""

    client: str
    epoch: str


class SessionArrived(Change, frozen=True):
    """A session has arrived from another broker; `neighbour` is the last one on its path."""

    client: str
    epoch: str
    neighbour: str


class PathPassed(Change, frozen=True):
    """A session that went through here has arrived: a neighbour behind which it is now must
    acknowledge again, from these ticks on."""

    neighbour: str
    pinned: Mapping[str, int]


class PredecessorsDue(Change, frozen=True):
    """A subscription starts in our own pubend, or a client that has arrived here advertises what
    subscriptions have started for before: they must find the records that name its earlier events
    above their starts."""

    op: OpId
    """Of the subscription, or of the advertisement."""


class ArrivalReported(Change, frozen=True):
    """This broker has told the neighbour before it that a session has arrived: acknowledgements of
    these pubends are sent again."""

    pubends: tuple[str, ...]


# ── of transactions and sinks ────────────────────────────────────────────────────────────


class BlockMade(Change, frozen=True):
    """A cut with its events, or a batch of a sink, must be written to our log."""

    block: Block | StagedBlock


class SubscriptionEnding(Change, frozen=True):
    """A transaction has ended a subscription of a local client."""

    op: OpId


class SubscriptionSettled(Change, frozen=True):
    """The decision that began or ended this subscription is in effect everywhere."""

    op: OpId


class TransactionMoved(Change, frozen=True):
    """A transaction has progressed: state that was kept because of it may be removed."""


C = TypeVar("C", bound=Change)


class Changes(list[Change]):
    """In the order in which they were made."""

    __slots__ = ()

    def of(self, kind: type[C]) -> list[C]:
        """The changes of one kind."""
        return [each for each in self if type(each) is kind]


Grouped = Mapping[type, Sequence[Any]]
"""Changes by kind, each kind in the order in which they were made."""
