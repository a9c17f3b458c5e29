"""The record of a run: what clients saw, where a fault was, and what was done.

The checkers of the simulator read the history in it. Times are seconds of one monotonic clock,
from the beginning of the run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

from motet.audit.recorder import Recording
from motet.audit.records import EventRecord
from motet.client.history import HistoryRecorder
from motet.client.session.machine import ClientMachine
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History
from motet.testing.topology import Edge, Tree

LOOKBACK_S = 2.5
"""A connection that breaks by itself was dead for at most this long before it was noticed: three
heartbeats of silence, and a busy machine."""

Tell = Callable[[str], object]


def named(place: str | Edge) -> str:
    return place if isinstance(place, str) else f"the link {'–'.join(place)}"


class Chronicle:
    def __init__(self, tree: Tree, *, covering: bool, hop_s: float, lease_s: float) -> None:
        self.history = History(tree, covering, hop_s)
        self.lease_s = lease_s
        self.folder: Path | None = None
        """Where brokers and clients write histories for the audit."""
        self.recording = True
        """False once the history is complete: what happens during clean-up does not count."""
        self.bodies: dict[bytes, EventRecord] = {}
        """Every event, by its encoding on the wire."""
        self.epochs: set[str] = set()
        self.faults: Counter[str] = Counter()
        self.resumed = 0
        self.lost_sessions = 0
        self.lost_operations = 0
        """Acknowledged and in force, and lost with a session that should not have ended."""
        self.recoveries = 0
        self.longest_outage_s = 0.0
        self.nacks: dict[tuple[str, int], int] = {}
        """By broker and life: its number of nacks when last seen."""
        self.verdicts: list[CheckResult] = []
        """Results of checks that were made while the brokers ran."""
        self.transactions: dict[str, int] = {}
        self.longest_transit_s = 0.0
        """From when a client was sent to another broker until it was welcome."""
        self.struck: Counter[str] = Counter()
        """Faults that were to hit a client on its way, by the phase that they met."""
        self.story: list[str] = []
        self.tell: Tell = str  # discards it, by default
        self._afflicted: Counter[str | Edge] = Counter()
        self._since: dict[str | Edge, float] = {}
        self._began = time.monotonic()
        self.places: list[str | Edge] = [*tree.brokers, *tree.edges]
        for place in self.places:
            self.history.disturbed[place].begin(0.0)

    def now(self) -> float:
        return time.monotonic() - self._began

    def note(self, text: str) -> None:
        """Add a line to the story, and tell it."""
        self.jot(text)
        self.tell(self.story[-1])

    def jot(self, text: str) -> None:
        """Add a line to the story only."""
        self.story.append(f"{self.now():8.3f} s  {text}")

    def travelled(self, transit_s: float) -> None:
        """A client has arrived at another broker."""
        self.longest_transit_s = max(self.longest_transit_s, transit_s)

    def recorder_of(self, machine: ClientMachine) -> HistoryRecorder | None:
        """Writes a history of one process of a client, if one is wanted."""
        if self.folder is None:
            return None
        process = f"{machine.client}-{token_hex(8)}"
        return HistoryRecorder(machine, process, Recording(self.folder, f"client-{process}"))

    # ── places ───────────────────────────────────────────────────────────────────────────

    def afflict(self, place: str | Edge) -> None:
        """A fault begins here. Call it before the fault does."""
        self._afflicted[place] += 1
        self._begin(place, self.now())

    def relieve(self, place: str | Edge) -> None:
        """The fault is over; `well` must confirm that the place has recovered."""
        self._afflicted[place] -= 1

    def notice(self, place: str | Edge) -> None:
        """A failure was noticed, caused by us or not, just now or a little earlier."""
        if self.recording:
            self._begin(place, self.now() - LOOKBACK_S)

    def _begin(self, place: str | Edge, at: float) -> None:
        self._since.setdefault(place, self.now())
        self.history.disturbed[place].begin(max(0.0, at))

    def is_afflicted(self, *places: str | Edge) -> bool:
        return any(self._afflicted[place] > 0 for place in places)

    def is_troubled(self, place: str | Edge) -> bool:
        return self.history.disturbed[place].open

    def well(self, place: str | Edge) -> None:
        """The place was observed to have recovered."""
        now = self.now()
        self.history.disturbed[place].end(now)
        since = self._since.pop(place, None)
        if since is not None:
            self.longest_outage_s = max(self.longest_outage_s, now - since)
            self.note(f"{named(place)} is well again, after {now - since:.1f} s")
