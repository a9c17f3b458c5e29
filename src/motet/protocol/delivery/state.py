"""All that is known of one pubend at one broker, and what the machine asks its driver to do."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from motet.model import OpId
from motet.protocol.contract import CancelTimer, SetTimer
from motet.protocol.delivery.curiosity import Asked, Curiosity, Hush, Liveness
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.memory import Memory
from motet.protocol.delivery.messages import Delivered, DeliveryFrame
from motet.protocol.delivery.outstream import OutStream
from motet.protocol.delivery.ranges import RangeSet
from motet.protocol.delivery.spans import Record, Span, StartRecord
from motet.protocol.delivery.subend import Subend

INFINITY = float("inf")


class Limits(NamedTuple):
    """Bounds per pubend, per answer and per client. Smaller is always correct."""

    memory_events: int = 8192
    memory_bytes: int = 8 << 20
    piece_events: int = 1024
    piece_bytes: int = 512 << 10
    window_events: int = 4096
    """Events that a client may have received and not acknowledged. A live batch may exceed it."""
    known_ranges: int = 64


class ReadWanted(NamedTuple):
    """Read a range of a pubend's log, at most one piece from its beginning, and hand it to
    `read_done`. What is trimmed is a span that is lost."""

    pubend: str
    since: int
    upto: int
    most_events: int
    most_bytes: int


class SilenceWanted(NamedTuple):
    """Somebody waits until the pubend has passed this tick, whatever its clock says: make durable
    that no event gets a tick up to there, then call `advance`."""

    pubend: str
    upto: int


class Started(NamedTuple):
    """A subscription of a client of ours is owed everything above this tick of the pubend. Must
    be durable before what is in `deliver` leaves, and be given to `start` after a restart."""

    client: str
    op: OpId
    pubend: str
    tick: int
    tentative: bool = False


class Switched(NamedTuple):
    """A cut was met: a subscription of a client of ours begins, or ends, above this tick. Must be
    durable before anything above it is acknowledged, and be given to `switch` after a restart."""

    op: OpId
    pubend: str
    tick: int
    ended: bool


class Floor(NamedTuple):
    """Every client of this broker is done with the pubend up to here. Must be durable before
    what is in `send` leaves, and be given to `restore` after a restart: without it, silence that
    the pubend has forgotten since looks like loss to a client with an old cursor."""

    pubend: str
    upto: int
    cursors: dict[str, int]
    """By durable client that is not there but further, or behind in the past: where it is."""


class Effects(Struct):
    """What the driver must do: first make `floors` and `started` durable, then the rest."""

    floors: list[Floor] = []
    started: list[Started] = []
    switched: list[Switched] = []
    send: list[tuple[str, DeliveryFrame]] = []
    deliver: list[tuple[str, Delivered]] = []
    timers: list[SetTimer | CancelTimer] = []
    reads: list[ReadWanted] = []
    silences: list[SilenceWanted] = []
    hurried: dict[str, None] = {}
    """Clients of ours whose acknowledgement somebody waits for."""


class Stream:
    """The input stream of a pubend, its output streams, and its subend."""

    __slots__ = (
        "ack_armed",
        "ack_sent",
        "alone",
        "asked",
        "cleared",
        "curiosity",
        "deep",
        "deep_asked",
        "delay_armed",
        "expected",
        "expecting",
        "floor",
        "frontier",
        "held",
        "hosted",
        "hush",
        "inquired_at",
        "inquiries",
        "known",
        "last_cut",
        "lasting",
        "members",
        "memory",
        "outs",
        "pubend",
        "starts",
        "subend",
        "wake_at",
        "wondered_at",
    )

    def __init__(self, pubend: str, interest: Interest, liveness: Liveness, limits: Limits) -> None:
        self.pubend = pubend
        self.hosted = False
        """Is its log here? Then `frontier` is the last tick that is decided."""
        self.frontier = 0
        """The highest tick heard of: everything up to it is, or will be, known somewhere."""
        self.known = RangeSet()
        """What has come past, whether or not it is still remembered: new knowledge is passed on
        once. A gap that is older than many others may be taken for known; who needs it asks."""
        self.memory = Memory(limits.memory_events, limits.memory_bytes)
        self.cleared = 0
        """Up to here every start record for clients of ours has been seen: by contiguous
        knowledge, or because the pubend's broker said so."""
        self.starts: dict[OpId, StartRecord] = {}
        """At the pubend's broker: start records that are perhaps not known where they belong."""
        self.held: dict[str, None] = {}
        """Clients that get nothing before it is clear which of their subscriptions began first."""
        self.inquired_at = -INFINITY
        """When it was last asked which subscriptions have started."""
        self.inquiries = 0
        """How often it was asked in vain."""
        self.outs: dict[str, OutStream] = {}
        self.members = False
        """Has a single member of a neighbouring cell asked something?"""
        self.subend = Subend(pubend, interest, limits.window_events, self.memory)
        self.curiosity = Curiosity(liveness)
        self.deep = Curiosity(liveness)
        """For subscriptions that want what is older than themselves."""
        self.hush = Hush(liveness)
        self.asked = Asked(liveness.nack_repeat_s)
        self.deep_asked = Asked(liveness.nack_repeat_s)
        self.expecting = False
        """A time is set at which acknowledgements of a pubend of ours are due."""
        self.expected = 0
        """The last tick that a pubend of ours expects to be acknowledged soon."""
        self.floor = 0
        """Durable: clients of ours are done with everything up to here."""
        self.ack_sent = -1
        self.alone = False
        """It cannot be reached, and clients in total order do not wait for it any more."""
        self.ack_armed = False
        self.lasting = False
        """Some clients of ours are durable."""
        self.delay_armed = False
        self.wake_at: float | None = None
        self.last_cut = (0, 0)
        """Of a pubend of ours: see `AckExpected.cut`."""
        self.wondered_at: float | None = None
        """Since when somebody waits to hear whether the pubend has cut for a transaction."""

    @property
    def is_calm(self) -> bool:
        """Everybody who is here stands at the horizon, and that where the stream is; nobody waits,
        nothing was asked for."""
        subend = self.subend
        return (
            (not subend.live or subend.horizon == self.frontier)
            and self.wake_at is None
            and not (subend.behind or subend.merged or self.held)
            and not (self.curiosity or self.deep)
            and self.wondered_at is None
        )

    def note(self, records: tuple[Record, ...]) -> None:
        """Of a pubend of ours: starts that others must hear of until they have acknowledged. What
        begins with a cut starts there."""
        for record in records:
            if isinstance(record, StartRecord):
                started = [record]
            else:
                begun = (switch for switch in record.switches if not switch[2])
                started = [StartRecord(tick, op) for op, tick, _ in begun]
            for each in started:  # the last one counts, in the place where it comes
                self.starts.pop(each.op, None)
                self.starts[each.op] = each

    def clear(self, span: Span) -> None:
        """Contiguous knowledge leaves no doubt about start records."""
        if span.since > self.cleared + 1 or span.lost:
            return
        self.cleared = max(self.cleared, span.upto)
        while (beyond := self.memory.covering(self.cleared + 1)) is not None:
            if beyond.lost:
                return
            self.cleared = beyond.upto

    def out(self, neighbour: str, since: int) -> OutStream:
        found = self.outs.get(neighbour)
        if found is None:
            found = self.outs[neighbour] = OutStream(since)
        return found
