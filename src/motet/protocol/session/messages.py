"""Frames between a client and its broker.

Requests count from 1 within a session and are answered once each, in any order, by `Done` or
`Failed`. Publications count from 1 in a counter of their own and are acknowledged in ranges.
A client that resumes its session sends its unanswered requests again; the broker knows them.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Raw, Struct

from motet.model import Filter, OpId
from motet.protocol.delivery.messages import Delivered
from motet.protocol.publication import Publication
from motet.protocol.sinks.messages import StagedPart
from motet.protocol.transactions.messages import Step

# ── from the client ──────────────────────────────────────────────────────────────────────


class ClientHello(Struct, tag="client", array_like=True, frozen=True):
    """`resume` is the epoch of the session to go on with; None opens a new one. `instance` tells
    two clients with one id apart, so that one whose welcome was lost is known again. `answered`
    is the last request of that session that the client has an answer to: a broker that has not
    even received it runs on an older copy of its state. `cursors` are the ticks up to which it
    has received each pubend. `keep_s` above 0 asks for a durable session, which is kept for so long
    while nobody is connected; without `resume` it is gone on with, if there is one. With `hold`
    nothing of the pubends it has not begun to read is sent before `Ready`. In `total_order` it
    wants the events of all pubends in one order. `published` is the last publication that it has
    sent in that session: a broker whose log was destroyed has nobody else to ask."""

    version: int
    client: str
    resume: str | None = None
    credentials: bytes = b""
    instance: str = ""
    answered: int = 0
    cursors: dict[str, int] = {}
    keep_s: float = 0.0
    hold: bool = False
    total_order: bool = False
    published: int = 0


class Tag(Struct, array_like=True, frozen=True):
    """A request is part of a transaction, at this place among its operations."""

    tx: str
    order: str


class AdvertiseRequest(Struct, tag="+adv", array_like=True, frozen=True):
    """`wait`: answer when effective across the overlay; else as soon as it holds here. `name` is
    what the client calls it, for plans, and for a later process that goes on with the session."""

    sequence: int
    filter: Filter
    wait: bool = True
    timeout_s: float = 10.0
    name: str = ""
    tag: Tag | None = None


class UnadvertiseRequest(Struct, tag="-adv", array_like=True, frozen=True):
    """`target` is the sequence of the advertisement to take away."""

    sequence: int
    target: int
    wait: bool = True
    timeout_s: float = 10.0
    tag: Tag | None = None


class SubscribeRequest(Struct, tag="+sub", array_like=True, frozen=True):
    """`since`: by pubend, the tick above which events are wanted that are older than the
    subscription; under the empty name, for all other pubends."""

    sequence: int
    filter: Filter
    wait: bool = True
    timeout_s: float = 10.0
    name: str = ""
    since: dict[str, int] = {}
    tag: Tag | None = None


class UnsubscribeRequest(Struct, tag="-sub", array_like=True, frozen=True):
    sequence: int
    target: int
    wait: bool = True
    timeout_s: float = 10.0
    tag: Tag | None = None


class BeginRequest(Struct, tag="tx+", array_like=True, frozen=True):
    """Begin a transaction, which is named by this request. An `isolated` one reads what was
    committed before, and is validated before it commits. It is aborted after `timeout_s`."""

    sequence: int
    isolated: bool = True
    timeout_s: float = 10.0
    key: str = ""


class ExecuteRequest(Struct, tag="tx=", array_like=True, frozen=True):
    """Do all of a plan as one transaction: by client, what it is to do."""

    sequence: int
    parts: tuple[tuple[str, tuple[Step, ...]], ...]
    timeout_s: float = 10.0
    key: str = ""


class StageRequest(Struct, tag="tx-pub", array_like=True, frozen=True):
    """Publish an event when the transaction commits."""

    sequence: int
    tag: Tag
    body: Raw
    timeout_s: float = 10.0


class InviteRequest(Struct, tag="tx-invite", array_like=True, frozen=True):
    """Let all who subscribe to this event take part; answered when all of them have."""

    sequence: int
    tag: Tag
    body: Raw
    timeout_s: float = 10.0


class AnswerRequest(Struct, tag="tx-answer", array_like=True, frozen=True):
    """The part of a client that was invited is complete with what it has asked for before; or it
    will take no part. `op` is the invitation."""

    sequence: int
    tx: str
    op: OpId
    refusal: str = ""
    timeout_s: float = 10.0


class ConsentRequest(Struct, tag="tx-consent", array_like=True, frozen=True):
    """From now on, the broker may do this client's part of any plan."""

    sequence: int
    timeout_s: float = 10.0


class EndRequest(Struct, tag="tx-", array_like=True, frozen=True):
    """Commit, or abort for this reason."""

    sequence: int
    tx: str
    commit: bool = True
    reason: str = ""
    timeout_s: float = 10.0


class OutcomeRequest(Struct, tag="tx?", array_like=True, frozen=True):
    """What became of a transaction?"""

    sequence: int
    tx: str
    timeout_s: float = 10.0


class CommitRequest(Struct, tag="sink-commit", array_like=True, frozen=True):
    """What is staged in these parts is published, as one transaction, once: see decision 29. `job`
    is a query, with its `epoch`; or a batch write, which has no epoch, and perhaps a key."""

    sequence: int
    job: str
    epoch: int | None
    parts: tuple[StagedPart, ...]
    advertised: Filter
    """Rows were checked against this when they were staged."""
    key: str = ""
    takeover: bool = False
    timeout_s: float = 10.0

    @property
    def is_stream(self) -> bool:
        return self.epoch is not None

    def tx(self, client: str) -> str:
        if self.epoch is not None:
            return f"{client}/{self.job}/{self.epoch}"
        return f"{client}/batch/{self.key or self.job}"


RoutingRequest = AdvertiseRequest | UnadvertiseRequest | SubscribeRequest | UnsubscribeRequest
TxRequest = (
    BeginRequest
    | ExecuteRequest
    | StageRequest
    | InviteRequest
    | AnswerRequest
    | ConsentRequest
    | EndRequest
    | OutcomeRequest
    | CommitRequest
)
Request = RoutingRequest | TxRequest


class Publish(Struct, tag="pub", array_like=True, frozen=True):
    """Encoded events numbered `first`, `first + 1`, …; `sure` ones are logged before they are
    acknowledged and arrive exactly once, the others are best effort. Numbers grow, and may skip
    what the client gave up."""

    first: int
    bodies: list[Raw]
    sure: bool = True


class Processed(Struct, tag="processed", array_like=True, frozen=True):
    """The application is done with everything of a pubend up to this tick."""

    pubend: str
    upto: int


class Ready(Struct, tag="ready", array_like=True, frozen=True):
    """The application has made its subscriptions and begins to read: see `ClientHello.hold`."""


class Goodbye(Struct, tag="bye", array_like=True, frozen=True):
    """End the session now; everything it has in force goes. With `stay` only this process goes,
    and the durable session is kept for the next one. `done` has subscriptions that are further than
    the client is as a whole, by sequence and pubend."""

    stay: bool = False
    done: dict[int, dict[str, int]] = {}


class StatusRequest(Struct, tag="status?", array_like=True, frozen=True):
    """Asks for the broker's state; allowed before any hello. Of these clients it is told besides
    where they are."""

    clients: tuple[str, ...] = ()


# ── from the broker ──────────────────────────────────────────────────────────────────────


class Stands(Struct, array_like=True, frozen=True):
    """An advertisement or subscription that is in force in a session. Not `answered`: whoever
    asks again is told when it is effective."""

    sequence: int
    kind: Literal["advertise", "subscribe"]
    name: str
    filter: Filter
    answered: bool = True


class Welcome(Struct, tag="welcome", array_like=True, frozen=True):
    """`published` is the last publication handled in this session, as far as the broker knows:
    with `forgot` it has lost count of best-effort ones, so the client must not send those again
    (sure ones it must; the broker's log knows them). `refused` are those up to
    it that went nowhere; all of them, but for any up to `forgotten`. Both sides beat at least
    every `heartbeat_s`, and take three of them without a sign for the end of the connection.

    For a process that goes on with a durable session: `requests` is the last request received,
    `taken` the last publication, on its way into the log or there; and what is `standing`.

    Publications up to `destroyed` were in a log that does not exist any more: what was not answered
    of them has perhaps arrived, perhaps not."""

    broker: str
    epoch: str
    resumed: bool
    published: int
    lease_s: float
    refused: tuple[Refusal, ...] = ()
    forgotten: int = 0
    heartbeat_s: float = 2.0
    forgot: bool = False
    requests: int = 0
    taken: int = 0
    standing: tuple[Stands, ...] = ()
    destroyed: int = 0


class Done(Struct, tag="done", array_like=True, frozen=True):
    """`value` is what was asked for, if anything was."""

    sequence: int
    value: str = ""


class Failed(Struct, tag="failed", array_like=True, frozen=True):
    """`error` is the name of a class in `motet.errors`."""

    sequence: int
    error: str
    text: str
    missing: tuple[str, ...] = ()


class Refusal(Struct, array_like=True, frozen=True):
    """One publication that was not accepted."""

    sequence: int
    error: str
    text: str


class Published(Struct, tag="published", array_like=True, frozen=True):
    """All publications up to `upto` are handled; those in `refused` went nowhere."""

    upto: int
    refused: tuple[Refusal, ...] = ()


class Delivery(Struct, array_like=True, frozen=True, gc=False):
    """One event and the sequences of the subscriptions that it matches."""

    subscriptions: tuple[int, ...]
    publication: Publication


class Deliver(Struct, tag="events", array_like=True, frozen=True):
    """`dropped` counts the events this client lost because it did not read, in all so far."""

    batch: list[Delivery]
    dropped: int = 0


class Invited(Struct, tag="invited", array_like=True, frozen=True):
    """A client is to take part in a transaction, because of an event that an application has sent.
    Operations that it adds come behind `order`. Sent again to who comes back without having
    answered."""

    tx: str
    timeout_s: float
    order: str
    op: OpId
    body: bytes
    subscriptions: tuple[int, ...] = ()


class Decided(Struct, tag="decided", array_like=True, frozen=True):
    """A transaction in which a client takes part is over. If its broker has done its part of a
    plan, `added` is what that has put in force, and `ended` what it has ended; an event for what
    was added may overtake this."""

    tx: str
    number: int
    committed: bool
    reason: str = ""
    added: tuple[Stands, ...] = ()
    ended: tuple[int, ...] = ()


class Over(Struct, tag="over", array_like=True, frozen=True):
    """A subscription that a transaction has ended has given all that it was owed; or what one has
    added is gone, because it was aborted."""

    sequence: int


class HowFar(Struct, tag="how far", array_like=True, frozen=True):
    """Somebody waits to hear what the application is done with: see `Processed`."""


class Goodnight(Struct, tag="closed", array_like=True, frozen=True):
    """The broker's last word on a connection. `error` names a class in `motet.errors`."""

    error: str
    text: str


class Status(Struct, tag="status", array_like=True, frozen=True):
    state: dict[str, Any]


SessionFrame = (
    ClientHello
    | AdvertiseRequest
    | UnadvertiseRequest
    | SubscribeRequest
    | UnsubscribeRequest
    | TxRequest
    | Publish
    | Processed
    | Ready
    | Goodbye
    | StatusRequest
    | Welcome
    | Done
    | Failed
    | Published
    | Deliver
    | Delivered
    | Invited
    | Decided
    | Over
    | HowFar
    | Goodnight
    | Status
)
