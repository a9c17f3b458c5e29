"""Durable state of transactions at one broker, by owner.

| owner | keeps | until |
| --- | --- | --- |
| `Courier` | `Flood`: a question to all brokers | all have answered |
| `TxTables` | `InvitationRead`: what isolated transactions read; `Marks` | the decision |
| `Participant` | `Local`: what local clients do in a transaction | the decision |
| `Invitations` | `AwaitedReplies`: the missing replies to an invitation | all have arrived |
| `Coordinator` | `Coordination`: a transaction that a local client began | it has been answered |
| `RootRequests` | `Held`: requests that wait for a route to the root | there is one |
| `RootRequests` | outcome requests of local clients | they are answered |
| `Decisions` | `Decision`: what is decided and not effective everywhere; `Held` | it is settled |
| `Cutter` | `Touched`, then `Block`: a cut of our own pubend | the log has it |
| `Root` | `PlanGathering`: parts of a plan; `Submission`: what is to be decided | the decision |
| `Root` | outcomes and keys | retention |
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from msgspec import Raw, Struct, field

from motet.errors import InvariantError
from motet.model import Filter, Hop, OpId
from motet.protocol.routing.state import Entry
from motet.protocol.session.messages import (
    BeginRequest,
    ExecuteRequest,
    OutcomeRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
)
from motet.protocol.transactions.messages import Contribution, Decide, Engage

# ── tables of legal moves ────────────────────────────────────────────────────────────────
# By state and event: the next state; or `Ignored`, with the reason why the event changes nothing;
# or `Forbidden`, with the client's error. An event without a row is a bug: `IllegalMove`.

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalMove(InvariantError):
    """An event occurred in a state in which it is impossible."""


class Ignored(NamedTuple):
    """The event is legal and changes nothing."""

    because: str


class Forbidden(NamedTuple):
    """A client may not do this; `error` names the error that it gets."""

    error: str


class Move(Enum):
    """A state or an event in a table of moves."""

    __hash__ = object.__hash__  # members are compared by identity; this is faster


class Moves(Generic[S, E]):
    def __init__(self, about: str, rows: Mapping[S, Mapping[E, S | Ignored | Forbidden]]) -> None:
        self.about = about
        self.rows = rows
        self._next: dict[S, dict[E, S | None]] = {
            state: {event: _state_of(after) for event, after in row.items()}
            for state, row in rows.items()
        }

    def next(self, state: S, event: E, name: object) -> S | None:
        """The next state of the object called `name`; None if nothing changes."""
        try:
            return self._next[state][event]
        except KeyError:
            raise self._illegal(state, event, name) from None

    def refusal(self, state: S, event: E, name: object) -> str:
        """The name of the client's error; empty if the client may do this."""
        row = self.rows[state].get(event)
        if row is None:
            raise self._illegal(state, event, name)
        return row.error if isinstance(row, Forbidden) else ""

    def _illegal(self, state: S, event: E, name: object) -> IllegalMove:
        return IllegalMove(f"{self.about} {name} is {state.value}: {event.value} is not legal then")


def _state_of(after: S | Ignored | Forbidden) -> S | None:
    return None if isinstance(after, Ignored | Forbidden) else after


# ── state ────────────────────────────────────────────────────────────────────────────────


class ClientPart(Struct):
    """What one local client does in a transaction, by operation number: of the client's request, or
    granted by its broker. Values are places in the order."""

    epoch: str
    version: int = 0
    begun: dict[int, str] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    advertised: dict[int, str] = field(default_factory=dict)
    unadvertised: dict[int, str] = field(default_factory=dict)
    staged: list[tuple[str, Raw]] = field(default_factory=list)
    invited: list[Raw] = field(default_factory=list)
    pending: dict[int, None] = field(default_factory=dict)
    """Requests that are not effective yet."""
    size_bytes: int = 0
    """Size of everything that the client has asked for."""
    plan: Engage | None = None
    """The letter that asked for this part, without its steps; None if the client does it itself."""
    placed: bool = False
    """Everything that the plan adds is in the tables."""


class OpenInvitation(Struct):
    """An invitation of a local client, by an event."""

    client: str
    epoch: str
    order: str
    op: OpId
    body: bytes = b""
    subscriptions: tuple[int, ...] = ()
    """The client's subscriptions that match the event."""
    answer: int = 0
    """The request number of the client's answer; 0: it has not answered."""
    refusal: str = ""


class Local(Struct):
    """A transaction in which local clients take part."""

    tx: str
    timeout_s: float
    parts: dict[str, ClientPart] = field(default_factory=dict)
    invitations: list[OpenInvitation] = field(default_factory=list)
    gathered: dict[str, Contribution] = field(default_factory=dict)
    """Contributions of clients that local clients have invited."""
    withdrawn: bool = False
    """The root has been asked to abort it."""
    refused: str = ""
    """Why a client that a local client has invited does not take part. Contributions of other
    clients may then be missing here, so the transaction can only be aborted."""


class Coordination(Struct):
    """A transaction, at its coordinator's broker."""

    tx: str
    kind: str
    """static, isolated or open."""
    key: str = ""
    request: int = 0
    """The coordinator's request that is answered at the end; 0: none yet."""
    submitted: bool = False
    outcome: str = ""
    reason: str = ""


class AwaitedReplies(Struct):
    """An invitation that was passed on: the missing replies, and what has arrived so far."""

    tx: str
    op: OpId
    requester: str
    """The neighbour that it came from; empty: a local client."""
    neighbours: dict[str, None] = field(default_factory=dict)
    clients: dict[str, None] = field(default_factory=dict)
    contributions: dict[str, Contribution] = field(default_factory=dict)
    reached: int = 0
    refusal: str = ""


class InvitationRead(Struct):
    """Where this broker passed an invitation of an isolated transaction on to."""

    body: Raw
    source: str
    """The neighbour that sent the invitation; empty: a local client."""
    hops: tuple[str, ...]
    own: tuple[OpId, ...] = ()
    """Matching subscriptions of the same transaction."""
    op: OpId | None = None
    """The invitation; it does not reach the session that sent it."""


class Decision(Struct):
    """A decision that is not settled."""

    decide: Decide
    source: str
    """The neighbour that sent it; empty: this broker is the root, or it is `late`."""
    missing: dict[str, None] = field(default_factory=dict)
    """Neighbours whose echo is missing."""
    echoed: bool = False
    settled: bool = False
    """It has taken effect everywhere else."""
    late: bool = False
    """It was settled while this broker was away, and concerns only this broker now."""
    concerned: dict[str, None] = field(default_factory=dict)
    """Neighbours that have not yet reported it in effect at all concerned brokers behind them."""
    reported: bool = False
    """This broker has reported that for itself and all behind it, or has nothing to report."""


class Touched(Struct):
    """A decision for which our pubend has not cut yet."""

    decide: Decide
    settled: bool = False
    """It has taken effect everywhere else."""


class Flood(Struct):
    """A question to all brokers: the opening, or the validation, of an isolated transaction."""

    tx: str
    what: str
    source: str
    missing: dict[str, None] = field(default_factory=dict)
    objection: str = ""


class Switch(Struct, array_like=True, frozen=True):
    """A subscription begins, or ends, after a tick of our own pubend."""

    op: OpId
    tick: int
    ended: bool


class StagedEvent(Struct, array_like=True, frozen=True):
    """An event of a transaction; `index` is its place among those of its pubend."""

    client: str
    index: int
    body: Raw


class Block(Struct, frozen=True):
    """A cut of our own pubend, and the events after it, one tick each."""

    tx: str
    number: int
    tick: int
    switches: tuple[Switch, ...]
    pubends: tuple[str, ...]
    events: tuple[StagedEvent, ...]
    orders: tuple[str, ...] = ()
    """If other pubends have events as well: the place of each of our events among all of them."""

    @property
    def last_tick(self) -> int:
        return self.tick + len(self.events)


RootRequest = BeginRequest | ExecuteRequest | OutcomeRequest
"""Requests that need the root."""


class Held(Struct, array_like=True, frozen=True):
    """A request of a local client, or its part of a plan, that removes what an unsettled
    transaction begins. It waits until that is settled, because pubends may still wait for it. Or a
    request that waits for a route to the root; then `tx` is empty."""

    tx: str
    op: OpId
    request: UnadvertiseRequest | UnsubscribeRequest | Engage | RootRequest
    until: float = 0.0
    """The time until which it waits for a route to the root."""

    @property
    def forsaken(self) -> OpId | None:
        """The subscription that has already ended for its client."""
        if not isinstance(self.request, UnsubscribeRequest) or self.request.tag is not None:
            return None  # if the transaction aborts, the subscription stays
        return OpId(self.op.client, self.op.epoch, self.request.target)


class TxOutcome(Struct, array_like=True, frozen=True):
    number: int
    committed: bool
    reason: str
    at: float
    key: str = ""
    """The coordinator's idempotency key, if it was committed with one."""


class Submission(Struct):
    """At the root: a transaction to be committed; queued in the order of arrival."""

    tx: str
    contributions: tuple[Contribution, ...]
    key: str
    isolated: bool
    asked: bool = False
    """Validation has begun: all brokers were asked whether what it has read is unchanged."""


class PlanGathering(Struct):
    """At the root: the parts of a plan that are done."""

    cast: tuple[str, ...]
    key: str
    timeout_s: float
    contributions: dict[str, Contribution] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        return [client for client in self.cast if client not in self.contributions]


class CourierState(Struct):
    floods: dict[tuple[str, str], Flood] = field(default_factory=dict)
    """By question and transaction."""


class VersionState(Struct):
    bases: dict[str, int] = field(default_factory=dict)
    """Undecided isolated transactions, each with the version that it reads."""
    reads: dict[str, list[InvitationRead]] = field(default_factory=dict)


class Marks:
    """Marks of transactions on entries of the routing tables. Changed only while a fact is
    applied."""

    def __init__(self) -> None:
        self.undecided: dict[OpId, Entry] = {}
        """Entries of undecided transactions; they are few."""
        self.unsettled: dict[OpId, Entry] = {}
        """These, and subscriptions that a transaction has ended: they wait for acknowledgements."""
        self.uncut: dict[OpId, None] = {}
        """Subscriptions that begin with a future cut of our pubend, and not before it."""
        self.unended: dict[OpId, None] = {}
        """Subscriptions that end with such a cut."""
        self.version = 0
        """Counts the changes of the tables."""
        self.ghosts: list[tuple[Entry, int]] = []
        """Removed subscriptions, each with the version that removed it: see `TxTables`."""
        self.watched = False
        """Is any isolated transaction open?"""

    def watch(self, entry: Entry) -> None:
        """Register an entry that is new, or whose marks have changed."""
        if entry.tx:
            self.undecided[entry.id] = entry
        else:
            self.undecided.pop(entry.id, None)
        if entry.tx or entry.ended:
            self.unsettled[entry.id] = entry
        else:
            self.unsettled.pop(entry.id, None)

    def unwatch(self, op: OpId) -> None:
        """Unregister an entry that was removed."""
        self.undecided.pop(op, None)
        self.unsettled.pop(op, None)

    def put_in_force(self, entry: Entry) -> None:
        """The transaction that it is part of was committed."""
        entry.tx = ""
        self.subscribed(entry)

    def end(self, entry: Entry) -> None:
        """A committed transaction ends this subscription."""
        self.version += 1
        entry.ended, entry.ended_at = True, self.version
        self.watch(entry)

    def subscribed(self, entry: Entry) -> None:
        self.version += 1
        entry.version = self.version
        self.watch(entry)

    def unsubscribed(self, entry: Entry) -> None:
        self.version += 1
        if self.watched and not entry.tx:
            self.ghosts.append((entry, self.version))


class ParticipantState(Struct):
    locals: dict[str, Local] = field(default_factory=dict)


class InvitationState(Struct):
    asked: dict[str, AwaitedReplies] = field(default_factory=dict)
    """By the request that sent the invitation."""


class CoordinatorState(Struct):
    coordinations: dict[str, Coordination] = field(default_factory=dict)


class RootRequestState(Struct):
    questions: dict[str, float] = field(default_factory=dict)
    """By outcome request of a local client: its timeout in seconds."""
    waiting: dict[OpId, Held] = field(default_factory=dict)
    """Requests that wait for a route to the root, in the order of arrival."""


class DecisionState(Struct):
    active: dict[str, Decision] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    number: int = 0
    """The highest number of a decision that this broker knows."""
    heard: int = 0
    """The number of the last decision that has reached this broker; decisions come in order."""


class CutterState(Struct):
    touched: dict[str, Touched] = field(default_factory=dict)
    postponed: list[OpId] = field(default_factory=list)
    """Requests of local clients that are complete except for a cut of our pubend."""
    staged: dict[str, dict[str, list[tuple[str, Raw]]]] = field(default_factory=dict)
    """By committed transaction and client: the events to be published with our cut."""
    blocks: dict[str, Block] = field(default_factory=dict)
    published: dict[str, int] = field(default_factory=dict)
    """By local client that has published in transactions: the tick of its last such event."""
    last_cut: tuple[int, int] = (0, 0)
    """The number of our pubend's last cut, and the last tick of its block."""
    made: dict[str, None] = field(default_factory=dict)
    """The transactions of our pubend's last cuts, also after their decisions are settled: if the
    root loses its state, a broker that has not heard so tells it the decision again."""


class RootState(Struct):
    opened: dict[str, float] = field(default_factory=dict)
    """Undecided isolated transactions, each with its timeout in seconds."""
    gatherings: dict[str, PlanGathering] = field(default_factory=dict)
    queue: list[Submission] = field(default_factory=list)
    outcomes: dict[str, TxOutcome] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    """By client and idempotency key: the transaction that was committed."""

    def remember(self, tx: str, outcome: TxOutcome) -> None:
        self.outcomes[tx] = outcome
        if outcome.key:
            self.keys[key_of(tx, outcome.key)] = tx

    def forget(self, tx: str) -> None:
        outcome = self.outcomes.pop(tx)
        if outcome.key and self.keys.get(key_of(tx, outcome.key)) == tx:
            del self.keys[key_of(tx, outcome.key)]


def key_of(tx: str, key: str) -> str:
    """Different clients may use the same key."""
    return f"{tx.rsplit('/', 2)[0]}\0{key}"


# ── the same state in snapshots: one flat struct, older than the owners ───────────────────
# Its layout is that of snapshots on disk: see `motet.broker.core.records.MACHINE_VERSION`.


class Active(Struct):
    """A `Decision`, and whether our pubend is `Touched` by it."""

    decide: Decide
    source: str
    missing: dict[str, None] = field(default_factory=dict)
    cutting: bool = False
    echoed: bool = False
    settled: bool = False
    late: bool = False
    concerned: dict[str, None] = field(default_factory=dict)
    reported: bool = False


class TxState(Struct):
    """The fields mean the same as in the states of the owners."""

    locals: dict[str, Local] = field(default_factory=dict)
    coordinations: dict[str, Coordination] = field(default_factory=dict)
    asked: dict[str, AwaitedReplies] = field(default_factory=dict)
    reads: dict[str, list[InvitationRead]] = field(default_factory=dict)
    bases: dict[str, int] = field(default_factory=dict)
    questions: dict[str, float] = field(default_factory=dict)
    floods: dict[str, Flood] = field(default_factory=dict)
    """By question and transaction, as one text."""
    active: dict[str, Active] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    postponed: list[OpId] = field(default_factory=list)
    staged: dict[str, dict[str, list[tuple[str, Raw]]]] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    published: dict[str, int] = field(default_factory=dict)
    last_cut: tuple[int, int] = (0, 0)
    made: dict[str, None] = field(default_factory=dict)
    number: int = 0
    opened: dict[str, float] = field(default_factory=dict)
    gatherings: dict[str, PlanGathering] = field(default_factory=dict)
    queue: list[Submission] = field(default_factory=list)
    outcomes: dict[str, TxOutcome] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    """Empty, like `outcomes`: those are many, are separate parts, and contain the keys."""


class GhostImage(Struct, array_like=True, frozen=True):
    id: OpId
    filter: Filter
    source: Hop
    version: int


class VersionsImage(Struct, tag="versions", array_like=True, frozen=True):
    """What isolated transactions may read."""

    version: int
    watched: bool
    ghosts: tuple[tuple[GhostImage, int], ...]


class TransactionsImage(Struct, tag="transactions", array_like=True, frozen=True):
    """Everything except the outcomes, which are many."""

    state: TxState


class OutcomesImage(Struct, tag="outcomes", array_like=True, frozen=True):
    rows: tuple[tuple[str, TxOutcome], ...]
