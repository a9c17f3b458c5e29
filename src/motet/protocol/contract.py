"""Inputs and outputs of a broker's core.

    step(input, now) -> Output

Inputs are facts of the past, outputs are imperatives. Time is a float of seconds that never runs
backwards and comes with the input. Connections are numbers that the driver counts up, so that a
newer connection of the same peer fences the older one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Raw, Struct

from motet.model import OpId
from motet.protocol.frames import Frame

if TYPE_CHECKING:
    from motet.protocol.delivery.spans import Span
    from motet.protocol.delivery.stream import ReadWanted
    from motet.protocol.room import Objection
    from motet.protocol.session.messages import CommitRequest
    from motet.protocol.sinks.state import StagedBlock

TimerKey = tuple[Hashable, ...]


# ── inputs ───────────────────────────────────────────────────────────────────────────────


class Dialled(NamedTuple):
    """A connection that we opened to a configured neighbour is up."""

    connection: int
    neighbour: str


class Received(NamedTuple):
    """A frame arrived. The first frame of an accepted connection identifies the peer."""

    connection: int
    frame: Frame


class Closed(NamedTuple):
    """A connection has ended, for any reason."""

    connection: int


class TimerFired(NamedTuple):
    key: TimerKey


class Reconfigured(NamedTuple):
    """The operator has changed the set of neighbours. The caller must have asked the core for its
    objection first."""

    neighbours: tuple[str, ...]


class Logged(NamedTuple):
    """Number of records durable in our pubend's log, of those written since the broker started."""

    records: int


class LogRead(NamedTuple):
    """Part of our pubend's log, from the start of the wanted range, maybe not to its end."""

    want: ReadWanted
    spans: list[Span]


class Persisted(NamedTuple):
    """The facts of an output with `Output.confirm` are durable."""

    confirmed: int


class StagingChecked(NamedTuple):
    """The rows of a commit are staged and complete, or the commit is refused."""

    ticket: int
    refused: Objection | None = None


class RowsRead(NamedTuple):
    """Rows of a block that is being copied, from row `at` on: as many as one read returns."""

    tx: str
    at: int
    bodies: list[Raw]


class Remembered(NamedTuple):
    """What the pubend's log remembers after a restart."""

    last_tick: int = 0
    published: Mapping[tuple[str, str], int] = {}
    """The last sequence, by client and epoch."""
    skipped: Mapping[tuple[str, str], tuple[int, ...]] = {}
    """By client and epoch, lower sequences that are not in the log: exactly-once events with these
    sequences were refused."""
    destroyed_upto: int = 0
    """The log up to this tick is destroyed: an event that is unknown here may have been in it."""


Input = (
    Dialled
    | Received
    | Closed
    | TimerFired
    | Reconfigured
    | Logged
    | LogRead
    | Persisted
    | StagingChecked
    | RowsRead
)


# ── outputs ──────────────────────────────────────────────────────────────────────────────


class Fact(Struct, array_like=True, frozen=True, gc=False):
    """A journaled input. Only facts change durable state. Replay applies them again."""

    now: float
    body: Any


class LogRun(NamedTuple):
    """Events of one session, with consecutive ticks and sequences, for our pubend's log."""

    first_tick: int
    publisher: str
    epoch: str
    first_sequence: int
    bodies: list[Raw]


class LogStart(NamedTuple):
    """The start of a subscription, for our pubend's log."""

    tick: int
    op: OpId
    tentative: bool = False


class LogCut(NamedTuple):
    """A transaction's cut, for our pubend's log; the events of its block follow, up to `last`."""

    tick: int
    tx: str
    number: int
    switches: tuple[tuple[OpId, int, bool], ...]
    pubends: tuple[str, ...]
    last: int
    orders: tuple[str, ...] = ()


class LogPredecessors(NamedTuple):
    """Pubends that have earlier events of a publisher, for our pubend's log; see
    `PredecessorRecord`."""

    tick: int
    publisher: str
    predecessors: tuple[tuple[str, int], ...]
    cut: tuple[int, int] = (0, 0)
    trail: tuple[tuple[str, int], ...] = ()
    """Further ones, whose events every subscriber has: only readers of the log come behind them."""


LogItem = LogRun | LogStart | LogCut | LogPredecessors


class CheckStaged(NamedTuple):
    """Check that the rows a client's commit names are staged and complete; see `StagingChecked`."""

    ticket: int
    client: str
    request: CommitRequest


class ReadStaged(NamedTuple):
    """Read rows of a committed block, from row `at` on; see `RowsRead`."""

    block: StagedBlock
    at: int


class DropStaged(NamedTuple):
    """The log contains a block: delete its files, and rows staged for earlier batches."""

    block: StagedBlock


StagingWish = CheckStaged | ReadStaged | DropStaged


class Change(Struct, frozen=True, gc=False):
    """One value of the list by which protocols notify each other; see `motet.protocol.changes`."""


class SetTimer(Change, array_like=True, frozen=True):
    key: TimerKey
    at: float


class CancelTimer(Change, array_like=True, frozen=True):
    key: TimerKey


class Close(NamedTuple):
    """Close a connection and tell the peer why. `at_once`: frames that still wait for facts are
    never sent."""

    connection: int
    error: str
    text: str
    at_once: bool = False


class Output(Struct):
    """What the driver must do, in the order of the fields.

    1. `persist`: append to the journal and make durable. No frame of `send`, `deliver` and `close`
       may leave the process before that; a failure here ends the process.
    2. `send`: frames to neighbours, and
    3. `deliver`: frames to clients. Per connection they leave in the order of the steps.
    4. `feed`: frames to the standby of a site. They carry facts, so they wait for none: the standby
       makes them durable itself.
    5. `log`: append to the pubend's log, which answers with `Logged`;
    6. `reads`: read that log, after this step; each is answered with `LogRead`;
    7. `staged`: check, read or drop staged rows; checks and reads are answered. No other part of
       this output waits for 5 to 7.
    8. `timers`: set and cancelled in list order; setting a key again replaces it.
    9. `close`: after all frames sent earlier on that connection, unless it is at once.
    10. `dial`, unless it is None: dial exactly these peers from now on, by name; addresses that are
       separated by commas are tried in turn.
    11. `forgotten`: sessions (client, epoch) that the pubend's log may forget once `persist` is
       durable; before that, a restart might restore them.
    12. `confirm`, unless it is 0, is returned with `Persisted` when `persist` is durable.
    """

    persist: list[Fact] = []
    send: list[tuple[int, Frame]] = []
    deliver: list[tuple[int, Frame]] = []
    feed: list[tuple[int, Frame]] = []
    log: list[LogItem] = []
    reads: list[ReadWanted] = []
    staged: list[StagingWish] = []
    timers: list[SetTimer | CancelTimer] = []
    close: list[Close] = []
    dial: Mapping[str, str] | None = None
    forgotten: list[tuple[str, str]] = []
    confirm: int = 0
