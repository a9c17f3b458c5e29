"""When the word of a cell's member counts.

A mate that has lost its head continues with old filters. Its silence may hide events of
subscriptions that it does not know, and it may acknowledge events that they are owed. So a mate's
silence counts only once it certainly knows every subscription that we have sent to its cell, and
its acknowledgement only once it certainly knows every subscription that its cell has sent to us.

What a mate says too early may be believed later. As long as it mirrors its head without a break,
the head sends a subscription on only when the mate has it, so whatever the mate said before
concerns ticks before that subscription began. When a later frame of the same `sync` shows that
the mate has caught up, its doubted frames are believed.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from motet.protocol.cell.messages import MemberFrame
from motet.protocol.delivery.messages import AckExpected, AckUp, DeliveryFrame, Knowledge, Nack
from motet.protocol.delivery.spans import Span
from motet.protocol.link.machine import LinkRecord

MOST_DOUBTED = 64
"""Doubted frames kept per member. Frames that are dropped are asked for again."""


class Doubt(NamedTuple):
    """`need` is what the speaker must know, in a pair of lives, before `frames` count."""

    life: int
    known: int
    need: int
    acks: bool
    frames: tuple[DeliveryFrame, ...]


def counts(said: MemberFrame, record: LinkRecord, need: int) -> bool:
    """Does this count at once? `need` is the last subscription that we may have sent there."""
    if type(said.frame) is Nack:
        return True
    if (said.life, said.known) != (record.incarnation, record.life):
        return False
    if not said.sync:
        return True
    return said.asked >= record.told if type(said.frame) is AckUp else said.told >= need


class Beliefs:
    """Doubted frames, by member and `sync`."""

    def __init__(self) -> None:
        self._doubts: dict[str, tuple[int, deque[Doubt]]] = {}

    def weigh(self, said: MemberFrame, record: LinkRecord, need: int) -> list[DeliveryFrame]:
        """The frames that count now: parts of this one, and those that were doubted before."""
        frames: list[DeliveryFrame] = []
        held = self._doubts.get(said.origin)
        if held is not None:
            frames += self._settle(held, said, record)
        if counts(said, record, need):
            frames.append(said.frame)
            return frames
        frame = said.frame
        if isinstance(frame, AckExpected):
            frames.append(AckExpected(frame.pubend, frame.upto))
        elif isinstance(frame, Knowledge):
            told, silent = _apart(frame)
            frames += told
            self._doubt(said, record, Doubt(said.life, said.known, need, False, silent))
        else:
            doubt = Doubt(said.life, said.known, record.told, True, (frame,))
            self._doubt(said, record, doubt)
        return frames

    def _settle(
        self, held: tuple[int, deque[Doubt]], said: MemberFrame, record: LinkRecord
    ) -> list[DeliveryFrame]:
        sync, doubts = held
        frames: list[DeliveryFrame] = []
        if sync != said.sync:
            del self._doubts[said.origin]
            return frames
        lives = (record.incarnation, record.life)
        if (said.life, said.known) != lives:
            return frames
        kept: deque[Doubt] = deque()
        for each in doubts:
            if (each.life, each.known) != lives:
                continue
            need = max(each.need, record.told) if each.acks else each.need
            if need <= (said.asked if each.acks else said.told):
                frames += each.frames
            else:
                kept.append(each)
        if kept:
            self._doubts[said.origin] = (sync, kept)
        else:
            del self._doubts[said.origin]
        return frames

    def _doubt(self, said: MemberFrame, record: LinkRecord, doubt: Doubt) -> None:
        if not doubt.frames or (said.life, said.known) != (record.incarnation, record.life):
            return  # the heads will exchange their lives; then we ask again
        _, doubts = self._doubts.setdefault(said.origin, (said.sync, deque()))
        doubts.append(doubt)
        if len(doubts) > MOST_DOUBTED:
            doubts.popleft()


def _apart(frame: Knowledge) -> tuple[list[DeliveryFrame], tuple[DeliveryFrame, ...]]:
    """Split a frame: ticks with events or records, and the silent ranges between them."""
    span = frame.span
    if span.lost:
        return [frame], ()
    told: list[DeliveryFrame] = []
    silent: list[DeliveryFrame] = []
    events = zip(span.ticks, span.batch, strict=True)
    held = {tick: Span(tick, tick, [tick], [publication]) for tick, publication in events}
    held |= {each.tick: Span(each.tick, each.tick, [], [], (each,)) for each in span.records}
    since = span.since
    for tick in sorted(held):
        cut = frame.cut and tick == span.upto
        told.append(Knowledge(frame.pubend, held[tick], frame.again, cut, frame.asof))
        if tick > since:
            quiet = Span(since, tick - 1)
            silent.append(Knowledge(frame.pubend, quiet, frame.again, False, frame.asof))
        since = tick + 1
    if since <= span.upto:
        quiet = Span(since, span.upto)
        silent.append(Knowledge(frame.pubend, quiet, frame.again, frame.cut, frame.asof))
    return told, tuple(silent)
