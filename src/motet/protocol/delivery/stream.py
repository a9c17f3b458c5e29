"""The stream of one pubend at one broker, and the effects that its driver carries out.

Missing ticks are requested upstream. `Curiosity` belongs to the subend: it is given the missing
ranges and decides which to request now. `AskedRanges` belongs to the input stream: it suppresses
duplicate requests. `OutStream` is what one neighbour was told, wants, and has acknowledged.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from msgspec import Struct

from motet.model import OpId
from motet.protocol.contract import CancelTimer, SetTimer
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.messages import Delivered, DeliveryFrame
from motet.protocol.delivery.spans import (
    Memory,
    PredecessorRecord,
    Range,
    RangeSet,
    Record,
    Span,
    StartRecord,
)
from motet.protocol.delivery.subend import Subend


class Liveness(NamedTuple):
    """The parameters of the paper's section 3.2. Requests that are not answered back off."""

    gap_s: float = 0.2
    """Age at which a gap is requested: before, frames may only be out of order."""
    nack_repeat_s: float = 0.6
    """The minimum time before a request is repeated; the actual time is estimated."""
    nack_repeat_most_s: float = 10.0
    ack_expected_s: float = 10.0
    delay_s: float = float("inf")
    """How far a subend may trail the clock before it asks. Infinite: wait for the pubend."""
    ack_delay_s: float = 0.25
    """How long an acknowledgement may wait to be consolidated with others."""
    silence_s: float = 0.01
    """Minimum time between two requests for silence of a pubend, for clients in total order."""
    gone_s: float = 30.0
    """How long merges and blocks wait for a pubend that has become unreachable."""


class Patience:
    """The time after which an answer is overdue, estimated like TCP's retransmission timeout."""

    __slots__ = ("_least_s", "_most_s", "_smoothed_s", "_variance_s")

    def __init__(self, liveness: Liveness) -> None:
        self._least_s = liveness.nack_repeat_s
        self._most_s = liveness.nack_repeat_most_s
        self._smoothed_s: float | None = None
        self._variance_s = 0.0

    def sample(self, round_trip_s: float) -> None:
        if self._smoothed_s is None:
            self._smoothed_s = round_trip_s
            self._variance_s = round_trip_s / 2
            return
        self._variance_s += (abs(self._smoothed_s - round_trip_s) - self._variance_s) / 4
        self._smoothed_s += (round_trip_s - self._smoothed_s) / 8

    def wait_s(self, tries: int) -> float:
        """How long to wait after asking `tries` times."""
        base = 0.0 if self._smoothed_s is None else self._smoothed_s + 4 * self._variance_s
        backoff: float = 2.0 ** min(tries - 1, 16)
        return min(max(base, self._least_s) * backoff, self._most_s)


class MissingRange(Struct):
    """A missing range. `at`: when to request it next."""

    since: int
    upto: int
    at: float
    asked_at: float = 0.0
    tries: int = 0


MOST_ASKS = 64
"""Missing ranges tracked at once. Others wait until some of these are filled."""
MOST_ASKED = 256
"""Requested ranges that an input stream remembers."""
MOST_RANGES = 64
"""Ranges in one nack."""


class Curiosity:
    __slots__ = ("_asks", "_liveness", "_patience", "_synced")

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._patience = Patience(liveness)
        self._asks: list[MissingRange] = []
        self._synced: tuple[list[Range], list[Range]] = ([], [])
        """What `sync` was told last: nearly always the same again."""

    def __bool__(self) -> bool:
        return bool(self._asks)

    def sync(self, patient: list[Range], urgent: list[Range], now: float) -> None:
        """Set the missing ranges: `patient` ones may still arrive unasked, `urgent` ones are
        wanted at once. Ranges in neither list are not wanted any more."""
        if (patient, urgent) == self._synced:
            return
        self._synced = (patient, urgent)
        if not patient and not urgent:
            if self._asks:
                self._note_answers(RangeSet(), now)
                self._asks = []
            return
        hurried = RangeSet(urgent)
        wanted = RangeSet(patient)
        for low, high in urgent:
            wanted.add(low, high)
        self._note_answers(wanted, now)
        kept: list[MissingRange] = []
        for ask in self._asks:
            for low, high in wanted.overlaps(ask.since, ask.upto):
                kept.append(MissingRange(low, high, ask.at, ask.asked_at, ask.tries))
                wanted.remove(low, high)
        for ask in kept:
            if not ask.tries and hurried.overlaps(ask.since, ask.upto):
                ask.at = min(ask.at, now)
        for low, high in wanted:
            for begin, end in hurried.overlaps(low, high):
                kept.append(MissingRange(begin, end, now))
            for begin, end in hurried.missing(low, high):
                kept.append(MissingRange(begin, end, now + self._liveness.gap_s))
        self._asks = sorted(kept, key=lambda ask: ask.since)[:MOST_ASKS]

    def _note_answers(self, wanted: RangeSet, now: float) -> None:
        """The answer to a range requested exactly once is a sample of the round-trip time."""
        for ask in self._asks:
            if ask.tries == 1 and wanted.missing(ask.since, ask.upto):
                self._patience.sample(now - ask.asked_at)
                return

    def hurry(self, upto: int, now: float) -> None:
        """Everything up to a tick should have arrived: request it now, unless just requested."""
        for ask in self._asks:
            recent = ask.tries and now - ask.asked_at < self._liveness.nack_repeat_s
            if ask.since <= upto and not recent:
                ask.at = min(ask.at, now)
                ask.tries = 0

    def heard(self, now: float) -> None:
        """Upstream is alive: an overdue answer was lost, so there is no use in backing off."""
        for ask in self._asks:
            if ask.tries > 1 and ask.asked_at < now:
                ask.tries = 1
                ask.at = min(ask.at, max(now, ask.asked_at + self._patience.wait_s(1)))

    def go_on(self, since: int, upto: int, now: float, end: int) -> None:
        """An answer ended at `upto` because one piece was full: request the rest at once, up to the
        `end` of what it answers. An answer without a missing tick is a duplicate, and its rest has
        been requested already."""
        if any(ask.since <= upto and ask.upto >= since for ask in self._asks):
            for ask in self._asks:
                if ask.upto > upto and ask.since <= end:
                    ask.at, ask.tries = now, 0

    def go_on_behind(self, since: int, upto: int, now: float) -> None:
        """The same where each range is read from its beginning: only ranges whose beginning has
        arrived continue."""
        for ask in self._asks:
            if since <= ask.since <= upto < ask.upto:
                ask.at, ask.tries = now, 0

    def due(self, now: float) -> list[Range]:
        """The ranges to request now; each repetition waits longer."""
        found: list[Range] = []
        for ask in self._asks:
            if ask.at <= now and len(found) < MOST_RANGES:
                found.append((ask.since, ask.upto))
                ask.tries += 1
                ask.asked_at = now
                ask.at = now + self._patience.wait_s(ask.tries)
        return found

    def next_at(self) -> float | None:
        return min((ask.at for ask in self._asks), default=None)


class SilenceRequests:
    """Requests for silence beyond the frontier of a pubend, because merges wait for it.

    They are not sent for each tick, but at intervals for all ticks that came meanwhile. If the
    pubend does not answer, they back off like any other request."""

    __slots__ = ("_asked", "_asked_at", "_frontier", "_liveness", "_since", "_tries")

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._frontier = 0
        self._asked = 0
        self._asked_at = -float("inf")
        self._since: float | None = None
        """When the first request since the last answer was sent."""
        self._tries = 0

    def heard(self, frontier: int) -> None:
        """The pubend is known to have reached this tick."""
        if frontier > self._frontier:
            self._frontier = frontier
            self._since = None
            self._tries = 0

    def due_at(self, upto: int) -> float:
        """When to request silence up to a tick beyond the frontier."""
        liveness = self._liveness
        overdue = self._since is not None and (
            self._asked_at - self._since >= liveness.nack_repeat_s
        )
        if upto > self._asked and not overdue:
            return self._asked_at + liveness.silence_s
        patience_s = liveness.nack_repeat_s * 2.0 ** min(self._tries, 16)
        return self._asked_at + min(patience_s, liveness.nack_repeat_most_s)

    def ask(self, upto: int, now: float) -> None:
        if self._since is None:
            self._since = now
        elif now - self._since >= self._liveness.nack_repeat_s:
            self._tries += 1
        self._asked, self._asked_at = max(upto, self._asked), now

    def hurry(self) -> None:
        """The pubend, or the path to it, is back: ask at once."""
        self._asked_at = -float("inf")
        self._since = None
        self._tries = 0


class AskedRanges:
    """The C ticks of an input stream. They are forgotten after the minimum time of repetition, so
    that a repeated request passes."""

    __slots__ = ("_entries", "_keep_s")

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._entries: deque[tuple[float, int, int]] = deque(maxlen=MOST_ASKED)

    def fresh(self, ranges: list[Range], now: float) -> list[Range]:
        """The parts that were not requested recently; marks them as requested."""
        self._expire(now)
        already = RangeSet((low, high) for _, low, high in self._entries)
        found = [part for low, high in ranges for part in already.missing(low, high)]
        self._entries.extend((now, low, high) for low, high in found)
        return found

    def fresh_heads(self, ranges: list[Range], now: float) -> list[Range]:
        """The ranges whose first tick was not requested recently; marks them as requested."""
        self._expire(now)
        begun = {low for _, low, _ in self._entries}
        found = [each for each in ranges if each[0] not in begun]
        self._entries.extend((now, low, high) for low, high in found)
        return found

    def _expire(self, now: float) -> None:
        entries = self._entries
        # A repetition exactly on time must pass despite floating-point rounding.
        while entries and now - entries[0][0] >= self._keep_s * 0.99:
            entries.popleft()

    def answered(self, since: int, upto: int, cut: bool) -> None:
        """An answer came. If it was cut, ranges above it may be requested again; but not if it is
        a duplicate: then each duplicate would cause another request and another answer."""
        entries = self._entries
        if not entries:
            return
        cut = cut and any(low <= upto and high >= since for _, low, high in entries)
        kept: list[tuple[float, int, int]] = []
        for at, low, high in entries:
            if high < since or (low > upto and not cut):
                kept.append((at, low, high))
                continue
            rest = RangeSet([(low, high)])
            rest.remove(since, max(high, upto) if cut else upto)
            kept.extend((at, begin, end) for begin, end in rest)
        entries.clear()
        entries.extend(kept)

    def begun(self, since: int, upto: int) -> None:
        """An answer came: it settles the requests whose first tick it contains, and no others."""
        kept = [each for each in self._entries if not since <= each[1] <= upto]
        self._entries.clear()
        self._entries.extend(kept)

    def clear(self) -> None:
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


MOST_CURIOUS = 64
"""Open requests remembered per neighbour. Surplus ones are dropped; the neighbour repeats them."""


class OutStream:
    """One neighbour's view of a stream. Silence is sent lazily: `since` to `quiet` is contiguous
    silence that was not sent yet, and widens the next span that is."""

    __slots__ = ("acked", "curious", "deep", "inquires", "quiet", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        self.quiet = since - 1
        self.acked: int | None = None
        """None: no acknowledgement since this state was created."""
        self.inquires = False
        """The neighbour has asked which of its subscriptions have started."""
        self.curious = RangeSet()
        self.deep: list[tuple[int, int, int]] = []
        """Requests for knowledge as of a tick: lowest, highest, as of."""

    def silent(self, since: int, upto: int) -> None:
        """Nothing in this range is for the neighbour."""
        if since <= self.quiet + 1:
            if upto > self.quiet:
                self.quiet = upto
        else:  # after a gap: silence before it will be requested together with the gap
            self.since, self.quiet = since, upto

    def telling(self, since: int, upto: int) -> int:
        """A span is about to be sent: its beginning, including unsent silence before it."""
        begin = min(self.since, since) if since <= self.quiet + 1 else since
        if upto >= self.quiet:
            self.since, self.quiet = upto + 1, upto
            return begin
        return since  # late: newer silence stays unsent

    def untold(self) -> Range | None:
        """Silence to send before an acknowledgement is requested."""
        if self.quiet < self.since:
            return None
        found = (self.since, self.quiet)
        self.since = self.quiet + 1
        return found

    def want(self, low: int, high: int, asof: int) -> None:
        if asof:
            self.deep = [each for each in self.deep if (each[0], each[1]) != (low, high)]
            self.deep.append((low, high, asof))
            del self.deep[:-MOST_CURIOUS]
        else:
            self.curious.add(low, high)
            self.curious.forget_lowest(MOST_CURIOUS)

    def wanted(self, since: int, upto: int, asof: int) -> list[Range]:
        """The requested parts of a repeated span; removes them from the requests."""
        parts = self.curious.overlaps(since, upto) if self.curious else []
        if asof and self.deep:
            found = RangeSet(parts)
            kept: list[tuple[int, int, int]] = []
            for low, high, needed in self.deep:
                if needed > asof or low > upto or high < since:
                    kept.append((low, high, needed))
                    continue
                found.add(max(low, since), min(high, upto))
                kept += [(low, since - 1, needed)] if low < since else []
                kept += [(upto + 1, high, needed)] if high > upto else []
            self.deep = kept
            parts = list(found)
        for low, high in parts:
            self.curious.remove(low, high)
        self.curious.forget_lowest(MOST_CURIOUS)
        return parts

    def need(self, low: int) -> None:
        """A client behind the neighbour reads the past: acknowledged ticks are wanted again."""
        if self.acked is not None:
            self.acked = min(self.acked, low - 1)

    def acknowledge(self, upto: int) -> None:
        self.acked = upto if self.acked is None else max(self.acked, upto)


INFINITY = float("inf")


class Limits(NamedTuple):
    """Bounds per pubend, per answer and per client. Smaller values are always correct."""

    memory_events: int = 8192
    memory_bytes: int = 8 << 20
    piece_events: int = 1024
    piece_bytes: int = 512 << 10
    window_events: int = 4096
    """Maximum number of unacknowledged events of a client. A live batch may exceed it."""
    known_ranges: int = 64


class ReadWanted(NamedTuple):
    """Read a range of a pubend's log, at most one piece from its beginning, and pass it to
    `read_done`. Trimmed ticks are a lost span."""

    pubend: str
    since: int
    upto: int
    most_events: int
    most_bytes: int


class SilenceWanted(NamedTuple):
    """A client or neighbour waits until the pubend has passed this tick, whatever its clock says:
    make durable that no further event gets a tick up to there, then call `advance`."""

    pubend: str
    upto: int


class StartSeen(NamedTuple):
    """A subscription at this broker is owed everything above this tick of the pubend. Must be
    durable before `deliver` is sent, and be passed to `start` after a restart."""

    op: OpId
    pubend: str
    tick: int
    tentative: bool = False


class SwitchSeen(NamedTuple):
    """A cut was seen: a subscription at this broker begins, or ends, above this tick. Must be
    durable before anything above it is acknowledged, and be passed to `switch` after a restart."""

    op: OpId
    pubend: str
    tick: int
    ended: bool


class Floor(NamedTuple):
    """Every client of this broker has acknowledged the pubend up to here; 0: the floor has not
    risen, and only cursors are new. Must be durable before `send` is sent, and be passed to
    `restore` after a restart: without it, silence that the pubend has trimmed since looks like loss
    to a client with an old cursor."""

    pubend: str
    upto: int
    cursors: dict[str, int]
    """Positions of durable clients that are beyond `upto`, or still read the past."""
    passed: tuple[str, ...] = ()
    """Clients that have moved here and have now passed what they had doubts about."""


class Effects(Struct):
    """The driver's tasks: first make `floors`, `started` and `switched` durable, then the rest."""

    now: float
    floors: list[Floor] = []
    started: list[StartSeen] = []
    switched: list[SwitchSeen] = []
    send: list[tuple[str, DeliveryFrame]] = []
    deliver: list[tuple[str, Delivered]] = []
    timers: list[SetTimer | CancelTimer] = []
    reads: list[ReadWanted] = []
    silences: list[SilenceWanted] = []
    hurried: dict[str, None] = {}
    """Clients of this broker that are asked for their acknowledgements."""


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
        "doubtful",
        "expected",
        "expecting",
        "floor",
        "frontier",
        "held",
        "hosted",
        "inquired_at",
        "inquiries",
        "known",
        "last_cut",
        "last_event",
        "lasting",
        "members",
        "memory",
        "outs",
        "pubend",
        "silence_requests",
        "starts",
        "subend",
        "wake_at",
        "wondered_at",
    )

    def __init__(self, pubend: str, interest: Interest, liveness: Liveness, limits: Limits) -> None:
        self.pubend = pubend
        self.hosted = False
        """Is its log at this broker? Then `frontier` is the last decided tick."""
        self.last_event = 0
        """Hosted pubend: the tick of its last event; after a restart, that of its last record."""
        self.frontier = 0
        """The highest tick heard of: everything up to it is, or will be, known somewhere."""
        self.known = RangeSet()
        """Ticks that have passed through, still in memory or not: each is forwarded once as new. If
        there are too many gaps, the lowest count as known; a receiver can request them."""
        self.memory = Memory(limits.memory_events, limits.memory_bytes)
        self.cleared = 0
        """Up to here every start record for this broker's clients has been seen: in contiguous
        knowledge, or because the pubend's broker said so."""
        self.starts: dict[OpId, StartRecord] = {}
        """At the pubend's broker: start records that the subscribers' brokers may not know."""
        self.held: dict[str, None] = {}
        """Clients that get nothing until it is clear which of their subscriptions began first."""
        self.inquired_at = -INFINITY
        """When the pubend's broker was last asked which subscriptions have started."""
        self.inquiries = 0
        """How often it was asked without an answer."""
        self.outs: dict[str, OutStream] = {}
        self.members = False
        """Has a single member of a neighbouring cell asked something?"""
        self.subend = Subend(pubend, interest, limits.window_events, self.memory)
        self.curiosity = Curiosity(liveness)
        self.deep = Curiosity(liveness)
        """For subscriptions that want events older than themselves."""
        self.silence_requests = SilenceRequests(liveness)
        self.asked = AskedRanges(liveness.nack_repeat_s)
        self.deep_asked = AskedRanges(liveness.nack_repeat_s)
        self.expecting = False
        """Hosted pubend: the timer for overdue acknowledgements is set."""
        self.expected = 0
        """Hosted pubend: the tick that must be acknowledged before that timer fires."""
        self.floor = 0
        """Durable: this broker's clients have acknowledged everything up to here."""
        self.ack_sent = -1
        self.alone = False
        """Unreachable for so long that merges and blocks do not wait for it any more."""
        self.ack_armed = False
        self.lasting = False
        self.doubtful: dict[str, None] = {}
        """Clients that have moved here and must read a range from the log. After a restart each
        begins again where it had stood when it arrived, until it is durable that it has passed."""
        """Some of this broker's clients here are durable."""
        self.delay_armed = False
        self.wake_at: float | None = None
        self.last_cut = (0, 0)
        """Hosted pubend: see `AckExpected.cut`."""
        self.wondered_at: float | None = None
        """Since when a block waits to hear whether the pubend has cut for its transaction."""

    @property
    def is_calm(self) -> bool:
        """All connected clients are at the horizon, the horizon is at the frontier, and nothing is
        waited for or requested."""
        subend = self.subend
        return (
            (not subend.live or subend.horizon == self.frontier)
            and self.wake_at is None
            and not (subend.behind or subend.merged or self.held)
            and not (self.curiosity or self.deep)
            and self.wondered_at is None
        )

    def note(self, records: tuple[Record, ...]) -> None:
        """Hosted pubend: starts that other brokers are told until they have acknowledged. A
        subscription that begins with a cut starts at the tick of its switch."""
        for record in records:
            if isinstance(record, PredecessorRecord):
                continue
            if isinstance(record, StartRecord):
                started = [record]
            else:
                begun = (switch for switch in record.switches if not switch[2])
                started = [StartRecord(tick, op) for op, tick, _ in begun]
            for each in started:  # the last start counts, and moves to the end
                self.starts.pop(each.op, None)
                self.starts[each.op] = each

    def clear(self, span: Span) -> None:
        """Contiguous knowledge includes all start records."""
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
