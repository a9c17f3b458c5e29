"""Frames between a reader and a broker.

Requests begin with the protocol version, because no hello precedes them. Each is answered once, by
its answer or by `Refused`; a reader waits for that before its next request.
"""

from __future__ import annotations

from msgspec import Struct

from motet.model import Filter
from motet.model.ids import NO_LIMIT
from motet.protocol.traits import READER, SMALL_BYTES, frame

EVENT, START, CUT = RECORD_KINDS = ("event", "start", "cut")
"""The kinds of records in a stream."""
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
"""Columns that every event has, independent of its attributes."""
VALUE_KINDS = ("bool", "int", "float", "text", "time")
"""The possible types of an attribute's column."""
MAX_COLUMNS = 256
REST = -1
"""Number of a step with only the last events of a transaction; the others are no longer kept."""
MAX_CURSOR_CHARS = 128


class Wanted(Struct, array_like=True, frozen=True):
    """A column of the answer: one of the stream, or one of an attribute. If `kind` is empty, the
    broker determines it, and reports it in the answer."""

    name: str
    attribute: str = ""
    kind: str = ""


# ── from the reader ──────────────────────────────────────────────────────────────────────


@frame(senders=READER, versioned=True)
class ReadRequest(Struct, tag="read?", array_like=True, frozen=True):
    """Asks for the next piece of a pubend's stream from tick `since` to tick `upto`, both included.
    `since` 0 is the oldest tick that is kept, `upto` 0 the last durable one. An empty `pubend` is
    the only one of the broker."""

    version: int
    number: int
    pubend: str
    since: int
    upto: int
    columns: tuple[Wanted, ...]
    filter: Filter | None = None
    kinds: tuple[str, ...] = (EVENT,)
    most_rows: int = NO_LIMIT


@frame(senders=READER, versioned=True, most_bytes=SMALL_BYTES)
class DescribeRequest(Struct, tag="logs?", array_like=True, frozen=True):
    """Asks which pubends the broker has, and how far their logs reach."""

    version: int
    number: int


@frame(senders=READER, versioned=True, most_bytes=SMALL_BYTES)
class OutlineRequest(Struct, tag="outline?", array_like=True, frozen=True):
    """Asks how much a range of a pubend's stream contains (`since` and `upto` as in `ReadRequest`),
    where it can be divided into steps of about `step_events` or `step_bytes`, and which
    transactions of several pubends are in it; with `every_block`, also those of this pubend alone.
    The outline may end after `most_events` or `most_bytes`."""

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


@frame(senders=READER, versioned=True, most_bytes=SMALL_BYTES)
class CursorRequest(Struct, tag="cursor?", array_like=True, frozen=True):
    """A named reader has finished with everything up to `tick`; None removes the name."""

    version: int
    number: int
    pubend: str
    name: str
    tick: int | None


# ── from the broker ──────────────────────────────────────────────────────────────────────


@frame(soft=True)
class ReadAnswer(Struct, tag="read", array_like=True, frozen=True):
    """The complete stream from tick `since` to tick `upto`. If `lost`, it is no longer kept. `data`
    is an Arrow IPC stream, empty if there are no rows."""

    number: int
    pubend: str
    since: int
    upto: int
    last_tick: int
    """The last durable tick."""
    lost: bool
    rows: int
    scanned: int
    """Number of events examined."""
    columns: tuple[Wanted, ...]
    misfits: dict[str, int]
    """By column, the number of values omitted because they are of another kind."""
    data: bytes


class LogStep(Struct, array_like=True, frozen=True):
    """The stream from the tick after the previous step to tick `upto`. With a `tx` it has exactly
    the events of one transaction; without, it does not end inside a transaction."""

    upto: int
    events: int
    size_bytes: int
    number: int = 0
    """Of the decision; every pubend has its transactions in this order. 0 for a batch of a sink."""
    tx: str = ""
    pubends: tuple[str, ...] = ()
    """All pubends with events of the transaction."""
    after: tuple[tuple[str, int], ...] = ()
    """Publishers have moved here: the step comes behind other pubends, each up to a tick."""


@frame(soft=True)
class Outline(Struct, tag="outline", array_like=True, frozen=True):
    """The steps of the stream from tick `since` to tick `upto`. It ends before a transaction whose
    events are not all in the range. If `lost`, the range is no longer kept."""

    number: int
    pubend: str
    since: int
    upto: int
    last_tick: int
    """The last durable tick."""
    lost: bool
    steps: tuple[LogStep, ...]


class CursorAccount(Struct, array_like=True, frozen=True):
    name: str
    tick: int
    expires_s: float
    """When it is removed unless it is set again, in seconds since 1970."""


class PubendAccount(Struct, array_like=True, frozen=True):
    """The log of one pubend. Only whole segments are removed: `first_tick` is the oldest one
    kept."""

    pubend: str
    first_tick: int
    last_tick: int
    """The last durable tick."""
    acknowledged: int
    """Every receiver that is owed the stream has acknowledged it up to here."""
    events: int
    """Number of events kept."""
    size_bytes: int
    sealed_bytes: int
    """The part of `size_bytes` that is stored by column."""
    lost_upto: int
    lost_events: int | None
    """How many events were removed, up to which tick, although still owed. None: unknown."""
    cursors: tuple[CursorAccount, ...]
    destroyed_upto: int = 0
    """The log up to here was destroyed, with all its cursors."""
    gone_cut: int = 0
    """Cuts of transactions up to this decision number are no longer kept; later ones are kept, or
    still to come."""


@frame(soft=True)
class Described(Struct, tag="logs", array_like=True, frozen=True):
    number: int
    broker: str
    pubends: tuple[PubendAccount, ...]


@frame(soft=True)
class CursorSet(Struct, tag="cursor", array_like=True, frozen=True):
    """The cursor is durable."""

    number: int


@frame(soft=True)
class Refused(Struct, tag="unread", array_like=True, frozen=True):
    """`error` names a class in `motet.errors`."""

    number: int
    error: str
    text: str


ReaderRequest = ReadRequest | DescribeRequest | OutlineRequest | CursorRequest
ReaderAnswer = ReadAnswer | Described | Outline | CursorSet | Refused
ReadingFrame = ReaderRequest | ReaderAnswer
