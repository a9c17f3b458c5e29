"""What brokers tell each other about transactions: all of it control, numbered, journaled, FIFO.

A transaction is named by the request that began it: `client/epoch/sequence`. Three ways to travel:

- a `Letter` goes to one broker,
- an `Invite` goes where its event's subscriptions are, and `Reply` comes back the same way,
- `Opening`, `Prepare`, `Decide` and `Settle` flood from the root; `Echoed` comes back to it.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from motet.model import Filter, OpId

MOST_OPERATIONS = 1000
"""Of one client in one transaction."""
SAME_KEY = "committed before as "
"""Before the name of a transaction: why one with the same key was aborted."""


class Begun(Struct, array_like=True, frozen=True):
    """A subscription that begins with a transaction; `order` is its place among the operations."""

    op: OpId
    filter: Filter
    order: str


class Ended(Struct, array_like=True, frozen=True):
    """A subscription that ends with a transaction."""

    op: OpId
    filter: Filter
    order: str


class Contribution(Struct, array_like=True, frozen=True):
    """What one client does in a transaction. The one with the highest `version` has everything."""

    client: str
    version: int
    begun: tuple[Begun, ...] = ()
    ended: tuple[Ended, ...] = ()
    events: int = 0
    pubend: str = ""
    """Where its events will be published, if it has any."""
    invited: tuple[Raw, ...] = ()
    """The events by which it has invited others."""
    size_bytes: int = 0
    """Of the filters and invitations in here."""
    broker: str = ""
    """Whose client it is."""


class Step(Struct, array_like=True, frozen=True):
    """One operation of a plan."""

    kind: str
    order: str
    name: str = ""
    """What the subscription or advertisement is called, or is to be called."""
    filter: Filter | None = None
    body: bytes = b""
    """Of an event, as it travels."""


# ── letters ──────────────────────────────────────────────────────────────────────────────


class Engage(Struct, tag="engage", array_like=True, frozen=True):
    """To the broker of a client: it is to do that client's part of a plan. `cast` has all clients
    in it."""

    tx: str
    client: str
    steps: tuple[Step, ...]
    timeout_s: float
    cast: tuple[str, ...] = ()
    key: str = ""


class Engaged(Struct, tag="engaged", array_like=True, frozen=True):
    """To the root: one client's part of a plan is done. When those of the whole cast are, it can be
    decided."""

    tx: str
    contribution: Contribution
    timeout_s: float
    cast: tuple[str, ...]
    key: str = ""


class Open(Struct, tag="open", array_like=True, frozen=True):
    """To the root: a transaction wants to begin that is to be isolated. If nothing more is heard
    of it, it is aborted some time after `timeout_s`."""

    tx: str
    timeout_s: float


class Submit(Struct, tag="submit", array_like=True, frozen=True):
    """To the root: all has been done, commit. `key` is the client's own name for what it does: of
    all with the same one, one is committed. `isolated` asks for validation."""

    tx: str
    contributions: tuple[Contribution, ...]
    key: str = ""
    isolated: bool = False


class Withdraw(Struct, tag="withdraw", array_like=True, frozen=True):
    """To the root, from a broker: this cannot go on. If it is not decided yet, abort it. One with a
    `key` perhaps cannot go on because another one with that key was committed: then that is why."""

    tx: str
    broker: str
    reason: str
    key: str = ""


class Query(Struct, tag="decided?", array_like=True, frozen=True):
    """To the root, from a broker whose link to it has begun anew: if this is over, say so."""

    tx: str
    broker: str


class Verdict(Struct, tag="verdict", array_like=True, frozen=True):
    """From the root, to a broker that was away when this was decided."""

    tx: str
    number: int
    committed: bool
    reason: str = ""


class Ask(Struct, tag="outcome?", array_like=True, frozen=True):
    """To the coordinator's broker, and from there to the root: what became of a transaction?"""

    tx: str
    op: OpId
    broker: str
    reached: bool = True
    """The coordinator's broker was asked before the root."""


class Tell(Struct, tag="outcome", array_like=True, frozen=True):
    """To the broker of a client that has asked something of the root: what became of a transaction;
    empty: nobody can say now. Or that its own has been opened."""

    op: OpId
    outcome: str


class Effective(Struct, tag="effective", array_like=True, frozen=True):
    """To the coordinator's broker: a decision is in effect wherever it concerns anybody."""

    tx: str


LetterBody = Engage | Engaged | Open | Submit | Withdraw | Query | Verdict | Ask | Tell | Effective


class Letter(Struct, tag="letter", array_like=True, frozen=True):
    broker: str
    body: LetterBody


# ── by content ───────────────────────────────────────────────────────────────────────────


class Invite(Struct, tag="invite", array_like=True, frozen=True):
    """Whoever subscribes to this event is to take part. Travels at once, whatever is decided."""

    tx: str
    op: OpId
    order: str
    body: Raw
    timeout_s: float
    isolated: bool = False


class Reply(Struct, tag="reply", array_like=True, frozen=True):
    """All whom an invitation has reached behind the sender have done their part."""

    op: OpId
    contributions: tuple[Contribution, ...]
    reached: int = 0
    refusal: str = ""


# ── floods ───────────────────────────────────────────────────────────────────────────────


class Opening(Struct, tag="opening", array_like=True, frozen=True):
    """A transaction begins that reads what is committed now, and nothing later."""

    tx: str


class Prepare(Struct, tag="prepare", array_like=True, frozen=True):
    """Has anything changed that an isolated transaction has read?"""

    tx: str


class Decide(Struct, tag="decide", array_like=True, frozen=True):
    """The root has decided. `number` is the place in the one order of all transactions."""

    tx: str
    number: int
    committed: bool
    reason: str = ""
    begun: tuple[Begun, ...] = ()
    ended: tuple[Ended, ...] = ()
    pubends: tuple[str, ...] = ()
    """All that publish something in it."""
    brokers: tuple[str, ...] = ()
    """Whose clients have part in it."""


class Echoed(Struct, tag="tx-echo", array_like=True, frozen=True):
    """A flood has done its work at the sender and everywhere behind it: `opening`, `prepare`,
    `decide`. Or, of a decision, at least wherever it concerns anybody: `effective`."""

    tx: str
    what: str
    objection: str = ""


class Settle(Struct, tag="settle", array_like=True, frozen=True):
    """A decision has taken effect everywhere: it may be forgotten."""

    tx: str


TxMessage = Letter | Invite | Reply | Opening | Prepare | Decide | Echoed | Settle
