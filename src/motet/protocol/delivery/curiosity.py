"""Curiosity: what is asked for upstream, when for the first time, and when again.

`Curiosity` belongs to a subend: it is told what is missing and says what to ask for now. `Asked`
belongs to an input stream: it keeps the same question from travelling twice.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from msgspec import Struct

from motet.protocol.delivery.ranges import Range, RangeSet


class Liveness(NamedTuple):
    """The parameters of section 3.2. A pubend that is down is asked ever more rarely."""

    gap_s: float = 0.2
    """How old a gap must be before it is asked for: links may just have swapped frames."""
    nack_repeat_s: float = 0.6
    """The least time before a question is repeated; the actual time is estimated."""
    nack_repeat_most_s: float = 10.0
    ack_expected_s: float = 10.0
    delay_s: float = float("inf")
    """How far a subend may trail the clock before it asks. Infinite: the pubend will tell."""
    ack_delay_s: float = 0.25
    """How long an acknowledgement may wait for others to be consolidated with."""
    silence_s: float = 0.01
    """How often at most a pubend is asked how far it is, for those who merge it with others."""
    gone_s: float = 30.0
    """How long those in total order wait for a pubend to which there is no way any more."""


class Patience:
    """The time after which an answer is overdue, estimated as TCP does it."""

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


class Ask(Struct):
    """One range that is missing. `at` is when to ask next."""

    since: int
    upto: int
    at: float
    asked_at: float = 0.0
    tries: int = 0


MOST_ASKS = 64
"""Ranges followed one by one. Others wait until some of these are filled."""
MOST_ASKED = 256
"""Ranges that an input stream remembers to have asked for."""
MOST_RANGES = 64
"""Ranges in one nack."""


class Curiosity:
    __slots__ = ("_asks", "_liveness", "_patience")

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._patience = Patience(liveness)
        self._asks: list[Ask] = []

    def __bool__(self) -> bool:
        return bool(self._asks)

    def sync(self, patient: list[Range], urgent: list[Range], now: float) -> None:
        """What is missing now: gaps that may still close by themselves, and ranges that are
        wanted at once. Whatever is not in either list is not wanted any more."""
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
        kept: list[Ask] = []
        for ask in self._asks:
            for low, high in wanted.overlaps(ask.since, ask.upto):
                kept.append(Ask(low, high, ask.at, ask.asked_at, ask.tries))
                wanted.remove(low, high)
        for ask in kept:
            if not ask.tries and hurried.overlaps(ask.since, ask.upto):
                ask.at = min(ask.at, now)
        for low, high in wanted:
            for begin, end in hurried.overlaps(low, high):
                kept.append(Ask(begin, end, now))
            for begin, end in hurried.missing(low, high):
                kept.append(Ask(begin, end, now + self._liveness.gap_s))
        self._asks = sorted(kept, key=lambda ask: ask.since)[:MOST_ASKS]

    def _note_answers(self, wanted: RangeSet, now: float) -> None:
        """An answer to what was asked once tells how long answers take."""
        for ask in self._asks:
            if ask.tries == 1 and wanted.missing(ask.since, ask.upto):
                self._patience.sample(now - ask.asked_at)
                return

    def hurry(self, upto: int, now: float) -> None:
        """Someone upstream says that all up to a tick should be here by now."""
        for ask in self._asks:
            recent = ask.tries and now - ask.asked_at < self._liveness.nack_repeat_s
            if ask.since <= upto and not recent:
                ask.at = min(ask.at, now)
                ask.tries = 0

    def heard(self, now: float) -> None:
        """Upstream is alive: an answer that is overdue was lost, and waiting longer is no use."""
        for ask in self._asks:
            if ask.tries > 1 and ask.asked_at < now:
                ask.tries = 1
                ask.at = min(ask.at, max(now, ask.asked_at + self._patience.wait_s(1)))

    def go_on(self, since: int, upto: int, now: float) -> None:
        """An answer ended at a tick because one piece was full: ask for the rest at once. If it
        brings nothing that is missing, it has been here before, and so has the question."""
        if any(ask.since <= upto and ask.upto >= since for ask in self._asks):
            for ask in self._asks:
                if ask.upto > upto:
                    ask.at, ask.tries = now, 0

    def go_on_behind(self, since: int, upto: int, now: float) -> None:
        """The same where each range is read from its beginning: only those whose beginning has
        come go on."""
        for ask in self._asks:
            if since <= ask.since <= upto < ask.upto:
                ask.at, ask.tries = now, 0

    def due(self, now: float) -> list[Range]:
        """What to ask for now; asking again takes longer each time."""
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


class Hush:
    """Asking how far a pubend is, beyond all that was heard of it: others wait for it in a merge.

    Not for each tick that comes: after a while for all that came meanwhile. A pubend that does
    not answer is asked ever more rarely, like with any other question."""

    __slots__ = ("_asked", "_asked_at", "_frontier", "_liveness", "_since", "_tries")

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._frontier = 0
        self._asked = 0
        self._asked_at = -float("inf")
        self._since: float | None = None
        """When the first question was asked that was not answered at all."""
        self._tries = 0

    def heard(self, frontier: int) -> None:
        """How far the pubend is known to be by now."""
        if frontier > self._frontier:
            self._frontier = frontier
            self._since = None
            self._tries = 0

    def due_at(self, upto: int) -> float:
        """When to ask for silence up to a tick that is not known yet."""
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
        """The pubend, or the way to it, is back."""
        self._asked_at = -float("inf")
        self._since = None
        self._tries = 0


class Asked:
    """The C ticks of an input stream. They are forgotten after the least time of repetition, so
    that a question that is asked again looks fresh and passes."""

    __slots__ = ("_entries", "_keep_s")

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._entries: deque[tuple[float, int, int]] = deque(maxlen=MOST_ASKED)

    def fresh(self, ranges: list[Range], now: float) -> list[Range]:
        """What of these was not asked lately; from now on it was."""
        self._expire(now)
        already = RangeSet((low, high) for _, low, high in self._entries)
        found = [part for low, high in ranges for part in already.missing(low, high)]
        self._entries.extend((now, low, high) for low, high in found)
        return found

    def fresh_heads(self, ranges: list[Range], now: float) -> list[Range]:
        """Those of which the beginning was not asked for lately; from now on it was."""
        self._expire(now)
        begun = {low for _, low, _ in self._entries}
        found = [each for each in ranges if each[0] not in begun]
        self._entries.extend((now, low, high) for low, high in found)
        return found

    def _expire(self, now: float) -> None:
        entries = self._entries
        # A repetition that comes exactly in time must pass, whatever floats make of the sum.
        while entries and now - entries[0][0] >= self._keep_s * 0.99:
            entries.popleft()

    def answered(self, since: int, upto: int, cut: bool) -> None:
        """An answer came. If it was cut, the questions above it are open again; but not if it
        came before: each would be asked and answered once more, and those answers again."""
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
        """An answer came to those questions whose beginning it has; others wait for theirs."""
        kept = [each for each in self._entries if not since <= each[1] <= upto]
        self._entries.clear()
        self._entries.extend(kept)

    def clear(self) -> None:
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
