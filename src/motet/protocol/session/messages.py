"""Frames between a client and its broker.

Requests count from 1 within a session. Each is answered once, in any order, by `Done` or `Failed`.
Publications count from 1 in a separate counter and are acknowledged in ranges. A client that
resumes its session retransmits unanswered requests; duplicates are detected.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Literal

from msgspec import Raw, Struct

from motet.model import Filter, OpId
from motet.protocol.delivery.messages import Delivered
from motet.protocol.publication import Publication
from motet.protocol.sinks.messages import StagedPart
from motet.protocol.traits import ANYBODY, CLIENT, SMALL_BYTES, STRANGER, frame
from motet.protocol.transactions.messages import Step

# ── from the client ──────────────────────────────────────────────────────────────────────


@frame(senders=STRANGER, hello=lambda hello: ("client", hello.client), versioned=True)
class ClientHello(Struct, tag="client", array_like=True, frozen=True):
    """`resume`: the epoch of the session to resume; None opens a new one. `instance` distinguishes
    two clients with the same id, and identifies a client whose welcome was lost. `answered`: the
    last request of that session that was answered; a broker that has not even received it runs on
    an older copy of its state. `cursors`: the ticks up to which the client has received each
    pubend. `keep_s` above 0 asks for a durable session, which is kept that long while no process is
    connected; without `resume`, an existing one is adopted. `hold`: send no events of pubends that
    the client has not begun to read before `Ready`. `total_order`: deliver the events of all
    pubends in one order. `published`: the last publication that the client has sent in that
    session; a broker whose log was destroyed knows it from no other source."""

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
    """Marks a request as part of a transaction, with its position among the operations."""

    tx: str
    order: str


@frame(senders=CLIENT)
class AdvertiseRequest(Struct, tag="+adv", array_like=True, frozen=True):
    """`wait`: answer when effective across the overlay; otherwise when in force at this broker.
    `name` is used by plans, and by a later process that adopts the session."""

    sequence: int
    filter: Filter
    wait: bool = True
    timeout_s: float = 10.0
    name: str = ""
    tag: Tag | None = None


@frame(senders=CLIENT)
class UnadvertiseRequest(Struct, tag="-adv", array_like=True, frozen=True):
    """`target` is the sequence of the advertisement to remove."""

    sequence: int
    target: int
    wait: bool = True
    timeout_s: float = 10.0
    tag: Tag | None = None


@frame(senders=CLIENT)
class SubscribeRequest(Struct, tag="+sub", array_like=True, frozen=True):
    """`since`: by pubend, the tick above which events older than the subscription are wanted; the
    empty name applies to all other pubends."""

    sequence: int
    filter: Filter
    wait: bool = True
    timeout_s: float = 10.0
    name: str = ""
    since: dict[str, int] = {}
    tag: Tag | None = None


@frame(senders=CLIENT)
class UnsubscribeRequest(Struct, tag="-sub", array_like=True, frozen=True):
    sequence: int
    target: int
    wait: bool = True
    timeout_s: float = 10.0
    tag: Tag | None = None


@frame(senders=CLIENT)
class BeginRequest(Struct, tag="tx+", array_like=True, frozen=True):
    """Begin a transaction, which is named after this request. An `isolated` one reads the state
    committed before it, and is validated before it commits. It is aborted after `timeout_s`."""

    sequence: int
    isolated: bool = True
    timeout_s: float = 10.0
    key: str = ""


@frame(senders=CLIENT)
class ExecuteRequest(Struct, tag="tx=", array_like=True, frozen=True):
    """Execute a plan as one transaction: by client, its steps."""

    sequence: int
    parts: tuple[tuple[str, tuple[Step, ...]], ...]
    timeout_s: float = 10.0
    key: str = ""


@frame(senders=CLIENT)
class StageRequest(Struct, tag="tx-pub", array_like=True, frozen=True):
    """Publish an event when the transaction commits."""

    sequence: int
    tag: Tag
    body: Raw
    timeout_s: float = 10.0


@frame(senders=CLIENT)
class InviteRequest(Struct, tag="tx-invite", array_like=True, frozen=True):
    """Invite all subscribers of this event; answered when all of them have answered."""

    sequence: int
    tag: Tag
    body: Raw
    timeout_s: float = 10.0


@frame(senders=CLIENT)
class AnswerRequest(Struct, tag="tx-answer", array_like=True, frozen=True):
    """An invited client has completed its part with its earlier requests, or refuses to take part.
    `op` is the invitation."""

    sequence: int
    tx: str
    op: OpId
    refusal: str = ""
    timeout_s: float = 10.0


@frame(senders=CLIENT, most_bytes=SMALL_BYTES)
class ConsentRequest(Struct, tag="tx-consent", array_like=True, frozen=True):
    """From now on, the broker may carry out this client's part of any plan."""

    sequence: int
    timeout_s: float = 10.0


@frame(senders=CLIENT)
class EndRequest(Struct, tag="tx-", array_like=True, frozen=True):
    """Commit, or abort with this reason."""

    sequence: int
    tx: str
    commit: bool = True
    reason: str = ""
    timeout_s: float = 10.0


@frame(senders=CLIENT)
class OutcomeRequest(Struct, tag="tx?", array_like=True, frozen=True):
    """Ask for the outcome of a transaction."""

    sequence: int
    tx: str
    timeout_s: float = 10.0


@frame(senders=CLIENT)
class CommitRequest(Struct, tag="sink-commit", array_like=True, frozen=True):
    """Publish the rows staged in these parts as one transaction, once: see decision 29. `job` is a
    streaming query, with its `epoch`; or a batch write, which has no epoch and optionally a key."""

    sequence: int
    job: str
    epoch: int | None
    parts: tuple[StagedPart, ...]
    advertised: Filter
    """The advertised filter against which the rows were checked when they were staged."""
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


@frame(senders=CLIENT, events=attrgetter("bodies"))
class Publish(Struct, tag="pub", array_like=True, frozen=True):
    """Encoded events numbered `first`, `first + 1`, …; `sure` ones are logged before they are
    acknowledged and arrive exactly once, the others are best effort. Numbers increase, and may skip
    publications that the client gave up."""

    first: int
    bodies: list[Raw]
    sure: bool = True


@frame(senders=CLIENT, most_bytes=SMALL_BYTES)
class Processed(Struct, tag="processed", array_like=True, frozen=True):
    """The application has acknowledged everything of a pubend up to this tick."""

    pubend: str
    upto: int


@frame(senders=CLIENT, most_bytes=SMALL_BYTES)
class Ready(Struct, tag="ready", array_like=True, frozen=True):
    """The application has made its subscriptions and begins to read: see `ClientHello.hold`."""


@frame(senders=CLIENT)
class Goodbye(Struct, tag="bye", array_like=True, frozen=True):
    """End the session now and remove all its entries. With `stay` only this process leaves, and the
    durable session is kept for the next one. `done` has subscriptions that are further than the
    client as a whole, by sequence and pubend."""

    stay: bool = False
    done: dict[int, dict[str, int]] = {}


@frame(senders=ANYBODY)
class StatusRequest(Struct, tag="status?", array_like=True, frozen=True):
    """Asks for the broker's state; allowed before any hello. Also asks where `clients` are."""

    clients: tuple[str, ...] = ()


# ── from the broker ──────────────────────────────────────────────────────────────────────


class StandingEntry(Struct, array_like=True, frozen=True):
    """An advertisement or subscription that is in force in a session. Not `answered`: a repeated
    request is answered when it is effective."""

    sequence: int
    kind: Literal["advertise", "subscribe"]
    name: str
    filter: Filter
    answered: bool = True


@frame()
class Welcome(Struct, tag="welcome", array_like=True, frozen=True):
    """`published` is the last publication handled in this session, as far as the broker knows.
    `forgot`: the broker does not know which best-effort publications it received, so the client
    must not retransmit those; it must retransmit sure ones, which the broker's log knows. `refused`
    are the refused publications up to `published`; those up to `forgotten` may be missing. Both
    sides send a heartbeat at least every `heartbeat_s`, and consider the connection dead after
    three without one.

    For a process that adopts a durable session: `requests` is the last request received, `taken`
    the last publication received (logged or about to be), `standing` the entries in force.

    Publications up to `destroyed` were in a log that no longer exists: those without an answer may
    or may not have arrived."""

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
    standing: tuple[StandingEntry, ...] = ()
    destroyed: int = 0


@frame()
class Done(Struct, tag="done", array_like=True, frozen=True):
    """`value` is the requested value, if any."""

    sequence: int
    value: str = ""


@frame()
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


@frame(soft=True)
class Published(Struct, tag="published", array_like=True, frozen=True):
    """All publications up to `upto` are handled; those in `refused` were not accepted."""

    upto: int
    refused: tuple[Refusal, ...] = ()


class Delivery(Struct, array_like=True, frozen=True, gc=False):
    """One event and the sequences of the subscriptions that it matches."""

    subscriptions: tuple[int, ...]
    publication: Publication


@frame(soft=True, events=attrgetter("batch"))
class Deliver(Struct, tag="events", array_like=True, frozen=True):
    """`dropped`: total number of events that this client lost because it did not read."""

    batch: list[Delivery]
    dropped: int = 0


@frame()
class Invited(Struct, tag="invited", array_like=True, frozen=True):
    """Invites a client to a transaction, because of an event that an application has sent.
    Operations that the client adds are ordered after `order`. Repeated if the client reconnects
    without having answered."""

    tx: str
    timeout_s: float
    order: str
    op: OpId
    body: bytes
    subscriptions: tuple[int, ...] = ()


@frame()
class Decided(Struct, tag="decided", array_like=True, frozen=True):
    """The transaction of a participant is decided. If the broker carried out the client's part of a
    plan, `added` are the entries put in force and `ended` those removed; an event for an added
    subscription may arrive before this."""

    tx: str
    number: int
    committed: bool
    reason: str = ""
    added: tuple[StandingEntry, ...] = ()
    ended: tuple[int, ...] = ()


@frame()
class Over(Struct, tag="over", array_like=True, frozen=True):
    """A subscription ended by a transaction has delivered all events it was owed; or an entry added
    by a transaction is gone, because the transaction was aborted."""

    sequence: int


@frame(soft=True)
class ProgressQuery(Struct, tag="how far", array_like=True, frozen=True):
    """Asks the client to report what the application has acknowledged: see `Processed`."""


@frame(senders=ANYBODY)
class Farewell(Struct, tag="closed", array_like=True, frozen=True):
    """The broker's last frame on a connection. `error` names a class in `motet.errors`, or is
    empty."""

    error: str
    text: str


@frame(soft=True)
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
    | ProgressQuery
    | Farewell
    | Status
)
