"""The records of a pubend's log, as msgpack.

The kind of a record is the kind that the log stores with it. Records with ticks form the stream:
runs of events, starts of subscriptions, cuts of transactions, and predecessors of publishers that
have moved. The others are the pubend's own: they hold state that could otherwise be found only by
reading everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec import Raw, Struct

from motet.model import OpId

RUN: Final = 1
START: Final = 2
CUT: Final = 3
CURSOR: Final = 4
ENDED: Final = 5
LOSS: Final = 6
CHECKPOINT: Final = 7
PREDECESSORS: Final = 8

Bodies = Sequence[bytes | Raw]
"""Encoded bodies of events."""


class EventRun(Struct, array_like=True, frozen=True, gc=False):
    """Consecutive events of one publisher's session, with consecutive ticks and sequences."""

    first_tick: int
    publisher: str
    epoch: str
    first_sequence: int
    count: int
    packed: Raw
    """All bodies as one msgpack array: it can be sent on without decoding any of them."""

    @staticmethod
    def of(
        first_tick: int, publisher: str, epoch: str, first_sequence: int, bodies: Bodies
    ) -> EventRun:
        data = b"".join(bodies)
        return EventRun(
            first_tick, publisher, epoch, first_sequence, len(bodies), packed(len(bodies), data)
        )

    @property
    def last_tick(self) -> int:
        return self.first_tick + self.count - 1

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.count - 1

    @property
    def size_bytes(self) -> int:
        return len(memoryview(self.packed))

    @property
    def bodies(self) -> list[Raw]:
        """Every body as it came; views, which keep all of them alive."""
        return _decode_bodies(self.packed)

    def part(self, since: int, upto: int) -> EventRun:
        """The events from tick `since` to tick `upto`, of which there is at least one."""
        skipped = max(since - self.first_tick, 0)
        count = min(upto, self.last_tick) - self.first_tick + 1 - skipped
        return self if count == self.count else self.piece(self.bodies, skipped, count)

    def piece(self, bodies: Bodies, skipped: int, count: int) -> EventRun:
        """A run of `count` of these bodies, which are those of this run."""
        return EventRun.of(
            self.first_tick + skipped,
            self.publisher,
            self.epoch,
            self.first_sequence + skipped,
            list(islice(bodies, skipped, skipped + count)),
        )


class Start(Struct, array_like=True, frozen=True, gc=False):
    """A subscription starts after this tick; or, if tentative, after a later cut."""

    tick: int
    op: OpId
    tentative: bool = False


class StoredCut(Struct, array_like=True, frozen=True):
    """A transaction takes effect. Each switch is a subscription, the tick after which it begins or
    ends, and whether it ends. The events up to tick `last` are the transaction's: they belong to no
    epoch, and their sequences count from 1. `pubends` are all that have such events; if there are
    several, `orders` has the place of each of ours among all of them. A batch of a sink has no
    `number`, because no decision of several brokers is involved."""

    tick: int
    tx: str
    number: int
    switches: tuple[tuple[OpId, int, bool], ...]
    pubends: tuple[str, ...]
    last: int
    orders: tuple[str, ...] = ()


class StoredPredecessors(Struct, array_like=True, frozen=True):
    """Earlier events of a publisher are in other pubends, each up to a tick. `cut` is the number of
    a decision and a tick of ours: all decisions up to the number had cut here by then. `trail` has
    further pubends, whose events every subscriber had acknowledged: readers of logs may not have
    them yet."""

    tick: int
    publisher: str
    predecessors: tuple[tuple[str, int], ...]
    cut: tuple[int, int] = (0, 0)
    trail: tuple[tuple[str, int], ...] = ()


class Cursor(Struct, array_like=True, frozen=True, gc=False):
    """How far the owner of a named cursor has come; without a tick, the cursor was removed."""

    name: str
    tick: int | None
    touched_s: float


class EndedSessions(Struct, array_like=True, frozen=True):
    """These sessions (publisher, epoch) publish nothing any more."""

    sessions: list[tuple[str, str]]


class Loss(Struct, array_like=True, frozen=True, gc=False):
    """Events up to this tick were removed while still owed."""

    upto: int
    events: int


class Checkpoint(Struct, array_like=True, frozen=True):
    """The first record of every segment: the state of all segments before, except the stream."""

    pubend: str
    last_tick: int
    began_s: float
    acknowledged: int
    lost_upto: int
    lost_events: int
    events: int
    size_bytes: int
    """The total of the whole stream so far, kept or not."""
    published: dict[str, dict[str, int]]
    """By publisher and epoch, the last sequence."""
    cursors: dict[str, Cursor]
    skipped: dict[str, dict[str, list[int]]] = {}
    """By publisher and epoch, the last sequences that are not in the log."""
    destroyed_upto: int = 0
    """Everything up to this tick was in a log that was destroyed before this one began."""
    last_cut: int = 0
    """The highest number of a cut."""
    block: tuple[int, int] = (0, 0)
    """The tick of the last cut, and the last tick of its events."""


Ticked = EventRun | Start | StoredCut | StoredPredecessors
"""A record of the stream."""

encode: Final = msgspec.msgpack.Encoder().encode

_decode_bodies: Final = msgspec.msgpack.Decoder(list[Raw]).decode

DECODERS: Final = {
    RUN: msgspec.msgpack.Decoder(EventRun).decode,
    START: msgspec.msgpack.Decoder(Start).decode,
    CUT: msgspec.msgpack.Decoder(StoredCut).decode,
    CURSOR: msgspec.msgpack.Decoder(Cursor).decode,
    ENDED: msgspec.msgpack.Decoder(EndedSessions).decode,
    LOSS: msgspec.msgpack.Decoder(Loss).decode,
    CHECKPOINT: msgspec.msgpack.Decoder(Checkpoint).decode,
    PREDECESSORS: msgspec.msgpack.Decoder(StoredPredecessors).decode,
}

TICKED: Final = frozenset({RUN, START, CUT, PREDECESSORS})


ONE: Final = b"\x91"
"""The msgpack head of an array of one body."""


def packed(count: int, data: bytes | memoryview) -> Raw:
    """The msgpack array of these bodies, which are given concatenated."""
    if count < 16:
        head = bytes((0x90 | count,))
    elif count < 1 << 16:
        head = b"\xdc" + count.to_bytes(2, "big")
    else:
        head = b"\xdd" + count.to_bytes(4, "big")
    return Raw(head + data)


def first_tick_of(record: Ticked) -> int:
    return record.first_tick if type(record) is EventRun else record.tick  # type: ignore[union-attr]


def last_tick_of(record: Ticked) -> int:
    return record.last_tick if type(record) is EventRun else record.tick  # type: ignore[union-attr]


def count_events(records: Iterable[Ticked]) -> int:
    return sum(each.count for each in records if type(each) is EventRun)
