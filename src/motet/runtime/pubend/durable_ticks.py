"""Up to which tick a pubend's log is durable, and up to which its transactions are whole there."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Final

MOST_AWAITED: Final = 4096


class DurableTicks:
    """One thread appends, any may ask."""

    def __init__(self, last_tick: int, block: tuple[int, int]) -> None:
        """`block` is the last cut, and the last tick of its events."""
        self._tick = last_tick
        self._awaited: deque[tuple[int, int]] = deque()
        """(position, last tick) of what was appended and may not be durable yet."""
        self._blocks: deque[tuple[int, int]] = deque([block] if block[1] > last_tick else [])
        """(tick of the cut, last tick) of transactions that may not be durable as a whole yet."""
        self._lock = Lock()

    def appended(self, position: int, last_tick: int, durable: int) -> None:
        """The log ends there; it is durable up to the position `durable`."""
        self._awaited.append((position, last_tick))
        if len(self._awaited) > MOST_AWAITED:
            self.last(durable)

    def begins(self, tick: int, last: int) -> None:
        """A cut will be appended, and then its events up to tick `last`."""
        if last > tick:
            with self._lock:
                self._blocks.append((tick, last))

    def last(self, durable: int) -> int:
        """The last tick that survives a crash."""
        with self._lock:
            while self._awaited and self._awaited[0][0] <= durable:
                self._tick = self._awaited.popleft()[1]
            return self._tick

    def whole(self, durable: int) -> int:
        """The last tick that survives a crash and lies in no transaction of which not all does."""
        last = self.last(durable)
        with self._lock:
            while self._blocks and self._blocks[0][1] <= last:
                self._blocks.popleft()
            return min(last, self._blocks[0][0] - 1) if self._blocks else last
