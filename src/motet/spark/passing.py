"""What a stream passes over: events in the logs that its filter does not want.

A batch for nothing but these would be empty. Worse, where a query writes into a log that it reads,
each batch would call for the next one, for ever. So a stream stays where it is until there is
something for it. Now and then it moves on without: else it would look at the same events again
after a restart, and hold back retention.
"""

from __future__ import annotations

import time
from typing import Final

from motet.model import Filter
from motet.spark.brokers import Brokers
from motet.spark.offsets import Vector

MOVE_ON_S: Final = 600.0
LOOK_S: Final = 1.0
"""If it takes longer to find out, tasks had better do it."""


class Passing:
    def __init__(self, brokers: Brokers, filter: Filter) -> None:
        self._brokers = brokers
        self._filter = filter
        self._start: Vector | None = None
        self._passed: Vector = {}
        """Up to here there is nothing since the start."""
        self._since_s = 0.0

    def is_wanted(self, start: Vector, end: Vector) -> bool:
        """Whether a batch from start to end is worth its while."""
        now_s = time.monotonic()
        if start != self._start:
            self._start, self._passed, self._since_s = dict(start), dict(start), now_s
        if end.keys() != start.keys() or now_s - self._since_s > MOVE_ON_S:
            return True
        for pubend, tick in end.items():
            since = self._passed[pubend]
            if since < tick and not self._brokers.is_quiet(
                pubend, since, tick - 1, self._filter, LOOK_S
            ):
                return True
            self._passed[pubend] = max(since, tick)
        return False
