"""The stream of one pubend towards one neighbour: what it was told, wants, and has acknowledged."""

from __future__ import annotations

from motet.protocol.delivery.ranges import Range, RangeSet

MOST_CURIOUS = 64
"""Open questions of a neighbour that are remembered; the lowest go first, and are asked again."""


class OutStream:
    """Silence travels lazily: `since` to `quiet` is contiguous silence that was not told yet, and
    widens the next span that is."""

    __slots__ = ("acked", "curious", "deep", "inquires", "quiet", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        self.quiet = since - 1
        self.acked: int | None = None
        """None: it has not acknowledged anything since we remember."""
        self.inquires = False
        """It wants to know which of its subscriptions have started."""
        self.curious = RangeSet()
        self.deep: list[tuple[int, int, int]] = []
        """Questions that need knowledge as of a tick: lowest, highest, as of."""

    def silent(self, since: int, upto: int) -> None:
        """Nothing in this range is for the neighbour."""
        if since <= self.quiet + 1:
            if upto > self.quiet:
                self.quiet = upto
        else:  # behind a gap: what was silent before it will be asked for with the gap
            self.since, self.quiet = since, upto

    def telling(self, since: int, upto: int) -> int:
        """A span is about to be told: where it begins if the silence before it is included."""
        begin = min(self.since, since) if since <= self.quiet + 1 else since
        if upto >= self.quiet:
            self.since, self.quiet = upto + 1, upto
            return begin
        return since  # late: newer silence stays untold

    def untold(self) -> Range | None:
        """Silence to be told before an acknowledgement is asked for."""
        if self.quiet < self.since:
            return None
        found = (self.since, self.quiet)
        self.since = self.quiet + 1
        return found

    def want(self, low: int, high: int, asof: int) -> None:
        if asof:
            self.deep = [each for each in self.deep if (each[0], each[1]) != (low, high)]
            self.deep.append((low, high, asof))
            del self.deep[:-MOST_CURIOUS]
        else:
            self.curious.add(low, high)
            self.curious.forget_lowest(MOST_CURIOUS)

    def wanted(self, since: int, upto: int, asof: int) -> list[Range]:
        """Which parts of a repeated span were asked for. They are not wanted any more."""
        parts = self.curious.overlaps(since, upto) if self.curious else []
        if asof and self.deep:
            found = RangeSet(parts)
            kept: list[tuple[int, int, int]] = []
            for low, high, needed in self.deep:
                if needed > asof or low > upto or high < since:
                    kept.append((low, high, needed))
                    continue
                found.add(max(low, since), min(high, upto))
                kept += [(low, since - 1, needed)] if low < since else []
                kept += [(upto + 1, high, needed)] if high > upto else []
            self.deep = kept
            parts = list(found)
        for low, high in parts:
            self.curious.remove(low, high)
        self.curious.forget_lowest(MOST_CURIOUS)
        return parts

    def need(self, low: int) -> None:
        """Somebody there reads the past: what was acknowledged before is wanted again."""
        if self.acked is not None:
            self.acked = min(self.acked, low - 1)

    def acknowledge(self, upto: int) -> None:
        self.acked = upto if self.acked is None else max(self.acked, upto)
