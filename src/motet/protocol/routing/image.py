"""Routing in the image of durable state: tables, obligations, starts and joins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct, msgpack

from motet.errors import InvariantError
from motet.model import Filter, Hop, OpId
from motet.protocol.image import Bits, HeadImage, PubendsImage, chunked, mask_of, numbers
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.state import WITHDRAW, Entry, Table, Wait

T = TypeVar("T")
Ticks = tuple[tuple[OpId, tuple[tuple[str, int], ...]], ...]
Names = tuple[tuple[OpId, tuple[str, ...]], ...]


class HopsImage(Struct, tag="hops", array_like=True, frozen=True):
    """The hop of each bit, and the free bits in the order in which they will be used."""

    slots: tuple[Hop | None, ...]
    free: tuple[int, ...]
    neighbours: Bits


class EntryImage(Struct, array_like=True, frozen=True):
    id: OpId
    filter: Filter
    source: int
    key: int
    sent: Bits
    start: int = 0
    tx: str = ""
    ended: bool = False
    version: int = 0
    ended_at: int = 0
    end: int = 0


class AdvertisementsImage(Struct, tag="advs", array_like=True, frozen=True):
    rows: tuple[EntryImage, ...]


class SubscriptionsImage(Struct, tag="subs", array_like=True, frozen=True):
    rows: tuple[EntryImage, ...]


class ClientsImage(Struct, tag="clients", array_like=True, frozen=True):
    rows: tuple[tuple[str, str, Hop], ...]


class DurableClientsImage(Struct, tag="lasting", array_like=True, frozen=True):
    """The durable sessions, by client and epoch."""

    rows: tuple[tuple[str, str], ...]


class PlainClientsImage(Struct, tag="plain", array_like=True, frozen=True):
    """The sessions that are not in total order, by client and epoch."""

    rows: tuple[tuple[str, str], ...]


class HomesImage(Struct, tag="homes", array_like=True, frozen=True):
    """The homes of sessions that have moved, by client and epoch."""

    rows: tuple[tuple[str, str, str], ...]


class WaitImage(Struct, array_like=True, frozen=True):
    op: OpId
    what: str
    requester: Hop
    missing: Bits
    probe: Filter | None
    target: OpId | None
    retired: bool = False


class WaitsImage(Struct, tag="waits", array_like=True, frozen=True):
    rows: tuple[WaitImage, ...]


class WithdrawalsImage(Struct, tag="withdrawals", array_like=True, frozen=True):
    """By target: which waits are withdrawals, and which removals only wait for others. This follows
    from the waits; it is here because older releases need it, and digests contain it."""

    rows: tuple[tuple[OpId, tuple[OpId, ...], tuple[OpId, ...]], ...]


class RetiredImage(Struct, tag="retired", array_like=True, frozen=True):
    rows: tuple[tuple[OpId, OpId | None], ...]


class StartsImage(Struct, tag="starts", array_like=True, frozen=True):
    rows: Ticks


class LostStartsImage(Struct, tag="lost", array_like=True, frozen=True):
    rows: tuple[tuple[OpId, int, str], ...]


class WindowsImage(Struct, tag="windows", array_like=True, frozen=True):
    """Of subscriptions that begin or end with transactions: pubends that have yet to cut; ends;
    ends of lost ones. Of all subscriptions: void starts, and severed pubends."""

    tentative: Names
    ends: Ticks
    lost: tuple[tuple[OpId, int], ...]
    lapsed: Ticks
    severed: Names = ()


class JoinsImage(Struct, tag="joins", array_like=True, frozen=True):
    rows: Ticks


# ── out ──────────────────────────────────────────────────────────────────────────────────


def parts(routing: Routing) -> Mapping[type[Struct], Iterable[Any]]:
    state, starts = routing.state, routing.starts
    advertisements, subscriptions, bits = state.advertisements, state.subscriptions, state.bits
    lost = ((op, tick, neighbour) for op, (tick, neighbour) in starts.lost.items())
    return {
        HeadImage: [
            {
                "removals": state.removals,
                "ignored": routing.ignored,
                "met": numbers(state.met),
                "complete": numbers(state.complete),
                "declared": numbers(state.declared),
                "next_keys": (advertisements.next_key, subscriptions.next_key),
                "next_tick": starts.next_tick,
            }
        ],
        HopsImage: [HopsImage(tuple(bits.slots), tuple(bits.free), numbers(bits.all_neighbours))],
        AdvertisementsImage: chunked(AdvertisementsImage, _entries(routing, advertisements)),
        SubscriptionsImage: chunked(SubscriptionsImage, _entries(routing, subscriptions)),
        ClientsImage: chunked(ClientsImage, ((*who, hop) for who, hop in state.clients.items())),
        DurableClientsImage: chunked(DurableClientsImage, state.clients.durable),
        PlainClientsImage: chunked(PlainClientsImage, state.clients.plain()),
        HomesImage: chunked(
            HomesImage, ((*who, home) for who, home in state.clients.moved().items())
        ),
        WaitsImage: chunked(WaitsImage, map(_wait, state.waits.values())),
        WithdrawalsImage: chunked(WithdrawalsImage, _withdrawals(routing)),
        PubendsImage: [
            {
                "hosted": state.hosted,
                "rows": tuple(state.pubends.items()),
                "paths": tuple(state.paths.items()),
            }
        ],
        RetiredImage: chunked(RetiredImage, state.retired.items()),
        StartsImage: chunked(StartsImage, ticks_of(starts.known)),
        LostStartsImage: chunked(LostStartsImage, lost),
        WindowsImage: _windows(routing),
        JoinsImage: chunked(JoinsImage, ticks_of(routing.joins.awaited)),
    }


def _entries(routing: Routing, table: Table) -> Iterator[EntryImage]:
    number = routing.state.bits.number
    for entry in table:
        source, sent = number(entry.source), numbers(entry.sent)
        tagged = (entry.tx, entry.ended, entry.version, entry.ended_at, entry.end)
        yield EntryImage(entry.id, entry.filter, source, entry.key, sent, entry.start, *tagged)


def _wait(wait: Wait) -> WaitImage:
    what = (wait.op, wait.what, wait.requester, numbers(wait.missing))
    return WaitImage(*what, wait.probe, wait.target, wait.retired)


def _withdrawals(
    routing: Routing,
) -> Iterator[tuple[OpId, tuple[OpId, ...], tuple[OpId, ...]]]:
    waits = routing.state.waits
    for target, ops in waits.removals.items():
        found = [waits[op] for op in ops]
        under_way = tuple(each.op for each in found if each.what == WITHDRAW)
        held = tuple(each.op for each in found if not each.missing and not each.retired)
        if under_way:
            yield target, under_way, held


def _windows(routing: Routing) -> Iterator[WindowsImage]:
    starts = routing.starts
    lost = tuple(starts.lost_ends.items())
    tentative, ends = names_of(starts.tentative), tuple(ticks_of(starts.ends))
    lapsed, severed = tuple(ticks_of(starts.lapsed)), names_of(starts.severed)
    if tentative or ends or lost or lapsed or severed:
        yield WindowsImage(tentative, ends, lost, lapsed, severed)


def ticks_of(
    known: Mapping[OpId, Mapping[str, int]],
) -> Iterator[tuple[OpId, tuple[tuple[str, int], ...]]]:
    return ((op, tuple(ticks.items())) for op, ticks in known.items())


def names_of(known: Mapping[OpId, Mapping[str, None]]) -> Names:
    return tuple((op, tuple(names)) for op, names in known.items())


# ── in ───────────────────────────────────────────────────────────────────────────────────


def takers(routing: Routing) -> Mapping[type[Struct], Callable[[Any], None]]:
    state, starts = routing.state, routing.starts

    def take_hops(part: HopsImage) -> None:
        state.bits.restore(part.slots, part.free, mask_of(part.neighbours))

    def take_clients(part: ClientsImage) -> None:
        for client, epoch, hop in part.rows:
            state.clients[client, epoch] = hop

    def take_plain(part: PlainClientsImage) -> None:
        for key in part.rows:
            state.clients.merging.pop(key, None)

    def take_homes(part: HomesImage) -> None:
        moved = {(client, epoch): home for client, epoch, home in part.rows}
        for (client, epoch), home in moved.items():
            state.clients.set_home(client, epoch, home)
        for entry in state.advertisements:
            entry.home = moved.get((entry.id.client, entry.id.epoch), entry.home)

    def take_waits(part: WaitsImage) -> None:
        for row in part.rows:
            what = (row.op, row.what, row.requester, mask_of(row.missing))
            state.waits[row.op] = Wait(*what, row.probe, row.target, row.retired)

    def take_windows(part: WindowsImage) -> None:
        starts.lost_ends.update(part.lost)
        starts.tentative.update((op, dict.fromkeys(names)) for op, names in part.tentative)
        starts.ends.update(_dicts(part.ends))
        starts.lapsed.update(_dicts(part.lapsed))
        starts.severed.update((op, dict.fromkeys(names)) for op, names in part.severed)

    return {
        HeadImage: lambda part: _take_head(routing, part),
        HopsImage: take_hops,
        AdvertisementsImage: lambda part: _take_rows(routing, state.advertisements, part.rows),
        SubscriptionsImage: lambda part: _take_rows(routing, state.subscriptions, part.rows),
        ClientsImage: take_clients,
        DurableClientsImage: lambda part: state.clients.durable.update(dict.fromkeys(part.rows)),
        PlainClientsImage: take_plain,
        HomesImage: take_homes,
        WaitsImage: take_waits,
        WithdrawalsImage: lambda _: None,
        PubendsImage: lambda part: _take_pubends(routing, part),
        RetiredImage: lambda part: state.retired.update(part.rows),
        StartsImage: lambda part: starts.known.update(_dicts(part.rows)),
        LostStartsImage: lambda part: starts.lost.update((op, (t, n)) for op, t, n in part.rows),
        WindowsImage: take_windows,
        JoinsImage: lambda part: routing.joins.awaited.update(_dicts(part.rows)),
    }


def _take_head(routing: Routing, head: HeadImage) -> None:
    state = routing.state
    state.removals, routing.ignored = head.removals, head.ignored
    state.met, state.complete = mask_of(head.met), mask_of(head.complete)
    state.declared = mask_of(head.declared)
    state.advertisements.next_key, state.subscriptions.next_key = head.next_keys
    routing.starts.next_tick = head.next_tick


def _take_pubends(routing: Routing, part: PubendsImage) -> None:
    routing.state.hosted = part.hosted
    routing.state.pubends.update(part.rows)
    routing.state.paths.update(part.paths)


def _take_rows(routing: Routing, table: Table, rows: Sequence[EntryImage]) -> None:
    state, slots = routing.state, routing.state.bits.slots
    for row in rows:
        source = slots[row.source]
        if source is None:
            raise InvariantError(f"{row.id} has no source")
        tagged = (row.tx, row.ended, row.version, row.ended_at, row.end)
        sent = mask_of(row.sent)
        entry = Entry(row.id, row.filter, source, row.key, sent, row.start, *tagged)
        if table is state.advertisements:
            entry.home = state.clients.home_of(entry.id.client, entry.id.epoch)
        table.restore(entry)
        routing.marks.watch(entry)


def _dicts(rows: Ticks) -> Iterator[tuple[OpId, dict[str, int]]]:
    return ((op, dict(ticks)) for op, ticks in rows)


# ── state of the room in its own encoding ────────────────────────────────────────────────


class OtherHomes(Struct, array_like=True, frozen=True):
    """Homes that cannot be derived from those of sessions: of advertisements, and of those that are
    about to arrive."""

    entries: tuple[tuple[OpId, str], ...]
    told: tuple[tuple[OpId, str], ...]


def other_homes(routing: Routing) -> bytes:
    state = routing.state
    home_of = state.clients.home_of
    entries = tuple(
        (each.id, each.home)
        for each in state.advertisements
        if each.home != home_of(each.id.client, each.id.epoch)
    )
    told = tuple(state.told_homes.items())
    return msgpack.encode(OtherHomes(entries, told)) if entries or told else b""


def take_other_homes(routing: Routing, image: bytes) -> None:
    state, homes = routing.state, msgpack.decode(image, type=OtherHomes)
    for op, home in homes.entries:
        state.advertisements.entries[op].home = home
    state.told_homes.update(homes.told)
