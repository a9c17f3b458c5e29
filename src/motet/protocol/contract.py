"""What goes into a broker's core and what comes out of it.

    step(input, now) -> Output

Inputs are facts of the past, outputs are imperatives. Time is seconds as a float that never
runs backwards, handed in with the input; connections are numbers that the driver counts up, so
that a newer connection of the same peer fences the older one.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Raw

from motet.model import OpId
from motet.protocol.frames import Frame

if TYPE_CHECKING:
    from motet.protocol.delivery.spans import Span
    from motet.protocol.delivery.state import ReadWanted
    from motet.protocol.session.messages import CommitRequest
    from motet.protocol.sinks.state import StagedBlock

TimerKey = tuple[Hashable, ...]


# ── inputs ───────────────────────────────────────────────────────────────────────────────


class Dialled(NamedTuple):
    """A connection that we opened to a configured neighbour is up."""

    connection: int
    neighbour: str


class Received(NamedTuple):
    """A frame arrived. The first one of an accepted connection tells who is there."""

    connection: int
    frame: Frame


class Closed(NamedTuple):
    """A connection is gone, for whatever reason."""

    connection: int


class TimerFired(NamedTuple):
    key: TimerKey


class Reconfigured(NamedTuple):
    """The operator has decided who the neighbours are. Whoever hands this in has asked the core
    for its objection first."""

    neighbours: tuple[str, ...]


class Logged(NamedTuple):
    """Of the records that this life has given to our pubend's log, so many are durable."""

    records: int


class LogRead(NamedTuple):
    """Our pubend's log was read, from the beginning of what was wanted, perhaps not to its end."""

    want: ReadWanted
    spans: list[Span]


class Persisted(NamedTuple):
    """The facts of an output that asked for it (`Output.confirm`) are durable."""

    confirmed: int


class StagingChecked(NamedTuple):
    """What a commit names is staged, and whole; or, with an error and its text, it is not."""

    ticket: int
    refused: tuple[str, str] = ("", "")


class RowsRead(NamedTuple):
    """Rows of a block that is being copied, as many as one read gives, from row `at` on."""

    tx: str
    at: int
    bodies: list[Raw]


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


class Fact(NamedTuple):
    """A journaled input: the only thing that changes durable state. Replay applies it again."""

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


LogItem = LogRun | LogStart | LogCut


class CheckStaged(NamedTuple):
    """Is what a commit of a client names staged, and whole? See `StagingChecked`."""

    ticket: int
    client: str
    request: CommitRequest


class ReadStaged(NamedTuple):
    """Read rows of a committed block, from row `at` on: see `RowsRead`."""

    block: StagedBlock
    at: int


class DropStaged(NamedTuple):
    """The log has a block: its files may go, and what was staged for batches before it."""

    block: StagedBlock


StagingWish = CheckStaged | ReadStaged | DropStaged


class SetTimer(NamedTuple):
    key: TimerKey
    at: float


class CancelTimer(NamedTuple):
    key: TimerKey


class Close(NamedTuple):
    """Close a connection, telling the other side why."""

    connection: int
    error: str
    text: str


@dataclass(slots=True, init=False)
class Output:
    """What the driver must do, in the order of the fields.

    1. `persist`: append to the journal and make durable. Nothing below may leave the process
       before that; a failure here ends the process.
    2. `send`: frames to neighbours, and
    3. `deliver`: frames to clients. Per connection they leave in the order of the steps.
    `log` goes to the pubend's log, which answers with `Logged`; `reads` are answered with
    `LogRead`, and `staged` are answered too. Nothing of this output waits for them.
    4. `timers`: set and cancelled in list order; setting a key again replaces it.
    5. `close`: after what was sent before on that connection.
    `forgotten` are sessions (client, epoch) that the pubend's log need not remember when `persist`
    is durable; before, a restart might bring them back.
    `confirm`, unless it is 0, comes back with `Persisted` when `persist` is durable.
    """

    persist: list[Fact]
    send: list[tuple[int, Frame]]
    deliver: list[tuple[int, Frame]]
    timers: list[SetTimer | CancelTimer]
    close: list[Close]
    log: list[LogItem]
    reads: list[ReadWanted]
    staged: list[StagingWish]
    forgotten: list[tuple[str, str]]
    confirm: int

    def __init__(
        self,
        persist: list[Fact] | None = None,
        send: list[tuple[int, Frame]] | None = None,
        deliver: list[tuple[int, Frame]] | None = None,
        timers: list[SetTimer | CancelTimer] | None = None,
        close: list[Close] | None = None,
    ) -> None:
        # By hand: one is made for every step, and this takes half as long as default factories.
        self.persist = persist or []
        self.send = send or []
        self.deliver = deliver or []
        self.timers = timers or []
        self.close = close or []
        self.log = []
        self.reads = []
        self.staged = []
        self.forgotten = []
        self.confirm = 0
