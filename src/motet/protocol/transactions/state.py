"""Durable state of transactions at one broker.

| who | keeps | until |
| --- | --- | --- |
| the broker of a client that takes part | `Local`: what its clients do in it | it is decided |
| the coordinator's broker | `Coordination` besides | its client has been answered |
| a broker on an invitation's way | `Asked`: who has not replied | all have |
| the same, if it is isolated | `Read`: whom it reached | it is decided |
| every broker | `Active`: a decision whose effects are not complete | it is settled |
| a pubend's broker | `Block`: its cut, until the log has it | it is logged |
| the root | `Gathering`: parts of a plan | all are done |
| the root | `outcomes`, `keys`, the last `number` | retention |
"""

from __future__ import annotations

from msgspec import Raw, Struct, field

from motet.model import OpId
from motet.protocol.session.messages import UnadvertiseRequest, UnsubscribeRequest
from motet.protocol.transactions.messages import Contribution, Decide, Engage


class Part(Struct):
    """What one client of ours does in a transaction, by the numbers of its operations: of its
    requests, or granted by us. Values are places in the order."""

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
    """Of everything that it has asked for."""
    plan: Engage | None = None
    """The letter that asked for it, without its steps; None if its client does it itself."""
    placed: bool = False
    """All that the plan adds is in the tables."""


class Invitation(Struct):
    """A client of ours was asked to take part, by an event."""

    client: str
    epoch: str
    order: str
    op: OpId
    body: bytes = b""
    subscriptions: tuple[int, ...] = ()
    """Of the client, because of which it was asked."""
    answer: int = 0
    """Its answer's number among its requests, once it has answered."""
    refusal: str = ""


class Local(Struct):
    """A transaction in which clients of ours take part."""

    tx: str
    timeout_s: float
    parts: dict[str, Part] = field(default_factory=dict)
    invitations: list[Invitation] = field(default_factory=list)
    gathered: dict[str, Contribution] = field(default_factory=dict)
    """What others have done whom clients of ours have invited."""
    withdrawn: bool = False
    """The root has been told that it cannot go on."""
    refused: str = ""
    """Somebody whom a client of ours has invited will not take part, or cannot: why. Then what
    those have done who were reached is unknown here, so it can only be aborted."""


class Coordination(Struct):
    """At the coordinator's broker."""

    tx: str
    kind: str
    """static, isolated or open."""
    key: str = ""
    request: int = 0
    """Which request of the coordinator is answered when it is over; 0: none yet."""
    submitted: bool = False
    outcome: str = ""
    reason: str = ""


class Asked(Struct):
    """An invitation that was passed on: whose reply is missing, and what has come so far."""

    tx: str
    op: OpId
    requester: str
    """The neighbour that it came from; empty: a client of ours has invited."""
    neighbours: dict[str, None] = field(default_factory=dict)
    clients: dict[str, None] = field(default_factory=dict)
    contributions: dict[str, Contribution] = field(default_factory=dict)
    reached: int = 0
    refusal: str = ""


class Read(Struct):
    """Where an invitation of an isolated transaction went from here."""

    body: Raw
    source: str
    """The neighbour that it came from; empty: a client of ours."""
    hops: tuple[str, ...]
    own: tuple[OpId, ...] = ()
    """Subscriptions of the same transaction that it met."""
    op: OpId | None = None
    """Which invitation: its own client it does not reach."""


class Active(Struct):
    """A decision on its way, or not yet effective behind us."""

    decide: Decide
    source: str
    """The neighbour that told us; empty: we are the root."""
    missing: dict[str, None] = field(default_factory=dict)
    """Neighbours whose echo is missing."""
    cutting: bool = False
    """Our own pubend has to cut, and has not."""
    echoed: bool = False
    settled: bool = False
    """It has taken effect everywhere else."""
    late: bool = False
    """It was settled while we were away: nobody but us is concerned any more."""
    concerned: dict[str, None] = field(default_factory=dict)
    """Neighbours behind which it concerns somebody: until they say that it is in effect there."""
    reported: bool = False
    """We have said so of ourselves, and of all behind us."""


class Flood(Struct):
    """A question to everybody: the opening, or the validation, of an isolated transaction."""

    tx: str
    what: str
    source: str
    missing: dict[str, None] = field(default_factory=dict)
    objection: str = ""


class Switch(Struct, array_like=True, frozen=True):
    """A subscription begins, or ends, above a tick of our own pubend."""

    op: OpId
    tick: int
    ended: bool


class Staged(Struct, array_like=True, frozen=True):
    """An event of a transaction; `index` is its place among those of its pubend."""

    client: str
    index: int
    body: Raw


class Block(Struct, frozen=True):
    """A cut of our own pubend, and the events behind it, one tick each."""

    tx: str
    number: int
    tick: int
    switches: tuple[Switch, ...]
    pubends: tuple[str, ...]
    events: tuple[Staged, ...]
    orders: tuple[str, ...] = ()
    """If other pubends have events as well: the place of each of ours among all of them."""

    @property
    def last_tick(self) -> int:
        return self.tick + len(self.events)


class Held(Struct, array_like=True, frozen=True):
    """A request of a client of ours, or its part of a plan, that takes back what a transaction
    begins: it waits until that is settled, since pubends may still expect what it begins."""

    tx: str
    op: OpId
    request: UnadvertiseRequest | UnsubscribeRequest | Engage

    @property
    def forsaken(self) -> OpId | None:
        """The subscription that is over for its client already."""
        if not isinstance(self.request, UnsubscribeRequest) or self.request.tag is not None:
            return None  # in a transaction it may yet stay
        return OpId(self.op.client, self.op.epoch, self.request.target)


class Outcome(Struct, array_like=True, frozen=True):
    number: int
    committed: bool
    reason: str
    at: float
    key: str = ""
    """Its coordinator's own name for what it did, if it was committed with one."""


class Submission(Struct):
    """At the root: a transaction that wants to commit, in the order of arrival."""

    tx: str
    contributions: tuple[Contribution, ...]
    key: str
    isolated: bool
    asked: bool = False
    """Everybody was asked whether what it has read still holds."""


class Gathering(Struct):
    """At the root: the parts of a plan that are done."""

    cast: tuple[str, ...]
    key: str
    timeout_s: float
    contributions: dict[str, Contribution] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        return [client for client in self.cast if client not in self.contributions]


class TxState(Struct):
    """Changed only by `Transactions`, and only while a journaled fact is applied."""

    locals: dict[str, Local] = field(default_factory=dict)
    coordinations: dict[str, Coordination] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    """By the request that invites."""
    reads: dict[str, list[Read]] = field(default_factory=dict)
    bases: dict[str, int] = field(default_factory=dict)
    """Isolated transactions that are not decided, each with what it reads."""
    questions: dict[str, float] = field(default_factory=dict)
    """By request of a client of ours that asks for an outcome: how long it waits for the root."""
    floods: dict[str, Flood] = field(default_factory=dict)
    active: dict[str, Active] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    postponed: list[OpId] = field(default_factory=list)
    """Requests of clients of ours that are done but for a cut of our pubend."""
    staged: dict[str, dict[str, list[tuple[str, Raw]]]] = field(default_factory=dict)
    """By committed transaction and client: events that are to be published with our cut."""
    blocks: dict[str, Block] = field(default_factory=dict)
    published: dict[str, int] = field(default_factory=dict)
    """By client of ours that has published in transactions: the last tick of it."""
    last_cut: tuple[int, int] = (0, 0)
    """Of our own pubend: the number of its last cut, and the last tick of its block."""
    number: int = 0
    """The last decision that we have heard of."""
    opened: dict[str, float] = field(default_factory=dict)
    """Isolated ones that are not decided, each with how long it may take."""
    gatherings: dict[str, Gathering] = field(default_factory=dict)
    queue: list[Submission] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    """By client and its own name for what it did: the transaction that was committed."""

    def remember(self, tx: str, outcome: Outcome) -> None:
        self.outcomes[tx] = outcome
        if outcome.key:
            self.keys[key_of(tx, outcome.key)] = tx

    def forget(self, tx: str) -> None:
        outcome = self.outcomes.pop(tx)
        if outcome.key and self.keys.get(key_of(tx, outcome.key)) == tx:
            del self.keys[key_of(tx, outcome.key)]


def key_of(tx: str, key: str) -> str:
    """Keys are their client's own."""
    return f"{tx.rsplit('/', 2)[0]}\0{key}"
