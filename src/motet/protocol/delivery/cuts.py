"""What is known of the cuts of one pubend: where transactions have their events, and how far it is.

All pubends cut in the order of the decisions. So a pubend that has cut for one decision has passed
the cuts of all decisions before it, whether or not it took part in them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from motet.protocol.delivery.spans import CutRecord

MOST_BLOCKS = 1024
"""Blocks of a pubend that are remembered. Those of the events that a broker remembers, and more."""
MOST_CUTS = 2048


class Cuts:
    __slots__ = ("_blocks", "_passed", "_ticks", "top")

    def __init__(self) -> None:
        self._ticks: list[int] = []
        self._blocks: list[CutRecord] = []
        self._passed: list[tuple[int, int]] = []
        """Ascending in both: all cuts of decisions up to a number lie at or below a tick."""
        self.top = 0
        """No event above this tick belongs to a block that is known."""

    def note(self, record: CutRecord) -> None:
        """A cut was seen in the stream."""
        if record.number:  # else it is no decision's: it stands in no order with others
            self.passed(record.number - 1, record.tick - 1)
            self.passed(record.number, record.last)
        if record.last <= record.tick:
            return
        at = bisect_left(self._ticks, record.tick)
        if at < len(self._ticks) and self._ticks[at] == record.tick:
            return
        self._ticks.insert(at, record.tick)
        self._blocks.insert(at, record)
        self.top = max(self.top, record.last)
        if len(self._blocks) > MOST_BLOCKS:
            del self._ticks[0], self._blocks[0]

    def passed(self, number: int, tick: int) -> None:
        """All cuts of decisions up to this number lie at or below a tick."""
        if not number:
            return
        if not self._passed or self._passed[-1] < (number, tick):  # nearly always
            self._passed.append((number, tick))
        else:
            at = bisect_left(self._passed, (number, tick))
            if self._passed[at] == (number, tick):
                return
            self._passed.insert(at, (number, tick))
        if len(self._passed) > MOST_CUTS:
            del self._passed[0]

    def end_of(self, number: int) -> int | None:
        """The tick at which the cut of a decision, and its block, have passed for sure. None: it is
        perhaps yet to come."""
        at = bisect_left(self._passed, (number, 0))
        return min((tick for _, tick in self._passed[at : at + 8]), default=None)

    def block_at(self, tick: int) -> CutRecord | None:
        """The block that an event belongs to."""
        at = bisect_right(self._ticks, tick) - 1
        if at < 0 or not self._ticks[at] < tick <= self._blocks[at].last:
            return None
        return self._blocks[at]
