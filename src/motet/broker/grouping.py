"""When records go to the log: at once, or together with those that are about to come.

A group commit costs the same CPU for one record as for fifty, and on a fast disk it is over before
the next record is there: a steady trickle would pay a commit for each. So records may wait a moment
for company, if waiting brings any. That is found out by trying, ever more rarely while it does not:
who publishes one event and waits for its fate before the next brings no company, and should not
wait. Nor does the first one after a pause, nor what is enough for a group of its own.
"""

from __future__ import annotations

GATHER_S = 0.008
"""While waiting brings company, groups begin so far apart: an event may be later by this."""
GATHER_EVENTS = 64
"""So many share a commit cheaply enough to begin at once."""
FIRST_TRY = 16
RAREST_TRY = 256
"""Groups that do not wait before it is tried again whether waiting helps."""


class Grouping:
    """Told of everything that comes and goes, it says how long what is there should wait."""

    def __init__(self) -> None:
        self._began_at = float("-inf")
        self._events = 0
        self._half_way = 0.0
        self._is_late = False
        """In the second half of the wait a record came: others will, too."""
        self._waits = False
        self._try_in = self._patience = FIRST_TRY

    def wait_s(self, events: int, now: float) -> float:
        """More has come: how long all that is there should wait for others; 0: not at all."""
        left_s = self._began_at + GATHER_S - now
        if not self._events:
            self._half_way = now + left_s / 2
        elif now > self._half_way:
            self._is_late = True
        self._events += events
        if not self._waits or self._events >= GATHER_EVENTS:
            return 0.0
        return max(0.0, left_s)

    def begin(self, now: float) -> None:
        """All that is there goes to the log."""
        if not self._waits:
            self._try_in -= 1
            self._waits = self._try_in <= 0
        elif self._is_late or self._events >= GATHER_EVENTS:
            self._patience = FIRST_TRY
        elif now - self._began_at < 2 * GATHER_S:  # else it came after a pause, and did not wait
            self._waits = False
            self._try_in = self._patience
            self._patience = min(2 * self._patience, RAREST_TRY)
        self._began_at = now
        self._events = 0
        self._is_late = False
