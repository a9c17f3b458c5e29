"""Virtual time: an agenda of actions, clocks that read it, timers that wait on it.

The twins of `motet.runtime.clock` and of the timers in `motet.broker.driver`. Nothing here waits:
time jumps from one action to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import Any

from motet.protocol.hosted.soft import HOME
from motet.sequencer.pair import TICK as PAIR_TICK

TimerKey = tuple[Hashable, ...]
PATROL_S = 5.0
"""Everything is at rest if nothing but patrols has happened for so long."""
NEVER_S = 1e6
"""A timer that is set so far ahead is not waited for: no run lasts so long."""


class Agenda:
    """All future actions by time; ties in the order of insertion. Patrols are actions that recur
    for ever, and mostly change nothing."""

    __slots__ = ("_busy", "_busy_at", "_heap", "_serial", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...], bool]] = []
        self._serial = 0
        self._busy = 0
        """Future actions that are no patrols."""
        self._busy_at = 0.0
        """When the last one of these has happened."""

    def __len__(self) -> int:
        return len(self._heap)

    def at(
        self, when: float, action: Callable[..., object], *args: Any, patrol: bool = False
    ) -> None:
        """An action whose time has passed happens now."""
        self._serial += 1
        self._busy += not patrol
        heappush(self._heap, (max(when, self.now), self._serial, action, args, patrol))

    def after(self, delay_s: float, action: Callable[..., object], *args: Any) -> None:
        self.at(self.now + delay_s, action, *args)

    def run(self, until: float) -> bool:
        """Run all actions up to a time; true if none is left but patrols."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            if not self._busy and heap[0][0] > self._busy_at + PATROL_S:
                return True
            self.now, _, action, args, patrol = heappop(heap)
            if not patrol:
                self._busy -= 1
                self._busy_at = self.now
            action(*args)
        if not heap:
            return True
        self.now = until
        return False


class VirtualClock:
    """One broker's clock: the agenda's time plus the jumps ahead so far."""

    __slots__ = ("_agenda", "ahead_s")

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self.ahead_s = 0.0

    def now(self) -> float:
        return self._agenda.now + self.ahead_s


class Timers:
    """Timers by key on one broker's clock; setting a key again replaces its timer."""

    def __init__(
        self, agenda: Agenda, clock: VirtualClock, ring: Callable[[TimerKey], None]
    ) -> None:
        self._agenda = agenda
        self._clock = clock
        self._ring = ring
        self._count = 0
        self._set: dict[TimerKey, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._set)

    def set(self, key: TimerKey, at: float) -> None:
        # The agenda keeps replaced and cancelled timers; the number identifies the valid one.
        self._count += 1
        self._set[key] = (at, self._count)
        when = at - self._clock.ahead_s
        patrol = key in (HOME, PAIR_TICK) or when > self._agenda.now + NEVER_S
        self._agenda.at(when, self._due, key, self._count, patrol=patrol)

    def cancel(self, key: TimerKey) -> None:
        self._set.pop(key, None)

    def clear(self) -> None:
        self._set.clear()

    def jump(self, ahead_s: float) -> None:
        """Move the clock ahead: timers that are overdue then fire at once."""
        self._clock.ahead_s += ahead_s
        for key, (at, _) in list(self._set.items()):
            self.set(key, at)

    def _due(self, key: TimerKey, number: int) -> None:
        if self._set.get(key, (0.0, 0))[1] == number:
            del self._set[key]
            self._ring(key)
