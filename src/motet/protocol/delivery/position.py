"""Where one client stands in one pubend: what it is owed, was given, and has acknowledged."""

from __future__ import annotations

from collections import deque

from motet.model import OpId
from motet.model.ticks import LAST_TICK
from motet.protocol.delivery.merge import Merge
from motet.protocol.delivery.ranges import Range
from motet.protocol.delivery.together import Together

PATIENCE = 16
"""So often a pubend must have repeated where subscriptions have started once more before nobody
waits for control any longer, and what was lost before those starts is told."""


class Position:
    """Where one client stands in one pubend."""

    __slots__ = (
        "acked",
        "again",
        "barrier",
        "client",
        "deep_asof",
        "deep_upto",
        "durable",
        "exempt",
        "fresh",
        "given",
        "gone",
        "idle",
        "level",
        "live",
        "merge",
        "noted",
        "origins",
        "outstanding",
        "present",
        "reminded",
        "starts",
        "together",
        "told",
        "unacked",
        "windows",
    )

    def __init__(self, client: str, given: int, level: int = 0, durable: bool = False) -> None:
        self.client = client
        self.level = level
        """Everything up to here is done with, as was made durable before."""
        self.durable = durable
        self.noted = level
        """Of a durable client: the last position that was given away to be made durable."""
        self.starts: dict[int, int] = {}
        """By subscription: the tick above which it is owed everything."""
        self.windows: dict[int, tuple[int, int]] = {}
        """By subscription that begins or ends with a transaction: above which tick, and up to
        which one, it is owed what is behind its start."""
        self.origins: dict[int, int] = {}
        """By subscription: where it started, however far back it reaches."""
        self.again: dict[int, tuple[int, bool]] = {}
        """By subscription: where the stream says that it has started once more, and whether
        tentatively, if control has yet to tell that the start before that is over."""
        self.reminded = 0
        """How often it has said so again."""
        self.given = given
        """Delivered up to here, if not live; if live, never below this."""
        self.acked = given
        self.barrier = given
        """Above this, neither the cursor nor any start tick has to be looked at."""
        self.present = False
        self.fresh = True
        """Nothing was ever delivered from here: an earlier start may still move it back."""
        self.idle = True
        """It has told its client nothing, because all that is here is tentative; so it may still
        move back, too."""
        self.told = False
        """Control has told of a start here: in total order the first one, which the stream may
        show, is not always the one that counts."""
        self.live = False
        self.merge: Merge | None = None
        """In total order: where events wait for those of other pubends."""
        self.together: Together | None = None
        """Otherwise: where those of transactions wait for theirs of other pubends."""
        self.exempt = 0
        """Of what is not acknowledged, so much waits there and does not count."""
        self.outstanding: deque[tuple[int, int, int]] = deque()
        """Delivered and not acknowledged: first tick, last tick, number of events."""
        self.unacked = 0
        self.deep_upto = 0
        """Up to here the client wants what is older than its subscription."""
        self.deep_asof = 0
        self.gone: Range | None = None
        """Of the past that it wanted: nobody can give it this any more, and it must hear so."""

    def is_owed(self, subscription: int, tick: int) -> bool:
        if not self.starts.get(subscription, tick) < tick:
            return False
        if subscription not in self.windows:
            return True
        above, upto = self.windows[subscription]
        return above < tick <= upto

    def switch(self, subscription: int, tick: int, ended: bool) -> bool:
        """It begins, or ends, with a cut at this tick. False: that is known."""
        above, upto = self.windows.get(subscription, (0, LAST_TICK))
        window = (above, min(tick, upto)) if ended else (min(tick, above), upto)
        if window == (above, upto):
            return False
        self.windows[subscription] = window
        self.idle = self.idle and ended
        return True

    def is_over(self, op: OpId, tick: int) -> bool:
        """The stream shows one that has begun as if it had yet to begin: nobody advertised there
        what it wants when a transaction ended it, so there is no cut, and this is its end."""
        above, _ = self.windows.get(op.sequence, (0, LAST_TICK))
        return op.sequence in self.starts and tick > max(above, self.origins.get(op.sequence, tick))

    def begin(self, subscription: int, tick: int, tentative: bool = False) -> None:
        self.starts[subscription] = tick
        self.idle = self.idle and tentative
        self.barrier = max(self.barrier, tick)
        if self.fresh:
            self.given = self.acked = max(self.level, min(self.starts.values()))

    def begin_again(self, subscription: int, tick: int, tentative: bool) -> None:
        """The stream says that it has started once more."""
        known = self.again.get(subscription, (0, False))
        self.again[subscription] = max(known, (tick, tentative))
        self.reminded += known >= (tick, tentative)

    def is_doubtful(self, tick: int) -> bool:
        """Whether control may yet tell that nothing at this tick was owed: all that was has started
        once more above it. Pubends forget what lies between two starts, and call it lost."""
        if not self.again or self.reminded > PATIENCE or self.given < self.deep_upto:
            return False
        owed = [each for each, start in self.starts.items() if start < tick]
        return bool(owed) and all(self.again.get(each, (0, False))[0] >= tick for each in owed)

    @property
    def unheard(self) -> bool:
        """Only the stream has shown a start here, and nothing was given."""
        return self.fresh and not self.told

    @property
    def unclear_upto(self) -> int:
        """A subscription that started before this may still turn up, and be owed more."""
        return max(self.given, self.deep_upto)

    def reach(self, tick: int) -> None:
        """Everything up to this tick must be as of this tick: it is older than a subscription."""
        self.deep_upto = max(self.deep_upto, tick)
        self.deep_asof = max(self.deep_asof, tick)

    def standing(self, horizon: int | None) -> int:
        """Everything up to here has been given."""
        return max(self.given, horizon) if self.live and horizon is not None else self.given

    def settled(self, horizon: int | None) -> int:
        """Everything up to here was acknowledged, or never concerned the client."""
        if self.outstanding:
            return max(self.acked, self.outstanding[0][0] - 1)
        if self.live and horizon is not None:
            return max(horizon, self.acked)
        return max(self.given, self.acked)

    def acknowledge(self, tick: int) -> None:
        self.acked = max(self.acked, tick)
        if self.gone is not None and tick >= self.gone[1]:
            self.gone = None
        while self.outstanding and self.outstanding[0][1] <= tick:
            self.unacked -= self.outstanding.popleft()[2]

    def withdraw(self, horizon: int | None) -> None:
        """The connection is gone: what was not acknowledged was perhaps never read."""
        self.given = self.acked = self.settled(horizon)
        self.outstanding.clear()
        self.unacked = 0
        self.live = self.present = False
        self.merge = self.together = None
        self.exempt = 0
