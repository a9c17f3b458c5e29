"""Messages between brokers about transactions: control messages, numbered, journaled and FIFO.

A transaction is named by the request that began it: `client/epoch/sequence`. Three ways to travel:

- a `Letter` goes to one broker,
- an `Invite` follows the subscriptions that match its event; `Reply` returns the same way,
- `Opening`, `Prepare`, `Decide` and `Settle` flood from the root; `Echoed` returns to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Raw, Struct

from motet.model import Filter, OpId

MOST_OPERATIONS = 1000
"""Operations of one client in one transaction."""


def op_of(tx: str) -> OpId:
    """The request that began a transaction."""
    client, epoch, number = tx.rsplit("/", 2)
    return OpId(client, epoch, int(number))


def is_tx(name: str) -> bool:
    parts = name.rsplit("/", 2)
    return len(parts) == 3 and parts[2].isdecimal() and len(parts[2]) <= 18 and bool(parts[0])


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
    """What one client does in a transaction. Each `version` includes all earlier ones."""

    client: str
    version: int
    begun: tuple[Begun, ...] = ()
    ended: tuple[Ended, ...] = ()
    events: int = 0
    pubend: str = ""
    """The pubend that will publish its events, if it has any."""
    invited: tuple[Raw, ...] = ()
    """The events with which the client has invited participants."""
    size_bytes: int = 0
    """Size of the filters and invitations above."""
    broker: str = ""
    """The client's broker; empty if the client did nothing."""


class Step(Struct, array_like=True, frozen=True):
    """One operation of a plan."""

    kind: str
    order: str
    name: str = ""
    """The name of the subscription or advertisement."""
    filter: Filter | None = None
    body: bytes = b""
    """The encoded event of a `publish` step."""


# ── letters ──────────────────────────────────────────────────────────────────────────────


class Engage(Struct, tag="engage", array_like=True, frozen=True):
    """To a client's broker: carry out the client's part of a plan. `cast` names all clients of the
    plan."""

    tx: str
    client: str
    steps: tuple[Step, ...]
    timeout_s: float
    cast: tuple[str, ...] = ()
    key: str = ""


class Engaged(Struct, tag="engaged", array_like=True, frozen=True):
    """To the root: one client's part of a plan is done. The root decides when the whole cast is
    done."""

    tx: str
    contribution: Contribution
    timeout_s: float
    cast: tuple[str, ...]
    key: str = ""


class Open(Struct, tag="open", array_like=True, frozen=True):
    """To the root: open an isolated transaction. The root aborts it some time after `timeout_s` if
    it hears nothing more of it."""

    tx: str
    timeout_s: float


class Submit(Struct, tag="submit", array_like=True, frozen=True):
    """To the root: all parts are complete, commit. `key` makes it idempotent: at most one
    transaction per client and key commits. `isolated` asks for validation."""

    tx: str
    contributions: tuple[Contribution, ...]
    key: str = ""
    isolated: bool = False


class Withdraw(Struct, tag="withdraw", array_like=True, frozen=True):
    """To the root, from a broker: abort this transaction unless it is decided. If another
    transaction with the same `key` was committed, that is the reason that the root gives."""

    tx: str
    broker: str
    reason: str
    key: str = ""


class Query(Struct, tag="decided?", array_like=True, frozen=True):
    """To the root, from a broker that may have missed the decision: if it is over, say so."""

    tx: str
    broker: str


class Verdict(Struct, tag="verdict", array_like=True, frozen=True):
    """From the root, to a broker that missed the decision."""

    tx: str
    number: int
    committed: bool
    reason: str = ""


class Ask(Struct, tag="outcome?", array_like=True, frozen=True):
    """To the coordinator's broker, and from there to the root: what is a transaction's outcome?"""

    tx: str
    op: OpId
    broker: str
    reached: bool = False
    """The coordinator's broker has been asked: the next is the root."""


class Tell(Struct, tag="outcome", array_like=True, frozen=True):
    """To the broker of a client whose request needed the root: the outcome of a transaction (empty:
    unknown at present), or the name of the transaction that has been opened for it."""

    op: OpId
    outcome: str


class Effective(Struct, tag="effective", array_like=True, frozen=True):
    """To the coordinator's broker: a decision is in effect at every broker that it concerns."""

    tx: str


LetterBody = Engage | Engaged | Open | Submit | Withdraw | Query | Verdict | Ask | Tell | Effective


ToClient = Engage | Ask | Tell | Effective
"""Letters to the broker of a client: wherever that is now."""


class Letter(Struct, tag="letter", array_like=True, frozen=True):
    broker: str
    body: LetterBody


# ── by content ───────────────────────────────────────────────────────────────────────────


class Invite(Struct, tag="invite", array_like=True, frozen=True):
    """Invites all clients that subscribe to this event. It is sent at once, before the decision."""

    tx: str
    op: OpId
    order: str
    body: Raw
    timeout_s: float
    isolated: bool = False


class Reply(Struct, tag="reply", array_like=True, frozen=True):
    """All clients behind the sender that an invitation has reached have done their part."""

    op: OpId
    contributions: tuple[Contribution, ...]
    reached: int = 0
    refusal: str = ""


# ── floods ───────────────────────────────────────────────────────────────────────────────


class Opening(Struct, tag="opening", array_like=True, frozen=True):
    """Opens an isolated transaction, which reads what is committed now, and nothing later."""

    tx: str


class Prepare(Struct, tag="prepare", array_like=True, frozen=True):
    """Validates an isolated transaction: has anything changed that it has read?"""

    tx: str


class Decide(Struct, tag="decide", array_like=True, frozen=True):
    """The root's decision. `number` is its place in the one order of all transactions."""

    tx: str
    number: int
    committed: bool
    reason: str = ""
    begun: tuple[Begun, ...] = ()
    ended: tuple[Ended, ...] = ()
    pubends: tuple[str, ...] = ()
    """All pubends that publish something in it."""
    brokers: tuple[str, ...] = ()
    """The brokers whose clients take part in it."""


class Echoed(Struct, tag="tx-echo", array_like=True, frozen=True):
    """A flood (`opening`, `prepare`, `decide`) is complete at the sender and everywhere behind it.
    `effective`: a decision is in effect at least at all brokers there that it concerns."""

    tx: str
    what: str
    objection: str = ""


class Settle(Struct, tag="settle", array_like=True, frozen=True):
    """A decision is in effect everywhere and may be forgotten."""

    tx: str


TxMessage = Letter | Invite | Reply | Opening | Prepare | Decide | Echoed | Settle


# ── why a transaction is aborted; reasons travel, and are journaled, as text ──────────────

_SAME_KEY = "committed before as "
_LATE = "not complete within"


class SameKey(Struct, frozen=True):
    """Another transaction with the same key was committed, so this one is not needed."""

    tx: str

    @property
    def text(self) -> str:
        return f"{_SAME_KEY}{self.tx}"


class TimeoutReason(Struct, frozen=True):
    """It took too long."""

    text: str

    @staticmethod
    def after(timeout_s: float, missing: str = "") -> TimeoutReason:
        return TimeoutReason(f"{_LATE} {timeout_s:g} s{missing}")

    def waiting_for(self, clients: Iterable[str]) -> TimeoutReason:
        return TimeoutReason(f"{self.text}: {', '.join(clients)} did not answer")


class OtherReason(Struct, frozen=True):
    """Any other reason, as text for people."""

    text: str


Reason = SameKey | TimeoutReason | OtherReason


def parse_reason(text: str) -> Reason:
    """The reason that a text from a frame or a journal expresses."""
    if text.startswith(_SAME_KEY):
        return SameKey(text.removeprefix(_SAME_KEY))
    return TimeoutReason(text) if text.startswith(_LATE) else OtherReason(text)
