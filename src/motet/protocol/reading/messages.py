"""Frames between a reader and a broker.

Requests begin with the version of the protocol, because no hello precedes them. Each is answered
once, by its answer or by `Refused`; a reader waits for that before it asks the next thing.
"""

from __future__ import annotations

from msgspec import Struct

from motet.model import Filter
from motet.model.ticks import NO_LIMIT

EVENT, START, CUT = RECORD_KINDS = ("event", "start", "cut")
"""What there is in a stream."""
STREAM_COLUMNS = (
    "pubend",
    "tick",
    "time",
    "kind",
    "publisher",
    "epoch",
    "sequence",
    "attributes",
    "payload",
)
"""Columns that every event has, whatever its attributes are."""
VALUE_KINDS = ("bool", "int", "float", "text", "time")
"""What a column of an attribute may hold."""
MAX_COLUMNS = 256
REST = -1
"""The number of a step that has only the last events of a transaction: the others have gone."""
MAX_CURSOR_CHARS = 128


class Wanted(Struct, array_like=True, frozen=True):
    """A column of the answer: one of the stream, or an attribute's. A `kind` that is empty is
    found out by the broker, which says what it has found."""

    name: str
    attribute: str = ""
    kind: str = ""


# ── from the reader ──────────────────────────────────────────────────────────────────────


class ReadRequest(Struct, tag="read?", array_like=True, frozen=True):
    """The next piece of a pubend's stream from tick `since` on, up to tick `upto`, both included.
    `since` 0 is the oldest tick that is kept, `upto` 0 the last one that is durable. No `pubend`:
    the only one there is."""

    version: int
    number: int
    pubend: str
    since: int
    upto: int
    columns: tuple[Wanted, ...]
    filter: Filter | None = None
    kinds: tuple[str, ...] = (EVENT,)
    most_rows: int = NO_LIMIT


class DescribeRequest(Struct, tag="logs?", array_like=True, frozen=True):
    """Which pubends are there, and how far do their logs reach?"""

    version: int
    number: int


class OutlineRequest(Struct, tag="outline?", array_like=True, frozen=True):
    """How much is there in a range of a pubend's stream (`since` and `upto` as in `ReadRequest`),
    where can it be divided into steps of about so many events or bytes, and which transactions of
    several pubends are in it? With `every_block`, those of this pubend alone as well. It may end
    behind `most_events` or `most_bytes`."""

    version: int
    number: int
    pubend: str
    since: int
    upto: int
    step_events: int
    step_bytes: int = NO_LIMIT
    most_events: int = NO_LIMIT
    most_bytes: int = NO_LIMIT
    every_block: bool = False


class CursorRequest(Struct, tag="cursor?", array_like=True, frozen=True):
    """Somebody with a name is done with everything up to `tick`; with None, the name goes."""

    version: int
    number: int
    pubend: str
    name: str
    tick: int | None


# ── from the broker ──────────────────────────────────────────────────────────────────────


class ReadAnswer(Struct, tag="read", array_like=True, frozen=True):
    """The stream from tick `since` to tick `upto`: all of it is in here. If `lost`, it is not kept
    any more. `data` is an Arrow IPC stream, empty if there are no rows."""

    number: int
    pubend: str
    since: int
    upto: int
    last_tick: int
    """The last one that is durable."""
    lost: bool
    rows: int
    scanned: int
    """Events that were looked at."""
    columns: tuple[Wanted, ...]
    misfits: dict[str, int]
    """By column, how many values are left out because they are of another kind."""
    data: bytes


class LogStep(Struct, array_like=True, frozen=True):
    """The stream from the tick behind the step before to tick `upto`. With a `tx` it has the
    events of one transaction and no others; without, it ends in no transaction."""

    upto: int
    events: int
    size_bytes: int
    number: int = 0
    """Of the decision: all pubends have their transactions in the order of these. A batch of a
    sink has none: 0."""
    tx: str = ""
    pubends: tuple[str, ...] = ()
    """All that have events of the transaction."""


class Outline(Struct, tag="outline", array_like=True, frozen=True):
    """The steps of the stream from tick `since` to tick `upto`. It ends before a transaction whose
    events are not all in the range. If `lost`, the range is not kept any more."""

    number: int
    pubend: str
    since: int
    upto: int
    last_tick: int
    """The last one that is durable."""
    lost: bool
    steps: tuple[LogStep, ...]


class CursorAccount(Struct, array_like=True, frozen=True):
    name: str
    tick: int
    expires_s: float
    """When it goes unless it is set again, in seconds since 1970."""


class PubendAccount(Struct, array_like=True, frozen=True):
    """The log of one pubend. Whole parts of it go: `first_tick` is the oldest that is kept."""

    pubend: str
    first_tick: int
    last_tick: int
    """The last one that is durable."""
    acknowledged: int
    """Everybody who is owed the stream has it up to here."""
    events: int
    """How many are kept."""
    size_bytes: int
    sealed_bytes: int
    """As much of that is in columns."""
    lost_upto: int
    lost_events: int | None
    """How many went, up to which tick, although somebody was owed them. None: nobody knows."""
    cursors: tuple[CursorAccount, ...]
    destroyed_upto: int = 0
    """Up to here the log was destroyed, with all cursors that it knew."""
    gone_cut: int = 0
    """Cuts of transactions up to this number of a decision are not kept any more; those of later
    ones are in what is kept, or still to come."""


class Described(Struct, tag="logs", array_like=True, frozen=True):
    number: int
    broker: str
    pubends: tuple[PubendAccount, ...]


class CursorSet(Struct, tag="cursor", array_like=True, frozen=True):
    """It is durable."""

    number: int


class Refused(Struct, tag="unread", array_like=True, frozen=True):
    """`error` names a class in `motet.errors`."""

    number: int
    error: str
    text: str


ReaderRequest = ReadRequest | DescribeRequest | OutlineRequest | CursorRequest
ReaderAnswer = ReadAnswer | Described | Outline | CursorSet | Refused
ReadingFrame = ReaderRequest | ReaderAnswer
