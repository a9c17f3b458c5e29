"""The subend of one pubend: the clients of this broker, each with its position, consolidated.

All *live* clients share one doubt horizon and cost nothing but their events. A client that has not
acknowledged a window of events, or returns with an older cursor, is *behind*: it is served from its
own position, from memory and then by requests, until it reaches the horizon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec import Struct, field

from motet.model import OpId
from motet.model.ids import LAST_TICK
from motet.protocol.delivery.blocks import BlockQueues, Cuts
from motet.protocol.delivery.gates import Passage
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.messages import Delivered
from motet.protocol.delivery.spans import Memory, PredecessorRecord, Range, Span, clip
from motet.protocol.delivery.total_order import Merge
from motet.protocol.publication import Publication

PATIENCE = 16
"""How often a pubend must repeat a newer start of a subscription before the broker stops waiting
for control, and reports the loss before that start."""


class Position(Struct, eq=False):
    """The position of one client in one pubend."""

    client: str
    given: int
    """Delivered up to here, if not live; if live, a lower bound."""
    level: int = 0
    """Everything up to here was acknowledged, according to the durable state."""
    durable: bool = False
    noted: int = 0
    """Durable client: the last position that was passed on to be made durable."""
    starts: dict[int, int] = {}
    """By subscription: the tick above which it is owed everything."""
    windows: dict[int, tuple[int, int]] = {}
    """By subscription that begins or ends with a transaction: above which tick, and up to
    which one, it is owed events after its start."""
    origins: dict[int, int] = {}
    """By subscription: where it started, even if it also wants older events."""
    again: dict[int, tuple[int, bool]] = {}
    """By subscription: a newer start that the stream has shown, and whether it is tentative, while
    control has not reported that the older start is over."""
    reminded: int = 0
    """How often the stream has repeated such a start."""
    acked: int = 0
    barrier: int = 0
    """Above this, neither the cursor nor any start tick has to be checked."""
    present: bool = False
    fresh: bool = True
    """Delivery has not begun: an earlier start may still move the position back."""
    idle: bool = True
    """Nothing was delivered, as all subscriptions here are tentative: it may still move back."""
    told: bool = False
    """Control has reported a start here. In total order it decides: the first start, which the
    stream may show, is not always the valid one."""
    live: bool = False
    merge: Merge | None = None
    """In total order: holds events until other pubends have reached them."""
    block_queues: BlockQueues | None = None
    """Otherwise: holds events of a transaction until those of other pubends have come."""
    passage: Passage | None = None
    """Otherwise: the gates that it may pass."""
    gate: PredecessorRecord | None = None
    """Everything before this record has been delivered, and it may not be passed yet."""
    exempt: int = 0
    """Number of unacknowledged events that are held there and do not count for the window."""
    outstanding: deque[tuple[int, int, int]] = field(default_factory=deque)
    """Delivered and not acknowledged: first tick, last tick, number of events."""
    unacked: int = 0
    past_upto: int = 0
    """Up to here the client wants events older than its subscription."""
    deep_upto: int = 0
    """Up to here everything is read from the log: this past, or what may have passed by while the
    client moved."""
    deep_asof: int = 0
    gone: Range | None = None
    """The part of the wanted past that cannot be read any more, to be reported as lost."""

    def __post_init__(self) -> None:
        self.acked = self.barrier = self.given

    def is_owed(self, subscription: int, tick: int) -> bool:
        if not self.starts.get(subscription, tick) < tick:
            return False
        if subscription not in self.windows:
            return True
        above, upto = self.windows[subscription]
        return above < tick <= upto

    def switch(self, subscription: int, tick: int, ended: bool) -> bool:
        """A subscription begins, or ends, with a cut at this tick. False: that was known."""
        above, upto = self.windows.get(subscription, (0, LAST_TICK))
        window = (above, min(tick, upto)) if ended else (min(tick, above), upto)
        if window == (above, upto):
            return False
        self.windows[subscription] = window
        self.idle = self.idle and ended
        return True

    def is_over(self, op: OpId, tick: int) -> bool:
        """Is this tentative start, of a subscription that has begun, its end? The pubend has no cut
        if no advertisement there matched when a transaction ended it."""
        above, _ = self.windows.get(op.sequence, (0, LAST_TICK))
        return op.sequence in self.starts and tick > max(above, self.origins.get(op.sequence, tick))

    def begin(self, subscription: int, tick: int, tentative: bool = False) -> None:
        self.starts[subscription] = tick
        self.idle = self.idle and tentative
        self.barrier = max(self.barrier, tick)
        if self.fresh:
            self.given = self.acked = max(self.level, min(self.starts.values()))

    def begin_again(self, subscription: int, tick: int, tentative: bool) -> None:
        """The stream shows a newer start."""
        known = self.again.get(subscription, (0, False))
        self.again[subscription] = max(known, (tick, tentative))
        self.reminded += known >= (tick, tentative)

    def next_gate(self, gates: Iterable[PredecessorRecord]) -> PredecessorRecord | None:
        """The first of these records, behind the position, that may not be passed yet."""
        if self.passage is None:
            return None
        for record in gates:
            if record.tick > self.given and not self.passage.is_open(record):
                return record
        return None

    def is_doubtful(self, tick: int) -> bool:
        """May control still report that nothing at this tick was owed? True if all subscriptions
        owed it have a newer start: pubends trim ticks between two starts, and call them lost."""
        if not self.again or self.reminded > PATIENCE or self.given < self.deep_upto:
            return False
        owed = [each for each, start in self.starts.items() if start < tick]
        return bool(owed) and all(self.again.get(each, (0, False))[0] >= tick for each in owed)

    @property
    def unheard(self) -> bool:
        """Only the stream has shown a start here, and delivery has not begun."""
        return self.fresh and not self.told

    @property
    def unclear_upto(self) -> int:
        """A subscription that started before this may still appear, and be owed more."""
        return max(self.given, self.deep_upto)

    def reach(self, tick: int) -> None:
        """Everything up to this tick must be read as of it, being older than a subscription."""
        self.past_upto = max(self.past_upto, tick)
        self.doubt(tick)

    def doubt(self, tick: int) -> None:
        """Brokers may call ticks up to this one silent, because the client was elsewhere."""
        self.deep_upto = max(self.deep_upto, tick)
        self.deep_asof = max(self.deep_asof, tick)

    def wanted_past(self) -> Range:
        """What is still wanted of the past; maybe nothing, because the subscriptions that wanted it
        have ended. What follows the start of a subscription is not past for it."""
        wants = [
            (start, self.origins[each])
            for each, start in self.starts.items()
            if start < self.origins.get(each, 0)
        ]
        since, upto = (min(s for s, _ in wants), max(u for _, u in wants)) if wants else (0, 0)
        return max(self.given, since) + 1, min(upto, self.past_upto)

    def standing(self, horizon: int | None) -> int:
        """Everything up to here has been delivered."""
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
        """The connection is gone: the client may not have read unacknowledged events."""
        self.given = self.acked = self.settled(horizon)
        self.outstanding.clear()
        self.unacked = 0
        self.live = self.present = False
        self.merge = self.block_queues = self.passage = self.gate = None
        self.exempt = 0


Delivery = tuple[str, Delivered]


class Subend:
    __slots__ = (
        "_interest",
        "_memory",
        "_pubend",
        "_window",
        "behind",
        "cuts",
        "horizon",
        "live",
        "merged",
        "positions",
        "remembers_all",
    )

    def __init__(self, pubend: str, interest: Interest, window: int, memory: Memory) -> None:
        self._pubend = pubend
        self._interest = interest
        self._window = window
        self._memory = memory
        self.horizon: int | None = None
        """The doubt horizon of the live clients; None if no client is present."""
        self.positions: dict[str, Position] = {}
        self.behind: dict[str, Position] = {}
        """Present clients that are not live."""
        self.merged: dict[str, Position] = {}
        """Present clients in total order."""
        self.cuts = Cuts()
        self.live = 0
        self.remembers_all = False
        """The pubend is here: what is in memory is whole, whoever wanted it at the time."""

    # ── positions ────────────────────────────────────────────────────────────────────────

    def place(self, position: Position) -> None:
        """Begin to serve a present client, at the horizon or behind it."""
        position.present = True
        position.fresh = False
        if position.merge is not None:
            self.merged[position.client] = position
        self._lag(position)
        if self.horizon is None or not self.live:
            self._jump(position.given)
        self._catch(position)

    def _jump(self, tick: int) -> None:
        """Move the horizon anywhere: no live client depends on it."""
        self.horizon = tick

    def _lag(self, position: Position) -> None:
        if position.live:
            position.live = False
            self.live -= 1
        self.behind[position.client] = position

    def _catch(self, position: Position) -> None:
        """Make the client live if it has reached the horizon."""
        assert self.horizon is not None
        if (
            position.given >= self.horizon
            and position.given >= position.deep_upto
            and self.room(position) > 0
        ):
            position.live = True
            position.barrier = max(position.barrier, position.given)
            self.live += 1
            self.behind.pop(position.client, None)

    def absent(self, position: Position) -> None:
        if position.live:
            self.live -= 1
        self.behind.pop(position.client, None)
        self.merged.pop(position.client, None)
        position.withdraw(self.horizon)
        if not self.live and not self.behind:
            self.horizon = None

    def step_back(self, position: Position) -> bool:
        """Whether a client may still begin further back. An idle position is given up for that. A
        loss that is to be reported stands for events that were delivered."""
        if position.gone is not None:
            return False
        if position.idle and not position.fresh:
            self.absent(position)
            position.fresh = True
        return position.fresh

    def remove(self, position: Position) -> None:
        self.absent(position)
        del self.positions[position.client]

    def room(self, position: Position) -> int:
        return self._window - position.unacked + position.exempt

    # ── live clients ─────────────────────────────────────────────────────────────────────

    def pass_on(self, span: Span, masks: list[int], deliver: list[Delivery]) -> None:
        """Deliver the span directly above the horizon; `masks` belong to its batch."""
        if span.records and self.live:
            self._stop(span)
        self.horizon = span.upto
        if span.lost:
            for position in self.positions.values():
                if position.live and position.given < span.upto:
                    since = max(span.since, position.given + 1)
                    if position.is_doubtful(since):
                        position.given = since - 1
                        self._lag(position)
                    else:
                        self._report(position, since, span.upto, deliver)
            return
        if masks and self.live:
            if masks.count(masks[0]) == len(masks):
                self._same_way(span, masks[0], deliver)
            else:
                self._sorted(span, masks, deliver)

    def _stop(self, span: Span) -> None:
        """Clients that may not pass a record of the next span are served separately."""
        gates = _gates_in(span)
        if not gates:
            return
        for position in self.positions.values():
            if position.live and position.next_gate(gates) is not None:
                position.given = position.standing(self.horizon)
                self._lag(position)

    def _same_way(self, span: Span, mask: int, deliver: list[Delivery]) -> None:
        _, single, several = self._interest.way(mask)
        for client, subscriptions in single:
            self._give(client, span, span.ticks, span.batch, subscriptions, [], deliver)
        for client in several:
            position = self.positions.get(client)
            if position is not None and position.live:
                each = [self._interest.subscriptions_of(p, client) for p in span.batch]
                self._give(client, span, span.ticks, span.batch, (), each, deliver)

    def _sorted(self, span: Span, masks: list[int], deliver: list[Delivery]) -> None:
        """Give each client its own part of the batch."""
        way = self._interest.way
        subscriptions_of = self._interest.subscriptions_of
        alone: dict[tuple[str, tuple[int, ...]], tuple[list[int], list[Publication]]] = {}
        mixed: dict[str, tuple[list[int], list[Publication], list[tuple[int, ...]]]] = {}
        for tick, publication, mask in zip(span.ticks, span.batch, masks, strict=True):
            if not mask:
                continue
            _, single, several = way(mask)
            for key in single:
                ticks, batch = alone.setdefault(key, ([], []))
                ticks.append(tick)
                batch.append(publication)
            for client in several:
                if client in self.positions:
                    found = mixed.setdefault(client, ([], [], []))
                    found[0].append(tick)
                    found[1].append(publication)
                    found[2].append(subscriptions_of(publication, client))
        for (client, subscriptions), (ticks, batch) in alone.items():
            self._give(client, span, ticks, batch, subscriptions, [], deliver)
        for client, (ticks, batch, each) in mixed.items():
            self._give(client, span, ticks, batch, (), each, deliver)

    def _give(
        self,
        client: str,
        span: Span,
        ticks: list[int],
        batch: list[Publication],
        every: tuple[int, ...],
        each: list[tuple[int, ...]],
        deliver: list[Delivery],
    ) -> None:
        position = self.positions.get(client)
        if position is None or not position.live:
            return
        narrow = position.windows or (every and every[0] not in position.starts)
        if each or narrow or ticks[0] <= position.barrier:
            ticks, batch, every, each = _owed(position, ticks, batch, every, each)
        if not ticks:
            return
        self._emit(position, Delivered(self._pubend, span.upto, ticks, batch, every, each), deliver)
        position.outstanding.append((ticks[0], ticks[-1], len(ticks)))
        position.unacked += len(ticks)
        if position.unacked - position.exempt >= self._window:
            position.given = span.upto
            self._lag(position)

    def advance(self, deliver: list[Delivery]) -> None:
        """Move the horizon over everything in memory directly above it."""
        while self.horizon is not None:
            span = self._memory.covering(self.horizon + 1)
            if span is None:
                return
            part = clip(span, self.horizon + 1, span.upto)
            masks = self._interest.masks(part.batch) if part.batch and self.live else []
            self.pass_on(part, masks, deliver)

    # ── clients behind ───────────────────────────────────────────────────────────────────

    def pump(self, position: Position, deliver: list[Delivery], given: Span | None = None) -> None:
        """Serve a client that is behind, as far as memory (or the span `given`) and its window
        allow, until it is live."""
        while position.client in self.behind and self.room(position) > 0:
            if position.gate is not None:
                if position.passage is not None and not position.passage.is_open(position.gate):
                    return
                position.gate = None
            self._catch(position)
            if position.live:
                return
            tick = position.given + 1
            if given is not None and given.since <= tick <= given.upto:
                span: Span | None = given
            elif position.given < position.deep_upto and not self.remembers_all:
                span = None
            else:
                span = self._memory.covering(tick)
            if span is None or (span.lost and position.is_doubtful(tick)):
                return
            assert self.horizon is not None
            # Not beyond the horizon: from there on it is served together with the live clients.
            upto = span.upto if position.given >= self.horizon else min(span.upto, self.horizon)
            self._serve(position, clip(span, tick, upto), deliver)
            if not self.live and position.given > self.horizon:
                self._jump(position.given)

    def _serve(self, position: Position, span: Span, deliver: list[Delivery]) -> None:
        """Give one client its part of a span, at most as much as its window holds."""
        if span.lost:
            position.given = span.upto
            self._report(position, span.since, span.upto, deliver)
            return
        gate = position.next_gate(_gates_in(span)) if span.records else None
        if gate is not None:
            if gate.tick == span.since:
                position.gate = gate
                return
            span = clip(span, span.since, gate.tick - 1)
        bit = self._interest.client_bit(position.client)
        ticks: list[int] = []
        batch: list[Publication] = []
        each: list[tuple[int, ...]] = []
        upto = span.upto
        room = self.room(position)
        masks = self._interest.masks(span.batch) if span.batch else []
        for tick, publication, mask in zip(span.ticks, span.batch, masks, strict=True):
            if not mask & bit:
                continue
            way = self._interest.way(mask & bit)
            subscriptions = (
                way.single[0][1]
                if way.single
                else self._interest.subscriptions_of(publication, position.client)
            )
            owed = tuple(s for s in subscriptions if position.is_owed(s, tick))
            if not owed:
                continue
            if len(ticks) == room:
                upto = tick - 1
                break
            ticks.append(tick)
            batch.append(publication)
            each.append(owed)
        position.given = upto
        if ticks:
            every: tuple[int, ...] = ()
            if each.count(each[0]) == len(each):
                every, each = each[0], []
            told = Delivered(self._pubend, upto, ticks, batch, every, each)
            self._emit(position, told, deliver)
            position.outstanding.append((ticks[0], ticks[-1], len(ticks)))
            position.unacked += len(ticks)

    def tell_gone(self, position: Position, deliver: list[Delivery]) -> None:
        if position.gone is not None:
            self._report(position, *position.gone, deliver)

    def _report(self, position: Position, since: int, upto: int, deliver: list[Delivery]) -> None:
        """A loss is delivered like an event: it may be repeated until it is acknowledged."""
        position.idle = False
        self._emit(position, Delivered(self._pubend, upto, lost=((since, upto),)), deliver)
        position.outstanding.append((since, upto, 0))

    def _emit(self, position: Position, told: Delivered, deliver: list[Delivery]) -> None:
        block_queues = position.block_queues
        if position.merge is not None:
            position.merge.take(told, self.cuts)
        elif block_queues is not None and (
            block_queues.holding or (told.ticks and told.ticks[0] <= self.cuts.top)
        ):
            passing = block_queues.pass_by(told, self.cuts)
            deliver += [(position.client, each) for each in passing]
        else:
            deliver.append((position.client, told))

    # ── missing ranges ───────────────────────────────────────────────────────────────────

    def needs(self, frontier: int) -> tuple[list[Range], list[Range]]:
        """Gaps below the frontier, and ranges that clients wait for now."""
        patient: list[Range] = []
        urgent: list[Range] = []
        if self.live and self.horizon is not None and self.horizon < frontier:
            ceiling = self._memory.ceiling
            if ceiling is not None and ceiling <= self.horizon:
                ceiling = self._memory.ceiling = None
            upto = frontier if ceiling is None else min(frontier, ceiling)
            patient = self._memory.missing(self.horizon + 1, upto)
        for position in self.behind.values():
            if position.gate is not None:
                continue
            if self._has_room(position) and position.given >= position.deep_upto:
                upto = max(self.horizon or 0, frontier)
                if position.given < upto:
                    urgent += self._memory.missing(position.given + 1, upto)[:1]
        if self.merged and patient:  # other pubends' events wait for these
            upto = min(self.waited(), frontier)
            urgent += [(low, min(high, upto)) for low, high in patient if low <= upto]
        return patient, urgent

    def _has_room(self, position: Position) -> bool:
        """Half a window, so that an answer is not requested again for each event read."""
        return 2 * (position.unacked - position.exempt) <= self._window

    def waited(self) -> int:
        """The tick up to which merges wait for this pubend."""
        found = 0
        for position in self.merged.values():
            if position.merge is not None:
                found = max(found, position.merge.wanted(self._pubend))
        return found

    def deep_needs(self) -> tuple[list[Range], int]:
        """Ranges older than the subscriptions that want them, and the tick to read them as of."""
        found = [
            each
            for each in self.behind.values()
            if each.given < each.deep_upto and self._has_room(each) and each.gate is None
        ]
        asof = max((each.deep_asof for each in found), default=0)
        if self.remembers_all:
            missing = self._memory.missing
            return [
                part for each in found for part in missing(each.given + 1, each.deep_upto)[:1]
            ], asof
        return [(each.given + 1, each.deep_upto) for each in found], asof

    def notes(self, floor: int) -> dict[str, int]:
        """Positions of durable clients that have moved since last noted and are off the floor. An
        idle one is not noted: it may still move back, also after a restart."""
        found: dict[str, int] = {}
        for position in self.positions.values():
            if position.durable and position.present and not position.idle:
                at = position.settled(self.horizon)
                if at > max(position.noted, 0 if at < position.deep_upto else floor):
                    found[position.client] = position.noted = at
        return found

    def settled(self) -> int | None:
        """All clients have acknowledged everything up to here; None if there are none."""
        horizon = self.horizon
        return min((each.settled(horizon) for each in self.positions.values()), default=None)

    def validate(self) -> None:
        live = [each for each in self.positions.values() if each.live]
        assert len(live) == self.live
        assert not live or self.horizon is not None
        for position in self.positions.values():
            assert position.unacked == sum(each[2] for each in position.outstanding)
            assert position.present or not (position.live or position.client in self.behind)
            assert position.gate is None or position.client in self.behind
            assert position.live != (position.client in self.behind) or not position.present
            assert position.starts


def _gates_in(span: Span) -> list[PredecessorRecord]:
    return [each for each in span.records if type(each) is PredecessorRecord]


def _owed(
    position: Position,
    ticks: list[int],
    batch: list[Publication],
    every: tuple[int, ...],
    each: list[tuple[int, ...]],
) -> tuple[list[int], list[Publication], tuple[int, ...], list[tuple[int, ...]]]:
    """Only events after the cursor, each with the subscriptions that it is owed to."""
    given = position.given
    kept: list[tuple[int, Publication, tuple[int, ...]]] = []
    for at, tick in enumerate(ticks):
        subscriptions = each[at] if each else every
        owed = tuple([s for s in subscriptions if position.is_owed(s, tick)])
        if owed and tick > given:
            kept.append((tick, batch[at], owed))
    found = [entry[2] for entry in kept]
    if found and found.count(found[0]) == len(found):
        every, found = found[0], []
    else:
        every = ()
    return [entry[0] for entry in kept], [entry[1] for entry in kept], every, found
