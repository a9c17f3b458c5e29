"""What has passed between a broker and its neighbours: how often, and how much was asked for.

Only for those who look in. The last nacks are kept one by one, with their times, because a count
alone does not show whether questions came once and together, or again and again.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from motet.protocol.delivery.messages import (
    AckExpected,
    AckUp,
    DeliveryFrame,
    Knowledge,
    Nack,
)

Way = Literal["sent", "received"]

RECENT_NACKS = 256


class NackSeen(NamedTuple):
    """One nack, at a time of the broker's clock."""

    at: float
    way: Way
    neighbour: str
    pubend: str
    ranges: int
    ticks: int


class Passed(Struct):
    """Frames in one direction."""

    knowledge: int = 0
    """First-time knowledge."""
    answers: int = 0
    """Knowledge that somebody has asked for."""
    events_again: int = 0
    """Events in those answers."""
    nacks: int = 0
    nack_ranges: int = 0
    nack_ticks: int = 0
    inquiries: int = 0
    """Questions which subscriptions have started."""
    acks: int = 0
    acks_expected: int = 0

    def add(self, frame: DeliveryFrame) -> None:
        if type(frame) is Knowledge:
            if frame.again:
                self.answers += 1
                self.events_again += len(frame.span.ticks)
            else:
                self.knowledge += 1
        elif type(frame) is AckUp:
            self.acks += 1
        elif type(frame) is AckExpected:
            self.acks_expected += 1


class Tally:
    def __init__(self) -> None:
        self.sent = Passed()
        self.received = Passed()
        self.recent: deque[NackSeen] = deque(maxlen=RECENT_NACKS)

    def note(self, way: Way, neighbour: str, frame: DeliveryFrame, now: float) -> None:
        passed = self.sent if way == "sent" else self.received
        if type(frame) is not Nack:
            passed.add(frame)
        elif frame.ranges:
            ticks = sum(high - low + 1 for low, high in frame.ranges)
            passed.nacks += 1
            passed.nack_ranges += len(frame.ranges)
            passed.nack_ticks += ticks
            seen = NackSeen(now, way, neighbour, frame.pubend, len(frame.ranges), ticks)
            self.recent.append(seen)
        else:
            passed.inquiries += 1

    def account(self) -> dict[str, Any]:
        """Plain values only."""
        return {
            "sent": _plain(self.sent),
            "received": _plain(self.received),
            "recent_nacks": [each._asdict() for each in self.recent],
        }


def _plain(passed: Passed) -> dict[str, int]:
    return {name: getattr(passed, name) for name in passed.__struct_fields__}
