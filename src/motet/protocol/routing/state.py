"""Durable state of routing: three tables and the obligations that wait for echoes.

Hops have bit numbers, so that sets of hops are integers. Neighbours take one when they are
configured, clients of this broker while they have anything in force; `all_neighbours` tells the
two apart, not the order of the numbers.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, field

from motet.errors import InvariantError
from motet.matching import FilterIndex, create_index
from motet.model import Filter, Hop, OpId, Value
from motet.model.epochs import newest
from motet.protocol.routing.messages import ClientHere


class Entry(Struct):
    """One advertisement or subscription at one broker. `sent` has the bits of the neighbours
    that were told about it; only they are told when it goes."""

    id: OpId
    filter: Filter
    source: Hop
    key: int
    sent: int = 0
    start: int = 0
    """Of a subscription: what our own pubend owes it, it owes above this tick."""
    tx: str = ""
    """The transaction that it is part of, until that is decided."""
    ended: bool = False
    """Of a subscription: a transaction has ended it; it stays for what it is still owed."""
    version: int = 0
    """Of the tables, when it came into force."""
    ended_at: int = 0
    """The same, when it ended."""
    end: int = 0
    """Where it ends in our own pubend, once that has cut."""


class Wait(Struct):
    """Someone waits until `missing` neighbours have echoed. `probe` is the filter of an
    operation that is not installed here because another covers it."""

    op: OpId
    what: str
    requester: Hop
    missing: int
    probe: Filter | None = None
    target: OpId | None = None
    """What a removal removes."""
    retired: bool = False
    """A removal that waits until what was published has arrived, or has waited so long for it
    that who takes it away now is not to blame if time runs out."""


PROBES = ("restore", "reassure")
"""Waits of our own: until they are over we do not know who wants what."""


class Waits(dict[OpId, Wait]):
    """Counts the probes among them, which every event asks for."""

    probes = 0

    def __setitem__(self, op: OpId, wait: Wait) -> None:
        self.pop(op, None)
        super().__setitem__(op, wait)
        self.probes += wait.what in PROBES

    def __delitem__(self, op: OpId) -> None:
        self.probes -= self[op].what in PROBES
        super().__delitem__(op)

    def pop(self, op: OpId, default: Any = None) -> Any:
        if op not in self:
            return default
        found = self[op]
        del self[op]
        return found


class Withdrawal(Struct):
    """A subscription lost its support somewhere: the removals under way, and the unsubscribes
    that wait for nothing else any more."""

    under_way: dict[OpId, None] = field(default_factory=dict)
    held: list[OpId] = field(default_factory=list)


class HopBits:
    """Which bit stands for which hop."""

    def __init__(self, neighbours: Sequence[str]) -> None:
        self.slots: list[Hop | None] = []
        self._numbers: dict[Hop, int] = {}
        self.free: list[int] = []
        self.all_neighbours = 0
        for name in sorted(neighbours):
            self.admit(name)

    @property
    def neighbours(self) -> tuple[str, ...]:
        return tuple(self.names(self.all_neighbours))

    def admit(self, neighbour: str) -> None:
        """A broker becomes a neighbour."""
        self.all_neighbours |= 1 << self._take(Hop.broker(neighbour))

    def dismiss(self, neighbour: str) -> None:
        """A broker is a neighbour no more; nothing may name its bit any longer."""
        hop = Hop.broker(neighbour)
        self.all_neighbours &= ~self.bit(hop)
        self.release(hop)

    def number(self, hop: Hop) -> int:
        """The bit number of a hop; a client that is new here gets one."""
        found = self._numbers.get(hop)
        if found is not None:
            return found
        if hop.is_broker:
            raise InvariantError(f"{hop} is not a neighbour of this broker")
        return self._take(hop)

    def _take(self, hop: Hop) -> int:
        if self.free:
            number = self.free.pop()
            self.slots[number] = hop
        else:
            number = len(self.slots)
            self.slots.append(hop)
        self._numbers[hop] = number
        return number

    def bit(self, hop: Hop) -> int:
        """The bit of a hop, 0 if it has none: then it has nothing in force."""
        number = self._numbers.get(hop)
        return 0 if number is None else 1 << number

    def release(self, hop: Hop) -> None:
        number = self._numbers.pop(hop, None)
        if number is not None:
            self.slots[number] = None
            self.free.append(number)

    def hops(self, mask: int) -> Iterator[Hop]:
        while mask:
            low = mask & -mask
            hop = self.slots[low.bit_length() - 1]
            if hop is None:
                raise InvariantError("a routing table names a hop that left")
            yield hop
            mask ^= low

    def restore(
        self, slots: Sequence[Hop | None], free: Sequence[int], all_neighbours: int
    ) -> None:
        """As it was when a snapshot was taken."""
        self.slots, self.free = list(slots), list(free)
        self._numbers = {hop: number for number, hop in enumerate(slots) if hop}
        self.all_neighbours = all_neighbours

    def names(self, mask: int) -> list[str]:
        return [hop.name for hop in self.hops(mask)] if mask else []


NO_OVERLAP: tuple[Filter | None, int] = (None, 0)


class Table:
    """Entries with an index over their filters: the SRT over advertisements, the PRT over
    subscriptions. Listing order is the order of arrival."""

    def __init__(self, bits: HopBits) -> None:
        self._bits = bits
        self._entries: dict[OpId, Entry] = {}
        self._by_key: dict[int, Entry] = {}
        self._by_source: dict[Hop, dict[OpId, Entry]] = {}
        self.next_key = 0
        self.index: FilterIndex = create_index()
        self._put_off: dict[int, Entry] | None = None
        """While `catching_up`: what is not in the index yet."""
        self._overlap: tuple[Filter | None, int] = NO_OVERLAP
        """The last answer of `overlapping_hops`, until an entry comes or goes: about a filter that
        begins, or ends, somewhere, one asks several times in a row."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, op: OpId) -> bool:
        return op in self._entries

    def get(self, op: OpId) -> Entry | None:
        return self._entries.get(op)

    def entry(self, key: int) -> Entry:
        return self._by_key[key]

    def from_source(self, source: Hop) -> list[Entry]:
        return list(self._by_source.get(source, {}).values())

    def count(self, source: Hop) -> int:
        return len(self._by_source.get(source, ()))

    def add(
        self, op: OpId, filter: Filter, source: Hop, tx: str = "", ended: bool = False
    ) -> Entry:
        entry = Entry(op, filter, source, self.next_key, tx=tx, ended=ended)
        self.next_key += 1
        self.restore(entry)
        return entry

    def restore(self, entry: Entry) -> None:
        """Put an entry in place that has its key already."""
        self._overlap = NO_OVERLAP
        number = self._bits.number(entry.source)
        if self._put_off is None:
            self.index.add(entry.key, entry.filter, number)
        else:
            self._put_off[entry.key] = entry
        self._entries[entry.id] = entry
        self._by_key[entry.key] = entry
        self._by_source.setdefault(entry.source, {})[entry.id] = entry

    def remove(self, entry: Entry) -> None:
        self._overlap = NO_OVERLAP
        if self._put_off is None or self._put_off.pop(entry.key, None) is None:
            self.index.remove(entry.key)
        del self._entries[entry.id]
        del self._by_key[entry.key]
        siblings = self._by_source[entry.source]
        del siblings[entry.id]
        if not siblings:
            del self._by_source[entry.source]

    @contextmanager
    def catching_up(self) -> Iterator[None]:
        """For replaying: most of what a journal tells of is gone at its end, so nothing enters
        the index before somebody asks it, or the end is there."""
        self._put_off = {}
        try:
            yield
            self._complete_index()
        finally:
            self._put_off = None

    def _complete_index(self) -> FilterIndex:
        if self._put_off:
            for entry in self._put_off.values():
                self.index.add(entry.key, entry.filter, self._bits.number(entry.source))
            self._put_off.clear()
        return self.index

    def matching(self, attributes: Mapping[str, Value]) -> list[Entry]:
        """Whose filters an event fulfils, in the order of arrival."""
        return [self._by_key[key] for key in sorted(self._complete_index().match(attributes))]

    def overlapping(self, filter: Filter) -> list[Entry]:
        return [self._by_key[key] for key in self._complete_index().overlapping(filter)]

    def overlapping_hops(self, filter: Filter) -> int:
        if not self._entries:
            return 0
        known, hops = self._overlap
        if known is not filter:
            hops = self._complete_index().overlapping_hops(filter)
            self._overlap = (filter, hops)
        return hops

    def hops_encoded(self, body: bytes) -> int:
        """The hops whose filters an encoded event fulfils; 0 if no event can have that body."""
        return self._complete_index().hops_encoded(body) or 0 if self._entries else 0

    def covering(self, filter: Filter) -> list[Entry]:
        return [self._by_key[key] for key in self._complete_index().covering(filter)]

    def covered(self, filter: Filter) -> list[Entry]:
        return [self._by_key[key] for key in self._complete_index().covered(filter)]


class ClientTable(MutableMapping[tuple[str, str], Hop]):
    """The CRT: in which direction each session lives, by client and epoch, in the order in which
    we heard of them. A client has more than one only until everybody has heard of the newest."""

    def __init__(self) -> None:
        self._hops: dict[tuple[str, str], Hop] = {}
        self._epochs: dict[str, tuple[str, ...]] = {}
        self.durable: dict[tuple[str, str], None] = {}
        """Those that outlive their client's processes."""

    def hear(self, message: ClientHere, hop: Hop) -> None:
        key = (message.client, message.epoch)
        self[key] = hop
        if message.durable:
            self.durable[key] = None

    def as_told(self, client: str, epoch: str) -> ClientHere:
        return ClientHere(client, epoch, (client, epoch) in self.durable)

    def newest(self, client: str) -> str | None:
        epochs = self._epochs.get(client)
        return newest(epochs) if epochs else None

    def __getitem__(self, key: tuple[str, str]) -> Hop:
        return self._hops[key]

    def __setitem__(self, key: tuple[str, str], hop: Hop) -> None:
        if key not in self._hops:
            client, epoch = key
            self._epochs[client] = (*self._epochs.get(client, ()), epoch)
        self._hops[key] = hop

    def __delitem__(self, key: tuple[str, str]) -> None:
        del self._hops[key]
        self.durable.pop(key, None)
        client, epoch = key
        left = tuple(other for other in self._epochs[client] if other != epoch)
        if left:
            self._epochs[client] = left
        else:
            del self._epochs[client]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._hops)

    def __len__(self) -> int:
        return len(self._hops)

    def items(self) -> ItemsView[tuple[str, str], Hop]:
        return self._hops.items()


class RoutingState:
    """Changed only by `Routing`, and only while a journaled fact is applied."""

    def __init__(self, neighbours: Sequence[str]) -> None:
        self.bits = HopBits(neighbours)
        self.advertisements = Table(self.bits)
        self.subscriptions = Table(self.bits)
        self.clients = ClientTable()
        self.waits = Waits()
        self.withdrawals: dict[OpId, Withdrawal] = {}
        self.paths: dict[str, tuple[str, ...]] = {}
        """By pubend, the brokers on the way to it, without ourselves."""
        self.pubends: dict[str, Hop] = {}
        """Where each pubend's log is."""
        self.hosted = ""
        """Our own pubend."""
        self.next_tick = 0
        """Of our own pubend, as the fact that is being applied names it: the next start. It lies
        above all that clients in total order have been given here."""
        self.merging: dict[str, None] = {}
        """Clients of ours in total order."""
        self.joins: dict[OpId, dict[str, int]] = {}
        """Of their subscriptions: the pubends that will start them, each above a tick."""
        self.retired: dict[OpId, OpId | None] = {}
        """Advertisements that take no more events, but stay until all that was published under
        them has arrived; each with the request that waits for its end, if any."""
        self.starts: dict[OpId, dict[str, int]] = {}
        """Of our clients' subscriptions: what they are owed, by pubend above which tick."""
        self.lost_starts: dict[OpId, tuple[int, str]] = {}
        """Of subscriptions that somebody on the way has lost: where they started in our own pubend,
        and the neighbour that they came from. They may come again until we know that all have."""
        self.lost_ends: dict[OpId, int] = {}
        """Of some of them: where a transaction has ended them in our own pubend."""
        self.tentative: dict[OpId, dict[str, None]] = {}
        """Of those that begin with a transaction: pubends that have started and not yet cut."""
        self.ends: dict[OpId, dict[str, int]] = {}
        """Of those that end with one: by pubend that has cut, the last tick that they are owed."""
        self.lapsed: dict[OpId, dict[str, int]] = {}
        """Where nobody advertises any more what they want: no start up to this tick counts."""
        self.unsettled: dict[OpId, Entry] = {}
        """What belongs to a transaction that is not decided, or was ended by one."""
        self.undecided: dict[OpId, Entry] = {}
        """The former alone: they are few, while those that have ended wait for acknowledgements."""
        self.uncut: dict[OpId, None] = {}
        """Subscriptions that begin with a cut of our pubend that is to come, and not before it."""
        self.unended: dict[OpId, None] = {}
        """Those that end with such a cut."""
        self.forsaken: dict[OpId, None] = {}
        """What our clients have taken back, and what stays for a while, since pubends expect it."""
        self.version = 0
        """Counts what has changed in the tables."""
        self.ghosts: list[tuple[Entry, int]] = []
        """Subscriptions that are gone, each from a version on: open transactions may read them."""
        self.watched = False
        """Is there any such transaction?"""
        self.removals = 0
        """Counts the removals that nobody asked for, so that each has a name of its own."""
        self.met = 0
        """Neighbours whose link has begun: they have been told all there was."""
        self.complete = 0
        """Neighbours that know, and have told us, everything that lies behind them."""
        self.declared = 0
        """Neighbours to whom we have said the same of us."""

    @property
    def unsure(self) -> bool:
        """Somebody has lost its state, or is new, and it is not known yet who wants what there, or
        what others want from there."""
        return bool(self.waits.probes or self.bits.all_neighbours & ~self.complete)

    def lapsed_upto(self, op: OpId, pubend: str) -> int:
        """A start of a subscription of ours in a pubend, up to this tick, is over."""
        known = self.lapsed.get(op)
        return known.get(pubend, 0) if known is not None else 0

    def watch(self, entry: Entry) -> None:
        """Its marks have changed, or it is new."""
        if entry.tx:
            self.undecided[entry.id] = entry
        else:
            self.undecided.pop(entry.id, None)
        if entry.tx or entry.ended:
            self.unsettled[entry.id] = entry
        else:
            self.unsettled.pop(entry.id, None)

    def unwatch(self, op: OpId) -> None:
        """It is gone."""
        self.undecided.pop(op, None)
        self.unsettled.pop(op, None)

    def remember_since(self, oldest: int | None) -> None:
        """Somebody reads what was in force at this version; None: nobody reads the past."""
        self.watched = oldest is not None
        self.ghosts = [] if oldest is None else [g for g in self.ghosts if g[1] > oldest]

    def missing(self, wait: Wait) -> int:
        """The neighbours that keep an operation waiting."""
        mask = wait.missing
        withdrawal = self.withdrawals.get(wait.target) if wait.target else None
        for op in withdrawal.under_way if withdrawal else ():
            mask |= self.waits[op].missing
        return mask

    def buffered(self) -> list[Entry]:
        """Subscriptions that no advertisement from elsewhere overlaps: they wait here.

        Looks at every subscription: not for the broker's own path."""
        advertised = self.advertisements.overlapping_hops
        return [
            entry
            for entry in self.subscriptions
            if not advertised(entry.filter) & ~self.bits.bit(entry.source)
        ]
