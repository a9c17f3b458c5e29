"""Every error that Motet raises, by cause.

- `MisuseError`: the caller made an invalid request. The text says why, and what to do.
- `PeerError`: the other side of a connection broke the protocol. The connection is closed.
- `UnavailableError`: the request is valid, but the overlay cannot serve it now.
- `StorageError`: the disk, or a file on it, cannot be used. The text names the file and the remedy.
- `InvariantError`: a bug in Motet. Please report it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class MotetError(Exception):
    """The root of all errors raised by Motet."""


class MisuseError(MotetError):
    """The caller made an invalid request."""


def check_options(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse options of other names than the known ones."""
    names = list(known)
    unknown = sorted(set(given).difference(names))
    if unknown:
        raise MisuseError(f"unknown option {', '.join(unknown)}; use one of {', '.join(names)}")


class PeerError(MotetError):
    """A peer broke the protocol. The connection is closed with this error as the reason."""


class InvariantError(MotetError):
    """An internal invariant is violated: a bug in Motet."""


class UnavailableError(MotetError):
    """The request is valid, but the overlay cannot serve it now."""


class StorageError(MotetError):
    """The disk, or a file on it, cannot be used. The text names the file and the remedy."""


# ── misuse ───────────────────────────────────────────────────────────────────────────────


class EventError(MisuseError):
    """An event has an attribute name, a value or a size that Motet does not support."""


class FilterError(MisuseError):
    """A filter has a syntax or type error. `column` is 1-based; the text points at it."""

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
    """A topology file names a broker twice or an unknown one, or its links are not one tree."""


class SitesError(MisuseError):
    """A file of the sites of a sequencer has an error, or does not fit together."""


class AnotherLine(MisuseError):
    """A site was founded with another line, mode or placement of topics than it is started with, or
    belongs to another line than the one that the client is connected to."""


class AddressError(MisuseError):
    """An address is malformed, or its port cannot be bound."""


class NotAdvertised(MisuseError):
    """The client has not advertised the event, so it was not published. Advertise it first."""


class NoSuchOperation(MisuseError):
    """There is no such subscription or advertisement to remove."""


class SessionIsDurable(MisuseError):
    """A client without `durable=True` uses the id of a durable session, which it would end."""


class ClientElsewhere(MisuseError):
    """The durable session of this client is at another broker. Connect to that one."""


class NameTaken(MisuseError):
    """A subscription or advertisement of this name exists already, with another filter."""


class TooLate(MisuseError):
    """`since` was requested after this client had already received events from that log."""


class SinkTaken(MisuseError):
    """Another query writes into this sink. The text names it, and says what to do."""


class TransactionError(MisuseError):
    """The operation is not allowed in this transaction."""


class TransactionOver(TransactionError):
    """The transaction of an operation is decided already, or unknown to this broker."""


class NotInvited(TransactionError):
    """The client is not a participant; only the coordinator and invited clients are."""


class InTransaction(TransactionError):
    """The subscription or advertisement is part of an undecided transaction, or the client that
    wants to move takes part in one. Remove it, or move, later."""


class PlanError(TransactionError):
    """A plan is empty, or its steps depend on each other in a cycle."""


class UnknownClient(TransactionError):
    """A plan names a client that is not connected to the overlay."""


class NoClientsHere(MisuseError):
    """This process is a backup of a cell, or does not lead its site of a sequencer. Connect to the
    other one, which the text names."""


class NotSafe(MisuseError):
    """What an operator has asked for could break a promise that was given to clients."""


class FoundedAnew(MisuseError):
    """A site of a sequencer has lost its state and was founded anew: its numbers begin again, and
    what this client knows of them means nothing. Connect again."""


class NotAuthorised(MisuseError):
    """The rule that the operator has set for clients does not let this one use the broker."""


class TopicRefused(MisuseError):
    """The name of an ordered topic is empty, too long or has wildcards, or the stream has it, or
    lacks it, already."""


class StreamRefused(MisuseError):
    """The client has as many streams as it may have. Close some, or put more topics into one."""


class TopicElsewhere(MisuseError):
    """The placement says that the topic lives at a site, and that site says it does not."""


class WindowFull(MisuseError):
    """As many publications as the window allows are not confirmed yet. Await some of them."""


class ClosedError(MisuseError):
    """The client, subscription or overlay is closed."""


# ── unavailable now ──────────────────────────────────────────────────────────────────────


class TimedOut(UnavailableError, TimeoutError):
    """A request was not answered within its timeout."""


class NotEffective(TimedOut):
    """An operation did not take effect across the overlay in time. `missing` are the brokers that
    did not answer."""

    def __init__(
        self, operation: str, missing: Sequence[str], timeout_s: float, advice: str = ""
    ) -> None:
        self.operation = operation
        self.missing = tuple(missing)
        self.timeout_s = timeout_s
        who = ", ".join(self.missing) or "unknown"
        text = f"{operation} was not effective within {timeout_s:g} s; brokers not reached: {who}"
        super().__init__(f"{text}; {advice}" if advice else text)


class NotOffered(UnavailableError):
    """The requested feature is not supported here: exactly-once delivery at a broker without a log
    (publish with `best_effort=True`), moves with covering or through cells, or Spark without
    PySpark or Java. The text says what to do."""


class Aborted(UnavailableError):
    """The transaction was aborted, and has no effect. The text says why."""


class TransactionTimedOut(Aborted, TimedOut):
    """The transaction was aborted because it was not complete within its timeout."""


class OutcomeUnknown(TimedOut):
    """The answer to a commit did not arrive: the transaction may be committed or not. Ask
    `client.outcome` when a broker is reachable; the text contains the id."""


class StillSpreading(UnavailableError):
    """The transaction `tx` is committed, but a broker it affects is unreachable; the commit takes
    effect there when it reconnects."""

    tx = ""


class InvitationRefused(UnavailableError):
    """An invited client refused to take part. The transaction is still open."""


class StillOwed(UnavailableError):
    """The advertisement is closed to new events, but earlier events are still being delivered; it
    is removed automatically when they have arrived."""


class StagingLost(UnavailableError):
    """Rows that were staged for a sink are lost or damaged, so their batch was not committed. Write
    it again."""


class Withdrawn(UnavailableError):
    """The operation was cancelled while it waited: by its inverse, or by the end of its session."""


class Disconnected(UnavailableError):
    """The broker cannot be reached, or the connection ended before its answer arrived."""


class NoAnswer(Disconnected, TimedOut):
    """The broker did not answer in time."""


class EventsLost(UnavailableError):
    """Events of a pubend are permanently lost: trimmed by retention, or destroyed with their log.
    They are between the ticks `first` and `last`."""

    def __init__(self, pubend: str, first: int, last: int, advice: str = "") -> None:
        self.pubend = pubend
        self.first = first
        self.last = last
        text = f"events of {pubend} are lost, from tick {first} to {last}"
        super().__init__(f"{text}; {advice}" if advice else text)


class Voided(UnavailableError):
    """The event was published so late that its number had become void: subscribers may have passed
    its place, and get it tagged as late."""


class NotPublished(UnavailableError):
    """The service did not take the event, and its number is given back. The text has the
    service's reason."""


class NotSubscribed(UnavailableError):
    """The service does not give a topic of a stream, so nothing has changed. The text has the
    service's reason."""


class SitesAway(UnavailableError):
    """Sites of the sequencer that a change of a stream concerns cannot be reached. Nothing has
    changed."""


class NotAdmitted(UnavailableError):
    """The broker opens no new session now, because it drains or is full. Other brokers may."""


class MoveRefused(UnavailableError):
    """The target does not take the client, which stays where it was. The text has the reason."""


class Fenced(UnavailableError):
    """Another process connected with the same client id, at any broker, and took over."""


class SlowConsumer(UnavailableError):
    """The client did not read for so long that its queue at the broker overflowed."""


# ── the peer ─────────────────────────────────────────────────────────────────────────────


class FrameError(PeerError):
    """A frame is malformed, truncated or larger than the limit."""


class VersionError(PeerError):
    """The peer uses another version of the protocol."""


class UnknownBroker(PeerError):
    """A broker that is not a configured neighbour tried to link."""


class ProtocolError(PeerError):
    """A well-formed message that is not legal in the current state of the connection."""


# ── the disk ─────────────────────────────────────────────────────────────────────────────


class LogCorrupted(StorageError):
    """Records that were durable are damaged or missing."""


class LogInUse(StorageError):
    """Another process has the folder open."""


class WrittenByAnotherVersion(StorageError):
    """A log or snapshot has a version that this release does not read."""


class LogTrimmed(StorageError):
    """The requested records are no longer kept."""


class DiskFailed(StorageError):
    """Writing or syncing failed. Not retried, because the on-disk state is unknown."""


class StaleState(StorageError):
    """A broker runs on an older copy of its state than it has acknowledged to others."""
