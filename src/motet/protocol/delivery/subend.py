"""The subend of one pubend: the clients of this broker, consolidated.

All clients that are *live* stand at one doubt horizon and cost nothing but their events. A client
that has not acknowledged a window of events, or comes back with an older cursor, is *behind*: it
is served from its own position, from memory and then by asking, until it stands at the horizon.
"""

from __future__ import annotations

from motet.protocol.delivery.cuts import Cuts
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.memory import Memory
from motet.protocol.delivery.messages import Delivered
from motet.protocol.delivery.position import Position
from motet.protocol.delivery.ranges import Range
from motet.protocol.delivery.spans import Span, clip
from motet.protocol.publication import Publication

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
    )

    def __init__(self, pubend: str, interest: Interest, window: int, memory: Memory) -> None:
        self._pubend = pubend
        self._interest = interest
        self._window = window
        self._memory = memory
        self.horizon: int | None = None
        """The doubt horizon of those who are live; None if nobody is."""
        self.positions: dict[str, Position] = {}
        self.behind: dict[str, Position] = {}
        """Present, but not at the horizon."""
        self.merged: dict[str, Position] = {}
        """Present, and in total order."""
        self.cuts = Cuts()
        self.live = 0

    # ── who is where ─────────────────────────────────────────────────────────────────────

    def place(self, position: Position) -> None:
        """A present client takes its place: at the horizon, or behind it."""
        position.present = True
        position.fresh = False
        if position.merge is not None:
            self.merged[position.client] = position
        self._lag(position)
        if self.horizon is None or not self.live:
            self._jump(position.given)
        self._catch(position)

    def _jump(self, tick: int) -> None:
        """Nobody depends on the horizon: it may stand anywhere."""
        self.horizon = tick

    def _lag(self, position: Position) -> None:
        if position.live:
            position.live = False
            self.live -= 1
        self.behind[position.client] = position

    def _catch(self, position: Position) -> None:
        """Join the live ones if the position has reached them."""
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
        """Whether a client may still begin further back. A place at which it has heard nothing is
        given up for that."""
        if position.idle and not position.fresh:
            self.absent(position)
            position.fresh = True
        return position.fresh

    def remove(self, position: Position) -> None:
        self.absent(position)
        del self.positions[position.client]

    def room(self, position: Position) -> int:
        return self._window - position.unacked + position.exempt

    # ── the live ones ────────────────────────────────────────────────────────────────────

    def pass_on(self, span: Span, masks: list[int], deliver: list[Delivery]) -> None:
        """The span directly above the horizon, with the masks of its batch."""
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
        """Per client its own part of the batch."""
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
        """Move the horizon over everything that is remembered directly above it."""
        while self.horizon is not None:
            span = self._memory.covering(self.horizon + 1)
            if span is None:
                return
            part = clip(span, self.horizon + 1, span.upto)
            masks = self._interest.masks(part.batch) if part.batch and self.live else []
            self.pass_on(part, masks, deliver)

    # ── those behind ─────────────────────────────────────────────────────────────────────

    def pump(self, position: Position, deliver: list[Delivery], given: Span | None = None) -> None:
        """Serve a client that is behind, as far as memory (or the span in hand) and its window
        go, until it has joined the live ones."""
        while position.client in self.behind and self.room(position) > 0:
            self._catch(position)
            if position.live:
                return
            tick = position.given + 1
            if given is not None and given.since <= tick <= given.upto:
                span: Span | None = given
            elif position.given < position.deep_upto:
                span = None
            else:
                span = self._memory.covering(tick)
            if span is None or (span.lost and position.is_doubtful(tick)):
                return
            assert self.horizon is not None
            # Not beyond the horizon: there the live ones get it, and this one with them.
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
        """A loss is told like an event: until it is acknowledged it may have to be told again."""
        position.idle = False
        self._emit(position, Delivered(self._pubend, upto, lost=((since, upto),)), deliver)
        position.outstanding.append((since, upto, 0))

    def _emit(self, position: Position, told: Delivered, deliver: list[Delivery]) -> None:
        together = position.together
        if position.merge is not None:
            position.merge.take(told, self.cuts)
        elif together is not None and (
            together.holding or (told.ticks and told.ticks[0] <= self.cuts.top)
        ):
            passing = together.pass_by(told, self.cuts)
            deliver += [(position.client, each) for each in passing]
        else:
            deliver.append((position.client, told))

    # ── what is missing ──────────────────────────────────────────────────────────────────

    def needs(self, frontier: int) -> tuple[list[Range], list[Range]]:
        """Gaps below what was heard of, and ranges that clients wait for now."""
        patient: list[Range] = []
        urgent: list[Range] = []
        if self.live and self.horizon is not None and self.horizon < frontier:
            ceiling = self._memory.ceiling
            if ceiling is not None and ceiling <= self.horizon:
                ceiling = self._memory.ceiling = None
            upto = frontier if ceiling is None else min(frontier, ceiling)
            patient = self._memory.missing(self.horizon + 1, upto)
        for position in self.behind.values():
            if self._has_room(position) and position.given >= position.deep_upto:
                upto = max(self.horizon or 0, frontier)
                if position.given < upto:
                    urgent += self._memory.missing(position.given + 1, upto)[:1]
        if self.merged and patient:  # others wait for these: no time to lose
            upto = min(self.waited(), frontier)
            urgent += [(low, min(high, upto)) for low, high in patient if low <= upto]
        return patient, urgent

    def _has_room(self, position: Position) -> bool:
        """Half a window, so that an answer is not fetched again for each event that is read."""
        return 2 * (position.unacked - position.exempt) <= self._window

    def waited(self) -> int:
        """Up to where clients in total order wait for this pubend because of others."""
        found = 0
        for position in self.merged.values():
            if position.merge is not None:
                found = max(found, position.merge.wanted(self._pubend))
        return found

    def deep_needs(self) -> tuple[list[Range], int]:
        """Ranges older than the subscriptions that want them, and as of when."""
        found = [
            each
            for each in self.behind.values()
            if each.given < each.deep_upto and self._has_room(each)
        ]
        asof = max((each.deep_asof for each in found), default=0)
        return [(each.given + 1, each.deep_upto) for each in found], asof

    def notes(self, floor: int) -> dict[str, int]:
        """Durable clients that have moved since their position was last given away, and are not
        where everybody is."""
        found: dict[str, int] = {}
        for position in self.positions.values():
            if position.durable and position.present:
                at = position.settled(self.horizon)
                if at > max(position.noted, 0 if at < position.deep_upto else floor):
                    found[position.client] = position.noted = at
        return found

    def settled(self) -> int | None:
        """Everything up to here is done with at all clients; None if there are none."""
        horizon = self.horizon
        return min((each.settled(horizon) for each in self.positions.values()), default=None)

    def validate(self) -> None:
        live = [each for each in self.positions.values() if each.live]
        assert len(live) == self.live
        assert not live or self.horizon is not None
        for position in self.positions.values():
            assert position.unacked == sum(each[2] for each in position.outstanding)
            assert position.present or not (position.live or position.client in self.behind)
            assert position.live != (position.client in self.behind) or not position.present
            assert position.starts


def _owed(
    position: Position,
    ticks: list[int],
    batch: list[Publication],
    every: tuple[int, ...],
    each: list[tuple[int, ...]],
) -> tuple[list[int], list[Publication], tuple[int, ...], list[tuple[int, ...]]]:
    """Without what lies at or before the cursor or the start of its subscription."""
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
