"""Relocation: the rows of a moving client, re-pointed along the path from its old broker to its
new one.

The path is A = b0 … bk = B. At every broker on it the rows come from the previous hop before the
move, and from the next one after it; at A the previous hop is the client, at B the next one is.
Off the path nothing changes, except whose log an advertisement's events are in (`Rehome`).

Subscriptions that an advertisement attracts travel ahead of the move on the same link, so they are
all at B when it arrives. Starts are told, and asked for, behind it: then they find the rows
re-pointed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from msgspec import Struct

from motet.model import Hop, OpId
from motet.protocol.changes import AdvertisementRetired, Changes, StartLapsed
from motet.protocol.routing.machine import RETIRED, Routing
from motet.protocol.routing.messages import (
    ClientHere,
    MovingRow,
    MovingStarts,
)
from motet.protocol.routing.starts import broker_of_pubend
from motet.protocol.routing.state import Entry

T = TypeVar("T")


class Relocated(Struct, frozen=True):
    """What moves, from the broker `former` to the broker `home`. Without residues, `upto` is the
    tick of the former pubend up to which all events have arrived."""

    client: str
    epoch: str
    durable: bool
    plain: bool
    former: str
    home: str
    subscriptions: tuple[MovingRow, ...]
    advertisements: tuple[MovingRow, ...]
    upto: int


class Relocation:
    """Changed tables are reported like those of `Routing`; a caller passes all changes on."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._state = routing.state

    # ── at the source ────────────────────────────────────────────────────────────────────

    def rows(
        self, client: str, residues: Mapping[OpId, OpId]
    ) -> tuple[tuple[MovingRow, ...], tuple[MovingRow, ...]]:
        """The subscriptions and advertisements of a local client; `residues` names the copies that
        some of its advertisements leave."""
        state, source = self._state, Hop.client(client)
        subscriptions = state.subscriptions.from_source(source)
        advertisements = state.advertisements.from_source(source)
        return (
            tuple(MovingRow(each.id, each.filter, each.ended) for each in subscriptions),
            tuple(
                MovingRow(each.id, each.filter, residue=residues.get(each.id))
                for each in advertisements
            ),
        )

    def lift_own_starts(self, client: str) -> list[StartLapsed]:
        """See `_lift_own`. Returns the starts that are void."""
        own = self._state.subscriptions.from_source(Hop.client(client))
        return [lapsed for entry in own for lapsed in self._lift_own(entry)]

    def take_starts(self, subscriptions: Iterable[MovingRow]) -> MovingStarts:
        """Remove what is known of the starts of leaving subscriptions, and return it."""
        starts, awaited = self._routing.starts, self._routing.joins.awaited
        ops = [each.id for each in subscriptions]

        def ticks(
            known: Mapping[OpId, Mapping[str, int]],
        ) -> tuple[tuple[OpId, tuple[tuple[str, int], ...]], ...]:
            return tuple((op, tuple(known[op].items())) for op in ops if op in known)

        def names(
            known: Mapping[OpId, Mapping[str, None]],
        ) -> tuple[tuple[OpId, tuple[str, ...]], ...]:
            return tuple((op, tuple(known[op])) for op in ops if op in known)

        severed = {op: dict(starts.severed.get(op, {})) | self._unsupported(op) for op in ops}
        found = MovingStarts(
            ticks(starts.known),
            names(starts.tentative),
            ticks(starts.ends),
            ticks(starts.lapsed),
            names({op: pubends for op, pubends in severed.items() if pubends}),
            ticks(awaited),
        )
        for op in ops:
            starts.forget(op)
            awaited.pop(op, None)
        return found

    def _unsupported(self, op: OpId) -> dict[str, None]:
        """Where a subscription has started, although no advertisement there is known here: it is on
        its way, behind the news of the start. It comes to the target behind the session."""
        entry = self._state.subscriptions.get(op)
        if entry is None:
            return {}
        homes = {each.home for each in self._state.advertisements.overlapping(entry.filter)}
        known = self._routing.starts.known.get(op, {})
        return {each: None for each in known if broker_of_pubend(each) not in homes}

    # ── at every broker on the path ──────────────────────────────────────────────────────

    def turn(self, moving: Relocated, before: Hop, after: Hop) -> Changes:
        """Re-point all rows. Call `begin` after the move has been passed on."""
        state, routing = self._state, self._routing
        came, goes = self._bit(before), self._bit(after)
        clients = state.clients
        here = ClientHere(moving.client, moving.epoch, moving.durable, moving.plain)
        clients.hear(here, after)
        clients.set_home(moving.client, moving.epoch, moving.home)
        for row in moving.subscriptions:
            entry = state.subscriptions.get(row.id)
            if entry is None:
                entry = state.subscriptions.add(row.id, row.filter, after, ended=row.ended)
                routing.marks.subscribed(entry)
            else:
                state.subscriptions.turn(entry, after)
            entry.sent = (entry.sent | came) & ~goes
        for row in moving.advertisements:
            self._turn_advertisement(row, moving, before, after)
        return routing.take()

    def _turn_advertisement(
        self, row: MovingRow, moving: Relocated, before: Hop, after: Hop
    ) -> None:
        state, routing = self._state, self._routing
        entry = state.advertisements.get(row.id)
        if entry is None:
            entry = state.advertisements.add(row.id, row.filter, after)
        else:
            state.advertisements.turn(entry, after)
        came, goes = self._bit(before), self._bit(after)
        entry.sent = (entry.sent | came) & ~goes
        entry.home = moving.home
        if row.residue is not None:
            self._leave_residue(row, moving.former, before)
        else:
            gone = Entry(entry.id, entry.filter, before, entry.key, home=moving.former)
            if before.is_broker:
                moving_ops = frozenset(each.id for each in moving.subscriptions)
                self._lift(entry, moving.former, moving.upto)
                routing.withdraw_unsupported(gone, keep=moving_ops)
            else:  # local subscriptions still read our log
                routing.starts.end(gone)
        others = state.bits.all_neighbours & ~came & ~goes
        routing.rehome(row, moving.home, moving.former, moving.upto, others)
        if after.is_broker:
            routing.attract(entry, joins=False)

    def _leave_residue(self, row: MovingRow, former: str, before: Hop) -> None:
        """A retired copy of an advertisement stays at the former broker, so that events owed from
        there keep their routes."""
        state, residue = self._state, row.residue
        assert residue is not None
        if residue in state.advertisements:
            return
        source = before if before.is_broker else RETIRED
        entry = state.advertisements.add(residue, row.filter, source, home=former)
        entry.sent = state.bits.all_neighbours & ~self._bit(before)
        if source is RETIRED:
            state.retired[residue] = None
            self._routing.report(AdvertisementRetired(residue))

    def _lift(self, entry: Entry, former: str, upto: int) -> None:
        gone = Entry(entry.id, entry.filter, entry.source, entry.key, home=former)
        self._routing.joins.expect_less(gone, upto)
        if self._routing.starts.known:
            self._routing.starts.lift(gone, upto)

    def begin(self, moving: Relocated) -> Changes:
        """Tell neighbours of subscriptions that they should have by now, and start those that are
        due at our own pubend."""
        state, routing = self._state, self._routing
        for row in moving.subscriptions:
            entry = state.subscriptions.get(row.id)
            if entry is None:
                continue
            towards = state.advertisements.overlapping_hops(entry.filter)
            towards &= state.bits.all_neighbours & ~entry.sent & ~self._bit(entry.source)
            for neighbour in state.bits.names(towards):
                routing.pass_on(entry, neighbour, echo=False)
            routing.starts.start(entry)
            if routing.joins.merges(entry):
                routing.await_all(entry)
        for row in moving.advertisements:
            advertised = state.advertisements.get(row.id)
            if advertised is None:
                continue
            if not advertised.source.is_broker:
                routing.starts.start_attracted(advertised)
            elif routing.joins.merging:
                routing.ask_to_join(advertised)
        return routing.take()

    # ── at the target ────────────────────────────────────────────────────────────────────

    def give_starts(self, moving: MovingStarts) -> None:
        """Subscriptions of a client have arrived: take over what is known of their starts."""
        starts = self._routing.starts
        starts.known.update(_dicts(moving.known))
        starts.tentative.update((op, dict.fromkeys(names)) for op, names in moving.tentative)
        starts.ends.update(_dicts(moving.ends))
        starts.lapsed.update(_dicts(moving.lapsed))
        starts.severed.update((op, dict.fromkeys(names)) for op, names in moving.severed)
        self._routing.joins.awaited.update(_dicts(moving.awaited))

    def lift_starts(self, subscriptions: Iterable[MovingRow]) -> list[StartLapsed]:
        """Advertisements that were removed here while the session was on its way start none of its
        subscriptions any more. To be called when its rows and starts are here. Returns the starts
        that are void."""
        state = self._state
        if state.bits.all_neighbours & ~state.complete:
            return []  # a missing advertisement may only be lost
        found: list[StartLapsed] = []
        for row in subscriptions:
            entry = state.subscriptions.get(row.id)
            if entry is not None:
                found += self._lift_arrived(entry)
                self._routing.joins.lift_arrived(entry)
        return found

    def _lift_own(self, entry: Entry) -> list[StartLapsed]:
        """A local subscription is about to leave. Our own pubend has kept its start, although no
        local client may advertise for it any more; for a remote one it is void."""
        state, starts = self._state, self._routing.starts
        ours = state.advertisements.overlapping_hops(entry.filter) & ~state.bits.all_neighbours
        if entry.start and not ours:
            entry.start = 0
            if state.hosted in starts.known.get(entry.id, ()):
                tick = starts.known[entry.id][state.hosted]
                starts.lapse(entry.id, state.hosted, tick)
                return [StartLapsed(entry.id, state.hosted, tick)]
        return []

    def _lift_arrived(self, entry: Entry) -> list[StartLapsed]:
        """A subscription has come here with its client. Where nobody advertises for it any more,
        that was told here before it came: its start there is void, and all that it was owed has
        been acknowledged. An advertisement that was lost on the way may come again."""
        starts = self._routing.starts
        homes = {each.home for each in self._state.advertisements.overlapping(entry.filter)}
        severed = starts.severed.get(entry.id, {})
        found: list[StartLapsed] = []
        for pubend, tick in list(starts.known.get(entry.id, {}).items()):
            if broker_of_pubend(pubend) not in homes and pubend not in severed:
                starts.lapse(entry.id, pubend, tick)
                found.append(StartLapsed(entry.id, pubend, tick))
                self._routing.report(found[-1])
        return found

    def know_own_starts(self, subscriptions: Iterable[MovingRow]) -> None:
        """Our own pubend has started subscriptions that have arrived: the news is on its way to
        their former broker, and may come back late. Requests for such starts came ahead of them."""
        state, starts, awaited = self._state, self._routing.starts, self._routing.joins.awaited
        for row in subscriptions:
            awaited.get(row.id, {}).pop(state.hosted, None)
            entry = state.subscriptions.get(row.id)
            if entry is not None and entry.start:
                starts.know_own(entry)

    def probe(self, moving: Relocated) -> OpId | None:
        """Ask the neighbours from which a client in total order may want the client's events. When
        they have echoed, all such clients have asked for their starts."""
        state, towards = self._state, 0
        for row in moving.advertisements:
            towards |= state.subscriptions.overlapping_hops(row.filter)
        clients = state.clients
        merging = state.bits.all_neighbours & ~state.complete
        for key in clients.merging:
            merging |= self._bit(clients[key])
        towards &= merging
        return self._routing.obligations.probe_arrival(towards) if towards else None

    def announce(self, client: str) -> OpId | None:
        """Ask all neighbours from which somebody wants the events of a local client. When they have
        echoed, they know where their subscriptions start here."""
        state, towards = self._state, 0
        for entry in state.advertisements.from_source(Hop.client(client)):
            towards |= state.subscriptions.overlapping_hops(entry.filter)
        towards &= state.bits.all_neighbours
        return self._routing.obligations.probe_arrival(towards) if towards else None

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def withdraw(self, subscriptions: Iterable[MovingRow], before: Hop) -> Changes:
        """Remove the rows that this broker does not need at the previous one: nobody advertises for
        them there. The client may be anywhere by the time they are gone."""
        state, bit = self._state, self._bit(before)
        advertised = state.advertisements.overlapping_hops
        for row in subscriptions:
            entry = state.subscriptions.get(row.id)
            if entry is None or entry.source == before or not entry.sent & bit:
                continue
            if not advertised(entry.filter) & bit:
                self._routing.withdraw(entry, before.name)
        return self._routing.take()

    def _bit(self, hop: Hop) -> int:
        return self._state.bits.bit(hop) if hop.is_broker else 0


def _dicts(
    rows: Iterable[tuple[OpId, tuple[tuple[str, int], ...]]],
) -> Iterable[tuple[OpId, dict[str, int]]]:
    return ((op, dict(ticks)) for op, ticks in rows)
