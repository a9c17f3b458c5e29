"""Every error Motet raises, sorted by blame.

- `MisuseError`: you asked for something that cannot be; the text says what and what to do.
- `PeerError`: the other side of a connection misbehaved; the connection is closed, we go on.
- `InvariantError`: we are wrong; please report it.

`UnavailableError` stands between them: nobody is wrong, the overlay just cannot do it now. So does
`StorageError`: the disk, or what is on it, cannot be used; the text names the file and the way out.
"""

from __future__ import annotations

from collections.abc import Sequence


class MotetError(Exception):
    """The root of all errors raised by Motet."""


class MisuseError(MotetError):
    """The caller asked for something that cannot be."""


class PeerError(MotetError):
    """A peer sent what it must not send. The connection is closed with this as the reason."""


class InvariantError(MotetError):
    """A promise that Motet makes to itself is broken: a bug in Motet."""


class UnavailableError(MotetError):
    """The request is fine, but the overlay cannot serve it now."""


class StorageError(MotetError):
    """The disk, or what is on it, cannot be used. The text names the file and the way out."""


# ── misuse ───────────────────────────────────────────────────────────────────────────────


class EventError(MisuseError):
    """An event has an attribute name, a value or a size that Motet does not carry."""


class FilterError(MisuseError):
    """A filter does not parse or does not type. `column` is 1-based; the text points at it."""

    def __init__(self, problem: str, text: str = "", column: int = 0) -> None:
        self.problem = problem
        self.text = text
        self.column = column
        super().__init__(problem + (_pointed_at(text, column) if column else ""))


def _pointed_at(text: str, column: int) -> str:
    """The line with the column and a caret below it; of a long line only the surroundings."""
    at = column - 1
    first = max(text.rfind("\n", 0, at) + 1, at - 60)
    last = text.find("\n", at)
    shown = text[first : min(len(text) if last < 0 else last, at + 40)]
    # Tabs and control characters would put the caret out of line.
    shown = "".join(char if char.isprintable() else " " for char in shown)
    return f" at column {column}\n  {shown}\n  {' ' * (at - first)}^"


class FilterTooComplex(FilterError):
    """A filter exceeds the limits on depth, size or cost."""


class TopologyError(MisuseError):
    """A topology file names a broker twice, an unknown one, or does not form one tree."""


class AddressError(MisuseError):
    """An address does not parse, or its port cannot be bound."""


class NotAdvertised(MisuseError):
    """An event lies outside the space its client has advertised; nobody received it."""


class NoSuchOperation(MisuseError):
    """An unsubscribe or unadvertise names something that is not in force."""


class SessionIsDurable(MisuseError):
    """A client wants a new, ordinary session under the id of a durable one, which would end it."""


class ClientElsewhere(MisuseError):
    """A durable session of this client lives at another broker: connect there."""


class NameTaken(MisuseError):
    """A subscription or advertisement of this name stands already, with another filter."""


class TooLate(MisuseError):
    """A subscription cannot reach into the past any more: its client reads there already."""


class SinkTaken(MisuseError):
    """Another query writes into this sink: the text says which, and what can be done."""


class TransactionError(MisuseError):
    """Something that cannot be in a transaction, or in this one."""


class TransactionOver(TransactionError):
    """An operation belongs to a transaction that is decided, or was never here."""


class NotInvited(TransactionError):
    """A client has no part in this transaction: who takes part has begun it, or was invited."""


class InTransaction(TransactionError):
    """What is to be taken back is part of a transaction that is not decided."""


class PlanError(TransactionError):
    """A plan is empty, or goes round in a circle."""


class UnknownClient(TransactionError):
    """A plan names a client that is not connected to the overlay."""


class NoClientsHere(MisuseError):
    """This process is a mate of a cell: clients and brokers connect to its head."""


class ClosedError(MisuseError):
    """The client, subscription or overlay was closed before."""


# ── the overlay cannot do it now ─────────────────────────────────────────────────────────


class NotEffective(UnavailableError):
    """An operation was not effective across the overlay in time; names the brokers not reached."""

    def __init__(self, operation: str, missing: Sequence[str], timeout_s: float) -> None:
        self.operation = operation
        self.missing = tuple(missing)
        self.timeout_s = timeout_s
        who = ", ".join(self.missing) or "unknown"
        super().__init__(
            f"{operation} was not effective within {timeout_s:g} s; brokers not reached: {who}"
        )


class NotOffered(UnavailableError):
    """What was asked for is not to be had here: exactly-once delivery at a broker that keeps no log
    (publish with `best_effort=True`), Spark without PySpark or Java. The text says what to do."""


class Aborted(UnavailableError):
    """The transaction was aborted, and nothing of it has happened. The text says why."""


class OutcomeUnknown(UnavailableError):
    """The answer to a commit has not come: it was committed, or it was not. `client.outcome` says
    which, as soon as a broker can be asked; the text says for what."""


class StillSpreading(UnavailableError):
    """A transaction is committed, and nothing can undo that; but somebody whom it concerns is away.
    It takes effect there when that one is back. `tx` is its id."""

    tx = ""


class InvitationRefused(UnavailableError):
    """Somebody who was invited will not take part. The transaction is still open."""


class StillOwed(UnavailableError):
    """An advertisement was taken back, and takes no more events; but some that were published
    under it have not arrived everywhere. It goes by itself when they have."""


class StagingLost(UnavailableError):
    """Rows that were staged for a sink are gone or damaged, so their batch was not committed, and
    nothing of it has happened: write it again."""


class Withdrawn(UnavailableError):
    """The operation was undone (by its inverse, or by the end of its session) while it waited."""


class Disconnected(UnavailableError):
    """The broker cannot be reached, or the connection ended before the answer came."""


class EventsLost(UnavailableError):
    """Events of a pubend are gone for good: they were trimmed, or destroyed with their log.
    `first` and `last` are the ticks between which they lie."""

    def __init__(self, pubend: str, first: int, last: int, advice: str = "") -> None:
        self.pubend = pubend
        self.first = first
        self.last = last
        text = f"events of {pubend} are lost, from tick {first} to {last}"
        super().__init__(f"{text}; {advice}" if advice else text)


class Fenced(UnavailableError):
    """Another client connected with the same id, at this broker or another, and took over."""


class SlowConsumer(UnavailableError):
    """The client did not read for so long that even answers no longer fit its queue."""


# ── the peer ─────────────────────────────────────────────────────────────────────────────


class FrameError(PeerError):
    """A frame is malformed, truncated or larger than the limit."""


class VersionError(PeerError):
    """The peer speaks another version of the protocol."""


class UnknownBroker(PeerError):
    """A broker that is not a configured neighbour tried to link."""


class ProtocolError(PeerError):
    """A well-formed message that is not legal in the state the conversation is in."""


# ── the disk ─────────────────────────────────────────────────────────────────────────────


class LogCorrupted(StorageError):
    """Records are broken or missing that were durable before."""


class LogInUse(StorageError):
    """Another process has the folder open."""


class WrittenByAnotherVersion(StorageError):
    """A log or snapshot is of a version that this release does not read."""


class LogTrimmed(StorageError):
    """Records were asked for that are not kept any more."""


class DiskFailed(StorageError):
    """Writing or syncing failed. It is never tried again: nobody knows what the disk has."""


class StaleState(StorageError):
    """A broker runs on an older copy of its state than what it has acknowledged."""
